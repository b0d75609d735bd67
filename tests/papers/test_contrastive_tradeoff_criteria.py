"""The criteria of chapter 13 hold for what they judge and fail for what they do not.

The settings are the chapter's, or smaller; the limits are the chapter's own.
"""

import math

import numpy as np
import pytest
import torch
from chapter_source import functions_of
from torch import nn
from torch.nn import functional as F

from mvnb import probes, stats, training
from mvnb.papers.contrastive_tradeoff import theory
from mvnb.papers.contrastive_tradeoff import training as contrastive

CHAPTER = functions_of("13_contrastive_tradeoff")
S = Q = 10


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


# --- Finite worlds ---


def test_the_identity_needs_the_linear_loss_and_an_independent_negative():
    p_r, p_u = torch.full((4,), 0.25).double(), torch.full((2,), 0.5).double()
    phi = torch.randn(4, 2, 3, generator=gen(), dtype=torch.float64)
    pca = theory.pca_objective(phi, p_r, p_u)
    assert abs(theory.contrastive_loss(phi, p_r, p_u, lambda t: -t) - pca) < 1e-12
    assert not abs(theory.contrastive_loss(phi, p_r, p_u) - pca) < 1e-12
    same = theory.contrastive_loss(phi[:1], p_r[:1] * 4, p_u, lambda t: -t)  # pair and negative from one value
    assert not abs(same - pca) < 1e-12


def strengths(p_bits, length, steps=400, runs=2):
    bits = torch.cartesian_prod(*[torch.arange(2)] * 3)
    chance = torch.tensor(p_bits, dtype=torch.float64)
    p_table = torch.where(bits.bool(), chance, 1 - chance).prod(1)
    flips = torch.stack([(bits ^ row) @ torch.tensor([4, 2, 1]) for row in torch.eye(3).long()])
    space = dict(CHAPTER)
    start = torch.randn(runs, 8, 1, 8, generator=gen(1)).double()
    every = torch.full((runs,), length, dtype=torch.float64)
    phi = space["tables"](start, every, p_table, torch.ones(1).double(), steps)[:, :, 0]
    apart = (phi[:, None] - phi[:, flips]).norm(dim=-1) / 2
    return ((apart * p_table).sum(-1) / every[:, None]).mean(0)


def in_order(strength):
    """The criterion of spread-out-features-first."""
    return (strength[:-1] - strength[1:]).min() > 0.01


def test_order_needs_features_of_unequal_spread():
    assert in_order(strengths([0.5, 0.2, 0.05], 1.0))
    assert not in_order(strengths([0.5, 0.5, 0.5], 1.0))
    assert not in_order(strengths([0.05, 0.2, 0.5], 1.0))


def test_one_dimension_would_show_features_one_by_one():
    """The criterion of features-one-by-one asks for what a split of the first feature does."""
    bits = torch.cartesian_prod(*[torch.arange(2)] * 3)
    phi = (2.0 * bits[:, :1] - 1).double()
    flip = (bits ^ torch.tensor([0, 0, 1])) @ torch.tensor([4, 2, 1])
    assert (phi - phi[flip]).norm(dim=-1).mean() / 2 < 0.1


def test_a_random_table_keeps_the_spurious_feature():
    phi = F.normalize(torch.randn(4, 2, 4, generator=gen()), dim=-1)
    assert not (phi[:, 0] - phi[:, 1]).norm(dim=-1).mean() / 2 < 0.02


@pytest.mark.parametrize(("dims", "third", "all_readable"), [(2, True, False), (3, False, True)])
def test_exclusive_or_needs_two_dimensions(dims, third, all_readable):
    draws = 200
    start = torch.randn(draws, 4, 1, dims, generator=gen(2)).double()
    quarter, sure = torch.full((4,), 0.25).double(), torch.ones(1).double()
    phi = CHAPTER["tables"](start, torch.ones(draws).double(), quarter, sure, 120)[:, :, 0]
    first = torch.tensor([[-1.0, -1.0, 1.0, 1.0]]).double()
    failed = (~CHAPTER["separable"](phi, first)).sum().item()
    _, low, high = stats.proportion_interval(failed, draws, 0.9999)
    assert (low <= 1 / 3 <= high) == third
    every = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).double()
    assert (CHAPTER["separable"](phi, every).double().mean() >= 0.99) == all_readable


# --- Weights ---


def test_shared_weight_one_fails_for_loud_private_features():
    shares = np.full(3, 1 / 3)
    assert abs(theory.mixture_weights(shares, 2, 4)[0] - 1) < 5e-3
    assert not abs(theory.mixture_weights(shares, 2, 4, own_variance=np.full(3, 16.0))[0] - 1) < 5e-3


def test_weights_are_not_there_before_training():
    for n_tasks in (1, 2, 5, 10):
        d = 3 + 3 * n_tasks + 6
        assert not abs(6 / d - 1 / n_tasks) <= 0.02 or not abs(6 / d - 1) <= 0.02


def test_even_tasks_are_not_dropped():
    s = q = 3
    edge = theory.drop_threshold(4, s, q)
    for ratio, dropped in ((0.5 * edge, True), (1.0, False), (1.6 * edge, False)):
        shares = np.append(np.ones(4), ratio)
        assert (theory.mixture_weights(shares / shares.sum(), s, q, points=40)[-1] <= 0.02) == dropped


# --- Errors ---


@pytest.fixture(scope="module")
def points():
    z = torch.randn(300, 25, S + Q, generator=gen(3)).double()
    u = F.normalize(torch.randn(300, 2, S, generator=gen(4)).double(), dim=-1).flatten(1) * 0.5**0.5
    return {**CHAPTER, "S": S, "Q": Q, "z": z, "u": u, "y": torch.einsum("rmj,rj->rm", z, u)}


def shortest(points, beta, m):
    function = CHAPTER["shortest_error"]
    function.__globals__.update(points)
    return function(np.repeat([1.0, beta], [S, Q]), m)


def test_error_criteria_tell_weights_apart(points):
    error = {t: shortest(points, 1 / t, 15).sqrt().mean().item() for t in (1, 2, 10, 50, 200)}
    assert error[2] > error[1]
    assert not error[1] > error[1]  # equal weights would not grow
    assert 1.25 <= error[10] / error[1] <= 1.6
    assert not 1.25 <= error[2] / error[1] <= 1.6
    assert not 1.25 <= error[200] / error[1] <= 1.6
    assert not error[200] / error[50] >= 1.5
    assert theory.bound_ratio(200) / theory.bound_ratio(50) >= 1.5  # the bound would have met it


def test_interpolation_formula_fails_with_the_wrong_weight(points):
    measured = shortest(points, 0.1, 8).mean().item()
    assert abs(measured / theory.interpolation_error(8, S, Q, 0.5, 0.5, 0.1) - 1) <= 0.3
    assert not abs(measured / theory.interpolation_error(8, S, Q, 0.5, 0.5, 1.0) - 1) <= 0.3


def test_bound_criterion_fails_for_unweighted_features():
    for n_tasks in (10, 50):
        bound = theory.rademacher_bound(15, S, Q, 0.5, 0.5, 1.0, 1 / n_tasks)
        loose = theory.predictor_norm(0.5, 0.5, 1.0, 1 / n_tasks) * math.sqrt((S + Q) / 15)
        assert not loose / bound <= 1.1


def test_floor_is_for_those_who_do_not_see(points):
    function, floor = CHAPTER["unseen_error"], theory.blind_error(0.5)
    z_long = torch.randn(300, 160, S + Q, generator=gen(8)).double()
    function.__globals__.update(points, z_long=z_long, clean=torch.einsum("rmj,rj->rm", z_long, points["u"]))
    assert abs(function(160) / floor - 1) <= 0.08
    assert not abs(function(15) / floor - 1) <= 0.08  # few labels
    assert not abs(math.sqrt(2 / math.pi) * shortest(points, 0.1, 18).sqrt().mean() / floor - 1) <= 0.08  # all is seen


def test_regularisation_of_little_strength_leaves_a_gap(points):
    def error(beta):
        return shortest(points, beta, 15).sqrt().mean().item()

    gap = error(0.1) - error(1.0)
    for gamma, closed in ((2.5, True), (0.5, False)):
        after = theory.regularised_private(10, S, gamma).item() ** 2
        assert ((error(0.1) - error(after)) / gap >= 0.9) == closed


def test_returned_weight_fails_without_descent_and_for_another_radius():
    formula = theory.regularised_private(10, S, np.array([0.25, 0.5, 2.5]))
    assert not np.abs(10**-0.5 - formula).max() <= 0.01
    assert not np.abs(theory.regularised_private(10, S, 0.25) - formula[1]) <= 0.01


def test_cka_formula_fails_for_other_weights():
    z = torch.randn(5000, 2 * S, generator=gen(5)).double()
    root = torch.tensor([1.0] * S + [0.1] * Q).double().sqrt()
    measured = probes.linear_cka(z, z * root).item()
    assert abs(measured - theory.weight_cosine(1, 0.1, S, Q)) < 0.01
    assert not abs(measured - theory.weight_cosine(1, 0.5, S, Q)) < 0.01


# --- Pictures ---


def test_nothing_is_gained_or_lost_without_a_difference():
    """Criteria on pictures ask for more than networks that differ in nothing show."""
    seen = torch.randn(2, 200, 8, generator=gen(6))
    y = torch.arange(200) % 4
    probe = CHAPTER["ridge_accuracy"]
    a = probe(seen[:, :100], y[:100], seen[:, 100:], y[100:], 4)
    assert not (100 * (a - a)).mean() >= 3 and not (100 * (a - a)).mean() > 0
    assert abs(a.mean() - 0.25) < 0.15  # noise: chance
    told = seen + 3 * F.one_hot(y, 8)
    assert probe(told[:, :100], y[:100], told[:, 100:], y[100:], 4).min() > 0.9
    assert not probes.linear_cka(seen[0], seen[0]) < 0.95


def test_without_weight_the_regulariser_gains_nothing():
    torch.manual_seed(0)
    nets = [contrastive.ContrastiveNet(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), 8)]
    inner = contrastive.ContrastiveObjective(nets[0], "simclr")
    params = inner.start(nets, [gen()]) | {"head.weight": torch.zeros(1, 3, 8), "head.bias": torch.zeros(1, 3)}
    batch = (torch.randn(1, 6, 4, 4, generator=gen(7)),) * 2 + (torch.arange(6)[None] % 3,)
    step = {"steps": 5, "optimizer": training.Adam(0.01)}
    runs = [training.fit(contrastive.RegularisedObjective(inner, 0.0), params, batch, **step) for _ in range(2)]
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=1e-3, atol=1e-4)


def test_criteria_on_tables_can_hold():
    drops = np.array([9.0, 5.0, 3.0, 2.0, 1.0])  # as in fine-tuning
    assert drops[0] - drops[-1] >= 1
    assert not 12.37 - 12.77 >= 1
