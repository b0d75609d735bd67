"""What a run of the chapter takes."""

from mvnb.costs import Part


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    points = p.steps * p.replicas * p.batch
    if p.sampler == "survivors":
        paper, drawn = points * 2e-7, 0.0
    else:
        paper, drawn = points * p.n_noise * p.dim * 3e-8, 8.0 * 4 * p.replicas * p.batch * p.n_noise * p.dim
    small = 2 * p.fast_steps * (2e-4 + p.fast_replicas * p.batch * 2e-8)

    frozen = p.kernel_points * p.n_noise * 17 * 3e-8 + 0.02 * p.kernel_draws
    counted = p.map_points * p.n_noise * 2e-8

    channels = 3 if p.dataset.startswith("cifar") else 1
    cells = 3 + 5 * (p.noise_levels - 1)  # of task, background and its level
    networks, places, w = cells * p.image_replicas, (p.image_side / 2) ** 2 * 4, p.image_width
    products = places * (16 * channels * w + 18 * w**2)  # of one image
    weights = 16 * channels * w + 18 * w**2 + 23 * w
    passed = networks * p.n_train * p.image_epochs
    training = (
        passed * 1.4e-10 * products
        + passed / p.image_batch * 1e-8 * weights
        + p.n_train * p.image_epochs / p.image_batch * 1e-3
    )
    images = 4 * networks * (p.n_train + p.n_test) * channels * (2 * p.image_side) ** 2
    activations = 4 * 6 * networks * places * w * max(p.image_batch, p.n_test / 4)

    rows = p.n_train + p.n_test
    smaller = min(p.n_train, weights)
    kernels = 9 * p.image_replicas * (rows * (1.6e-10 * products + 2e-9 * weights) + 1.2e-11 * p.n_train * weights * smaller)
    return [
        Part("training on the paper's distribution", paper, drawn),
        Part("small experiment", small, 8 * 4 * p.fast_replicas * p.batch),
        Part("kernels of frozen filters", frozen, 4 * p.kernel_points * (p.n_noise * 17 / 10 + 48 * 17 * 3)),
        Part("simulated accuracies", counted, 1e8),
        Part("networks on images", training, images + activations),
        Part("tangent kernels on images", kernels, images + 4 * (2 * rows * weights + 3 * smaller**2)),
    ]
