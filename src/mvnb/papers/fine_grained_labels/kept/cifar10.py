"""Pretraining on labels of CIFAR-10 from two to one per image, then training on "animal or vehicle"."""

from __future__ import annotations

from mvnb.papers.fine_grained_labels import data, measure, model, training


def run(
    seed, device, scratch, *, dataset, sizes, n_test, width, step_sizes, steps, target_steps, batch, weight_decay
) -> dict[str, list]:
    """Return by arm, for each step size of pretraining, its training error and the errors on the target.

    ``step_sizes`` maps an arm to lists of step sizes: of ``pretraining``, of fine-tuning on the ``target`` images, and of
    fine-tuning on the images of pretraining, ``same``. ``hard`` is the error on the test images that the network without
    pretraining, fine-tuned on the target images with its first step size, misclassifies.
    """
    split = data.Split(dataset, sizes, n_test, seed, device)
    labels, values, hard = data.pretraining_labels(split, seed), {}, None
    how = {"batch": batch, "weight_decay": weight_decay}
    for arm in sorted(step_sizes, key=measure.ARMS.index):
        values[arm] = []
        for size in step_sizes[arm].get("pretraining", [0.0]):
            first, path = {"steps": steps, "step_size": size, **how}, scratch / f"{arm}, {size}.pt"
            net, found = training.pretrained(split, labels.get(arm), width, seed, path, **first)
            row = {"step_size": size, **found, "probe": measure.probe(net, split), "target": [], "same": []}
            for key, part in {"target": "target", "same": "pretraining"}.items():
                for second in step_sizes[arm][key]:
                    then = {"steps": target_steps, "step_size": second, **how}
                    tuned = training.fine_tuned(net, split, part, width, seed, **then)
                    one, missed = measure.after_tuning(*tuned, split, part, hard)
                    row[key].append({"step_size": second, **one})
                    hard = missed if hard is None else hard
            values[arm].append(row)
    return values


def beginning(seed, device, *, width, batch, weight_decay, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the classes of the digits, which ship with a package."""
    split = data.Split("digits", {"pretraining": 1000, "target": 100, "validation": 100}, 300, seed, device)
    how = {"steps": 50, "batch": batch, "step_size": 0.1, "weight_decay": weight_decay, "seed": seed}
    x = split.x["pretraining"]
    return training.descend(model.convolutions(x, 10, width, seed), x, split.y["pretraining"], **how)
