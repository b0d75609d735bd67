"""Closed forms of chapter 14 against the literal attention, autograd, enumeration, quadrature and sampling."""

import math
from itertools import pairwise

import chapter_source
import numpy as np
import pytest
import torch

from mvnb.papers.icl_and_scale.icl import self_attention
from mvnb.papers.looped_transformers import theory

D64 = torch.float64
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D64)


def problem(n=9, d=4, seed=0):
    x, theta = normal(n, d, seed=seed), normal(d, seed=seed + 1)
    return x, theta / theta.norm()


def eigen(x, theta):
    """Spectrum and shares of one prompt."""
    values, vectors = torch.linalg.eigh(x.mT @ x)
    return values, (vectors.mT @ theta).square()


@pytest.fixture(scope="module")
def page():
    space = chapter_source.functions_of("14_looped_transformers")
    space["f64"] = {"dtype": D64}
    return space


def looped(page, x, y, q, alpha, steps, preconditioner=None):
    """The literal loop: all states ``(T + 1, n + 1, d + 1)``."""
    z = page["as_prompt"](x, y, q, alpha)
    weights = page["gradient_weights"](x.shape[-1], preconditioner)
    return page["loop"](z, *weights, page["last_row_mask"](len(x)), steps)


# --- The layer and the loop ---


def test_linear_attention_is_its_definition_by_sums_and_the_layer_of_chapter_11():
    z, q, p, mask = normal(5, 3), normal(3, 3, seed=1), normal(3, 3, seed=2), normal(5, 5, seed=3)
    out = torch.zeros(5, 3, dtype=D64)
    for i in range(5):
        for j in range(5):
            out[i] += mask[i, j] * (z[i] @ q @ z[j]) * (z[j] @ p)
    assert torch.allclose(theory.linear_attention(z, q, p, mask), out, **CLOSE)
    x, y, query, value, keys = normal(7, 2), normal(7, seed=1), normal(2, seed=2), normal(3, 3, seed=3), normal(3, 3, seed=4)
    rows = torch.cat([torch.cat([x, y[:, None]], 1), torch.nn.functional.pad(query, (0, 1))[None]])
    layer = rows + theory.linear_attention(rows, keys.T, value.T / 7)
    assert layer[-1, -1].item() == pytest.approx(self_attention(x, y, query, value[-1], keys[:, :2]).item(), abs=1e-12)


def test_one_layer_is_lemma_8_13(page):
    x, _ = problem()
    y, q, alpha = normal(9, seed=5), normal(4, seed=3), -1.3
    z = page["as_prompt"](x, y, q, alpha)
    out = theory.linear_attention(z, *page["gradient_weights"](4), page["last_row_mask"](9))
    assert torch.equal(out[:-1], torch.zeros(9, 5, dtype=D64)) and (out[:, -1] == 0).all()
    assert torch.allclose(out[-1, :-1], q @ x.T @ x + alpha * y @ x, **CLOSE)


@pytest.mark.parametrize("alpha", [1.7, -0.4])
def test_the_loop_is_descent_from_any_start_with_any_steps(page, alpha):
    x, theta = problem()
    y, q = x @ theta + normal(9, seed=7), normal(4, seed=3)
    steps = 0.02 * normal(12, seed=9)
    states = looped(page, x, y, q, alpha, steps)
    path = theory.descent(x, y, steps, -q / alpha)
    assert torch.allclose(-states[:, -1, :-1], alpha * path, **CLOSE)
    assert torch.equal(states[:, :-1], states[:1, :-1].expand(13, 9, 5))
    assert (states[:, -1, -1] == alpha).all()


def test_a_preconditioner_sits_in_the_values(page):
    x, theta = problem()
    y, alpha, b = x @ theta, 0.8, normal(4, 4, seed=5) / 4
    states = looped(page, x, y, torch.zeros(4, dtype=D64), alpha, torch.full((6,), 0.03, dtype=D64), b)
    guess = torch.zeros(4, dtype=D64)
    for _ in range(6):
        guess = guess - 0.03 * b.T @ x.T @ (x @ guess - y)
    assert torch.allclose(-states[-1, -1, :-1], alpha * guess, **CLOSE)


def test_the_gradient_and_hessian_are_autograds():
    x, _ = problem()
    y, at = normal(9, seed=4), normal(4, seed=5)

    def loss(t):
        return (y - x @ t).square().sum() / 2

    by_hand = at - theory.descent(x, y, torch.ones(1, dtype=D64), at)[1]
    assert torch.allclose(torch.func.grad(loss)(at), by_hand, **CLOSE)
    assert torch.allclose(torch.func.hessian(loss)(at), x.T @ x, **CLOSE)


def test_descent_takes_stacks():
    x, y, steps = normal(3, 9, 4), normal(3, 9, seed=1), 0.02 * normal(3, 5, seed=2)
    together = theory.descent(x, y, steps)
    one = [theory.descent(x[r], y[r], steps[r]) for r in range(3)]
    assert torch.allclose(together, torch.stack(one, 1), **CLOSE)


def test_symmetries():
    x, theta = problem()
    rotation = torch.linalg.qr(normal(4, 4, seed=8))[0]
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    step = torch.full((7,), 1 / torch.linalg.matrix_norm(x.T @ x, 2), dtype=D64)
    path = theory.descent(x, x @ theta, step)
    turned = theory.descent(x @ rotation, x @ theta, step)
    assert torch.allclose(turned, path @ rotation, **CLOSE)
    assert torch.allclose(turned @ (rotation.T @ theta), path @ theta, **CLOSE)
    assert torch.allclose(theory.descent(x[order], (x @ theta)[order], step), path, **CLOSE)
    assert torch.allclose(theory.descent(3 * x, 3 * x @ theta, step / 9), path, **CLOSE)


def test_descent_is_linear_in_alpha_and_diverges_beyond_two_over_l(page):
    x, theta = problem()
    zero, top = torch.zeros(4, dtype=D64), torch.linalg.matrix_norm(x.T @ x, 2)
    out = [looped(page, x, x @ theta, zero, a, torch.full((8,), 0.02, dtype=D64))[-1, -1, :-1] for a in (1.0, -2.5)]
    assert torch.allclose(out[1], -2.5 * out[0], **CLOSE)
    path = theory.descent(x, x @ theta, torch.full((200,), (2.05 / top).item(), dtype=D64))
    assert (path[-1] - theta).norm() > 100


# --- The polynomial ---


def test_errors_are_the_polynomial_of_the_gram_matrix():
    x, theta = problem()
    spectrum, share = eigen(x, theta)
    steps = 0.08 * torch.rand(6, generator=torch.Generator().manual_seed(2), dtype=D64)
    path, p = theory.descent(x, x @ theta, steps), theory.residuals(spectrum, steps)
    assert torch.allclose((path - theta) @ theta, -(p @ share), **CLOSE)
    assert torch.allclose((path - theta).square().sum(1), p.square() @ share, **CLOSE)


def test_memory_has_its_recurrence():
    x, theta = problem()
    spectrum, share = eigen(x, theta)
    guess, m = torch.zeros(4, dtype=D64), torch.zeros(4, dtype=D64)
    p = theory.momentum_residuals(spectrum, 0.03, 0.4, 6)
    for t in range(7):
        assert (guess - theta).square().sum().item() == pytest.approx((p[t].square() @ share).item(), abs=1e-12)
        m = 0.4 * m - 0.03 * x.T @ (x @ guess - x @ theta)
        guess = guess + m
    assert theory.momentum_residuals(spectrum, 0.03, 0.4, 1).shape == (2, 4)


def test_log_error_is_the_error_and_goes_on_where_iterates_stop():
    x, theta = problem(n=40)
    spectrum, share = eigen(x, theta)
    loops = torch.tensor([0, 1, 5, 20, 400])
    steps = torch.full((400,), (1 / spectrum[-1]).item(), dtype=D64)
    p = theory.residuals(spectrum, steps)[loops]
    for power, values in ((2, p.square() @ share), (1, p @ share)):
        exact = theory.log_error(spectrum, share, loops, power)
        assert torch.allclose(exact[:4].exp(), values[:4], rtol=1e-10) and exact[0].abs() < 1e-12
    path = theory.descent(x, x @ theta, steps)
    floor = (path[-1] - theta).square().sum()
    assert floor > 1e-34 and theory.log_error(spectrum, share, loops)[-1] < -200


def test_prediction_lies_in_between_rises_and_obeys_every_bound():
    for seed in range(20):
        x, theta = problem(seed=seed)
        spectrum, share = eigen(x, theta)
        kappa, t = (spectrum[-1] / spectrum[0]).item(), torch.arange(61, dtype=D64)
        done = 1 - theory.log_error(spectrum, share, t, 1).exp()
        assert (done >= -1e-14).all() and (done <= 1 + 1e-14).all() and (done.diff() >= -1e-14).all()
        sharp, short, printed = (1 - 1 / kappa) ** t, torch.exp(-t / kappa), torch.exp(-t / (2 * kappa))
        assert (1 - done <= sharp + 1e-14).all() and (sharp <= short).all() and (short <= printed).all()
        assert (theory.log_error(spectrum, share, t) <= 2 * t * math.log1p(-1 / kappa) + 1e-9).all()


def test_equal_eigenvalues_need_one_loop():
    spectrum = torch.full((4,), 7.0, dtype=D64)
    assert theory.log_error(spectrum, torch.full((4,), 0.25, dtype=D64), torch.tensor([1]))[0] == -math.inf


def test_one_step_with_the_prompts_own_length_is_exact_with_a_single_example():
    for n in (1, 2, 9):
        x, theta = problem(n=n)
        y = x @ theta
        guess = theory.descent(x, y, 1 / y.square().sum()[None])[-1]
        assert guess @ theta == pytest.approx(1.0, abs=1e-12)
    assert (guess - theta).norm() > 0.05


# --- Averages over the task and the tokens ---


def test_prediction_square_by_sampling():
    p = torch.tensor([0.9, 0.4, -0.3], dtype=D64)
    theta = normal(400_000, 3)
    values = ((theta / theta.norm(dim=1, keepdim=True)).square() @ p).square()
    assert abs(values.mean() - theory.prediction_square(p)) < 5 * values.std() / 400_000**0.5
    assert theory.prediction_square(torch.ones(5, dtype=D64)).item() == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "d"), [(5, 3), (3, 8)])
def test_one_loop_with_one_fixed_step(n, d):
    """The task's own mean square is 2 / (n + 2) whatever d, the distance from theta* (d + 1) / (n + d + 1)."""
    x, theta = normal(300_000, n, d), torch.eye(d, dtype=D64)[0]
    y = x @ theta
    moved = torch.einsum("rnd,rn->rd", x, y)
    scalar = (y.square().sum(1) / (n + 2) - 1).square()
    vector = (moved / (n + d + 1) - theta).square().sum(1)
    for values, mean in ((scalar, 2 / (n + 2)), (vector, (d + 1) / (n + d + 1))):
        assert abs(values.mean() - mean) < 5 * values.std() / 300_000**0.5
    for factor in (0.98, 1.02):  # no other step does better
        assert (factor * y.square().sum(1) / (n + 2) - 1).square().mean() > scalar.mean()


def test_noise_square_by_sampling():
    x, _ = problem()
    values = torch.linalg.eigvalsh(x.T @ x)
    steps = torch.full((5,), 0.03, dtype=D64)
    p = theory.residuals(values, steps)[-1]
    theta, noise = normal(100_000, 4, seed=4), normal(100_000, 9, seed=5)
    theta = theta / theta.norm(dim=1, keepdim=True)
    path = theory.descent(x.expand(100_000, 9, 4), theta @ x.T + 0.7 * noise, steps)[-1]
    error = ((path - theta) * theta).sum(1).square()
    exact = theory.prediction_square(p) + 0.49 * theory.noise_square(values, p)
    assert abs(error.mean() - exact) < 5 * error.std() / 100_000**0.5


def test_noisy_iterates_tend_to_least_squares_as_the_page_says():
    """eq-14-noise."""
    x, theta = problem()
    noise, steps = normal(9, seed=6), 0.05 * torch.rand(7, generator=torch.Generator().manual_seed(3), dtype=D64)
    values, vectors = torch.linalg.eigh(x.T @ x)
    p = vectors @ theory.residuals(values, steps)[-1].diag() @ vectors.T
    path = theory.descent(x, x @ theta + 0.7 * noise, steps)
    added = (torch.eye(4, dtype=D64) - p) @ torch.linalg.solve(x.T @ x, x.T @ noise)
    assert torch.allclose(path[-1] - theta, -p @ theta + 0.7 * added, **CLOSE)


# --- Schedules ---


def test_chebyshev_steps_alternate_between_their_bound():
    low, high, loops = 2.0, 9.0, 5
    p = theory.residuals(torch.linspace(low, high, 20001, dtype=D64), theory.chebyshev_steps(low, high, loops))[-1]
    bound = theory.chebyshev_error(high / low, loops)
    assert p.abs().max().item() == pytest.approx(bound, rel=1e-9)
    touches = (p.abs() > bound * (1 - 1e-6)).nonzero()[:, 0]
    groups = torch.tensor_split(touches, (touches.diff() > 1).nonzero()[:, 0] + 1)
    signs = [p[g[0]].sign().item() for g in groups]
    assert len(signs) == loops + 1 and all(a == -b for a, b in pairwise(signs))


def test_no_other_schedule_has_a_smaller_largest_error():
    low, high, loops = 2.0, 9.0, 4
    grid = torch.linspace(low, high, 500, dtype=D64)
    bound = theory.chebyshev_error(high / low, loops)
    best = theory.chebyshev_steps(low, high, loops)
    for scale in (0.001, 0.03, 0.5):
        steps = best * (1 + scale * normal(2000, loops))
        assert (theory.residuals(grid, steps)[:, -1].abs().amax(1) > bound * (1 - 1e-6)).all()


def test_loops_that_are_needed():
    kappa, error = 30.0, 1e-3
    assert theory.chebyshev_error(kappa, theory.chebyshev_loops(kappa, error)) == pytest.approx(error)
    assert (1 - 1 / kappa) ** theory.constant_loops(kappa, error) == pytest.approx(error)
    assert theory.chebyshev_loops(1e6, error) == pytest.approx(500 * math.log(2 / error), rel=1e-3)


def test_two_over_l_plus_mu_is_chebyshevs_one_step_and_the_best_constant_one():
    assert theory.chebyshev_steps(2.0, 6.0, 1).item() == pytest.approx(2 / 8)
    assert theory.chebyshev_error(3.0, 1) == pytest.approx(2 / 4)
    grid = torch.linspace(2, 6, 101, dtype=D64)
    worst = [theory.residuals(grid, torch.full((5,), step, dtype=D64))[-1].abs().max() for step in (0.24, 2 / 8, 0.26)]
    assert worst[1].item() == pytest.approx((2 / 4) ** 5) and worst[1] < min(worst[0], worst[2])


def test_steps_at_the_eigenvalues_are_exact():
    x, theta = problem()
    spectrum, _ = eigen(x, theta)
    assert (theory.descent(x, x @ theta, 1 / spectrum)[-1] - theta).norm() < 1e-12
    weights = torch.rand(4, generator=torch.Generator().manual_seed(0), dtype=D64) + 0.1
    assert torch.allclose(theory.best_steps(spectrum, weights, 4), 1 / spectrum, rtol=1e-9)


# --- The best steps on average ---


def test_best_steps_beat_all_coefficients():
    """Against the least-squares problem in the coefficients of the polynomial, without orthogonality."""
    nodes = 0.3 + 2 * torch.rand(40, generator=torch.Generator().manual_seed(3), dtype=D64)
    weights = torch.rand(40, generator=torch.Generator().manual_seed(4), dtype=D64)
    weights = weights / weights.sum()
    for loops in (1, 2, 4):
        powers = np.stack([nodes.numpy() ** k for k in range(1, loops + 1)], 1)
        root = weights.sqrt().numpy()
        best = np.linalg.lstsq(root[:, None] * powers, root, rcond=None)[1][0]
        steps = theory.best_steps(nodes, weights, loops)
        p = theory.residuals(nodes, steps)[-1]
        assert (weights @ p.square()).item() == pytest.approx(best, rel=1e-8)
        assert (weights @ p).item() == pytest.approx(best, rel=1e-8)  # the mean is the mean square
        assert (steps > 1 / nodes.max()).all() and (steps < 1 / nodes.min()).all()


def test_one_best_step_is_the_ratio_of_moments():
    nodes, weights = torch.tensor([1.0, 3.0], dtype=D64), torch.tensor([0.25, 0.75], dtype=D64)
    assert theory.best_steps(nodes, weights, 1).item() == pytest.approx(2.5 / 7.0)


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.7])
def test_marchenko_pastur_law_and_its_best_steps(ratio):
    nodes, weights = theory.marchenko_pastur(ratio, 2000)
    moments = [(weights @ nodes**k).item() for k in range(-1, 4)]
    exact = [1 / (1 - ratio), 1, 1, 1 + ratio, 1 + 3 * ratio + ratio**2]
    assert moments == pytest.approx(exact, rel=1e-9)
    low, high = theory.edges(1, ratio)
    for loops in (1, 2, 5):
        steps = theory.chebyshev_steps(low, high, loops, kind=2)
        assert torch.allclose(theory.best_steps(nodes, weights, loops).sort()[0], steps.sort()[0], rtol=1e-8)
        p = theory.residuals(nodes, steps)[-1]
        assert (weights @ p.square()).item() == pytest.approx(theory.least_mean_square(ratio, loops), rel=1e-8)


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.7])
def test_memory_with_weights_one_and_d_over_n_has_mean_square_d_over_n_to_the_t(ratio):
    nodes, weights = theory.marchenko_pastur(ratio, 2000)
    p = theory.momentum_residuals(nodes, 1.0, ratio, 12)
    expected = ratio ** torch.arange(13, dtype=D64)
    assert torch.allclose(p.square() @ weights, expected, rtol=1e-7)
    gram = (p * weights) @ p.T / torch.outer(expected.sqrt(), expected.sqrt())
    assert torch.allclose(gram, torch.eye(13, dtype=D64), atol=1e-7)  # they are orthogonal polynomials


def test_the_law_is_that_of_large_gram_matrices():
    x = normal(1200, 300)
    values = torch.linalg.eigvalsh(x.T @ x / 1200)
    nodes, weights = theory.marchenko_pastur(0.25)
    for k in (-1, 2, 3):
        assert (values**k).mean() == pytest.approx((weights @ nodes**k).item(), rel=0.02)
    assert values.min() == pytest.approx(0.25, rel=0.1) and values.max() == pytest.approx(2.25, rel=0.1)


# --- The earlier bound ---


def test_the_earlier_bound():
    assert theory.earlier_bound(5, 4, 1) ** 2 == pytest.approx(655_360**2)
    assert theory.earlier_bound(5, 4, 655_360**2) == pytest.approx(1.0)
    # its printed condition asks for a bound of 2^(-2T) without the factor 2^(2T), which is the bound being at most 1
    assert 8 * 5 * 16 / 655_360 == pytest.approx(2.0**-10)
