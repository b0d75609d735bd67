"""ERM and Mixup on two-view CIFAR-10, test error by epoch, and the same without the second view."""

from __future__ import annotations

import torch
from torch.func import functional_call
from torch.nn import functional as F

from mvnb import probes, training
from mvnb.data import load_images
from mvnb.papers.midpoint_mixup.data import ConcatenatedViews, class_pairing, draw_companions
from mvnb.papers.midpoint_mixup.images import LAWS, StridedConvNet, TwoViewTask


def two_views(dataset, n_train, n_test, seed, spurious, device) -> TwoViewTask:
    """One run's task: the pairing of the classes and all companions are drawn once."""
    images = load_images(dataset).head(n_train, n_test).standardised()
    g = torch.Generator().manual_seed(seed)
    companions = draw_companions(images.y_train, class_pairing(images.n_classes, g), g)
    x, y, test_x, test_y = (part.to(device) for part in (images.x_train, images.y_train, images.x_test, images.y_test))
    views = ConcatenatedViews(x[None], companions[None].to(device), spurious)
    return TwoViewTask(views, y[None], ConcatenatedViews.test(test_x)[None], test_y[None])


def prepare(task, seed, law, width, epochs, batch):
    """A network on one run's task."""
    channels, side, classes = task.test_x.shape[2], task.test_x.shape[-1], int(task.y.max()) + 1
    return task.prepare(lambda: StridedConvNet(channels, classes, width, side), law, seed=seed, epochs=epochs, batch=batch)


def seen_by(net, task, seed, judged) -> dict:
    """Probes: per cent wrong on test images; per cent right, and cross-entropy, on views of training images, unmixed."""
    g = torch.Generator().manual_seed(seed + 2 * 10**6)
    index = torch.randperm(task.y.shape[1], generator=g)[None, :judged]
    weight = torch.rand(index.shape, generator=g)
    x, y = task.views.train(index.to(task.y.device), weight.to(task.y.device)), task.y.gather(1, index.to(task.y.device))

    def logits(params, x):
        net.eval()
        with torch.no_grad():
            out = functional_call(net, {k: v[0] for k, v in params.items()}, (x[0],))
        net.train()
        return out[None]

    return {
        "error": lambda p: 100 * (1 - probes.accuracy(logits(p, task.test_x), task.test_y)),
        "right": lambda p: 100 * probes.accuracy(logits(p, x), y),
        "risk": lambda p: F.cross_entropy(logits(p, x)[0], y[0])[None],
    }


def curves(task, seed, law, width, path, *, epochs, every, judged, batch, step_size) -> dict[str, list[float]]:
    """What the probes see every so many epochs; the run is saved to ``path`` on the way and goes on from there."""
    new = prepare(task, seed, law, width, epochs, batch)
    run = training.Run.load(path, task.y.device) if path.exists() else new.params
    for epoch in range(every, epochs + 1, every):
        step = epoch * new.batches.per_epoch
        if isinstance(run, training.Run) and run.step >= step:
            continue
        run = training.fit(
            new.objective,
            run,
            new.batches,
            steps=step,
            optimizer=training.Adam(step_size),
            probes=seen_by(new.net, task, seed, judged),
            log_at=[step],
        )
        run.save(path)
    return {k: [round(v, 4) for v in run.log[k][:, 0].tolist()] for k in ("error", "right", "risk")}


def run(seed, device, scratch, *, dataset, n_train, n_test, methods, controls, width, **how) -> dict:
    """The curves of every method, with the second view and without."""
    values = {}
    for group, names in {"with the view": methods, "without": controls}.items():
        task = two_views(dataset, n_train, n_test, seed, group == "with the view", device)
        values[group] = {name: curves(task, seed, LAWS[name], width, scratch / f"{group}, {name}.pt", **how) for name in names}
    return values


def beginning(seed, device, *, width, batch, step_size, **_) -> list[float]:
    """Losses of the first 50 steps of Midpoint Mixup on the digits, which ship with a package."""
    new = prepare(two_views("digits", 0, 0, seed, True, device), seed, "midpoint", width, 5, batch)
    steps = {"steps": 50, "optimizer": training.Adam(step_size), "log_at": range(50)}
    return training.fit(new.objective, new.params, new.batches, **steps).log["loss"][:, 0].tolist()
