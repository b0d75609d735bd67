"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    batch = max(p.replicas * p.column_batch, p.extension_replicas * p.extension_batch)
    tested = max(p.replicas, p.extension_replicas) * p.n_test
    return p.n_tokens * max(24 * p.one_step_sequences, 12 * batch * p.length + 16 * tested)
