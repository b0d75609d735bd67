"""Closed forms of chapter 07 against simulation, quadrature and autograd."""

import numpy as np
import pytest
import torch
from scipy import integrate, optimize

from mvnb.papers.landscape_aware_growing import theory


def flow(start, demand, time):
    def push(_, uv):
        u, v = uv
        return [-(u * v - demand) * v, -(u * v - demand) * u]

    root = np.sqrt(start)
    return np.prod(integrate.solve_ivp(push, (0, time), [root, root], rtol=1e-10, atol=1e-12).y[:, -1])


@pytest.mark.parametrize("start", [0.01, 0.5, 1.3, 4.0])
def test_pair_product_is_the_flow(start):
    for demand in (0.7, 1.3):
        assert theory.pair_product(start, demand, 1.7) == pytest.approx(flow(start, demand, 1.7), rel=1e-7)
    assert theory.pair_product(start, 0.7, 0.0) == pytest.approx(start)


@pytest.mark.parametrize(("low", "high"), [(0.02, 3.0), (0.1, 2.2), (0.3, 2.0)])
def test_losses_are_equal_at_the_crossing_and_nowhere_else(low, high):
    def gap(t):
        return np.diff((theory.pair_product([low, high], 1.0, t) - 1) ** 2)[0]

    time = float(theory.crossing_time(low, high, 1.0))
    assert optimize.brentq(gap, 1e-9, 5) == pytest.approx(time, abs=1e-9)
    assert gap(time / 2) > 0 > gap(2 * time)
    assert time < np.log(2) / 2 or high < 2.5


def test_no_crossing_where_the_order_is_right_from_the_start():
    assert np.isnan(theory.crossing_time(0.9, 3.0, 1.0))  # the low start is ahead, and stays there
    assert np.isnan(theory.crossing_time(0.1, 1.2, 1.0))  # the high one is


def test_the_limit_of_small_starts():
    a = 1 - 1 / 3
    assert theory.crossing_time(1e-9, 3.0, 1.0) == pytest.approx(np.log(2 * a) / 2, abs=1e-6)


def test_equal_initial_losses_end_in_favour_of_the_high_start():
    for x in (0.1, 0.5, 0.9):
        low, high = np.abs(theory.pair_product([1 - x, 1 + x], 1.0, 3.0) - 1)
        assert high < low


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.pair_product(0.0, 1.0, 1.0),
        lambda: theory.pair_product(1.0, 1.0, -1.0),
        lambda: theory.crossing_time(1.2, 2.0, 1.0),
        lambda: theory.crossing_time(0.0, 2.0, 1.0),
    ],
)
def test_impossible_starts_are_refused(call):
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("cosine", [-1.0, -0.4, 0.0, 0.7, 1.0])
def test_arc_cosine_is_the_mean_of_two_relus(cosine):
    if abs(cosine) == 1:
        assert theory.arc_cosine(cosine) == pytest.approx((1 + cosine) / 4)
        return
    sine = np.sqrt(1 - cosine**2)
    # in polar coordinates: E r^2 = 2, and the angle is uniform
    value, _ = integrate.quad(
        lambda t: max(np.cos(t), 0) * max(cosine * np.cos(t) + sine * np.sin(t), 0) / np.pi, -np.pi, np.pi, limit=200
    )
    assert theory.arc_cosine(cosine) == pytest.approx(value, abs=1e-6)


def test_random_blocks_have_the_variance_of_the_theorem():
    g = torch.Generator().manual_seed(0)
    dim, hidden, tau, draws = 12, 40, 0.1, 6000
    z = torch.randn(3, dim, generator=g, dtype=torch.float64)
    z = (z - z.mean(1, keepdim=True)) / z.std(1, unbiased=False, keepdim=True)
    w1, w2, wv, wo = (
        tau * torch.randn(draws, *s, generator=g, dtype=torch.float64)
        for s in ((dim, hidden), (hidden, dim), (dim, dim), (dim, dim))
    )
    mlp = (z @ w1).relu() @ w2
    measured = torch.einsum("mid,mjd->ij", mlp, mlp) / draws / dim
    expected = tau**4 * dim * hidden * theory.arc_cosine((z @ z.T / dim).numpy())
    np.testing.assert_allclose(measured.numpy(), expected, rtol=0.06)
    share = torch.rand(3, 3, generator=g, dtype=torch.float64)
    share = share / share.sum(1, keepdim=True)
    attention = share @ z @ wv @ wo
    variance = attention.square().mean((0, 2))
    np.testing.assert_allclose(variance, tau**4 * dim * (share @ z).square().sum(1), rtol=0.06)
    assert (variance <= tau**4 * dim**2 * 1.05).all()
    assert 2 * (0.84 / np.sqrt(8)) ** 4 * 8**2 == pytest.approx(1, rel=0.02)  # the exercise
