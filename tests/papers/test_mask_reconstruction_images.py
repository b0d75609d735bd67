"""Images of chapter 03: networks for them, pictures with planted parts, sets with few labels, and the scripts of kept runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mvnb import kept_runs
from mvnb.data.images import Images
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
    assert torch.allclose(first, second)  # the weights of the head start from zero


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


@pytest.fixture
def numbered(monkeypatch):
    """A function that returns the numbers of the images in each part of a split of 240 images, of which 80 are put aside."""
    x, y = torch.arange(240.0).expand(1, 2, 2, -1).permute(3, 0, 1, 2), torch.arange(240) * 7 % 5
    monkeypatch.setattr(data, "load_images", lambda name: Images(name, x[:200], y[:200], x[200:], y[200:]))

    def parts(tuning, seed, n_judged=20):
        split = data.Split("numbers", {5: 2, 10: 1}, n_judged, 80, tuning, seed, CPU)
        every = torch.cat([split.x["all"], split.x["judged"]])[:, 0, 0, 0].sort().values
        found = {part: torch.searchsorted(every, x[:, 0, 0, 0] - 1e-4).tolist() for part, x in split.x.items()}
        assert all(torch.equal(split.y[part], y[rows]) for part, rows in found.items())
        return found, split

    return parts


def test_parts_of_the_run_on_mnist_are_balanced_nested_and_apart(numbered):
    for tuning in (False, True):
        found, split = numbered(tuning, 0)
        assert sorted(found["judged"] + found["all"]) == [*range(240)] and len(found["judged"]) == 20
        first, second = (set(found[5, i]) for i in (0, 1))
        assert len(first) == len(second) == 5 and not first & second
        assert first | second == set(found[10, 0]) < set(found["all"])
        assert [split.y[part].bincount().tolist() for part in ((5, 1), (10, 0))] == [[1] * 5, [2] * 5]


def test_no_test_image_is_judged_or_has_a_label_in_tuning(numbered):
    tuned = [numbered(True, seed)[0] for seed in (0, 1)]
    tests = [set(numbered(False, seed)[0]["judged"]) for seed in range(6)]
    seen = set().union(*(one[part] for one in tuned for part in ("judged", (5, 0), (5, 1), (10, 0))))
    assert tuned[0]["judged"] != tuned[1]["judged"] and len(seen) <= 60
    assert all(not seen & one for one in tests) and len({*map(frozenset, tests)}) == 6
    assert max(max(one) for one in tests) >= 200 > min(min(one) for one in tests)  # official test images among them


def test_images_are_standardised_by_those_of_pretraining(numbered, monkeypatch):
    found, split = numbered(False, 0)
    assert split.x["all"].mean().abs() < 1e-5 and split.x["all"].std() == pytest.approx(1, rel=1e-5)
    rows = torch.tensor(found["judged"]).double()
    seen = torch.tensor(found["all"]).double()
    expected = (rows - seen.mean()) / seen.std()
    assert torch.allclose(split.x["judged"][:, 0, 0, 0].double(), expected, atol=0.01)


def test_shifts_move_each_image_by_itself_and_keep_its_pixels():
    x = torch.zeros(60, 1, 9, 9)
    x[:, 0, 4, 4] = 1.0
    moved = data.shifted(x, 3, torch.Generator().manual_seed(0))
    places = moved[:, 0].flatten(1).argmax(1)
    assert (moved.sum((1, 2, 3)) == 1).all() and len(places.unique()) > 20
    assert torch.equal(data.shifted(x, 0, torch.Generator().manual_seed(0)), x)


# --- Scripts of kept runs ---

PRETRAINING = {"steps": 5, "batch": 20, "step_size": 0.01, "weight_decay": 0.01}
SETTING = {"encoder_rate": [1.0], "step_size": [0.01], "weight_decay": [0.1]}
JUDGED = {"n_judged": 300, "n_aside": 200, "tuning": False}


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A function that makes a short run on digits: values, encoders and labels that arms were given, folder of the state."""
    few_labels = arms.few_labels

    def made(**changes):
        given = []

        def recorded(net, split, part, **how):
            given.append(({k: v.clone() for k, v in net.encoder.state_dict().items() if "running" not in k}, part, how))
            return few_labels(net, split, part, **how)

        monkeypatch.setattr(arms, "few_labels", recorded)
        values = {
            "dataset": "digits",
            "labels": [20, 50],
            "draws": [2, 1],
            "judged": JUDGED,
            "width": 4,
            "pretraining": PRETRAINING,
            "training": {"steps": 3, "batch": 10, "shift": 1, "smoothing": 0.1},
            "arms": {
                "scratch": {"pretrained": False, **SETTING},
                "pretrained": {"pretrained": True, **SETTING, "step_size": [0.01, 0.02]},
                "random features": {"pretrained": False, **SETTING, "encoder_rate": [0.0]},
                "pretrained features": {"pretrained": True, **SETTING, "encoder_rate": [0.0]},
            },
        }
        one, folder = DECLARED["mnist"], tmp_path / "run"
        short = replace(one, parameters=one.parameters | values | changes)
        return short, short.call("run", 3, CPU, folder), given, folder

    return made


def test_the_arms_of_the_run_on_mnist_start_from_the_encoder_that_was_pretrained_or_from_its_start(mnist):
    *_, given, folder = mnist()
    split = data.Split("digits", {20: 2, 50: 1}, **JUDGED, seed=3, device=CPU)
    filler, net = arms.pair(split, 4, 3)
    start = {k: v.clone() for k, v in net.encoder.state_dict().items()}
    arms.simmim(filler, split.x["all"], 0.6, seed=1_000_003, **PRETRAINING)
    encoders = {False: start, True: filler.encoder.state_dict()}
    pretrained = [False] * 3 + [True] * 6 + [False] * 3 + [True] * 3  # three sets of labels for each setting of an arm
    for (encoder, *_), which in zip(given, pretrained, strict=True):
        assert all(torch.allclose(v, encoders[which][k], atol=1e-5) for k, v in encoder.items())
        assert any(not torch.allclose(v, encoders[not which][k], atol=1e-4) for k, v in encoder.items())
    assert (folder / "pretrained.pt").exists()


def test_the_run_on_mnist_returns_each_arm_in_each_setting(mnist):
    short, values, given, folder = mnist()
    rows = {(r["arm"], r["labels"], r["draw"], r["step_size"]): r for r in values["arms"]}
    assert len(rows) == len(values["arms"]) == 3 * (1 + 2 + 1 + 1)
    assert rows["scratch", 20, 0, 0.01]["fell"] != rows["pretrained", 20, 0, 0.01]["fell"]
    assert rows["scratch", 20, 0, 0.01]["fell"] != rows["random features", 20, 0, 0.01]["fell"]
    assert {(n, i): how["seed"] for _, (n, i), how in given} == {(20, 0): 2_000_003, (20, 1): 3_000_003, (50, 0): 2_000_003}
    assert values == short.call("run", 3, CPU, folder)  # goes on from the state that is there
    split = data.Split("digits", {20: 2, 50: 1}, **JUDGED, seed=3, device=CPU)
    filler, net = arms.pair(split, 4, 3)
    how = {"encoder_rate": 1.0, "step_size": 0.01, "weight_decay": 0.1, **short.parameters["training"], "seed": 3_000_003}
    assert arms.few_labels(net, split, (20, 1), **how).items() <= rows["scratch", 20, 1, 0.01].items()
    losses = arms.simmim(filler, split.x["all"], 0.6, seed=1_000_003, **PRETRAINING)
    kept = values["pretraining"]
    assert kept["losses"] == pytest.approx(losses) and kept["loss"] == pytest.approx(sum(losses) / 5)


def test_without_pretraining_nothing_is_gained_on_mnist_whatever_the_labels(mnist):
    two = {name: {"pretrained": False, **SETTING} for name in ("scratch", "pretrained")}
    short, values, *_ = mnist(arms=two)
    record = {"parameters": short.parameters, "runs": [{"values": values}]}
    assert (measure.gain_on_digits(record) == 0).all()  # same labels, batches, shifts and start
    assert len(np.unique(measure.on_digits(record, "scratch"))) == 2


TUNING = ("mnist-tuning", "mnist-tuning-more")


def test_the_settings_of_the_run_on_mnist_are_the_best_of_its_tuning():
    best = measure.best_settings(*(kept_runs.load("mask_reconstruction", name) for name in TUNING))
    tried = {arm: sorted(tuple(setting.items()) for _, setting in ranked) for arm, ranked in best.items()}
    assert tried["scratch"] == tried["pretrained"] and tried["random features"] == tried["pretrained features"]
    for arm, declared in DECLARED["mnist"].parameters["arms"].items():
        (_, chosen), *others = best[arm]
        assert {key: [value] for key, value in chosen.items()} | {"pretrained": declared["pretrained"]} == declared
        for key in ("step_size", "weight_decay"):
            values = [setting[key] for _, setting in others]
            inside = min(values) < chosen[key] < max(values)
            assert inside or (arm, key) == ("random features", "weight_decay"), (arm, key)  # said in the declaration


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
    assert torch.allclose(x[0], data.pictures(sample), atol=1e-5) and torch.equal(y[0], sample.y)
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
        assert all(np.allclose(value, found[key], atol=0.015) for key, value in looks.items())  # maps have two digits
        assert found["fell"] == arms.fall(log, 30, 20)
    assert values["ERM"]["fell"] != values["MAE"]["fell"] and np.shape(values["MAE"]["maps"]) == (6, 64)
