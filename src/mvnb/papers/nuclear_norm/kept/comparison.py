"""Nine methods on the framed digits of MNIST, each domain left out in turn, in three worlds."""

from __future__ import annotations

import warnings

import torch
from sklearn.linear_model import LogisticRegression

from mvnb.data import load_images, resize
from mvnb.papers.nuclear_norm.comparison import Comparison, methods, worlds

SWAD = {"ERM": "SWAD", "ERM-NU": "SWAD-NU", "Mixup": "SWAD (Mixup)", "Mixup-NU": "SWAD (Mixup-NU)", "CORAL": "SWAD-CORAL"}


def comparison(*, dataset, image_side, hidden, features, steps, batch, step_size) -> Comparison:
    """The images of a data set, training and test, at the size that is asked for."""
    raw = load_images(dataset)
    images = resize(torch.cat([raw.x_train, raw.x_test]), image_side)
    return Comparison(images, torch.cat([raw.y_train, raw.y_test]), hidden, features, steps, batch, step_size)


def run(seed, device, *, strength, agree, **how) -> dict:
    """Per cent right in each domain when it is left out: by method, by world, and of a linear model of the pixels.

    For methods also the accuracies on training and validation points, and the risk on training points at the end over that
    after four fifths of the steps.
    """
    images, every = comparison(**how), methods(strength)
    found = images.run(list(every.values()), worlds(agree)["one weak hint"], [seed], device)
    values = {
        "reached": _by(every, 100 * found.best) | _by(map(SWAD.get, every), 100 * found.averaged),
        "train": _by(every, 100 * found.train),
        "valid": _by(every, 100 * found.valid),
        "settled": _by(every, found.risk / found.earlier),
        "pixels": pixels(images, worlds(agree)["one weak hint"], seed),
    }
    three = [every[name] for name in ("ERM", "ERM-NU", "weight decay")]
    values["worlds"] = {}
    for name, world in worlds(agree).items():
        best = images.run(three, world, [seed], device).best
        values["worlds"][name] = _by(("ERM", "ERM-NU", "weight decay"), 100 * best)
    return values


def beginning(seed, device, *, strength, agree, **how) -> list[float]:
    """Losses of the first 50 steps, a mean over methods and domains."""
    losses = comparison(**how).first_losses(list(methods(strength).values()), worlds(agree)["one weak hint"], [seed], device)
    return losses.double().mean(1).tolist()


def pixels(images: Comparison, world, seed) -> list[float]:
    """Per cent right in each domain left out, of logistic regression on the pixels of the others."""
    points, found = images.domains(world, [seed]), []
    for train, test in zip(points.train.flatten(1), points.test):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it need not converge to be a baseline
            model = LogisticRegression(max_iter=200).fit(points.x[train].numpy(), points.y[train].numpy())
        found.append(100 * model.score(points.x[test].numpy(), points.y[test].numpy()))
    return found


def _by(names, rows) -> dict[str, list[float]]:
    """Rows ``(method, domain)`` by the methods' names, those without a name left out."""
    return {name: row.tolist() for name, row in zip(names, rows) if name}
