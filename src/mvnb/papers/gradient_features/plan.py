"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    explicit = 36 * p.cluster_dim * max(p.draws, *p.widths, 0)
    xor = p.replicas * (900 * p.xor_batch * p.xor_dim + 3200 * p.n_test)
    d = max(p.compare_dims, default=0)
    compared = 4 * p.n_test * d * max(450, d) + 64 * d**3 + 1536 * p.replicas * d**2
    parities = max(360 * p.parity_points * p.parity_neurons, 1152 * 2**p.uniform_dim)
    index = 24 * p.index_neurons * (max(p.index_dims, default=0) ** 2 + p.n_test)
    tickets = 32_768 * p.ticket_runs * p.ticket_steps + 72 * max(p.n_test, 200) * p.bias_neurons
    return max(explicit, xor, compared, 2000 * p.check_points, parities, index, tickets)
