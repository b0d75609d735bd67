"""Closed forms of chapter 11 for linear attention, against autograd, random search, quadrature by moments and sampling."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvnb.papers.icl_and_scale import icl
from mvnb.papers.icl_and_scale.data import InContextRegression

SPECTRUM = (3.0, 2.0, 1.2, 0.6, 0.3)
N, M = 7, 5
D64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rotated(seed=0):
    q, _ = torch.linalg.qr(torch.randn(5, 5, generator=generator(seed), dtype=D64))
    return q @ torch.diag(torch.tensor(SPECTRUM, dtype=D64)) @ q.T, q


def second_moment(b, covariance, n):
    """E[L B L] of a Wishart mean L, by summing Isserlis' three pairings over equal and different examples."""
    pair = covariance @ b @ covariance
    same = pair + covariance @ b.T @ covariance + (b * covariance).sum() * covariance
    return ((n - 1) * pair + same) / n


def test_population_loss_is_its_definition_by_moments():
    covariance, _ = rotated()
    u = torch.randn(5, 5, generator=generator(1), dtype=D64)
    b = u @ covariance @ u.T
    exact = (second_moment(b, covariance, N) - 2 * covariance @ u @ covariance + covariance).trace() / 2
    assert icl.population_loss(u, covariance, N).item() == pytest.approx(exact.item(), rel=1e-12)


@pytest.mark.parametrize("rank", range(6))
def test_optimum_has_the_stated_loss_and_beats_random_matrices_of_its_rank(rank):
    covariance, q = rotated()
    best = icl.optimal_weight(covariance, N, rank)
    loss = icl.population_loss(best, covariance, N).item()
    assert loss == pytest.approx(float(icl.pretrained_loss(SPECTRUM, N, rank)), rel=1e-12)
    tau = icl.pass_through(SPECTRUM, N, rank)
    assert np.allclose((q.T @ best @ q).diagonal().numpy() * np.array(SPECTRUM), tau, atol=1e-12)
    g = generator(rank)
    for scale in (0.01, 0.3):
        near = torch.randn(2000, 5, max(rank, 1), generator=g, dtype=D64)
        far = torch.randn(2000, max(rank, 1), 5, generator=g, dtype=D64)
        left, values, right = torch.linalg.svd(best)
        a = left[:, : max(rank, 1)] * values[: max(rank, 1)]
        others = (a + scale * near) @ (right[: max(rank, 1)] + scale * far) if rank else torch.zeros(1, 5, 5, dtype=D64)
        assert icl.population_loss(others, covariance, N).min() >= loss - 1e-12


def test_average_risk_is_twice_the_pretraining_loss():
    for rank in range(6):
        average = icl.risk(SPECTRUM, np.ones(5), N, rank, N)
        assert average == pytest.approx(2 * float(icl.pretrained_loss(SPECTRUM, N, rank)), rel=1e-12)


def exact_risk(w, rank, noise, flip):
    """The risk from the moments of h, without the formula: tensors of order four by Isserlis."""
    lam, tau = np.array(SPECTRUM), icl.pass_through(SPECTRUM, N, rank)
    v, cov = tau / lam, np.diag(lam)
    mean = (1 - 2 * flip) * lam * w
    second = (w @ cov @ w + noise**2) * cov + 2 * np.outer(lam * w, lam * w)
    h2 = ((M - 1) * np.outer(mean, mean) + second) / M
    return v @ (h2 * cov) @ v - 2 * (v * lam * w) @ mean + w @ cov @ w


@given(st.floats(0, 1), st.floats(0, 2), st.integers(0, 5))
def test_risk_is_what_the_moments_give(flip, noise, rank):
    w = np.array([0.5, -1.0, 2.0, 0.3, 1.5])
    value = icl.risk(SPECTRUM, w, N, rank, M, noise, flip)
    assert value == pytest.approx(exact_risk(w, rank, noise, flip), rel=1e-10)


@pytest.mark.parametrize(("noise", "flip"), [(0.0, 0.0), (0.7, 0.3), (0.5, 1.0)])
def test_risk_agrees_with_sampled_prompts(noise, flip):
    w = torch.tensor([0.5, -1.0, 2.0, 0.3, 1.5])
    x, y, query, target = InContextRegression(SPECTRUM, M).sample(100_000, generator(3), w, noise, flip)
    h = (y[..., None] * x).mean(1)
    for rank in (0, 2, 5):
        v = torch.tensor(icl.pass_through(SPECTRUM, N, rank) / np.array(SPECTRUM)).float()
        error = ((h * query) @ v - target).square().double()
        exact = icl.risk(SPECTRUM, w.double().numpy(), N, rank, M, noise, flip)
        assert abs(error.mean() - exact) < 5 * error.std() / len(error) ** 0.5


def test_gain_is_the_difference_of_two_risks_and_the_drop_has_its_formula():
    w = np.array([0.5, -1.0, 2.0, 0.3, 1.5])
    risks = icl.risk(SPECTRUM, w, N, np.arange(6), M, 0.4, 0.2)
    assert np.allclose(np.diff(risks), icl.direction_gain(SPECTRUM, w, N, M, 0.4, 0.2), rtol=1e-10)
    drop = icl.risk(SPECTRUM, w, N, 3, M, 0.4, 1.0) - icl.risk(SPECTRUM, w, N, 3, M, 0.4, 0.0)
    tau = icl.pass_through(SPECTRUM, N, 3)
    assert drop == pytest.approx(4 * (w**2 * np.array(SPECTRUM) * tau).sum(), rel=1e-12)
    zero = icl.risk(SPECTRUM, w, N, 0, M, np.array([0.0, 2.0]), np.array([0.0, 1.0]))
    assert np.allclose(zero, (w**2 * np.array(SPECTRUM)).sum())


def test_shares_lie_in_order_and_tend_to_one():
    tau = icl.pass_through(SPECTRUM, N, 5)
    assert (np.diff(tau) < 0).all() and (tau > 0).all() and (tau < 1).all()
    assert np.allclose(icl.pass_through(SPECTRUM, 10**9, 5), 1, atol=1e-6)
    assert np.allclose(icl.attention_share(icl.pass_through(SPECTRUM, N, np.array([1, 2])), 2), 1)
    assert icl.attention_share(icl.pass_through(SPECTRUM, 10**9, 5), 2) == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize("spectrum", [(1.0, 2.0), (1.0, -1.0), ((1.0,),)])
def test_a_spectrum_that_is_none_is_refused(spectrum):
    with pytest.raises(ValueError, match="descending"):
        icl.pass_through(spectrum, N, 1)


def test_self_attention_is_the_whole_layer():
    g = generator()
    x, y, query, value, keys = (torch.randn(*s, generator=g, dtype=D64) for s in ((6, 9, 4), (6, 9), (6, 4), (5, 5), (5, 5)))
    said = icl.self_attention(x, y, query, value[-1], keys[:, :4])
    for i in range(6):
        prompt = torch.zeros(5, 10, dtype=D64)
        prompt[:4, :-1], prompt[-1, :-1], prompt[:4, -1] = x[i].T, y[i], query[i]
        out = prompt + value @ prompt @ prompt.T @ keys @ prompt / 9
        assert said[i].item() == pytest.approx(out[-1, -1].item(), abs=1e-12)


# --- The sampler ---


def test_prompts_have_the_stated_shapes_labels_and_flips():
    world = InContextRegression(SPECTRUM, M)
    w = torch.arange(5.0)
    clean = world.sample(50, generator(), w, dtype=D64)
    assert clean.x.shape == (50, M, 5) and clean.y.shape == (50, M)
    assert torch.allclose(clean.y, clean.x @ w.double())
    assert torch.allclose(clean.target, clean.query @ w.double())
    flipped = world.sample(50, generator(), w, flip=1.0, dtype=D64)
    assert torch.allclose(flipped.y, -clean.y)
    noisy = world.sample(2000, generator(), torch.zeros(5), noise=2.0)
    assert noisy.y.std().item() == pytest.approx(2.0, rel=0.05)
    with pytest.raises(ValueError, match="1 or more"):
        InContextRegression(SPECTRUM, 0)


def test_direct_correlations_have_the_moments_of_sampled_ones():
    world, n = InContextRegression(SPECTRUM, 4), 200_000
    x, y, query, target = world.sample(n, generator(1))
    samples = ((torch.einsum("nm,nmd->nd", y, x) / 4, query, target), world.correlations(n, generator(2)))
    moments = []
    for h, q, t in samples:
        features = torch.cat([h.square(), h * q * t[:, None], (h.square() * q.square())], 1).double()
        moments.append((features.mean(0), features.var(0) / n))
    (a, va), (b, vb) = moments
    assert ((a - b).abs() / (va + vb).sqrt()).max() < 5
