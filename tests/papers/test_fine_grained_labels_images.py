"""Images with labels of several levels, from a data set or a folder, and the networks that are trained on them."""

import runpy
from dataclasses import replace
from types import SimpleNamespace

import judged
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from mvnb import kept_runs, training
from mvnb.data import load_images
from mvnb.papers.fine_grained_labels import data, measure, model
from mvnb.papers.fine_grained_labels import training as arms

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    """Two superclasses with two classes each and ten images per class, in colours and sizes of their own."""
    rng = np.random.default_rng(0)
    for s, top in enumerate(("birds", "cars")):
        for c in range(2):
            (tmp_path / top / f"kind {c}").mkdir(parents=True)
            for i in range(10):
                pixels = rng.integers(60, size=(20 + i, 24, 3), dtype=np.uint8)
                pixels[..., s] += np.uint8(90 + 60 * c)
                Image.fromarray(pixels).save(tmp_path / top / f"kind {c}" / f"{i}.png")
    (tmp_path / "birds" / ".DS_Store").touch()
    return tmp_path


def trainer(task, chosen, network="mlp", epochs=2, batch=8):
    return arms.ImageTrainer(task, chosen, network, epochs=epochs, batch=batch, step_size=0.02, seed=0, device=CPU)


def test_a_folder_is_read_with_its_two_levels(folder):
    task = data.read_folder(folder, 16)
    assert task.x.shape == (32, 3, 16, 16) and task.x_test.shape == (8, 3, 16, 16) and task.x.dtype == torch.uint8
    assert task.levels[data.TARGET].bincount().tolist() == [16, 16]
    assert task.levels[data.CLASSES].bincount().tolist() == [8] * 4
    assert torch.equal(task.levels[data.CLASSES] // 2, task.levels[data.TARGET])
    assert task.y_test.tolist() == [0] * 4 + [1] * 4
    redder = task.x[:, 0].float().mean((1, 2)) > task.x[:, 1].float().mean((1, 2))
    assert torch.equal(redder, task.levels[data.TARGET] == 0)


def test_wrong_folders_are_refused_in_one_line(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "missing", tmp_path / "empty", folder / "birds"):
        with pytest.raises(ValueError, match=r"^image_folder must .*SUPERCLASS/CLASS/IMAGE.*$"):
            data.read_folder(wrong, 16)
    (folder / "cars" / "kind 0" / "0.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"^image_folder must contain images only: .*0\.png[^\n]*$"):
        data.read_folder(folder, 16)
    for i in range(6):
        (folder / "cars" / "kind 0" / f"{i}.png").unlink()
    with pytest.raises(ValueError, match=r"^image_folder must have five images or more in each class, got 4"):
        data.read_folder(folder, 16)


def test_labels_of_each_kind_are_finer_than_the_target_or_unrelated_to_it():
    task = data.load_labelled("digits")
    chosen = torch.stack([torch.randperm(len(task.x), generator=g)[:200] for g in training.generators(0, 2)])
    found, target = data.image_labels(task, chosen, 0), task.levels[data.TARGET][chosen]
    assert all(labels.shape == (2, 200) for labels in found.values())
    for name, labels in found.items():
        nested = all(len(target[r][labels[r] == q].unique()) < 2 for r in range(2) for q in labels[r].unique())
        assert nested == (name != "10 clusters of all"), name
    sizes = {name: int(labels.max()) + 1 for name, labels in found.items()}
    assert list(sizes.values()) == [2, 3, 10, 10, 40, 10, 10, 200]


def test_clusters_are_those_of_the_images_of_each_run():
    """Images of nearly one grey each, five greys in each class of the target, which five clusters find."""
    n, grey = 60, torch.arange(60) % 5
    target = torch.arange(n) // 5 % 2
    x = 10 * grey[:, None, None, None] + torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    task = data.LabelledImages(x, {data.TARGET: target}, x, target)
    chosen = torch.stack([torch.arange(n), torch.randperm(n, generator=torch.Generator().manual_seed(0))])
    found = data.image_labels(task, chosen, 0)["5 clusters in each target class"]
    for labels, images in zip(found, chosen):
        kinds = 5 * target[images] + grey[images]
        assert all(len(kinds[labels == one].unique()) == 1 for one in labels.unique()) and len(labels.unique()) == 10


def test_a_residual_network_is_trained_probed_and_tuned_on_a_folder(folder):
    task = data.load_labelled("digits", "resnet34", str(folder), 24)
    one = trainer(task, torch.randperm(32, generator=torch.Generator().manual_seed(0))[None], "resnet34", epochs=1, batch=16)
    net, params = one.train(one.target)
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(convolutions) == 33 and sum(p.numel() for p in net.parameters()) > 21_000_000
    assert params["1.weight"].shape == (1, 2, 512)
    probed, tuned = one.errors(task.levels[data.CLASSES][one.chosen])
    assert probed.shape == tuned.shape == (1,) and 0 <= tuned[0] <= 100


def test_pixels_are_standardised_by_the_training_images(folder):
    one = trainer(data.read_folder(folder, 16), torch.arange(32)[None])
    seen = one._pixels(one.images.x)
    assert torch.allclose(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(seen.std((0, 2, 3)), torch.ones(3), atol=1e-4)


def test_small_networks_learn_the_target_of_a_folder(folder):
    task = data.read_folder(folder, 16)
    one = trainer(task, torch.arange(32).expand(2, -1), epochs=20)
    assert one.error().max() == 0
    probed, tuned = one.errors(task.levels[data.CLASSES][one.chosen])
    assert probed.max() <= 25 and tuned.max() == 0


def test_crops_are_flipped_and_lie_inside(folder):
    task = data.read_folder(folder, 16)
    one = trainer(task, torch.arange(32)[None], "resnet34")
    g = torch.Generator().manual_seed(0)
    random, middle = one._pixels(task.x, g), one._pixels(task.x)
    assert random.shape == middle.shape == (32, 3, 14, 14)
    whole = (task.x.float() - one.mean) / one.std
    assert torch.equal(middle, whole[..., 1:15, 1:15])
    places = [(t, left) for t in range(3) for left in range(3)]
    straight = [any(torch.equal(r, w[:, t : t + 14, s : s + 14]) for t, s in places) for r, w in zip(random, whole)]
    assert 8 <= sum(straight) <= 24


@pytest.fixture(scope="module")
def digits():
    """Two runs on 100 digits, and backbones trained on their classes."""
    task = data.load_labelled("digits")
    one = trainer(task, torch.stack([torch.arange(100), torch.arange(100, 200)]), batch=20)
    _, params = one.train(task.levels[data.CLASSES][one.chosen])
    return one, {name: value for name, value in params.items() if name.startswith("0.")}


def test_fine_tuning_starts_from_the_backbone_and_pretraining_from_the_seed(digits):
    one, backbone = digits
    still = replace(one, step_size=0.0)
    (_, tuned), (_, fresh), (_, other) = (
        r.train(one.target, b) for r, b in ((still, backbone), (still, None), (replace(still, seed=1), None))
    )
    assert len(backbone) == 4 and all(torch.equal(tuned[name], value) for name, value in backbone.items())
    assert not any(torch.equal(fresh[name], value) for name, value in backbone.items())
    assert tuned["1.weight"].shape == (2, 2, 32) and torch.equal(tuned["1.weight"], fresh["1.weight"])
    assert torch.equal(fresh["1.weight"][1], other["1.weight"][0]) and not torch.equal(
        fresh["1.weight"][0], fresh["1.weight"][1]
    )


def test_errors_are_those_of_a_probe_and_of_fine_tuning_of_the_pretrained_backbone(digits, monkeypatch):
    one, backbone = digits
    probed, tuned = one.errors(one.images.levels[data.CLASSES][one.chosen])
    assert np.array_equal(tuned, one.error(backbone)) and not np.array_equal(tuned, one.error())
    features = [one._outputs(one._network(2)[:1], backbone, test) for test in (False, True)]
    assert [len(part[0]) for part in features] == [100, len(one.images.x_test)]
    target = [one.target, one.images.y_test.expand(2, -1)]
    classifiers = [LogisticRegression(C=100, max_iter=5000).fit(x, y) for x, y in zip(features[0], target[0])]
    expected = [100 - 100 * fit.score(x, y) for fit, x, y in zip(classifiers, features[1], target[1])]
    assert np.abs(probed - expected).max() < 6  # another number of steps


def test_fine_tuning_has_a_quarter_of_the_step_and_of_the_batch(digits, monkeypatch):
    one, backbone = digits
    seen = []
    monkeypatch.setattr(
        arms.training, "fit", lambda *_, steps, optimizer: seen.append((steps, optimizer)) or SimpleNamespace(params={})
    )
    for given in (None, backbone):
        one.train(one.target, given)
    (first, second) = seen
    assert (first[0], second[0]) == (2 * 5, 2 * 20)
    largest = [max(optimizer.lr(t) for t in range(steps)) for steps, optimizer in seen]
    assert np.isclose(largest[0] / largest[1], 4, rtol=0.1)
    assert all((optimizer.momentum, optimizer.weight_decay) == (0.9, 5e-5) for _, optimizer in seen)


# --- The kept run ---


@pytest.fixture
def split(tmp_path, monkeypatch):
    """Parts of 200 images of noise with the number of the image in its first pixels; 20 images are in none."""
    monkeypatch.setenv("MVNB_DATA", str(tmp_path))
    arrays = {}
    for part, n, first in (("train", 200, 0), ("test", 30, 200)):
        x = np.random.default_rng(n).integers(256, size=(n, 8, 8, 3), dtype=np.uint8)
        x[:, 0, 0, 0] = first + np.arange(n)
        arrays |= {f"x_{part}": x, f"y_{part}": (first + np.arange(n)) % 10}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    return data.Split("cifar10", {"pretraining": 100, "test": 80}, 3, CPU)


def test_parts_of_the_kept_run_share_no_image(split):
    assert {part: len(x) for part, x in split.x.items()} == {"pretraining": 100, "test": 80, "validation": 30}
    images = load_images("cifar10").standardised()
    every = torch.cat([images.x_train, images.x_test])[:, 0, 0, 0]
    numbers = {part: (x[:, 0, 0, 0][:, None] - every).abs().argmin(1) for part, x in split.x.items()}
    assert len(torch.cat(list(numbers.values())).unique()) == 210
    assert all(torch.equal(number % 10, split.y[part]) for part, number in numbers.items())
    assert (numbers["validation"] >= 200).all()  # the official test images decide steps and nothing else
    other = data.Split("cifar10", {"pretraining": 100, "test": 80}, 4, CPU)
    assert torch.equal(other.x["validation"], split.x["validation"])
    assert not any(torch.equal(other.x[part], split.x[part]) for part in ("pretraining", "test"))
    with pytest.raises(ValueError, match="sizes must sum to at most the 200 training images, got"):
        data.Split("cifar10", {"pretraining": 150, "test": 80}, 4, CPU)
    assert split.target("test").tolist() == [int(int(n) % 10 in (0, 1, 8, 9)) for n in numbers["test"]]


def test_labels_for_pretraining_are_nested_in_the_target_and_random_ids_tell_no_more(split):
    split.y["pretraining"] = torch.arange(6000) % 10
    split.x["pretraining"] = torch.rand(6000, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    split.x["pretraining"][split.y["pretraining"] == 7] += 10  # the only class that clusters of pixels can find
    labels, target, classes = data.pretraining_labels(split, 0), split.target("pretraining"), split.y["pretraining"]
    assert {name: len(one.unique()) for name, one in labels.items()} == {
        **{"two": 2, "pairs": 5, "ten": 10, "clusters": 10, "random IDs": 10, "unique": 6000},
    }
    for name in ("two", "pairs", "ten", "clusters", "random IDs"):
        assert all(len(target[labels[name] == q].unique()) == 1 for q in labels[name].unique()), name
    assert torch.equal(labels["two"], target) and torch.equal(labels["ten"], classes)
    assert labels["pairs"][:10].tolist() == [0, 1, 2, 3, 4, 3, 2, 4, 0, 1]
    assert len(labels["clusters"][classes == 7].unique()) < 6 and len(labels["clusters"][classes == 6].unique()) < 6
    share = torch.stack([torch.bincount(labels["random IDs"][classes == c], minlength=10) for c in range(10)]) / 600
    expected = (
        torch.where(target[:10, None] == 1, torch.arange(10) >= 6, torch.arange(10) < 6)
        / torch.where(target[:10] == 1, 4, 6)[:, None]
    )
    assert (share - expected).abs().max() < 0.08
    sizes = torch.bincount(labels["random IDs"])
    assert sizes[:6].unique().numel() > 3 and sizes[6:].unique().numel() > 2  # drawn for each image, not dealt
    again, other = (data.pretraining_labels(split, seed)["random IDs"] for seed in (0, 1))
    assert torch.equal(labels["random IDs"], again) and not torch.equal(again, other)


HOW = {"steps": 4, "batch": 10, "step_size": 0.05, "weight_decay": 1e-3}


def test_descent_meets_each_image_once_with_its_label_flipped_and_shifted():
    """Images of one value each, slightly rising to the right, so that what the network is shown can be told."""
    seen, n = [], 40
    x = (torch.arange(1.0, n + 1)[:, None, None, None] + 0.01 * torch.arange(8.0)).expand(-1, 1, 8, 8)
    y = torch.arange(n) % 2
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    start = {name: value.clone() for name, value in net.state_dict().items()}
    net.register_forward_hook(lambda _, given, out: seen.append((given[0], out.detach())))
    losses = arms.descend(net, x, y, seed=0, **HOW | {"step_size": 0.0})
    rows = [shown[:, 0, 4, 4].long() - 1 for shown, _ in seen]
    assert sorted(torch.cat(rows).tolist()) == list(range(n))
    assert np.allclose(losses, [F.cross_entropy(out, y[row]).detach() for (_, out), row in zip(seen, rows)])
    assert all(torch.equal(value, start[name]) for name, value in net.state_dict().items())
    images = torch.cat([shown[:, 0] for shown, _ in seen])
    assert 8 < (images[:, 4, 4] < images[:, 4, 3]).sum() < 32
    margins = torch.stack([(shown[:, 0] == 0).any(0) for shown, _ in seen])  # (step, row, column)
    assert len(margins.unique(dim=0)) > 2 and not margins[:, 3:5, 3:5].any()
    assert losses != arms.descend(net, x, y, seed=1, **HOW | {"step_size": 0.0})


@pytest.mark.parametrize(("steps", "share"), [(2, 1.0), (24, 1 / 2), (36, 1 / 3)])
def test_the_first_step_of_descent_is_of_gradient_decay_and_warm_up(steps, share):
    x, y = torch.zeros(20, 1, 8, 8), torch.arange(20) % 2  # nothing to shift or to flip
    net, path = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)), []
    net.register_forward_hook(lambda net, *_: path.append([one.detach().clone() for one in net.parameters()]))
    arms.descend(net, x, y, seed=0, steps=steps, batch=20, step_size=0.3, weight_decay=0.1)
    (weight, bias), (weight_then, bias_then) = path[:2]
    gradient = F.softmax(bias, 0) - 0.5
    assert torch.allclose(weight_then, weight * (1 - share * 0.3 * 0.1), atol=1e-6)
    assert torch.allclose(bias_then, bias - share * 0.3 * (gradient + 0.1 * bias), atol=1e-6)
    assert len(path) == steps and torch.allclose(path[-1][0], net[1].weight, atol=0.02)  # the last step is short


def test_descent_without_augmentation_shows_the_images_as_they_are():
    seen, x = [], torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    net.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    arms.descend(net, x, torch.arange(20) % 2, seed=0, augment=False, **HOW | {"steps": 2})
    assert len(torch.cat([torch.cat(seen), x]).flatten(1).unique(dim=0)) == 20


def test_each_of_the_first_convolutions_halves_the_side():
    x = torch.zeros(2, 3, 32, 32)
    shapes = [x.shape[-1]]
    net = model.convolutions(x, 7, 4, 0)
    for layer in net:
        x = layer(x)
        shapes += [x.shape[-1]] if isinstance(layer, torch.nn.Conv2d) else []
    assert shapes == [32, 16, 8, 4, 4] and x.shape == (2, 7) and net[-1].in_features == 16


@pytest.fixture
def trained(monkeypatch):
    """Arguments of each call of ``descend``, with the network as it was."""
    calls, descend = [], arms.descend

    def recorded(net, x, y, **how):
        calls.append(({name: value.clone() for name, value in net.state_dict().items()}, x, y, how))
        return descend(net, x, y, **how)

    monkeypatch.setattr(arms, "descend", recorded)
    return calls


FIRST = {"batch": 10, "weight_decay": 1e-3, "augment": False}
STEPS = {"steps": 4, "target_steps": 3, "step_size": 0.05, "tuning_step": 0.02}


def test_an_arm_is_pretrained_on_its_labels_and_then_tuned_on_the_target_of_the_same_images(split, trained):
    labels = torch.arange(100) % 7
    found, missed = arms.image_arm(split, labels, 4, 5, **STEPS, **FIRST)
    (start, x, y, how), (_, x_then, y_then, then) = trained
    assert x is split.x["pretraining"] and x_then is x and torch.equal(y, labels)
    assert torch.equal(y_then, split.target("pretraining"))
    assert how == {"steps": 4, "step_size": 0.05, "seed": 5, **FIRST}
    assert then == {"steps": 3, "step_size": 0.02, "seed": 5 + 10**5, **FIRST}
    fresh = model.convolutions(x, 7, 4, 5)
    assert all(torch.equal(value, start[name]) for name, value in fresh.state_dict().items())
    losses = arms.descend(fresh, x, labels, **how)
    expected = measure.after_pretraining(fresh, losses, split, labels)
    tuned = arms.fine_tuned(fresh, split, 4, 5, steps=3, step_size=0.02, **FIRST)
    after, test = measure.after_training(*tuned, split)
    assert found == expected | after and torch.equal(missed, test)
    assert expected["labels"] == measure.percent(measure.wrong(fresh, x, labels))
    assert expected["probe"] == measure.probe(fresh, split)
    assert expected["labels fell"] == training.percent_fallen(losses)


def test_the_arm_without_pretraining_takes_as_many_steps_on_the_target_as_both(split, trained):
    found, missed = arms.image_arm(split, None, 4, 5, **STEPS, **FIRST)
    ((start, x, y, how),) = trained
    assert torch.equal(y, split.target("pretraining")) and how == {"steps": 7, "step_size": 0.05, "seed": 5, **FIRST}
    two = model.convolutions(x, 2, 4, 5).state_dict()  # starts as that of two labels does
    assert all(torch.equal(value, start[name]) for name, value in two.items())
    assert set(found) == {"fitted", "fell", "validation", "test"} and found["test"] == measure.percent(missed)


def test_fine_tuning_starts_from_the_pretrained_network_with_a_new_last_layer(split, trained):
    net = model.convolutions(split.x["pretraining"], 7, 4, 5)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tuned, losses = arms.fine_tuned(net, split, 4, 5, **HOW | {"step_size": 0.0})
    start, *_, how = trained[-1]
    assert len(losses) == 4 and how["seed"] != 5 and tuned[-1].out_features == 2
    last = f"{len(net) - 1}."
    assert all(torch.equal(value, before[name]) for name, value in start.items() if not name.startswith(last))
    assert start[f"{last}weight"].shape == (2, 16) and not torch.equal(start[f"{last}weight"], before[f"{last}weight"][:2])
    arms.fine_tuned(net, split, 4, 5, **HOW)  # of a copy
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Threshold(torch.nn.Module):
    """Class 1 for images whose first pixel is above a threshold; the reverse in training mode."""

    def __init__(self, level):
        super().__init__()
        self.level = level

    def forward(self, x):
        above = (x[:, 0, 0, 0] > self.level) != self.training
        return torch.stack([~above, above], 1).float()


def test_errors_after_training_are_shares_of_each_part_and_of_hard_images(split):
    level = split.x["test"][:, 0, 0, 0].median()
    net = Threshold(level).train()
    missed = {part: (x[:, 0, 0, 0] > level).long() != split.target(part) for part, x in split.x.items()}
    found, test = measure.after_training(net, [4.0, 4.0, 3.0, 2.0], split)
    assert torch.equal(test, missed["test"]) and found["fell"] == 50
    for key, part in (("fitted", "pretraining"), ("validation", "validation"), ("test", "test")):
        assert found[key] == measure.percent(missed[part])
    assert measure.by_difficulty(test, test) == {"hard": 100, "easy": 0}
    found = measure.by_difficulty(test, torch.arange(80) < 10)
    assert found == {"hard": measure.percent(test[:10]), "easy": measure.percent(test[10:])}


def test_the_probe_sees_the_features_and_is_fitted_on_the_images_of_pretraining(split):
    g = torch.Generator().manual_seed(0)
    for part, x in split.x.items():  # the first feature is the target
        split.x[part] = torch.rand(len(x), 1, 2, 2, generator=g)
        split.x[part][:, 0, 0, 0] = split.target(part)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    net[1].weight.data.zero_()
    assert measure.probe(net, split) == 0
    split.x["pretraining"] = split.x["pretraining"].roll(1, 0)
    assert measure.probe(net, split) > 20


def test_the_penalty_of_the_probe_is_chosen_on_validation_images(split, monkeypatch):
    """Fits whose scores are known by penalty: the best for the images fitted on, for validation and for tests differ."""
    scores = {"pretraining": (0.5, 0.6, 0.7, 0.8), "validation": (0.3, 0.75, 0.25, 0.5), "test": (0.2, 0.4, 0.9, 0.6)}

    class Fit:
        def __init__(self, C, **_):
            self.place = (1e-3, 1e-2, 1e-1, 1.0).index(C)

        def fit(self, x, y):
            assert len(x) == len(y) == len(split.x["pretraining"])
            return self

        def score(self, x, y):
            (part,) = [part for part in scores if len(split.x[part]) == len(x) == len(y)]
            return scores[part][self.place]

    monkeypatch.setattr("sklearn.linear_model.LogisticRegression", Fit)
    assert measure.probe(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2)), split) == 60


def test_the_probe_leaves_a_network_in_training_mode_as_it_is(split):
    net = model.convolutions(split.x["test"], 2, 4, 0).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = measure.probe(net, split)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())  # no statistics of test images
    assert found == measure.probe(net.eval(), split)


def script():
    return runpy.run_path(str(kept_runs.declared("fine_grained_labels")["cifar10"].script))


def run(seed, scratch, **how):
    """A run of the script on the digits, with the arms that are asked for."""
    how = {"sizes": {"pretraining": 300, "test": 500}, "width": 4, "steps": 8, "target_steps": 6, "tuning_step": 0.03} | how
    how = {"batch": 30, "weight_decay": 5e-4, "augment": True} | how
    scratch.mkdir(exist_ok=True)
    return script()["run"](seed, CPU, scratch, dataset="digits", **how)


def test_the_kept_run_trains_each_arm_on_its_labels_with_its_steps_and_resumes(tmp_path, trained):
    values = run(0, tmp_path, step_sizes={"ten": [0.05, 0.2], "random IDs": [0.05, 0.2], "none": [0.1, 0.3]})
    assert list(values) == ["none", "ten", "random IDs"] and len(trained) == 2 + 2 * 4
    split = data.Split("digits", {"pretraining": 300, "test": 500}, 0, CPU)
    labels, hard = data.pretraining_labels(split, 0), None
    how = {"steps": 8, "target_steps": 6, "tuning_step": 0.03, "batch": 30, "weight_decay": 5e-4, "augment": True}
    for arm, rows in values.items():
        for row, size in zip(rows, (0.1, 0.3) if arm == "none" else (0.05, 0.2), strict=True):
            expected, missed = arms.image_arm(split, labels.get(arm), 4, 0, step_size=size, **how)
            hard = missed if hard is None else hard  # of the network without pretraining, with its first step
            assert row == {"step_size": size, **expected, **measure.by_difficulty(missed, hard)}, (arm, size)
    assert values["none"][0]["hard"] == 100 and values["none"][0]["easy"] == 0
    assert len({str(row) for rows in values.values() for row in rows}) == 6
    before = len(trained)
    assert run(0, tmp_path, step_sizes={"ten": [0.2], "none": [0.1]})["ten"][0] == values["ten"][1] and len(trained) == before


def test_the_rule_of_ten_labels_fails_for_labels_that_do_not_follow_the_classes():
    record, id = kept_runs.load("fine_grained_labels", "cifar10")["runs"], "cifar10-ten-fine-tuned"
    for arm, expected in (("ten", "holds"), ("random IDs", "undecided"), ("clusters", "fails"), ("unique", "fails")):
        runs = [{"values": one["values"] | {"ten": one["values"][arm]}} for one in record]
        assert judged.verdict("fine_grained_labels", id, "mean", measure.gains(measure.kept_errors(runs))[id]) == expected
