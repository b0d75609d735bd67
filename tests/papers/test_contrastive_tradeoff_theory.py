"""The closed forms of chapter 13, against enumeration, simulation, quadrature and other solvers."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

from mvnb.papers.contrastive_tradeoff import data, measure, theory
from mvnb.papers.contrastive_tradeoff import training as arms


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def random_world(n_r=5, n_u=3, seed=0):
    p_r, p_u = (torch.rand(n, generator=gen(seed + n), dtype=torch.float64) + 0.1 for n in (n_r, n_u))
    return p_r / p_r.sum(), p_u / p_u.sum()


# --- Finite worlds ---


def test_linear_loss_is_principal_components():
    p_r, p_u = random_world()
    z = torch.randn(5, 3, 4, generator=gen(1), dtype=torch.float64)
    layers = [torch.randn(*shape, generator=gen(shape[0]), dtype=torch.float64) for shape in ((4, 6), (6, 3))]
    phi = (z @ layers[0]).tanh() @ layers[1]
    both = theory.contrastive_loss(phi, p_r, p_u, lambda t: -t), theory.pca_objective(phi, p_r, p_u)
    assert torch.allclose(*both, rtol=0, atol=1e-12)
    # for a linear map: the plain variance of the projected mean inputs
    w = layers[0]
    mean = torch.einsum("aik,i->ak", z, p_u) @ w
    centred = mean - p_r @ mean
    plain = -(p_r[:, None] * centred.square()).sum()
    assert torch.allclose(theory.contrastive_loss(z @ w, p_r, p_u, lambda t: -t), plain, rtol=0, atol=1e-12)


def test_the_loss_enumerates_what_sampling_finds():
    p_r, p_u = random_world()
    phi = torch.randn(5, 3, 2, generator=gen(4), dtype=torch.float64)
    g = gen(5)
    a, b = (torch.multinomial(p_r, 200_000, True, generator=g) for _ in range(2))
    i, j, k = (torch.multinomial(p_u, 200_000, True, generator=g) for _ in range(3))
    values = torch.nn.functional.softplus(-(phi[a, i] * (phi[a, j] - phi[b, k])).sum(1))
    assert abs(values.mean() - theory.contrastive_loss(phi, p_r, p_u)) < 5 * values.std() / 200_000**0.5


def test_averaging_over_the_spurious_part_never_raises_the_loss():
    for seed in range(20):
        p_r, p_u = random_world(seed=seed)
        phi = torch.randn(5, 3, 3, generator=gen(seed), dtype=torch.float64)
        mean = torch.einsum("aik,i->ak", phi, p_u)[:, None].expand_as(phi)
        assert theory.contrastive_loss(mean, p_r, p_u) <= theory.contrastive_loss(phi, p_r, p_u) + 1e-12


def test_some_frozen_choice_of_the_spurious_part_is_at_least_as_good():
    """The proof in fixed dimension: for vectors of one length, the mean over all choices is no larger."""
    for seed in range(5):
        p_r, p_u = random_world(3, 2, seed)
        phi = torch.randn(3, 2, 3, generator=gen(seed), dtype=torch.float64)
        phi = 1.7 * phi / phi.norm(dim=-1, keepdim=True)
        choices = torch.cartesian_prod(*[torch.arange(2)] * 3)
        frozen = phi[torch.arange(3), choices][:, :, None].expand(-1, -1, 2, -1)
        losses = theory.contrastive_loss(frozen, p_r, p_u)
        chance = p_u[choices].prod(1)
        assert (chance * losses).sum() < theory.contrastive_loss(phi, p_r, p_u)
        # the paper's comparison, the mean, has a shorter length and is not in the class
        assert (torch.einsum("aik,i->ak", phi, p_u).norm(dim=1) < 1.7).all()


def test_the_mean_alone_is_outside_the_class():
    """Two opposite vectors of one length: their mean has length 0."""
    phi = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    assert torch.einsum("aik,i->ak", phi, torch.tensor([0.5, 0.5])).norm() == 0


def test_one_dimension_is_a_split():
    """The loss of +-B is that of the probability p of one side; best at 1/2, whichever values make it up."""
    chance, sign = random_world()[0], torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    one, length = torch.ones(1, dtype=torch.float64), 1.3
    p = chance[sign > 0].sum()
    gain = math.log(2) - math.log1p(math.exp(-2 * length**2))
    expected = math.log(2) - 2 * p * (1 - p) * gain
    found = theory.contrastive_loss(length * sign[:, None, None], chance, one)
    assert abs(found - expected) < 1e-7


def test_square_and_simplex():
    """Exclusive-or and separable squares have one loss; in three dimensions the simplex has less, and descent no less."""
    quarter, one = torch.full((4,), 0.25, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    corners = torch.tensor([[-1.0, 0], [0, 1], [0, -1], [1, 0]], dtype=torch.float64)
    square = theory.contrastive_loss(corners[:, None], quarter, one)
    swapped = theory.contrastive_loss(corners[[0, 3, 2, 1], None], quarter, one)
    closed = (math.log(2) + 2 * math.log1p(math.exp(-1)) + math.log1p(math.exp(-2))) / 4
    assert math.isclose(square, swapped, rel_tol=1e-12) and math.isclose(square, closed, rel_tol=1e-12)
    simplex = 0.25 * math.log(2) + 0.75 * math.log1p(math.exp(-4 / 3))
    found = {}
    for k in (2, 3):
        v = torch.randn(20, 4, 1, k, generator=gen(k), dtype=torch.float64).requires_grad_()
        adam = torch.optim.Adam([v], lr=0.05)
        for _ in range(400):
            adam.zero_grad()
            losses = theory.contrastive_loss(torch.nn.functional.normalize(v, dim=-1), quarter, one)
            losses.sum().backward()
            adam.step()
        found[k] = losses.detach()
    assert (found[2] > closed - 1e-9).all() and abs(found[2].median() - closed) < 1e-4
    assert (found[3] > simplex - 1e-9).all() and (found[3] - simplex).abs().max() < 1e-3


# --- Projections ---


def test_projection_is_the_nearest_point():
    values = 2 * torch.randn(4, 6, generator=gen(), dtype=torch.float64)
    projected = theory.project_capped(values, 2.5)
    assert (projected >= 0).all() and (projected <= 1).all() and (projected.sum(1) <= 2.5 + 1e-12).all()
    assert torch.allclose(theory.project_capped(projected, 2.5), projected, atol=1e-12)
    for row, own in zip(values.numpy(), projected.numpy()):
        budget = {"type": "ineq", "fun": lambda x: 2.5 - x.sum()}
        best = optimize.minimize(
            lambda x, row=row: ((x - row) ** 2).sum(), np.full(6, 0.3), bounds=[(0, 1)] * 6, constraints=budget, tol=1e-12
        )
        assert np.abs(best.x - own).max() < 1e-5


def test_gram_projection_is_feasible_idempotent_and_turns_along():
    a = torch.randn(5, 5, generator=gen(), dtype=torch.float64)
    gram = theory.project_gram(a, 2.0)
    values = torch.linalg.eigvalsh(gram)
    assert values.min() > -1e-12 and values.max() < 1 + 1e-12 and gram.trace() < 2 + 1e-10
    assert torch.allclose(theory.project_gram(gram, 2.0), gram, atol=1e-10)
    q = torch.linalg.qr(a)[0]
    assert torch.allclose(theory.project_gram(q @ a @ q.T, 2.0), q @ gram @ q.T, atol=1e-10)


# --- Optimal weights ---


def chi_mean(function, freedom):
    return stats.chi2.expect(function, (freedom,))


def test_exponential_moment_and_size_bias():
    for n in (1, 4, 9):
        assert math.isclose(chi_mean(lambda z: np.exp(-0.3 * z), n), 1.6 ** (-n / 2), rel_tol=1e-7)
        biased = chi_mean(lambda z: z * special.expit(-z), n)
        assert math.isclose(biased, n * chi_mean(lambda z: special.expit(-z), n + 2), rel_tol=1e-6)


@pytest.mark.parametrize(("s", "q", "n_tasks"), [(5, 5, 2), (5, 5, 5), (1, 19, 5), (10, 2, 3), (2, 28, 2), (3, 7, 4)])
def test_shared_weight_one_and_equal_private_weights(s, q, n_tasks):
    found = theory.mixture_weights(np.full(n_tasks, 1 / n_tasks), s, q)
    assert abs(found[0] - 1) < 1e-3
    assert np.abs(found[1:] - 1 / n_tasks).max() < 2e-3


def random_negative_weights(loss, s, q, n_tasks):
    """Return the best ``(alpha, beta)`` of an even mixture if the negative is drawn, by Gauss quadrature."""
    normal, chance = special.roots_hermitenorm(14)

    def squared(n):  # |z|^2, and z . (z - z') given |z|^2, for n features
        x, p = special.roots_genlaguerre(14, n / 2 - 1)
        own = (2 * x)[:, None] - (2 * x[:, None]) ** 0.5 * normal
        return (2 * x, p / p.sum()), (own.ravel(), (p[:, None] * chance).ravel() / (p.sum() * chance.sum()))

    (z, p), (free, p_free), (own, p_own) = squared(s)[1], *squared(q)

    def value(a):
        same, other = (loss(a[0] * z[:, None] + a[1] * x) for x in (own, free))
        return p @ (same @ p_own / n_tasks + (1 - 1 / n_tasks) * other @ p_free)

    budget = {"type": "ineq", "fun": lambda a: s + q - s * a[0] - q * n_tasks * a[1]}
    return optimize.minimize(value, [0.5, 0.5 / n_tasks], bounds=[(0, 1)] * 2, constraints=budget, tol=1e-12).x


def test_with_a_random_negative_the_weights_are_others():
    """For exp(-t) the closed form of the page; at ten tasks the logistic loss has the weights of the mean again."""

    def logistic(t):
        return np.logaddexp(0, -t)

    assert np.abs(random_negative_weights(logistic, 3, 3, 2) - [0.81, 0.60]).max() < 0.006
    assert np.abs(random_negative_weights(logistic, 3, 3, 10) - [1, 0.1]).max() < 1e-3

    def closed(a):
        return (1 + 2 * a[0] - a[0] ** 2) ** -1.5 * ((1 + 2 * a[1] - a[1] ** 2) ** -1.5 + (1 + 2 * a[1]) ** -1.5) / 2

    budget = {"type": "ineq", "fun": lambda a: 2 - a[0] - 2 * a[1]}
    found = optimize.minimize(closed, [0.5, 0.5], bounds=[(0, 1)] * 2, constraints=budget, tol=1e-12).x
    assert np.abs(found - [0.716, 0.642]).max() < 1e-3
    assert np.abs(random_negative_weights(lambda t: np.exp(-t), 3, 3, 2) - found).max() < 5e-3


def test_shared_weight_is_one_for_uneven_mixtures_too():
    rng = np.random.default_rng(0)
    for _ in range(6):
        n_tasks, s, q = rng.integers(2, 6), rng.integers(1, 8), rng.integers(1, 8)
        shares = rng.dirichlet(np.ones(n_tasks))
        found = theory.mixture_weights(shares, int(s), int(q))
        assert abs(found[0] - 1) < 2e-3
        assert abs(found[1:].sum() - 1) < 2e-3


def test_drop_threshold_separates():
    s, q, others = 3, 3, 4
    edge = theory.drop_threshold(others, s, q)
    for factor, gone in ((0.8, True), (1.25, False)):
        shares = np.append(np.ones(others), factor * edge)
        found = theory.mixture_weights(shares / shares.sum(), s, q)
        assert (found[-1] < 1e-3) == gone


def test_budget_and_norms_of_the_optimum():
    s, q, n_tasks = 3, 5, 4
    a = np.sqrt(np.concatenate([np.ones(s), np.full(q * n_tasks, 1 / n_tasks)]))
    assert math.isclose((a**2).sum(), s + q) and a.max() == 1


# --- Risk ---


def test_predictor_norm_is_that_of_the_shortest_exact_predictor():
    s, q, beta = 3, 2, 0.2
    u = torch.randn(s + q, generator=gen(), dtype=torch.float64)
    a = torch.tensor([1.0] * s + [beta] * q, dtype=torch.float64).sqrt()
    rotation = torch.linalg.qr(torch.randn(7, 7, generator=gen(1), dtype=torch.float64))[0]
    z = torch.randn(50, s + q, generator=gen(2), dtype=torch.float64)
    features = torch.cat([z * a, torch.zeros(50, 2, dtype=torch.float64)], 1) @ rotation
    shortest = torch.linalg.pinv(features) @ (z @ u)
    v1, v2 = u[:s].square().sum().item(), u[s:].square().sum().item()
    assert math.isclose(shortest.norm().item(), theory.predictor_norm(v1, v2, 1.0, beta), rel_tol=1e-9)
    few = torch.linalg.pinv(features[:4]) @ (z[:4] @ u)
    assert few.norm() <= shortest.norm()  # so the shortest interpolation is an empirical risk minimiser of the class


def test_rademacher_bound_holds_without_a_remainder():
    m, s, q, v1, v2, beta = 12, 4, 4, 0.7, 0.3, 0.1
    a = torch.tensor([1.0] * s + [beta] * q, dtype=torch.float64).sqrt()
    total = (a * torch.randn(20_000, m, s + q, generator=gen(), dtype=torch.float64).sum(1)).norm(dim=1)
    exact = theory.predictor_norm(v1, v2, 1.0, beta) * total.mean().item() / m
    bound = theory.rademacher_bound(m, s, q, v1, v2, 1.0, beta)
    assert 0.85 * bound < exact < bound


def test_bound_ratio_and_weight_form():
    for n_tasks in (1, 2, 5, 50):
        s = 6
        universal, specific = (theory.rademacher_bound(9, s, s, 0.5, 0.5, 1.0, beta) for beta in (1 / n_tasks, 1.0))
        assert math.isclose(universal / specific, (n_tasks + 1) / (2 * n_tasks**0.5), rel_tol=1e-12)
    alpha, beta, r, m = 0.9, 0.3, 12, 9
    form = math.sqrt(r / (4 * m) * (2 + alpha / beta + beta / alpha))
    assert math.isclose(form, theory.rademacher_bound(m, 6, 6, 0.5, 0.5, alpha, beta), rel_tol=1e-12)


def simulate(m, s, q, beta, runs, seed=0, u=None):
    z = torch.randn(runs, m, s + q, generator=gen(seed), dtype=torch.float64)
    a = torch.tensor([1.0] * s + [beta] * q, dtype=torch.float64).sqrt()
    u = torch.full((s + q,), (s + q) ** -0.5, dtype=torch.float64) if u is None else u
    found = a * (torch.linalg.pinv(z * a) @ (z @ u)[..., None])[..., 0]
    return (found - u).square().sum(1)


def test_interpolation_error_exact_for_equal_weights():
    for m in (3, 10, 15):
        assert math.isclose(theory.interpolation_error(m, 10, 10, 0.5, 0.5, 1.0), 1 - m / 20, rel_tol=1e-6)
    assert theory.interpolation_error(20, 10, 10, 0.5, 0.5, 0.1) == 0


@pytest.mark.parametrize(("m", "beta"), [(20, 0.2), (60, 0.2), (60, 0.02), (25, 0.02)])
def test_interpolation_error_in_the_limit(m, beta):
    errors = simulate(m, 40, 40, beta, 400)
    expected = theory.interpolation_error(m, 40, 40, 0.5, 0.5, beta)
    assert abs(errors.mean() - expected) < 0.05 * expected + 4 * errors.std() / 20


def test_endless_tasks():
    """The limit is that of predictors which fit with the shared features alone, or as far as these suffice."""
    s, q, runs = 10, 10, 20_000
    u = torch.full((s + q,), (s + q) ** -0.5, dtype=torch.float64)
    for m in (2, 6, 15, 18):
        z = torch.randn(runs, m, s + q, generator=gen(m), dtype=torch.float64)
        a, c = z[..., :s], z[..., s:]
        own = torch.linalg.pinv(a)
        off = torch.eye(m, dtype=torch.float64) - a @ own  # what the shared features cannot fit
        private = (torch.linalg.pinv(off @ c, rtol=1e-9) @ (off @ z @ u)[..., None])[..., 0] if m > s else torch.zeros(runs, q)
        shared = (own @ ((z @ u)[..., None] - c @ private.double()[..., None]))[..., 0]
        error = (shared - u[:s]).square().sum(1) + (private - u[s:]).square().sum(1)
        limit = float(theory.endless_error(m, s, q, 0.5, 0.5))
        assert abs(error.mean() - limit) < 4 * error.std() / runs**0.5, m
        assert math.isclose(simulate(m, s, q, 1e-7, 2000).mean(), limit, rel_tol=0.1)


def test_endless_tasks_at_the_exceptions_and_for_many_features():
    found = theory.endless_error(np.array([0, 9, 10, 11, 20, 25]), 10, 10, 0.4, 0.6)
    assert found.tolist() == [1.0, math.inf, math.inf, math.inf, 0.0, 0.0]
    for m in (20, 160):  # a hundred times as many of everything
        large = theory.endless_error(10 * m, 1000, 1000, 0.4, 0.6)
        assert math.isclose(theory.interpolation_error(10 * m, 1000, 1000, 0.4, 0.6, 1e-7), large, rel_tol=0.01)


def test_the_error_at_the_exceptions_grows_without_end():
    for m in (9, 10, 11):
        errors = [simulate(m, 10, 10, beta, 4000, seed=1).mean() for beta in (1e-2, 1e-4, 1e-6)]
        assert errors[0] < errors[1] < errors[2] and errors[2] > 4


def test_the_error_is_least_at_the_ratio_of_mean_squared_coefficients():
    u = torch.tensor([0.4] * 6 + [0.1] * 4, dtype=torch.float64)
    for m in (3, 8):
        errors = [simulate(m, 6, 4, 4.0**-k, 4000, u=u).mean() for k in range(5)]
        assert errors == sorted(errors[:3], reverse=True) + sorted(errors[3:]), m
        assert min(errors) == errors[2]  # at a weight of 1/16


def test_without_a_private_part_of_the_label_nothing_explodes():
    u = torch.tensor([0.4] * 10 + [0.0] * 10, dtype=torch.float64)
    assert simulate(10, 10, 10, 1e-6, 2000, u=u).mean() < 0.01


# --- Regularisation and similarity ---


def test_regularisation_moves_by_gamma_and_is_optimal():
    s, q, n_tasks, gamma = 3, 2, 4, 0.4
    after = theory.regularised_private(n_tasks, q, gamma)
    assert math.isclose(math.sqrt(q) * (after - n_tasks**-0.5), gamma)
    assert theory.regularised_private(n_tasks, q, 10.0) == 1
    # No other point of the ball does better for the loss exp(-t), whose mean is a product.
    start = np.append(np.ones(s), np.full(q, n_tasks**-0.5))

    def loss(a):
        return np.prod((1 + 2 * a**2) ** -0.5)

    ball = {"type": "ineq", "fun": lambda a: gamma**2 - ((a - start) ** 2).sum()}
    rng = np.random.default_rng(0)
    tries = [
        optimize.minimize(loss, np.clip(start + shift, 0, 1), bounds=[(0, 1)] * (s + q), constraints=ball)
        for shift in 0.1 * rng.normal(size=(5, s + q))
    ]
    best = min(tries, key=lambda r: r.fun)
    assert np.abs(best.x - np.append(np.ones(s), np.full(q, after))).max() < 1e-3


@pytest.mark.parametrize(("s", "q"), [(2, 5), (4, 1)])
def test_descent_returns_the_weight_for_unequal_numbers_of_features(s, q):
    """Radii are given for one private feature, so roots of weights rise by the radius whatever s and q are."""
    gammas = np.array([0.1, 0.3])
    world, run = data.Mixture(s, q, 6), {"steps": 200, "batch": 256, "replicas": 2, "seed": 0}
    found = arms.regularise_linear(world, gammas.tolist(), 10, **run).numpy()
    assert np.abs(found - theory.regularised_private(10, 1, gammas)[:, None]).max() < 5e-3


def test_regularisation_is_optimal_among_all_matrices():
    """Proposition F.9 without assuming a diagonal: for exp(-t) the loss is det(I + 2 G)^(-1/2) over the task's columns."""
    s, n_tasks, gamma = 2, 4, 0.5
    after = theory.regularised_private(n_tasks, s, gamma)
    q = torch.linalg.qr(torch.randn(3 * s, 3 * s, generator=gen(1), dtype=torch.float64))[0]
    begin = q * torch.tensor([1.0] * s + [n_tasks**-0.5] * (2 * s), dtype=torch.float64)  # S, P_t, P of another task

    def loss(w):
        own = w[..., : 2 * s]
        return torch.linalg.det(torch.eye(2 * s, dtype=torch.float64) + 2 * own.mT @ own) ** -0.5

    def admissible(w):
        u, sizes, v = torch.linalg.svd(w, full_matrices=False)
        gap = (u * sizes.clamp(max=1)[..., None, :]) @ v - begin
        return begin + gap * (gamma / gap.norm(dim=(-2, -1), keepdim=True)).clamp(max=1)

    closed = (3**-s * (1 + 2 * after**2) ** -s) ** 0.5
    w = admissible(begin + 0.3 * torch.randn(30, 3 * s, 3 * s, generator=gen(2), dtype=torch.float64))
    assert (loss(w) >= closed - 1e-12).all()
    for _ in range(3000):
        w = w.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(w).sum(), w)
        w = admissible(w.detach() - 0.3 * slope)
    assert (loss(w) >= closed - 1e-12).all() and (loss(w).min() - closed) < 1e-6
    best = w[loss(w).argmin(), :, : 2 * s]
    assert (torch.linalg.svdvals(best)[s:] - after).abs().max() < 1e-2


def test_cka_of_representations_is_the_cosine_of_weights():

    z = torch.randn(200_000, 8, generator=gen(), dtype=torch.float64)
    for one, other in ((1.0, 0.2), (0.5, 0.05), (1.0, 0.0)):
        a, b = (torch.tensor([1.0] * 4 + [w] * 4, dtype=torch.float64).sqrt() for w in (one, other))
        turn = torch.linalg.qr(torch.randn(8, 8, generator=gen(3), dtype=torch.float64))[0]
        measured = measure.linear_cka(z * a, (z * b) @ turn).item()
        assert abs(measured - theory.weight_cosine(one, other, 4, 4)) < 0.005
    t1, t2 = 2, 5
    closed = (1 + 1 / (t1 * t2)) / math.sqrt((1 + t1**-2) * (1 + t2**-2))
    assert math.isclose(theory.weight_cosine(1 / t1, 1 / t2, 7, 7), closed)
