"""Closed forms of chapter 05, its model, data and probes against quadrature, autograd and simulation."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from mvnb import training
from mvnb.data import Points
from mvnb.papers.local_signal_adaptivity import _soft_threshold_kernels as kernels
from mvnb.papers.local_signal_adaptivity import measure, theory
from mvnb.papers.local_signal_adaptivity.data import SignalInNoise
from mvnb.papers.local_signal_adaptivity.model import SoftThresholdFilter
from mvnb.papers.local_signal_adaptivity.training import (
    SoftThresholdObjective,
    SurvivorObjective,
    _gaussians,
    filter_start,
    step_keys,
)

BIASES = (-0.4, -0.05, 0.0, 0.1)


def soft_threshold(x, b):
    """The function piece by piece."""
    return np.where((b >= 0) & (np.abs(x) <= b), 2 * x, np.sign(x) * np.maximum(np.abs(x) + b, 0.0))


@given(st.floats(-5, 5), st.floats(-2, 2))
def test_soft_threshold_is_the_difference_of_two_relus(x, b):
    assert math.isclose(theory._soft_threshold(x, b), soft_threshold(x, b), abs_tol=1e-12)


@pytest.mark.parametrize("b", BIASES)
@pytest.mark.parametrize("scale", [0.1, 0.7])
def test_moments_and_characteristic_function_are_integrals(b, scale):
    def mean(h):
        cuts = sorted({-9 * scale, -abs(b), abs(b), 9 * scale, 0.0})
        return sum(quad(lambda z: h(z) * norm.pdf(z / scale) / scale, *pair, limit=200)[0] for pair in pairwise(cuts))

    if b <= 0:
        assert np.isclose(theory._response_variance(scale, b), mean(lambda z: soft_threshold(z, b) ** 2), atol=1e-8)
    for u in (0.0, 0.6, 3.0, 11.0):
        value = mean(lambda z, u=u: math.cos(u * soft_threshold(z, b)))
        assert np.isclose(theory._response(u, scale, b)[0], value, atol=1e-7)
        sine = mean(lambda z, u=u: (z >= -b) * z * math.sin(u * soft_threshold(z, b)))
        assert np.isclose(theory._response(u, scale, b)[1], sine, atol=1e-7)
        tail = mean(lambda z, u=u: (z >= abs(b)) * math.sin(u * soft_threshold(z, b)))
        assert np.isclose(theory._response(u, scale, b)[2], tail, atol=1e-7)


def test_variance_needs_a_threshold():
    with pytest.raises(ValueError, match="must not be positive"):
        theory._response_variance(1.0, 0.1)


def test_growth_bound_holds_on_a_grid():
    """-d/dw* >= sigmoid(-g) / 2 - kappa c log(k)^2 where the signal gets through."""
    for k in (100, 1000, 10**5):
        sigma = theory.noise_scale(k)
        for c in np.geomspace(1e-4, 1, 12):
            for ratio in (-0.5, 0.0, 0.3, 0.8):
                own = float(soft_threshold(c, -ratio * c))
                least = 0.5 / (1 + math.exp(own)) - theory.noise_pull_bound(c, -ratio * c, k, sigma)
                assert -theory.population_gradient(c, -ratio * c, k, sigma).c >= least - 1e-9


def test_balance_of_bias_and_filter_near_zero():
    k, sigma, c = 1000, theory.noise_scale(1000), 1e-4
    got = theory.population_gradient(c, 0.0, k, sigma)
    assert np.isclose(got.c, -0.5 + c / 4 * (1 + k * sigma**2), atol=1e-5)
    assert np.isclose(got.b, -0.5 + k * sigma * c / (2 * math.sqrt(2 * math.pi)), atol=1e-4)
    assert np.isclose(norm.ppf(0.99) ** -1 / math.sqrt(1000), 0.0136, atol=1e-4)  # noise that leaves a linear model 99 %


@pytest.mark.parametrize("c, b, v", [(0.5, -0.2, 0.1), (0.5, 0.1, 0.0), (0.5, 0.0, 0.3), (0.8, -0.6, 0.0)])
def test_accuracy_is_that_of_drawn_points(c, b, v):
    sample = Points(*SignalInNoise(60, 2, 0.25).sample(60_000, torch.Generator().manual_seed(4), torch.float64))
    z = sample.x @ torch.tensor([c, v]).double()
    right = sample.y * (torch.relu(z + b) - torch.relu(b - z)).sum(-1) > 0
    exact = theory.accuracy(c, b, 60, 0.25, v)
    assert abs(right.double().mean().item() - exact) < 5 * math.sqrt(exact * (1 - exact) / 60_000) + 1e-4


@pytest.mark.parametrize("rho, t, t2", [(0.0, 0.5, 1.0), (0.6, 0.3, 0.9), (-0.8, 1.2, 0.2)])
def test_pair_moments_are_integrals(rho, t, t2):
    x, weight = np.polynomial.legendre.leggauss(80)

    def outside(bar):
        half = bar + (x + 1) / 2 * 9
        return np.concatenate([half, -half]), np.tile(weight * 4.5, 2)

    (u, first), (v, second) = outside(t), outside(t2)
    u, v = u[:, None], v[None]
    square = (u**2 - 2 * rho * u * v + v**2) / (1 - rho**2)
    mass = np.outer(first, second) * np.exp(-square / 2) / (2 * math.pi * math.sqrt(1 - rho**2))
    want = [(mass * part).sum() for part in (1, u * u, u * v, v * v)]
    assert np.allclose(theory._pair_moments(rho, t, t2), want, atol=1e-6)


@pytest.mark.parametrize("overlap, t", [(0.3, 0.0), (0.4, 1.2)])
def test_one_filter_error_is_that_of_the_best_weights_on_points(overlap, t):
    k, sigma, dim, n = 300, 0.2, 4, 6000
    g = torch.Generator().manual_seed(6)
    w = torch.tensor([overlap, math.sqrt(1 - overlap**2), 0.0, 0.0]).double()
    error = []
    for _ in range(4):
        sample = Points(*SignalInNoise(k, dim, sigma).sample(n, g, torch.float64))
        features = (((sample.x @ w).abs() >= t * sigma)[..., None] * sample.x).sum(1)
        signed = features * sample.y[:, None]
        best = torch.linalg.solve(torch.cov(signed.T), signed.mean(0))  # Fisher's direction
        error.append((signed @ best <= 0).double().mean().item())
    assert abs(np.mean(error) - theory.one_filter_error(overlap, t, k, sigma)) < 0.015


def test_one_lucky_filter_ends_near_five_times_ten_to_the_tenth():
    k = math.exp(math.sqrt(1000 / norm.ppf(0.9) ** 2))  # P < 1 / (1.28 log k)^2 has probability P
    assert 4.5e10 < k < 6e10
    t = norm.isf(0.5 / (norm.ppf(0.9) ** 2 * math.log(k) ** 2))
    dim = theory.noise_scale(k) ** -2
    assert np.isclose(theory.one_filter_error(1.0001 * t / math.sqrt(dim), t, k, dim**-0.5), 0.1, atol=2e-3)


def test_frozen_features_are_odd_and_blind_to_order():
    g = torch.Generator().manual_seed(7)
    x, w, weight = torch.randn(5, 9, 4, generator=g), torch.randn(3, 4, generator=g), torch.randn(3, 4, generator=g)

    def output(x):
        active = ((x @ w.T).abs() >= 0.5).float()
        return torch.einsum("npj,npd,jd->n", active, x, weight)

    assert torch.allclose(output(-x), -output(x))
    assert torch.allclose(output(x[:, torch.randperm(9, generator=g)]), output(x), atol=1e-5)


@pytest.mark.parametrize("c, v, b", [(0.4, 0.1, -0.1), (0.4, 0.1, 0.0), (0.3, 0.0, 0.1), (-0.2, 0.2, -0.05)])
def test_population_gradient_is_the_mean_of_the_dense_one(c, v, b):
    world = SignalInNoise(40, 3, 0.3)
    params = {"w": torch.tensor([[c, v, 0.0]]).double(), "b": torch.tensor([b]).double()}
    x, y = world.sample(40_000, torch.Generator().manual_seed(0), torch.float64)
    found = [SoftThresholdObjective()(params, *part)[1] for part in zip(x.view(100, 1, 400, 41, 3), y.view(100, 1, 400))]
    found = torch.stack([torch.cat([g["w"][0], g["b"]]) for g in found])
    exact = theory.population_gradient(c, b, 40, 0.3, v)
    want = torch.tensor([exact.c, exact.v, 0.0, exact.b])
    error = found.std(0) / len(found) ** 0.5
    assert torch.all((found.mean(0) - want).abs() < 5 * error)  # the component outside the span is 0
    assert exact.c_noise * c >= 0 and exact.v >= 0
    assert exact.b - (exact.c - exact.c_noise) * np.sign(c) >= 0
    assert abs(exact.c_noise) <= theory.noise_pull_bound(c, b, 40, 0.3)


def test_gradient_at_zero_and_linear_accuracy():
    start = theory.population_gradient(1e-9, 0.0, 1000, theory.noise_scale(1000))
    assert np.allclose([start.c, start.b], -0.5, atol=1e-5)
    assert np.isclose(theory.accuracy(1.0, 0.0, 1000, theory.noise_scale(1000)), norm.cdf(1 / math.log(1000)), atol=1e-6)
    assert np.isclose(theory.linear_accuracy(1000, theory.noise_scale(1000)), norm.cdf(1 / math.log(1000)))


def test_population_path_is_gradient_descent():
    path = theory.population_path(3, 50, 0.3, 0.5, 0.1, c0=0.01)
    g = theory.population_gradient(*path[:, 1], 50, 0.3)
    assert np.allclose(path[:, 2], path[:, 1] - 0.5 * np.array([g.c, 0.1 * g.b]))
    assert path.shape == (2, 4)


def test_accuracy_is_homogeneous_and_strict():
    assert np.isclose(theory.accuracy(1, -0.4, 200, 0.2, 0.3), theory.accuracy(7, -2.8, 200, 0.2, 2.1), atol=1e-9)
    assert theory.accuracy(0.1, -1.0, 200, 0.2) < 1e-6  # all units dead: no point is right
    alpha = 2 * math.sqrt(math.log(200)) * 1.001  # Lemma B.5
    assert theory.accuracy(1.0, -alpha * 0.1, 200, 0.1) > 1 - 2 / 200


@pytest.mark.parametrize("b", BIASES)
def test_survivors_have_the_law_of_the_dense_network(b):
    world = SignalInNoise(30, 4, 0.3)
    params = {"w": torch.tensor([[0.5, 0.2, -0.1, 0.0]]).double(), "b": torch.tensor([b]).double()}
    points, y = world.sample(60_000, torch.Generator().manual_seed(0), torch.float64)
    dense = [SoftThresholdObjective()(params, *part) for part in zip(points.view(600, 1, 100, 31, 4), y.view(600, 1, 100))]
    cheap = [SurvivorObjective(30, 0.3, 100)(params, *step_keys(3, 1)(t)) for t in range(600)]

    def rows(runs):
        return torch.stack([torch.cat([loss, g["w"][0], g["b"]]) for loss, g in runs])

    a, c = rows(dense), rows(cheap)
    error = (a.var(0) / len(a) + c.var(0) / len(c)).sqrt()
    assert torch.all((a.mean(0) - c.mean(0)).abs() < 5 * error)
    assert torch.all((a.std(0) / c.std(0)).log().abs() < 0.2)
    f = SurvivorObjective(30, 0.3, 60_000).outputs(params, *step_keys(3, 1)(0))[0][0]
    x = points @ params["w"][0]
    want = y * (torch.relu(x + b) - torch.relu(b - x)).sum(-1)
    q = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
    assert (f.quantile(q) - want.quantile(q)).abs().max() < 0.05


def test_a_replica_of_survivors_is_a_single_run():
    def run(seed, replicas):
        start = {"w": torch.full((replicas, 3), 0.1).double(), "b": torch.zeros(replicas).double()}
        optimizer = training.SGD(0.1, rates={"b": 0.1})
        return training.fit(SurvivorObjective(20, 0.3, 10), start, step_keys(seed, replicas), steps=20, optimizer=optimizer)

    many, one = run(4, 3), run(6, 1)
    torch.testing.assert_close(many.params["w"][2], one.params["w"][0], rtol=0, atol=1e-12)
    assert not torch.equal(many.params["w"][1], one.params["w"][0])


def test_reduced_sums_are_the_loss_and_its_derivatives():
    params = {"w": torch.tensor([[0.5, 0.2], [0.3, 0.0]]).double(), "b": torch.tensor([-0.1, 0.1]).double()}
    keys = step_keys(3, 2)(0)[0]
    objective = SurvivorObjective(30, 0.3, 40)
    out, pull, tilt, square = objective.outputs(params, keys)
    sums = np.empty((2, 5))
    own = (out - pull - params["b"][:, None] * tilt)[:, 0]
    kernels.reduce(own.numpy(), params["b"].numpy(), pull.numpy(), tilt.numpy(), square.numpy(), sums)
    slope = -torch.sigmoid(-out) / 40
    want = [torch.nn.functional.softplus(-out).mean(1), slope.sum(1), *((slope * part).sum(1) for part in (pull, tilt))]
    assert np.allclose(sums, torch.stack([*want, (slope**2 * square).sum(1)], 1), atol=1e-12)
    assert torch.allclose(objective(params, keys)[0], want[0])


def test_gaussians_from_keys():
    out = _gaussians(np.array([1, 2], dtype=np.uint64), 50_000)
    assert np.all(np.abs(out.mean(1)) < 0.02) and np.allclose(out.std(1), 1, atol=0.02)
    assert np.allclose((out**4).mean(1), 3, atol=0.2) and abs((out[0] * out[1]).mean()) < 0.02


def test_dead_units_have_no_gradient_and_a_loss_of_log_2():
    params = {"w": torch.tensor([[0.1, 0.0]]).double(), "b": torch.tensor([-2.0]).double()}
    loss, grads = SurvivorObjective(30, 0.3, 10)(params, step_keys(0, 1)(0)[0])
    assert loss.item() == pytest.approx(math.log(2)) and grads["w"].abs().max() == 0 == grads["b"].abs().max()
    start = {"w": torch.zeros(1, 2).double(), "b": torch.zeros(1).double()}
    sample = Points(*SignalInNoise(5, 2, 0.7).sample(9, torch.Generator().manual_seed(0), torch.float64))
    assert SoftThresholdObjective()(start, sample.x[None], sample.y[None])[0].item() == pytest.approx(math.log(2))


def test_survivors_refuse_nonsense():
    with pytest.raises(ValueError, match="sigma > 0"):
        SurvivorObjective(10, 0.0, 5)


@pytest.mark.parametrize("b", BIASES)
def test_gradient_by_hand_is_autograd_and_symmetries_hold(b):
    g = torch.Generator().manual_seed(1)
    sample = Points(*SignalInNoise(12, 5, 0.7).sample(20, g, torch.float64))
    net = SoftThresholdFilter(torch.randn(5, generator=g, dtype=torch.float64), b)
    torch.nn.functional.softplus(-sample.y * net(sample.x)).mean().backward()
    params = {"w": net.w.detach()[None], "b": net.b.detach()[None]}
    _, by_hand = SoftThresholdObjective()(params, sample.x[None], sample.y[None])
    assert torch.allclose(net.w.grad, by_hand["w"][0], atol=1e-12) and torch.allclose(net.b.grad, by_hand["b"][0], atol=1e-12)
    with torch.no_grad():
        f = net(sample.x)
        assert torch.allclose(net(-sample.x), -f, atol=1e-12)
        assert torch.allclose(net(sample.x[:, torch.randperm(13, generator=g)]), f, atol=1e-12)
        scaled = SoftThresholdFilter(3 * net.w, 3 * b)
        assert torch.allclose(scaled(sample.x), 3 * f, atol=1e-12)
        flipped = torch.relu(-(sample.x @ net.w) + b)
        assert torch.allclose((torch.relu(sample.x @ net.w + b) - flipped).sum(-1), f, atol=1e-12)


def test_kernel_features_are_the_gradient_in_the_filter_only_for_a_threshold():
    """For b > 0 the true gradient counts patches below the bias twice; the paper's feature counts them once."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(6, 9, 4, generator=g, dtype=torch.float64)
    w = torch.randn(4, generator=g, dtype=torch.float64)
    for b, same in ((-0.5, True), (0.5, False)):
        net = SoftThresholdFilter(w.clone(), b)
        rows = torch.stack([torch.autograd.grad(net(point), net.w)[0] for point in x])
        features = (((x @ w).abs() + b >= 0)[..., None] * x).sum(1)
        assert torch.allclose(rows, features, atol=1e-12) is same


def test_signal_in_noise():
    world = SignalInNoise(400, 3, theory.noise_scale(400))
    x, y = world.sample(50, torch.Generator().manual_seed(0))
    assert world.sigma == pytest.approx(math.log(400) / 20)
    signal = (x[..., 1:] == 0).all(-1)
    assert (signal.sum(1) == 1).all() and torch.equal(x[..., 0][signal], y)
    assert x[~signal].std().item() == pytest.approx(world.sigma, rel=0.02)
    assert torch.equal(x, world.sample(50, torch.Generator().manual_seed(0))[0])
    for wrong in ((0, 2, 1.0), (5, 0, 1.0), (5, 2, -1.0), (5, 2, math.inf)):
        with pytest.raises(ValueError, match="at least 1"):
            SignalInNoise(*wrong)


@pytest.mark.parametrize("m, dim", [(3, 21), (5, 4)])
def test_frozen_covariance_is_that_of_drawn_patches(m, dim):
    filters, bars = theory.random_filters(m, dim, 0), np.linspace(0.3, 1.4, m)
    e = np.random.default_rng(1).standard_normal((600_000, filters.shape[1]))
    feature = ((np.abs(e @ filters.T) >= bars)[:, :, None] * e[:, None, :]).reshape(len(e), -1)
    want = theory.frozen_covariance(filters, bars).reshape(filters.size, -1)
    assert np.abs(feature.T @ feature / len(e) - want).max() < 0.015


def test_best_weights_are_optimal_and_many_filters_agree_in_single_precision():
    filters, sigma = theory.random_filters(5, 21, 3), 21**-0.5
    bars = np.full(5, 0.4)
    weights, error = theory.best_weights(filters, bars, 1000, sigma)
    covariance = theory.frozen_covariance(filters, bars).reshape(filters.size, -1)
    passes = np.abs(filters[:, 0]) >= 0.4 * sigma

    def found(w):
        return norm.cdf(-w[passes, 0].sum() / (sigma * math.sqrt(1000 * w.ravel() @ covariance @ w.ravel())))

    assert np.isclose(found(weights), error, atol=1e-6)
    rng = np.random.default_rng(0)
    assert all(found(weights + 0.1 * weights.std() * rng.standard_normal(weights.shape)) > error for _ in range(20))
    many = theory.random_filters(101, 4, 5)
    single = theory.best_weights(many, np.full(101, 1.0), 1000, 0.2)[1]
    assert theory.frozen_covariance(many, np.full(101, 1.0)).dtype == np.float32
    double = theory.best_weights(many[:100], np.full(100, 1.0), 1000, 0.2)[1]
    assert abs(single - double) < 0.01


def test_measured_errors_are_those_of_points():
    filters, sigma, bars = theory.random_filters(3, 4, 2), 0.2, np.array([0.3, 0.5, 0.8])
    quick, formula = measure.drawn_error(filters, bars, 300, sigma, 0, 4000)
    weights = torch.from_numpy(theory.best_weights(filters, bars, 300, sigma)[0])
    sample = Points(*SignalInNoise(300, 4, sigma).sample(4000, torch.Generator().manual_seed(0), torch.float64))
    on = (sample.x @ torch.from_numpy(filters).T).abs() >= torch.from_numpy(bars) * sigma
    said = (on * (sample.x @ weights.T)).sum((1, 2))
    slow = (said * sample.y <= 0).double().mean().item()
    assert abs(quick - slow) < 0.04 and abs(formula - slow) < 0.04


def test_one_filter_is_the_special_case_and_blind_filters_guess():
    def general(overlap, t):
        return theory.best_weights(np.array([[overlap, math.sqrt(1 - overlap**2)]]), np.array([t]), 1000, 0.2)[1]

    for overlap, t in ((0.1, 0.2), (0.5, 1.9), (0.3, 0.0)):
        assert np.isclose(general(overlap, t), theory.one_filter_error(overlap, t, 1000, 0.2), atol=1e-9)
    assert general(0.1, 2.0) == theory.one_filter_error(0.1, 2.0, 1000, 0.2) == 0.5
    assert np.isclose(theory.one_filter_error(0.3, 0.0, 1000, 0.2), 1 - theory.linear_accuracy(1000, 0.2))


def test_lucky_filters_have_the_probability_of_their_threshold():
    g, sigma = np.random.default_rng(0), theory.noise_scale(1000)
    overlaps = g.standard_normal(400_000)
    overlaps = np.abs(overlaps / np.sqrt(overlaps**2 + g.chisquare(sigma**-2 - 1, 400_000)))
    found = (theory.one_filter_error(overlaps, 0.999 * overlaps / sigma, 1000, sigma) < 0.1).mean()
    assert np.isclose(found, theory.lucky_probability(1000), rtol=0.1) and 0.005 < found < 0.007
    assert theory.lucky_probability(4.5e10) > 0.001 > theory.lucky_probability(6e10)


def test_random_filters_have_the_right_overlaps_in_any_dimension():
    g = np.random.default_rng(3)
    small = [theory.random_filters(2, 30, g) for _ in range(4000)]
    overlaps = np.array([[w[0, 0], w[1, 0], w[0] @ w[1]] for w in small])
    assert np.allclose(overlaps.var(0), 1 / 30, rtol=0.1) and np.all(np.abs(overlaps.mean(0)) < 0.015)
    huge, many = theory.random_filters(2, 1e20, g), theory.random_filters(50, 6, g)
    assert 0 < max(np.abs(huge[:, 0]).max(), abs(huge[0] @ huge[1])) < 1e-8
    assert (
        many.shape == (50, 6) and np.allclose(np.linalg.norm(many, axis=1), 1) and np.allclose(np.linalg.norm(huge, axis=1), 1)
    )


def test_filters_start_in_random_directions():
    many, one = filter_start(4, 3, 10), filter_start(6, 1, 10)
    assert torch.equal(many["w"][2], one["w"][0]) and torch.allclose(many["w"].norm(dim=1), torch.full((3,), 1e-6).double())
    assert many["b"].abs().max() == 0 and not torch.equal(many["w"][0], many["w"][1])
