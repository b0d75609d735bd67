"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    dense = p.replicas * p.n_noise * p.dim if p.sampler == "dense" else 0
    simulated = max(32 * p.batch * max(dense, p.replicas, p.fast_replicas), 4 * p.kernel_points * (1.7 * p.n_noise + 2448))

    channels, w = 3 if p.dataset.startswith("cifar") else 1, p.image_width
    networks = (5 * p.noise_levels - 2) * p.image_replicas
    images = 16 * networks * (p.n_train + p.n_test) * channels * p.image_side**2
    activations = 24 * networks * p.image_side**2 * w * max(p.image_batch, p.n_test / 4)
    weights = 16 * channels * w + 18 * w**2 + 23 * w
    kernels = 8 * (p.n_train + p.n_test) * weights + 12 * min(p.n_train, weights) ** 2
    return max(simulated, images + max(activations, kernels))
