"""Bounds and closed forms of chapter 04 against simulation and brute force."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from mvnb import training
from mvnb.papers.algorithmic_stability import theory
from mvnb.papers.algorithmic_stability.pairs import LockStep, sample_swaps


def logistic(params, x, y):
    w = params["w"]
    z = y * torch.einsum("rnd,rd->rn", x, w)
    slope = -y * torch.sigmoid(-z) / z.shape[1]
    return torch.nn.functional.softplus(-z).mean(1), {"w": torch.einsum("rn,rnd->rd", slope, x)}


def paired(x, y, size, batch, steps, step, pairs=20, ridge=0.0):
    """Weights (2, pairs, d) of both runs, the visits and the swaps; the last 40 points are the test set."""
    pool = len(x) - 40
    swaps = sample_swaps(pool, 40, size, pairs, torch.Generator().manual_seed(1))
    batches = LockStep(x, y, [swaps.members.flatten(0, 1)], batch, [2])
    start = {"w": torch.zeros(2 * pairs, x.shape[1], dtype=torch.float64)}
    run = training.fit(logistic, start, batches, steps=steps, optimizer=training.SGD(step, weight_decay=ridge))
    return run.params["w"].view(2, pairs, -1), batches.visits(0, swaps.position, steps)


@pytest.fixture(scope="module")
def data():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(200, 5, generator=g, dtype=torch.float64)
    y = torch.where(x[:, 0] + 0.5 * torch.rand(200, generator=g, dtype=torch.float64) > 0.75, 1.0, -1.0).double()
    return torch.cat([x, torch.ones(200, 1)], 1), y


def test_lock_step_bound_and_lipschitz(data):
    x, y = data
    lipschitz, smooth = theory.logistic_constants(x.numpy())
    step = 2 / smooth
    w, visits = paired(x, y, 60, 8, 200, step)
    distance = (w[0] - w[1]).norm(dim=-1).numpy()
    bound = theory.distance_bound(step, lipschitz, 8, visits.sum(0).numpy())
    assert (distance <= bound).all() and distance.max() > 0.01 * bound.max()
    change = np.logaddexp(0, -(w @ x.T * y).numpy())
    assert (np.abs(change[0] - change[1]) <= np.outer(distance, x.norm(dim=1)) + 1e-12).all()
    assert visits.sum(0).max() <= theory.most_visits(200, 8, 60)


def test_the_bound_can_be_broken_by_steps_that_expand():
    # one point, a step far above 2 / b: the shared part pushes the runs apart
    x = torch.tensor([[30.0], [-30.0], [30.0], [1.0]], dtype=torch.float64)
    lipschitz, smooth = theory.logistic_constants(x.numpy())
    y = torch.ones(4, dtype=torch.float64)
    w = {"w": torch.tensor([[0.0], [0.01]], dtype=torch.float64)}
    _, grads = logistic(w, x[:2].expand(2, -1, -1), y[:2].expand(2, -1))
    step = 10 / smooth
    after = w["w"] - step * grads["w"]
    assert (after[0] - after[1]).abs().item() > 0.01 and lipschitz == 30.0
    allowed = w["w"] - 2 / smooth * grads["w"]
    assert (allowed[0] - allowed[1]).abs().item() <= 0.01


def test_ridge_bound(data):
    x, y = data
    lipschitz, smooth = theory.logistic_constants(x.numpy())
    ridge, n = 0.5, 40 // 8
    step = 1 / (smooth + ridge)
    w, visits = paired(x, y, 40, 8, 400, step, ridge=ridge)
    distance = (w[0] - w[1]).norm(dim=-1)
    # visits of consecutive epochs may be as near as one step
    bound = theory.distance_bound(step, lipschitz, 8, visits.sum(0).numpy(), ridge, 1)
    assert (distance.numpy() <= bound).all()
    forever = theory.distance_bound(0.001, lipschitz, 8, 1e9, ridge, n)
    assert np.isclose(forever, 2 * lipschitz / (ridge * 40), rtol=0.01)
    assert theory.distance_bound(0.1, 2.0, 8, 5) == pytest.approx(5 * 2 * 0.1 * 2.0 / 8)


def test_logistic_constants_are_attained():
    x = np.array([[3.0, 4.0], [1.0, 0.0]])
    lipschitz, smooth = theory.logistic_constants(x)
    assert lipschitz == 5 and smooth == 25 / 4
    assert theory.mean_smoothness(x) <= smooth
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    points = torch.from_numpy(x)
    hessian = torch.autograd.functional.hessian(lambda w: torch.nn.functional.softplus(-points @ w).mean(), w)
    assert np.isclose(np.linalg.eigvalsh(hessian.numpy())[-1], theory.mean_smoothness(x))


def test_gap_bound():
    assert np.isclose(theory.gap_bound(0.0, 400), math.log(20) ** 0.5 / 20)
    assert theory.gap_bound(0.1, 400) > theory.gap_bound(0.05, 400)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.most_visits(10, 8, 4), "batch"),
        (lambda: theory.gap_bound(1.0, 1), "size"),
        (lambda: theory.tie_weights(11, 0.5, 0.0, 3), "start"),
        (lambda: theory.tie_weights(11, 0.5, 0.1, 0.5), "power"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("q", [1, 2, 3, 4])
@pytest.mark.parametrize("m", [3, 51, 1001])
def test_tie_weights_solve_the_flow(q, m):
    h, s = 0.3, 0.05
    lead = np.array([(m + 1) / 2, (m - 1) / 2]) / m
    a = np.array([lead @ (1, h), lead @ (h, 1)])
    assert np.isclose(a[1] / a[0], theory._tie_ratio(m, h))
    done = lambda t, u: u[0] - 1  # noqa: E731
    done.terminal = True
    solution = solve_ivp(lambda t, u: q * a * u ** (q - 1), (0, 1e4), [s, s], events=done, rtol=1e-10, atol=1e-12)
    assert np.allclose(solution.y[:, -1], theory.tie_weights(m, h, s, q), rtol=1e-6)


def test_only_products_keep_the_tie():
    ms = np.array([11.0, 1001.0])
    linear, cubic = (theory.tie_stability(ms, 0.5, 1e-6, q) for q in (1, 3))
    assert 80 < linear[0] / linear[1] < 100
    assert np.allclose(cubic, math.log(2) - math.log(1 + math.exp(-1)), atol=1e-3)
    late = theory.tie_stability(np.array([1e9, 1e10]), 0.5, 1e-6, 3)
    assert np.isclose(late[0] / late[1], 10, rtol=0.01)
