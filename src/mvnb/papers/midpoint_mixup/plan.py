"""Memory of a run of the chapter."""

CIFAR, MNIST = (50_000, 1000, 1024, 3072), (60_000, 1000, 784, 784)
SIZES = {"digits": (1437, 360, 64, 64), "mnist5k": (4000, 1000, 784, 784), "cifar10": CIFAR, "cifar100": CIFAR}
"""Training images, test images at once, pixels and numbers of an image; other sets are like MNIST."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    neurons = p.n_classes * p.n_filters
    runs = max(24 * p.replicas, 24 * 8, 48 * p.dim_replicas)
    worlds = 4 * neurons * max(runs * p.n_points, 2000 * p.replicas * p.n_classes)

    known, tests, pixels, numbers = SIZES.get(p.dataset, MNIST)
    n = min(p.n_train or known, known)
    if p.image_network == "resnet18":  # trained one after the other, tested together
        activations = max(1200 * min(p.image_batch, n), 256 * p.image_replicas * tests)
    else:
        activations = p.image_replicas * max(80 * min(p.image_batch, n), 64 * tests)
    return max(worlds, 12 * n * numbers + 4 * pixels * activations)
