"""Dictionary data: exact moments against enumeration, samples against moments."""

import itertools

import numpy as np
import pytest
import torch

from mvnb import training
from mvnb.papers.feature_emergence.data import DictionaryData, PatternCodes, orthonormal_features

WORLDS = {
    "parity": DictionaryData.parity(8, 3),
    "parity, p_o = 0.25": DictionaryData.parity(8, 3, 0.25),
    "interval": DictionaryData.interval(9, 5, 3, 5),
    "unbalanced": DictionaryData.parity(8, 3).unbalanced(0.8),
    "uniform": DictionaryData.parity(8, 3).without_structure(),
}
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())


def enumerated(world):
    """All points with their probabilities: patterns (2^D, D), labels, probabilities."""
    k, points = world.n_relevant, np.array(list(itertools.product([0, 1], repeat=world.n_patterns)))
    count, others = points[:, :k].sum(1), points[:, k:]
    sets = np.array([sum(1 for _ in itertools.combinations(range(k), s)) for s in range(k + 1)])
    chance = sum(
        w[count] / sets[count] * np.prod(np.where(others == 1, q, 1 - q), 1) for w, q in zip(world.weights, world.p_other)
    )
    return points, world.labels[count], chance


@every_world
def test_moments_are_those_of_the_enumeration(world):
    points, y, chance = enumerated(world)
    mean, k = chance @ points, world.n_relevant
    assert chance.sum() == pytest.approx(1)
    assert mean[:k] == pytest.approx(world._means[0]) and mean[k:] == pytest.approx(world._means[1])
    assert chance[y > 0].sum() == pytest.approx(world.positive_share)
    correlation = (chance * y) @ points - (chance @ y) * mean
    assert correlation[:k] == pytest.approx(world.correlations[0], abs=1e-12)
    assert correlation[k:] == pytest.approx(world.correlations[1], abs=1e-12)
    assert (chance @ (points - mean) ** 2).sum() == pytest.approx(world.scale**2)
    x = world._normalise(torch.from_numpy(points).double()).numpy()
    assert chance @ x == pytest.approx(0, abs=1e-12) and (chance @ x**2).sum() == pytest.approx(1)
    covariance = chance @ (points[:, -1] * points[:, -2]) - mean[-1] * mean[-2]
    assert covariance == pytest.approx(world.other_covariance, abs=1e-12)


def test_the_numbers_of_the_thesis():
    parity, interval = DictionaryData.parity(), DictionaryData.interval()
    assert parity.correlations == pytest.approx((0.25, 0)) and parity.scale == pytest.approx(5)
    assert parity.positive_share == pytest.approx(0.5) and parity._means == pytest.approx((0.5, 0.5))
    assert interval.positive_share == pytest.approx(0.584759598771)
    assert interval.correlations[0] == pytest.approx(0.0680067747522)
    assert interval.without_structure().positive_share == pytest.approx(0.0494, abs=1e-4)
    assert DictionaryData.parity(p_o=0.25).other_covariance == pytest.approx(1 / 48)
    uneven = parity.unbalanced(0.8)
    assert uneven.positive_share == pytest.approx(0.2)


@every_world
def test_samples_have_the_moments(world):
    n = 40_000
    sample = world.sample(n, torch.Generator().manual_seed(0), torch.float64, normalised=False)
    points, y, chance = enumerated(world)
    code = (sample.x.long() * 2 ** torch.arange(world.n_patterns - 1, -1, -1)).sum(1)
    share = torch.bincount(code, minlength=len(points)).numpy() / n
    assert (np.abs(share - chance) <= 5 * np.sqrt(chance / n) + 1e-4).all()
    assert torch.equal(sample.y, torch.from_numpy(y)[code].double())


def test_samples_repeat_and_stack():
    world = DictionaryData.parity(20, 5)
    one, again = (world.sample(50, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one.x, again.x) and one.x.dtype == one.y.dtype == torch.float32
    batch = training.stack([world.sample(7, g) for g in training.generators(3, 2)])
    assert batch.x.shape == (2, 7, 20) and batch.y.shape == (2, 7)
    raw = world.sample(50, torch.Generator().manual_seed(3), normalised=False)
    torch.testing.assert_close(world._normalise(raw.x), one.x)
    assert set(raw.x.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DictionaryData.parity(100, 4), "odd"),
        (lambda: DictionaryData.parity(100, 5, 0.9), "p_o must lie"),
        (lambda: DictionaryData.parity(3, 5), "1 to n_patterns=3"),
        (lambda: DictionaryData(4, [[0.5, 0.6]], [0.5], (1,)), "sum to 1"),
        (lambda: DictionaryData(4, [[0.5, 0.5]], [1.5], (1,)), "probabilities"),
        (lambda: DictionaryData(4, [[0.5, 0.5]], [0.5], (2,)), "counts from 0 to 1"),
        (lambda: DictionaryData(4, [[0.0, 1.0]], [0.0], (1,)), "no pattern varies"),
        (lambda: DictionaryData.parity().unbalanced(1.0), "share of negative"),
        (lambda: PatternCodes(4, torch.zeros(3, 2)), "even number of codes"),
        (lambda: PatternCodes(1, torch.zeros(2, 2)), "n_patterns >= 2"),
    ],
)
def test_what_is_impossible_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_codes():
    codes = PatternCodes.random(30, 10, 8, torch.Generator().manual_seed(0))
    sample = codes.sample(40_000, torch.Generator().manual_seed(1), torch.float64)
    assert sample.x.mean(0).abs().max() < 5 / 40_000**0.5
    assert sample.x.square().sum(1).mean().item() == pytest.approx(1, abs=0.01)
    with_label = (sample.y[:, None] * sample.x).mean(0) * codes.scale
    assert (with_label - codes.correlations).abs().max() < 0.02
    # any code word is one label
    word = (sample.x[:, :10] > 0).long() @ 2 ** torch.arange(10)
    assert len(torch.stack([word, sample.y.long()]).unique(dim=1).T) == len(word.unique())


@pytest.mark.parametrize(("n", "dim"), [(1, 1), (1, 6), (4, 4), (8, 13)])
def test_features_are_orthonormal(n, dim):
    features = orthonormal_features(n, dim, 0, torch.float64)
    assert features.shape == (n, dim)
    assert features.is_contiguous()
    assert torch.allclose(features @ features.T, torch.eye(n, dtype=torch.float64), atol=1e-12, rtol=0)


def test_features_have_no_preferred_sign():
    generator = torch.Generator().manual_seed(0)
    signs = torch.stack([orthonormal_features(2, 2, generator).sign().flatten() for _ in range(200)])
    assert ((signs > 0).double().mean(0) - 0.5).abs().max() < 0.15


def test_features_take_a_dtype_and_need_room():
    assert orthonormal_features(2, 3, 0).dtype == torch.float32
    with pytest.raises(ValueError, match="dim >= 4"):
        orthonormal_features(4, 3, 0)
