"""Closed forms of chapter 12 against sampling, quadrature, automatic differentiation and brute force."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from mvnb import losses
from mvnb.gradients import nuclear_norm_and_slope
from mvnb.papers.nuclear_norm import theory
from mvnb.papers.nuclear_norm.data import EnvironmentFeatures
from mvnb.papers.nuclear_norm.training import stable_rank

D64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- The nuclear norm ---


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (3, 6, 6)])
def test_value_and_gradient_are_those_of_torch(shape):
    m = torch.randn(shape, generator=generator(), dtype=D64).requires_grad_()
    torch.linalg.matrix_norm(m, ord="nuc").sum().backward()
    value, slope = nuclear_norm_and_slope(m.detach())
    torch.testing.assert_close(value, torch.linalg.svdvals(m.detach()).sum(-1))
    assert (slope - m.grad).abs().max() < 1e-8


def test_gradient_at_repeated_singular_values_is_the_directional_derivative():
    q = torch.linalg.qr(torch.randn(6, 3, generator=generator(), dtype=D64))[0]
    m = 2 * q  # three equal singular values
    slope = nuclear_norm_and_slope(m)[1]
    assert (slope - q).abs().max() < 1e-10
    direction = torch.randn(6, 3, generator=generator(1), dtype=D64)
    ends = [torch.linalg.svdvals(m + s * direction).sum() for s in (1e-6, -1e-6)]
    assert abs((ends[0] - ends[1]) / 2e-6 - (slope * direction).sum()) < 1e-6


def test_gradient_is_zero_where_singular_values_are():
    m = torch.zeros(5, 3, dtype=D64)
    m[:, 0] = 1.0
    value, slope = nuclear_norm_and_slope(m)
    assert value == pytest.approx(5**0.5) and slope[:, 1:].abs().max() < 1e-12
    value, slope = nuclear_norm_and_slope(torch.zeros(2, 4, 3))
    assert (value == 0).all() and (slope == 0).all()
    # a subgradient: spectral norm at most 1 and <slope, m> the norm
    low = torch.randn(8, 2, generator=generator(), dtype=D64) @ torch.randn(2, 5, generator=generator(1), dtype=D64)
    value, slope = nuclear_norm_and_slope(low)
    assert torch.linalg.matrix_norm(slope, ord=2) < 1 + 1e-8 and (slope * low).sum() == pytest.approx(value.item())


def test_norms_are_ordered_and_the_stable_rank_is_free_of_scale():
    m = torch.randn(9, 5, generator=generator(), dtype=D64)
    nuclear, frobenius, spectral = losses.nuclear_norm(m), m.norm(), torch.linalg.matrix_norm(m, ord=2)
    assert spectral <= frobenius <= nuclear <= 5**0.5 * frobenius and nuclear <= 5 * spectral
    q, p = (torch.linalg.qr(torch.randn(k, k, generator=generator(k), dtype=D64))[0] for k in (9, 5))
    assert losses.nuclear_norm(3 * q @ m @ p) == pytest.approx(3 * nuclear.item())
    assert stable_rank(7 * m) == pytest.approx(stable_rank(m).item())
    assert 1 <= stable_rank(m) <= 5 and stable_rank(2 * q[:, :4]) == pytest.approx(4.0)
    assert stable_rank(torch.zeros(4, 3)) == 0
    printed = lambda a: a.square().sum() / torch.linalg.matrix_norm(a, ord=2)  # noqa: E731
    assert printed(2 * m) == pytest.approx(2 * printed(m).item())


# --- The plane ---


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.7, 1.0, 2.5])
def test_plane_accuracies_are_those_of_sampling(ratio):
    world = EnvironmentFeatures.uniform(1, 1, 0.2)
    for elsewhere, share in ((False, 0.7), (True, 0.3)):
        x, y = world.sample(200_000, generator(), elsewhere, D64)
        seen = (y * (x[:, 0] + ratio * x[:, 1]) > 0).double().mean().item()
        assert abs(seen - theory.plane_accuracy(ratio, share)) < 0.004


def test_printed_accuracies_do_not_fit_each_other():
    assert theory.plane_accuracy(0.6857, 0.3) == pytest.approx(0.76, abs=1e-4)
    assert theory.plane_accuracy(0.6857, 0.7) == pytest.approx(0.8971, abs=1e-4)


def test_plane_loss_and_moments():
    x, y = EnvironmentFeatures.uniform(1, 1, 0.2).sample(400_000, generator(), dtype=D64)
    mean, sigma = theory.plane_moments(0.2)
    assert np.abs((y[:, None] * x).mean(0).numpy() - mean).max() < 4e-3
    assert np.abs((x.T @ x / len(x)).numpy() - sigma).max() < 4e-3
    beta = np.array([1.3, 0.4])
    loss, slope = theory.plane_loss(beta, 0.2)
    margin = (x @ torch.tensor(beta)) * y
    assert abs(torch.nn.functional.softplus(-margin).mean().item() - loss) < 1e-3
    assert np.abs(optimize.approx_fprime(beta, lambda b: theory.plane_loss(b, 0.2)[0], 1e-7) - slope).max() < 1e-6


@pytest.mark.parametrize(("penalty", "weight", "ratio"), [("decay", 1.0, 0.3805), ("decay", 0.01, 0.1705)])
def test_plane_optima_under_decay(penalty, weight, ratio):
    first, second = theory.plane_optimum(penalty, weight)
    assert second / first == pytest.approx(ratio, abs=1e-3)


def test_plane_optima_under_the_nuclear_norm():
    limit = np.linalg.solve(theory.plane_moments(0.2)[1], theory.plane_moments(0.2)[0])
    first, second = theory.plane_optimum("nuclear", 0.4)
    assert second / first == pytest.approx(limit[1] / limit[0], abs=1e-3)
    assert limit[1] / limit[0] == pytest.approx(0.11364, abs=1e-5)
    assert theory.plane_optimum("diagonal", 0.05)[1] == 0 and theory.plane_optimum("diagonal", 0.03)[1] > 0.1
    with pytest.raises(ValueError, match="penalty must be"):
        theory.plane_optimum("rank", 0.1)


def test_a_rank_one_map_has_the_least_nuclear_norm_under_a_fixed_head():
    g = generator()
    x, head, beta = (torch.randn(*s, generator=g, dtype=D64) for s in ((50, 3), (4,), (3,)))
    least = (x @ beta).norm() / head.norm()
    best = torch.outer(head, beta) / head.square().sum()
    assert losses.nuclear_norm(x @ best.T) == pytest.approx(least.item(), rel=1e-10)
    for seed in range(20):
        other = torch.randn(4, 3, generator=generator(seed), dtype=D64)
        feasible = best + other - torch.outer(head, head @ other) / head.square().sum()  # A^T v is still beta
        torch.testing.assert_close(feasible.T @ head, beta)
        assert losses.nuclear_norm(x @ feasible.T) >= least


def test_nuclear_norm_of_two_columns_and_of_the_plane():
    x, _ = EnvironmentFeatures.uniform(1, 1, 0.2).sample(400_000, generator(), dtype=D64)
    w = torch.tensor([1.2, 0.5], dtype=D64)
    seen = losses.nuclear_norm(x * w).item() / len(x) ** 0.5
    gram = (x * w).T @ (x * w) / len(x)
    assert seen == pytest.approx(math.sqrt(gram.trace() + 2 * gram.det().sqrt()), rel=1e-9)
    assert abs(seen - math.sqrt((1.2**2 + 0.5**2) / 3 + 2 * 0.6 * math.sqrt(1 / 9 - 0.01))) < 4e-3


# --- Many features ---


@pytest.fixture(scope="module")
def population():
    return theory.GroupPopulation(16, 44, 0.3)


def test_features_have_the_moments_of_the_lemma():
    z, y = EnvironmentFeatures.uniform(2, 3, 0.3).sample(400_000, generator(), dtype=D64)
    z = y[:, None] * z
    assert (z[:, :2] >= 0).all() and abs(z[:, 0].var() - 1 / 12) < 1e-3
    assert (z[:, 2:].mean(0) - 0.3).abs().max() < 4e-3 and (z[:, 2:].var(0) - (1 / 3 - 0.09)).abs().max() < 4e-3
    other, y = EnvironmentFeatures.uniform(2, 3, 0.3).sample(400_000, generator(), True, D64)
    assert ((y[:, None] * other)[:, 2:].mean(0) + 0.3).abs().max() < 4e-3
    with pytest.raises(ValueError, match="gammas"):
        EnvironmentFeatures((0.6,), ())


def test_moments_are_those_of_sampling(population):
    z, y = EnvironmentFeatures.uniform(16, 44, 0.3).sample(300_000, generator(), dtype=D64)
    z = y[:, None] * z
    margin = 0.2 * z[:, :16].sum(1) + 0.1 * z[:, 16:].sum(1)
    slope = torch.sigmoid(-margin)
    bend = slope * (1 - slope)
    tau_r, tau_u = (torch.tensor(theory.stein_kernel(z[:, j].numpy(), g)) for j, g in ((0, 0.5), (20, 0.3)))
    seen = [slope, bend * tau_r, bend * tau_u, slope * z[:, 0], slope * z[:, 20]]
    exact = population.slope(0.2, 0.1), *population.bends(0.2, 0.1), *population.pushes(0.2, 0.1)
    for value, one in zip(exact, seen):
        assert abs(one.mean().item() - value) < 5 * one.std().item() / len(one) ** 0.5
    assert population.pushes(0.2, 0.0)[1] == pytest.approx(0.3 * population.slope(0.2, 0.0))
    with pytest.raises(ValueError, match="at least 8"):
        theory.GroupPopulation(2, 4, 0.3).accuracy(1.0)


def test_weaker_shared_features_are_those_of_sampling():
    """Shared features of D_0.2 instead of U[0, 1]: expectations, accuracies, and the optimum under a strong decay."""
    group = theory.GroupPopulation(9, 20, 0.1, 0.2)
    z, y = EnvironmentFeatures((0.2,) * 9, (0.1,) * 20).sample(300_000, generator(), dtype=D64)
    z = y[:, None] * z
    slope = torch.sigmoid(-0.3 * z[:, :9].sum(1) - 0.2 * z[:, 9:].sum(1))
    for exact, one in zip((group.slope(0.3, 0.2), *group.pushes(0.3, 0.2)), (slope, slope * z[:, 0], slope * z[:, 9])):
        assert abs(one.mean().item() - exact) < 5 * one.std().item() / len(one) ** 0.5
    there = torch.cat([z[:, :9], -z[:, 9:]], 1)
    margin = 1.5 * there[:, :9].sum(1) + there[:, 9:].sum(1)
    assert group.mean_margin(1.5) == pytest.approx(1.5 * 9 * 0.2 - 20 * 0.1) == pytest.approx(margin.mean().item(), abs=0.02)
    assert group.accuracy(1.5) == pytest.approx((margin > 0).double().mean().item(), abs=0.004)
    assert np.divide(*group.decay_optimum(1e3)) == pytest.approx(2.0, rel=1e-3)
    assert group._replace(strength=0.5) == theory.GroupPopulation(9, 20, 0.1)


def test_expectations_keep_their_accuracy_where_the_loss_is_tiny():
    """One feature: E|l'(a z)| for z uniform on [0, 1] is (ln 2 - ln(1 + e^-a)) / a, also where the margin is long."""
    for alpha in (0.01, 1.0, 60.0):
        exact = (np.log(2) - np.log1p(np.exp(-alpha))) / alpha
        assert theory.GroupPopulation(1, 1, 0.3).slope(alpha, 0.0) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 0.1, 0.45])
def test_stein_kernels(gamma):
    """Cov(g(z), z) = E[g'(z) tau(z)] for g = sin(3 z), by quadrature; the mean is the variance, and the bound is sharp."""
    node, weight = np.polynomial.legendre.leggauss(60)
    node, weight = (node + 1) / 2, weight / 2
    z, mass = np.concatenate([node, -node]), np.concatenate([(0.5 + gamma) * weight, (0.5 - gamma) * weight])
    tau = theory.stein_kernel(z, gamma)
    mean = mass @ z
    assert mass @ (np.sin(3 * z) * (z - mean)) == pytest.approx(mass @ (3 * np.cos(3 * z) * tau))
    assert mass @ tau == pytest.approx(mass @ (z - mean) ** 2)
    assert tau[mass > 0].max() <= (1 / 8 if gamma == 0.5 else 0.5 + gamma)


@pytest.mark.parametrize("weight", [1.0, 0.01, 1e-5])
def test_the_optimum_under_decay_is_that_of_all_weights(weight, population):
    alpha, beta = population.decay_optimum(weight)
    by_r, by_u = population.bends(alpha, beta)
    assert population.pushes(alpha, beta) == pytest.approx((weight * alpha, weight * beta), rel=1e-9)
    exact = 0.6 * alpha / beta
    assert exact == pytest.approx((weight + by_u) / (weight + by_r), rel=1e-9)
    low, high = theory.ratio_bounds(alpha, 0.3)
    assert low <= exact <= high


def test_under_a_small_penalty_weights_pass_what_lemma_6_1_allows(population):
    (above, _), (below, _) = (population.decay_optimum(weight) for weight in (0.05, 0.045))
    assert above < 1 / np.sqrt(16) < below


def test_the_sampled_problem_in_all_weights_agrees(population):
    """Points and their permutations within groups would make it exact; with many points it is near."""
    z, y = EnvironmentFeatures.uniform(16, 44, 0.3).sample(20_000, generator(), dtype=D64)
    z = (y[:, None] * z).numpy()

    def objective(w):
        slope = 1 / (1 + np.exp(z @ w))
        return np.logaddexp(0, -z @ w).mean() + 0.05 * w @ w, -slope @ z / len(z) + 0.1 * w

    w = optimize.minimize(objective, np.full(60, 0.1), jac=True, options={"gtol": 1e-9}).x
    alpha, beta = population.decay_optimum(0.1)
    assert w[:16].mean() == pytest.approx(alpha, rel=0.02) and w[16:].mean() == pytest.approx(beta, rel=0.02)
    assert w[:16].std() < 0.05 * alpha and w[16:].std() < 0.1 * beta


def test_accuracy_elsewhere_and_its_bound(population):
    z, y = EnvironmentFeatures.uniform(16, 44, 0.3).sample(300_000, generator(), True, D64)
    z = y[:, None] * z
    for ratio in (1.3, 1.8, 3.0):
        seen = ((ratio * z[:, :16].sum(1) + z[:, 16:].sum(1)) > 0).double().mean().item()
        exact = population.accuracy(ratio)
        assert abs(seen - exact) < 0.004 and abs(population.normal_accuracy(ratio) - exact) < 0.01
    assert theory.transition(16, 0.3) == pytest.approx(60.44, abs=0.01)
    assert population.accuracy(2.0, 0.3) == pytest.approx(1.0, abs=1e-6)


def nuclear_norm(group, alpha, beta):
    """``|X diag(w)|_* / sqrt(N)`` of a population for infinitely many points: the eigenvalues of its Gram matrix."""
    r, n = group.r, group.n
    mean = np.concatenate([np.full(r, alpha / 2), np.full(n, beta * group.gamma)])
    variance = np.concatenate([np.full(r, alpha**2 / 12), np.full(n, beta**2 * (1 / 3 - group.gamma**2))])
    return np.sqrt(np.linalg.eigvalsh(np.diag(variance) + np.outer(mean, mean)).clip(0)).sum()


def test_nuclear_norm_of_the_population_and_its_prices(population):
    z, _ = EnvironmentFeatures.uniform(16, 44, 0.3).sample(100_000, generator(), dtype=D64)
    w = torch.cat([torch.full((16,), 0.7), torch.full((44,), 0.3)]).double()
    seen = losses.nuclear_norm(z * w).item() / len(z) ** 0.5
    assert seen == pytest.approx(nuclear_norm(population, 0.7, 0.3), rel=2e-3)
    by_alpha, by_beta = population._prices()
    assert nuclear_norm(population, 0.7, 0.0) == pytest.approx(0.7 * by_alpha)
    assert (nuclear_norm(population, 1, 1e-4) - nuclear_norm(population, 1, 0)) / 1e-4 == pytest.approx(by_beta, rel=1e-4)


def test_the_nuclear_optimum_is_sparse_and_grid_search_agrees(population):
    weight = 0.05
    alpha = population._nuclear_alpha(weight)
    assert population.excess(weight) > 0
    z, y = EnvironmentFeatures.uniform(16, 44, 0.3).sample(100_000, generator(), dtype=D64)
    z = (y[:, None] * z).numpy()

    def objective(a, b):
        return np.logaddexp(0, -a * z[:, :16].sum(1) - b * z[:, 16:].sum(1)).mean() + weight * nuclear_norm(population, a, b)

    assert all(objective(a * alpha, b) > objective(alpha, 0.0) for a in (0.8, 1.0, 1.2) for b in (0.01, 0.05, 0.2))
    assert population._nuclear_alpha(1.01 * population.nuclear_limit()) == 0
    assert population._nuclear_alpha(0.99 * population.nuclear_limit()) > 0
    with pytest.raises(ValueError, match="weight must be below"):
        population.excess(1.01 * population.nuclear_limit())


@pytest.mark.parametrize(("gamma", "selects"), [(0.3, True), (0.45, False)])
def test_selection_ends_where_the_excess_changes_its_sign(gamma, selects):
    """By sampling: near gamma = 1/2 the optimum has environmental features, as the price says."""
    group = theory.GroupPopulation(16, 44, gamma)
    weight = 0.1 * group.nuclear_limit()
    alpha = group._nuclear_alpha(weight)
    z, y = EnvironmentFeatures.uniform(16, 44, gamma).sample(100_000, generator(), dtype=D64)
    z = (y[:, None] * z).numpy()
    sums = np.stack([z[:, :16].sum(1), z[:, 16:].sum(1)], 1)

    def objective(weights):
        return np.logaddexp(0, -sums @ weights).mean() + weight * nuclear_norm(group, *weights)

    start = [alpha, 0.05]
    found = optimize.minimize(objective, start, method="Nelder-Mead", bounds=[(0, 9)] * 2, options={"xatol": 1e-5})
    assert (group.excess(weight) > 0) == selects == (found.x[1] < 1e-3)


@pytest.mark.parametrize("alpha_beta", [(0.3, 0.3), (0.2, 0.4)])
def test_the_invariant_weight_is_the_larger_one(alpha_beta):
    """Where beta >= alpha the loss pushes more along an invariant feature: no optimum under decay is there."""
    for gamma in (0.05, 0.3, 0.49):
        by_r, by_u = theory.GroupPopulation(8, 20, gamma).pushes(*alpha_beta)
        assert by_r > by_u


def test_rank_one_in_the_invariant_features_is_right_everywhere():
    g = generator()
    x, y = EnvironmentFeatures.uniform(9, 30, 0.4).sample(20_000, g, True, D64)
    w = torch.rand(9, generator=g, dtype=D64) + 1e-3  # any positive weights
    assert (y * (x[:, :9] @ w) > 0).all()
    z = y[:, None] * x
    assert abs((z[:, 9:] > 0).double().mean() - 0.1) < 0.005  # P(z > 0) = 1/2 + gamma, here with -gamma


def test_slopes_of_the_logistic_loss():
    """Lemma E.1 (4), and (E.3) against automatic differentiation."""
    t, c = np.meshgrid(np.linspace(-30, 30, 61), np.linspace(0.01, 5, 20))
    slope = lambda v: 1 / (1 + np.exp(v))  # noqa: E731
    assert (slope(t + c) >= np.exp(-c) * slope(t) * (1 - 1e-12)).all()
    z = torch.randn(50, 4, generator=generator(), dtype=D64)
    w = torch.randn(4, generator=generator(1), dtype=D64).requires_grad_()
    (torch.nn.functional.softplus(-z @ w).mean() + 0.15 * w.square().sum()).backward()
    by_hand = -(torch.sigmoid(-z @ w)[:, None] * z).mean(0) + 0.3 * w
    assert (by_hand - w.grad).abs().max() < 1e-12


def test_descent_from_zero_starts_at_the_ratio_of_correlations_and_falls():
    beta, ratios = np.zeros(2), []
    for _ in range(500):
        beta = beta - 0.5 * theory.plane_loss(beta, 0.2)[1]
        ratios.append(beta[1] / beta[0])
    assert ratios[0] == pytest.approx(0.4) and (np.diff(ratios) < 0).all() and ratios[-1] == pytest.approx(0.110, abs=1e-3)
