"""Networks pretrained on several kinds of labels, then probed and fine-tuned on a coarse target (Hong et al. 2024, sec. 6)."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb import kept_runs, losses, probes, training
from mvnb.data import load_images
from mvnb.models import MLP, ResNet18
from mvnb.papers.fine_grained_labels.label_functions import cluster_within, grouped_labels, random_ids
from mvnb.training import Params

TREES = {  # the target's groups of the ten classes, and groups just finer
    "digits": (((0, 2, 3, 5, 6, 8), (1, 4, 7, 9)), ((0, 6), (2, 3, 5, 8), (1, 4, 7, 9))),
    "cifar10": (((0, 1, 8, 9), (2, 3, 4, 5, 6, 7)), ((0, 1, 8, 9), (3, 4, 5, 7), (2, 6))),
}
NETWORKS = ("mlp", "resnet34")
TARGET, JUST_FINER, CLASSES = "target", "just finer", "classes"

ARMS = ("none", "two", "pairs", "ten", "clusters", "random IDs", "unique")
"""Pretraining labels of the kept run; "none" is no pretraining."""


def kept_errors(name: str) -> dict[str, dict[str, np.ndarray]]:
    """Return errors of a kept run in percent, one per seed, by arm and measurement.

    Test errors are those after fine-tuning on the ``"same"`` images or on ``"others"``, of a ``"probe"``, and of the networks
    fine-tuned on others on ``"hard"`` and ``"easy"`` images. ``"labels"``, ``"same, fitted"`` and ``"others, fitted"`` are
    errors on the points that were trained on.
    """
    seeds = [run["values"] for run in kept_runs.load("fine_grained_labels", name)["runs"]]
    found = {}
    for arm in ARMS:
        rows = [one[arm][0] for one in seeds]
        same, others = ([row[key][0] for row in rows] for key in ("same", "target"))
        columns = {"same": (same, "test"), "others": (others, "test"), "probe": ([row["probe"] for row in rows], "test")}
        columns |= {"hard": (others, "hard"), "easy": (others, "easy"), "labels": (rows, "train")}
        columns |= {"same, fitted": (same, "train"), "others, fitted": (others, "train")}
        found[arm] = {key: np.array([one.get(field, np.nan) for one in part]) for key, (part, field) in columns.items()}
    return found


class LabelledImages(NamedTuple):
    """Images ``(n, channels, side, side)``, their labels ``(n,)`` by level, and test images with the target."""

    x: Tensor
    levels: dict[str, Tensor]
    x_test: Tensor
    y_test: Tensor


def load(dataset: str, network: str = "mlp", folder: str = "", side: int = 0) -> LabelledImages:
    """Load a data set of :data:`TREES`, or the ``folder`` if there is one, for a network of :data:`NETWORKS`.

    The levels of a data set are the target, three groups and the ten classes. Raises ``ValueError`` for other names.
    """
    for name, value, allowed in (("dataset", dataset, TREES), ("image_network", network, NETWORKS)):
        if value not in allowed:
            raise ValueError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
    if folder:
        return read_folder(Path(folder), side)
    images, (two, three) = load_images(dataset), TREES[dataset]
    levels = {TARGET: grouped_labels(images.y_train, two), JUST_FINER: grouped_labels(images.y_train, three)}
    levels[CLASSES] = images.y_train
    return LabelledImages(images.x_train, levels, images.x_test, grouped_labels(images.y_test, two))


def read_folder(folder: Path, side: int) -> LabelledImages:
    """Read images ``FOLDER/SUPERCLASS/CLASS/NAME``, scaled and cut to squares; every fifth image of a class is for testing.

    The levels are the superclasses, which are the target, and the classes. Raises ``ValueError`` if the folder does not have
    two superclasses or more, a class has fewer than five files, or a file is not an image.
    """
    from PIL import Image, ImageOps

    def inside(path: Path, folders: bool) -> list[Path]:
        found = path.iterdir() if path.is_dir() else ()
        return sorted(entry for entry in found if entry.is_dir() == folders and not entry.name.startswith("."))

    classes = [(s, path) for s, top in enumerate(inside(folder, True)) for path in inside(top, True)]
    if len({s for s, _ in classes}) < 2:
        raise ValueError(f"image_folder must be a folder SUPERCLASS/CLASS/IMAGE with two superclasses or more, got {folder}")
    x, rows = [], []
    for c, (s, path) in enumerate(classes):
        files = inside(path, False)
        if len(files) < 5:
            raise ValueError(f"image_folder must have five images or more in each class, got {len(files)} in {path}")
        for i, file in enumerate(files):
            try:
                with Image.open(file) as image:
                    x.append(np.array(ImageOps.fit(image.convert("RGB"), (side, side))))
            except OSError as error:
                raise ValueError(f"image_folder must contain images only: {error}") from None
            rows.append((s, c, i % 5 == 4))
    superclass, fine, test = torch.tensor(rows).T
    pixels, test = torch.from_numpy(np.stack(x)).permute(0, 3, 1, 2), test.bool()
    levels = {TARGET: superclass[~test], CLASSES: fine[~test]}
    return LabelledImages(pixels[~test], levels, pixels[test], superclass[test])


def image_labels(images: LabelledImages, chosen: Tensor, seed: int) -> dict[str, Tensor]:
    """Return labels ``(R, n)`` of each kind for the images ``chosen`` ``(R, n)`` by each run.

    Clusters are found by k-means in images of 8x8 pixels, where the paper uses CLIP embeddings.
    """
    small = F.adaptive_avg_pool2d(images.x.float(), 8).flatten(1)
    target = images.levels[TARGET][chosen]

    def clustered(within: Tensor, n_clusters: int) -> Tensor:
        size = min(n_clusters, *(n for w in within for n in torch.bincount(w).tolist()))
        found = [cluster_within(small[c].numpy(), w.numpy(), size, seed) for c, w in zip(chosen, within)]
        return torch.from_numpy(np.stack(found))

    return {name: labels[chosen] for name, labels in images.levels.items()} | {
        "5 clusters in each target class": clustered(target, 5),
        "20 clusters in each target class": clustered(target, 20),
        "10 clusters of all": clustered(torch.zeros_like(target), 10),
        "5 random IDs in each target class": random_ids(target, 5, seed),
        "one per image": torch.arange(chosen.shape[1]).expand_as(chosen),
    }


def _resnet34(channels: int) -> nn.Module:
    """Return the body of a ResNet-34 (He et al. 2016) for small images: a ResNet-18 with more blocks and no last layer."""
    net = ResNet18(channels, 1)
    widths = [64, *(width for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)) for _ in range(count))]
    net.blocks = nn.Sequential(*(type(net.blocks[0])(a, b, 1 if a == b else 2) for a, b in pairwise(widths)))
    net.head = nn.Identity()
    return net


class Trainer:
    """Stacks of networks, one per run, trained on the images ``chosen`` ``(R, n)`` by each run with the paper's recipe.

    Momentum is 0.9 and the weight decay 5e-5. The step rises over the first 8 % of the steps and falls along a cosine.
    Fine-tuning has a quarter of the step and of the batch. A ResNet-34 is trained on crops of 7/8 of the side, half of them
    flipped.
    """

    def __init__(
        self,
        images: LabelledImages,
        chosen: Tensor,
        network: str,
        *,
        epochs: int,
        batch: int,
        step_size: float,
        seed: int,
        device,
    ):
        self.images, self.chosen, self.cropped = images, chosen, network == "resnet34"
        self.epochs, self.batch, self.step_size, self.seed, self.device = epochs, batch, step_size, seed, device
        self.target = images.levels[TARGET][chosen]
        some = images.x[:: 1 + len(images.x) // 10_000].float()
        self.mean, self.std = some.mean((0, 2, 3))[:, None, None], some.std((0, 2, 3))[:, None, None]

    def train(self, labels: Tensor, backbone: Params | None = None) -> tuple[nn.Module, Params]:
        """Train on ``labels`` ``(R, n)`` and return the network and the parameters; fine-tune if ``backbone`` is given."""
        share = 1 if backbone is None else 4
        batch = max(1, min(self.batch // share, labels.shape[1]))
        per_epoch = labels.shape[1] // batch
        steps, streams = self.epochs * per_epoch, training.generators(self.seed + 10**7, len(labels))
        modules, order = [], []
        for r in range(len(labels)):
            torch.manual_seed(self.seed + r)
            modules.append(self._network(int(labels.max()) + 1))

        def draw(step: int) -> tuple[Tensor, Tensor]:
            place = step % per_epoch
            if place == 0:
                order[:] = [torch.randperm(labels.shape[1], generator=g) for g in streams]
            rows = torch.stack(order)[:, place * batch : (place + 1) * batch]
            x = [self._pixels(self.images.x[own[i]], g) for own, i, g in zip(self.chosen, rows, streams)]
            return torch.stack(x), labels.gather(1, rows)

        def step_size(t: int) -> float:
            return self.step_size / share * min(1, (t + 1) / (0.08 * steps)) * (1 + math.cos(math.pi * t / steps)) / 2

        run = training.fit(
            training.ModuleObjective(modules[0], losses.cross_entropy),
            training.to_device(training.stack(modules), self.device) | (backbone or {}),
            training.in_blocks(draw, self.device, 2),
            steps=steps,
            optimizer=training.SGD(step_size, momentum=0.9, weight_decay=5e-5),
        )
        return modules[0], run.params

    def errors(self, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Pretrain on ``labels``; return the test errors on the target of a probe and after fine-tuning, in percent."""
        net, params = self.train(labels)
        backbone = {name: value for name, value in params.items() if name.startswith("0.")}
        seen, unseen = (self._outputs(net[:1], backbone, test) for test in (False, True))
        scale = seen.square().sum(-1).mean(1).sqrt()[:, None, None]
        how = (int(self.target.max()) + 1, training.Adam(0.3), 150, scale)
        probed = probes.linear_probe(seen, self.target.to(self.device), *how)(unseen)
        return self._error(probed), self.error(backbone)

    def error(self, backbone: Params | None = None) -> np.ndarray:
        """Train on the target, from a backbone or from the start, and return the test errors in percent."""
        return self._error(self._outputs(*self.train(self.target, backbone), True))

    def _error(self, logits: Tensor) -> np.ndarray:
        return 100 - 100 * probes.accuracy(logits, self.images.y_test.to(self.device)).cpu().numpy()

    def _network(self, n_labels: int) -> nn.Sequential:
        channels, side = self.images.x.shape[1:3]
        if self.cropped:
            return nn.Sequential(_resnet34(channels), nn.Linear(512, n_labels))
        body = nn.Sequential(nn.Flatten(), MLP((channels * side * side, 64, 32)), nn.ReLU())
        return nn.Sequential(body, nn.Linear(32, n_labels))

    def _outputs(self, net: nn.Module, params: Params, test: bool) -> Tensor:
        """Return the outputs ``(R, n, ...)`` on the test images, or on the training images of each run."""
        x, index = self.images.x, self.chosen
        if test:
            x, index = self.images.x_test, torch.arange(len(self.images.x_test)).expand(len(index), -1)
        parts = (torch.stack([self._pixels(x[i]) for i in part]) for part in index.split(500, 1))
        return torch.cat([training.predict(net, params, part.to(self.device)) for part in parts], 1)

    def _pixels(self, x: Tensor, g: torch.Generator | None = None) -> Tensor:
        """Return standardised images ``(n, ...)``; cut from the middle, or at random and flipped if ``g`` is given."""
        x = (x.float() - self.mean) / self.std
        if not self.cropped:
            return x
        width = x.shape[-1] * 7 // 8
        top, left = [(x.shape[-1] - width) // 2] * 2
        if g is not None:
            top, left = torch.randint(x.shape[-1] - width + 1, (2,), generator=g).tolist()
            x = torch.where(torch.rand(len(x), 1, 1, 1, generator=g) < 0.5, x.flip(-1), x)
        return x[..., top : top + width, left : left + width]
