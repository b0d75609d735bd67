"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    n, longest, middle = p.train_length, max(p.test_lengths, default=0), max(p.test_lengths[1:2], default=0)
    training = 2.5 * p.replicas * p.batch * (n + 15) * (3600 + 12 * n)
    maps = max(6 * min(256, longest) * longest, 2 * middle**2)  # attention of a chunk of queries, or of all
    answers = 4 * p.test_prompts * len(p.depths) * (maps + 1200 * longest)
    small = max(training, answers, 48_000 * p.check_draws)
    if not p.language_model:
        return small
    # The numbers of the language model are those of the default, SmolLM2 with 135 million parameters in float32.
    return max(small, 0.6e9 + 4 * 2 * len(p.llm_depths) * p.llm_length * 20_000)
