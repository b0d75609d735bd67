"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    simulated = max(12 * p.check_prompts * max(320, max(p.n_context, p.n_train) * len(p.spectrum)), 2560 * p.parity_prompts)
    sentences = 8 * p.text_contexts * (p.text_examples + 50) * p.text_dims if p.text else 0
    # The numbers of the language model are those of the default, SmolLM2 with 135 million parameters in float32.
    read = 0.9e9 + 46_000 * min(32, p.llm_questions) * (24 * p.llm_examples + 20) if p.text and p.language_model else 0
    return max(simulated, 8704 * p.replicas * p.sgd_batch, sentences, read)
