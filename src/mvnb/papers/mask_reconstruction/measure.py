"""What the claims judge: numbers per run from trained networks, and from the pictures of their features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mvnb import probes
from mvnb.models import PatchObjective
from mvnb.papers.mask_reconstruction.model import MaskedAutoencoderObjective, TeacherStudentObjective
from mvnb.papers.mask_reconstruction.training import Activation, Logits


def at_first(log: Mapping[str, Tensor], true: Tensor) -> dict[str, Tensor]:
    """Return a log's values at each run's first look at which ``true`` ``(looks, runs)``, or at its last look."""
    look, runs = torch.where(true.any(0), true.int().argmax(0), len(true) - 1), torch.arange(true.shape[1])
    return {key: rows[look, runs] for key, rows in log.items()}


def accuracies(logits_of: Logits, tests: Mapping[str, tuple]) -> dict[str, np.ndarray]:
    """Return the accuracy ``(R,)`` on each of some samples."""
    return {kind: probes.accuracy(logits_of(s.x[None]), s.y).cpu().numpy() for kind, s in tests.items()}


def worse_kind(result: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the accuracy of each run on the kind of points on which it is lower, ``(R,)``."""
    return np.minimum(*result.values())


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
