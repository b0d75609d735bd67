"""What a run of the chapter takes."""

from mvnb.costs import Part


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    table = p.length * p.n_tokens
    fresh = 2 * p.column_steps * p.replicas * p.column_batch
    fresh += (2 + 1 / 3) * p.extension_steps * p.extension_replicas * p.extension_batch
    looks = 0.75 * p.column_steps * p.replicas + 0.23 * p.extension_steps * p.extension_replicas
    columns = 1.5e-9 * table * fresh + 2e-10 * table * looks * p.n_test
    batch = max(p.replicas * p.column_batch, p.extension_replicas * p.extension_batch)
    asked = max(p.replicas, p.extension_replicas) * p.n_test
    drawn = p.replicas * p.one_step_sequences
    return [
        Part("descent in small worlds, if no run stops early", 2e-4 * p.exact_steps, 1e8),
        Part("one step on V", drawn * (3e-10 * p.n_tokens**2 + 1e-7 * p.length), 24 * p.one_step_sequences * p.n_tokens),
        Part("sampled columns", columns, 4 * (3 * batch * table + 4 * asked * p.n_tokens)),
        Part("accuracy under uniform attention", 1.2e-3 * p.uniform_steps * p.replicas, 1e8),
        Part("random lists of the key lemma", 0.02 * p.lemma_sets, 1e8),
    ]
