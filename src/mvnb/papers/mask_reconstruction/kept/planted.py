"""SimMIM on pictures with planted parts: accuracies, and where the networks look, with pretraining and without."""

from __future__ import annotations

from dataclasses import replace

import torch

from mvnb.papers.mask_reconstruction import measure
from mvnb.papers.mask_reconstruction import training as trained
from mvnb.papers.mask_reconstruction.data import pictures, world_of_tiles
from mvnb.papers.mask_reconstruction.model import NETWORKS


def train(seed, device, *, n_classes, foreign, noise, n_points, labels, width, **how):
    """Return the world of one run, its labelled pictures, and what :func:`image_arms` returns."""
    world = world_of_tiles(n_classes, foreign, noise)
    sample = world.sample(n_points, torch.Generator().manual_seed(seed))
    x, y = pictures(sample)[None].to(device), sample.y[None].to(device)
    network = NETWORKS["small"]._replace(width=width, squares=1)
    net, runs = trained.image_arms(x, y, network, labels=labels, n_classes=n_classes, seed=seed, **how)
    return world, (x[0, :labels], y[0, :labels]), net, runs


def run(seed, device, *, n_test, **how) -> dict[str, dict]:
    """Return what networks from scratch ("ERM") and from SimMIM ("MAE") do on test pictures."""
    world, labelled, net, runs = train(seed, device, **how)
    lone = replace(world, single_view=1.0)
    worlds = {"multi": world, "single": lone, "alone": replace(lone, foreign=0.0)}
    tests = {name: one.sample(n_test, torch.Generator().manual_seed(seed + 10**6)) for name, one in worlds.items()}
    values = {}
    for name in ("ERM", "MAE"):
        params, loss = runs[name].params, runs[name].log["loss"][:, 0]
        hits = {kind: measure.hits(net, params, pictures(one), one.y) for kind, one in tests.items()}
        values[name] = {
            **{kind: float(one.mean()) for kind, one in hits.items()},
            "train": float(measure.hits(net, params, *labelled).mean()),
            "fell": trained.fall(loss, len(loss) // 5, 20),
            "views": measure.accuracy_by_view(hits["single"], tests["single"]),
            **measure.looks(net, params, tests["multi"], shown=6),
        }
    return values


def beginning(seed, device, *, n_test, **how) -> list[float]:
    """Return the losses of the first 50 steps of pretraining."""
    *_, runs = train(seed, device, **how | {"steps": 50, "label_steps": 1})
    return runs["SimMIM"].log["loss"][:, 0].tolist()
