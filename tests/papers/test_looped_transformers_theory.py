"""Closed forms of chapter 14 against the literal attention, autograd, enumeration, quadrature and sampling."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from mvnb.papers.icl_and_scale.icl import self_attention
from mvnb.papers.looped_transformers import data, model, theory, training

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


def looped(x, y, q, alpha, steps, preconditioner=None):
    """The literal loop: all states ``(T + 1, n + 1, d + 1)``."""
    return model.loop(model.as_prompt(x, y, q, alpha), *model.gradient_weights(*x.shape, preconditioner), steps)


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


def test_one_layer_is_lemma_8_13():
    x, _ = problem()
    y, q, alpha = normal(9, seed=5), normal(4, seed=3), -1.3
    z = model.as_prompt(x, y, q, alpha)
    out = theory.linear_attention(z, *model.gradient_weights(9, 4))
    assert torch.equal(out[:-1], torch.zeros(9, 5, dtype=D64)) and (out[:, -1] == 0).all()
    assert torch.allclose(out[-1, :-1], q @ x.T @ x + alpha * y @ x, **CLOSE)


@pytest.mark.parametrize("alpha", [1.7, -0.4])
def test_the_loop_is_descent_from_any_start_with_any_steps(alpha):
    x, theta = problem()
    y, q = x @ theta + normal(9, seed=7), normal(4, seed=3)
    steps = 0.02 * normal(12, seed=9)
    states = looped(x, y, q, alpha, steps)
    path = theory.descent(x, y, steps, -q / alpha)
    assert torch.allclose(-states[:, -1, :-1], alpha * path, **CLOSE)
    assert torch.equal(states[:, :-1], states[:1, :-1].expand(13, 9, 5))
    assert (states[:, -1, -1] == alpha).all()


def test_a_preconditioner_sits_in_the_values():
    x, theta = problem()
    y, alpha, b = x @ theta, 0.8, normal(4, 4, seed=5) / 4
    states = looped(x, y, torch.zeros(4, dtype=D64), alpha, torch.full((6,), 0.03, dtype=D64), b)
    guess = torch.zeros(4, dtype=D64)
    for _ in range(6):
        guess = guess - 0.03 * b.T @ x.T @ (x @ guess - y)
    assert torch.allclose(-states[-1, -1, :-1], alpha * guess, **CLOSE)


@pytest.mark.parametrize("sharpness", [0.0, 0.7])
def test_the_last_row_is_that_of_the_whole_loop(sharpness):
    x, theta = problem()
    z, steps = model.as_prompt(x, x @ theta, torch.zeros(4, dtype=D64), 1.0), 0.3 * torch.rand(6).double()
    query, value = torch.eye(5, dtype=D64) + normal(5, 5, seed=1) / 9, normal(5, 5, seed=2) / 3
    value[:, -1] = 0
    found = model.last_row(z[:-1], query, value[:, :-1], steps, sharpness)
    mask = model.gradient_weights(9, 4)[2]
    for eta in steps:
        scores = z @ query @ z.T
        softmax = scores[:, :-1].mul(sharpness).softmax(1) / (sharpness or 1)
        attention = mask * torch.nn.functional.pad(softmax, (0, 1)) if sharpness else mask * scores / 9
        z = z - eta * attention @ z @ value
    assert torch.allclose(found, -z[-1, :-1], **CLOSE)


def test_softmax_attention_descends_a_log_sum_exp():
    """prop-14-softmax, and its limit for small sharpness."""
    x, goal = data.conditioned_prompts(9, 4, 5.0, 1, torch.Generator().manual_seed(4))
    x, goal, hand = x[0], goal[0], training.by_hand(4, torch.zeros(1, 1, dtype=D64))
    examples = torch.cat([x, (x @ goal)[:, None]], 1)

    def loop(steps, sharpness):
        return model.last_row(examples, hand["query"][0], hand["value"][0], torch.tensor(steps, dtype=D64), sharpness)

    def loss(theta):
        return torch.logsumexp(1.5 * x @ (goal - theta), 0) / 1.5**2

    one, two = loop([0.4], 1.5), loop([0.4, 0.7], 1.5)
    assert torch.allclose(two, one - 0.7 * torch.func.grad(loss)(one), **CLOSE)
    assert torch.func.grad(loss)(goal).abs().max() < 1e-12
    assert torch.allclose(torch.func.hessian(loss)(goal), x.T @ x / 9, **CLOSE)
    assert torch.allclose(loop([0.4, 0.7], 1e-6), theory.descent(x, x @ goal, torch.tensor([0.4, 0.7]) / 9)[-1], atol=1e-5)
    assert torch.func.grad(loss)(goal + 0.1).norm() > 0.01
    moved = x + 0.3
    assert torch.func.grad(lambda theta: torch.logsumexp(moved @ (goal - theta), 0))(goal).norm() > 0.1


def test_conditioned_prompts_have_their_condition_number_and_mean_zero():
    x, _ = data.conditioned_prompts(16, 4, 32.0, 300, torch.Generator().manual_seed(5))
    values = torch.linalg.eigvalsh(x.mT @ x / 16)
    assert torch.allclose(values[:, -1], torch.ones(300, dtype=D64)) and x.mean(1).abs().max() < 1e-12
    assert torch.allclose(values[:, 0], torch.full((300,), 1 / 32, dtype=D64))
    middle = -values[:, 1:3].log() / math.log(32)
    assert abs(middle.mean() - 0.5) < 0.05 and middle.min() < 0.1 and middle.max() > 0.9
    overlaps = torch.linalg.eigh(x.mT @ x)[1][:, :, -1].square().mean(0)
    assert (overlaps - 0.25).abs().max() < 0.05  # directions are random


def test_the_size_of_q_is_fixed():
    x, theta = problem()
    examples = torch.cat([x, (x @ theta)[:, None]], 1)[None, None]
    params = training.by_hand(4, torch.full((1, 1), -3.0, dtype=D64))
    larger = params | {"query": 3 * params["query"]}
    errors = [training.squared_error(one, examples, theta[None, None], 5, 1.0) for one in (params, larger)]
    assert torch.allclose(*errors)
    states = looped(x, x @ theta, torch.zeros(4, dtype=D64), 1.0, torch.full((5,), math.exp(-3.0) / 9, dtype=D64))
    error = training.squared_error(params, examples, theta[None, None], 5)
    assert error.item() == pytest.approx((-states[-1, -1, :-1] - theta).square().sum().item())


def test_the_loop_with_memory_is_heavy_ball_descent():
    """eq-14-memory."""
    x, theta = problem()
    zero, eye, one = torch.zeros(4, 4, dtype=D64), torch.eye(4, dtype=D64), torch.ones(1, 1, dtype=D64)
    write = torch.cat([torch.cat([eye, eye], 1), torch.cat([zero, zero], 1)])
    skip = torch.block_diag(torch.cat([torch.cat([eye, zero], 1), 0.4 * torch.cat([eye, eye], 1)]), one)
    z = model.as_prompt(torch.nn.functional.pad(x, (0, 4)), x @ theta, torch.zeros(8, dtype=D64), 0.7)
    guess = move = torch.zeros(4, dtype=D64)
    for _ in range(6):
        attention = theory.linear_attention(
            z, torch.block_diag(eye, zero, one), torch.block_diag(write, 0 * one), model.gradient_weights(9, 8)[2]
        )
        z = z @ skip - 0.03 * attention
        move = 0.4 * move - 0.03 * x.T @ (x @ guess - x @ theta)
        guess = guess + move
    assert torch.allclose(-z[-1, :4], 0.7 * guess, **CLOSE)


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


def test_descent_is_linear_in_alpha_and_diverges_beyond_two_over_l():
    x, theta = problem()
    zero, top = torch.zeros(4, dtype=D64), torch.linalg.matrix_norm(x.T @ x, 2)
    out = [looped(x, x @ theta, zero, a, torch.full((8,), 0.02, dtype=D64))[-1, -1, :-1] for a in (1.0, -2.5)]
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


def largest_error(kappa, loops):
    """eq-14-chebyshev."""
    r = (kappa**0.5 + 1) / (kappa**0.5 - 1)
    return 2 / (r**loops + r**-loops)


def test_chebyshev_steps_alternate_between_their_bound():
    low, high, loops = 2.0, 9.0, 5
    p = theory.residuals(torch.linspace(low, high, 20001, dtype=D64), theory.chebyshev_steps(low, high, loops))[-1]
    bound = largest_error(high / low, loops)
    assert p.abs().max().item() == pytest.approx(bound, rel=1e-9)
    touches = (p.abs() > bound * (1 - 1e-6)).nonzero()[:, 0]
    groups = torch.tensor_split(touches, (touches.diff() > 1).nonzero()[:, 0] + 1)
    signs = [p[g[0]].sign().item() for g in groups]
    assert len(signs) == loops + 1 and all(a == -b for a, b in pairwise(signs))


def test_no_other_schedule_has_a_smaller_largest_error():
    low, high, loops = 2.0, 9.0, 4
    grid = torch.linspace(low, high, 500, dtype=D64)
    bound = largest_error(high / low, loops)
    best = theory.chebyshev_steps(low, high, loops)
    for scale in (0.001, 0.03, 0.5):
        steps = best * (1 + scale * normal(2000, loops))
        assert (theory.residuals(grid, steps)[:, -1].abs().amax(1) > bound * (1 - 1e-6)).all()


def test_loops_that_are_needed():
    spectrum = torch.logspace(0, math.log10(30), 16, dtype=D64)
    for kind, schedule in theory.SCHEDULES.items():
        loops = training.loops_needed(30.0, kind)
        squares = [theory.prediction_square(theory.residuals(spectrum, schedule(1.0, 30.0, T))[-1]) for T in (loops - 1, loops)]
        assert squares[1] <= 1e-6 < squares[0]


def test_the_lessons_table_of_loops_for_a_large_condition_number():
    kappa, error = 1e6, 1e-3
    assert math.log(error) / math.log1p(-1 / kappa) == pytest.approx(kappa * math.log(1 / error), rel=1e-3)
    assert math.log(error) / math.log((kappa - 1) / (kappa + 1)) == pytest.approx(kappa / 2 * math.log(1 / error), rel=1e-3)
    assert largest_error(kappa, kappa**0.5 / 2 * math.log(2 / error)) == pytest.approx(error, rel=1e-3)


def test_the_lessons_example():
    x, goal = torch.tensor([[1, 1], [0.5, -0.5]], dtype=D64), torch.tensor([1, 0], dtype=D64)
    spectrum, share = eigen(x, goal)
    assert spectrum.tolist() == pytest.approx([0.5, 2]) and share.tolist() == pytest.approx([0.5, 0.5])
    errors = 1 - theory.descent(x, x @ goal, torch.full((14,), 0.5, dtype=D64)) @ goal
    assert errors[1:].tolist() == pytest.approx([0.5 * 0.75**t for t in range(1, 15)])
    assert errors[13] > 0.01 > errors[14] and math.exp(-37 / 8) < 0.01 < math.exp(-36 / 8)
    assert theory.descent(x, x @ goal, torch.tensor([0.8], dtype=D64))[1].tolist() == pytest.approx([1, 0.6])


def test_two_over_l_plus_mu_is_chebyshevs_one_step_and_the_best_constant_one():
    assert theory.chebyshev_steps(2.0, 6.0, 1).item() == pytest.approx(2 / 8)
    assert largest_error(3.0, 1) == pytest.approx(2 / 4)
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


def marchenko_pastur(ratio, count=400):
    """Nodes and weights ``(count,)`` of the law of eigenvalues of ``X^T X / n``, X standard normal, ``ratio = d / n`` < 1.

    Gauss quadrature for the semicircle, divided by lambda: exact up to a geometrically small error. The edges are
    ``(1 -+ sqrt(ratio))^2``.
    """
    angle = torch.arange(1, count + 1, dtype=torch.float64) * math.pi / (count + 1)
    nodes = 1 + ratio + 2 * ratio**0.5 * angle.cos()
    return nodes, 2 * angle.sin().square() / ((count + 1) * nodes)


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.7])
def test_marchenko_pastur_law_and_its_best_steps(ratio):
    nodes, weights = marchenko_pastur(ratio, 2000)
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
    nodes, weights = marchenko_pastur(ratio, 2000)
    p = theory.momentum_residuals(nodes, 1.0, ratio, 12)
    expected = ratio ** torch.arange(13, dtype=D64)
    assert torch.allclose(p.square() @ weights, expected, rtol=1e-7)
    gram = (p * weights) @ p.T / torch.outer(expected.sqrt(), expected.sqrt())
    assert torch.allclose(gram, torch.eye(13, dtype=D64), atol=1e-7)  # they are orthogonal polynomials


def test_the_law_is_that_of_large_gram_matrices():
    x = normal(1200, 300)
    values = torch.linalg.eigvalsh(x.T @ x / 1200)
    nodes, weights = marchenko_pastur(0.25)
    for k in (-1, 2, 3):
        assert (values**k).mean() == pytest.approx((weights @ nodes**k).item(), rel=0.02)
    assert values.min() == pytest.approx(0.25, rel=0.1) and values.max() == pytest.approx(2.25, rel=0.1)


# --- The earlier bound ---


def test_the_earlier_bound():
    assert theory.earlier_bound(5, 4, 1) ** 2 == pytest.approx(655_360**2)
    assert theory.earlier_bound(5, 4, 655_360**2) == pytest.approx(1.0)
    # its printed condition asks for a bound of 2^(-2T) without the factor 2^(2T), which is the bound being at most 1
    assert 8 * 5 * 16 / 655_360 == pytest.approx(2.0**-10)
