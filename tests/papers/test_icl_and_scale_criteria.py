"""The rules of chapter 11 hold for what they judge and fail for what they do not.

Functions of the page are read from the page; limits are the chapter's own.
"""

from functools import partial

import judged
import numpy as np
import pytest
import torch
from chapter_source import functions_of

from mvnb.data import Rated
from mvnb.papers.icl_and_scale import icl
from mvnb.papers.icl_and_scale import parity_attention as parity
from mvnb.papers.icl_and_scale.data import InContextRegression

verdict = partial(judged.verdict, "icl_and_scale")


@pytest.fixture(scope="module")
def page():
    space = functions_of("11_icl_and_scale")
    spectrum = space["spectrum"]
    space |= {"d": len(spectrum), "covariance": torch.diag(torch.tensor(spectrum, dtype=torch.float64))}
    space |= {"ANSWERS": (" negative", " positive"), "check_prompts": 20_000}
    return space


# --- Regression ---


def test_alternating_minimisation_stops_at_the_optimum_and_one_round_does_not(page):
    n_train, covariance = page["n_train"], page["covariance"]
    best = icl.optimal_weight(covariance, n_train, 2)

    def found(u):
        loss = (icl.population_loss(u, covariance, n_train) - icl.population_loss(best, covariance, n_train)).abs()
        far = (u - best).norm() / best.norm()
        return verdict("truncation-is-optimal", "mean", weights=far.repeat(2), loss=loss.repeat(2))

    g = torch.Generator().manual_seed(1)
    assert found(page["alternate"](2, g, 150)) == "holds"
    assert found(page["alternate"](2, g, 1)) == "fails"
    assert found(icl.optimal_weight(covariance, 2 * n_train, 2)) == "fails"


def test_an_untrained_model_is_not_what_training_finds(page):
    n_train, covariance = page["n_train"], page["covariance"]
    best = icl.optimal_weight(covariance, n_train, 2)

    def found(u):
        excess = abs(icl.population_loss(u, covariance, n_train) / icl.population_loss(best, covariance, n_train) - 1)
        overlap = torch.linalg.svd(u)[0][:2, :2].square().sum() / 2
        return verdict("training-finds-it", "mean", excess=excess.repeat(2), overlap=overlap.repeat(2))

    start = 0.1 * torch.randn(6, 2, generator=torch.Generator().manual_seed(1)).double()
    assert found(best) == "holds" and found(start @ start.T) == "fails"


def test_the_gradient_in_the_factors_is_autograds(page):
    g = torch.Generator().manual_seed(2)
    params = {k: torch.randn(2, 6, 3, generator=g, dtype=torch.float64).requires_grad_() for k in "ab"}
    batch = [torch.randn(2, 9, 6, generator=g, dtype=torch.float64) for _ in range(2)] + [torch.randn(2, 9).double()]
    losses, grads = page["low_rank"](params, *batch)
    losses.sum().backward()
    assert all(torch.allclose(grads[k], params[k].grad, atol=1e-12) for k in "ab")


def scores(page, formula, **prompt):
    """Standard errors between simulated and stated risks, ranks 1, 3 and 6."""
    world, ranks = InContextRegression(tuple(page["spectrum"]), 8), np.array([1, 3, 6])
    seen, error = page["simulate"](world, 20, ranks, 3, **prompt)
    return np.abs(seen - formula(ranks)) / error


def test_the_risk_formula_is_told_from_its_neighbours(page):
    spectrum, ones = page["spectrum"], np.ones(6)

    def stated(n_context=8, noise=0.5, flip=0.3):
        return lambda ranks: icl.risk(spectrum, ones, 20, ranks, n_context, noise, flip)

    def found(formula):
        off = scores(page, formula, noise=0.5, flip=0.3) > 4.5
        return verdict("risk-formula", "exact", int(off.sum()))

    assert found(stated()) == "holds"
    for wrong in ({"n_context": 10}, {"noise": 1.5}, {"flip": 0.2}):
        assert found(stated(**wrong)) == "fails"
    assert found(lambda ranks: icl.risk(spectrum, ones, 200, ranks, 8, 0.5, 0.3)) == "fails"


def test_noise_is_in_proportion_to_rank_after_long_pretraining_only():
    some = np.array([1, 4, 8])
    spectrum = np.linspace(1.3, 0.1, 8)
    for n_train, expected in ((100_000, "holds"), (100, "fails")):
        slope = (icl.pass_through(spectrum, n_train, some) ** 2).sum(-1)
        named = {"deviation": np.abs(slope / some - 1).max(), "off": 0}
        assert verdict("noise-in-proportion-to-rank", "exact", **named) == expected
    assert verdict("noise-in-proportion-to-rank", "exact", deviation=0, off=1) == "fails"


def test_larger_is_not_worse_when_the_signal_is_not_covered():
    spectrum = np.linspace(1.3, 0.7, 8)
    covered, spread = np.append(np.ones(3), np.zeros(5)), np.ones(8)

    def found(w, n_context=64):
        step = np.diff(icl.risk(spectrum, w, 10**5, np.arange(9), n_context, 0.5)[3:])
        passed = icl.pass_through(spectrum, 10**5, 8)[3:] ** 2 / 64
        error = np.abs(step - (spectrum[:3].sum() + 0.5**2) * passed).max()
        return verdict("larger-is-worse-once-covered", "exact", error=error, step=step.min())

    assert [found(covered), found(spread), found(covered, 32)] == ["holds", "fails", "fails"]
    # size matters only with noise in pretraining and in the context together (section 5.7)
    silent = np.append(spectrum[:3], np.zeros(5))
    settings = ((silent, 8, 9.0), (spectrum, 1e12, 9.0), (spectrum, 8, 9.0))
    gaps = [np.ptp(icl.risk(one, covered, 100, np.arange(9), m, noise)[3:]) for one, m, noise in settings]
    assert gaps[0] < 1e-9 and gaps[1] < 1e-9 and gaps[2] > 1
    rule = partial(verdict, "best-rank-has-a-rule", "exact")
    assert rule(elsewhere=0, noise=2, longer=4) == "holds"
    assert rule(elsewhere=1, noise=2, longer=4) == rule(elsewhere=0, noise=0, longer=4) == "fails"


def test_flips_cost_larger_ranks_more_unless_directions_are_empty(page):
    spectrum, ranks = page["spectrum"], np.arange(7)

    def found(w):
        without, flipped = (icl.risk(spectrum, w, 20, ranks, 8, 0.5, p) for p in (0.0, 1.0))
        drop = flipped - without
        exact = 4 * (w**2 * np.array(spectrum) * icl.pass_through(spectrum, 20, ranks)).sum(-1)
        named = {"without": without[4] - without[2], "flipped": flipped[4] - flipped[2], "rise": np.diff(drop).min()}
        named |= {"error": np.abs(drop - exact).max(), "off": 0}
        return verdict("flips-hurt-larger-models-more", "exact", **named)

    assert found(np.ones(6)) == "holds" and found(np.array([1, 1, 0, 0, 0, 0.0])) == "fails"
    flat = icl.risk(spectrum, np.ones(6), 20, np.array([0, 1]), 8, 0.5, 1.0)
    few = icl.risk(spectrum, np.ones(6), 20, np.array([0, 1]), 8, 0.5, 0.3)
    assert [verdict("small-models-stay-flat", "exact", one[1] / one[0]) for one in (few, flat)] == ["holds", "fails"]


def test_attention_does_not_spread_in_a_model_that_is_cut():
    spectrum = [3.0, 2.0, 1.2, 0.6, 0.3, 0.1]

    def found(long_rank, relevant):
        share = icl.attention_share(icl.pass_through(spectrum, 20, np.array([1, 2])), relevant)
        large = icl.attention_share(icl.pass_through(spectrum, 10**6, long_rank), 2)
        return verdict("attention-spreads-with-size", "exact", small=share.min(), large=abs(large - 2 / 6), off=0)

    assert [found(6, 2), found(2, 2), found(6, 1)] == ["holds", "fails", "fails"]


def test_a_model_without_a_prior_turns_round_and_one_that_hears_nothing_does_not():
    rule = partial(verdict, "a-prior-makes-small-models-flat", "mean")
    assert rule(small=[0.57, 0.58], large=[0.40, 0.41], rise=[0.030, 0.031]) == "holds"
    assert rule(small=[0.30, 0.31], large=[0.20, 0.21], rise=[0.030, 0.031]) == "fails"
    assert rule(small=[1.0, 1.0], large=[1.0, 1.0], rise=[0.0, 0.0]) == "fails"


# --- Parities ---


def test_margins_and_optimality_are_told_apart():
    gamma = 0.2
    code = parity.bit_code(3, 3, gamma)
    worse = parity.Heads(code.signs, code.values * np.where(code.signs > 0, 0.9, 1)[:, None])
    _, _, pairs = parity.patterns(8, gamma)
    for heads, expected in ((code, "holds"), (worse, "fails")):
        margin = np.abs(parity.margins(heads, gamma) - parity.hamming(pairs, 3)[:, None]).max()
        norm = abs(heads.norm / parity.bit_code_norm(3, 3, gamma) - 1)
        assert verdict("bit-code-solves-its-tasks", "exact", margin=margin, norm=norm) == expected
    rival = parity.one_against_all(gamma)
    smaller = parity.Heads(rival.signs, 0.99 * rival.values)  # cheap, and does not solve all tasks
    for heads, expected in ((rival, "fails"), (smaller, "holds"), (parity.bit_code(2, 2, gamma), "holds")):
        margin = parity.margins(heads, gamma).min()
        assert verdict("bit-code-is-the-optimum", "exact", norm=heads.norm * gamma**2, margin=margin) == expected
    seven = parity.subset_code(5, 2, 8, gamma)
    six = parity.Heads(seven.signs[:-1], seven.values[:-1])
    for heads, expected in ((seven, "fails"), (six, "holds"), (code, "holds")):
        margin = parity.margins(heads, gamma).min()
        assert verdict("heads-needed", "exact", heads=len(heads.signs), margin=margin) == expected


def test_the_noise_ratio_needs_the_right_span():
    noise = np.random.default_rng(0).choice([-1.0, 1.0], (40000, 16, 16)).mean(1)
    power = {nu: parity.projected_noise(parity.bit_code(4, nu, 0.2), noise) * 16 for nu in (1, 2, 4)}

    def found(one, two):
        return verdict("noise-ratio", "mean", one=power[one] / 2, two=power[two] / 3, four=power[4] / 5)

    assert found(1, 2) == "holds" and found(2, 2) == found(1, 1) == "fails"


def test_accuracies_lie_on_the_law_and_sizes_differ_in_the_middle(page):
    page["parity_prompts"] = 10_000
    right = page["parity_accuracy"]
    answers = {(nu, m): right(4, 1, nu, m) for nu in (1, 4) for m in (64, 256, 65536)}
    lead = {m: answers[1, m] - answers[4, m] for m in (64, 256, 65536)}
    rule = partial(verdict, "small-answers-better-in-context", "mean")
    assert rule(short=lead[64], longer=lead[256]) == "holds" and rule(short=lead[64], longer=lead[65536]) == "fails"
    small, large = (answers[nu, 256].mean() for nu in (1, 4))
    kappa = parity.signal_to_noise(16, 256, 0.2)

    def law(seen, kappa):
        return verdict("one-number-tells-the-accuracy", "exact", int(abs(seen - parity.small_accuracy(kappa)) > 0.03))

    assert law(small, kappa) == "holds"
    assert law(large, kappa) == law(small, parity.signal_to_noise(16, 128, 0.2)) == "fails"
    falls = {p: answers[1, 256] - right(4, 1, 1, 256, p) for p in (0.25, 1.0)}
    rule = partial(verdict, "parity-models-follow-flips", "mean")
    assert [rule(small=one, large=falls[1.0]) for one in (falls[0.25], falls[1.0])] == ["holds", "fails"]


# --- Sentences and the language model ---


def test_prompts_are_the_papers_and_flips_turn_the_stated_share(page):
    shown = page["context"](["show us a good time", "as dumb and cheesy"], [1, 0])
    whole = shown + page["ask"]("it 's a charming and often affecting journey")
    assert whole == (
        "sentence: show us a good time\nThe answer is positive.\n\n"
        "sentence: as dumb and cheesy\nThe answer is negative.\n\n"
        "sentence: it 's a charming and often affecting journey\nThe answer is"
    )
    labels, order = [0, 1] * 8, list(np.random.default_rng(0).permutation(16))
    for share, count in ((0.0, 0), (0.25, 4), (0.5, 8), (0.7, 11), (1.0, 16)):
        turned = page["flip_labels"](labels, share, order)
        assert sum(a != b for a, b in zip(labels, turned)) == count
    assert labels == [0, 1] * 8


def test_episodes_are_balanced_and_share_no_sentence(page):
    rated = Rated("x", [f"text {i}" for i in range(60)], torch.arange(60) - 29.5)
    examples, questions = page["draw_episode"](rated, 16, 12, torch.Generator().manual_seed(0))
    assert [len(examples), len(questions)] == [16, 12]
    assert [sum(k for _, k in part) for part in (examples, questions)] == [8, 6]
    assert len({t for t, _ in examples + questions}) == 28
    assert all(k == (int(t.split()[1]) >= 30) for t, k in examples + questions)


def test_scores_are_judged_with_and_without_a_threshold(page):
    odds = torch.tensor([1.0, 2.0, 3.0, 4.0])  # always for "positive", and in order
    scored = torch.stack([torch.zeros(4), odds], 1)
    assert page["judge_scores"](scored, [0, 0, 1, 1]) == (0.5, 1.0, 2.0)
    assert page["judge_scores"](scored, [1, 1, 0, 0]) == (0.5, 0.0, -2.0)


class Oracle:
    """Answers by the sign in the text, by the majority of the labels that follow that sign in the context, or never."""

    def __init__(self, follows):
        self.follows = follows

    def answer_scores(self, context, questions, answers, batch=32):
        turned = self.follows and context.count("good\nThe answer is negative") > context.count("good\nThe answer is positive")
        odds = torch.tensor([1.0 if "good" in q else -1.0 for q in questions]) * (-1 if turned else 1)
        return torch.stack([-odds, odds], 1)


def test_a_model_that_follows_flips_is_told_from_one_that_keeps_what_it_knew(page):
    texts = [f"film {i} is {'good' if i % 2 else 'bad'}" for i in range(60)]
    rated = Rated("x", texts, torch.tensor([1.0 if i % 2 else -1.0 for i in range(60)]))
    for follows in (False, True):
        curve = page["flip_curve"](Oracle(follows), rated, torch.Generator().manual_seed(0))
        order = [row[1] for row in curve]
        assert order[:2] == [1.0, 1.0]
        found = verdict("language-model-keeps-what-it-knew", "mean", [order[-1], order[-1]])
        assert found == ("fails" if follows else "holds")
        correct = [row[0] for row in curve]
        lost = correct[1] - correct[-1]
        assert verdict("small-language-model-is-flat", "mean", [lost, lost]) == found
        sets = dict.fromkeys(("movies", "products", "editorials", "tweets"), [correct[-1]] * 2)
        guess = verdict("small-language-model-is-no-worse-than-guessing", "mean", order=[order[-1]] * 2, **sets)
        assert guess == found


def test_attention_norms_find_the_sentence_that_is_attended_to(page):
    """A stand-in whose last layer looks at the tokens of words in capitals."""

    class Model:
        def encode(self, text):
            return [1 + (ord(c) < 97 and c.isalpha()) for c in text]

        def attention(self, tokens):
            maps = (tokens == 2).double()[:, None, None].expand(-1, 3, tokens.shape[1], -1)
            return maps / maps.sum(-1, keepdim=True).clamp(min=1)

    norms = page["attention_norms"](Model(), ["WATCH THIS", "AND THIS"], ["not this", "nor that"])
    assert norms.shape == (2, 2, 2, 4)
    assert (norms[..., 0] > 0).all() and (norms[..., 1] == 0).all()
    assert (norms[:, 0, :, 2:] > 0).all() and (norms[:, 1, :, 2:] == 0).all()  # the sentence that comes first
    assert verdict("small-language-model-attends-to-the-relevant", "each", [True] * 100) == "holds"
    assert verdict("small-language-model-attends-to-the-relevant", "each", [True, False] * 50) != "holds"


@pytest.mark.parametrize(("first", "review", "found"), [(0.5, 0.0, "holds"), (0.0, 0.0, "fails"), (0.5, 0.3, "fails")])
def test_the_lead_by_the_first_token_is_told_from_that_by_the_sentence(page, first, review, found):
    """A stand-in whose last layer looks everywhere, and more at the first token or at words in capitals."""

    class Model:
        def encode(self, text):
            return [1 + (ord(c) < 97 and c.isalpha()) for c in text]

        def attention(self, tokens):
            weight = 0.01 + review * (tokens == 2).double()
            weight[:, 0] += first
            return weight[:, None, None].expand(-1, 3, tokens.shape[1], -1)

    norms = page["attention_norms"](Model(), ["WATCH THIS"] * 2, ["never that"] * 2)
    _, other, *spans = norms[:, 0].mean(1).T
    counted, left_out = (np.log2(span / other) for span in spans)
    assert verdict("first-token-makes-the-lead", "mean", counted=counted, left_out=left_out) == found
