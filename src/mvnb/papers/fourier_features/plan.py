"""What a run of the chapter takes."""

from mvnb.costs import Part

HIDDEN, BATCH = 128, 256  # of every Transformer


def multiplications(k: int, modulus: int, dim: int) -> float:
    """Multiplications of a one-layer Transformer that answers a sum of ``k`` numbers with its last token."""
    return 2 * dim**2 + (k + 1) * 2 * dim**2 + 2 * dim * HIDDEN + dim * (modulus + 1)


def polynomial_networks(p) -> list[Part]:
    """Four ways of training, and the margins at all points of the table."""
    width = p.width or 4 ** (p.k - 1) * (p.p - 1)
    table, neurons = p.p**p.k, p.replicas * width
    weights = neurons * (p.k + 1) * p.p
    step = 3e-4 + neurons * p.batch * (8e-10 * p.k + 1e-10 * p.p) + 2.5e-9 * weights
    looks = 4 * 7 + 7  # at seven steps of each run, and of what is left at their ends
    margins = looks * table * neurons * (3e-9 * p.k + 6e-11 * p.p)
    runs = 4 * 16 * 4 * weights + table * (8 * (p.k + 1) + 40 * p.replicas)  # copies and moments; the table and its order
    return [
        Part("polynomial networks", 4 * p.steps * step, runs + 4 * neurons * p.batch * 6),
        Part("margins at all points", margins, runs + 4 * neurons * min(8192, table) * (p.k + 1)),
    ]


def grokking(p) -> Part:
    """Two splits of every table; runs that stop early take less."""
    seconds = points = 0.0
    looks = p.grok_steps // 50 + 1
    for k, modulus in zip(p.grok_inputs, p.grok_moduli):
        macs, table = multiplications(k, modulus, 32), modulus**k
        step = 4e-4 + p.grok_replicas * BATCH * (1e-10 * macs + 8e-7 * (k + 1))
        look = p.grok_replicas * table * (4e-11 * macs + 3e-7 * (k + 1))
        seconds += 2 * (p.grok_steps * step + looks * look)
        seen = 4 * p.grok_replicas * (k + 1) * min(4096, table) * 32 * 8
        points = max(points, table * (8 * (k + 1) + 60 * p.grok_replicas) + seen)
    return Part("grokking, if no run stops early", seconds, points)


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    macs, table = multiplications(2, p.head_p, 64), p.head_p**2
    step = 3e-4 + p.replicas * BATCH * 1.4e-10 * macs
    heads = 2 * p.head_steps * step + 5 * 6e-11 * p.replicas * table * macs
    maps = 5 * 4 * (8 + 16) * p.replicas * table  # four heads of five networks, and their transforms
    seen = 4 * p.replicas * (3 * min(4096, table) * 64 * 8)
    return [
        Part("ascent of single neurons", 5e-3 * p.ascent_starts, 8 * 500 * p.ascent_starts),
        *polynomial_networks(p),
        Part("Transformers whose attention is looked at", heads, maps + seen),
        grokking(p),
    ]
