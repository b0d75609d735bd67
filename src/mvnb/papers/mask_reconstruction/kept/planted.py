"""SimMIM on pictures with planted parts: accuracies, and where the networks look, with pretraining and without."""

from __future__ import annotations

from dataclasses import replace

import torch

from mvnb import training
from mvnb.papers.mask_reconstruction import measure
from mvnb.papers.mask_reconstruction.data import SparseMultiView, own_tiles, pictures
from mvnb.papers.mask_reconstruction.model import NETWORKS
from mvnb.papers.mask_reconstruction.training import ImageTask

SHOWN = 6  # maps that are stored


def make(seed, device, *, n_classes, foreign, noise, n_points, labels, width, batch):
    """Return the world of one run and its task."""
    world = SparseMultiView(n_classes, 16, 64, foreign=foreign, balanced=True, patch_noise=noise, background_noise=noise)
    sample = world.sample(n_points, torch.Generator().manual_seed(seed))
    x, y = pictures(sample)[None].to(device), sample.y[None].to(device)
    return world, ImageTask(x, y, labels, n_classes, NETWORKS["small"], width, batch)


def run(seed, device, *, steps, label_steps, n_test, **how) -> dict[str, dict]:
    """Return what networks from scratch ("ERM") and from SimMIM ("MAE") do on test pictures."""
    world, task = make(seed, device, **how)
    lone = replace(world, single_view=1.0)
    worlds = {"multi": world, "single": lone, "alone": replace(lone, foreign=0.0)}
    tests = {name: one.sample(n_test, torch.Generator().manual_seed(seed + 10**6)) for name, one in worlds.items()}
    net, runs = task.fit(seed, steps, label_steps, squares=1)
    values = {}
    for name in ("ERM", "MAE"):
        params = runs[name].params

        def right(x, y, params=params):
            return (training.predict(net, params, x[None].to(device)).argmax(-1).cpu() == y.cpu())[0].double()

        hits = {kind: right(pictures(s), s.y) for kind, s in tests.items()}
        views = [
            [float(hits["single"][(tests["single"].y == c) & (tests["single"].strong == v)].mean()) for v in range(2)]
            for c in range(world.n_classes)
        ]
        own, inner = own_tiles(tests["multi"]), {k[8:]: v for k, v in params.items() if k.startswith("encoder.")}
        features = training.predict(net.encoder, inner, pictures(tests["multi"])[None].to(device))[0].cpu()
        maps = measure.eigen_cam(features)
        lit = measure.lit_tiles(maps)
        last = runs[name].log["loss"][-label_steps // 5 :, 0].cpu()
        values[name] = {
            **{kind: float(one.mean()) for kind, one in hits.items()},
            "train": float(right(task.x[0, : task.labels], task.y[0, : task.labels]).mean()),
            "fell": float(1 - last[-20:].mean() / last[:20].mean()),
            "views": views,
            "covered": float(((lit & own).sum(1) / (lit | own).sum(1)).mean()),
            "lit": float((lit & own).sum(1).double().mean()),
            "precision": measure.cell_probe(features, own),
            "maps": [[round(v, 2) for v in one.flatten().tolist()] for one in maps[:SHOWN]],
        }
    return values


def beginning(seed, device, *, steps, label_steps, n_test, **how) -> list[float]:
    """Return the losses of the first 50 steps of pretraining."""
    _, runs = make(seed, device, **how)[1].fit(seed, 50, 1, squares=1)
    return runs["SimMIM"].log["loss"][:, 0].tolist()
