"""What a run of the chapter takes."""

from mvnb.costs import Part

NORMAL = 1e-8
"""Seconds of one normal number."""
STEP = 3e-4
"""Seconds of a step, whatever its size."""


def descent(steps: float, points: float, neurons: int, dim: int) -> float:
    """Seconds of the steps of networks on so many points each, of all runs."""
    return steps * (STEP + points * neurons * (4.6e-11 * dim + 1e-9))


def judged(looks: int, points: float, neurons: int, dim: int) -> float:
    """Seconds of the outputs at test points, of all runs."""
    return looks * points * neurons * (2.5e-11 * dim + 1e-9)


def products(rows: float, size: float) -> float:
    """Seconds of a ridge regression, in the smaller of its two forms."""
    return 4e-11 * rows * size * min(rows, size)


def kernel(n: float, test: float) -> float:
    """Seconds of a regression with the tangent kernel."""
    return 1.2e-8 * n * (n + test) + 1.2e-11 * n**3


def read_out(points: float, features: float) -> float:
    """Seconds of a support vector machine."""
    return (7e-8 + 2e-10 * features) * points * features


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    runs, test = p.replicas, p.n_test
    neurons = 8 * runs * sum(p.widths) + p.draws
    explicit = 1.5e-6 * neurons * p.cluster_dim / 64

    ends = 4 * runs
    batch, d = ends * p.xor_batch, p.xor_dim
    looks = p.xor_steps // 4 + 1
    xor = 0.3 + NORMAL * (p.xor_steps + 24) * batch * d + descent(p.xor_steps + 8, batch, 200, d)
    xor += judged(looks, ends * test, 200, d) + looks * 4e-9 * ends * 200 * d
    xor += NORMAL * 5 * test * d  # in two dimensions, for a kernel with 48 points
    blocks = 4 * 3 * 16 * batch * d  # drawn ahead: the last block, the next one, and its stack
    xor_bytes = blocks + 4 * 8 * batch * d + 4 * ends * test * 200

    compared, last = 0.0, p.compare_dims[-1]
    for d in p.compare_dims:
        compared += descent(p.compare_steps, 12 * 256, 100, d) + p.compare_steps * 4e-4
        for n in (2 * d, 8 * d, 32 * d):
            wide = d * d // 4
            compared += 4 * (kernel(n, 2 * test) + products(n, wide) + (n + 2 * test) * wide * (2.5e-11 * d + 2e-9))
            compared += 4 * 8 * (products(n, d) + (n + 2 * test) * d * (2.5e-11 * d + 2e-9))
            compared += 12 * runs * n * d * (NORMAL + 4e-10 * 100)
    compared_bytes = 4 * 2 * test * max(7 * 32 * last, 2 * last**2 // 4) + 4 * 2 * 32 * last * last**2 // 4
    compared_bytes += 4 * 12 * runs * 32 * last**2

    sure = 3e-7 * runs * p.draws * len(p.sure_dims)

    parities, parity_bytes = 0.0, 0.0
    for more, wide, dim in ((1, 1, 48), (2, 1, 80), (5, 2, 30)):
        n, m = more * p.parity_points, 4 * wide * p.parity_neurons
        parities += 3 * (n * (2e-8 * dim + m * (4.6e-11 * dim + 4e-9)) + kernel(min(n, 2000), test))
        parities += 3 * 2 * (read_out(min(n, 4000), m) + 4e-9 * test * m)
        parity_bytes = max(parity_bytes, 2.25 * 4 * n * m)

    checked = 3.5e-6 * runs * p.check_points
    cube = 2**p.uniform_dim
    uniform = runs * (len(p.uniform_sizes) + 2) * (cube * 128 * (4.6e-11 * p.uniform_dim + 4e-9) + read_out(test, 256))

    index, size = 0.0, p.index_neurons
    for n, d in ((f * d * d, d) for f in (0.5, 2) for d in p.index_dims):
        regression = 2 * products(n, size) + 2 * (n + 2 * test) * size * (2.5e-11 * d + 3e-9)
        index += 2 * 2 * runs * (regression + NORMAL * (n + 2 * test) * d + n * size * (4.6e-11 * d + 4e-9))
    index_bytes = 4 * 3 * size * (2 * p.index_dims[-1] ** 2 + 2 * test)

    drawn = p.ticket_runs * 128 * 64
    tickets = p.ticket_steps * (6 * STEP + 2 * NORMAL * drawn) + descent(50, p.ticket_runs * 128, 400, 64)
    tickets += sum(2 * descent(p.ticket_steps, 3 * p.ticket_runs * 128, k, 64) for k in (4, 8, 16))
    tickets += judged(2 * p.ticket_steps // 25 + 2, 3 * p.ticket_runs * 2 * test, 28, 64) + judged(
        3, p.ticket_runs * 2 * test, 400, 64
    )

    planes = max(test // 4, 50) * 3
    order = descent(p.bias_steps, 3 * 128, 4 * p.bias_neurons, 32) + judged(21, 3 * planes, 4 * p.bias_neurons, 32)
    tickets_bytes = 4 * 3 * planes * 4 * p.bias_neurons * 2 + 4 * drawn * p.ticket_steps
    return [
        Part("explicit networks", explicit, 8 * 4.5 * p.cluster_dim * max(p.draws, p.widths[-1])),
        Part("exclusive-or, end to end", xor, xor_bytes),
        Part("networks and kernels over dimensions", compared, compared_bytes),
        Part("closed forms", sure + checked, max(8 * 15 * p.draws, 4 * 2.5 * 200 * p.check_points)),
        Part("structured parities", parities, parity_bytes),
        Part("uniform parities", uniform, cube * 128 * 9),
        Part("multi-index targets", index, index_bytes),
        Part("lottery tickets and order of planes", tickets + order, tickets_bytes),
    ]
