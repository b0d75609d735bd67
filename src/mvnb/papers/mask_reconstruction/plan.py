"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    kernels, points = p.n_classes * p.n_filters, p.replicas * p.n_points
    main = points * p.n_patches * (48 * kernels + 12 * p.dim)
    students = points * (400 * p.n_classes * p.ts_filters + 5600)
    smaller = 120 * p.side_replicas * p.side_points * p.n_patches * kernels
    width = 64 if p.image_network == "resnet18" else 16
    images = p.image_replicas * (12_000 * (p.image_points or 50_000) + 60 * p.image_batch * 1024 * width)
    return max(main, students, smaller, images)
