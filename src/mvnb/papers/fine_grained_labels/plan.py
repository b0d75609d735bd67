"""Memory of a run of the chapter."""

from pathlib import Path

SETS = {"digits": (1437, 360, 64), "cifar10": (50_000, 10_000, 3072)}
"""Training images, test images, and numbers in an image."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    k, rows = p.n_subclasses, 4 * p.n_subclasses * p.n_patches  # rows: patches of a batch
    neurons = 8 * (k + 1) * max(p.coarse_detectors, k * p.fine_detectors)
    drawn = 4 * p.replicas * (neurons * (2 * rows + 6 * p.dim) + 32 * rows * p.dim)
    mean = 100_000 * k * (p.n_patches + 8) * (k + 5)  # points over which responses are averaged

    known, tests, numbers = SETS.get(p.dataset, SETS["cifar10"])
    each, features = 4, 32
    if p.image_folder:
        count = sum(1 for _ in Path(p.image_folder).glob("*/*/*"))
        known, tests, numbers, each = count * 4 // 5, count // 5, 3 * p.image_side**2, 1
    n = min(p.n_train or known, known)
    heads = 16 * p.image_replicas * n  # one label per image: an output for each
    activations = 40 * p.image_batch * numbers
    if p.image_network == "resnet34":
        features, activations = 512, 4 * p.image_batch * 350 * numbers + 16 * p.image_replicas * 21_000_000
    batch = 8 * p.image_replicas * max(p.image_batch, 500) * numbers
    images = (each * (known + tests) + 4 * 64) * numbers + heads * features + activations + batch
    return max(drawn, mean, images)
