"""Memory of a run of the chapter."""

IMAGES = {"digits": (1797, 1, 64), "mnist5k": (5000, 1, 784), "cifar10": (60_000, 3, 1024), "cifar100": (60_000, 3, 1024)}
"""Images of a set, their channels and pixels; other sets have 70,000 like those of ``mnist5k``."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    _, channels, pixels = IMAGES.get(p.dataset, (70_000, 1, 784))
    if p.network == "residual-mlp":
        weights, activations = p.width * (channels * pixels + 2 * p.blocks * p.width + 10), p.width
    else:
        weights, activations = 378 * p.blocks * p.width**2, p.width * pixels
    stack, wide = 2 * p.trials * len(p.sizes) * p.replicas, 4 * p.trials * len(p.wide_sizes)  # networks
    trained = max(44 * stack, 40 * wide) * weights + 4 * stack * p.large_batch * channels * pixels
    asked = 4 * max(stack / 2, 76 * p.path_pairs, 100_000) * (channels * pixels + 6 * activations)

    points = IMAGES.get(p.logistic_dataset, (70_000,))[0]
    logistic = 16 * p.trials * len(p.logistic_sizes) * p.logistic_replicas * points
    return max(logistic, trained, asked + 20 * stack * weights)
