"""What a run of the chapter takes."""

from mvnb.costs import Part

IMAGES = {"digits": (1437, 64), "mnist5k": (4000, 196), "cifar10": (50_000, 768)}
"""Training images, and numbers in one when large ones have been shrunk."""


def step(runs: int, rows: int, dim: int, neurons: int) -> float:
    """Seconds of a step of a stack of networks on fresh points that have ``rows`` patches in all."""
    return 2e-4 + runs * rows * (1e-8 * dim + neurons * (3e-9 + 7e-11 * dim))


def images(p) -> Part:
    found, inputs = IMAGES.get(p.dataset, (60_000, 196))
    n, runs = min(p.n_train, found), 14 * p.image_replicas  # 14 kinds of labels
    batch = min(p.image_batch, n)

    def training(runs: int, epochs: int, outputs: int) -> float:
        weights = 64 * inputs + 64 * 32 + 32 * outputs
        one = batch * (1.2e-10 * weights + 5e-9 * outputs) + 3e-9 * weights
        return epochs * (n // batch) * (1.5e-3 + runs * one)

    seconds = training(runs, p.image_epochs, n)  # the finest label is one for each image
    seconds += training(7 * p.image_replicas, p.image_tune_epochs, 2) + training(p.image_replicas, p.image_epochs, 2)
    seconds += 450 * (1.2e-3 + 2e-7 * runs * n)  # probes
    return Part("networks for images", seconds, 4 * (8 * found * inputs + runs * n * (inputs + 5 * batch + 4 * 32)))


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    k, runs, dim = p.n_subclasses, p.replicas, p.dim
    features, rows = 2 + 2 * k, 4 * k * p.n_patches
    coarse = 2 * 2 * p.coarse_detectors * features  # neurons kept: about two for each wanted detector
    fine = 2 * k * 2 * p.fine_detectors * features
    drawn = p.coarse_steps * step(runs, rows, dim, coarse) + (p.fine_steps + p.tune_steps) * step(runs, rows, dim, fine)
    # What neurons say and its gradient; starts, weights found, copies and gradients; points of 16 steps, twice.
    drawn_numbers = max(coarse, fine) * (2 * rows + 6 * dim) + 2 * 16 * rows * dim

    ideal = p.ideal_steps * (2 * step(runs, rows, dim, 2 * features) + 0.5 * step(runs, rows, dim, 2 * k * features))
    for size in (2, 4, 8, 16, 32):
        ideal += p.sweep_steps * step(runs, 4 * size * p.n_patches, max(dim, 2 + 2 * size), 2 * (2 + 2 * size))
    ideal += 1.7  # linear probes

    shown, patches = features + 8, p.n_patches + 8  # with eight backgrounds
    labels = (2, 4, k, 2 * k, 4 * k, 4, 16, 4, 16, 8)
    kinds = sum(p.sweep_steps * step(runs, 16 * k * patches, shown, n * shown) for n in labels)
    said = max(4 * runs * 16 * k * max(labels), 8 * 400 * k * 8)  # in a step, or in the mean over many points
    return [
        Part("networks of drawn neurons", drawn, 4 * runs * drawn_numbers),
        Part("idealised networks", ideal, 4 * 2 * runs * rows * 2 * k * features),
        Part("kinds of labels", kinds, 2 * said * patches * shown),
        images(p),
    ]
