"""What a run of the chapter takes."""

from mvnb.costs import Part

NORMAL = 1.3e-8
"""Seconds of one normal number in float64."""


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    prompts, d = p.replicas * p.trials, p.dim
    lengths = [*p.examples, p.examples[1], p.examples[1]]
    errors = sum(prompts * (NORMAL * n * d + 6e-6 + 1e-7 * d**2) for n in lengths)
    errors += len(p.examples) * (prompts * (p.loops + 1) * d * 2e-8 + p.loops * (2e-5 + 1e-8 * p.trials * p.examples[-1] * d))
    errors += NORMAL * 40 * p.replicas * 32 * 42

    counts = {k: max(10, p.scaling_draws // k) for k in p.scaling_dims}
    scaling = sum(c * (NORMAL * 8 * k**2 + 2e-9 * k**3 + 5e-6) for k, c in counts.items())
    near = p.limit_draws // 2 * 32  # numbers of a token in all prompts, where the condition number nears 1
    scaling += NORMAL * 16_800 * near

    limit = p.limit_draws * (NORMAL * 4 * p.limit_dim**2 + 3.5e-10 * p.limit_dim**3)

    w, pool = p.train_dim, p.train_runs * p.train_prompts
    drawn = 8e-9 * 4 * w**2 + 1e-9 * w**3  # tokens and Gram matrix of one prompt
    loop_step = 6e-5 + p.train_runs * p.train_batch * 2e-9 * w**2  # of a step, for each loop
    judges = 4 * p.train_prompts * (NORMAL * 4 * w**2 + 1e-5 + 1e-9 * w**3)
    training = 3 * pool * drawn + p.train_steps * (3 * 1.5e-4 + 7 * loop_step) + judges
    skewed = (pool + 8000) * drawn + p.skew_steps * (1.5e-4 + 4 * 1.5 * loop_step) + 8000 * (1e-5 + 1e-9 * w**3) + 0.05
    pools = 4 * pool * (2 * w**2 + 2 * w) + 4 * p.train_prompts * 4 * w**2

    k, last = p.noise_dim, 80
    noise = p.noise_draws * (2 * NORMAL * k**2 + 2e-7 * k**2 + last * (4e-8 * k + 1e-9 * k**2))
    return [
        Part("errors of loops", errors, 8 * prompts * (2 * max(lengths) * d + 3 * (p.loops + 1) * d)),
        Part(
            "spectra over dimensions",
            scaling,
            8 * max(12_800 * near, *(c * (8 * k**2 + 4 * k**2 + 60 * k) for k, c in counts.items())),
        ),
        Part("mean errors at their limit", limit, 8 * p.limit_draws * 6 * p.limit_dim**2),
        Part("trained loops", training, max(pools, 8 * 4 * p.train_prompts * (5 * w**2 + 15 * w))),
        Part("trained loops with a matrix of values", skewed, pools),
        Part("noisy labels", noise, 8 * p.noise_draws * (2 * k**2 + 5 * (last + 1) * k)),
    ]
