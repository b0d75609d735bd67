"""Images of chapter 03: masks, networks that fill them in, pictures with planted parts, and the script of the run on MNIST."""

import runpy

import pytest
import torch

from mvnb import kept_runs, training
from mvnb.papers.mask_reconstruction import data, measure, model
from mvnb.papers.mask_reconstruction import training as arms
from mvnb.papers.mask_reconstruction.data import SparseMultiView

DECLARED = kept_runs.declared("mask_reconstruction")
WORLD = SparseMultiView(5, 16, 64, foreign=2.0, balanced=True, patch_noise=0.0, background_noise=0.0)


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(DECLARED["mnist-tuning"].script))


def test_masks_cover_whole_patches_at_the_ratio():
    masks = arms.draw_masks(torch.empty(400, 3, 32, 24), 0.6, torch.Generator().manual_seed(0), patch=8)
    cells = masks[:, 0].unfold(1, 8, 8).unfold(2, 8, 8).flatten(3)
    assert masks.shape == (400, 1, 32, 24) and (cells.all(-1) == cells.any(-1)).all()
    assert masks.double().mean().item() == pytest.approx(0.6, abs=0.02)


def test_hidden_pixels_are_not_seen_and_visible_ones_are_not_judged():
    torch.manual_seed(0)
    filler, x = model.Filler(model.convolutions(1, 4), 8, 1).eval(), torch.randn(3, 1, 8, 8)
    masked = torch.zeros(3, 1, 8, 8, dtype=torch.bool)
    masked[..., :4] = True
    with torch.no_grad():
        other = torch.where(masked, torch.randn(3, 1, 8, 8), x)
        assert torch.equal(filler(x, masked), filler(other, masked))
        error = (filler(x, masked) - x).abs()
        assert arms.fill_in(filler, x, masked).item() == pytest.approx(error[..., :4].mean().item(), rel=1e-5)


@pytest.mark.parametrize("name", model.NETWORKS)
def test_an_encoder_has_an_output_for_each_patch(name):
    network = model.NETWORKS[name]
    encoder = network.make(3, 2)
    features = encoder(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, network.features * 2, 32 // network.patch, 32 // network.patch)
    classifier = model.Classifier(encoder, features.shape[1], 7, network.squares)
    first, second = classifier(torch.randn(2, 3, 32, 32))
    assert torch.equal(first, second)  # the weights of the head start from zero


def test_pictures_show_each_feature_as_a_tile_of_its_own_pattern():
    sample = WORLD.sample(50, torch.Generator().manual_seed(0))
    tiles = data.pictures(sample)[:, 0].unfold(1, 8, 8).unfold(2, 8, 8).flatten(1, 2).flatten(2)  # (n, 16, 64)
    assert torch.allclose(tiles.norm(dim=-1), 8 * sample.strength, atol=1e-5)
    same = sample.holds.flatten()[:, None] == sample.holds.flatten()
    shown = sample.holds.flatten() >= 0
    flat = torch.nn.functional.normalize(tiles.flatten(0, 1), dim=-1)
    assert torch.allclose((flat @ flat.T)[shown][:, shown], same[shown][:, shown].float(), atol=1e-5)
    assert data.own_tiles(sample).sum(1).tolist() == [2] * 50


def test_eigen_cam_of_one_direction_is_its_map():
    strength = torch.zeros(2, 8, 8)
    strength[0, 2, 3], strength[1, 6, 6] = 2.0, 1.0
    direction = torch.tensor([3.0, -4.0])
    maps = measure.eigen_cam(strength[:, None] * direction[:, None, None])
    assert torch.allclose(maps, (strength / strength.amax((1, 2), keepdim=True)), atol=0.05)
    turned = measure.eigen_cam(strength[:, None] * torch.tensor([5.0, 0.0])[:, None, None])
    assert torch.allclose(maps, turned, atol=1e-5)
    assert measure.lit_tiles(maps).nonzero().tolist() == [[0, 5], [1, 15]]


def test_the_cell_probe_finds_what_is_written_into_the_features():
    own = data.own_tiles(WORLD.sample(40, torch.Generator().manual_seed(0)))
    quarters = own.view(-1, 4, 4).repeat_interleave(2, 1).repeat_interleave(2, 2)
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(40, 3, 8, 8, generator=g)
    written = torch.cat([noise, quarters[:, None].float()], 1)
    assert measure.cell_probe(written, own) > 0.99 and measure.cell_probe(noise, own) < 0.3


def test_both_classifiers_of_a_task_start_from_one_encoder_and_see_the_same_batches():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 30, 1, 32, 32, generator=g), torch.randint(3, (2, 30), generator=g)
    task = arms.ImageTask(x, y, 20, 3, model.NETWORKS["small"], 4, 5)
    _, runs = task.fit(0, steps=2, label_steps=2, squares=1)
    assert runs["ERM"].log["loss"][0].tolist() == runs["MAE"].log["loss"][0].tolist()  # the head is zero
    rows = [task.draw(masked, training.generators(1, 2))(0) for masked in (False, True)]
    assert rows[0][1].shape == (2, 5) and rows[1][1].shape == (2, 5, 1, 32, 32)


def test_parts_of_the_run_on_mnist_are_balanced_nested_and_apart(script):
    split = script["Split"]("digits", [20, 50], 100, 0, torch.device("cpu"))
    assert [split.y[n].bincount().tolist() for n in (20, 50)] == [[2] * 10, [5] * 10]
    pixels = {part: {tuple(row) for row in split.x[part].flatten(1).tolist()} for part in split.x}
    assert pixels[20] < pixels[50] < pixels["all"] and not pixels["judged"] & pixels["all"]


def test_shifts_move_each_image_by_itself_and_keep_its_pixels(script):
    x = torch.zeros(60, 1, 9, 9)
    x[:, 0, 4, 4] = 1.0
    moved = script["shifted"](x, 3, torch.Generator().manual_seed(0))
    places = moved[:, 0].flatten(1).argmax(1)
    assert (moved.sum((1, 2, 3)) == 1).all() and len(places.unique()) > 20
    assert torch.equal(script["shifted"](x, 0, torch.Generator().manual_seed(0)), x)


def test_the_fall_of_a_loss_is_that_of_its_last_fifth(script):
    losses = [10.0] * 80 + [4.0] * 15 + [3.0] * 5
    assert script["fall"](losses) == 25.0
