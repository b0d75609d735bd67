"""Training with labels, from scratch and after pretraining, and what trained stacks of networks are asked.

``activation`` is the exponent and the threshold of the smoothed ReLU. Points are samples of
:class:`~mvnb.papers.mask_reconstruction.data.SparseMultiView`, stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mvnb import probes, training
from mvnb.models import PatchObjective, patch_logits
from mvnb.papers.mask_reconstruction.model import FineTuneObjective, MaskedAutoencoderObjective, TeacherStudentObjective
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


def at_first(log: Mapping[str, Tensor], true: Tensor) -> dict[str, Tensor]:
    """Return a log's values at each run's first look at which ``true`` ``(looks, runs)``, or at its last look."""
    look, runs = torch.where(true.any(0), true.int().argmax(0), len(true) - 1), torch.arange(true.shape[1])
    return {key: rows[look, runs] for key, rows in log.items()}


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


def accuracies(logits_of: Logits, tests: Mapping[str, tuple]) -> dict[str, np.ndarray]:
    """Return the accuracy ``(R,)`` on each of some samples."""
    return {kind: probes.accuracy(logits_of(s.x[None]), s.y).cpu().numpy() for kind, s in tests.items()}


def worse_kind(result: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the accuracy of each run on the kind of points on which it is lower, ``(R,)``."""
    return np.minimum(*result.values())


def best_correlations(params: Params, n_features: int) -> Tensor:
    """Return the best correlation of any kernel with each feature, ``(R, features)``."""
    return params["weight"].flatten(1, -2)[..., :n_features].amax(1)


def own_correlations(params: Params, n_features: int) -> Tensor:
    """Return the same among the kernels of the feature's class."""
    return probes.max_correlation(params["weight"][..., :n_features]).flatten(1)


def push(name: str, responses: Sequence[float], activation: Activation, keep: float = 0.5) -> float:
    """Return minus the slope of a loss in the last of some kernels' responses, each to a feature and a patch of its own.

    ``name`` is "MAE", "Teacher-student", or "ERM" for labels of two classes, of which the kernels of the second are zero.
    """
    size = len(responses)
    weight = torch.diag(torch.tensor(responses, dtype=torch.float64))[None]
    patches = torch.eye(size, dtype=torch.float64)[None, None]
    if name == "ERM":
        both, rest = torch.stack([weight, 0 * weight], 1), (torch.zeros(1, 1, dtype=torch.long), patches.new_ones(1, size))
        grad = PatchObjective(*activation, torch.float64)({"weight": both}, patches, *rest)[1]["weight"][:, 0]
    else:
        objective = {"MAE": MaskedAutoencoderObjective, "Teacher-student": TeacherStudentObjective}[name]
        grad = objective(*activation)({"weight": weight}, patches, keep)[1]["weight"]
    return -grad[0, -1, -1].item()
