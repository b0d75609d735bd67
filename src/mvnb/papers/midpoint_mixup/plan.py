"""What a run of the chapter takes."""

from mvnb.costs import Part

CIFAR, MNIST = (50_000, 10_000, 3, 1024), (60_000, 10_000, 1, 784)
IMAGES = {"digits": (1437, 360, 1, 64), "mnist5k": (4000, 1000, 1, 784), "cifar10": CIFAR, "cifar100": CIFAR}
"""Training images, test images, channels and pixels."""


def images(p) -> Part:
    """ERM and two Mixups, all runs of each."""
    found, tests, channels, pixels = IMAGES.get(p.dataset, MNIST)
    n = min(p.n_train, found) if p.n_train > 0 else found
    batch, runs = min(p.image_batch, n), p.image_replicas
    if p.image_network == "resnet18":  # its runs are trained one after the other, and judged together
        operations, kept, judged = 1_090_000, batch * 1200, 256
    else:
        operations, kept, judged = 18 * (32 * channels + 192), runs * batch * 80, 64
    seconds = 3 * runs * p.image_epochs * (n // batch) * (2e-3 + 8e-11 * batch * pixels * operations)
    activations = pixels * max(kept, runs * min(1000, tests) * judged)
    return Part("image networks", seconds, 4 * (3 * n * channels * pixels + activations))


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    width = p.n_classes * p.n_filters
    responses = 4 * p.n_points * width  # of a network to all training points
    pairs = responses * (p.n_points + 1) / 2
    response, pair = 1e-9 + 1.6e-10 * p.n_classes, 1.7e-9  # seconds of each in a step

    runs, midpoint, swept = p.replicas, min(p.midpoint_replicas, p.replicas), max(2, min(6, p.replicas))
    erm = p.erm_steps * (1.2e-3 + (runs + 10.5 * swept) * responses * response)  # with sweeps of 7 values, 1.5 times as long
    mixed = p.midpoint_steps * (1.3e-4 + (midpoint + 0.3 * 8) * pairs * pair)  # with four laws, of two runs each
    raced = (p.dim_replicas + 2) // 3
    race = p.dim_steps * (2e-4 + p.dim_replicas / 3 * responses * 2 * response + 1.1 * raced * pairs * pair)

    tested = 50 * p.n_classes * 4 * width  # responses of a network to all test points
    judged = runs + midpoint + 7 * swept + p.dim_replicas + 2 * raced + 8
    judging = 4e-8 * (judged * 2 * tested + 101 * midpoint * responses)

    weights, batch = 128 * 256 + 256 * 128 + 128 * p.standin_classes, min(100, 40 * p.standin_classes)
    standin_steps = 6 * p.standin_epochs * (40 * p.standin_classes // batch)  # two of seven with half the classes
    return [
        Part("linear models", 1.2e-3 * p.linear_steps),
        Part("ERM in the patch world", erm, 4 * 6 * runs * responses),
        Part("Midpoint Mixup in the patch world", mixed, 4 * 6 * max(midpoint, 8) * responses),
        Part("runs in the theorem's dimension", race, 8 * 6 * p.dim_replicas * responses),
        Part("tests with one feature", judging, 8 * 5 * runs * tested),
        images(p),
        Part("prototype mixture", standin_steps * (2e-4 + 1.3e-10 * p.standin_replicas * batch * weights)),
    ]
