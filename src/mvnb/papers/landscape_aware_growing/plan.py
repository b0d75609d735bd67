"""What a run of the chapter takes."""

from mvnb.costs import Part

VOCABULARY = 100
"""Tokens of the text, about."""


def passed(p, tokens: float, layers: int) -> float:
    """Seconds of a pass forward and backward; of the forward pass alone it is a third."""
    products = 12 * p.dim**2 + 2 * p.length * p.dim
    return tokens * layers * (4e-8 * p.dim + 3.6e-11 * products + 6e-9 * p.length * p.n_heads)


def trained(p, networks: int, layers: int, steps: float) -> float:
    """Seconds of the steps of a stack."""
    return steps * (5e-4 + 2e-4 * layers + passed(p, networks * p.batch_size * p.length, layers))


def judged(p, networks: int, layers: int, windows: int) -> float:
    """Seconds of the losses of a stack."""
    return passed(p, networks * windows * p.length, layers) / 3


def state(p, networks: int, layers: int) -> float:
    """Bytes of the parameters of a stack."""
    return 4 * networks * (12 * layers * p.dim**2 + (2 * VOCABULARY + p.length) * p.dim)


def alive(p, networks: int, layers: int, causal: bool) -> float:
    """Bytes of a step: what the backward pass needs of each layer, three copies of parameters and moments, and gradients."""
    kept = 12 * p.dim + p.n_heads + 4 + (0 if causal else p.length)  # the mask in the last term
    tokens = networks * p.batch_size * p.length
    return 4 * tokens * (layers * kept + 3 * VOCABULARY) + 11 * state(p, networks, layers)


def seen(p, networks: int, windows: int) -> float:
    """Bytes of the forward pass of so many networks at once."""
    return 4 * networks * windows * p.length * max(10 * p.dim, 3 * VOCABULARY)


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    k, deep, causal = p.new_layers, p.n_layers + p.new_layers, p.objective == "causal"
    blocks = sum(k % b == 0 for b in range(1, k + 1))
    indices = len(range(0, p.n_layers - k + 1, p.index_step))
    networks = p.replicas * 2 * blocks * indices
    validation = seen(p, min(12, networks), p.n_valid)
    race = trained(p, networks, deep, p.growth_steps) + 20 * judged(p, networks, deep, p.n_valid)

    few = p.replicas * 2 * min(2, indices)
    drawn = 6e-4 * p.replicas * (p.variant_pretrain + p.variant_steps)
    variants = trained(p, p.replicas, p.n_layers, p.variant_pretrain) + trained(p, few, deep, p.variant_steps)
    variants += drawn + 7 * judged(p, few, deep, p.n_valid)

    probes = judged(p, networks, deep, p.n_probe) + 1e-5 * p.n_probe * p.length

    runs, last = 2 * p.replicas, 2 * p.replicas * (k + 1) * blocks  # of stacking, and networks of its last race
    stages = trained(p, runs, k, p.stage_steps)
    for layers, raced in ((2 * k, runs * blocks), (3 * k, last)):
        stages += trained(p, runs, layers, 2 * p.stage_steps - p.stage_lag) + trained(p, raced, layers, p.stage_lag)
        stages += judged(p, raced + runs, layers, p.n_valid)
    return [
        Part(
            "small networks",
            trained(p, p.replicas, p.n_layers, p.pretrain_steps),
            alive(p, p.replicas, p.n_layers, causal),
        ),
        Part(
            f"race of {networks} grown networks in one stack",
            race,
            max(alive(p, networks, deep, causal), 3 * state(p, networks, deep) + validation),
        ),
        Part("other objectives", 2 * variants, alive(p, few, deep, causal=False)),
        Part("probes of structure", probes, 3 * state(p, networks, deep) + seen(p, min(6, networks), p.n_probe)),
        Part("adaptive stacking", stages, alive(p, last, 3 * k, causal)),
    ]
