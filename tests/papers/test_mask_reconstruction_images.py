"""Images of chapter 03: networks for them, pictures with planted parts, sets with few labels, and the scripts of kept runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mvnb import kept_runs
from mvnb.data import load_images
from mvnb.papers.mask_reconstruction import data, measure, model
from mvnb.papers.mask_reconstruction import training as arms
from mvnb.papers.mask_reconstruction.data import SparseMultiView

DECLARED, CPU = kept_runs.declared("mask_reconstruction"), torch.device("cpu")
WORLD = SparseMultiView(5, 16, 64, foreign=2.0, balanced=True, patch_noise=0.0, background_noise=0.0)


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


def test_a_world_of_tiles_has_the_noise_and_the_strangers_that_are_asked_for():
    world = SparseMultiView(4, 16, 64, foreign=1.5, balanced=True, patch_noise=0.3, background_noise=0.3)
    assert data.world_of_tiles(4, 1.5, 0.3) == world


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
    written[20:] = written[:20]  # judged on the other half, whose own tiles are elsewhere
    assert measure.cell_probe(written, own) < 0.5


def test_parts_of_the_run_on_mnist_are_balanced_nested_and_apart():
    split = data.Split("digits", [20, 50], 100, 0, CPU)
    assert [split.y[n].bincount().tolist() for n in (20, 50)] == [[2] * 10, [5] * 10]
    pixels = {part: {tuple(row) for row in split.x[part].flatten(1).tolist()} for part in split.x}
    assert pixels[20] < pixels[50] < pixels["all"] and not pixels["judged"] & pixels["all"]


def test_shifts_move_each_image_by_itself_and_keep_its_pixels():
    x = torch.zeros(60, 1, 9, 9)
    x[:, 0, 4, 4] = 1.0
    moved = data.shifted(x, 3, torch.Generator().manual_seed(0))
    places = moved[:, 0].flatten(1).argmax(1)
    assert (moved.sum((1, 2, 3)) == 1).all() and len(places.unique()) > 20
    assert torch.equal(data.shifted(x, 0, torch.Generator().manual_seed(0)), x)


def test_without_images_put_aside_the_official_test_images_judge():
    split, official = data.Split("digits", [20], 0, 0, CPU), load_images("digits").standardised()
    assert torch.equal(split.x["judged"], official.x_test) and torch.equal(split.y["judged"], official.y_test)
    assert len(split.x["all"]) == len(official.x_train)
    other = data.Split("digits", [20], 0, 1, CPU)
    assert not torch.equal(split.x[20], other.x[20])


# --- Scripts of kept runs ---

PRETRAINING = {"steps": 5, "batch": 20, "step_size": 0.01, "weight_decay": 0.01}
SETTING = {"shift": [0], "step_size": [0.01], "weight_decay": [0.1]}


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """Values of a short run on digits, with the networks that its arms were given, by arm; the folder of its states."""
    given, few_labels, frozen_features = [], arms.few_labels, arms.frozen_features

    def encoder(net):
        given.append({k: v.clone() for k, v in net.encoder.state_dict().items() if "running" not in k})

    monkeypatch.setattr(arms, "few_labels", lambda net, *args, **how: encoder(net) or few_labels(net, *args, **how))
    monkeypatch.setattr(arms, "frozen_features", lambda net, *args: encoder(net) or frozen_features(net, *args))
    changes = {
        "dataset": "digits",
        "labels": [20, 50],
        "width": 4,
        "pretraining": PRETRAINING,
        "training": {"steps": 3, "batch": 10, "smoothing": 0.1},
        "arms": {
            "scratch": {"mask_ratio": [0.0], **SETTING},
            "pretrained": {"mask_ratio": [0.6, 0.8], **SETTING},
            "random features": {"mask_ratio": [0.0], "penalty": [1.0, 10.0]},
            "pretrained features": {"mask_ratio": [0.6], "penalty": [1.0]},
        },
    }
    one = DECLARED["mnist"]
    short = replace(one, parameters=one.parameters | changes)
    return short, short.call("run", 3, CPU, tmp_path / "run"), given, tmp_path / "run"


def test_the_arms_of_the_run_on_mnist_start_from_the_encoder_that_was_pretrained_or_from_its_start(mnist):
    *_, given, folder = mnist
    start = arms.pair(data.Split("digits", [20], 0, 3, CPU), 4, 3)[1].encoder.state_dict()
    saved = {ratio: torch.load(folder / f"{ratio}.pt")["filler"] for ratio in (0.6, 0.8)}
    expected = {0.0: start} | {r: {k[8:]: v for k, v in one.items() if k.startswith("encoder.")} for r, one in saved.items()}
    for ratio, encoder in list(expected.items())[1:]:
        split = data.Split("digits", [20], 0, 3, CPU)
        filler, _ = arms.pair(split, 4, 3)
        arms.simmim(filler, split.x["all"], ratio, seed=1_000_003, **PRETRAINING)
        assert all(torch.equal(v, encoder[k]) for k, v in filler.encoder.state_dict().items())
    ratios = [0.0] * 3 + [0.6] * 3 + [0.8] * 3  # at each ratio frozen features, then two numbers of labels
    assert len(given) == len(ratios)
    for encoder, ratio in zip(given, ratios):
        assert all(torch.equal(v, expected[ratio][k]) for k, v in encoder.items()), ratio
        assert any(not torch.equal(v, expected[0.0][k]) for k, v in encoder.items()) == (ratio > 0)


def test_the_run_on_mnist_returns_each_arm_in_each_setting(mnist):
    short, values, *_, folder = mnist
    rows = {(r["arm"], r["mask_ratio"], r["labels"], r.get("penalty")): r for r in values["arms"]}
    assert len(rows) == len(values["arms"]) == 2 * (1 + 2 + 2 + 1)
    assert rows["scratch", 0.0, 20, None]["fell"] != rows["pretrained", 0.6, 20, None]["fell"]
    assert [one["mask_ratio"] for one in values["pretraining"]] == [0.6, 0.8]
    assert values == short.call("run", 3, CPU, folder)  # goes on from the states that are there
    split = data.Split("digits", [20, 50], 0, 3, CPU)
    _, net = arms.pair(split, 4, 3)
    features = arms.frozen_features(net, split)
    assert arms.linear_layer(features, split, 20, 10.0).items() <= rows["random features", 0.0, 20, 10.0].items()
    how = {"shift": 0, "step_size": 0.01, "weight_decay": 0.1, **short.parameters["training"], "seed": 2_000_003}
    assert arms.few_labels(net, split, 50, **how).items() <= rows["scratch", 0.0, 50, None].items()


@pytest.fixture(scope="module")
def planted():
    """Values of a short run on planted parts, the world, the labelled pictures, the network and the trained stacks."""
    one = DECLARED["planted"]
    how = one.parameters | {"steps": 30, "label_steps": 150, "n_test": 80, "n_points": 60, "labels": 20, "width": 8}
    trained, image_arms = [], arms.image_arms

    def recorded(x, y, network, **how):
        trained.append((x, y, network, how, image_arms(x, y, network, **how)))
        return trained[-1][-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "image_arms", recorded)
        values = replace(one, parameters=how).call("run", 3, CPU)
    return values, *trained[0], how


def test_the_run_on_planted_parts_trains_on_pictures_of_its_world(planted):
    _, x, y, network, how, _, parameters = planted
    world = data.world_of_tiles(5, 2.0, 0.6)
    sample = world.sample(60, torch.Generator().manual_seed(3))
    assert torch.equal(x[0], data.pictures(sample)) and torch.equal(y[0], sample.y)
    assert (network.width, network.squares) == (8, 1) and (how["labels"], how["n_classes"], how["seed"]) == (20, 5, 3)
    assert how["steps"] == 30 and how["label_steps"] == 150 and how["batch"] == parameters["batch"]


def test_the_run_on_planted_parts_returns_what_each_network_does_on_test_pictures(planted):
    values, x, y, _, _, (net, runs), _ = planted
    lone = replace(data.world_of_tiles(5, 2.0, 0.6), single_view=1.0)
    worlds = {"multi": replace(lone, single_view=0.0), "single": lone, "alone": replace(lone, foreign=0.0)}
    tests = {kind: world.sample(80, torch.Generator().manual_seed(1_000_003)) for kind, world in worlds.items()}
    for name, found in values.items():
        params, log = runs[name].params, runs[name].log["loss"][:, 0]
        hits = {kind: measure.hits(net, params, data.pictures(one), one.y) for kind, one in tests.items()}
        assert {kind: one.mean().item() for kind, one in hits.items()} == {kind: found[kind] for kind in hits}
        assert found["train"] == measure.hits(net, params, x[0, :20], y[0, :20]).mean().item()
        assert found["views"] == measure.accuracy_by_view(hits["single"], tests["single"])
        looks = measure.looks(net, params, tests["multi"], 6)
        assert looks == {key: found[key] for key in looks} and found["fell"] == arms.fall(log, 30, 20)
    assert values["ERM"]["fell"] != values["MAE"]["fell"] and np.shape(values["MAE"]["maps"]) == (6, 64)
