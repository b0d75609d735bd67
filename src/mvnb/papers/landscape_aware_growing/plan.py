"""Memory of a run of the chapter."""

import math

VOCABULARY = 100
"""Tokens of the text, about."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    k, blocks = p.new_layers, 1 + math.log2(p.new_layers)  # about as many blocks as k has divisors
    indices = max((p.n_layers - k) // p.index_step + 1, 1)
    mask = 0 if p.objective == "causal" else p.length

    def trained(networks: float, layers: float, mask: float) -> float:
        kept = layers * (12 * p.dim + p.n_heads + 4 + mask) + 3 * VOCABULARY
        weights = 12 * layers * p.dim**2 + (2 * VOCABULARY + p.length) * p.dim
        return 4 * networks * (p.batch_size * p.length * kept + 11 * weights)

    race = trained(2 * p.replicas * blocks * indices, p.n_layers + k, mask)
    stacking = trained(2 * p.replicas * blocks * (k + 1), 3 * k, mask)
    others = trained(2 * p.replicas * min(2, indices), p.n_layers + k, p.length)
    return max(race, stacking, others) + 24 * p.length * max(10 * p.dim, 3 * VOCABULARY) * max(2 * p.n_valid, p.n_probe)
