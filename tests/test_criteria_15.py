"""The criteria of chapter 15 hold for what they judge and fail for what they do not.

Functions of the page are read from the page; limits are the chapter's own.
"""

import numpy as np
import pytest
import torch

from chapter_source import functions_of

from mvnb.data import needle
from mvnb.models import token_selection as ts
from mvnb.theory import gemfilter as theory
from mvnb.theory import gemfilter_tables as printed


@pytest.fixture(scope="module")
def page():
    space = functions_of("15_gemfilter")
    sizes = {"NOISE": 8, "KEYS": 16, "VALUES": 16, "MARK": 40, "QUERY": 41, "VOCABULARY": 42, "NEEDLES": 4}
    none = {"no softmax": {"softmax": False}, "middle row": {"row": "middle"}, "no pooling": {"pool": 1}}
    return space | sizes | {"ABLATIONS": none, "test_prompts": 4, "depths": [0.0, 1.0]}


@pytest.fixture(scope="module")
def page_with_globals(page):
    """Functions of a page read its globals: they are given what the cells between would have defined."""
    some = page["haystack"].__globals__
    some.update(page)
    return some


def g(seed=0):
    return torch.Generator().manual_seed(seed)


# --- The world and the filter by hand ---


def test_prompts_ask_for_a_needle_that_is_there(page_with_globals):
    page = page_with_globals
    for depth in (0.0, 0.5, 1.0):
        tokens, values, places = page["prompts_at"](64, 50, depth, g())
        assert tokens.shape == (50, 66) and (tokens[:, -2] == 41).all()
        found = tokens.gather(1, places)
        assert (found[:, 0] == 40).all() and (found[:, 1] == tokens[:, -1]).all() and torch.equal(found[:, 2:], values)
        assert (places[:, 0] == 4 * round(depth * 15)).all()
        assert ((tokens[:, :64] == 40).sum(1) == 4).all()
        assert ((tokens[:, :64] == tokens[:, -1:]).sum(1) == 1).all()


def test_training_asks_for_every_needle_once(page_with_globals):
    tokens = page_with_globals["training_batch"](24, 30, g())
    asked = tokens[:, 24:].view(30, 4, 4)
    assert (asked[..., 0] == 41).all()
    for row, questions in zip(tokens[:, :24], asked):
        marks = (row == 40).nonzero()[:, 0]
        there = sorted(row[m + 1 : m + 4].tolist() for m in marks)
        assert there == sorted(q[1:].tolist() for q in questions)


def test_only_the_second_layer_by_hand_finds_and_only_with_neighbours(page_with_globals):
    page = page_with_globals
    tokens, _, places = page["prompts_at"](200, 20, 0.4, g())
    for pool, found in ((5, [False, True]), (1, [False, False])):
        for row, place in zip(tokens, places):
            kept = ts.select_tokens(page["hand_made_scores"](row), 8, pool, keep_last=2)
            whole = [set(place[1:].tolist()) <= set(one.tolist()) for one in kept]
            assert whole == found


# --- The small model ---


def test_keys_are_those_of_the_token_before_and_go_on_with_a_cache(page_with_globals):
    model = page_with_globals["small_llama"](g())
    tokens, *_ = page_with_globals["prompts_at"](32, 3, 0.5, g())
    attention, seen = model.model.layers[1].self_attn, {}
    attention.k_proj.register_forward_hook(lambda m, args, out: seen.update(x=args[0], keys=out))  # after the page's own
    assert torch.equal(attention.k_proj.weight, attention.q_proj.weight)
    with torch.inference_mode():
        model(tokens)
        own = seen["x"] @ attention.k_proj.weight.T
        assert torch.allclose(seen["keys"][:, 1:], own[:, :-1], atol=1e-5)
        assert not seen["keys"][:, 0].any()
        said, whole = ts.all_kv(model, tokens, 5).tokens, tokens
        for _ in range(5):
            whole = torch.cat([whole, model(whole).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(said, whole[:, -5:])


def test_an_untrained_model_meets_no_criterion_of_the_trained_one(page_with_globals):
    page = page_with_globals
    model = page["small_llama"](g())
    page["device"] = torch.device("cpu")
    found, tokens, places = page["answers_of"](model, 48, g(), True)
    assert set(found) == {0, 1, "All KV", "SnapKV", "H2O", "One-Run", "no softmax", "middle row", "no pooling"}
    away, weight, whole = page["layer_view"](model, tokens, places)
    assert away.shape == (2, 8) and weight.shape == (2, 8) and whole.shape == (2, 8)
    assert not away[1].double().mean() <= 0.1
    assert not found[1].mean() - found[0].mean() >= 0.2 and not found[1].mean() - found["middle row"].mean() >= 0.2
    assert not found[1].mean() - found["no pooling"].mean() >= 0.5


def test_distances_weights_and_needles_kept_are_those_of_a_loop(page_with_globals):
    page = page_with_globals
    model = page["small_llama"](g(3))
    tokens, _, places = page["prompts_at"](48, 6, 0.5, g(3))
    away, weight, whole = page["layer_view"](model, tokens, places)
    scores = ts.filter_scores(model, tokens, [0, 1], softmax=True)
    kept = ts.select_tokens(scores, 16, keep_last=2)
    for layer in range(2):
        for b in range(6):
            own = places[b].tolist()
            assert away[layer, b] == min(abs(i - j) for i in kept[layer, b].tolist() for j in own)
            assert whole[layer, b] == (set(own) <= set(kept[layer, b].tolist()))
            assert weight[layer, b] == pytest.approx(float(scores[layer, b, own].sum() / 2), rel=1e-5)


# --- The language model's functions ---


def test_a_needle_is_near_what_is_kept_of_it(page):
    prompt = needle.NeedlePrompt(torch.zeros(30), 10, 14, 5)
    places = torch.tensor([[[8, 9, 20]], [[10, 13, 20]], [[16, 17, 18]]])  # (layer, prompt, k)
    share, away = page["near_needle"](places, [prompt])
    assert share[:, 0].tolist() == [0, 0.5, 0] and away[:, 0].tolist() == [1, 0, 3]


class Reader:
    """A tokenizer of characters whose end mark is 0."""

    class model:
        class config:
            eos_token_id = 0

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens)


def test_answers_end_at_their_mark(page):
    rows = [[ord(c) for c in "eat a sandwich"] + [0] + [ord(c) for c in " and sit in"]]
    assert page["judge_answers"](Reader(), torch.tensor(rows)) == [pytest.approx(3 / 12)]


def test_highlighting_shows_every_token_once(page):
    text = "what is <kept> here"
    shown = page["highlight"](Reader(), torch.tensor([ord(c) for c in text]), torch.arange(8, 14)).data
    assert "<mark><b>&lt;kept&gt;</b></mark>" in shown and shown.count("span") == 4


# --- Formulas and printed numbers ---


def test_the_checks_of_formulas_tell_neighbours_apart():
    scores = np.random.default_rng(0).standard_normal((4000, 2000))
    for margin, k in ((2.3, 20), (2.0, 45), (1.0, 320)):
        seen = ((scores > margin).sum(1) < k).mean()

        def off(k, margin=margin, seen=seen):
            stated = float(theory.finding_probability(margin, 1.0, 2000, k))
            return abs(seen - stated) / np.sqrt(max(stated * (1 - stated), 1 / 4000) / 4000)

        assert off(k) < 4 < off(round(1.2 * k))
    loud = np.sort(np.exp(scores), 1)
    survives = (loud[:, -200:].sum(1) / loud.sum(1)).mean()
    assert abs(survives / theory.surviving_noise(1.0, 2000, 200) - 1) < 0.03 < abs(survives / 0.1 - 1)


def test_speed_and_memory_criteria_can_fail():
    big = theory.LLAMA_31_8B
    inside = [2.2 <= theory.speed_up(big, 131072, 1024, r) <= 2.6 for r in (11, 13, 16)]
    assert inside == [False, True, False]
    small = theory.Shape(32, 32, 8, 128, 128, 64)  # almost no weights: the cache is all
    assert (
        1
        - theory.peak_memory(small, "GemFilter", 122880, 1024, 50, 13, False)
        / theory.peak_memory(small, "All KV", 122880, 1024, 50, 13)
        >= 0.2
    )
    assert theory.speed_up(theory.Shape(8, 4, 4, 32, 128, 344), 1200, 1200, 7) < 1 / 0.8  # no time would be saved


def test_printed_averages_are_told_from_wrong_ones():
    tables = [*printed.LONGBENCH.values(), printed.BY_LAYER, printed.CHAT_TEMPLATE]
    rows = [row for table in tables for row in table.values()]
    assert len(rows) == 40 and all(len(row) in (15, 7) for row in rows)
    assert all(abs(np.mean(row[:-1]) - row[-1]) <= 0.006 for row in rows)
    assert not abs(np.mean(rows[0][1:-1]) - rows[0][-1]) <= 0.006
    assert len(printed.TASKS) == 14 and max(printed.NEEDLE.values()) <= needle.BEST_SCORE
