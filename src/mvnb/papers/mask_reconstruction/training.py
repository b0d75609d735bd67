"""Training: with labels, from scratch and after pretraining, of patch networks and of networks for images.

``activation`` is the exponent and the threshold of the smoothed ReLU. Points are samples of
:class:`~mvnb.papers.mask_reconstruction.data.SparseMultiView`, stacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mvnb import losses, probes, training
from mvnb.models import PatchObjective, patch_logits
from mvnb.papers.mask_reconstruction.model import PATCH, Classifier, Filler, FineTuneObjective, Network
from mvnb.seeds import Seed, as_generator
from mvnb.training import Params, Run

Activation = tuple[int, float]
Logits = Callable[[Tensor], Tensor]
Probe = Callable[[Params], Tensor]


def _train(objective, params: Params, batches, activation: Activation, steps: int, stop: float = 0.01, **kwargs) -> Run:
    """Follow the flow until the loss is ``stop``, or for all steps."""
    how = {"optimizer": training.FlowGD(relative=0.1, absolute=0.1, knee=activation[1]), "log_at": range(0, steps + 1, 10)}
    return training.fit(objective, params, batches, steps=steps, until=lambda p, losses: losses <= stop, **how | kwargs)


def from_scratch(
    weight: Tensor, points, activation: Activation, steps: int, batches=None, dtype=torch.float32, **kwargs
) -> Run:
    """Train kernels ``weight`` ``(R, classes, kernels, dim)`` that classes own, with a head of ones."""
    objective = PatchObjective(*activation, dtype)
    return _train(objective, {"weight": weight}, batches or tuple(points[:3]), activation, steps, **kwargs)


def train_on(run: Run, points, activation: Activation, steps: int, best: Probe) -> tuple[Run, dict[str, Tensor]]:
    """Continue a run from scratch up to ``steps`` steps, whatever the loss; return also the log of both, with ``best``."""
    rest = steps - run.step
    how = {"dtype": torch.float64, "stop": -1.0, "probes": {"best": best}, "log_at": range(0, rest + 1, 2)}
    further = from_scratch(run.params["weight"], points, activation, rest, **how)
    log = {key: torch.cat([rows, further.log[key]]) for key, rows in run.log.items()}
    log["time"][len(run.steps) :] += run.log["time"][-1]
    return further, log


def centroid_head(weight: Tensor, points, activation: Activation, n_classes: int) -> Tensor:
    """Return the direction of the first step of a head from zero, ``(R, classes, kernels)``."""
    zero = torch.zeros(len(weight), n_classes, weight.shape[1], device=weight.device, dtype=weight.dtype)
    return -FineTuneObjective(*activation)({"weight": weight, "head": zero}, points.x.to(weight.dtype), points.y)[1]["head"]


def with_head(weight: Tensor, head: Tensor, points, activation: Activation, steps: int) -> Run:
    """Train kernels and a head along the flow until the loss is 0.01."""
    return _train(FineTuneObjective(*activation), {"weight": weight, "head": head}, (points.x, points.y), activation, steps)


def fine_tune(weight: Tensor, points, activation: Activation, n_classes: int, steps=300, stop=0.01, **kwargs) -> Run:
    """Train kernels and a head from zero by steps of 0.2 and of k, as in Theorem 2."""
    return training.fit(
        FineTuneObjective(*activation),
        {"weight": weight, "head": torch.zeros(len(weight), n_classes, weight.shape[1], device=weight.device)},
        (points.x, points.y),
        steps=steps,
        optimizer=training.SGD(1.0, rates={"weight": 0.2, "head": float(n_classes)}),
        log_at=range(0, steps + 1, 5),
        until=lambda p, losses: losses <= stop,
        **kwargs,
    )


def owned_logits(run: Run, activation: Activation) -> Logits:
    """Return the outputs of networks whose classes own their kernels."""
    return lambda x: patch_logits(run.params["weight"], x, None, *activation)


def head_logits(params: Params, activation: Activation) -> Logits:
    """Return the outputs of networks with a head."""
    objective = FineTuneObjective(*activation)
    return lambda x: objective.logits(params, x.expand(len(params["head"]), -1, -1, -1))


def linear_probe(weight: Tensor, points, activation: Activation, n_classes: int, steps: int = 600) -> Logits:
    """Return the outputs of a linear head on fixed kernels, trained on standardised features."""
    objective = FineTuneObjective(*activation)
    hidden = objective.features(weight, points.x)
    logits = probes.linear_probe(hidden, points.y, n_classes, training.SGD(0.3), steps, hidden.std((1, 2), keepdim=True))
    return lambda x: logits(objective.features(weight, x.expand(len(weight), -1, -1, -1)))


# --- Images ---


def fill_in(f, x: Tensor, masked: Tensor) -> Tensor:
    """Return the mean absolute error of ``f(x, masked)`` on masked pixels, the loss of SimMIM."""
    return ((f(x, masked) - x).abs() * masked).sum() / (masked.sum() * x.shape[1])


def draw_masks(x: Tensor, ratio: float, generator: Seed, patch: int = PATCH) -> Tensor:
    """Return masks ``(n, 1, height, width)`` that cover each patch of images ``x`` with probability ``ratio``, on the CPU."""
    shape = len(x), 1, x.shape[-2] // patch, x.shape[-1] // patch
    cells = torch.rand(shape, generator=as_generator(generator)) < ratio
    return cells.repeat_interleave(patch, 2).repeat_interleave(patch, 3)


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
