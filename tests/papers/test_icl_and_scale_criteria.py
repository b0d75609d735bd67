"""The criteria of chapter 11 hold for what they judge and fail for what they do not.

Functions of the page are read from the page; limits are the chapter's own.
"""

import numpy as np
import pytest
import torch
from chapter_source import functions_of

from mvnb.data import Rated
from mvnb.papers.icl_and_scale import icl
from mvnb.papers.icl_and_scale import parity_attention as parity
from mvnb.papers.icl_and_scale.data import InContextRegression


@pytest.fixture(scope="module")
def page():
    space = functions_of("11_icl_and_scale")
    spectrum = space["spectrum"]
    space |= {"d": len(spectrum), "covariance": torch.diag(torch.tensor(spectrum, dtype=torch.float64))}
    space |= {"ANSWERS": (" negative", " positive"), "check_prompts": 20_000}
    return space


# --- Regression ---


def test_alternating_minimisation_stops_at_the_optimum_and_one_round_does_not(page):
    g = torch.Generator().manual_seed(1)
    best = icl.optimal_weight(page["covariance"], page["n_train"], 2)
    far = [(page["alternate"](2, g, rounds) - best).norm() / best.norm() for rounds in (150, 1)]
    assert far[0] < 1e-3 < far[1]
    other = icl.optimal_weight(page["covariance"], 2 * page["n_train"], 2)
    assert (other - best).norm() / best.norm() > 1e-3


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

    assert scores(page, stated(), noise=0.5, flip=0.3).max() <= 4.5
    for wrong in ({"n_context": 10}, {"noise": 1.5}, {"flip": 0.2}):
        assert scores(page, stated(**wrong), noise=0.5, flip=0.3).max() > 4.5
    assert scores(page, lambda ranks: icl.risk(spectrum, ones, 200, ranks, 8, 0.5, 0.3), noise=0.5, flip=0.3).max() > 4.5


def test_noise_is_in_proportion_to_rank_after_long_pretraining_only():
    some = np.array([1, 4, 8])
    spectrum = np.linspace(1.3, 0.1, 8)
    for n_train, holds in ((100_000, True), (100, False)):
        slope = (icl.pass_through(spectrum, n_train, some) ** 2).sum(-1)
        assert (np.abs(slope / some - 1).max() <= 0.02) == holds


def test_larger_is_not_worse_when_the_signal_is_not_covered():
    spectrum = np.linspace(1.3, 0.7, 8)
    covered, spread = np.append(np.ones(3), np.zeros(5)), np.ones(8)
    steps = [np.diff(icl.risk(spectrum, w, 10**5, np.arange(9), 64, 0.5)[3:]) for w in (covered, spread)]
    assert (steps[0] > 0).all() and not (steps[1] > 0).any()
    assert np.ptp(icl.risk(np.append(spectrum[:3], np.zeros(5)), covered, 100, np.arange(9), 8, 2.0)[3:]) < 1e-9
    assert not np.ptp(icl.risk(spectrum, covered, 100, np.arange(9), 8, 2.0)[3:]) < 1e-9


def test_flips_cost_larger_ranks_more_unless_directions_are_empty(page):
    spectrum, ranks = page["spectrum"], np.arange(7)
    for w, rising in ((np.ones(6), True), (np.array([1, 1, 0, 0, 0, 0.0]), False)):
        drop = icl.risk(spectrum, w, 20, ranks, 8, 0.5, 1.0) - icl.risk(spectrum, w, 20, ranks, 8, 0.5, 0.0)
        assert bool((np.diff(drop) > 1e-12).all()) == rising
    flat = icl.risk(spectrum, np.ones(6), 20, np.array([0, 1]), 8, 0.5, 1.0)
    few = icl.risk(spectrum, np.ones(6), 20, np.array([0, 1]), 8, 0.5, 0.3)
    assert not flat[1] <= 1.05 * flat[0] and few[1] <= 1.05 * few[0]  # the criterion of small-models-stay-flat


# --- Parities ---


def test_margins_and_optimality_are_told_apart():
    gamma = 0.2
    code = parity.bit_code(3, 3, gamma)
    worse = parity.Heads(code.signs, code.values * np.where(code.signs > 0, 0.9, 1)[:, None])
    _, _, pairs = parity.patterns(8, gamma)
    assert np.abs(parity.margins(worse, gamma) - parity.hamming(pairs, 3)[:, None]).max() > 1e-12
    rival = parity.one_against_all(gamma)
    smaller = parity.Heads(rival.signs, 0.99 * rival.values)
    assert parity.margins(rival, gamma).min() >= 1 - 1e-9 and not parity.margins(smaller, gamma).min() >= 1 - 1e-9
    seven = parity.subset_code(5, 2, 8, gamma)
    six = parity.Heads(seven.signs[:-1], seven.values[:-1])
    assert parity.margins(seven, gamma).min() >= 1 - 1e-9 and not parity.margins(six, gamma).min() >= 1 - 1e-9


def test_the_noise_ratio_needs_the_right_span():
    noise = np.random.default_rng(0).choice([-1.0, 1.0], (4000, 16, 16)).mean(1)
    power = {nu: parity.projected_noise(parity.bit_code(4, nu, 0.2), noise).mean() for nu in (1, 2, 4)}
    assert abs(power[1] / power[4] / (2 / 5) - 1) <= 0.03
    assert abs(power[2] / power[4] / (2 / 5) - 1) > 0.03 and abs(power[1] / power[4] / (1 / 4) - 1) > 0.03


def test_accuracies_lie_on_the_law_and_sizes_differ_in_the_middle(page):
    page["parity_prompts"] = 10_000
    accuracy = page["parity_accuracy"]
    small, large = accuracy(4, 1, 1, 256), accuracy(4, 1, 4, 256)
    assert small - large >= 0.1 and not accuracy(4, 1, 1, 65536) - accuracy(4, 1, 4, 65536) >= 0.1
    kappa = parity.signal_to_noise(16, 256, 0.2)
    assert abs(small - parity.small_accuracy(kappa)) <= 0.03
    assert abs(large - parity.small_accuracy(kappa)) > 0.03
    assert abs(small - parity.small_accuracy(parity.signal_to_noise(16, 128, 0.2))) > 0.03
    assert abs(accuracy(4, 1, 1, 256, 1.0) - small) < 0.1 < abs(accuracy(4, 1, 1, 256, 0.25) - small)


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
        assert order[:2] == [1.0, 1.0] and (order[-1] > 0.5) == (not follows)


def test_attention_norms_find_the_sentence_that_is_attended_to(page):
    """A stand-in whose last layer looks at the tokens of words in capitals."""

    class Model:
        def encode(self, text):
            return [1 + (ord(c) < 97 and c.isalpha()) for c in text]

        def attention(self, tokens):
            maps = (tokens == 2).double()[:, None, None].expand(-1, 3, tokens.shape[1], -1)
            return maps / maps.sum(-1, keepdim=True).clamp(min=1)

    norms = page["attention_norms"](Model(), ["WATCH THIS", "AND THIS"], ["not this", "nor that"])
    assert norms.shape == (2, 2, 2, 2)
    assert (norms[..., 0] > 0).all() and (norms[..., 1] == 0).all()
