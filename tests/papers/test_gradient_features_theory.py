"""Closed forms of chapter 09 against autograd, enumeration, quadrature and sampling."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats as sps

from mvnb.data import GaussianMixture
from mvnb.models import TwoLayer
from mvnb.papers.gradient_features import theory
from mvnb.papers.gradient_features.data import BlockParity, LinearMargin, MultiIndex

D64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def neurons(m, d, seed=1, scale=1.0):
    g = generator(seed)
    return scale * torch.randn(m, d, generator=g, dtype=D64), torch.randn(m, generator=g, dtype=D64)


def cube(d):
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=d)), dtype=D64)


def mixture():
    return GaussianMixture(2 * torch.randn(4, 6, generator=generator(5)), [1, -1, -1, 1], [0.4, 0.1, 0.4, 0.1], [1, 2, 0.5, 1])


# --- Simplified gradients ---


def test_sample_gradient_is_the_first_step_of_a_network():
    """With zero output every slope of the hinge loss is -1: autograd's gradients are -a G and -E[y relu]."""
    x, y = mixture().sample(50, generator(), D64)
    w, b = neurons(7, 6)
    a = torch.randn(7, generator=generator(2), dtype=D64)
    net = TwoLayer(torch.cat([w, w]), -torch.cat([b, b]), torch.cat([a, -a]))
    assert net(x).abs().max() < 1e-12
    (1 - y * net(x)).clamp(min=0).mean().backward()
    g, response = theory.sample_gradient(w, b, x, y)
    assert torch.allclose(net.w.grad[:7], -a[:, None] * g, atol=1e-12)
    assert torch.allclose(net.w.grad[7:], a[:, None] * g, atol=1e-12)
    assert torch.allclose(net.a.grad[:7], -response, atol=1e-12)


def within_errors(exact, w, b, x, y, level=5.0):
    value = y[:, None] * x
    for i in range(len(w)):
        on = value * (x @ w[i] > b[i])[:, None]
        error = on.std(0) / len(x) ** 0.5
        assert ((on.mean(0) - exact[i]).abs() <= level * error + 1e-12).all()


def test_mixture_gradient():
    world = mixture()
    w, b = neurons(5, 6)
    g, response = theory.mixture_gradient(w, b, world)
    x, y = world.sample(200_000, generator(), D64)
    within_errors(g, w, b, x, y)
    sampled = theory.sample_gradient(w, b, x, y)[1]
    assert torch.allclose(sampled, response, atol=0.03)
    # G is the gradient of the response
    leaf = w.clone().requires_grad_()
    theory.mixture_gradient(leaf, b, world)[1].sum().backward()
    assert torch.allclose(leaf.grad, g, atol=1e-12)


def test_identities_of_the_simplified_gradient():
    world = mixture()
    w, b = neurons(9, 6)
    g, _ = theory.mixture_gradient(w, b, world)
    mean = (world.masses * world.labels) @ world.means
    assert torch.allclose(theory.mixture_gradient(-w, -b, world)[0] + g, mean.expand_as(g), atol=1e-12)
    assert torch.allclose(theory.mixture_gradient(3 * w, 3 * b, world)[0], g, atol=1e-12)
    always = theory.mixture_gradient(w, torch.full_like(b, -1e3), world)[0]
    assert torch.allclose(always, mean.expand_as(g), atol=1e-9)
    x, _ = world.sample(20_000, generator(), D64)
    assert g.norm(dim=1).max() <= x.norm(dim=1).mean()


def test_linear_gradient():
    world = LinearMargin(5, 0.5)
    w, b = neurons(5, 5)
    x, y = world.sample(200_000, generator(), D64)
    within_errors(theory.linear_gradient(w, b, 0.5), w, b, x, y)
    always = theory.linear_gradient(w, torch.full_like(b, -100.0), 0.5)
    assert torch.allclose(always, torch.eye(5, dtype=D64)[:1].expand(5, 5), atol=1e-12)


def test_quadratic_gradient():
    world = MultiIndex(4)
    w, _ = neurons(5, 4)
    x, y = world.sample(200_000, generator(), D64)
    h = torch.diag(torch.tensor([1.0, -1.0, 0, 0], dtype=D64))
    within_errors(theory.quadratic_gradient(w, h), w, torch.zeros(5, dtype=D64), x, y)


@pytest.mark.parametrize("d", [3, 5, 9])
def test_majority_coefficients_by_enumeration(d):
    x = cube(d)
    majority = x.sum(1).sign()
    total = 0.0
    for k in range(d + 1):
        exact = (majority * x[:, :k].prod(1)).mean().item()
        assert theory.majority_coefficient(k, d) == pytest.approx(exact, abs=1e-14)
        total += math.comb(d, k) * exact**2
    assert total == pytest.approx(1)  # Parseval
    for k in range(1, d - 2, 2):
        ratio = theory.majority_coefficient(k + 2, d) / theory.majority_coefficient(k, d)
        assert ratio == pytest.approx(-k / (d - k - 1))


@pytest.mark.parametrize("k, d", [(2, 7), (4, 11), (2, 9)])
def test_uniform_parity_gradient_by_enumeration(k, d):
    x = cube(d)
    w = x[torch.randperm(len(x), generator=generator())[:20]]
    b = 1.8 * torch.rand(20, generator=generator(1), dtype=D64) - 0.9
    g, _ = theory.sample_gradient(w, b, x, x[:, :k].prod(1))
    assert torch.allclose(theory.uniform_parity_gradient(w, k), g, atol=1e-12)


def test_parity_cosine():
    k, d = 4, 15
    w = torch.ones(1, d, dtype=D64)
    g = theory.uniform_parity_gradient(w, k)
    cosine = (g[0, :k].sum() / math.sqrt(k) / g.norm()).abs().item()
    assert theory.parity_cosine(k, d) == pytest.approx(cosine)
    assert cosine == pytest.approx((1 + (k - 1) ** 2 / (k * (d - k))) ** -0.5)
    world = BlockParity(d, k, 1, 0.0, 0.5)
    x, y = world.sample(200_000, generator(), D64)
    w = torch.cat([torch.ones(100, k), torch.randn(100, d - k, generator=generator()).sign()], 1).double()
    g, _ = theory.sample_gradient(w, torch.zeros(100, dtype=D64), x, y)
    seen = ((g @ world.features[0]).abs() / g.norm(dim=1)).mean().item()
    assert theory.parity_cosine(k, d, 200_000) == pytest.approx(seen, abs=0.03)


# --- Small networks ---


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8])
def test_parity_bumps_are_the_product_of_bits(k):
    x = cube(k).numpy()
    bumps = theory.parity_bumps(k)
    assert np.allclose(bumps(x.sum(1) / math.sqrt(k)), x.prod(1), atol=1e-10)
    assert len(bumps.head) == 3 * (k + 1) and np.allclose(np.linalg.norm(bumps.head), math.sqrt(6 * k * (k + 1)))


@pytest.mark.parametrize("k", [1, 3, 5, 9])
def test_merged_parity_network_is_the_same_function(k):
    z = np.linspace(-k - 1, k + 1, 1001)
    network = theory.parity_network(k)
    assert np.allclose(network(z), theory.parity_bumps(k)(z), atol=1e-10)
    assert (network.bias >= 0).all() and len(network.bias) == k + 5
    assert network(0.0) == pytest.approx(0)
    with pytest.raises(ValueError):
        theory.parity_network(k + 1)


def test_parity_network_solves_structured_parities():
    world = BlockParity(20, 3, 3, 0.1, 0.1)
    x, y = world.sample(2000, generator(), D64)
    z = (x @ world.features.T).numpy()
    assert (y.numpy() * theory.parity_network(3)(z).sum(1)).min() >= 1 - 1e-10


# --- Guarantees ---


def test_width_brings_the_excess_down_to_epsilon():
    m = theory.needed_width(0.1, 0.02, n_neurons=4, head=0.5, x_norm=10.0, bias=3.0, g_norm=2.0)
    assert 2 * 4 * 0.5 * 10 * (m * 0.02) ** -0.25 * np.sqrt(3 / 2) == pytest.approx(0.1)


def test_drift_bound_solves_its_recursion():
    eta, x_norm, head, pull = 0.01, 3.0, 0.4, 2.0
    h = theory.drift_bound(np.arange(1, 40), eta, x_norm, head, pull)
    assert h[0] == pytest.approx(head) and h[1] == pytest.approx(2 * head + eta * pull)
    assert np.allclose(h[2:], 2 * h[1:-1] - (1 - (eta * x_norm) ** 2) * h[:-2] + eta * pull)

    rho, heads, moves = eta * x_norm, [head], [0.0]  # the bounds of both layers, step by step
    for _ in range(38):
        heads, moves = [*heads, heads[-1] + eta * pull + rho * moves[-1]], [*moves, moves[-1] + rho * heads[-1]]
    assert np.allclose(np.cumsum(heads), h) and np.allclose(moves[1:], rho * h[:-1])


def test_online_convex_optimisation():
    """Theorem B.7 on random hinge sequences, for random comparisons."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        steps, d, eta = 20, 4, rng.uniform(0.01, 1)
        x, theta, best = rng.normal(size=(steps, d)), rng.normal(size=d), rng.normal(size=d) * 3
        start, values, slopes = theta.copy(), [], []
        for row in x:
            values.append(max(0, 1 - row @ theta) - max(0, 1 - row @ best))
            slope = -row * (row @ theta < 1)
            slopes.append(np.linalg.norm(slope))
            theta = theta - eta * slope
        bound = best @ best / (2 * eta * steps) + np.linalg.norm(start) * np.mean(slopes) + eta * np.mean(np.square(slopes))
        assert np.mean(values) <= bound + 1e-12


def test_fixed_features_share_what_parities_there_are():
    """Sum over sets of squared correlations with one feature is at most 1."""
    d, k = 9, 3
    x = cube(d)
    sets = list(itertools.combinations(range(d), k))
    characters = torch.stack([x[:, list(s)].prod(1) for s in sets])
    w, b = neurons(6, d)
    psi = (x @ w.T - b).clamp(min=0)
    psi = psi / psi.abs().amax(0)
    share = (characters @ psi / len(x)).square()  # (set, feature)
    assert (share.sum(0) <= 1 + 1e-12).all()
    hardest = share.sum(1).min()
    assert hardest <= 6 / len(sets)


# --- Exclusive-or ---


def test_xor_gradient_is_the_mixture_gradient():
    world = GaussianMixture.xor(7, 3.0)
    w, _ = neurons(20, 7, scale=0.4)
    full, _ = theory.mixture_gradient(w, torch.full((20,), 0.7, dtype=D64), world)
    plane, length = theory.xor_gradient(w[:, :2], w.norm(dim=1), 0.7, 3.0)
    assert torch.allclose(plane, full[:, :2], atol=1e-12) and torch.allclose(length, full.norm(dim=1), atol=1e-12)


@pytest.mark.parametrize("kappa, ratio", [(1.5, 1.0), (0.0, 0.5), (1.0, 0.01)])
def test_xor_hit_probability(kappa, ratio):
    d, m, gamma = 200_000, 40_000, 0.05
    g = generator()
    s = torch.randn(m, 2, generator=g, dtype=D64)
    norm = ratio * math.sqrt(d)
    plane, length = theory.xor_gradient(s, torch.full((m,), math.sqrt(d), dtype=D64), kappa * norm, norm)
    seen = ((plane[:, 0].abs() / length) > 1 - gamma).double().mean().item()
    p = theory.xor_hit_probability(gamma, kappa, ratio)
    assert abs(seen - p) <= 5 * math.sqrt(p * (1 - p) / m)


def test_xor_hit_probability_tends_to_its_limit():
    assert theory.xor_hit_probability(0.05, 1.0, 1e-3) == pytest.approx(2 / math.pi * math.acos(0.95), rel=1e-3)


def test_xor_sure_probability():
    d, m = 100, 400_000
    g = torch.randn(m, 2, generator=generator(), dtype=D64)
    high = 1.2 * math.sqrt(math.log(math.log(d)))
    seen = ((g[:, 0] >= high) & (g[:, 1].abs() <= math.sqrt(2))).double().mean().item()
    p = theory.xor_sure_probability(d)
    assert p == pytest.approx(0.0582, abs=1e-4) and abs(seen - p) <= 5 * math.sqrt(p / m)


def test_xor_bayes_error():
    world = GaussianMixture.xor(2, 2.0)
    x, y = world.sample(200_000, generator(), D64)
    # nearest mean
    wrong = (world.labels[torch.cdist(x, world.means).argmin(1)] != y).double().mean()
    assert theory.xor_bayes_error(2.0) == pytest.approx(wrong.item(), abs=0.004)


@pytest.mark.parametrize("n, threshold", [(4096, 0.0), (256, 1.0), (1024, 1.0)])
def test_xor_alignment(n, threshold):
    d, snr = 128, 3.0
    world = GaussianMixture.xor(d, snr)
    w = torch.randn(200, d, generator=generator(1)) / math.sqrt(d)
    b = threshold * torch.randn(200, generator=generator(2)).sign()
    seen = []
    for seed in range(4):
        g, _ = theory.sample_gradient(w, b, *world.sample(n, generator(seed)))
        seen.append((g[:, :2].square().sum() / g.square().sum()).item())
    assert theory.xor_alignment(n, d, snr, threshold) == pytest.approx(np.mean(seen), abs=0.06)


def test_relu_tangent_kernel():
    d, m = 5, 400_000
    x = torch.randn(6, d, generator=generator(), dtype=D64)
    w = torch.randn(m, d, generator=generator(1), dtype=D64)
    z = x @ w.T
    on = (z > 0).double()
    kernel = (z.clamp(min=0) @ z.clamp(min=0).T + (on @ on.T) * (x @ x.T)) / m * 2 / d
    assert torch.allclose(theory.relu_tangent_kernel(x, x), kernel, atol=0.02)


def test_tail_bound_of_the_mixture_proof():
    z = np.linspace(-8, 30, 4001)
    assert (sps.norm.pdf(z) < 2 * sps.norm.sf(z) ** 0.9).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.majority_coefficient(3, 8),
        lambda: theory.majority_coefficient(9, 7),
        lambda: theory.uniform_parity_gradient(torch.ones(1, 7), 3),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(ValueError):
        call()
