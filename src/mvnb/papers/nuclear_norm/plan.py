"""Memory of a run of the chapter."""

PICTURES = {"digits": (1797, 1), "mnist5k": (5000, 1), "cifar10": (60_000, 3), "cifar100": (60_000, 3)}
"""Pictures of a set and their channels; other sets have 70,000 grey ones."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    known, channels = PICTURES.get(p.dataset, (70_000, 1))
    n, inputs = min(p.n_images or known, known), channels * (max(p.image_side, 10) + 2) ** 2
    if p.folder:  # taken for PACS
        n, inputs = 10_000, 3 * p.image_side**2
    weights = p.hidden * (inputs + p.n_features) + 10 * p.n_features
    copies = 1120 if p.image_steps >= 60 else 480  # of networks: moments, and means at checkpoints
    runs = max(6 * p.replicas, 3 * p.rival_replicas, len(p.strengths) * p.sweep_replicas, 3 * p.world_replicas)
    compared = runs * (8 * inputs * n + copies * weights + 12 * n * p.n_features)
    return max(compared, 250 * p.check_points, 960 * p.plane_points, 2160 * p.theory_replicas * p.theory_points)
