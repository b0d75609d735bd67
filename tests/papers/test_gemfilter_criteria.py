"""The rules of chapter 15 hold for what they judge and fail for broken variants of the runs."""

from functools import partial

import judged
import numpy as np
import pytest
import torch

from mvnb import claims
from mvnb.papers.gemfilter import data, measure, model, tables, theory, training
from mvnb.papers.gemfilter import token_selection as ts

verdict = partial(judged.verdict, "gemfilter")
DECLARED = claims.declared("gemfilter")
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
VARIANT = "softmax variant"


def g(seed=0):
    return torch.Generator().manual_seed(seed)


def asked(n, size=4, depths=(0.0, 1.0), seed=0):
    return data.prompts_by_depth(n, depths, size, g(seed))


verdicts = partial(judged.verdicts, "gemfilter")


def test_every_claim_is_measured_once():
    kept, small = measure.language_model(language_runs()), measure.small_models(small_runs(), DEPTHS)
    assert set(kept) == {id for id, claim in DECLARED.items() if claim.kept == "long"}
    others = {"needle-score-has-a-ceiling", "filter-by-hand-finds", "operations-and-cache-as-stated", "prompt-takes-less-work"}
    others |= {"language-model-has-a-layer-that-finds"}
    assert set(DECLARED) == {*kept, *small, *others, *measure.printed_tables(), *theory.costs(theory.savings())}
    for id, numbers in (kept | small | theory.costs(theory.savings())).items():
        assert numbers.keys() == set(DECLARED[id].rule.names)


# --- The small models ---


SELECTIONS = ("GemFilter", VARIANT)
WAYS = ("", ", layer 0", ", old places", ", One-Run", ", middle row", ", largest row")
METHODS = [f"{name}{way}" for name in SELECTIONS for way in WAYS] + ["whole cache", "SnapKV", "H2O"]
METHODS += [f"{VARIANT}, {change}" for change in ("no pooling", "question not kept", "no softmax")]


def small_runs(right=None, views=None, built=None):
    """Four runs on two prompts for each depth: shares of the right values, and views of two layers.

    ``right`` gives shares by method (the second length) or method and length; others have 0.5. What layers give is by
    selection and name, for layers 0 and 1. Numbers of runs and prompts differ a little.
    """
    draw = np.random.default_rng(0)
    right, lengths = right or {}, (48, 144, 480)

    def near(shape, value):
        return np.broadcast_to(value, shape) + 0.01 * draw.standard_normal(shape)

    shares = {n: {name: near((4, 10), right.get((name, n), right.get(name, 0.5))) for name in METHODS} for n in lengths}

    def view(changes):
        usual = {"distance": (5, 0.05), "whole": (0.2, 0.9), "question": (0.2, 1), "weight": (0.1, 0.5)} | (changes or {})
        return {what: near((4, 2, 10), np.array(values, dtype=float)[:, None]) for what, values in usual.items()}

    seen = {name: {n: view((views or {}).get((name, n), (views or {}).get(name))) for n in lengths} for name in SELECTIONS}
    return measure.Tested(shares, seen, {n: view(built or {"whole": (0.2, 0.6)}) for n in lengths})


GOOD = {"whole cache": 0.4, "SnapKV": 0.3, "H2O": 0.2} | {f"{name}{way}": 0.3 for name in SELECTIONS for way in WAYS}
GOOD |= dict.fromkeys(SELECTIONS, 0.8) | {f"{VARIANT}, old places": 0.6, f"{VARIANT}, no pooling": 0.1}
GOOD |= {f"{VARIANT}, question not kept": 0.7, f"{VARIANT}, no softmax": 0.8}
READ_LESS = {(VARIANT, 480): {"weight": (0.1, 0.2)}}


def test_rules_of_the_small_model_hold_for_gains_and_fail_for_losses_and_for_other_layers():
    assert set(verdicts(measure.small_models(small_runs(GOOD, READ_LESS), DEPTHS)).values()) == {"holds"}
    worse = GOOD | dict.fromkeys(SELECTIONS, 0.1) | {f"{VARIANT}, old places": 0.3}
    lost = {(VARIANT, 480): {"whole": (0.2, 0.3)}, "GemFilter": {"question": (1, 0.125), "distance": (0, 5)}}
    lost[VARIANT] = {"distance": (0, 5)}
    found = verdicts(measure.small_models(small_runs(worse, lost, {"whole": (0.2, 0.95)}), DEPTHS))
    passing = {"raw-scores-suffice", "variant-keeps-the-question-itself"}  # they ask for no gain
    assert {found.pop(id) for id in passing} == {"holds"} and set(found.values()) == {"fails"}, found
    forced = measure.small_models(
        small_runs(GOOD | {f"{VARIANT}, question not kept": 0.1, f"{VARIANT}, no softmax": 0.3}), DEPTHS
    )
    assert {verdicts(forced)[id] for id in passing} == {"fails"}


BEYOND = {"GemFilter": "better-beyond-known-lengths", VARIANT: "variant-better-beyond-known-lengths"}


@pytest.mark.parametrize("name", SELECTIONS)
def test_rules_of_the_small_model_need_the_method_that_they_name_and_training(name):
    """The method replaced by the whole cache, or by itself with another layer; and four models as they are built."""
    for other in ("whole cache", f"{name}, layer 0"):
        broken = measure.small_models(small_runs(GOOD | {name: GOOD[other]}), DEPTHS)
        assert verdicts({BEYOND[name]: broken[BEYOND[name]]}) != {BEYOND[name]: "holds"}
    models = training.untrained(0, 4, "cpu")
    prompts = {n: [asked(n, seed=r) for r in range(4)] for n in (48, 96)}
    found = verdicts(measure.small_models(measure.tested(models, models, prompts), (0.0, 1.0)))
    prefix = "" if name == "GemFilter" else "variant-"
    ids = [BEYOND[name], *(f"{prefix}{id}" for id in ("better-than-eviction", "last-row-is-needed", "layer-finds-the-needle"))]
    ids += ["variant-gains-from-new-places", "pooling-is-needed", "training-makes-the-filter-surer"] if prefix else []
    assert "holds" not in {found[id] for id in ids}, found


def test_an_untrained_model_finds_but_is_not_sure_and_does_not_answer():
    """Layer 1 begins as an induction head: the page says so, with these numbers, and judges what training adds to it."""
    one = model.small_llama(g())
    right = measure.values_right([one], [asked(48)], True)
    for name in training.SELECTIONS:
        assert right[name].mean() <= 0.2 and not (right[name] - right[f"{name}, layer 0"]).mean() >= 0.2
    shares = []
    for n in (48, 480):
        view = measure.layer_views([one], [asked(n, 30, DEPTHS, n)], VARIANT)
        shares.append([view[what][0, 1].mean() for what in ("weight", "whole")])
    (weight, whole), (far_weight, far_whole) = shares
    assert 0.6 <= far_whole <= whole <= 0.95  # some three needles in four
    assert weight == pytest.approx(0.3, abs=0.06) and far_weight == pytest.approx(0.05, abs=0.03)


def test_only_the_second_layer_by_hand_finds_and_only_with_neighbours():
    tokens, _, places = asked(200, 10, (0.2, 0.6))
    assert measure.filter_by_hand(tokens, places) == {"before": 0, "induction": 1}
    assert measure.filter_by_hand(tokens, places.flip(0)) == {"before": 0, "induction": 0}  # the needle of another prompt
    for row, place in zip(tokens, places):
        alone = ts.select_tokens(model.hand_made_scores(row), 8, 1, keep_last=2)
        assert not any(set(place[1:].tolist()) <= set(one.tolist()) for one in alone)


# --- The language model ---


CASES = [("repeated", 4000, depth) for depth in DEPTHS] + [("prose", 4000, depth) for depth in (0.0, 0.5, 1.0)]


def language_runs(jump=12, prose=0.0, **words):
    """Eight runs of a model whose layers select the needle from ``jump`` on; ``prose`` is added to GemFilter's words there."""
    draw = np.random.default_rng(1)

    def near(value, *more):
        return value + 0.01 * draw.standard_normal((8, 8, *more))

    usual = {"half_as_deep": 0.5, "last_layer": 0.6, "SnapKV": 0.7, "H2O": 0.1, "random": 0.1, "One_Run": 0.9}
    usual |= {"middle_row": 0.3, "largest_row": 0.4, "old_places": 0.8, "layer_24": 0.9, "whole_cache": 0.8, "GemFilter": 0.98}
    found = {name.replace("One_", "One-").replace("_", " "): near(value) for name, value in (usual | words).items()}
    found["GemFilter"][:, 5:] += prose
    share = near(np.where(np.arange(30) >= jump, 0.98, 0.2), 30)
    return measure.Kept({"layers": {"GemFilter": 15}, "k": 256}, CASES, share, near(1.0, 30), found)


# Faults: another layer's or method's answers in place of GemFilter's, or a model that finds late or not at all.
BREAKS = {
    "real-model-beats-snapkv": {"GemFilter": 0.6},
    "real-model-beats-snapkv-in-prose": {"GemFilter": 0.6},
    "real-model-beats-snapkv-with-layer-24": {"layer_24": 0.6},
    "real-model-beats-the-whole-cache": {"GemFilter": 0.7},
    "real-model-keeps-up-with-the-whole-cache": {"GemFilter": 0.7},
    "real-model-beats-h2o": {"GemFilter": 0.05},
    "real-model-beats-a-random-selection": {"GemFilter": 0.1},
    "real-model-one-run-is-comparable": {"One_Run": 0.5},
    "real-model-gains-from-new-places": {"GemFilter": 0.7},
    "real-middle-row-fails": {"middle_row": 0.98},
    "real-largest-row-fails": {"largest_row": 0.98},
    "first-layer-suffices": {"GemFilter": 0.7},
    "filter-layer-decides-the-answer": {"GemFilter": 0.4},
    "last-layer-filters-worse": {"GemFilter": 0.5},
    "real-model-has-a-filter-layer": {"jump": 16},
    "real-model-finds-in-the-middle": {"jump": 30},
    "filter-layer-is-early": {"jump": 20},
}


@pytest.mark.parametrize("id", BREAKS)
def test_rules_on_the_language_model_hold_and_fail_for_another_layer_or_method(id):
    assert verdicts(measure.language_model(language_runs()))[id] == "holds"
    broken = language_runs(**BREAKS[id])
    assert verdicts(measure.language_model(broken))[id] == "fails"
    numbers, good = measure.language_model(broken)[id], measure.language_model(language_runs())[id]
    if "prose" in numbers:  # one haystack is not enough
        assert verdict(id, "mean", repeated=good["repeated"], prose=numbers["prose"]) == "fails"
        assert verdict(id, "mean", repeated=numbers["repeated"], prose=good["prose"]) == "fails"


def test_rules_on_haystack_and_question_can_go_either_way():
    for prose, expected in ((0.0, "fails"), (-0.3, "holds")):
        assert verdicts(measure.language_model(language_runs(prose=prose)))["repeated-haystack-is-easier"] == expected
    kept, id = language_runs(), "real-model-keeps-the-question-itself"
    assert verdicts(measure.language_model(kept))[id] == "holds"
    assert verdicts(measure.language_model(kept._replace(question=kept.question - 0.3)))[id] == "fails"


def test_the_rule_on_the_model_of_the_page_tells_a_selection_from_chance():
    noise = 0.01 * np.random.default_rng(0).standard_normal(4)
    assert measure.above_chance(noise, 100, 400) == pytest.approx(noise - 0.25)
    assert measure.above_chance(1 + noise, 100, 80) == pytest.approx(noise)  # all tokens are kept
    for share, expected in ((0.9, "holds"), (0.25, "fails")):
        found = measure.above_chance(share + noise, 100, 400)
        assert verdict("language-model-has-a-layer-that-finds", "mean", found) == expected


# --- Printed tables, work and memory ---


def test_rules_on_printed_tables_can_go_either_way():
    found = verdicts(measure.printed_tables())
    assert [*found.values()] == ["holds", "fails", "fails"]
    alike = {name: dict.fromkeys(table, table["All KV"]) for name, table in tables.LONGBENCH.items()}
    chat = dict.fromkeys(tables.CHAT_TEMPLATE, tables.CHAT_TEMPLATE["All KV"])
    assert measure.printed_tables(alike, tables.BY_LAYER, chat)["comparable-on-longbench"] == 0
    assert measure.printed_tables(alike, tables.BY_LAYER)["comparable-on-longbench"] == pytest.approx(41.0 - 44.1)
    assert measure.printed_tables(alike)["drop-with-1024-is-negligible"] == 0
    for name in alike:
        for k in (1024, 2048, 4096):
            better = alike[name] | {f"SnapKV-{k}": [0.0, alike[name]["All KV"][-1] + 7]}
            found = measure.printed_tables(alike | {name: better}, tables.BY_LAYER, chat)
            assert found["comparable-on-longbench"] == pytest.approx(-7)
    for part in ("longbench", "by_layer", "chat"):
        whole = {"longbench": tables.LONGBENCH, "by_layer": tables.BY_LAYER, "chat": tables.CHAT_TEMPLATE}[part]
        rows = whole["Phi 3.5 Mini"] if part == "longbench" else whole
        wrong = dict(rows) | {(last := [*rows][-1]): [*rows[last][:-1], rows[last][-1] + 0.01]}
        wrong = dict(whole) | {"Phi 3.5 Mini": wrong} if part == "longbench" else wrong
        off = measure.printed_tables(**{part: wrong})["printed-averages-are-averages"]
        assert verdict("printed-averages-are-averages", "exact", off) == "fails"
    for name, _, column, k in tables.EXAMPLES[-3:]:
        assert tables.LONGBENCH[name]["All KV"][column] >= tables.LONGBENCH[name][f"GemFilter-{k}"][column] + 10
    assert max(tables.NEEDLE.values()) <= 11 / 12


def test_rules_of_work_and_memory_tell_other_layers_and_shapes():
    big = theory.LLAMA_31_8B
    for r, expected in ((11, "fails"), (13, "holds"), (14, "fails"), (16, "fails")):
        found = verdicts(theory.costs(theory.savings({"LLaMA 3.1 8B": (big, r)})))
        assert found["speed-up-on-the-prompt"] == expected
    real = theory.savings()
    assert real["Phi 3.5 Mini"]["published"] == theory.speed_up(theory.PAPER_MODELS["Phi 3.5 Mini"][0], 131072, 1024, 19, True)
    ids = ("speed-up-of-all-three-models", "memory-by-the-theorem", "memory-beside-all-kv")
    assert {verdicts(theory.costs(real))[id] for id in ids} == {"fails"}
    assert theory.costs(real)["memory-by-the-theorem"]["value"] == real["Phi 3.5 Mini"]["SnapKV"]
    light = theory.Shape(32, 32, 8, 128, 128, 64)  # almost no weights: the cache is all
    alike = verdicts(theory.costs(theory.savings({"LLaMA 3.1 8B": (light, 13), "another": (light, 13)})))
    assert {alike[id] for id in ids[1:]} == {"holds"}
    alike = verdicts(theory.costs(theory.savings(dict.fromkeys(theory.PAPER_MODELS, (big, 13)))))
    assert alike["speed-up-of-all-three-models"] == "holds"
