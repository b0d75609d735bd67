"""What a run of the chapter takes."""

from mvnb.costs import Part

QUESTIONS = {"movies": 2000, "products": 820, "editorials": 400, "tweets": 850}
"""Sentences of a clear sentiment that a set has for questions, half of each kind where there are as many."""


def language_model(p) -> Part:
    """Contexts read once, then all questions; numbers are SmolLM2's, of 135 million parameters (the default) in float32."""
    context, question = 24 * p.llm_examples, 20  # tokens
    flips = len(p.llm_flips)
    seconds = 6.0  # imports of transformers, and loading
    for name in p.llm_sets:
        asked = min(p.llm_questions, QUESTIONS.get(name, p.llm_questions))
        alone = asked * question * 2.5e-3
        after = asked * (question * (2.5e-3 + 5e-7 * context) + 1.4e-5 * context)
        seconds += p.llm_contexts * (alone + flips * (context * (2.5e-3 + 5e-7 * context) + after))
    seconds += p.llm_prompts * 4 * 33 * 2.5e-3  # of which attention is measured
    cached = 4 * 30 * 2 * 192 * min(32, p.llm_questions) * (context + question)
    maps = 4 * 30 * 9 * 16 * 60**2  # attention of all layers for a batch
    return Part("language model", seconds, 0.9e9 + max(cached, maps))


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    d = len(p.spectrum)
    plain, own = 16 * 20, max(p.n_context, p.n_train) * d  # numbers in a prompt
    drawn = 3 * plain + 18 * p.n_context * d + 2 * p.n_train * d
    models = 4 * p.replicas  # of ranks 1, 2, 4 and 8
    found = [
        Part("simulated risks", 1.5e-8 * p.check_prompts * drawn, 4 * 3 * p.check_prompts * max(plain, own)),
        Part(
            "training on prompts",
            p.sgd_steps * (1.5e-4 + 2.5e-7 * models * p.sgd_batch) + 8e-3 * p.replicas * d,
            4 * 2 * 16 * models * p.sgd_batch * 17,  # batches of 16 steps are drawn at once, and sent
        ),
        Part("accuracies of parities", 1e-4 * p.parity_prompts, 8 * 5 * 64 * p.parity_prompts),
    ]
    if p.text:
        numbers = p.text_contexts * (p.text_examples + 50) * p.text_dims
        found.append(Part("linear attention on sentences", 0.5 + 0.01 * p.text_dims + 1.5e-8 * numbers, 8 * numbers))
        if p.language_model:
            found.append(language_model(p))
    return found
