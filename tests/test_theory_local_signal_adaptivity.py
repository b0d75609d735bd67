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

from mvnb import probes, training
from mvnb.data import (
    SignalInNoise,
    distractor_background,
    draw_corners,
    gaussian_background,
    paste,
    resize,
    texture_background,
)
from mvnb.models import SoftThresholdFilter, SoftThresholdObjective, SurvivorObjective, WindowNet, step_keys
from mvnb.theory import local_signal_adaptivity as theory

BIASES = (-0.4, -0.05, 0.0, 0.1)


@given(st.floats(-5, 5), st.floats(-2, 2))
def test_soft_threshold_is_the_difference_of_two_relus(x, b):
    assert math.isclose(theory.soft_threshold(x, b), max(x + b, 0) - max(b - x, 0), abs_tol=1e-12)


@pytest.mark.parametrize("b", BIASES)
@pytest.mark.parametrize("scale", [0.1, 0.7])
def test_moments_and_characteristic_function_are_integrals(b, scale):
    def mean(h):
        cuts = sorted({-9 * scale, -abs(b), abs(b), 9 * scale, 0.0})
        return sum(quad(lambda z: h(z) * norm.pdf(z / scale) / scale, *pair, limit=200)[0] for pair in pairwise(cuts))

    assert np.isclose(theory.response_size(scale, b), mean(lambda z: max(z + b, 0) + max(b - z, 0)), atol=1e-8)
    if b <= 0:
        assert np.isclose(theory.response_variance(scale, b), mean(lambda z: theory.soft_threshold(z, b) ** 2), atol=1e-8)
    for u in (0.0, 0.6, 3.0, 11.0):
        value = mean(lambda z, u=u: math.cos(u * theory.soft_threshold(z, b)))
        assert np.isclose(theory.characteristic_function(u, scale, b), value, atol=1e-7)
        sine = mean(lambda z, u=u: (z >= -b) * z * math.sin(u * theory.soft_threshold(z, b)))
        assert np.isclose(theory._weighted_sine(u, scale, b), sine, atol=1e-7)
        tail = mean(lambda z, u=u: (z >= abs(b)) * math.sin(u * theory.soft_threshold(z, b)))
        assert np.isclose(theory._tail_sine(u, scale, b), tail, atol=1e-7)


def test_variance_needs_a_threshold():
    with pytest.raises(ValueError, match="must not be positive"):
        theory.response_variance(1.0, 0.1)


def test_gaussian_facts():
    x = np.linspace(0, 8, 60)
    low, high = theory.mills_bounds(x)
    ratio = norm.sf(x) / norm.pdf(x)
    assert np.all(low <= ratio) and np.all(ratio <= high)
    z = np.random.default_rng(0).standard_normal(400_000) * 0.7
    z = z[z >= 0.5]
    assert np.allclose(theory.tail_moments(0.7, -0.5), (z.mean(), (z**2).mean(), z.var()), rtol=0.02)
    maxima = np.random.default_rng(1).standard_normal((4000, 50)).max(1)
    assert np.mean(maxima >= 2 * math.sqrt(math.log(50))) <= 1 / 50


def test_mean_sigmoid_without_noise_patches_and_by_quadrature():
    assert np.isclose(theory.mean_sigmoid(0.7, 0, 1.0, -0.1), 1 / (1 + math.exp(-0.7)))
    value = quad(lambda z: norm.pdf(z) / (1 + math.exp(-0.7 - 1.3 * z)), -9, 9)[0]
    assert np.isclose(theory.mean_sigmoid(0.7, 1, 1.3, 0.0), value, atol=1e-9)


@pytest.mark.parametrize("c, v, b", [(0.4, 0.1, -0.1), (0.4, 0.1, 0.0), (0.3, 0.0, 0.1), (-0.2, 0.2, -0.05)])
def test_population_gradient_is_the_mean_of_the_dense_one(c, v, b):
    world = SignalInNoise(40, 3, 0.3)
    params = {"w": torch.tensor([[c, v, 0.0]]).double(), "b": torch.tensor([b]).double()}
    parts = world.sample(40_000, torch.Generator().manual_seed(0), torch.float64).split(400)
    found = [SoftThresholdObjective()(params, p.x[None], p.y[None])[1] for p in parts]
    found = torch.stack([torch.cat([g["w"][0], g["b"]]) for g in found])
    exact = theory.population_gradient(c, b, 40, 0.3, v)
    want = torch.tensor([exact.c, exact.v, 0.0, exact.b])
    error = found.std(0) / len(found) ** 0.5
    assert torch.all((found.mean(0) - want).abs() < 5 * error)  # the component outside the span is 0
    assert exact.c_noise * c >= 0 and exact.v >= 0 and exact.b_noise >= 0
    assert abs(exact.c_noise) <= theory.noise_pull_bound(c, b, 40, 0.3)


def test_gradient_at_zero_and_linear_accuracy():
    start = theory.population_gradient(1e-9, 0.0, 1000, theory.noise_scale(1000))
    assert np.allclose([start.c, start.b], -0.5, atol=1e-5)
    assert np.isclose(theory.accuracy(1.0, 0.0, 1000, theory.noise_scale(1000)), norm.cdf(1 / math.log(1000)), atol=1e-6)
    assert np.isclose(theory.linear_accuracy(1000), norm.cdf(1 / math.log(1000)))


def test_population_path_is_gradient_descent():
    path = theory.population_path(3, 50, 0.3, 0.5, 0.1, c0=0.01, v0=0.02)
    g = theory.population_gradient(*path[[0, 2], 1], 50, 0.3, path[1, 1])
    assert np.allclose(path[:, 2], path[:, 1] - 0.5 * np.array([g.c, g.v, 0.1 * g.b]))
    assert path.shape == (3, 4)


def test_accuracy_is_homogeneous_and_strict():
    assert np.isclose(theory.accuracy(1, -0.4, 200, 0.2, 0.3), theory.accuracy(7, -2.8, 200, 0.2, 2.1), atol=1e-9)
    assert theory.accuracy(0.1, -1.0, 200, 0.2) < 1e-6  # all units dead: no point is right
    alpha = 2 * math.sqrt(math.log(200)) * 1.001  # Lemma B.5
    assert theory.accuracy(1.0, -alpha * 0.1, 200, 0.1) > 1 - 2 / 200


@pytest.mark.parametrize("b", BIASES)
def test_survivors_have_the_law_of_the_dense_network(b):
    world = SignalInNoise(30, 4, 0.3)
    params = {"w": torch.tensor([[0.5, 0.2, -0.1, 0.0]]).double(), "b": torch.tensor([b]).double()}
    parts = world.sample(60_000, torch.Generator().manual_seed(0), torch.float64).split(100)
    dense = [SoftThresholdObjective()(params, p.x[None], p.y[None]) for p in parts]
    cheap = [SurvivorObjective(30, 0.3, 100)(params, *step_keys(3, 1)(t)) for t in range(600)]

    def rows(runs):
        return torch.stack([torch.cat([loss, g["w"][0], g["b"]]) for loss, g in runs])

    a, c = rows(dense), rows(cheap)
    error = (a.var(0) / len(a) + c.var(0) / len(c)).sqrt()
    assert torch.all((a.mean(0) - c.mean(0)).abs() < 5 * error)
    assert torch.all((a.std(0) / c.std(0)).log().abs() < 0.2)
    f = SurvivorObjective(30, 0.3, 60_000).outputs(params, *step_keys(3, 1)(0))[0][0]
    x = torch.cat([p.x @ params["w"][0] for p in parts])
    y = torch.cat([p.y for p in parts])
    want = y * (torch.relu(x + b) - torch.relu(b - x)).sum(-1)
    q = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
    assert (f.quantile(q) - want.quantile(q)).abs().max() < 0.05


def test_a_replica_of_survivors_is_a_single_run():
    def run(seed, replicas):
        start = {"w": torch.full((replicas, 3), 0.1).double(), "b": torch.zeros(replicas).double()}
        optimizer = training.GD(0.1, rates={"b": 0.1})
        return training.fit(SurvivorObjective(20, 0.3, 10), start, step_keys(seed, replicas), steps=20, optimizer=optimizer)

    many, one = run(4, 3), run(6, 1)
    assert torch.equal(many.params["w"][2], one.params["w"][0])
    assert not torch.equal(many.params["w"][1], one.params["w"][0])


def test_survivors_refuse_nonsense():
    with pytest.raises(ValueError, match="sigma > 0"):
        SurvivorObjective(10, 0.0, 5)


@pytest.mark.parametrize("b", BIASES)
def test_gradient_by_hand_is_autograd_and_symmetries_hold(b):
    g = torch.Generator().manual_seed(1)
    sample = SignalInNoise(12, 5).sample(20, g, torch.float64)
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
    world = SignalInNoise(400, 3)
    sample = world.sample(50, torch.Generator().manual_seed(0))
    assert world.sigma == pytest.approx(math.log(400) / 20)
    rows = torch.arange(50)
    assert torch.equal(sample.x[rows, sample.position, 0], sample.y)
    assert sample.x[rows, sample.position, 1:].abs().max() == 0
    noise = sample.x.clone()
    noise[rows, sample.position] = float("nan")
    assert noise[~noise.isnan()].std().item() == pytest.approx(world.sigma, rel=0.02)
    assert [len(part.y) for part in sample.split(20)] == [20, 20, 10]
    assert torch.equal(sample.x, world.sample(50, torch.Generator().manual_seed(0)).x)
    for wrong in ({"n_noise": 0}, {"n_noise": 5, "dim": 0}, {"n_noise": 5, "sigma": -1.0}):
        with pytest.raises(ValueError):
            SignalInNoise(**wrong)


def test_frozen_filters_closed_form_against_simulation():
    gram = theory.random_gram(3, 21, np.random.default_rng(0))
    bars = np.array([0.3, 0.9, 1.4])
    factor = np.linalg.cholesky(gram)
    e = np.random.default_rng(1).standard_normal((600_000, 4))
    feature = ((np.abs(e @ factor[1:].T) >= bars)[:, :, None] * e[:, None, :]).reshape(len(e), -1)
    want = theory.frozen_statistics(gram, bars, 1)[1].reshape(12, 12)
    assert np.abs(feature.T @ feature / len(e) - want).max() < 0.015
    assert np.allclose(gram.diagonal(), 1) and np.allclose(factor[0], [1, 0, 0, 0])


def test_one_filter_is_the_special_case_and_blind_filters_guess():
    for overlap, t in ((0.1, 0.2), (0.5, 1.9), (0.3, 0.0)):
        general = theory.frozen_error([[1, overlap], [overlap, 1]], [t], 1000, 0.2)
        assert np.isclose(general, theory.one_filter_error(overlap, t, 1000, 0.2), atol=1e-9)
    assert theory.frozen_error([[1, 0.1], [0.1, 1]], [2.0], 1000, 0.2) == 0.5
    assert theory.one_filter_error(0.1, 2.0, 1000, 0.2) == 0.5
    assert np.isclose(theory.one_filter_error(0.3, 0.0, 1000, 0.2), 1 - theory.linear_accuracy(1000, 0.2))


def test_random_gram_has_the_right_overlaps_in_any_dimension():
    g = np.random.default_rng(3)
    small = np.array([theory.random_gram(2, 30, g)[np.triu_indices(3, 1)] for _ in range(4000)])
    assert np.allclose(small.var(0), 1 / 30, rtol=0.1) and np.all(np.abs(small.mean(0)) < 0.015)
    huge = theory.random_gram(2, 1e20, g)
    assert 0 < np.abs(huge[np.triu_indices(3, 1)]).max() < 1e-8
    with pytest.raises(ValueError, match="exceed"):
        theory.random_gram(4, 4, g)


@given(st.integers(1, 60), st.floats(0.1, 5))
def test_small_ball_bound_holds_for_unit_signs(n, half_width):
    k = np.arange(n + 1)
    log_p = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in k]
    inside = np.abs(2 * k - n) < half_width  # an open interval around 0
    assert np.exp(log_p)[inside].sum() <= theory.small_ball_bound(n, half_width) + 1e-9


def test_pasting():
    g = torch.Generator().manual_seed(0)
    images, behind = torch.rand(7, 2, 8, 8, generator=g), gaussian_background(7, 2, 16, g)
    for placement, allowed in (("anywhere", range(9)), ("corner", (0, 8)), ("fixed", (8,))):
        corner = draw_corners(7, 8, placement, g)
        assert set(corner.flatten().tolist()) <= set(allowed)
        out = paste(images, behind, corner)
        for i, (top, left) in enumerate(corner.tolist()):
            block = out[i, :, top : top + 8, left : left + 8]
            assert torch.equal(block, images[i])
            rest = torch.ones(16, 16, dtype=torch.bool)
            rest[top : top + 8, left : left + 8] = False
            assert torch.equal(out[i, :, rest], behind[i, :, rest])
    assert paste(images, 0 * behind, corner).sum() == pytest.approx(images.sum().item(), rel=1e-5)
    with pytest.raises(ValueError, match="offsets"):
        paste(images, behind, torch.full((7, 2), 9))
    with pytest.raises(ValueError, match="placement"):
        draw_corners(3, 8, "middle", g)
    with pytest.raises(ValueError, match="larger"):
        draw_corners(3, -1, "corner", g)


def test_backgrounds():
    g = torch.Generator().manual_seed(0)
    texture = texture_background(40, 1, 16, g)
    assert texture.amin() == 0 and texture.amax() == 1
    neighbours = torch.corrcoef(torch.stack([texture[..., :-1].flatten(), texture[..., 1:].flatten()]))[0, 1]
    assert neighbours > 0.5  # rough at no scale
    pool = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 4, 4)
    grid = distractor_background(20, pool, g)
    assert grid.shape == (20, 1, 8, 8)
    assert all(len(block.unique()) == 1 for block in (grid[0, 0, :4, :4], grid[0, 0, :4, 4:], grid[0, 0, 4:, :4]))
    assert resize(torch.rand(2, 3, 28, 28), 8).shape == (2, 3, 8, 8)
    assert torch.equal(resize(pool, 4), pool)


def test_window_net_is_a_convolution():
    torch.manual_seed(0)
    net = WindowNet(2, 3, (4, 5))
    x = torch.randn(6, 2, 16, 16)
    first = net.first.weight.view(4, 4, 4, 2).permute(0, 3, 1, 2)  # filter, (row, column, channel) to channel first
    second = net.second.weight.view(5, 3, 3, 4).permute(0, 3, 1, 2)
    h = torch.relu(torch.nn.functional.conv2d(x, first, net.first.bias, 2))
    h2 = torch.relu(torch.nn.functional.conv2d(h, second, net.second.bias))
    assert torch.allclose(net.hidden(x)[0].permute(0, 3, 1, 2), h, atol=1e-5)
    assert torch.allclose(net.hidden(x)[1].permute(0, 3, 1, 2), h2, atol=1e-5)
    assert net(x).shape == (6, 3)


def test_linearised_network_and_ridge():
    torch.manual_seed(0)
    net = WindowNet(1, 1, (2, 3)).double()
    center = {k: p.detach() for k, p in net.named_parameters()}
    x = torch.randn(5, 1, 16, 16, dtype=torch.float64)
    line = probes.linearised(net, center)
    assert torch.allclose(line(center, x), net(x))
    other = {k: p + torch.randn_like(p) for k, p in center.items()}
    middle = {k: 0.5 * (center[k] + other[k]) for k in center}
    assert torch.allclose(2 * line(middle, x), line(center, x) + line(other, x))
    jacobian = probes.parameter_jacobian(net, center, x, chunk=2)
    step = torch.cat([(other[k] - center[k]).flatten() for k in center])
    assert torch.allclose((line(other, x) - net(x))[:, 0], jacobian @ step)
    tiny = {k: center[k] + 1e-6 * (other[k] - center[k]) for k in center}
    near = torch.func.functional_call(net, tiny, (x,)) - net(x)
    assert torch.allclose(near[:, 0], 1e-6 * jacobian @ step, rtol=1e-3, atol=1e-9)
    with pytest.raises(ValueError, match="one output"):
        probes.parameter_jacobian(WindowNet(1, 2, (2, 3)), dict(WindowNet(1, 2, (2, 3)).named_parameters()), x.float())


def test_ridge_forms_agree():
    g = torch.Generator().manual_seed(0)
    for n, size in ((8, 20), (20, 8)):
        x, y = torch.randn(n, size, generator=g).double(), torch.randn(n, 2, generator=g).double()
        weight = probes.ridge_fit(x, y, 0.3)
        strength = 0.3 * x.square().sum() / n
        assert torch.allclose(x.T @ (x @ weight - y) + strength * weight, torch.zeros_like(weight), atol=1e-9)
    with pytest.raises(ValueError, match="positive"):
        probes.ridge_fit(x, y, 0.0)


def test_active_fraction():
    assert probes.active_fraction(torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 1.0]]])).tolist() == [0.5, 0.25]
