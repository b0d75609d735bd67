"""The binary problems of chapter 09: masses, moments, labels, and parameters that make no sense."""

import math

import pytest
import torch

from mvnb.data import GaussianMixture
from mvnb.papers.gradient_features.data import BlockParity, LinearMargin, MultiIndex


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_mixture_has_its_masses_means_and_deviations():
    world = GaussianMixture(torch.eye(3, 5) * 40, [1, -1, 1], [0.5, 0.3, 0.2], [1.0, 2.0, 0.5])
    x, y = world.sample(40_000, generator(), torch.float64)
    own = torch.cdist(x, world.means).argmin(1)
    assert (world.labels[own] == y).all()
    for j in range(3):
        part = x[own == j]
        assert abs(len(part) / len(x) - world.masses[j]) < 0.02
        assert (part.mean(0) - world.means[j]).abs().max() < 0.06
        assert abs(part.std(0).mean() / world.stds[j] - 1) < 0.02


def test_xor_planes():
    world = GaussianMixture.xor(8, 6.0, (0.6, 0.4))
    assert world.means.shape == (8, 8)
    assert (world.masses @ world.labels).abs() < 1e-12
    assert torch.allclose((world.masses * world.labels) @ world.means, torch.zeros(8).double())
    plane = world.means.abs().argmax(1) // 2
    assert plane.tolist() == [0] * 4 + [1] * 4 and torch.allclose(world.masses[:4].sum(), torch.tensor(0.6).double())
    assert torch.allclose(world.features.norm(dim=1), torch.ones(8).double())
    assert torch.equal(world.labels[:4], torch.tensor([1.0, 1, -1, -1]).double())


def test_orthogonal_clusters_are_linearly_separable():
    world = GaussianMixture.orthogonal(10, 9.0, [1, 1, -1, -1])
    x, y = world.sample(4000, generator(), torch.float64)
    assert (((world.labels @ world.means) @ x.T).sign() == y).double().mean() > 0.99


def test_linear_margin():
    x, y = LinearMargin(6, 0.3).sample(100_000, generator(), torch.float64)
    assert (y * x[:, 0]).min() >= 0.3 and (y * x[:, 0]).max() <= 1.3
    mean = (y[:, None] * x).mean(0)
    assert abs(mean[0] - 0.8) < 0.01 and mean[1:].abs().max() < 0.02


@pytest.mark.parametrize("world", [BlockParity(12, 3), BlockParity(20, 3, 3, 0.1, 0.1), BlockParity(9, 4, 1, 0.0, 0.5)])
def test_block_parity(world):
    x, y = world.sample(100_000, generator(), torch.float64)
    relevant = world.block * world.blocks
    assert set(x.unique().tolist()) <= {-1.0, 0.0, 1.0} and (y.abs() == 1).all()
    bits = x[:, :relevant].view(-1, world.blocks, world.block)
    assert torch.equal(bits.prod(2).sum(1).sign(), y)
    shown = (bits != 0).all(2)
    assert torch.equal(shown, (bits != 0).any(2))  # a block is there or not
    if world.signal and world.blocks > 1:
        alone = shown.sum(1) == 1
        assert abs(alone.double().mean() - 2 * world.blocks * world.signal) < 0.01
        assert (bits[alone].sum(2).abs().sum(1) == world.block).all()
        assert ((bits[alone].sum(2) > 0).any(1)).double().mean() == pytest.approx(0.5, abs=0.02)
    assert (x[:, relevant:] != 0).double().mean() == pytest.approx(2 * world.background, abs=0.01)
    assert x.square().sum(1).mean() == pytest.approx(world.square_norm, rel=0.01)
    # E[y x] is 2 p_A sqrt(k) on every feature, and not zero as the thesis has it
    mean = (y[:, None] * x).mean(0)
    expected = 2 * world.signal * math.sqrt(world.block)
    assert torch.allclose(mean @ world.features.T, torch.tensor(expected).double(), atol=0.02)
    assert torch.allclose(world.features @ world.features.T, torch.eye(world.blocks).double())


@pytest.mark.parametrize("kind", ["quadratic", "cubic"])
def test_targets_are_standardised(kind):
    _, y = MultiIndex(4, kind).sample(400_000, generator(), torch.float64)
    assert abs(y.mean()) < 0.01 and abs(y.var() - 1) < 0.05


def test_replica_and_dtype():
    for world in (GaussianMixture.xor(4, 3.0), LinearMargin(4), BlockParity(6, 3), MultiIndex(4)):
        first, again = world.sample(5, generator(3)), world.sample(5, generator(3))
        assert torch.equal(first.x, again.x) and first.x.dtype == first.y.dtype == torch.float32
        assert first.x.shape[0] == 5 and first.y.shape == (5,)


BAD = [
    lambda: GaussianMixture(torch.eye(2), [1, 2]),
    lambda: GaussianMixture(torch.eye(2), [1, -1], [0.5, 0.6]),
    lambda: GaussianMixture(torch.eye(2), [1, -1], stds=[1.0, 0.0]),
    lambda: GaussianMixture(torch.eye(2), [1, -1, 1]),
    lambda: GaussianMixture.xor(3, 1.0, (0.5, 0.5)),
    lambda: GaussianMixture.orthogonal(1, 1.0, [1, -1]),
    lambda: LinearMargin(1),
    lambda: LinearMargin(3, 0.0),
    lambda: BlockParity(9, 3, 2),
    lambda: BlockParity(9, 4, 1, 0.1),
    lambda: BlockParity(3, 3),
    lambda: BlockParity(9, 3, 1, 0.6),
    lambda: MultiIndex(4, "quartic"),
]


@pytest.mark.parametrize("make", BAD)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError):
        make()
