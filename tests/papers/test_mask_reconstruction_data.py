"""The sampler of Pan et al. 2023, Def. 3.1, against its definition."""

from dataclasses import replace

import pytest
import torch

from mvnb.papers.mask_reconstruction.data import SparseMultiView

PURE = SparseMultiView(4, 14, 12, foreign=1.5, single_view=0.4, patch_noise=0.0, background_noise=0.0)


def draw(world, n=600, seed=0, **kwargs):
    return world.sample(n, torch.Generator().manual_seed(seed), dtype=torch.float64, **kwargs)


def totals(sample, n_features):
    """Total strength of each feature: (n, features)."""
    return torch.stack([torch.where(sample.holds == f, sample.strength, 0.0).sum(1) for f in range(n_features)], 1)


def test_patches_are_what_the_metadata_say():
    sample = draw(replace(PURE, n_patches=24))
    expected = torch.zeros_like(sample.x)
    where = sample.holds >= 0
    expected[where] = torch.nn.functional.one_hot(sample.holds[where], 12).double() * sample.strength[where][:, None]
    assert torch.equal(sample.x, expected)
    counts = torch.stack([(sample.holds == f).sum(1) for f in range(8)], 1)
    assert set(counts.unique().tolist()) == {0, 1}
    own = torch.stack([2 * sample.y, 2 * sample.y + 1], 1)
    assert (counts.gather(1, own) == 1).all()


def test_strengths_keep_to_their_ranges():
    sample = draw(PURE, 3000)
    total = totals(sample, 8)
    own = total.gather(1, torch.stack([2 * sample.y, 2 * sample.y + 1], 1))
    multi = sample.strong == -1
    assert own[multi].min() >= 1.0 and own[multi].max() <= 1.3
    lone, view = own[~multi], sample.strong[~multi]
    strong, weak = lone.gather(1, view[:, None])[:, 0], lone.gather(1, 1 - view[:, None])[:, 0]
    assert strong.min() >= 1.0 and strong.max() <= 1.3 and weak.min() >= 0.1 and weak.max() <= 0.13
    foreign = total.masked_fill(torch.arange(8) // 2 == sample.y[:, None], 0.0)
    assert foreign[foreign > 0].min() >= 0.2 and foreign.max() <= 0.4


def test_frequencies_are_those_of_the_definition():
    sample = draw(PURE, 8000)
    assert abs((sample.strong >= 0).double().mean() - 0.4) < 0.02
    assert abs(sample.strong[sample.strong >= 0].double().mean() - 0.5) < 0.03
    foreign = (sample.holds >= 0).sum(1) - 2
    assert abs(foreign.double().mean() - 6 * 1.5 / 4) < 0.06
    background = (sample.holds == -1).double().mean(0)
    assert background.max() - background.min() < 0.05


def test_noise_has_its_lengths():
    world = replace(PURE, dim=200, patch_noise=0.3, background_noise=2.0)
    sample, pure = draw(world, 200), draw(replace(PURE, dim=200), 200)
    assert torch.equal(sample.holds, pure.holds) and torch.equal(sample.strength, pure.strength)
    noise = (sample.x - pure.x).norm(dim=-1)
    assert abs(noise[sample.holds >= 0].mean() - 0.3) < 0.02 and abs(noise[sample.holds < 0].mean() - 2.0) < 0.05


def test_what_does_not_fit_is_left_out():
    world = SparseMultiView(4, 5, 8, foreign=4.0)
    sample = draw(world)
    assert ((sample.holds >= 0).sum(1) == 5).all()
    assert len({tuple(sorted(row)) for row in sample.holds.tolist()}) > 10


def test_labels_are_drawn_given_or_balanced():
    assert (draw(replace(PURE, balanced=True), 40).y.bincount() == 10).all()
    y = torch.tensor([3, 0])
    assert torch.equal(draw(PURE, 2, y=y).y, y)
    with pytest.raises(ValueError, match="y must have shape"):
        draw(PURE, 3, y=y)
    assert torch.equal(draw(PURE, seed=1).x, draw(PURE, seed=1).x) and not torch.equal(draw(PURE).x, draw(PURE, seed=1).x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_classes": 1}, "n_classes"),
        ({"dim": 7}, "dim"),
        ({"n_patches": 1}, "n_patches"),
        ({"single_view": 1.1}, "single_view"),
        ({"weak": -0.1}, "weak"),
        ({"foreign": 4.5}, "foreign"),
        ({"patch_noise": -1.0}, "noise"),
    ],
)
def test_parameters_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PURE, **change)
