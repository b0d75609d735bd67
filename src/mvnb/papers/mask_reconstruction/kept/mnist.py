"""SimMIM on MNIST: filling in masked patches of all images, then training on a few labels; the same without pretraining."""

from __future__ import annotations

from copy import deepcopy
from itertools import product

import torch

from mvnb.papers.mask_reconstruction import training as trained
from mvnb.papers.mask_reconstruction.data import Split
from mvnb.training import percent_fallen


def run(seed, device, scratch, *, dataset, labels, draws, judged, width, mask_ratio, pretraining, training, arms) -> dict:
    """Return the errors of every arm in every setting, and the loss of pretraining.

    An arm says whether its encoder is ``pretrained`` and lists the values of its settings, keywords of ``few_labels``. The
    loss is given as 21 averages over equal parts of the steps, and as that over the last hundred.
    """
    split = Split(dataset, dict(zip(labels, draws)), **judged, seed=seed, device=device)
    filler, net = trained.pair(split, width, seed)
    nets, path = {False: deepcopy(net), True: net}, scratch / "pretrained.pt"
    if not path.exists():
        losses = trained.simmim(filler, split.x["all"], mask_ratio, seed=seed + 10**6, **pretraining)
        means = [float(part.mean()) for part in torch.tensor(losses).tensor_split(min(21, len(losses)))]
        ended = {"losses": means, "loss": sum(losses[-100:]) / len(losses[-100:]), "fell": percent_fallen(losses)}
        torch.save({"filler": filler.state_dict(), **ended}, path)
    saved = torch.load(path, map_location=device)
    filler.load_state_dict(saved.pop("filler"))
    values: dict = {"pretraining": saved, "arms": []}
    for (name, arm), (n, many) in product(arms.items(), zip(labels, draws)):
        keys = [key for key in arm if key != "pretrained"]
        for setting, i in product(product(*(arm[key] for key in keys)), range(many)):
            how = dict(zip(keys, setting))
            found = trained.few_labels(nets[arm["pretrained"]], split, (n, i), **how, **training, seed=seed + (2 + i) * 10**6)
            values["arms"].append({"arm": name, "labels": n, "draw": i, **how, **found})
    return values


def beginning(seed, device, *, width, mask_ratio, pretraining, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the digits, which ship with a package."""
    split = Split("digits", {}, 100, 0, False, seed, device)
    filler, _ = trained.pair(split, width, seed)
    return trained.simmim(filler, split.x["all"], mask_ratio, seed=seed + 10**6, **pretraining | {"steps": 50})
