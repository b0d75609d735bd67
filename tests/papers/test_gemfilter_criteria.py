"""The criteria of chapter 15 hold for what they judge and fail for what they do not.

Functions of the page are read from the page; limits are the chapter's own.
"""

from types import SimpleNamespace

import jupytext
import numpy as np
import pytest
import torch
from chapter_source import NOTEBOOKS, functions_of

from mvnb.claims import Ledger
from mvnb.papers.gemfilter import needle, theory
from mvnb.papers.gemfilter import tables as printed
from mvnb.papers.gemfilter import token_selection as ts


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
    model = page_with_globals["small_llama"](g()).double()
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


def test_an_untrained_model_finds_but_is_not_sure_and_does_not_answer(page_with_globals):
    """Layer 1 begins as an induction head: the page says so, with these numbers, and judges what training adds to it."""
    page = page_with_globals
    model = page["small_llama"](g())
    page["device"] = torch.device("cpu")
    found, tokens, places = page["answers_of"](model, 48, g(), True)
    assert set(found) == {0, 1, "All KV", "SnapKV", "H2O", "One-Run", "no softmax", "middle row", "no pooling"}
    away, weight, whole = page["layer_view"](model, tokens, places)
    assert away.shape == (2, 8) and weight.shape == (2, 8) and whole.shape == (2, 8)
    assert found[1].mean() <= 0.2 and not found[1].mean() - found[0].mean() >= 0.2
    assert not found[1].mean() - found["middle row"].mean() >= 0.2 and not found[1].mean() - found["no pooling"].mean() >= 0.5
    shares = []
    for n in (48, 480):
        views = []
        for depth in (0.0, 0.25, 0.5, 0.75, 1.0):
            tokens, _, places = page["prompts_at"](n, 30, depth, g(n))
            views.append([one[1].double().mean() for one in page["layer_view"](model, tokens, places)[1:]])
        shares.append(np.mean(views, 0).tolist())
    (weight, whole), (far_weight, far_whole) = shares
    assert 0.6 <= far_whole <= whole <= 0.95  # some three needles in four
    assert weight == pytest.approx(0.3, abs=0.06) and far_weight == pytest.approx(0.05, abs=0.03)


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


# --- Verdicts: cells of the page that record claims, on numbers that are made up ---

CELLS = [cell.source for cell in jupytext.read(NOTEBOOKS / "15_gemfilter.py").cells if cell.cell_type == "code"]


def verdicts(page, *claims_, **given):
    """Holds or not, by claim, of the cells that record ``claims_``, run in order where ``given`` is what was measured."""
    space = {**page, **given, "ledger": Ledger("15_gemfilter"), "later": Ledger("15_gemfilter")}
    for cell in CELLS:
        if any(f'"{claim}"' in cell for claim in claims_):
            exec(cell.replace('later = claims.Ledger("15_gemfilter")', ""), space)
    return {row["id"]: row["verdict"] == "holds" for row in space["ledger"].rows + space["later"].rows}


SMALL = ["as-good-at-known-lengths", "better-beyond-known-lengths", "better-than-eviction", "one-run-loses-far-needles"]
SMALL += ["layer-finds-the-needle", "last-row-is-needed", "pooling-is-needed", "question-keeps-itself", "raw-scores-suffice"]
SMALL += ["training-makes-the-filter-surer", "found-where-it-is-read-less"]


def measured(scores, weight=(0.95, 0.5), whole=(1.0, 0.9), whole_before=(0.85, 0.7), covered=(1.6, 0.0)):
    """What the page's small models might have given: shares by method at two lengths, two runs of 40 prompts each."""
    draw = np.random.default_rng(0)
    lengths, names = [48, 480], list(scores)

    def answers(n):
        return {name: draw.binomial(2, scores[name][lengths.index(n)], 40) / 2 for name in names}

    def view(n, share):
        i = lengths.index(n)
        kept = torch.from_numpy(draw.random((2, 40)) < share[i])
        return torch.zeros(2, 40), torch.full((2, 40), weight[i]), kept

    small = {n: [answers(n), answers(n)] for n in lengths}
    views, built = ({n: [view(n, share), view(n, share)] for n in lengths} for share in (whole, whole_before))
    given = {"small": small, "views": views, "built": built, "test_lengths": lengths, "depths": [0.0, 1.0], "test_prompts": 20}
    given |= {"replicas": 2, "first": 48, "beyond": 480, "far": 480, "covering": np.array(covered)}
    given["by_layer"] = np.array([[[one[i].mean() for i in range(2)] for one in small[n]] for n in lengths])
    for name, i in (("weight", 1), ("whole", 2)):
        given[name] = {n: (float(np.mean([one[i][1].double().mean() for one in views[n]])), 0.0) for n in lengths}
    return given


GOOD = {0: (0.4, 0.3), 1: (1.0, 0.9), "All KV": (1.0, 0.7), "SnapKV": (1.0, 0.7), "H2O": (0.8, 0.4), "One-Run": (1.0, 0.6)}
GOOD |= {"middle row": (0.3, 0.2), "largest row": (0.3, 0.2), "no pooling": (0.1, 0.1)}
GOOD |= {"question not kept": (0.9, 0.9), "no softmax": (1.0, 0.9)}


def test_rows_of_the_small_model_hold_where_they_should_and_fail_where_not(page_with_globals):
    page = page_with_globals
    found = verdicts(page, *SMALL, **measured(GOOD))
    assert sorted(found) == sorted(SMALL) and all(found.values()), found
    swapped = GOOD | {1: GOOD["no pooling"], 0: GOOD[1], "question not kept": (0.1, 0.1), "no softmax": (0.1, 0.1)}
    found = verdicts(page, *SMALL, **measured(swapped, whole_before=(1.0, 0.9), weight=(0.95, 0.95), covered=(0, 1.6)))
    part = {"question-keeps-itself", "raw-scores-suffice"}  # what they change costs nothing more
    assert not any(holds for name, holds in found.items() if name not in part), found
    found = verdicts(page, *SMALL, **measured(GOOD | {"question not kept": (0.1, 0.1), "no softmax": (0.4, 0.3)}))
    assert not any(found[name] for name in part)


def test_rows_that_ask_for_a_difference_fail_where_there_is_none(page_with_globals):
    """As everywhere the same: only what may be equal holds, and the untrained filter against itself adds nothing."""
    same = measured(dict.fromkeys(GOOD, (0.8, 0.8)), weight=(0.9, 0.9), whole=(0.9, 0.9), whole_before=(0.9, 0.9))
    same["built"], same["small"] = (
        same["views"],
        {n: [dict.fromkeys(GOOD, one[1]) for one in two] for n, two in same["small"].items()},
    )
    same["by_layer"] = np.full((2, 2, 2), 0.8)
    found = verdicts(page_with_globals, *SMALL, **same)
    assert {name for name, holds in found.items() if holds} == {
        "as-good-at-known-lengths",
        "question-keeps-itself",
        "raw-scores-suffice",
    }


KEPT = {
    "real-model-has-a-filter-layer": None,
    "filter-layer-decides-the-answer": ("4", "10"),
    "last-layer-filters-worse": ("29",),
}
KEPT |= {"real-model-beats-the-whole-cache": ("All KV",), "real-model-beats-snapkv": ("SnapKV",)}
KEPT |= {"real-middle-row-fails": ("middle row",), "real-largest-row-fails": ("largest row",)}
ALIKE = {"real-model-keeps-the-question-itself": "nothing forced", "real-model-one-run-is-comparable": "One-Run"}


def test_rows_of_the_kept_run_follow_its_numbers(page):
    draw = np.random.default_rng(1)
    base = 0.5 + 0.1 * draw.random(27)
    names = ["22", *ALIKE.values(), *(name for of in KEPT.values() for name in of or ())]

    def judge(lower, share):
        scores = {name: base - (0.3 if name in lower else 0.0) for name in names}
        given = {
            "kept_by": {320: {"scores": scores}},
            "layer": "22",
            "every_share": share,
            "best_layer": int(share.mean(1).argmax()),
        }
        given["kept_scores"] = lambda name: scores[name]
        return verdicts(page, *KEPT, *ALIKE, "filter-layer-is-early", **given)

    late, early = np.full((30, 27), 0.2), np.full((30, 27), 0.2)
    late[22], early[8] = 0.8, 0.8
    rivals = {name for of in KEPT.values() for name in of or ()}
    found = judge(rivals, late)
    assert all(found[claim] for claim in KEPT) and all(found[claim] for claim in ALIKE) and not found["filter-layer-is-early"]
    found = judge({"22"}, early)
    assert not any(found[claim] for claim in [*KEPT, *ALIKE]) and found["filter-layer-is-early"]


def test_live_rows_and_printed_rows_can_fail(page):
    share = torch.full((30, 6), 0.2)
    share[22] = 0.8
    live = {"lm": object(), "n_layers": 30, "filter_layer": 22}
    claim = "language-model-has-a-layer-that-finds"
    assert verdicts(page, claim, live={480: {"share": share}}, **live)[claim] is True
    assert verdicts(page, claim, live={480: {"share": share.roll(-15, 0)}}, **live)[claim] is False

    tables = {name: dict(table) for name, table in printed.LONGBENCH.items()}
    mended = SimpleNamespace(LONGBENCH=tables, CHAT_TEMPLATE=dict(printed.CHAT_TEMPLATE))
    rows = ("comparable-on-longbench", "drop-with-1024-is-negligible")
    found = verdicts(page, *rows, printed=mended)
    assert not any(found[row] for row in rows)
    for table in (*tables.values(), mended.CHAT_TEMPLATE):
        table.update({key: table["All KV"] for key in table})
    found = verdicts(page, *rows, printed=mended)
    assert all(found[row] for row in rows)


def test_rows_of_work_memory_and_time_can_fail(page):
    big, shape = theory.LLAMA_31_8B, theory.Shape(8, 4, 4, 32, 128, 344)
    work = {"big": big, "shape": shape, "counted": theory.prefill_flops(shape, 300), "held": theory.cached_numbers(shape, 300)}
    claim = "speed-up-of-all-three-models"
    assert not verdicts(page, claim, **work)[claim]

    all_llama = SimpleNamespace(**{**vars(theory), "PAPER_MODELS": dict.fromkeys("abc", (big, 13))})
    assert verdicts(page, claim, **work, theory=all_llama)[claim]
    claim, stated = "prompt-takes-less-work", 1 / theory.speed_up(shape, 1200, 100, 3)
    for ratio, holds in ((stated, True), (1.0005 * stated, True), (0.9 * stated, False), (4 / 8, False), (1, False)):
        assert verdicts(page, claim, work_ratio=ratio, stated_ratio=stated)[claim] is holds
    for saved, holds in (({"a": 0.16}, False), ({"a": 0.02, "b": 0.3}, True)):
        assert verdicts(page, "memory-by-the-theorem", saved=saved)["memory-by-the-theorem"] is holds


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


def test_printed_averages_are_told_from_wrong_ones():
    tables = [*printed.LONGBENCH.values(), printed.BY_LAYER, printed.CHAT_TEMPLATE]
    rows = [row for table in tables for row in table.values()]
    assert len(rows) == 40 and all(len(row) in (15, 7) for row in rows)
    assert all(abs(np.mean(row[:-1]) - row[-1]) <= 0.006 for row in rows)
    assert not abs(np.mean(rows[0][1:-1]) - rows[0][-1]) <= 0.006
    assert len(printed.TASKS) == 14 and max(printed.NEEDLE.values()) <= needle.BEST_SCORE
