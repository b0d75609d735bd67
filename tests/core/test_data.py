"""Every generator keeps its law; every image set arrives in one layout, whatever it was stored as."""

import gzip
import hashlib
import io
import pickle
import re
import shutil
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch
from hostile import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sp
from torch import nn

from mvnb import data
from mvnb.data import cache, images
from mvnb.models import PatchObjective, patch_logits
from mvnb.papers.midpoint_mixup.data import ConcatenatedViews, PrototypeMixture, class_pairing, draw_companions
from mvnb.papers.midpoint_mixup.measure import _keep_feature

few = settings(max_examples=20, deadline=None)
some = settings(max_examples=50, deadline=None)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@st.composite
def worlds(draw, **fixed):
    """Multi-view worlds with visible noise, few patches and every switch."""
    n_classes, signal_patches = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    n_patches = 2 * signal_patches + draw(st.integers(0, 9))
    switches = {
        "low": draw(st.floats(0.1, 0.7)),
        "coefficient_sum": draw(st.floats(1.5, 3.0)),
        "noise_classes": draw(st.integers(1, n_classes - 1)),
        "noise_low": 0.01,
        "noise_high": 0.02,
        "balanced": draw(st.booleans()),
        "slots": draw(st.none() | st.integers(2 * signal_patches, n_patches)),
    }
    return data.MultiView(n_classes, n_patches, signal_patches, **(switches | fixed))


def materialised(sample):
    """The same points with every patch written out as often as it counts."""
    x = sample.x.repeat_interleave(sample.multiplicity.long(), -2)
    return data.Patches(x, sample.y, torch.ones(x.shape[-2], dtype=x.dtype))


def own_coordinates(sample):
    """Coordinates of the features of each point's own class: (n, patches, 2)."""
    n, patches, dim = sample.x.shape
    return sample.x.view(n, patches, dim // 2, 2)[torch.arange(n), :, sample.y]


def fits(values, law):
    """The values could be a sample of the law (the seed is fixed, so this is no lottery)."""
    return sp.kstest(np.asarray(values).ravel(), law).pvalue > 0.01


@few
@given(world=worlds(), extra=st.integers(0, 4), seed=st.integers(0, 10_000))
def test_embedding_keeps_inner_products_and_can_be_undone(world, extra, seed):
    generator = seeded(seed)
    sample = world.sample(5, generator, dtype=torch.float64)
    features = nn.init.orthogonal_(torch.empty(world.dim, world.dim + extra, dtype=torch.float64), generator=generator)
    there = data.embed(sample, features)
    assert type(there) is data.Patches
    assert there.x.shape == (*sample.x.shape[:-1], world.dim + extra)
    assert torch.allclose(there.x @ features.T, sample.x, atol=1e-12, rtol=0)
    assert torch.allclose(there.x @ there.x.mT, sample.x @ sample.x.mT, atol=1e-12, rtol=0)
    assert there.y is sample.y
    points = data.SimpleMultiView(world.n_classes).sample(3, generator, dtype=torch.float64)
    assert torch.allclose(data.embed(points, features).x @ features.T, points.x, atol=1e-12, rtol=0)


# --- multi-view patches ---


@some
@given(world=worlds(), seed=st.integers(0, 10_000))
def test_signal_patches_are_mirrored_and_alone(world, seed):
    sample = world.sample(7, seeded(seed), dtype=torch.float64)
    own, per_view = own_coordinates(sample), world.signal_patches
    assert ((own != 0).sum(1) == per_view).all()  # (n, view): counted over patches
    signal = (own != 0).any(-1)
    assert ((sample.x[signal] != 0).sum(-1) == 1).all()  # nothing else in a signal patch
    first, second = (own[..., view][own[..., view] != 0].view(7, per_view).sort(1).values for view in (0, 1))
    assert torch.allclose(first + second.flip(1), torch.full_like(first, world.coefficient_sum), atol=1e-12, rtol=0)
    for coefficient in (first, second):
        assert coefficient.min() >= world.low - 1e-12
        assert coefficient.max() <= world.coefficient_sum - world.low + 1e-12


@some
@given(world=worlds(), seed=st.integers(0, 10_000))
def test_noise_patches_are_made_of_other_classes(world, seed):
    sample = materialised(world.sample(6, seeded(seed), dtype=torch.float64))
    assert sample.x.shape == (6, world.n_patches, world.dim)
    own = own_coordinates(sample)
    noise = sample.x[(own == 0).all(-1)].view(6, world.n_patches - 2 * world.signal_patches, world.n_classes, 2)
    present = noise != 0
    assert (present.sum((-1, -2)) == 2 * world.noise_classes).all()
    assert (present.any(-1).sum(-1) == world.noise_classes).all()  # both views of each class
    assert (present == present[:, :1]).all()  # the same classes in all patches of a point
    assert ((noise[present] >= world.noise_low) & (noise[present] <= world.noise_high)).all()
    assert torch.equal(noise, noise[:, :1].expand_as(noise))


@some
@given(world=worlds(), seed=st.integers(0, 10_000))
def test_multiplicity_counts_every_patch(world, seed):
    sample = world.sample(3, seeded(seed), dtype=torch.float64)
    assert sample.multiplicity.sum() == world.n_patches
    slots = world.slots or 2 * world.signal_patches
    assert sample.x.shape[1] == min(slots + 1, world.n_patches)
    assert (sample.multiplicity[:slots] == 1).all()


@pytest.mark.parametrize("lam", [None, 0.5])
def test_multiplicity_trick_equals_written_out_patches(lam):
    world = data.MultiView(3, 23, noise_classes=2, noise_low=0.1, noise_high=0.4, balanced=True)
    short = world.sample(6, seeded(1), dtype=torch.float64)
    full = materialised(short)
    assert short.x.shape[1] < full.x.shape[1] == 23
    weight = 0.3 * torch.randn(3, 4, world.dim, generator=seeded(2), dtype=torch.float64)
    outcomes = []
    for sample in (short, full):
        leaf = weight.clone().requires_grad_()
        logits = patch_logits(leaf, sample.x, sample.multiplicity, 4, 0.1)
        (gradient,) = torch.autograd.grad(logits.log_softmax(-1)[:, 0].sum(), leaf)
        objective = PatchObjective(4, 0.1, torch.float64)
        loss, by_hand = objective({"weight": weight[None]}, *(part[None] for part in sample), lam)
        outcomes.append((logits.detach(), gradient, loss, by_hand["weight"]))
    for one, other in zip(*outcomes):
        assert torch.allclose(one, other, atol=1e-10, rtol=1e-10)
    assert outcomes[0][1].abs().max() > 0.01
    no_count = patch_logits(weight, short.x, None, 4, 0.1)
    assert not torch.allclose(no_count, outcomes[0][0], rtol=0.01)


def test_fixed_placement():
    world = data.MultiView(4, 9, signal_patches=2, noise_low=0.01, noise_high=0.02)
    own = own_coordinates(world.sample(20, seeded(), dtype=torch.float64))
    assert (own[:, :2, 0] > 0).all() and (own[:, 2:4, 1] > 0).all()
    assert (own[:, :2, 1] == 0).all() and (own[:, 2:4, 0] == 0).all() and (own[:, 4:] == 0).all()


def test_jittered_placement_is_uniform_over_the_slots():
    world = data.MultiView(3, 12, slots=5)
    present = own_coordinates(world.sample(3000, seeded(), dtype=torch.float64)) != 0  # (n, patches, view)
    assert not present[:, 5:].any()
    first, second = present[..., 0].double().argmax(1), present[..., 1].double().argmax(1)
    counts = torch.bincount(5 * first + second, minlength=25).view(5, 5)
    assert (counts.diagonal() == 0).all()
    off = counts[~torch.eye(5, dtype=torch.bool)]
    assert sp.chisquare(off.numpy()).pvalue > 0.01


def test_coefficients_are_uniform():
    world = data.MultiView(2, 2, coefficient_sum=2.0, low=0.4)
    coefficients = own_coordinates(world.sample(2000, seeded(3), dtype=torch.float64))[..., 0].amax(1)
    assert fits(coefficients, sp.uniform(0.4, 1.2).cdf)
    assert not fits(coefficients, sp.beta(0.5, 0.5, loc=0.4, scale=1.2).cdf)


def test_noise_coefficients_and_classes_are_uniform():
    world = data.MultiView(4, 5, noise_low=0.2, noise_high=0.5, noise_classes=1)
    sample = world.sample(600, seeded(4), dtype=torch.float64)
    own = own_coordinates(sample)
    noise = sample.x[(own == 0).all(-1)].view(600, 1, 4, 2)
    assert fits(noise[noise > 0], sp.uniform(0.2, 0.3).cdf)
    which = noise[:, 0, :, 0].argmax(-1)
    table = np.bincount(4 * sample.y.numpy() + which.numpy(), minlength=16).reshape(4, 4)
    assert (table.diagonal() == 0).all()
    assert sp.chisquare(table[~np.eye(4, dtype=bool)]).pvalue > 0.01


@few
@given(n=st.integers(1, 40), n_classes=st.integers(2, 6), seed=st.integers(0, 10_000))
def test_balanced_labels_are_as_even_as_possible(n, n_classes, seed):
    for world in (data.MultiView(n_classes, 4, balanced=True), data.SimpleMultiView(n_classes, balanced=True)):
        counts = torch.bincount(world.sample(n, seeded(seed)).y, minlength=n_classes)
        assert counts.max() - counts.min() <= 1
        assert counts.sum() == n


@pytest.mark.parametrize("world", [data.MultiView(4, 4), data.SimpleMultiView(4)])
def test_labels_are_uniform_and_independent_by_default(world):
    counts = torch.bincount(world.sample(4000, seeded(6)).y, minlength=4).numpy()
    assert sp.chisquare(counts).pvalue > 0.01
    assert np.ptp(counts) > 1


def test_balanced_labels_come_in_random_order():
    world = data.MultiView(2, 4, balanced=True)
    assert not torch.equal(world.sample(50, seeded(0)).y, world.sample(50, seeded(1)).y)


def test_labels_can_be_given_and_samples_repeat():
    world = data.MultiView(3, 10, noise_low=0.1, noise_high=0.2)
    y = torch.tensor([2, 0, 0, 1])
    one, two, other = (world.sample(4, seeded(seed), y=y, dtype=torch.float64) for seed in (0, 0, 1))
    assert torch.equal(one.y, y)
    assert (own_coordinates(one) > 0).any(-1).sum(1).tolist() == [2] * 4
    assert torch.equal(one.x, two.x) and not torch.equal(one.x, other.x)
    single = world.sample(4, seeded(0), y=y)
    assert single.x.dtype == single.multiplicity.dtype == torch.float32
    assert torch.allclose(single.x.double(), one.x, atol=1e-6)
    with pytest.raises(ValueError, match="shape"):
        world.sample(3, seeded(0), y=y)


@few
@given(world=worlds(), view=st.integers(0, 1), seed=st.integers(0, 10_000))
def test_keep_feature_removes_only_the_other_feature(world, view, seed):
    sample = world.sample(5, seeded(seed), dtype=torch.float64)
    kept = _keep_feature(sample, view)
    difference = data.Patches(sample.x - kept.x, sample.y, sample.multiplicity)
    removed = own_coordinates(difference)
    assert torch.equal(removed[..., 1 - view], own_coordinates(sample)[..., 1 - view])
    assert (own_coordinates(kept)[..., 1 - view] == 0).all()
    assert (removed[..., view] == 0).all()
    assert (difference.x != 0).sum() == 5 * world.signal_patches  # nothing of other classes, nothing of the view
    assert torch.equal(kept.y, sample.y) and torch.equal(kept.multiplicity, sample.multiplicity)
    both = [part.expand(2, *part.shape) for part in sample]
    assert torch.equal(_keep_feature(data.Patches(*both), view).x, kept.x.expand(2, *kept.x.shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_classes": 1}, "n_classes"),
        ({"signal_patches": 0}, "signal_patches"),
        ({"signal_patches": 6}, "signal_patches"),
        ({"low": 0.0}, "low"),
        ({"low": 1.1}, "low"),
        ({"noise_classes": 0}, "noise_classes"),
        ({"noise_classes": 3}, "noise_classes"),
        ({"noise_low": -0.1}, "noise_low"),
        ({"noise_low": 0.2, "noise_high": 0.1}, "noise_low"),
        ({"slots": 1}, "slots"),
        ({"slots": 11}, "slots"),
    ],
)
def test_multi_view_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.MultiView(**({"n_classes": 3, "n_patches": 10} | arguments))


def test_the_edges_of_multi_view_are_allowed():
    edge = data.MultiView(2, 2, low=1.0, slots=2)
    assert own_coordinates(edge.sample(4, seeded(), dtype=torch.float64)).amax((1, 2)).tolist() == [1.0] * 4


# --- the linear world ---


@few
@given(n_classes=st.integers(2, 5), seed=st.integers(0, 10_000))
def test_simple_multi_view(n_classes, seed):
    sample = data.SimpleMultiView(n_classes).sample(9, seeded(seed), dtype=torch.float64)
    views = sample.x.view(9, n_classes, 2)
    own = views[torch.arange(9), sample.y]
    assert torch.allclose(own.sum(1), torch.ones(9, dtype=torch.float64), atol=1e-15, rtol=0)
    assert own.min() >= 0.1 - 1e-12 and own.max() <= 0.9 + 1e-12
    assert torch.allclose(sample.x.sum(1), own.sum(1))  # nothing outside the own class
    assert ((sample.x != 0).sum(1) <= 2).all()


def test_simple_multi_view_is_uniform():
    sample = data.SimpleMultiView(2).sample(2000, seeded(7), dtype=torch.float64)
    assert fits(sample.x[torch.arange(2000), 2 * sample.y], sp.uniform(0.1, 0.8).cdf)


def test_simple_multi_view_refuses_a_single_class():
    with pytest.raises(ValueError, match="n_classes"):
        data.SimpleMultiView(1)


# --- images ---


@pytest.mark.parametrize(("name", "side", "n_train", "n_test"), [("digits", 8, 1437, 360), ("mnist5k", 28, 4000, 1000)])
def test_embedded_images(name, side, n_train, n_test):
    loaded = data.load_images(name)
    assert loaded.name == name and loaded.n_classes == 10
    assert loaded.x_train.shape == (n_train, 1, side, side) and loaded.x_test.shape == (n_test, 1, side, side)
    for x, y in ((loaded.x_train, loaded.y_train), (loaded.x_test, loaded.y_test)):
        assert x.dtype == torch.float32 and y.dtype == torch.int64
        assert x.min() == 0 and x.max() == 1
        assert y.shape == x.shape[:1]
        assert set(y.tolist()) == set(range(10))  # shuffled before the split


def test_the_split_of_digits_is_a_partition():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    ours, again = data.load_images("digits"), data.load_images("digits")
    assert torch.equal(ours.x_test, again.x_test) and torch.equal(ours.y_train, again.y_train)
    pixels = torch.cat([ours.x_train, ours.x_test]).flatten(1).mul(16).round().int().tolist()
    labels = torch.cat([ours.y_train, ours.y_test]).tolist()
    assert sorted(zip(pixels, labels)) == sorted(zip(x.astype(int).tolist(), y.tolist()))


def test_standardised_and_head():
    digits = data.load_images("digits")
    scaled = digits.standardised()
    assert abs(scaled.x_train.mean()) < 1e-5 and abs(scaled.x_train.std() - 1) < 1e-5
    mean, std = digits.x_train.mean(), digits.x_train.std()
    assert torch.allclose(scaled.x_test, (digits.x_test - mean) / std, atol=1e-5)
    x, y = torch.rand(50, 2, 3, 3, generator=seeded()) * torch.tensor([1.0, 5.0]).view(2, 1, 1), digits.y_train[:50]
    assert torch.allclose(data.Images("two", x, y, x, y).standardised().x_train.std((0, 2, 3)), torch.ones(2), atol=1e-5)
    short = digits.head(5, 3)
    assert [len(part) for part in (short.x_train, short.y_train, short.x_test, short.y_test)] == [5, 5, 3, 3]
    assert torch.equal(short.x_test, digits.x_test[:3])
    assert len(digits.head(0, -1).x_train) == 1437 and len(digits.head(0, -1).x_test) == 360
    assert len(digits.head(10**6, 1).y_train) == 1437


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MVNB_DATA", str(tmp_path))
    return tmp_path


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_stored_colour_images_have_channels_first(folder):
    x = pixels(6, 32, 32, 3)
    np.savez(folder / "cifar10.npz", x_train=x, y_train=np.arange(6)[:, None], x_test=x[:2], y_test=np.array([3, 1], np.uint8))
    loaded = data.load_images("cifar10")
    assert loaded.x_train.shape == (6, 3, 32, 32) and loaded.x_test.shape == (2, 3, 32, 32)
    assert loaded.x_train[4, 2, 5, 7].item() == pytest.approx(x[4, 5, 7, 2] / 255)
    assert np.allclose(loaded.x_train.permute(0, 2, 3, 1).numpy() * 255, x, atol=1e-4)
    assert loaded.y_train.tolist() == list(range(6)) and loaded.y_test.tolist() == [3, 1]
    assert loaded.n_classes == 6


def test_stored_grey_images_get_a_channel(folder):
    x = pixels(4, 28, 28)
    np.savez(folder / "mnist.npz", x_train=x, y_train=[0, 1, 2, 1], x_test=x[:3], y_test=[1, 1, 0])
    loaded = data.load_images("mnist")
    assert loaded.x_train.shape == (4, 1, 28, 28)
    assert np.allclose(loaded.x_train[:, 0].numpy() * 255, x, atol=1e-4)
    assert loaded.y_train.dtype == torch.int64


def test_a_file_of_ones_own_is_read_from_its_path(tmp_path):
    x = pixels(4, 5, 6)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=[0, 1, 2, 1], x_test=x[:3], y_test=[1, 1, 0])
    loaded = data.load_images(str(tmp_path / "mine.npz"))
    assert torch.equal(loaded.x_train[:, 0], torch.from_numpy(x / np.float32(255))) and loaded.y_test.tolist() == [1, 1, 0]
    with pytest.raises(FileNotFoundError, match=r"expected a file of images, got .*yours\.npz, which does not exist"):
        data.load_images(str(tmp_path / "yours.npz"))


def test_missing_arrays_are_named(folder):
    np.savez(folder / "mnist.npz", x_train=pixels(2, 28, 28), y_train=[0, 1])
    with pytest.raises(ValueError, match="lacks x_test, y_test"):
        data.load_images("mnist")


def unsigned(*shape, most=3):
    return np.resize(np.arange(most), shape).astype(np.uint8)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x_train": lambda x: x / np.float32(255)}, "x_train of cifar10 to hold integers from 0 to 255, got float32"),
        ({"x_test": lambda x: x * 1.0}, "x_test of cifar10 to hold integers from 0 to 255, got float64"),
        ({"x_train": lambda x: np.full(x.shape, np.nan)}, "x_train of cifar10 to hold integers .* nan"),
        ({"x_train": lambda x: x.astype(np.uint16) * 200}, "x_train of cifar10 to hold integers from 0 to 255, got uint16"),
        ({"x_train": lambda x: x.astype(np.int16) - 1}, "x_train of cifar10 .* with values from -1"),
        ({"x_train": lambda x: x.transpose(0, 3, 1, 2)}, "with 1 or 3 channels, got uint8 of shape .6, 3, 8, 8"),
        ({"x_train": lambda x: x[..., :2]}, "with 1 or 3 channels"),
        ({"x_train": lambda x: x[0, 0]}, "x_train"),
        ({"x_train": lambda x: x[:0], "y_train": lambda y: y[:0]}, "x_train"),
        ({"x_test": lambda x: x[:, :4]}, r"of equal shape, got \(8, 8, 3\) and \(4, 8, 3\)"),
        (
            {"y_train": lambda y: np.eye(3, dtype=int)[y]},
            r"y_train of cifar10 of shape \(6,\), one .*, got \(6, 3\)",
        ),
        ({"y_train": lambda y: y[:-1]}, r"y_train of cifar10 of shape \(6,\), one label per image, got \(5,\)"),
        ({"y_test": lambda y: np.append(y, 0)}, "y_test of cifar10"),
        ({"y_train": lambda y: y.astype(int) - 1}, "y_train of cifar10 to hold class indices, .* from -1"),
        ({"y_train": lambda y: y * 1.0}, "y_train of cifar10 to hold class indices, integers from 0 to 999999, got float64"),
        ({"y_test": lambda y: y == 0}, "y_test of cifar10 to hold class indices, integers from 0 to 999999, got bool"),
        (
            {"y_train": lambda y: y + np.uint64(2**64 - 3)},
            "y_train of cifar10 to hold class indices, .* to 18446744073709551615",
        ),
        ({"y_train": lambda y: y.astype(int) + 10**12}, "y_train of cifar10 to hold class indices, .* to 1000000000002"),
        ({"x_train": lambda x: x[:, :0], "x_test": lambda x: x[:, :0]}, "x_train of cifar10 of shape"),
        ({"x_train": lambda x: x[:, :, :0], "x_test": lambda x: x[:, :, :0]}, "x_train of cifar10 of shape"),
        ({"y_test": lambda y: y + 3}, "labels of test images of cifar10 below 3, as in training, got 5"),
    ],
)
def test_arrays_that_are_not_images_and_labels_are_refused_in_one_line(folder, change, message):
    arrays = {"x_train": unsigned(6, 8, 8, 3), "y_train": unsigned(6), "x_test": unsigned(4, 8, 8, 3), "y_test": unsigned(4)}
    np.savez(folder / "cifar10.npz", **arrays)
    assert data.load_images("cifar10").x_train.shape == (6, 3, 8, 8)
    np.savez(folder / "cifar10.npz", **arrays | {key: spoil(arrays[key]) for key, spoil in change.items()})
    with pytest.raises(ValueError, match=f"^expected .*{message}") as error:
        data.load_images("cifar10")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("harm", ["half", "noise", "packed noise", "empty", "objects", "a folder"])
def test_damaged_files_are_named_and_run_nothing(folder, harm, monkeypatch):
    monkeypatch.chdir(folder)
    path = folder / "mnist.npz"
    x = np.array([Command()], dtype=object) if harm == "objects" else pixels(9, 28, 28)
    save = np.savez_compressed if harm == "packed noise" else np.savez
    save(path, x_train=x, y_train=np.arange(9), x_test=x, y_test=np.arange(9))
    whole = path.read_bytes()
    at = 64 if harm == "packed noise" else 200  # within the head of the first packed block
    noisy = whole[:at] + bytes(200) + whole[at + 200 :]
    path.write_bytes({"half": whole[: len(whole) // 2], "noise": noisy, "packed noise": noisy, "empty": b""}.get(harm, whole))
    if harm == "a folder":
        path.unlink()
        path.mkdir()
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged or not an NPZ file of plain arrays")):
        data.load_images("mnist")
    assert not (folder / "executed").exists()


def zip_of(header, **changes) -> bytes:
    """A ZIP archive whose first member has this NPY header; ``changes`` are entries of its central directory."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "|u1", "fortran_order": False, "shape": header})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x_train.npy", content.getvalue())
        vars_of = archive.getinfo("x_train.npy")
        for key, value in changes.items():
            setattr(vars_of, key, value)
    return packed.getvalue()


OTHER_FILES = {
    "more images than there is memory": zip_of((10**11, 28, 28)),
    "an encrypted member": zip_of((2, 28, 28), flag_bits=1),
    "a text file": b"one, two\n",
    "an unknown compression": zip_of((2, 28, 28), compress_type=97),
}


@pytest.mark.parametrize("kind", [*OTHER_FILES, "an NPY file"])
def test_files_that_are_no_plain_npz_are_refused_in_one_line(folder, kind):
    path = folder / "mnist.npz"
    if kind == "an NPY file":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    else:
        path.write_bytes(OTHER_FILES[kind])
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged or not an NPZ file of plain arrays: ")) as error:
        data.load_images("mnist")
    assert "\n" not in str(error.value) and "load it unsafely" not in str(error.value)


def test_labels_of_a_byte_may_be_255(folder):
    x, y = pixels(256, 2, 2), np.arange(256, dtype=np.uint8)
    np.savez(folder / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert data.load_images("mnist").n_classes == 256


def test_a_constant_channel_becomes_zero():
    x = torch.rand(5, 2, 4, 4, generator=seeded())
    x[:, 1] = 0.1
    made = data.Images("own", x, torch.arange(5), x + 0.5, torch.arange(5)).standardised()
    assert torch.equal(made.x_train[:, 1], torch.zeros(5, 4, 4)) and torch.equal(made.x_test[:, 1], torch.zeros(5, 4, 4))
    assert made.x_train[:, 0].std().item() == pytest.approx(1, abs=1e-5)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MVNB_DATA", str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError, match=r"expected a folder in which files can be created at .*file, got: File exists"):
        data.load_images("mnist")


NAN, INF = float("nan"), float("inf")
EYE, SIGNS = torch.eye(2), torch.tensor([1.0, -1.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.MultiView(3, 20, coefficient_sum=INF), "coefficient_sum must be finite, got inf"),
        (lambda: data.MultiView(3, 20, noise_high=INF), "noise_high must be finite, got inf"),
        (lambda: data.MultiView(3, 20, low=NAN), "low must be finite, got nan"),
        (lambda: data.MultiView(3, 20.5), "n_patches must be an integer, got 20.5"),
        (lambda: data.MultiView(3, 20, slots=NAN), "slots must be an integer, got nan"),
        (lambda: data.MultiView(3, 20, noise_classes=1.5), "noise_classes must be an integer, got 1.5"),
        (lambda: data.SimpleMultiView(2.5), "n_classes must be an integer, got 2.5"),
        (lambda: data.GaussianMixture(EYE * NAN, SIGNS), "means must be finite, got nan"),
        (lambda: data.GaussianMixture.xor(4, INF), "means must be finite, got"),
        (lambda: data.GaussianMixture(EYE, SIGNS * NAN), "labels must be -1 or 1, got"),
        (lambda: data.GaussianMixture(EYE, SIGNS, masses=[0.5, NAN]), "masses must be positive and sum to 1, .*nan"),
        (lambda: data.GaussianMixture(EYE, SIGNS, stds=[1.0, NAN]), "stds positive and finite, got .*nan"),
        (lambda: data.GaussianMixture(EYE, SIGNS, stds=[1.0, INF]), "stds positive and finite, got .*inf"),
    ],
)
def test_parameters_of_distributions_are_finite_numbers(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_given_labels_become_int64(kind):
    world = data.MultiView(3, 20)
    y = torch.tensor([2, 0, 1])
    found, expected = (world.sample(3, 0, y=given) for given in (y.to(kind), y))
    assert found.y.dtype == torch.int64 and all(torch.equal(one, other) for one, other in zip(found, expected))


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(folder, monkeypatch):
    (folder / "there").mkdir()
    (folder / "there" / "mnist.npz").write_bytes(b"not what was published")
    monkeypatch.setitem(images._ARCHIVES, "mnist", {(folder / "there" / "mnist.npz").as_uri(): "sha256:" + 64 * "0"})

    def fetch(url, output_file, pooch):
        Path(output_file).write_bytes(Path(url.removeprefix("file://")).read_bytes())

    retrieve = pooch.retrieve
    monkeypatch.setattr(pooch, "retrieve", lambda url, known_hash, path: retrieve(url, known_hash, path=path, downloader=fetch))
    with pytest.raises(ValueError, match="hash of downloaded file"):
        data.load_images("mnist")
    assert not (folder / "mnist.npz").exists() and not list((folder / "archives").iterdir())


def test_two_first_loads_at_once_both_succeed(folder, monkeypatch):
    x, y, meet = pixels(5, 28, 28), np.arange(5, dtype=np.uint8), threading.Barrier(2)
    np.savez(folder / "there.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    digest = hashlib.sha256((folder / "there.npz").read_bytes()).hexdigest()
    monkeypatch.setitem(images._ARCHIVES, "mnist", {"https://example.org/mnist.npz": f"sha256:{digest}"})

    def fetch(url, output_file, pooch):
        meet.wait(30)  # both have seen that there is no file
        shutil.copy(folder / "there.npz", output_file)

    retrieve = pooch.retrieve
    monkeypatch.setattr(pooch, "retrieve", lambda url, known_hash, path: retrieve(url, known_hash, path=path, downloader=fetch))
    with ThreadPoolExecutor(2) as pool:
        assert all(torch.equal(one.y_test, torch.arange(5)) for one in pool.map(data.load_images, ["mnist", "mnist"]))
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".npz", ".npz"]


def test_an_archive_that_asks_for_a_command_runs_nothing(folder, monkeypatch):
    monkeypatch.chdir(folder)
    members = {f"cifar-10-batches-py/{name}": Command() for name in ("data_batch_1", "test_batch")}
    served(monkeypatch, folder, {"cifar-10-python.tar.gz": tar_of(members)})
    with pytest.raises(ValueError, match=r"refers to posix\.system"):
        data.load_images("cifar10")
    assert not (folder / "executed").exists() and not (folder / "cifar10.npz").exists()


def test_an_archive_writes_nothing_outside_the_folder(folder, monkeypatch):
    inside = folder / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.setenv("MVNB_DATA", str(inside))
    batch = {b"data": planes(pixels(2, 32, 32, 3)), b"labels": [3, 1]}
    members = {"../../data_batch_1": batch, f"{folder}/test_batch": batch}
    served(monkeypatch, inside, {"cifar-10-python.tar.gz": tar_of(members)})
    assert data.load_images("cifar10").y_test.tolist() == [3, 1]
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert written == ["a/b/cifar-10-python.tar.gz", "a/b/cifar10.npz"]


def test_unknown_images_are_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"digits.*cifar100 or a path ending in .npz, got 'imagenet'"):
        data.load_images("imagenet")


@pytest.mark.parametrize("name", [name for name in data.DATASETS if name not in images.EMBEDDED])
def test_absent_images_without_a_network(name, folder, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", offline)
    with pytest.raises(FileNotFoundError) as caught:
        data.load_images(name)
    for needed in (str(folder / f"{name}.npz"), "x_train, y_train, x_test, y_test", "MVNB_DATA"):
        assert needed in str(caught.value)
    assert not (folder / f"{name}.npz").exists()


def test_data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("MVNB_DATA", "~/sets")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.data_dir() == tmp_path / "sets"
    monkeypatch.delenv("MVNB_DATA")
    assert cache.data_dir() == pooch.os_cache("mvnb")


def served(monkeypatch, folder, archives):
    """Let downloads come from a dictionary (end of the address: bytes); the list of what was asked for."""
    asked = []

    def retrieve(url, known_hash, path):
        asked.append(url)
        assert known_hash.split(":")[0] in ("md5", "sha256")  # nothing is unpacked unverified
        name = url.rsplit("/", 1)[-1]
        (folder / name).write_bytes(archives[name])
        return str(folder / name)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return asked


def test_idx_archives_are_converted_once(folder, monkeypatch):
    def idx(array):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        return gzip.compress(head + array.tobytes())

    x, y = pixels(5, 28, 28), np.array([4, 0, 9, 1, 1], np.uint8)
    archives = {f"{part}-images-idx3-ubyte.gz": idx(x[rows]) for part, rows in (("train", slice(3)), ("t10k", slice(3, 5)))}
    archives |= {f"{part}-labels-idx1-ubyte.gz": idx(y[rows]) for part, rows in (("train", slice(3)), ("t10k", slice(3, 5)))}
    asked = served(monkeypatch, folder, archives)
    for _ in range(2):
        loaded = data.load_images("fashion_mnist")
        assert loaded.x_train.shape == (3, 1, 28, 28) and loaded.x_test.shape == (2, 1, 28, 28)
        assert np.allclose(torch.cat([loaded.x_train, loaded.x_test])[:, 0].numpy() * 255, x, atol=1e-4)
        assert loaded.y_train.tolist() == [4, 0, 9] and loaded.y_test.tolist() == [1, 1]
    assert len(asked) == 4
    assert (folder / "fashion_mnist.npz").exists() and not list(folder.glob("*.partial*"))


def tar_of(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            raw = pickle.dumps(content)
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def planes(x):
    """Pixels (n, 32, 32, 3) in the order of the CIFAR archives: all red, all green, all blue."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(len(x), -1)


def test_cifar10_archive(folder, monkeypatch):
    x, y = pixels(6, 32, 32, 3), [5, 4, 3, 2, 1, 0]
    batches = {f"data_batch_{i}": slice(i - 1, i) for i in (2, 1, 3)} | {"test_batch": slice(3, 6)}
    members = {f"cifar-10-batches-py/{name}": {b"data": planes(x[i]), b"labels": y[i]} for name, i in batches.items()}
    members["cifar-10-batches-py/batches.meta"] = {b"label_names": []}
    served(monkeypatch, folder, {"cifar-10-python.tar.gz": tar_of(members)})
    loaded = data.load_images("cifar10")
    assert np.allclose(loaded.x_train.permute(0, 2, 3, 1).numpy() * 255, x[:3], atol=1e-4)
    assert np.allclose(loaded.x_test.permute(0, 2, 3, 1).numpy() * 255, x[3:], atol=1e-4)
    assert loaded.y_train.tolist() == y[:3] and loaded.y_test.tolist() == y[3:]


def test_cifar100_archive_gives_fine_labels(folder, monkeypatch):
    x = pixels(3, 32, 32, 3)
    members = {
        f"cifar-100-python/{part}": {b"data": planes(x[rows]), b"fine_labels": fine, b"coarse_labels": [19] * len(fine)}
        for part, rows, fine in (("train", slice(2), [99, 7]), ("test", slice(2, 3), [50]))
    }
    members["cifar-100-python/meta"] = {}
    served(monkeypatch, folder, {"cifar-100-python.tar.gz": tar_of(members)})
    loaded = data.load_images("cifar100")
    assert loaded.x_train.shape == (2, 3, 32, 32)
    assert loaded.y_train.tolist() == [99, 7] and loaded.y_test.tolist() == [50]


def test_npz_archive(folder, monkeypatch):
    buffer, x = io.BytesIO(), pixels(3, 28, 28)
    np.savez(buffer, x_train=x[:2], y_train=[1, 0], x_test=x[2:], y_test=[1], extra=[0])
    (folder / "archives").mkdir()
    served(monkeypatch, folder / "archives", {"mnist.npz": buffer.getvalue()})
    loaded = data.load_images("mnist")
    assert loaded.y_train.tolist() == [1, 0]
    assert np.allclose(loaded.x_test[:, 0].numpy() * 255, x[2:], atol=1e-4)


# --- two views from one ---


@some
@given(half=st.integers(1, 8), seed=st.integers(0, 10_000))
def test_class_pairing_is_an_involution_without_fixed_points(half, seed):
    pairing = class_pairing(2 * half, seeded(seed))
    classes = torch.arange(2 * half)
    assert torch.equal(pairing[pairing], classes)
    assert (pairing != classes).all()


def test_class_pairing_is_random_and_needs_an_even_number():
    generator = seeded()
    partners = [class_pairing(4, generator)[0].item() for _ in range(300)]
    assert sp.chisquare(np.bincount(partners, minlength=4)[1:]).pvalue > 0.01
    for n_classes in (0, 1, 5):
        with pytest.raises(ValueError, match="even"):
            class_pairing(n_classes, generator)


@few
@given(seed=st.integers(0, 10_000), n=st.integers(8, 40))
def test_companions_come_from_the_partner_class(seed, n):
    generator = seeded(seed)
    y = torch.cat([torch.arange(4), torch.randint(4, (n - 4,), generator=generator)])
    pairing = class_pairing(4, generator)
    companions = draw_companions(y, pairing, generator)
    assert companions.shape == y.shape
    assert torch.equal(y[companions], pairing[y])


def test_companions_are_uniform_over_the_partner_class():
    y = torch.tensor([1] * 3 + [0] * 2000 + [1] * 2)
    companions = draw_companions(y, torch.tensor([1, 0]), seeded())
    counts = torch.bincount(companions[3:2003], minlength=len(y)).numpy()
    assert set(np.flatnonzero(counts)) == {0, 1, 2, 2003, 2004}
    assert sp.chisquare(counts[counts > 0]).pvalue > 0.01


def test_companions_need_a_partner_with_points():
    with pytest.raises(ValueError, match="partner class"):
        draw_companions(torch.tensor([0, 0]), torch.tensor([1, 0]), seeded())


@pytest.mark.parametrize("shape", [(5,), (2, 3, 3)])
def test_concatenated_views(shape):
    x = torch.randn(6, *shape, generator=seeded(), dtype=torch.float64)
    companions = torch.tensor([3, 4, 5, 0, 1, 2])
    views, control = (ConcatenatedViews(x.expand(2, *x.shape), companions.expand(2, -1), one) for one in (True, False))
    index, weight = torch.tensor([[4, 0], [2, 2]]), torch.tensor([[0.0, 1.0], [0.25, 0.5]])
    out, without = views.train(index, weight), control.train(index, weight)
    assert out.shape == (2, 2, 2 * shape[0], *shape[1:])
    for a in range(2):
        for b in range(2):
            i, g = index[a, b], weight[a, b].item()
            assert torch.equal(out[a, b], torch.cat([g * x[i], (1 - g) * x[companions[i]]]))
            assert torch.equal(without[a, b], torch.cat([g * x[i], torch.zeros_like(x[i])]))
    test = ConcatenatedViews.test(x)
    assert test.shape == (6, 2 * shape[0], *shape[1:])
    assert torch.equal(test[:, : shape[0]], x)
    assert (test[:, shape[0] :] == 0).all()


def test_views_of_a_stack_are_those_of_its_members():
    x, index, weight = torch.randn(2, 6, 3), torch.tensor([[4, 0, 4], [2, 1, 5]]), torch.rand(2, 3)
    companions = torch.tensor([[3, 4, 5, 0, 1, 2], [1, 0, 3, 2, 5, 4]])
    out = ConcatenatedViews(x, companions).train(index, weight)
    rows = [slice(r, r + 1) for r in range(2)]
    members = [ConcatenatedViews(x[r], companions[r]).train(index[r], weight[r]) for r in rows]
    assert torch.equal(out, torch.cat(members))


def test_training_views_take_the_precision_of_the_points():
    views = ConcatenatedViews(torch.randn(1, 3, 2), torch.tensor([[1, 2, 0]]))
    assert views.train(torch.tensor([[0]]), torch.tensor([[0.3]], dtype=torch.float64)).dtype == torch.float32


def test_prototype_mixture():
    generator = seeded()
    mixture = PrototypeMixture(3, 2, 16, 0.8, generator)
    assert mixture.prototypes.shape == (3, 2, 16)
    assert torch.allclose(mixture.prototypes.norm(dim=-1), torch.ones(3, 2), atol=1e-6)
    x, y = mixture.sample(400, generator)
    assert x.shape == (1200, 16)
    assert y.tolist() == sorted([0, 1, 2] * 400)
    exact = PrototypeMixture(3, 2, 16, 0.0, seeded())
    points, y = exact.sample(400, generator)
    hit = (points[:, None] == mixture.prototypes[y]).all(-1)  # (n, prototype)
    assert (hit.sum(1) == 1).all()
    assert abs(hit[:, 0].double().mean() - 0.5) < 0.05
    single = PrototypeMixture(3, 1, 16, 0.8, generator)
    x, y = single.sample(400, generator)
    assert fits(x - single.prototypes[y, 0], sp.norm(0, 0.8 / 4).cdf)
