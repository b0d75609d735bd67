"""What a run of the chapter takes."""

from mvnb.costs import Part

STEP = 4e-4
"""Seconds of a step, whatever its size."""
FITTED = 0.3
"""Share of the steps allowed after which learning from labels has fitted them."""


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    kernels, few = p.n_classes * p.n_filters, min(3, p.replicas)

    def labels(responses: float, dim: int) -> float:
        """Seconds of a step with labels, for so many responses of a kernel to a patch."""
        return STEP + responses * (8e-11 * dim + 2e-9)

    def masked(responses: float, dim: int) -> float:
        """Seconds of a step of masked autoencoders."""
        return STEP + responses * (8e-11 * (dim + kernels) + 7e-9)

    own = p.n_points * p.n_patches * kernels  # responses of a network
    main = p.mae_steps * masked(p.replicas * own, p.dim)
    main += 2 * FITTED * p.sl_steps * labels(p.replicas * own, p.dim) + 0.75 * p.sl_steps * labels(few * own, p.dim)
    main += 105 * labels(p.replicas * own, p.dim)
    transfer = 3 * (100 + FITTED * p.sl_steps) * labels(few * own, p.dim)

    side = p.side_points * p.n_patches * kernels
    turned = p.side_steps * (6 * STEP + masked(10 * p.side_replicas * side, p.side_dim))
    swept = 11 * FITTED * 0.9 * p.sl_steps * labels(p.side_replicas * side, p.side_dim)

    wide = p.n_classes * p.ts_filters
    shared = p.n_points * 14 * wide
    steps = p.ts_steps * (0.2 * (p.replicas + 4) + 2 / 3 * few)  # of one network
    students = 1.3e-8 * steps * shared + 4000 * (3e-4 + 8e-11 * p.replicas * p.n_points * wide * p.n_classes)

    images = (2 * p.image_steps + 3 * p.image_label_steps) * p.image_replicas
    pixels = {"cifar10": 3072, "cifar100": 3072, "digits": 64}.get(p.dataset, 784)
    data = p.replicas * p.n_points * p.n_patches * p.dim
    return [
        Part("main comparison", main, 8 * 6 * p.replicas * own + 12 * data),  # the check of a first step is in float64
        Part("teacher and student", students, 4 * (7 * p.replicas * shared + p.replicas * p.n_points * 1400)),
        Part("autoencoders in a smaller world", turned, 4 * 6 * 5 * p.side_replicas * side),
        Part("learning from labels in smaller worlds", swept, 4 * 8 * p.side_replicas * side),
        Part("other tasks", transfer, 4 * 6 * few * own + 8 * data),
        Part(
            "networks on images",
            images * (1.3e-3 + 1.4e-7 * p.image_batch * p.image_width**2),
            4 * (p.image_replicas * (3 * 1024 * p.image_points + 64_000 * 4 * p.image_width) + 70_000 * pixels),
        ),
    ]
