"""Memory of a run of the chapter."""

IMAGES = {"digits": (1437, 64), "mnist5k": (4000, 196), "cifar10": (50_000, 768)}
"""Training images, and numbers in one after large ones have been shrunk."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    k, rows = p.n_subclasses, 4 * p.n_subclasses * p.n_patches  # rows: patches of a batch
    neurons = 8 * (k + 1) * max(p.coarse_detectors, k * p.fine_detectors)
    drawn = 4 * p.replicas * (neurons * (2 * rows + 6 * p.dim) + 32 * rows * p.dim)
    mean = 100_000 * k * (p.n_patches + 8) * (k + 5)  # points over which responses are averaged

    known, numbers = IMAGES.get(p.dataset, (60_000, 196))
    n = min(p.n_train, known)
    images = 32 * known * numbers + 56 * p.image_replicas * n * (numbers + 5 * min(p.image_batch, n) + 128)
    return max(drawn, mean, images)
