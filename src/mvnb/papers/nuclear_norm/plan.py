"""What a run of the chapter takes."""

from mvnb.costs import Part

DATA = {"digits": (1797, 1), "mnist5k": (5000, 1), "cifar10": (60_000, 3), "cifar100": (60_000, 3)}
"""Pictures and channels; other sets have 70,000 grey ones."""
DOMAINS = 4


def pictures(p) -> tuple[int, int]:
    """Number of pictures, and of pixels in one with its frame; a folder is taken for PACS, with 10,000."""
    if p.folder:
        return 10_000, 3 * p.image_side**2
    known, channels = DATA.get(p.dataset, (70_000, 1))
    return min(p.n_images or known, known), channels * (max(p.image_side, 10) + 2) ** 2


def comparison(p, methods: int, nuclear: int, replicas: int) -> tuple[float, float]:
    """Seconds and bytes of one stack: methods, of them ``nuclear`` with the penalty, on all seeds and left-out domains."""
    n, inputs = pictures(p)
    weights = inputs * p.hidden + p.hidden * p.n_features + 10 * p.n_features
    rows = (DOMAINS - 1) * p.image_batch
    checkpoints = 15 if p.image_steps >= 60 else 5
    runs = methods * DOMAINS * replicas

    step = 2e-5 + 1.2e-10 * rows * weights + 2.5e-9 * weights + 3e-9 * rows * inputs
    spectrum = 5e-5 + 6e-10 * min(rows, p.n_features) ** 3
    judged = 0.4 * n * checkpoints + 0.5 * n  # points of validation and of the domain left out
    seconds = p.image_steps * (1e-3 + runs * (step + spectrum * nuclear / methods))
    seconds += 3e-11 * runs * judged * weights + 1e-8 * replicas * n * inputs

    points = 4 * inputs * n * (replicas + 0.4 * runs)  # each run has its own copies of those that judge it
    networks = 4 * runs * weights * (4 * (checkpoints + 2) + 2)  # means of segments, moments and their copies at the end
    features = 4 * runs * 0.25 * n * p.n_features * 2
    kept = 8 * 0.25 * n * p.n_features * 4 * DOMAINS * replicas  # features of an earlier stack, which stay on the processor
    return seconds, points + max(networks, networks / 3 + features) + kept


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    n = pictures(p)[0]
    compared = [comparison(p, 6, 2, p.replicas), comparison(p, 3, 0, p.rival_replicas)]
    swept = comparison(p, len(p.strengths), len(p.strengths), p.sweep_replicas)
    worlds = comparison(p, 3, 1, p.world_replicas)
    seen = DOMAINS * (2 * p.replicas + len(p.strengths) * p.sweep_replicas) * 0.25 * n  # features whose rank is taken
    ranks = 2 * 1.5e-10 * seen * p.n_features**2
    model = p.theory_steps * (8e-4 + p.theory_replicas * (1.2e-3 + 1.3e-9 * p.theory_points * (8 * 60 + 7 * 36)))
    return [
        Part("points that check closed forms", 4e-7 * p.check_points, 150 * p.check_points),
        Part("runs in the plane", p.plane_steps * (2.5e-4 + 2e-8 * 20 * p.plane_points), 8 * 20 * 6 * p.plane_points),
        Part("model of the theory", model, 4 * p.theory_replicas * p.theory_points * 60 * 9),
        Part("nine methods on pictures", sum(one[0] for one in compared), max(one[1] for one in compared)),
        Part("sweep of the weight", swept[0] + ranks, max(swept[1], 2 * 8 * seen * p.n_features)),
        Part("three worlds", 2 * worlds[0], worlds[1]),
    ]
