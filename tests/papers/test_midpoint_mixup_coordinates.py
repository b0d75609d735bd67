"""Weights drawn by their coordinates alone have the law of dense draws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from mvnb.papers.midpoint_mixup.data import random_coordinates


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("extra", [1, 2, 30])
def test_random_coordinates_have_the_law_of_dense_draws(extra):
    n, n_features, scale = 4000, 3, 0.7
    coordinates, rest = random_coordinates((n,), n_features, n_features + extra, scale, seeded())
    assert coordinates.shape == (n, n_features) and rest.shape == (n,) and coordinates.dtype == rest.dtype == torch.float64
    features = nn.init.orthogonal_(normal(n_features, n_features + extra), generator=seeded(1))
    dense = scale * normal(n, n_features + extra, seed=2)
    theirs = dense @ features.T
    outside = dense - theirs @ features
    for squared in (rest.square() / scale**2, outside.norm(dim=-1).square() / scale**2):
        # A chi-square variable with d degrees of freedom: mean d, variance 2 d, kurtosis 3 + 12 / d.
        assert abs(squared.mean() - extra) < 5 * math.sqrt(2 * extra / n)
        assert abs(squared.var() / (2 * extra) - 1) < 5 * math.sqrt((2 + 12 / extra) / n)
    assert stats.ks_2samp(rest, outside.norm(dim=-1)).pvalue > 1e-5
    for drawn in (coordinates, theirs):
        assert (drawn.mean(0).abs() < 5 * scale / math.sqrt(n)).all()
        second = drawn.mT @ drawn / n / scale**2 - torch.eye(n_features, dtype=torch.float64)
        assert second.abs().max() < 5 * math.sqrt(2 / n)
    together = torch.cat([coordinates, coordinates.abs(), rest[:, None]], 1)
    assert np.abs(np.corrcoef(together.T)[-1, :-1]).max() < 5 / math.sqrt(n)


@pytest.mark.parametrize("dim", [1e18, 8.0**20, 10**18])
def test_random_coordinates_in_a_space_too_large_to_write_down(dim):
    coordinates, rest = random_coordinates((3, 4, 5), 6, dim, 1e-9, seeded())
    assert coordinates.shape == (3, 4, 5, 6) and rest.shape == (3, 4, 5)
    assert coordinates.std().item() == pytest.approx(1e-9, rel=0.2)
    # The norm of the rest is sharp: its relative spread is 1 / sqrt(2 dim).
    assert torch.allclose(rest, torch.full_like(rest, 1e-9 * math.sqrt(dim)), rtol=1e-8)
    assert rest.unique().numel() > 10


def test_random_coordinates_without_a_rest_and_without_room():
    coordinates, rest = random_coordinates((2, 3), 4, 4, 1.0, seeded())
    assert rest.shape == (2, 3) and (rest == 0).all()
    assert torch.equal(coordinates, normal(2, 3, 4))
    with pytest.raises(ValueError, match="at least n_features=4"):
        random_coordinates((2, 3), 4, 3, 1.0, seeded())
