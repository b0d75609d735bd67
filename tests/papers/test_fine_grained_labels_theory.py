"""Closed forms of chapter 02 against autograd, simulation and brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from mvnb import training
from mvnb.models import patch_logits
from mvnb.papers.fine_grained_labels import data, measure, theory
from mvnb.papers.fine_grained_labels.data import HierarchicalMultiView
from mvnb.papers.fine_grained_labels.model import ReluPatchObjective, relu_responses, stratified_detectors

K, STEP, RATE = 4, 0.01, 0.05
STILL = HierarchicalMultiView(K, 2 + 2 * K, 12, signal_patches=4, jitter=0.0)


def one_step(labels, n=16 * K):
    """Movement of each class's detector of each feature in one step of size STEP from outputs near 0, and its closed form."""
    sample = STILL.sample(n, 0, dtype=torch.float64)
    moved = STEP * measure.first_step(STILL, sample, labels.of(sample), len(labels.table))
    return moved, theory.first_drift(labels.table, STEP, 4, 1.0)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_first_drift_of_grouped_labels_is_one_step(groups):
    moved, expected = one_step(data.true_labels(K, groups))
    assert np.allclose(moved, expected, rtol=1e-9, atol=1e-15)
    assert np.isclose(expected[0, 0] / expected[0, 2], theory.growth_ratio(K, groups))


def test_first_drift_of_random_and_unrelated_labels():
    moved, expected = one_step(data.dealt_ids(K, 2))
    assert np.allclose(moved, expected, rtol=1e-9, atol=1e-15)
    unrelated, none = one_step(data.dealt_ids(K, 4, superclasses=1))
    assert np.abs(unrelated).max() < 1e-12 * np.abs(expected).max() and np.all(none == 0)


def test_first_drift_with_random_ids_within_monte_carlo_error():
    drawn = data.dealt_ids(K, 2)._replace(of=lambda points: data.random_ids(points.superclass, 2, 0))
    moved, expected = one_step(drawn, n=800 * K)
    shown = np.repeat([0.5, 0.5 / K], [2, 2 * K])
    error = STEP * 4 * np.sqrt(shown * 0.25 / (800 * K))
    assert np.all(np.abs(moved - expected) < 5 * error)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_label_tables_are_distributions(k):
    for table in (theory.grouped_label_probabilities(k, k), theory.random_label_probabilities(k, 5)):
        assert np.allclose(table.sum(0), 1)
        weight = np.repeat([0.5, 0.5 / k], [2, 2 * k])
        assert np.allclose(table[:, :2] @ weight[:2], 1 / len(table))  # equally frequent labels
        assert np.allclose(table[:, 2:] @ weight[2:], 1 / len(table))


def test_the_update_is_autograd_and_the_bias_rule():
    g = torch.Generator().manual_seed(1)
    world = HierarchicalMultiView(3, 10, 12, jitter=0.1, noise=0.1)
    sample = world.sample(12, g, dtype=torch.float64)
    weight = torch.randn(6, 5, 10, generator=g, dtype=torch.float64).requires_grad_()
    bias = -0.2 * torch.rand(6, 5, generator=g, dtype=torch.float64)
    for superclasses, y in ((False, sample.subclass), (True, sample.subclass // 3)):
        logits = patch_logits(weight, sample.x, None, 1, 1.0, bias)
        logits = logits.unflatten(-1, (2, 3)).amax(-1) if superclasses else logits
        loss = torch.nn.functional.cross_entropy(logits, y)
        (auto,) = torch.autograd.grad(loss, weight)
        params = {"weight": weight.detach()[None], "bias": bias[None]}
        value, grads = ReluPatchObjective(RATE, superclasses)(params, sample.x[None], y[None])
        assert abs(value[0] - loss.item()) < 1e-12
        assert torch.allclose(grads["weight"][0], auto, rtol=0, atol=1e-12)
        assert torch.allclose(grads["bias"][0], RATE * auto.norm(dim=-1), rtol=0, atol=1e-12)


@given(st.floats(0, 1e6))
def test_coarse_response_solves_its_equation(clock):
    f = float(theory.coarse_response(clock))
    c = clock + 1
    assert f >= 0
    assert abs(f + np.exp(f) - c) < 1e-9 * c


def test_coarse_response_is_the_flow_and_late_the_logarithm():
    times = np.array([0.0, 1.0, 10.0, 599.0, 599.5, 2000.0])
    flow = solve_ivp(lambda t, f: 1 / (1 + np.exp(f)), (0, 2000), [0.0], t_eval=times, rtol=1e-10, atol=1e-12).y[0]
    assert np.allclose(theory.coarse_response(times), flow, atol=1e-7)
    assert abs(theory.coarse_response(1e12) - np.log(1e12)) < 1e-9
    with pytest.raises(ValueError, match="negative"):
        theory.coarse_response(-0.1)


@pytest.mark.parametrize(("growth", "start"), [(0.1, 0.0), (1.0, 0.0), (2.0, 1.0), (0.5, 4.0)])
def test_log_law_brackets_the_recursion(growth, start):
    a, steps = [start], np.arange(2001)
    for _ in steps[1:]:
        a.append(a[-1] + growth * np.exp(-a[-1]))
    first, line = np.exp(start), np.exp(start) + growth * steps
    excess = np.array(a) - np.log(line)
    curvature = growth / 2 * np.exp(growth / first) * (growth / first + np.log(line / first))  # lem-02-recursion
    assert np.all(excess >= -1e-12) and np.all(excess <= np.log1p(curvature / line) + 1e-12)


def test_fine_trajectory_is_the_population_flow_and_coarse_for_one_subclass():
    times = np.linspace(0, 200, 6)
    a = theory.fine_trajectory(times, 0.01, 4, 1.0, 0.05, 1)
    total = 4 * 0.95 * a.sum(0)
    clock = theory.coarse_clock(0.01, 4, 1.0, 0.05, 1) * times
    assert np.allclose(total, theory.coarse_response(clock), atol=1e-6)
    early = theory.fine_trajectory([0.01], 0.01, 4, 1.0, 0.05, 8)
    assert np.isclose(early[0, 0] / early[1, 0], theory.growth_ratio(8, 8), rtol=1e-3)


def test_fine_trajectory_follows_full_batch_training():
    """Gradient descent with exact counts, no noise, no jitter and small steps is the flow."""
    g = torch.Generator().manual_seed(0)
    sample = STILL.sample(2 * K, g, dtype=torch.float64)
    params = stratified_detectors(2 * K, STILL.n_features, STILL.dim, 1e-10, 1, torch.float64)
    batch = (sample.x[None], sample.subclass[None])
    run = training.fit(ReluPatchObjective(RATE), params, batch, steps=400, optimizer=training.SGD(0.005))
    moved = run.params["weight"][0].diagonal(dim1=-2, dim2=-1)  # (class, feature)
    expected = theory.fine_trajectory([400], 0.005, 4, 1.0, RATE, K)[:, 0]
    measured = np.array([moved[0, 0].item(), moved[0, 2].item()])
    assert np.allclose(measured, expected, rtol=0.01)


@pytest.mark.parametrize("k", [2, 5, 40])
def test_common_residual_lies_between_a_quarter_and_two_thirds(k):
    low, high = 1 / (3 * k), 3 / (4 * k)
    p = np.linspace(low, high, 21)
    values = (1 - p[:, None]) - (k - 1) * p[None]  # own class and siblings
    assert np.isclose(values.max(), 2 / 3)
    assert np.isclose(values.min(), 1 / 4)
    # The interval is where the probabilities lie while outputs are in [0, log(3/2)].
    outputs = np.random.default_rng(0).uniform(0, np.log(1.5), (1000, 2 * k))
    softmax = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert softmax.min() >= low and softmax.max() <= high


def test_hard_error_against_simulation():
    rng = np.random.default_rng(0)
    weak = rng.uniform(0.1, 0.4, (200_000, 4)).sum(1) - 4 * 0.05
    for ratio in (3.0, 4.5, 8.0):
        simulated = np.mean(weak * ratio >= 4 * 0.95)
        assert abs(simulated - theory.hard_error(ratio, 4, 1.0, 4, 0.1, 0.4, 0.05)) < 0.005
    k_star = theory.critical_subclasses(4, 1.0, 4, 0.25, 0.05)
    assert np.isclose(theory.hard_error(k_star, 4, 1.0, 4, 0.1, 0.4, 0.05), 0.5)
    with pytest.raises(ValueError, match="do not make any"):
        theory.critical_subclasses(4, 1.0, 4, 0.05, 0.05)
    with pytest.raises(ValueError, match="bias_rate"):
        theory.hard_error(8, 4, 1.0, 4, 0.0, 0.4, 0.05)


def test_detector_counts_against_draws():
    threshold = theory.detector_threshold(20_000, 10)
    draws = np.random.default_rng(0).normal(size=(20, 20_000, 6))
    possible = draws >= threshold - 0.2
    single = (draws >= threshold + 0.2) & (possible.sum(-1, keepdims=True) == 1)
    for mask, expected in zip((single, possible), theory.detector_counts(20_000, 6, threshold, 0.2)):
        count = mask.sum(1)  # (network, feature)
        assert abs(count.mean() - expected) < 4 * np.sqrt(expected / count.size)


@pytest.mark.parametrize(("n_labels", "common", "expected"), [(2, 8.0, 512.0), (16, 0.5, 16.0)])
def test_a_probe_takes_the_shortcut_at_first(n_labels, common, expected):
    """The exercise on probes, k = 8: response to a common over response to a fine patch after the probe's first step."""
    world = HierarchicalMultiView(8, 18, 16, jitter=0.0)
    groups = n_labels // 2
    own = torch.as_tensor(theory.grouped_label_probabilities(8, groups) > 0).double()  # (label, feature)
    growth = torch.cat([torch.full((2,), common), torch.ones(16)]).double()
    weight = (own * growth)[None, :, :, None] * torch.eye(18, dtype=torch.float64)
    bias = torch.zeros(1, n_labels, 18, dtype=torch.float64)
    sample = world.sample(64, torch.Generator().manual_seed(0), dtype=torch.float64)
    sign = 1 - 2 * (sample.subclass // 8).double()
    probe = (sign[:, None] * relu_responses(weight, bias, sample.x).sum(2).flatten(2)[0]).mean(0)
    patch = torch.eye(18, dtype=torch.float64)[:, None]  # points of one patch
    answers = relu_responses(weight, bias, patch).sum(2).flatten(2)[0] @ probe
    assert np.isclose(answers[0] / answers[2], expected)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="divide"):
        theory.grouped_label_probabilities(8, 3)
    with pytest.raises(ValueError, match="positive integer"):
        theory.random_label_probabilities(0, 2)
    with pytest.raises(ValueError, match="n_detectors"):
        theory.detector_threshold(10, 10)
