"""What a run of the chapter takes."""

from mvnb.costs import Part

IMAGES = {"digits": (1797, 1, 8), "mnist5k": (5000, 1, 28), "cifar10": (60_000, 3, 32), "cifar100": (60_000, 3, 32)}
"""Images of a set, with the test images; their channels and side."""
LARGEST = (70_000, 1, 28)


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    known, channels, side = IMAGES.get(p.dataset, LARGEST)
    test = {"cifar10": 10_000, "cifar100": 10_000}.get(p.dataset, known // (5 if known <= 5000 else 7))
    pixels, w = channels * side**2, p.width
    if p.network == "residual-mlp":
        weights = pixels * w + 2 * p.blocks * w**2 + 10 * w
        image, step, activation = 1.8e-10 * weights, 0.0, w  # seconds of an image; of a step and network; numbers of a layer
    else:
        weights = 378 * p.blocks * w**2
        image, step, activation = 1.1e-10 * 9 * side**2 * w * (channels + 6 * p.blocks * w), 4e-3, w * side**2
    sets, swept = 2 * p.trials * len(p.sizes), 4 * p.trials * len(p.wide_sizes)  # networks a replica, and of the wide range
    stack, updates = sets * p.replicas, 3 * p.steps // 2
    training = 3 * (1e-3 + stack * step) + stack * (p.small_batch + 2 * p.large_batch) * image
    wide = 1e-3 + swept * (step + p.small_batch * image)

    paths = 76 * p.path_pairs  # networks on the lines of a trial
    judged = 9 * p.trials * p.replicas * (2 * len(p.sizes) * test + sum(p.sizes)) + 6 * p.trials * paths * (test + 400)
    together = max(stack // 2, paths)  # networks that are asked at once
    asked = 4 * together * min(1000, max(1, 100_000 // together), test) * (pixels + 6 * activation)
    of_stack = 4 * stack * weights
    sent = 4 * known * pixels

    points, colours, edge = IMAGES.get(p.logistic_dataset, LARGEST)
    d = colours * edge**2 + 1
    models = 2 * p.trials * len(p.logistic_sizes) * p.logistic_replicas
    logistic = p.logistic_steps * (5e-4 + models * points * (8e-11 * d + 2.5e-9))
    return [
        Part("logistic regression", logistic, 8 * models * points + 16 * points * d),
        Part("training of the pairs", updates * training, 11 * of_stack + 4 * stack * p.large_batch * pixels + sent),
        Part("wide range of sizes", updates * wide, 4 * 10 * swept * weights + 4 * of_stack + sent),
        Part("predictions of many networks at once", judged * image, asked + 5 * of_stack + sent),
    ]
