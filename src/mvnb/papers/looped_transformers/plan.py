"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    errors = 16 * p.replicas * p.trials * p.dim * (max(p.examples, default=0) + 1.5 * p.loops)
    k = max(p.scaling_dims, default=0)
    spectra = max(1_640_000 * p.limit_draws, 96 * (k + 5) * max(p.scaling_draws, 10 * k))
    limit = 48 * p.limit_draws * p.limit_dim**2
    trained = 8 * p.train_prompts * p.train_dim * max(p.train_runs * (p.train_dim + 1), 20 * p.train_dim + 60)
    noisy = 16 * p.noise_draws * p.noise_dim * (p.noise_dim + 200)
    return max(errors, spectra, limit, trained, noisy)
