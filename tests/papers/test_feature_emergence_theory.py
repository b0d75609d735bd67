"""Closed forms of chapter 08 against quadrature, automatic differentiation, enumeration and simulation."""

import itertools

import numpy as np
import pytest
import torch
from reference import linearised
from scipy import integrate, stats

from mvnb import training
from mvnb.models import TwoLayer, TwoLayerObjective
from mvnb.papers.feature_emergence import theory
from mvnb.papers.feature_emergence.data import DictionaryData
from mvnb.papers.feature_emergence.tangent import tangent_features, tangent_objective, tangent_outputs

WORLD = DictionaryData.parity(20, 5)
GAMMA = WORLD.correlations[0]


def start(n_pairs=6, replicas=2, world=WORLD):
    std = theory.output_std(GAMMA, world.scale, world.n_relevant)
    return theory.paired_start(n_pairs, world.n_patterns, world.n_relevant, std, training.generators(0, replicas))


def points(n, replicas=2, world=WORLD, seed=10):
    return training.stack([world.sample(n, g, torch.float64) for g in training.generators(seed, replicas)])


@pytest.mark.parametrize(("z", "noise", "value"), [(0.03, 0.09, 0.052881), (1.2, 0.3, 0.954666)])
def test_smoothed_clip_by_quadrature(z, noise, value):
    exact, _ = integrate.quad(
        lambda u: np.clip(u, 0, 1) * stats.norm.pdf(u, z, noise), z - 9 * noise, z + 9 * noise, points=(0, 1)
    )
    one = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    smooth = theory.smoothed_clip(one, noise)[0]
    assert smooth.item() == pytest.approx(exact, abs=1e-9) and exact == pytest.approx(value, abs=1e-6)
    smooth.backward()
    assert theory.smoothed_clip(one.detach(), noise)[1].item() == pytest.approx(one.grad.item(), abs=1e-12)
    sharp = theory.smoothed_clip(one.detach(), 1e-4)[0].item()
    assert sharp == pytest.approx(theory.smoothed_clip(one.detach(), 0)[0].item(), abs=1e-9)


def test_the_network_starts_at_zero():
    params, (x, y) = start(), points(50)
    z = torch.baddbmm(params["b"][:, None], x, params["w"].mT)
    assert (theory.smoothed_clip(z, 0.1)[0] @ params["a"][..., None]).abs().max() < 1e-12
    assert (theory.hinge_gradient(params, x, y)[0] - 1).abs().max() < 1e-12


@pytest.mark.parametrize("noise", [0.0, 0.09])
def test_gradient_against_autograd(noise):
    x, y = points(300)
    params = start()
    params["a"] = params["a"] + 0.3 * torch.randn(params["a"].shape, generator=torch.Generator().manual_seed(1)).double()
    weight = 1 + 0.5 * y
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    z = torch.baddbmm(leaves["b"][:, None], x, leaves["w"].mT)
    margin = y * (theory.smoothed_clip(z, noise)[0] @ leaves["a"][..., None])[..., 0]
    loss = (weight * (1 - margin).clamp(min=0)).mean(1)
    by_autograd = torch.autograd.grad(loss.sum(), list(leaves.values()))
    losses, grads = theory.hinge_gradient(params, x, y, noise, weight, chunk=70)
    torch.testing.assert_close(losses, loss.detach(), rtol=1e-10, atol=1e-12)
    for (name, mine), other in zip(grads.items(), by_autograd):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-12, msg=name)


def test_without_noise_it_is_the_objective_of_the_package():
    params, (x, y) = start(), points(100)
    losses, grads = theory.hinge_gradient(params, x, y)
    same_losses, same = TwoLayerObjective("hinge", truncated=True)(params, x, y)
    torch.testing.assert_close(losses, same_losses)
    for k, g in grads.items():
        torch.testing.assert_close(g, same[k], rtol=1e-9, atol=1e-12)


def test_pairs_stay_mirrored_and_the_second_step_is_the_hebbian_mean():
    params, (x, y) = start(), points(2000)
    _, grads = theory.hinge_gradient(params, x, y, 0.09)
    for k, sign in (("w", -1), ("b", -1), ("a", 1)):
        first, second = grads[k].chunk(2, 1)
        torch.testing.assert_close(second, sign * first, rtol=1e-9, atol=1e-14)
    eta = theory.first_step_size(GAMMA, WORLD.scale, 5, 300)
    once, twice = theory.first_steps(params, x, y, eta, 0.09)
    hebbian = (y[..., None] * x).mean(1)  # (R, D)
    scale = once["a"] * theory.smoothed_clip(once["b"], 0.09)[1]
    expected = scale[..., None] * hebbian[:, None]
    torch.testing.assert_close(twice["w"], expected, rtol=1e-5, atol=1e-8)
    cosine = torch.cosine_similarity(twice["w"], hebbian[:, None], dim=-1).abs()
    assert (1 - cosine).max() < 1e-6


def test_decay_and_direct_form_agree_in_float64_and_forget_is_a_share():
    params, (x, y) = start(), points(500)
    eta = 1e-3
    once, _ = theory.first_steps(params, x, y, eta, 0.09)
    _, grads = theory.hinge_gradient(params, x, y, 0.09)
    decayed = params["w"] - eta * (grads["w"] + 2 * (1 / (2 * eta)) * params["w"])
    torch.testing.assert_close(decayed, once["w"], rtol=1e-9, atol=1e-14)
    half, _ = theory.first_steps(params, x, y, eta, 0.09, forget=0.5)
    torch.testing.assert_close(half["w"], params["w"] / 2 - eta * grads["w"])


def test_a_rotation_changes_nothing():
    params, (x, y) = start(), points(400)
    q, _ = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    turned = {**params, "w": params["w"] @ q}
    plain, other = theory.first_steps(params, x, y, 1e-3, 0.09)[1], theory.first_steps(turned, x @ q, y, 1e-3, 0.09)[1]
    torch.testing.assert_close(plain["w"] @ q, other["w"], rtol=1e-8, atol=1e-12)


def test_moments_by_enumeration():
    world = DictionaryData.parity(8, 3)
    hidden = torch.tensor(list(itertools.product([0.0, 1.0], repeat=8)), dtype=torch.float64)
    count = hidden[:, :3].sum(1).long()
    q, w, subsets = world.p_other, world.weights, torch.tensor([1.0, 3.0, 3.0, 1.0], dtype=torch.float64)
    other = hidden[:, 3:].sum(1)
    chance = sum(torch.tensor(w[c])[count] / subsets[count] * q[c] ** other * (1 - q[c]) ** (5 - other) for c in range(2))
    y, phi = torch.tensor(world.labels)[count].double(), world._normalise(hidden.clone())
    hebbian = (chance * y) @ phi
    torch.testing.assert_close(hebbian[:3], torch.full((3,), world.correlations[0] / world.scale, dtype=torch.float64))
    assert hebbian[3:].abs().max() < 1e-14
    # E|phi_j| = 2 Var(phi_j) scale
    variance = 0.25 / world.scale**2
    assert (chance @ phi.abs()[:, 5]).item() == pytest.approx(2 * variance * world.scale)


def test_noise_to_signal_against_simulation():
    world, n, noise = DictionaryData.parity(60, 5), 4000, 5**-1.5
    std = theory.output_std(0.25, world.scale, 5)
    params = theory.paired_start(30, 60, 5, std, training.generators(0, 8))
    x, y = points(n, 8, world)
    steps = theory.first_steps(params, x, y, 1e-9, noise)
    ratios = [(p["w"][..., 5:].norm(dim=-1) / p["w"][..., :5].norm(dim=-1)).median(1).values.mean().item() for p in steps]
    gate = theory.gate_moments(0.0, 0.04 * 0.9, noise)
    assert ratios[0] == pytest.approx(theory.noise_to_signal(n, 5, 55, 0.5, 0.25, gate), rel=0.15)
    assert ratios[1] == pytest.approx(theory.noise_to_signal(n, 5, 55, 0.5, 0.25), rel=0.1)


def test_gate_moments():
    z = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000) * 0.2 + 0.03
    gate = stats.norm.cdf(z / 0.09)
    mean, square = theory.gate_moments(0.03, 0.04, 0.09)
    assert mean == pytest.approx(gate.mean(), abs=1e-5) and square == pytest.approx((gate**2).mean(), abs=1e-5)
    assert mean == pytest.approx(stats.norm.cdf(0.03 / np.sqrt(0.04 + 0.09**2)), abs=1e-9)


@pytest.mark.parametrize("k", [1, 3, 5, 8])
def test_tent_network_is_the_label(k):
    rng = np.random.default_rng(k)
    for _ in range(20):
        labels, mean = rng.choice([-1, 1], k + 1), rng.uniform(0, k)
        a, b = theory.tent_network(labels, mean)
        z = (np.arange(k + 1)[:, None] - mean) / (4 * k) + b
        assert np.clip(z, 0, 1) @ a == pytest.approx(labels, abs=1e-9)
        assert len(a) == 3 * (k + 1) and np.abs(z).max() <= 1
        assert np.abs(a).max() <= 32 * k and np.abs(b).min() >= 1 / (32 * k) - 1e-12 and np.abs(b).max() <= 0.5


def test_threshold_accuracy():
    five = DictionaryData.parity()
    assert theory.threshold_accuracy(five.weights.sum(0), five.labels) == pytest.approx(27 / 32)
    three = DictionaryData.parity(20, 3)
    assert theory.threshold_accuracy(three.weights.sum(0), three.labels) >= 0.75


def test_parseval_and_the_bounds():
    cube = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=9)), dtype=torch.float64)
    sets = torch.tensor(list(itertools.combinations(range(9), 3)))
    parities = cube[:, sets].prod(-1)  # (2^9, C(9, 3))
    gram = parities.T @ parities / len(cube)
    torch.testing.assert_close(gram, torch.eye(len(sets), dtype=torch.float64))
    features = torch.tanh(cube @ torch.randn(9, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    means = parities.T @ features / len(cube)
    assert means.square().sum() <= features.square().mean(0).sum() <= 12
    # the best linear model on the worst parity is not better than the bound
    weight = torch.randn(12, 2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight *= 2.0 / weight.norm(dim=0)
    output = features @ weight
    worst = max((1 - p[:, None] * output).clamp(min=0).mean(0).min().item() for p in parities.T)
    assert worst >= theory.fixed_feature_bound(12, 2.0, 9, 3, 1.0) > 0
    assert theory.fixed_feature_bound(600, 5.0, 100, 11, 0.5) >= theory.printed_feature_bound(600, 5.0, 11, 0.5)
    assert theory.queries_needed(100, 5) == pytest.approx(211.1, abs=0.1)


def test_tangent_model_of_two_layers_is_the_linearised_network_and_its_gradient_is_right():
    def normal(*shape, seed=0):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    start = {"w": 0.3 * normal(2, 6, 9), "b": 0.3 * normal(2, 6, seed=1), "a": normal(2, 6, seed=2)}
    change = {k: normal(*v.shape, seed=3 + i).requires_grad_() for i, (k, v) in enumerate(start.items())}
    x, y = normal(2, 50, 9, seed=7), normal(2, 50, seed=8).sign()
    parts = tangent_features(start, x)
    expected = []
    for r in range(2):
        one = {k: v[r] for k, v in start.items()}
        net = TwoLayer(**one, truncated=True)
        line = linearised(net, one)
        expected.append(line({k: v + change[k][r] for k, v in one.items()}, x[r]) - net(x[r]))
    assert torch.allclose(tangent_outputs(change, x, *parts), torch.stack(expected), atol=1e-12)
    loss, slope = tangent_objective(change, x, y, *parts)
    assert torch.allclose(loss, (1 - y * torch.stack(expected)).clamp(min=0).mean(1), atol=1e-12)
    want = torch.autograd.grad(loss.sum(), list(change.values()))
    assert all(torch.allclose(slope[k], v, atol=1e-12) for k, v in zip(change, want))


def test_no_affine_function_of_five_bits_agrees_with_their_parity_on_more_than_22_of_32():
    """Integer weights up to 5 give all, up to order and signs of bits, which at most change the sign of the parity."""
    cube = np.array(list(itertools.product((-1, 1), repeat=5)))
    weights = np.array(list(itertools.combinations_with_replacement(range(6), 5)))
    value = cube @ weights.T  # (point, weights)
    steps = (np.sign(value + bias) for bias in np.arange(-25.5, 26))
    best = max(np.abs((cube.prod(1)[:, None] * one).sum(0)).max() for one in steps)
    assert best == 22 - 10
    mixture = DictionaryData.parity(20, 5)
    assert theory.threshold_accuracy(mixture.weights.sum(0), mixture.labels) == pytest.approx(1 / 2 + 1 / 2 * 22 / 32)
