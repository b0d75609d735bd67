"""SimCLR on CIFAR-10 alone and with MNIST added, at equal steps and at equal passes, read out linearly with few labels."""

import torch

from mvnb.papers.contrastive_tradeoff import measure, training
from mvnb.papers.contrastive_tradeoff.data import ColourImages
from mvnb.papers.contrastive_tradeoff.model import colour_networks
from mvnb.training import percent_fallen


def run(seed, device, scratch, *, target, added, sizes, side, arms, pretraining, probing) -> dict[str, dict]:
    """Return by arm the accuracies on both sets for each number of labels, and how the loss of pretraining ended.

    An arm has ``widths`` of the encoder (none: raw pixels), whether the ``added`` set takes part, and ``steps`` (0: untrained).
    """
    sets = {name: ColourImages(name, **sizes, side=side, seed=seed, device=device) for name in (target, added)}
    values = {}
    for name, arm in arms.items():
        path = scratch / f"{name}.pt"
        if not path.exists():
            features, losses = training.colour_arm(*sets.values(), **arm, seed=seed, **pretraining)
            found = {"loss": round(losses[-1], 4), "fell": percent_fallen(losses)} if losses else {}
            found |= {key: measure.logistic_probe(features, images, **probing, seed=seed) for key, images in sets.items()}
            torch.save(found, path)
        values[name] = torch.load(path)
    return values


def beginning(seed, device, *, arms, pretraining, **_) -> list[float]:
    """Return the losses of the first 50 steps of pretraining on the digits, which ship with a package."""
    images = ColourImages("digits", 1000, 100, 100, 32, seed, device)
    encoder, head = colour_networks(arms["narrow, alone, 30 passes"]["widths"], seed, device)
    return training.pretrain_colour(encoder, head, images.unlabelled, **pretraining | {"batch": 64}, steps=50, seed=seed)
