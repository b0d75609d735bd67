"""Images with labels of several levels, from a data set or a folder, and the networks that are trained on them."""

import numpy as np
import pytest
import torch
from PIL import Image

from mvnb import training
from mvnb.papers.fine_grained_labels import data
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


def test_a_residual_network_is_trained_probed_and_tuned_on_a_folder(folder):
    task = data.load_labelled("digits", "resnet34", str(folder), 24)
    one = trainer(task, torch.randperm(32, generator=torch.Generator().manual_seed(0))[None], "resnet34", epochs=1, batch=16)
    net, params = one.train(one.target)
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(convolutions) == 33 and sum(p.numel() for p in net.parameters()) > 21_000_000
    assert params["1.weight"].shape == (1, 2, 512)
    probed, tuned = one.errors(task.levels[data.CLASSES][one.chosen])
    assert probed.shape == tuned.shape == (1,) and 0 <= tuned[0] <= 100


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
