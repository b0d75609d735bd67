"""SimMIM on MNIST: filling in masked patches of all images, then training on a few labels; the same without pretraining."""

from __future__ import annotations

from itertools import product

import torch

from mvnb.papers.mask_reconstruction import training as trained
from mvnb.papers.mask_reconstruction.data import Split
from mvnb.training import percent_fallen


def run(seed, device, scratch, *, dataset, labels, n_valid, width, pretraining, training, arms) -> dict[str, list]:
    """Return the errors of every arm in every setting, and how the loss of each pretraining ended.

    An arm lists its settings: ``mask_ratio`` of pretraining (0: none), and either ``shift``, ``step_size`` and
    ``weight_decay`` of the training of the whole network, or the ``penalty`` of a linear layer on frozen features.
    """
    split = Split(dataset, labels, n_valid, seed, device)
    values: dict[str, list] = {"pretraining": [], "arms": []}
    for ratio in sorted({ratio for arm in arms.values() for ratio in arm["mask_ratio"]}):
        filler, net = trained.pair(split, width, seed)
        if ratio:
            path = scratch / f"{ratio}.pt"
            if not path.exists():
                losses = trained.simmim(filler, split.x["all"], ratio, seed=seed + 10**6, **pretraining)
                ended = {"loss": sum(losses[-100:]) / 100, "fell": percent_fallen(losses)}
                torch.save({"filler": filler.state_dict(), **ended}, path)
            saved = torch.load(path, map_location=device)
            filler.load_state_dict(saved.pop("filler"))
            values["pretraining"].append({"mask_ratio": ratio, **saved})
        features = trained.frozen_features(net, split)
        for name, arm in arms.items():
            keys = [key for key in arm if key != "mask_ratio"]
            for setting in product(*(arm[key] for key in keys)) if ratio in arm["mask_ratio"] else ():
                setting = dict(zip(keys, setting))
                for n in labels:
                    if "penalty" in setting:
                        found = trained.linear_layer(features, split, n, **setting)
                    else:
                        found = trained.few_labels(net, split, n, **setting, **training, seed=seed + 2 * 10**6)
                    values["arms"].append({"arm": name, "labels": n, "mask_ratio": ratio, **setting, **found})
    return values


def beginning(seed, device, *, width, pretraining, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the digits, which ship with a package."""
    split = Split("digits", [100], 0, seed, device)
    filler, _ = trained.pair(split, width, seed)
    return trained.simmim(filler, split.x["all"], 0.6, seed=seed + 10**6, **pretraining | {"steps": 50})
