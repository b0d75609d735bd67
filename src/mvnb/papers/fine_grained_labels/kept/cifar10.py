"""Pretraining on labels of CIFAR-10 from two to one per image, then training on "animal or vehicle"."""

from __future__ import annotations

import torch

from mvnb.papers.fine_grained_labels import data, measure, model, training


def run(seed, device, scratch, *, dataset, sizes, width, step_sizes, **how) -> dict[str, list]:
    """Return by arm, for each of its step sizes, errors in percent and how far the losses fell.

    ``step_sizes`` maps an arm to steps of pretraining; ``how`` is passed to :func:`training.image_arm`. ``hard`` is the
    error on the test images that the network without pretraining misclassifies (the first arm's, with its first step size).
    """
    split = data.Split(dataset, sizes, seed, device)
    labels, values, hard = data.pretraining_labels(split, seed), {}, None
    for arm in sorted(step_sizes, key=measure.ARMS.index):
        values[arm] = []
        for size in step_sizes[arm]:
            path = scratch / f"{arm}, {size}.pt"
            if not path.exists():
                torch.save(training.image_arm(split, labels.get(arm), width, seed, step_size=size, **how), path)
            found, missed = torch.load(path, map_location=device)
            hard = missed if hard is None else hard
            values[arm].append({"step_size": size, **found, **measure.by_difficulty(missed, hard)})
    return values


def beginning(seed, device, *, width, batch, weight_decay, augment, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the classes of the digits, which ship with a package."""
    split = data.Split("digits", {"pretraining": 1000, "test": 300}, seed, device)
    how = {"steps": 50, "batch": batch, "step_size": 0.1, "weight_decay": weight_decay, "seed": seed, "augment": augment}
    x = split.x["pretraining"]
    return training.descend(model.convolutions(x, 10, width, seed), x, split.y["pretraining"], **how)
