"""What a run of the chapter takes."""

from mvnb.costs import Part

STEP = 3e-4
"""Seconds of a step, whatever its size."""


def drawn(points: float, patterns: int) -> float:
    """Seconds of a sample."""
    return 1.2e-8 * points * patterns


def two_steps(points: float, neurons: int) -> float:
    """Seconds of the two first steps on all points."""
    return 2.4e-8 * points * neurons


def descent(steps: float, points: float, neurons: int, dim: int) -> float:
    """Seconds of a two-layer network's steps on so many points each, of all runs."""
    return steps * (STEP + points * neurons * (4.6e-11 * dim + 1e-9))


def methods(p, runs: int, points: int, pairs: int, steps: float, heads: int, tangents: int) -> float:
    """Seconds of a network, of so many runs of a tangent kernel, and of so many classifiers on frozen features."""
    patterns, batch = p.n_patterns, min(p.batch, points // 5)
    tests = 20 * p.n_test * pairs * (2.5e-11 * patterns + 3e-9)
    network = descent(steps, runs * batch, 2 * pairs, patterns) + 2 * runs * tests
    tangent = descent(steps, tangents * batch, pairs, patterns) + tangents * (tests + 2e-8 * points * pairs) if tangents else 0
    features = points * pairs * (5e-11 * patterns + 6e-9)
    return network + tangent + heads * (steps * (STEP + 2e-9 * runs * batch * pairs) + runs * (features + tests / 10))


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    n, fresh, patterns, few = p.n_train, p.n_test, p.n_patterns, p.variation_replicas
    one_pattern = drawn(p.replicas * (n + fresh), patterns) + two_steps(p.replicas * n, 2 * p.n_pairs)
    one_pattern += methods(p, p.replicas, n, p.n_pairs, p.steps, 4, p.tangent_replicas)
    one_pattern += drawn(p.replicas * (n + fresh), patterns) + two_steps(p.replicas * n, 2 * p.n_pairs)
    one_pattern += methods(p, p.replicas, n, p.n_pairs, p.steps, 2, p.tangent_replicas)
    one_pattern += methods(p, few, n // 2, p.n_pairs, p.steps, 6, 0)  # the printed stage; three in float64

    varied = 0.0
    for points, times in ((n, 1), (n, 1), (n, 1), (n, 2), (n // 2, 1), (n // 5, 1)):
        varied += drawn(few * (points + fresh), patterns) + two_steps(few * points, 2 * p.small_pairs)
        varied += methods(p, few, points, p.small_pairs, times * p.variation_steps, 3, few)
    varied += 2 * methods(p, few, n // 5, p.small_pairs, p.variation_steps, 0, 0)

    law = drawn(p.law_replicas * p.law_points, patterns) + two_steps(1.85 * p.law_replicas * p.law_points, 50)
    passes = p.gaussian_epochs * p.gaussian_points / 200
    gaussian = sum(descent(times * passes, few * 200, 200, dim) for dim, times in ((100, 1), (25, 1), (100, 3)))

    pixels = {"digits": 16, "cifar10": 768, "cifar100": 768}.get(p.dataset, 196)  # after pooling
    known = {"digits": 1797, "mnist5k": 5000, "cifar10": 60_000, "cifar100": 60_000}.get(p.dataset, 70_000)
    pictures = 2 * descent(p.image_steps, 100 * p.image_replicas, 50, pixels)
    pictures += p.image_replicas * p.filter_steps * (2e-3 + 64 * 1.2e-7 * pixels)

    seen = min(known, 4000)
    epoch = seen / 200  # steps
    widths = [p.teacher_width, p.teacher_width, 9, 9, 9, 9, 50, *p.student_widths]  # the teacher sees two batches
    alone = 5 * p.image_replicas * epoch * (1 + p.teacher_epochs // 2)
    students = (
        p.teacher_epochs * epoch * (3 + len(p.student_widths)) * 1.5e-3 + 5 * epoch * (1 + p.teacher_epochs // 2) * 1.5e-3
    )
    students += 200 * pixels * 3e-10 * (p.image_replicas * p.teacher_epochs * epoch * sum(widths) + alone * 20)
    students += p.image_replicas * pixels * (6e-8 * seen + 7.2e-8 * (known / 6 + 1000))

    features = 4 * p.replicas * n * (2 * p.n_pairs)  # of a stack, with their squares; of the tangent kernel two, in parts
    return [
        Part("one pattern, with and without structure", one_pattern, 3.5 * features + 8 * p.replicas * n * patterns),
        Part("law of noise and signal", law, 8 * (p.law_replicas + 2) * p.law_points * patterns),
        Part("variations", varied, 3.5 * 4 * few * n * 2 * p.small_pairs + 8 * few * n * patterns),
        Part("Gaussian clusters", gaussian, 12 * few * p.gaussian_points * 100),
        Part("networks on images", pictures, 4 * known * 5 * pixels),
        Part("teachers and students", students, 4 * known * 5 * pixels + 4 * p.image_replicas * seen * pixels * 12),
    ]
