"""A convolutional network and the tangent kernel of a wider one on animals and vehicles, pasted on noise and on textures."""

import torch

from mvnb.data import Points
from mvnb.papers.local_signal_adaptivity import training
from mvnb.papers.local_signal_adaptivity.data import on_background, two_classes
from mvnb.probes import accuracy
from mvnb.training import percent_fallen, stream


def run(seed, device, scratch, *, dataset, images, worlds, network, kernel) -> dict[str, dict]:
    """Return by world, arm and setting the shares of images that are classified right, and how training ended.

    A world has a ``background``, its ``level``, the ``step_sizes`` of the network and the ``ridges`` of the kernel; ``narrow``
    ridges are those of the kernel of a network of half the width. All worlds have the same images, places and first weights.
    """
    train, judged = two_classes(dataset, **images, seed=seed)
    values = {}
    for name, world in worlds.items():
        path = scratch / f"{name}.pt"
        if not path.exists():
            pasted = [
                Points(
                    on_background(part.x, world["background"], world["level"], stream(seed, i)).to(device), part.y.to(device)
                )
                for i, part in ((1, train), (2, judged))
            ]
            torch.save(compare(*pasted, world, network, kernel, seed), path)
        values[name] = torch.load(path)
    return values


def compare(train, judged, world, network, kernel, seed) -> dict[str, dict]:
    """Return by arm and setting the shares right in training and on the images ``judged``."""
    found = {"network": {}, "kernel": {}, "narrow kernel": {}}
    for step_size in world["step_sizes"]:
        own, others, losses = training.network_arm(train, judged.x, **network, step_size=step_size, seed=seed)
        reached = {"train": accuracy(own[0], train.y).item(), "test": accuracy(others[0], judged.y).item()}
        found["network"][str(step_size)] = reached | {"loss": losses[-1], "fell": percent_fallen(losses)}
    for arm, width, ridges in (("kernel", kernel, world["ridges"]), ("narrow kernel", kernel // 2, world["narrow"])):
        if ridges:
            own, others = training.kernel_arm(train, judged.x, width=width, ridges=ridges, seed=seed)
            reached = zip(ridges, accuracy(own, train.y).tolist(), accuracy(others, judged.y).tolist())
            found[arm] = {str(ridge): {"train": a, "test": b} for ridge, a, b in reached}
    return found


def beginning(seed, device, **_) -> list[float]:
    """Return the losses of the first 50 steps of the network on digits, which ship with a package."""
    train, judged = two_classes("digits", n_train=500, n_test=100, side=8, judged="test", seed=seed)
    train = Points(on_background(train.x, "Gaussian", 0.5, stream(seed, 1)).to(device), train.y.to(device))
    judged = on_background(judged.x, "Gaussian", 0.5, stream(seed, 2)).to(device)
    return training.network_arm(train, judged, width=8, step_size=0.01, passes=5, batch=50, seed=seed)[2]
