"""Networks trained on images with two views and tested on one (Chidambaram et al. 2024, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mvnb import kept_runs, losses, training
from mvnb.papers.midpoint_mixup.data import ConcatenatedViews
from mvnb.training import Params

LAWS = {"ERM": None, "Midpoint Mixup": "midpoint", "Uniform Mixup": "uniform"}
"""Mixing law of each method; None stands for training on single points."""


def kept_curves(name: str) -> tuple[np.ndarray, dict[str, dict[str, dict[str, np.ndarray]]]]:
    """Return the logged epochs of a kept run on CIFAR-10 and its curves ``[group][method][key]``, of shape ``(seed, look)``."""
    record = kept_runs.load("midpoint_mixup", name)
    seeds, every = [run["values"] for run in record["runs"]], record["parameters"]["every"]
    epochs = np.arange(every, record["parameters"]["epochs"] + 1, every)
    return epochs, {
        group: {m: {key: np.array([one[group][m][key] for one in seeds]) for key in arm} for m, arm in methods.items()}
        for group, methods in seeds[0].items()
    }


def midpoint_lead(arms: Mapping[str, Mapping[str, np.ndarray]]) -> np.ndarray:
    """Return the test error of ERM minus that of Midpoint Mixup in percentage points, of shape ``(seed, look)``."""
    return arms["ERM"]["error"] - arms["Midpoint Mixup"]["error"]


class StridedConvNet(nn.Sequential):
    """Three 3x3 convolutions of stride 2 with batch normalisation, followed by a linear layer.

    Inputs have shape ``(n, in_channels, side, side)``. With few operations per parameter, the network fits nearly all of its
    training points within minutes on a CPU.
    """

    def __init__(self, in_channels: int, n_classes: int, width: int, side: int):
        layers: list[nn.Module] = []
        for a, b in pairwise([in_channels, width, 2 * width, 4 * width]):
            layers += [nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
            side = (side + 1) // 2
        super().__init__(*layers, nn.Flatten(), nn.Linear(4 * width * side**2, n_classes))


class _ViewBatches:
    """Batches ``(x, y)``, or ``(x, y, x2, y2, lam)`` under a mixing law, of a stack of R runs, as a function of the step.

    An epoch visits the points in random order. Views get fresh weights at every access, the partner of a point is any point,
    and ``lam`` is one number per batch, as in the paper's code. The draws of an epoch depend only on its number and on the
    run's generator, so an interrupted run continues on the same path.
    """

    def __init__(
        self, views: ConcatenatedViews, y: Tensor, law, batch: int, epochs: int, generators: Sequence[torch.Generator]
    ):
        self._views, self._y, self._law = views, y, law
        self.batch = min(batch, y.shape[-1])
        self.per_epoch = y.shape[-1] // self.batch
        self.steps = epochs * self.per_epoch
        self._seeds = [torch.randint(2**62, (epochs,), generator=g).tolist() for g in generators]
        self._epoch = None

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        epoch, k = divmod(step, self.per_epoch)
        epoch = min(epoch, len(self._seeds[0]) - 1)  # the batch after the last step is only used by probes
        if epoch != self._epoch:
            drawn = [self._draw(torch.Generator().manual_seed(seeds[epoch])) for seeds in self._seeds]
            self._epoch, self._drawn = epoch, [torch.stack(part).to(self._y.device) for part in zip(*drawn)]
        points = slice(k * self.batch, (k + 1) * self.batch)
        index, weight, *mixed = self._drawn
        first = self._seen(index[:, points], weight[:, points])
        if self._law is None:
            return first
        others, weight, lam = mixed
        return *first, *self._seen(others[:, points], weight[:, points]), lam[:, k]

    def _seen(self, index: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._views.train(index, weight), self._y.gather(1, index)

    def _draw(self, g: torch.Generator) -> tuple[Tensor, ...]:
        """Draw one epoch of one run: order and weights of the points; partners, their weights and mixing weights."""
        n = self._y.shape[-1]
        points = torch.randperm(n, generator=g), torch.rand(n, generator=g)
        if self._law is None:
            return points
        lam = losses.sample_mixing(self._law, (self.per_epoch,), g)
        return *points, torch.randint(n, (n,), generator=g), torch.rand(n, generator=g), lam


class Prepared(NamedTuple):
    """The network, and the arguments of :func:`mvnb.training.fit`."""

    net: torch.nn.Module
    objective: Callable
    params: Params
    batches: _ViewBatches


@dataclass(frozen=True)
class TwoViewTask:
    """Training views with labels ``(R, n)`` and test inputs ``(R, m, ...)`` with labels ``(R, m)`` of a stack of R runs."""

    views: ConcatenatedViews
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def prepare(self, make: Callable[[], nn.Module], law, *, seed: int, epochs: int, batch: int) -> Prepared:
        """Return a stack of new networks and their batches under a mixing law; run r depends on ``seed + r`` only."""
        modules = []
        for r in range(len(self.y)):
            torch.manual_seed(seed + r)
            modules.append(make().to(self.y.device))
        batches = _ViewBatches(self.views, self.y, law, batch, epochs, training.generators(seed + 10**6, len(self.y)))
        objective = training.ModuleObjective(modules[0], losses.cross_entropy if law is None else losses.mixup)
        return Prepared(modules[0], objective, training.stack(modules), batches)
