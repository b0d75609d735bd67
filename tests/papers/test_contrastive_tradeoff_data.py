"""Data of chapter 13: the linear model, views of images, small sets of pictures."""

import pytest
import torch
from torch.nn import functional as F

from mvnb.papers.contrastive_tradeoff import data


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


# --- The linear model ---

WORLD = data.Mixture(shared=2, private=3, spurious=4)


def test_views_share_what_the_augmentation_leaves_alone():
    z, plus = WORLD.pairs([0.5, 0.2, 0.3])(4000, gen())
    assert z.shape == (4000, 2 + 9 + 4) and torch.equal(z[:, :11], plus[:, :11])
    spurious = torch.cat([z[:, 11:], plus[:, 11:]], 1)
    assert (spurious.T.corrcoef() - torch.eye(8)).abs().max() < 0.06 and abs(spurious.std() - 1) < 0.02
    assert abs(z[:, :2].std() - 1) < 0.03
    private = z[:, 2:11].unflatten(1, (3, 3))
    own = (private != 0).all(2)
    assert (own.sum(1) == 1).all() and torch.equal(own, (private != 0).any(2))  # those of one task only
    assert (own.double().mean(0) - torch.tensor([0.5, 0.2, 0.3])).abs().max() < 0.03
    assert abs(private[own].std() - 1) < 0.03


def test_weights_by_kind_and_by_task():
    weights = torch.tensor([[1.0, 3.0, 10, 11, 12, 20, 21, 22, 5, 6, 7, 8]])
    shared, private, spurious = WORLD.by_kind(weights[:, None] * torch.eye(12) + 0.1 * (1 - torch.eye(12)))
    assert (
        shared.tolist() == [[1, 3]] and private.tolist() == [[10, 11, 12, 20, 21, 22]] and spurious.tolist() == [[5, 6, 7, 8]]
    )
    assert WORLD.by_task(weights.diag_embed()).tolist() == [[11, 21]]


def test_labels_of_one_task_have_two_parts_of_variance_one_half():
    few = data.FewLabels.draw(50, 2000, 4, gen())
    assert few.z.shape == (50, 2000, 8) and torch.allclose(
        few.u.unflatten(1, (2, 4)).square().sum(2), torch.tensor(0.5).double()
    )
    assert torch.allclose(few.y[3, 5], few.z[3, 5] @ few.u[3]) and (few.y.std(1) - 1).abs().max() < 0.1
    assert data.root_weights(0.25, 2).tolist() == [1, 1, 0.5, 0.5]


# --- Views ---

PLAIN = torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])  # the whole image, upright, as bright as it was
AUGMENT = {"scale": (0.25, 1.0), "degrees": 90.0}


def test_in_the_middle_of_the_ranges_nothing_changes():
    x = torch.rand(4, 3, 9, 9, generator=gen())
    assert torch.allclose(data.grey_view(x, PLAIN.expand(4, -1), **AUGMENT), x, atol=1e-5)


def test_the_grid_is_that_of_affine_grid():
    maps = torch.randn(5, 2, 3, generator=gen(), dtype=torch.float64)
    expected = F.affine_grid(maps, [5, 1, 7, 4], align_corners=False)
    assert torch.allclose(data._sampling_grid(maps, 7, 4), expected, rtol=0, atol=1e-12)


def test_turn_crop_contrast_and_brightness():
    x = 0.6 * torch.rand(4, 1, 8, 8, generator=gen())

    def changed(images, **values):
        draws = PLAIN.repeat(len(images), 1)
        for place, value in values.items():
            draws[:, int(place[1:])] = value
        return data.grey_view(images, draws, **AUGMENT)

    assert torch.allclose(changed(x, _2=1.0), x.rot90(1, (2, 3)), atol=1e-5)
    assert torch.allclose(changed(x, _6=1.0), 1.4 * x, atol=1e-5)
    mean = x.mean((1, 2, 3), keepdim=True)
    assert torch.allclose(changed(x, _5=0.0), mean + 0.6 * (x - mean), atol=1e-5)
    # a quarter of the area of a ramp spans half of its range
    ramp = torch.linspace(0, 1, 64).expand(50, 1, 64, 64)
    crop = changed(ramp, _0=0.0, _3=torch.linspace(0, 1, 50))
    span = crop[..., -1] - crop[..., 0]
    wider = changed(ramp, _0=0.0, _1=1.0)
    assert (span - 0.5).abs().max() < 0.02 and (wider[..., -1] - wider[..., 0] - 3**-0.5).abs().max() < 0.02
    assert crop[..., 0].min() < 0.1 and crop[..., -1].max() > 0.9


@pytest.mark.parametrize(("name", "classes"), [("letters", 26), ("photographs", 12), ("relief", 12)])
def test_picture_sets(name, classes):
    x, y = data.PICTURE_SETS[name](12)
    assert x.shape[1:] == (1, 12, 12) and len(x) == len(y) >= 1000
    assert x.min() >= 0 and x.max() <= 1 and x.std() > 0.05
    assert y.bincount().tolist() == [len(y) // classes] * classes
    again, _ = data.PICTURE_SETS[name](12)
    assert torch.equal(x, again)


def test_patches_are_cut_from_the_field_that_is_their_label():
    fields = torch.arange(12.0).view(2, 2, 3)  # two images of six fields, each of one value
    images = [one.repeat_interleave(30, 0).repeat_interleave(30, 1) for one in fields]
    x, y = data._patches(images, (2, 3), 5, 12)
    assert y.tolist() == [label for label in range(12) for _ in range(5)]
    assert torch.allclose(x, y[:, None, None, None].expand(-1, 1, 12, 12).float(), atol=1e-4)


def constant(n=60):
    """Pictures of one grey value, by which a view tells its picture: views change the brightness by a factor below 2."""
    y = torch.arange(n) % 4
    return torch.tensor([0.01, 0.04, 0.16, 0.64])[y][:, None, None, None].expand(-1, 1, 6, 6).clone(), y


def test_a_batch_has_two_views_of_the_same_pictures_with_their_labels():
    (x, y), rows = constant(), torch.tensor([[0, 4, 5, 8, 9, 12], [2, 3, 6, 7, 10, 11]])
    generators = [gen(1), gen(2)]
    first, second, labels = data.two_views(x, generators, 5, rows, y)(0)
    assert first.shape == second.shape == (2, 5, 1, 6, 6) and not torch.allclose(first, second)
    greys = [(one.mean((2, 3, 4)).log()[..., None] - x[:4, 0, 0, 0].log()).abs().argmin(-1) for one in (first, second)]
    assert torch.equal(greys[0], greys[1]) and torch.equal(greys[0], labels)
    assert set(labels[0].tolist()) <= {0, 1} and set(labels[1].tolist()) <= {2, 3}  # each run its own rows
    assert data.two_views(x, generators, 50, rows)(0)[0].shape[:2] == (2, 6)  # no more than there are
    batches = data.two_views(x, generators, 40)  # all pictures
    greys = torch.cat([batches(step)[0].mean((2, 3, 4)) for step in range(3)])
    assert not torch.equal(batches(3)[0], batches(4)[0]) and greys.max() > 0.38 and greys.min() < 0.015


# --- Colours ---


def recoloured(x, **values):
    """Return images changed by all numbers in the middle, apart from ``values``; the fifth and sixth change nothing."""
    u = torch.full((len(x), 6), 0.5)
    for place, value in values.items():
        u[:, int(place[1:])] = value
    return data.recoloured(x, u)


def test_colours():
    x = 0.2 + 0.4 * torch.rand(5, 3, 4, 4, generator=gen())
    grey = (data.LUMA[:, None, None] * x).sum(1, keepdim=True).expand(-1, 3, -1, -1)
    assert torch.allclose(recoloured(x), x, atol=1e-6)
    assert torch.allclose(recoloured(x, _0=0.0), 0.6 * x, atol=1e-6) and torch.allclose(
        recoloured(x, _0=1.0), 1.4 * x, atol=1e-6
    )
    mean = grey[:, :1].mean((2, 3), keepdim=True)
    assert torch.allclose(recoloured(x, _1=0.0), mean + 0.6 * (x - mean), atol=1e-6)
    assert torch.allclose(recoloured(x, _2=0.0), 0.6 * x + 0.4 * grey, atol=1e-6)
    turned = recoloured(x, _3=1.0)
    assert not torch.allclose(turned, x, atol=0.01) and torch.allclose(turned.mean(1), x.mean(1), atol=1e-6)
    assert torch.allclose(recoloured(grey, _3=1.0), grey, atol=1e-6)
    assert torch.allclose(recoloured(x, _5=0.1), grey, atol=1e-6)
    assert torch.allclose(recoloured(x, _0=0.0, _1=0.0, _2=0.0, _3=1.0, _4=0.9), x, atol=1e-6)  # one in five stays


def test_a_colour_view_is_mirrored_half_of_the_time_cropped_and_recoloured():
    ramp = torch.linspace(0.2, 0.8, 16).expand(200, 3, 16, 16)
    found = data.colour_view(ramp, gen(), 16)
    slope = found[..., -1].mean((1, 2)) - found[..., 0].mean((1, 2))
    assert 0.4 < (slope > 0).double().mean() < 0.6 and 0.05 < slope.abs().min() and slope.abs().std() > 0.05
    again, other = (data.colour_view(ramp, gen(seed), 16) for seed in (0, 1))
    assert torch.allclose(found, again, atol=1e-5) and not torch.allclose(found, other, atol=0.1)
    assert data.colour_view(ramp, gen(), 10).shape == (200, 3, 10, 10)
    small = F.interpolate(found, 8, mode="area")  # the same crops and colours in fewer pixels
    assert (data.colour_view(ramp, gen(), 8) - small).abs().mean() < 1e-3
    hues = torch.tensor([0.6, 0.3, 0.2])[:, None, None].expand(200, -1, 4, 4)
    grey = (data.colour_view(hues, gen(), 4).std(1) < 1e-5).all((1, 2))
    assert 0.12 < grey.double().mean() < 0.28


def test_a_subset_has_as_many_of_each_class():
    y = torch.arange(60) % 3
    rows = data.balanced_subset(y, 12, gen())
    assert y[rows].bincount().tolist() == [4, 4, 4] and len(set(rows.tolist())) == 12
    assert torch.equal(data.balanced_subset(y, 60, gen()), torch.arange(60))
    assert not torch.equal(rows.sort().values, data.balanced_subset(y, 12, gen(1)).sort().values)


# --- Small sets ---


def test_more_unlabelled_pictures_than_half_of_a_set_are_refused():
    data.SmallSets.load("digits", 8, 546)
    with pytest.raises(ValueError, match="own_images must be at most 546, half of the set letters, got 600"):
        data.SmallSets.load("digits", 8, 600)


def test_the_sets_are_shuffled_with_their_labels_and_divided():
    small = data.SmallSets.load("digits", 8, 40)
    assert small.classes == {"handwriting": 10, "photographs": 12, "relief": 12, "letters": 26}
    x, y = data.PICTURE_SETS["letters"](8)
    shuffled, labels = small.sets["letters"]
    places = torch.cdist(shuffled[:50].flatten(1), x.flatten(1)).argmin(1)
    assert torch.equal(y[places], labels[:50]) and not torch.equal(labels[:50], y[:50])
    for i, part in enumerate(small.sets["handwriting"]):
        assert torch.equal(torch.cat([part[:40], small.known[i], small.test[i]]), part) and len(small.test[i]) == small.n_test
    assert torch.equal(small.pool(["letters", "relief"]), torch.cat([shuffled[:40], small.sets["relief"][0][:40]]))
    rows = small.labelled(30, [gen(1), gen(2)])
    assert rows.shape == (2, 30) and all(len(set(row.tolist())) == 30 for row in rows) and not torch.equal(*rows)
    assert rows.max() < len(small.known[1]) and torch.equal(rows, small.labelled(30, [gen(1), gen(2)]))
