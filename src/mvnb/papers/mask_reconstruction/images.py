"""SimMIM for images: networks that fill in masked patches, and classifiers that start from their encoders.

An *encoder* maps images ``(n, channels, height, width)`` to features ``(n, features, height / patch, width / patch)``, one
vector for each patch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

from mvnb import losses, training
from mvnb.data import embed
from mvnb.models import ResNet18
from mvnb.papers.mask_reconstruction.data import SparsePatches
from mvnb.seeds import Seed, as_generator

PATCH = 4  # side of a patch in pixels


def convolutions(channels: int, width: int) -> nn.Sequential:
    """Return four 3x3 convolutions with batch normalisation, the first two of stride 2; ``2 * width`` features."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise([channels, width, 2 * width, 2 * width, 2 * width])):
        layers += [nn.Conv2d(a, b, 3, stride=2 if i < 2 else 1, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class Filler(nn.Module):
    """SimMIM: masked pixels are replaced by a learned number per channel; one linear layer decodes the features of a patch.

    Called with images and with ``masked`` ``(n, 1, height, width)``, which is true on masked pixels. Source: Xie et al. 2022.
    """

    def __init__(self, encoder: nn.Module, features: int, channels: int, patch: int = PATCH):
        super().__init__()
        self.encoder, self.token = encoder, nn.Parameter(torch.zeros(channels, 1, 1))
        self.decoder = nn.Sequential(nn.Conv2d(features, channels * patch**2, 1), nn.PixelShuffle(patch))

    def forward(self, x: Tensor, masked: Tensor) -> Tensor:
        return self.decoder(self.encoder(torch.where(masked, self.token, x)))


class Classifier(nn.Module):
    """An encoder, averages of its features over each of ``squares**2`` squares, and a linear layer with weights zero."""

    def __init__(self, encoder: nn.Module, features: int, n_classes: int, squares: int):
        super().__init__()
        self.encoder, self.pool = encoder, nn.Sequential(nn.AdaptiveAvgPool2d(squares), nn.Flatten())
        self.head = nn.Linear(features * squares**2, n_classes)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.encoder(x)))


def fill_in(f, x: Tensor, masked: Tensor) -> Tensor:
    """Return the mean absolute error of ``f(x, masked)`` on masked pixels, the loss of SimMIM."""
    return ((f(x, masked) - x).abs() * masked).sum() / (masked.sum() * x.shape[1])


def draw_masks(x: Tensor, ratio: float, generator: Seed, patch: int = PATCH) -> Tensor:
    """Return masks ``(n, 1, height, width)`` that cover each patch of images ``x`` with probability ``ratio``, on the CPU."""
    shape = len(x), 1, x.shape[-2] // patch, x.shape[-1] // patch
    cells = torch.rand(shape, generator=as_generator(generator)) < ratio
    return cells.repeat_interleave(patch, 2).repeat_interleave(patch, 3)


# --- Encoders, classifiers and their training, in stacks ---


class Network(NamedTuple):
    """An encoder ``make(channels, width)``, usual width, features per unit of it, patch side, squares of the classifier."""

    make: Callable[[int, int], nn.Module]
    width: int
    features: int
    patch: int
    squares: int


def _small(channels: int, width: int) -> nn.Module:
    """Each patch by itself, then two convolutions over patches."""
    return nn.Sequential(
        nn.Conv2d(channels, width, PATCH, stride=PATCH),
        nn.ReLU(),
        *(layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())),
    )


def _resnet18(channels: int, width: int) -> nn.Module:
    net = ResNet18(channels, 1, width)
    return nn.Sequential(net.stem, net.blocks)


NETWORKS = {"small": Network(_small, 16, 1, PATCH, 4), "resnet18": Network(_resnet18, 64, 8, 8, 1)}


@dataclass(frozen=True)
class ImageTask:
    """A stack of image sets ``x`` ``(R, n, channels, side, side)``, the first ``labels`` of each with their labels ``y``."""

    x: Tensor
    y: Tensor
    labels: int
    n_classes: int
    network: Network
    width: int
    batch: int

    def draw(self, masked: bool, generators: Sequence[torch.Generator]) -> Callable[[int], tuple[Tensor, ...]]:
        """Return batches: images and masks that cover 60 % of the patches, or images with labels."""
        pool = self.x.shape[1] if masked else self.labels

        def drawn(step):
            rows = torch.stack([torch.randperm(pool, generator=g)[: self.batch] for g in generators])
            blank = torch.empty(rows.shape[1], 0, *self.x.shape[-2:])
            masks = [draw_masks(blank, 0.6, g, self.network.patch) for g in generators] if masked else []
            return (rows, torch.stack(masks)) if masked else (rows,)

        sent = training.in_blocks(drawn, self.x.device)

        def batch(step):
            rows, *masks = sent(step)
            return training.pick_own(self.x, rows), *(masks or [self.y.gather(1, rows)])

        return batch

    def fit(self, seed: int, steps: int, label_steps: int, squares: int) -> tuple[Classifier, dict[str, training.Run]]:
        """Return a classifier and stacks of runs: "SimMIM", and classifiers from it ("MAE") and from its start ("ERM")."""
        make, patch = self.network.make, self.network.patch
        features, channels, modules = self.network.features * self.width, self.x.shape[2], []
        for r in range(len(self.x)):
            torch.manual_seed(seed + r)
            filler = Filler(make(channels, self.width), features, channels, patch)
            modules.append((filler, Classifier(make(channels, self.width), features, self.n_classes, squares)))
        fillers, scratch = (training.to_device(training.stack(column), self.x.device) for column in zip(*modules))
        start = {k: v for k, v in scratch.items() if k.startswith("encoder")}

        def fit(which, loss, params, masked, purpose, steps):
            step_size = training.Adam(lambda step: 3e-3 * (1 + math.cos(math.pi * step / steps)) / 2)
            batches = self.draw(masked, training.generators(seed + purpose * 10**6, len(self.x)))
            objective = training.ModuleObjective(modules[0][which], loss)
            return training.fit(objective, params, batches, steps=steps, optimizer=step_size, log_at=range(steps))

        runs = {"SimMIM": fit(0, fill_in, fillers | start, True, 8, steps)}
        pretrained = {k: runs["SimMIM"].params[k] for k in start}
        for name, encoder in (("ERM", start), ("MAE", pretrained)):
            runs[name] = fit(1, losses.cross_entropy, scratch | encoder, False, 9, label_steps)
        return modules[0][1], runs


# --- Planted parts: the patches of a point as tiles of a picture ---


def pictures(sample: SparsePatches) -> Tensor:
    """Return 16 patches of dimension 64 as tiles of pictures ``(n, 1, 32, 32)``; axes become Walsh patterns by frequency."""
    signs = torch.from_numpy(hadamard(8)).float() / 8**0.5
    rows = signs[(signs[:, 1:] != signs[:, :-1]).sum(1).argsort()]
    order = sorted((i + j, i, j) for i in range(8) for j in range(8))
    patterns = torch.stack([torch.outer(rows[i], rows[j]) for _, i, j in order[1:] + order[:1]])
    tiles = (8 * embed(sample, patterns.flatten(1)).x).unflatten(2, (8, 8)).unflatten(1, (4, 4))  # (n, row, column, y, x)
    return tiles.transpose(2, 3).reshape(-1, 1, 32, 32)


def own_tiles(sample: SparsePatches) -> Tensor:
    """Return which tiles show a feature of the picture's class, ``(n, 16)``."""
    return (sample.holds // 2 == sample.y[:, None]) & (sample.holds >= 0)


def eigen_cam(features: Tensor) -> Tensor:
    """Return features ``(n, features, h, w)`` on their first principal direction, as maps ``(n, h, w)`` in [0, 1].

    The sign is the one in which strong features are positive. Source: Muhammad and Yeasin 2020.
    """
    flat = features.flatten(2).mT  # (n, position, features)
    centred = flat - flat.mean(1, keepdim=True)
    scores = (centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:, :1].mT)[..., 0]
    strong = flat.norm(dim=-1)
    sign = torch.sign(((strong - strong.mean(1, keepdim=True)) * scores).sum(1, keepdim=True))
    maps = (scores * sign).clamp(min=0)
    return (maps / maps.amax(1, keepdim=True).clamp(min=1e-9)).unflatten(1, features.shape[2:])


def lit_tiles(maps: Tensor) -> Tensor:
    """Return which tiles have a quarter above one half, for maps ``(n, 8, 8)``: ``(n, 16)``."""
    return maps.unflatten(2, (4, 2)).unflatten(1, (4, 2)).amax((2, 4)).flatten(1) > 0.5


def cell_probe(features: Tensor, own: Tensor, penalty: float = 1.0) -> float:
    """Return the average precision of ridge regression from features to own tiles, fitted on one half, judged on the other.

    ``features`` are ``(n, features, 8, 8)``, ``own`` is ``(n, 16)``; each tile counts with its four quarters.
    """
    x = features.flatten(2).mT
    x, half = (x - x.mean((0, 1))) / (x.std((0, 1)) + 1e-6), len(own) // 2
    target = own.view(-1, 4, 4).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1).double()
    x, known, judged = x.double(), (target[:half] - target.mean()).flatten(), target[half:].flatten()
    seen = x[:half].flatten(0, 1)
    weight = torch.linalg.solve(seen.T @ seen + penalty * torch.eye(x.shape[2]), seen.T @ known)
    hits = judged[(x[half:].flatten(0, 1) @ weight).argsort(descending=True)]
    return float((hits.cumsum(0) / torch.arange(1, len(hits) + 1) * hits).sum() / hits.sum())
