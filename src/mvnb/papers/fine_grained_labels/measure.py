"""What the claims of chapter 02 judge: measurements on trained networks and on the values of the kept runs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mvnb import kept_runs
from mvnb.papers.fine_grained_labels.data import NOISE, HierarchicalMultiView, HierarchicalPatches, Split
from mvnb.papers.fine_grained_labels.model import (
    ReluPatchObjective,
    Start,
    max_read_out,
    relu_logits,
    relu_responses,
    stratified_detectors,
)
from mvnb.training import Params, Run

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


def _in_parts(function, x: Tensor) -> Tensor:
    """Return the outputs of ``function`` for images ``x``, without gradients and in parts that fit the memory."""
    with torch.no_grad():
        return torch.cat([function(part) for part in x.split(1000)])


def wrong(net, x, y) -> Tensor:
    """Return for each image whether the network, in evaluation mode, misclassifies it."""
    net.eval()
    return _in_parts(net, x).argmax(1) != y


def percent(mask: Tensor) -> float:
    """Return the percentage of true entries."""
    return round(100 * float(mask.double().mean()), 3)


def fall(losses: list[float]) -> float:
    """Return by what percentage the loss fell over the last fifth of the steps; each end is an average over a 20th."""
    width = max(1, len(losses) // 20)
    start, end = (sum(part) / width for part in (losses[-4 * width :][:width], losses[-width:]))
    return round(100 * (1 - end / start), 2)


def probe(net, split: Split) -> dict[str, float]:
    """Return errors of logistic regression on the frozen features, its penalty chosen on the validation images."""
    from sklearn.linear_model import LogisticRegression

    net.eval()
    x = {part: _in_parts(net[:-1], split.x[part]).cpu().double().numpy() for part in ("target", "validation", "test")}
    y = {part: split.target(part).cpu().numpy() for part in x}
    mean, std = x["target"].mean(0), x["target"].std(0) + 1e-6
    x = {part: (value - mean) / std for part, value in x.items()}
    fits = [LogisticRegression(C=c, max_iter=1000).fit(x["target"], y["target"]) for c in (1e-3, 1e-2, 1e-1, 1.0)]
    best = max(fits, key=lambda fit: fit.score(x["validation"], y["validation"]))
    return {part: round(100 * (1 - best.score(x[part], y[part])), 3) for part in x}


def after_tuning(net, losses: list[float], split: Split, part: str, hard: Tensor | None) -> tuple[dict[str, float], Tensor]:
    """Return the errors in percent of a network trained on ``part`` with these losses, and which test images it misses.

    ``hard`` marks the test images that count as hard, by default those that are missed.
    """
    missed = {name: wrong(net, split.x[name], split.target(name)) for name in (part, "validation", "test")}
    found = {"train": percent(missed[part]), "fell": fall(losses)}
    found |= {name: percent(missed[name]) for name in ("validation", "test")}
    hard = missed["test"] if hard is None else hard
    return found | {"hard": percent(missed["test"][hard]), "easy": percent(missed["test"][~hard])}, missed["test"]
