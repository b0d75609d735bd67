"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    neurons = p.replicas * (p.width or 4 ** (p.k - 1) * (p.p - 1))
    looked_at = max(24 * p.batch, 4 * min(8192, p.p**p.k) * (p.k + 1))
    polynomial = neurons * (256 * (p.k + 1) * p.p + looked_at) + p.p**p.k * (8 * (p.k + 1) + 40 * p.replicas)
    heads = p.replicas * (480 * p.head_p**2 + 6144 * min(4096, p.head_p**2))
    found = [polynomial, heads, 4000 * p.ascent_starts]
    for k, modulus in zip(p.grok_inputs, p.grok_moduli):
        table = modulus**k
        found.append(table * (8 * (k + 1) + 60 * p.grok_replicas) + 1024 * p.grok_replicas * (k + 1) * min(4096, table))
    return max(found)
