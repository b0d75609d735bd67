"""What a run of the chapter takes."""

from mvnb.costs import Part

PASSES = {"All KV": 1, "SnapKV": 1, "H2O": 1, "One-Run": 1.8}
"""Passes over the whole prompt that an answer takes; ways of selecting that are not here stop at the filter layer."""


def small_models(p) -> list[Part]:
    """The models of two layers: training, and their answers."""
    late = [16, p.train_length // 2, 3 * p.train_length // 4, p.train_length]
    tokens = [(n + 15) * (p.batch if n <= 32 else p.batch // 2) for n in late]
    mean = 0.65 * tokens[0] + 0.35 * sum(tokens) / 4
    training = p.steps * (1.5e-2 + 1.2e-5 * p.replicas * mean)
    kept = p.replicas * max(t * (3600 + 12 * n) for t, n in zip(tokens, late))  # numbers for the backward pass

    prompts = p.test_prompts * len(p.depths)
    lengths = [*p.test_lengths * 8, *[p.test_lengths[1]] * 5]  # one a way to answer, and five ablations
    answers = p.replicas * sum(6e-3 + prompts * (2e-6 * n + 1.4e-8 * n**2) for n in lengths)
    longest, middle = p.test_lengths[-1], p.test_lengths[1]
    maps = max(3 * 2 * min(256, longest) * longest, 2 * middle**2)  # attention of a chunk of queries; products of all
    return [
        Part("training of small models", training, 4 * kept),
        Part("answers of small models", answers, 4 * prompts * (maps + 1200 * longest)),
    ]


def language_model(p) -> list[Part]:
    """Prompts of one length in one batch; numbers are SmolLM2's, of 135 million parameters (the default) in float32."""
    prompts, k = len(p.llm_depths) * p.llm_prompts, p.llm_k
    selecting = [name for name in p.llm_methods if name not in PASSES]
    whole = 1 + sum(PASSES.get(name, 0.8) for name in p.llm_methods)
    answers = 1 + len(p.llm_layers)  # from selected tokens alone
    reading = sum(prompts * whole * (2.5e-3 * n + 5e-7 * n**2) for n in p.llm_lengths)
    reading += len(p.llm_lengths) * prompts * (answers + len(selecting)) * 2.5e-3 * k
    reading += 3e-3 * p.llm_lengths[-1] + 1.0  # one more prompt for the figures, and loading
    if "H2O" in p.llm_methods:
        reading += sum(prompts * 1.1e-6 * n**2 for n in p.llm_lengths)
    step = 0.075 + prompts * (4e-3 + 1.4e-5 * k)  # of all answers by one token
    copied = 1.4e-5 * prompts * sum(p.llm_lengths) * ("All KV" in p.llm_methods)
    writing = p.llm_new * (len(p.llm_lengths) * (answers + len(p.llm_methods)) * step + copied)

    longest = p.llm_lengths[-1]
    cached = any(name in PASSES for name in p.llm_methods)
    numbers = prompts * longest * (30 * 2 * 192 * cached + 4 * 1536 + 4 * 576)
    numbers += prompts * 3 * 9 * min(256, longest) * longest * ("H2O" in p.llm_methods)
    numbers += prompts * 2 * longest**2 * ("largest row" in p.llm_methods)
    return [
        Part("language model: reading", reading, 0.6e9 + 4 * numbers),
        Part("language model: writing", writing, 0.6e9 + 4 * numbers),
    ]


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    found = [
        *small_models(p),
        Part("simulated odds of finding", 1.2e-4 * p.check_draws, 3 * 8 * 2000 * p.check_draws),
        Part("imports of transformers, and timing of a prompt", 4.0, 0.3e9),
    ]
    return found + language_model(p) if p.language_model else found
