"""Measures of chapter 15: runs, records and formulas against loops over them, and what the ids of the claims say."""

from functools import partial

import judged
import numpy as np
import pytest
import torch

from mvnb.papers.gemfilter import data, measure, model, plots, theory, training
from mvnb.papers.gemfilter import token_selection as ts

verdict = partial(judged.verdict, "gemfilter")
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
VARIANT = "softmax variant"
SELECTIONS = ("GemFilter", VARIANT)


def g(seed=0):
    return torch.Generator().manual_seed(seed)


def asked(n, size=4, depths=(0.0, 1.0), seed=0):
    return data.prompts_by_depth(n, depths, size, g(seed))


# --- Small models ---


def test_values_and_views_are_those_of_each_model_on_its_own_prompts():
    models, prompts = [model.small_llama(g(r)) for r in (3, 4)], [asked(48, seed=r) for r in (3, 4)]
    right, views = measure.values_right(models, prompts, True), measure.layer_views(models, prompts, VARIANT)
    for r, (one, (tokens, values, places)) in enumerate(zip(models, prompts)):
        for name, reply in training.replies(one, tokens, True).items():
            shares = [sum(a == b for a, b in zip(x, y)) / 2 for x, y in zip(reply.tokens.tolist(), values.tolist())]
            assert right[name][r].tolist() == shares
        told = training.replies(one, tokens)["SnapKV"].tokens + torch.tensor([0, 1])
        assert (measure.values_right([one], [(tokens, told, places)])["SnapKV"] == 0.5).all()
        alone = measure.layer_views([one], [(tokens, values, places)], VARIANT)
        assert all(np.allclose(view[r], alone[what][0], atol=1e-4) for what, view in views.items())


@pytest.mark.parametrize(("name", "softmax", "forced"), [("GemFilter", False, 0), (VARIANT, True, 2)])
def test_distances_weights_and_tokens_kept_are_those_of_a_loop(name, softmax, forced):
    one = model.small_llama(g(3))
    tokens, values, places = asked(48, 6, (0.5,), 3)
    view = {what: values[0] for what, values in measure.layer_views([one], [(tokens, values, places)], name).items()}
    scores = ts.filter_scores(one, tokens, [0, 1], softmax=softmax)
    kept = ts.select_tokens(scores, 16, keep_last=forced)
    maps = ts.filter_scores(one, tokens, [0, 1], softmax=True)
    for layer in range(2):
        for b in range(6):
            own, chosen = places[b].tolist(), kept[layer, b].tolist()
            assert view["distance"][layer, b] == min(abs(i - j) for i in chosen for j in own)
            assert view["whole"][layer, b] == (set(own) <= set(chosen))
            assert view["question"][layer, b] == sum(i in chosen for i in (48, 49)) / 2
            assert view["weight"][layer, b] == pytest.approx(float(maps[layer, b, own].sum() / 2), rel=1e-5)
            row = scores[layer, b].numpy()
            means = np.convolve(row, np.ones(5) / 5, "same")
            for what, values in (("peak", row), ("averaged", means)):
                stated = (values[own[2]] - values.mean()) / values.std(ddof=1)
                assert view[what][layer, b] == pytest.approx(stated, rel=1e-4, abs=1e-4)


def test_models_are_tested_at_every_length_beside_what_they_were_before():
    models, before = [model.small_llama(g(1))], [model.small_llama(g(2))]
    prompts = {n: [asked(n)] for n in (32, 48, 64)}
    found = measure.tested(models, before, prompts)
    assert [set(training.ABLATIONS) <= set(found.right[n]) for n in prompts] == [False, True, False]
    for n, some in prompts.items():
        right = measure.values_right(models, some, n == 48)
        assert all(np.array_equal(values, found.right[n][name]) for name, values in right.items())
        for name, view in (*found.views.items(), ("built", found.built)):
            one, selection = (before, VARIANT) if name == "built" else (models, name)
            expected = measure.layer_views(one, some, selection)
            assert all(np.allclose(values, view[n][what], atol=1e-4) for what, values in expected.items())
        assert not np.allclose(found.built[n]["weight"], found.views[VARIANT][n]["weight"], atol=1e-3)


def small_runs():
    """Four runs on two prompts for each depth, with random shares of right values and random views of two layers."""
    draw, lengths = np.random.default_rng(0), (48, 144, 480)
    ways = ("", ", layer 0", ", old places", ", One-Run")
    names = [f"{name}{way}" for name in SELECTIONS for way in ways] + ["whole cache", "SnapKV", "H2O", *training.ABLATIONS]
    right = {n: {name: draw.random((4, 10)) for name in names} for n in lengths}
    seen = ("distance", "whole", "question", "weight")
    views = {name: {n: {what: draw.random((4, 2, 10)) for what in seen} for n in lengths} for name in (*SELECTIONS, "built")}
    return measure.Tested(right, views, views.pop("built"))


# Length and the two methods whose values are compared.
PAIRS = {
    "as-good-at-known-lengths": (48, "{}", "whole cache"),
    "better-beyond-known-lengths": (480, "{}", "whole cache"),
    "better-than-eviction SnapKV": (480, "{}", "SnapKV"),
    "better-than-eviction H2O": (480, "{}", "H2O"),
    "last-row-is-needed middle": (144, "{}", "{}, middle row"),
    "last-row-is-needed largest": (144, "{}", "{}, largest row"),
    "layer-finds-the-needle gain": (48, "{}", "{}, layer 0"),
}
PAIRS = {
    f"{prefix}{id}": (n, a.format(name), b.format(name))
    for id, (n, a, b) in PAIRS.items()
    for name, prefix in zip(SELECTIONS, ("", "variant-"))
}
PAIRS |= {
    "variant-gains-from-reading-again": (480, "softmax variant, old places", "whole cache"),
    "variant-gains-from-new-places": (480, "softmax variant", "softmax variant, old places"),
    "pooling-is-needed": (144, "softmax variant", "softmax variant, no pooling"),
    "variant-keeps-the-question-itself": (144, "softmax variant", "softmax variant, question not kept"),
    "raw-scores-suffice": (144, "softmax variant", "softmax variant, no softmax"),
}


def test_claims_on_answers_of_the_small_model_compare_the_methods_that_they_name():
    found = small_runs()
    numbers = measure.small_models(found, DEPTHS)
    for key, (n, ours, other) in PAIRS.items():
        id, _, name = key.partition(" ")
        for r in range(4):
            gaps = [found.right[n][ours][r, i] - found.right[n][other][r, i] for i in range(10)]
            assert numbers[id][name or "value"][r] == pytest.approx(sum(gaps) / 10), key
    for name, id in zip(SELECTIONS, ("one-run-loses-far-needles", "variant-one-run-loses-far-needles")):
        gaps = [
            found.right[480][name][:, i] - found.right[480][f"{name}, One-Run"][:, i] for i in range(4)
        ]  # depths 0 and 0.25
        assert numbers[id]["value"] == pytest.approx(sum(gaps) / 4)


def test_claims_on_layers_of_the_small_model_are_about_the_layer_that_they_name():
    found = small_runs()
    numbers, (views, trained) = measure.small_models(found, DEPTHS), (found.views, found.views[VARIANT])
    for name, prefix in zip(SELECTIONS, ("", "variant-")):
        for key, layer in (("distance_before", 0), ("distance", 1)):
            assert numbers[f"{prefix}layer-finds-the-needle"][key] == pytest.approx(
                views[name][48]["distance"][:, layer].mean(1)
            )
    assert numbers["question-keeps-itself"]["value"] == pytest.approx(views["GemFilter"][144]["question"][:, 1].mean(1))
    gains = [trained[n]["whole"][:, 1].mean(1) - found.built[n]["whole"][:, 1].mean(1) for n in (48, 144, 480)]
    assert numbers["training-makes-the-filter-surer"]["value"] == pytest.approx(sum(gains) / 3)
    left = {what: trained[480][what][:, 1].mean(1) / trained[48][what][:, 1].mean(1) for what in ("weight", "whole")}
    assert numbers["found-where-it-is-read-less"]["value"] == pytest.approx(left["whole"] - left["weight"])


# --- The language model ---


CASES = [("repeated", 4000, depth) for depth in DEPTHS] + [("prose", 4000, depth) for depth in (0.0, 0.5, 1.0)]
CASES += [("repeated", 1000, 0.5)]
SAID = ["GemFilter", "layer 24", "half as deep", "last layer", "middle row", "largest row", "random", "old places"]
SAID += ["whole cache", "SnapKV", "H2O", "One-Run"]


def record(seed=0):
    """A record of a kept run: answers with some of the four words, and shares of what 30 layers select."""
    draw, runs = np.random.default_rng(seed), []
    for r in range(3):
        values = []
        for haystack, length, depth in CASES:
            index = 2 * r + int(draw.integers(2))
            words = data.JUDGED[index].words.split()
            said = {name: " ".join(["Well,", *words[: draw.integers(1, 5)]]) + "." for name in SAID}
            if depth != 0.5:
                del said["H2O"]
            case = {"haystack": haystack, "length": length, "depth": depth, "index": index, "answers": said}
            shares = draw.integers(101, size=(2, 30)) / 100
            shares[0, 11 if haystack == "repeated" else 19] = 0.93
            values.append(case | {"needle": shares[0].tolist(), "question": shares[1].tolist()})
        runs.append({"values": values})
    return {"parameters": {"layers": {"GemFilter": 15}, "k": 256}, "runs": runs}


def words(one, method):
    said = one["answers"][method].lower().replace(".", "").split()
    return sum(word in said for word in data.JUDGED[one["index"]].words.split()) / 4


# The method that is compared with GemFilter, among repeated sentences.
COMPARED = {
    "real-model-beats-snapkv": "SnapKV",
    "real-model-beats-the-whole-cache": "whole cache",
    "real-model-one-run-is-comparable": "One-Run",
    "real-model-gains-from-new-places": "old places",
    "real-middle-row-fails": "middle row",
    "real-largest-row-fails": "largest row",
    "first-layer-suffices": "layer 24",
    "filter-layer-decides-the-answer": "half as deep",
    "last-layer-filters-worse": "last layer",
}
BY_HAYSTACK = {
    "real-model-has-a-filter-layer": lambda one: one["needle"][15] - 0.064,
    "real-model-finds-in-the-middle": lambda one: one["needle"][15] - 0.064 if one["depth"] == 0.5 else None,
    "real-model-keeps-up-with-the-whole-cache": lambda one: words(one, "GemFilter") - words(one, "whole cache"),
    "real-model-beats-h2o": lambda one: words(one, "GemFilter") - words(one, "H2O") if one["depth"] == 0.5 else None,
    "real-model-beats-a-random-selection": lambda one: words(one, "GemFilter") - words(one, "random"),
    "real-model-keeps-the-question-itself": lambda one: one["question"][15],
}


def test_claims_on_the_language_model_are_means_of_what_the_record_has():
    kept = record()
    numbers = measure.language_model(measure.kept_values(kept))
    for r, run in enumerate(kept["runs"]):
        long = [one for one in run["values"] if one["length"] == 4000]
        part = {haystack: [one for one in long if one["haystack"] == haystack] for haystack in ("repeated", "prose")}
        for id, value in BY_HAYSTACK.items():
            for haystack, some in part.items():
                found = [x for x in map(value, some) if x is not None]
                assert numbers[id][haystack][r] == pytest.approx(sum(found) / len(found)), id
        for id, method in COMPARED.items():
            gaps = [words(one, "GemFilter") - words(one, method) for one in part["repeated"]]
            assert numbers[id]["value"][r] == pytest.approx(sum(gaps) / 5), id
        gaps = [words(one, "layer 24") - words(one, "SnapKV") for one in part["repeated"]]
        assert numbers["real-model-beats-snapkv-with-layer-24"]["value"][r] == pytest.approx(sum(gaps) / 5)
        gaps = [words(one, "GemFilter") - words(one, "SnapKV") for one in part["prose"]]
        assert numbers["real-model-beats-snapkv-in-prose"]["value"][r] == pytest.approx(sum(gaps) / 3)
        for haystack, first in (("repeated", 11), ("prose", 19)):
            assert numbers["filter-layer-is-early"][haystack][r] == (first + 1) / 30
        found = [[words(one, "GemFilter") for one in some if one["depth"] in (0, 0.5, 1)] for some in part.values()]
        assert numbers["repeated-haystack-is-easier"]["value"][r] == pytest.approx((sum(found[0]) - sum(found[1])) / 3)


def test_the_first_layer_that_hits_is_the_first_with_nine_tenths_of_the_needle():
    share = np.array([[0.2, 0.95, 0.1, 1.0], [0.89, 0.1, 0.9, 0.2], [0.1, 0.2, 0.89, 0.3]])
    assert measure.first_hit(share).tolist() == [1, 2, 4]  # the last hits nowhere
    assert measure.first_hit(share.mean(0)) == 4


# --- Formulas ---


def test_counts_tell_other_shapes_layers_and_numbers_of_tokens():
    shape = theory.Shape(4, 4, 2, 8, 32, 48)
    found = measure.counted(shape, n=40, longer=160, k=20, layer=1)
    ratios = {name: one / stated for name, (one, stated) in found.items()}
    assert ratios["operations"] == ratios["cache"] == 1
    assert verdict("operations-and-cache-as-stated", "exact", operations=1, cache=2) == "fails"
    for name, k, layer, expected in (("right", 20, 1, "holds"), ("layer", 20, 2, "fails"), ("tokens", 60, 1, "fails")):
        ratio = found["GemFilter"][0] * theory.speed_up(shape, 160, k, layer)
        assert verdict("prompt-takes-less-work", "exact", ratio) == expected, name
    assert found["operations"][0] == theory.prefill_flops(shape, 40) and found["cache"][0] == 2 * 4 * 2 * 8 * 40


def test_the_checks_of_formulas_tell_neighbours_apart(monkeypatch):
    scores = np.random.default_rng(0).standard_normal((2000, 2000))
    off = measure.deviations(scores)
    assert off["finding"] < 4 and -1e-3 < off["reading"] < 0.02 and abs(off["surviving"]) < 0.03
    probability, share = theory.finding_probability, theory.reading_share
    monkeypatch.setattr(
        theory, "finding_probability", lambda margin, sigma, n, k: probability(margin, sigma, n, np.round(1.2 * k))
    )
    monkeypatch.setattr(theory, "reading_share", lambda margin, sigma, n: share(margin, sigma, 2 * n))
    monkeypatch.setattr(theory, "surviving_noise", lambda sigma, n, k: k / n)
    off = measure.deviations(scores)
    assert off["finding"] > 4 and off["reading"] > 0.02 and off["surviving"] > 0.03


# --- Figures ---


def test_highlighting_shows_every_token_once():
    class Reader:
        def decode(self, tokens):
            return "".join(chr(t) for t in tokens)

    text = "what is <kept> here"
    shown = plots.highlighted(Reader(), torch.tensor([ord(c) for c in text]), torch.arange(8, 14)).data
    assert "<mark><b>&lt;kept&gt;</b></mark>" in shown and shown.count("span") == 4
