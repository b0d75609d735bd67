"""Stacks of networks trained on hierarchical multi-view data, and the measurements on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mvnb import training
from mvnb.papers.fine_grained_labels import theory
from mvnb.papers.fine_grained_labels.data import NOISE, HierarchicalMultiView, HierarchicalPatches
from mvnb.papers.fine_grained_labels.model import (
    ReluPatchObjective,
    compressed_detectors,
    detector_masks,
    max_read_out,
    relu_logits,
    relu_responses,
    stratified_detectors,
)
from mvnb.training import Params, Run

SCALE, SLACK = 1e-5, 0.2
"""Standard deviation of the initial weights, and slack of the threshold in these units."""


class Start(NamedTuple):
    """Networks before training, and which neurons are singleton and which are possible detectors of which feature.

    The masks have shape ``(R, label, neuron, feature)``.
    """

    params: Params
    single: Tensor
    possible: Tensor


@dataclass(frozen=True)
class Trainer:
    """Training of stacks of networks on fresh easy points, and of their tests.

    ``purpose`` numbers the random streams: run r of an experiment has the seed ``seed + 10^6 purpose + r``. ``step_size`` is
    that of the idealised networks.
    """

    replicas: int
    seed: int
    device: torch.device
    bias_rate: float
    step_size: float

    def generators(self, purpose: int) -> list[torch.Generator]:
        """Return one generator per run."""
        return training.generators(self.seed + purpose * 10**6, self.replicas)

    def drawn(self, world: HierarchicalMultiView, n_labels: int, n_neurons: int, n_detectors: float) -> Start:
        """Draw compressed networks; on average ``n_detectors`` of the ``n_neurons`` of a class fire on each feature."""
        threshold, n = theory.detector_threshold(n_neurons, n_detectors), world.n_features
        params = compressed_detectors(n_labels, n_neurons, n, world.dim, SCALE, threshold, self.generators(0), SLACK)
        return training.to_device(Start(params, *detector_masks(params["weight"], n, SCALE, threshold, SLACK)), self.device)

    def idealised(self, world: HierarchicalMultiView, n_labels: int) -> Start:
        """Return networks in which each class has one detector of each feature and no other neuron."""
        params = stratified_detectors(n_labels, world.n_features, world.dim, SCALE, self.replicas)
        masks = detector_masks(params["weight"], world.n_features, SCALE, 1.0, 0.05)
        return training.to_device(Start(params, *masks), self.device)

    def held_out(self, world: HierarchicalMultiView, purpose: int, copies: int, hard: bool = False) -> HierarchicalPatches:
        """Draw ``copies`` test points of each subclass for each run."""
        n = 2 * world.n_subclasses * copies
        samples = [world.sample(n, g, hard=hard) for g in self.generators(purpose)]
        return training.to_device(training.stack(samples), self.device)

    def train(
        self,
        world: HierarchicalMultiView,
        label: Callable[[HierarchicalPatches], Tensor],
        table: np.ndarray,
        purpose: int,
        steps: int,
        *,
        start: Start | None = None,
        step_size: float | None = None,
        tests: Mapping[str, HierarchicalPatches] | None = None,
        log_at: Sequence[int] | None = None,
        points: int = 2,
        superclasses: bool = False,
    ) -> Run:
        """Train on batches with ``points`` of each subclass; log ``"growth"`` and the :func:`margins` on ``tests`` by name.

        ``label`` maps points to the labels, and ``table`` ``(label, feature)`` has Pr[label | feature]. Networks are idealised
        unless ``start`` is given. With ``superclasses`` the max read-out is trained.
        """
        start = start or self.idealised(world, len(table))
        fresh = training.Fresh(world.sample, 2 * world.n_subclasses * points, self.generators(purpose), device=self.device)
        measured = {name: partial(margins, test=test) for name, test in (tests or {}).items()}
        return training.fit(
            ReluPatchObjective(self.bias_rate, superclasses),
            start.params,
            lambda step: (fresh(step)[0], label(HierarchicalPatches(*fresh(step)))),
            steps=steps,
            optimizer=training.SGD(step_size or self.step_size),
            probes={"growth": partial(own_growth, start=start, table=table), **measured},
            log_at=log_at,
        )


def own_growth(params: Params, start: Start, table: np.ndarray) -> Tensor:
    """Return the mean growth of each class's singleton detectors of its common and of its fine features, ``(R, label, 2)``."""
    own = torch.as_tensor(table > 0, device=start.single.device)
    moved = (params["weight"] - start.params["weight"])[..., : own.shape[1]]
    single = start.single[..., : own.shape[1]] & own[:, None]
    common = torch.arange(own.shape[1], device=own.device) < 2
    masks = [single & which for which in (common, ~common)]
    return torch.stack([(moved * mask).sum((2, 3)) / mask.sum((2, 3)) for mask in masks], -1)


def growth_ratio(run: Run) -> np.ndarray:
    """Return the logged common over fine growth, each averaged over the classes with detectors, ``(look, run)``."""
    common, fine = np.moveaxis(np.nanmean(run.log["growth"].numpy(), 2), -1, 0)
    return common / np.where(fine == 0, np.nan, fine)


def read_out_ratio(params: Params, start: Start, n_subclasses: int) -> np.ndarray:
    """Return the common over the fine growth that a hard point compares through the max read-out, ``(R,)``.

    Of idealised networks, in which detector f moves along feature f. Each growth is the largest among the labels of the
    feature's superclass, averaged over features.
    """
    moved = (params["weight"] - start.params["weight"]).diagonal(dim1=-2, dim2=-1)  # (R, label, feature)
    largest = moved.unflatten(1, (2, -1)).amax(2)  # (R, superclass, feature)
    parts = largest[..., :2], largest[..., 2 : 2 + 2 * n_subclasses]
    own = [part.unflatten(-1, (2, -1)).diagonal(dim1=1, dim2=2).mean((1, 2)) for part in parts]
    return (own[0] / own[1]).cpu().numpy()


def margins(params: Params, test: HierarchicalPatches) -> Tensor:
    """Return the output of the right superclass minus that of the wrong one at each test point, ``(R, n)``."""
    second_minus_first = max_read_out(relu_logits(params, test.x)).diff(dim=-1)[..., 0]
    return second_minus_first * (2 * test.superclass - 1)


def errors(margin: Tensor) -> np.ndarray:
    """Return the share of misjudged points over the last axis of the margins; ties count as errors."""
    return (margin <= 0).double().mean(-1).cpu().numpy()


def first_step(world: HierarchicalMultiView, points: HierarchicalPatches, labels: Tensor, n_labels: int) -> np.ndarray:
    """Return how far one step of size 1 from outputs near 0 moves each detector along its feature, ``(label, feature)``."""
    start = stratified_detectors(n_labels, world.n_features, world.dim, 1e-12, 1, torch.float64)
    _, gradient = ReluPatchObjective(0.0)(start, points.x[None], labels[None])
    return -gradient["weight"][0].diagonal(dim1=-2, dim2=-1).numpy()


def firing_on_noise(params: Params, test: HierarchicalPatches) -> np.ndarray:
    """Return the share of pairs of a noise patch and a neuron that fire, at the first 32 test points, ``(R,)``."""
    fires = relu_responses(params["weight"], params["bias"], test.x[:, :32]) > 0
    noisy = test.kind[:, :32] == NOISE
    share = (fires.double().mean((3, 4)) * noisy).sum((1, 2)) / noisy.sum((1, 2))
    return share.cpu().numpy()


def louder_on_foreign(params: Params, start: Start, table: np.ndarray) -> np.ndarray:
    """Return the share of neurons that respond more than at the start to a feature not of their class, ``(R,)``."""
    foreign = torch.as_tensor(table == 0, device=start.single.device)[:, None]
    now, before = (torch.relu(p["weight"][..., : foreign.shape[-1]] + p["bias"][..., None]) for p in (params, start.params))
    louder, neurons = ((now - before > 1e-9) & foreign).any(-1), (start.params["weight"] != 0).any(-1)
    return ((louder & neurons).sum((1, 2)) / neurons.sum((1, 2))).cpu().numpy()
