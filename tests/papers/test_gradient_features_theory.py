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


# --- Structured parities: negative thresholds ---


def background_codes(n, p_o):
    """All codes ``(3^n, n)`` of n background bits, and their probabilities."""
    rest = torch.tensor(list(itertools.product([-1.0, 0, 1], repeat=n)), dtype=D64).reshape(3**n, n)
    return rest, torch.tensor([p_o, 1 - 2 * p_o, p_o], dtype=D64)[rest.long() + 1].prod(1)


def block_gradients(w, b, k, r, p_a, p_o=0.0, background=0):
    """G of points with a single block and of the uniform part, by all hidden codes, ``(m, d)`` each; and the features."""
    alone = torch.eye(r, dtype=D64).repeat_interleave(k, 1)
    rest, chance = background_codes(background, p_o)

    def part(codes, mass):
        x = torch.cat([codes.repeat_interleave(len(rest), 0), rest.repeat(len(codes), 1)], 1)
        y = x[:, : r * k].unflatten(1, (r, k)).prod(2).sum(1).sign()
        return (x @ w.T > b).double().T @ ((mass * chance.repeat(len(codes)) * y)[:, None] * x)

    uniform = part(cube(r * k), (1 - 2 * r * p_a) / 2 ** (r * k))
    return part(torch.cat([alone, -alone]), p_a), uniform, torch.nn.functional.pad(alone / math.sqrt(k), (0, background))


def cosines(g, features):
    return g @ features.T / g.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(
    "k, r, p_a, p_o, background",
    [
        *((3, 3, 1 / 6, 0.0, 0), (3, 3, 1 / 6, 0.2, 2), (3, 3, 0.1, 0.05, 2), (3, 3, 0.05, 0.5, 3), (3, 3, 0.02, 0.0, 0)),
        *((5, 3, 0.1, 0.0, 0), (3, 5, 0.1, 0.0, 0)),
    ],
)
def test_negative_thresholds_by_enumeration(k, r, p_a, p_o, background):
    """Parts 1 and 2 of the proposition, at every code of the blocks and of the background bits."""
    bound = 2 / math.sqrt(r + 3)
    g = generator(3)
    w = torch.randn(300, k * r + background, generator=g, dtype=D64) * torch.rand(300, 1, generator=g, dtype=D64).mul(4).exp()
    w[:100, : k * r] = torch.randn(100, r, generator=g, dtype=D64).mul(3).repeat_interleave(k, 1)  # equal within blocks
    largest = []
    for b in (-0.01, -1.0, -4.0):
        single, uniform, features = block_gradients(w, b, k, r, p_a, p_o, background)
        rest, chance = background_codes(background, p_o)
        reach = (w[:, k * r :] @ rest.T)[:, None] - math.sqrt(k) * (w @ features.T).abs()[..., None]
        inside = (reach.abs() < -b).double() @ chance
        assert torch.allclose(single @ features.T, p_a * math.sqrt(k) * (1 + inside), atol=1e-12)
        seen = cosines(single, features)
        assert seen.min() > 0 and seen.max() <= bound + 1e-12
        total = cosines(single + uniform, features).abs().amax(1)
        assert (total <= bound + uniform.norm(dim=1) / (p_a * math.sqrt(k * r)) + 1e-12).all()
        largest.append(seen.max())
    if background == 0:
        assert max(largest) == pytest.approx(bound)  # attained
    positive, _, features = block_gradients(w, 1.0, k, r, p_a, p_o, background)
    assert cosines(positive, features).nan_to_num().max() > bound + 0.05  # b < 0 is needed


@pytest.mark.parametrize(
    "p_a, weights, b, cosine, length", [(0.1, (1, -2, 5), -5.5, 0.8753, 0.4236), (0.02, (1, -2, 6), -4.5, 0.9999, 0.1229)]
)
def test_the_uniform_part_can_bring_a_neuron_to_a_single_feature(p_a, weights, b, cosine, length):
    """Without the uniform part the bound holds; with it, it does not hold for every neuron, nor for those around it."""
    w = torch.tensor(weights, dtype=D64).repeat_interleave(3)
    w = w + torch.cat([torch.zeros(1, 9), 0.01 * torch.randn(20, 9, generator=generator())]).double()  # an open set
    single, uniform, features = block_gradients(w, b, 3, 3, p_a)
    assert cosines(single, features).max() <= 2 / math.sqrt(6) + 1e-12
    seen = cosines(single + uniform, features)[:, 0]
    assert torch.allclose(seen, torch.tensor(cosine, dtype=D64), atol=1e-4) and (seen > 2 / math.sqrt(6) + 0.05).all()
    assert torch.allclose((single + uniform).norm(dim=1), torch.tensor(length, dtype=D64), atol=1e-4)


def uniform_part_bound(k, r, d, p_a, p_o):
    shown = sps.binom.pmf(np.arange(d - r * k + 1), d - r * k, 2 * p_o)
    terms = [r * k / math.comb(r * k + i, k - 1) + i / math.comb(r * k + i, k + 1) for i in range(len(shown))]
    return (1 - 2 * r * p_a) ** 2 / 4 * float(shown @ terms)


def squared_coefficient(t, n, h):
    """Mean over normal weights of a squared Fourier coefficient at t of n bits; threshold h standard deviations."""
    minus = np.arange(n + 1)
    character = [sum((-1) ** a * math.comb(t, a) * math.comb(n - t, i - a) for a in range(i + 1)) for i in minus]
    both = [sps.multivariate_normal([0, 0], [[1, c], [c, 1]], allow_singular=True).cdf([-h, -h]) for c in 1 - 2 * minus / n]
    return float(np.dot(character, both)) / 2**n


def test_the_uniform_part_is_small_for_random_neurons():
    """Part 3: the second moment is a sum over the characters in the label, whose terms fall with their size."""
    n, m, h, p_a = 9, 4000, 0.5, 0.1
    moment = {t: squared_coefficient(t, n, h) for t in (2, 4, 6, 8)}
    assert moment[2] > moment[4] > moment[6] > moment[8] > 0
    assert all(moment[t] <= 1 / (4 * math.comb(n, t)) for t in moment)
    w = torch.randn(m, n, generator=generator(), dtype=D64)
    squares = block_gradients(w, -h * math.sqrt(n), 3, 3, p_a)[1].square().sum(1)
    exact = 9 * (1 - 6 * p_a) ** 2 * (moment[2] + 2 * moment[4] + moment[8]) / 4  # sign(a + b + c) = (a + b + c - abc) / 2
    assert abs(squares.mean() - exact) <= 5 * squares.std() / math.sqrt(m)
    assert exact <= uniform_part_bound(3, 3, 9, p_a, 0.0)
    for background, p_o in ((2, 0.2), (3, 0.5)):
        w = torch.randn(500, n + background, generator=generator(1), dtype=D64)
        assert block_gradients(w, -1.0, 3, 3, p_a, p_o, background)[1].square().sum(1).mean() <= uniform_part_bound(
            3, 3, n + background, p_a, p_o
        )


def test_weights_of_one_block_exceed_the_bound_of_random_ones():
    """The law of w matters: a neuron of one block of five bits sees more of the uniform part."""
    w = torch.cat([torch.ones(1, 5), torch.zeros(1, 10)], 1).double()
    w = torch.cat([w, torch.randn(60, 15, generator=generator(), dtype=D64)])
    squares = block_gradients(w, -2.0, 5, 3, 0.1)[1].square().sum(1)
    assert squares[1:].mean() <= uniform_part_bound(5, 3, 15, 0.1, 0.0) < squares[0]


def test_how_many_random_neurons_can_exceed_a_cosine():
    for k, r, d, p_o in ((3, 3, 9, 0.0), (5, 3, 24, 0.1), (3, 5, 30, 0.5), (9, 7, 80, 0.02)):
        assert uniform_part_bound(k, r, d, 1e-9, p_o) <= k / 3 * r ** (2 - k)
    share = uniform_part_bound(5, 3, 24, 0.1, 0.1) / (0.1**2 * 15 * (0.95 - 2 / math.sqrt(6)) ** 2)
    assert share == pytest.approx(0.107, abs=1e-3)  # "at most 11 %" in the chapter


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
