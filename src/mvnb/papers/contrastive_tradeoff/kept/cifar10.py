"""SimCLR and MoCo v2 on CIFAR-10 alone and with MNIST added at equal passes, read out linearly with few labels."""

import torch

from mvnb.papers.contrastive_tradeoff import measure, training
from mvnb.papers.contrastive_tradeoff.data import ColourImages
from mvnb.papers.contrastive_tradeoff.model import colour_network
from mvnb.training import percent_fallen


def run(seed, device, scratch, *, target, added, sizes, side, arms, pretraining, methods, probing) -> dict[str, dict]:
    """Return by arm what the probes of both sets give for each number of labels, and how the loss of pretraining ended.

    An arm has ``widths`` of the encoder (none: raw pixels), a ``method`` (none: untrained), ``added`` if the other set takes
    part, more settings of pretraining, and ``seeds``: it takes part in runs whose seed's last digit is smaller.
    """
    sets = {name: ColourImages(name, **sizes, side=side, seed=seed, device=device) for name in (target, added)}
    values = {}
    for name, arm in arms.items():
        if seed % 10 >= arm["seeds"]:
            continue
        path = scratch / f"{name}.pt"
        if not path.exists():
            setting = pretraining | methods.get(arm.get("method"), {}) | arm
            del setting["seeds"]
            encoder, losses = training.colour_arm(*sets.values(), seed=seed, **setting)
            found = {"loss": round(losses[-1], 4), "fell": percent_fallen(losses)} if losses else {}
            for key, images in sets.items():
                found[key] = measure.logistic_probe(training.for_probing(encoder, images), images, **probing, seed=seed)
            torch.save(found, path)
        values[name] = torch.load(path)
    return values


def beginning(seed, device, *, pretraining, methods, **_) -> list[float]:
    """Return the losses of the first 50 steps of both methods on the digits, which ship with a package: 25 each."""
    images, losses = ColourImages("digits", 1000, 100, 100, 32, seed, device), []
    for name, setting in methods.items():
        net, short = colour_network([8, 16, 32, 64], seed).to(device), {"batch": 40, "passes": 1}
        losses += training.pretrain_colour(net, [images.unlabelled], method=name, seed=seed, **pretraining | setting | short)
    return losses
