"""What a run of the chapter takes."""

from mvnb.costs import Part

N_LETTERS = 1092
"""Pictures of the smallest added set; no set gives more than half of its pictures to pretraining."""


def encoder(p) -> tuple[float, float, float, float]:
    """Of a picture: multiplications, numbers kept for the backward pass, numbers alive in inference; and the parameters."""
    h, pixels = p.hidden, p.side**2
    if p.network == "mlp":
        weights = h * (pixels + p.features)
        return weights, pixels + 2 * h + p.features, pixels + 2 * h, weights
    if p.network == "conv":
        return pixels * (9 * h + 6.75 * h**2), 4 * h * pixels, 4 * h * pixels, 54 * h**2 + 2 * h * p.features
    return 132 * h**2 * pixels, 19 * h * pixels, 6 * h * pixels, 2730 * h**2 + 8 * h * p.features


def linear_run(p, d: int, replicas: int) -> float:
    """Seconds of one fit of the linear model with ``d`` features: draws and products of pairs, projection of matrices."""
    return p.sgd_steps * (2e-4 + replicas * (p.sgd_batch * (1e-8 * (d + 6) + 3e-10 * d**2) + 3e-9 * d**3))


def parts(p) -> list[Part]:
    """The costly parts, from the chapter's parameters ``p``."""
    known = {"digits": 1797, "mnist5k": 5000, "cifar10": 60_000, "cifar100": 60_000}.get(p.dataset, 70_000)
    own = min(p.own_images, N_LETTERS // 2, known // 2)
    judged = min(1000, (known - own) // 2)
    labelled = known - own - judged
    colours = 3 if p.dataset.startswith("cifar") else 1
    n_pictures = own * p.image_replicas  # of one set, in all runs
    rows, batch = p.image_replicas, min(p.image_batch, own)

    sizes = [p.shared + p.private * t + p.spurious for t in (*p.tasks, p.tasks[-2], 5, 5, 5)]
    linear = sum(linear_run(p, d, p.replicas) for d in sizes)
    linear += linear_run(p, p.shared + p.private + p.spurious, 7 * p.replicas)
    drawn = 4 * 16 * p.replicas * p.sgd_batch * max(4 * max(sizes), 7 * 4 * min(sizes))
    tables = p.lookup_steps * (8e-4 + 1e-5 * p.replicas) + 0.02 * p.replicas

    macs, kept, alive, weights = encoder(p)
    network = 8e-11 * macs + 4e-9 * kept  # forward and backward
    view = network + 1.2e-8 * p.side**2 + 4e-9 * 2 * batch  # with the augmentation and its similarities
    inference = 0.4 * network
    step = 8e-4 if p.network == "mlp" else 1e-2
    update = 8e-9 * weights / batch  # of the parameters, by picture
    simclr_steps = (4 + 2) * own * p.epochs / batch  # the longest union; two weight decays on one set
    simclr = simclr_steps * step + 15 * n_pictures * p.epochs * (2 * view + update)
    other_steps = 3 * 3 * own * p.other_epochs / batch
    others = other_steps * step + 3 * 4 * n_pictures * p.other_epochs * (2.7 * view + update)
    tune_sizes = [min(p.image_batch, m) for m in p.tune_labels]
    tune_views = p.tune_steps * (4 * sum(tune_sizes) + 2 * p.image_batch)  # without and with regularisation; two views alone
    tuning = p.tune_steps * (2 * len(p.tune_labels) + 1) * (step + 1e-8 * 4 * rows * weights) + 4 * rows * tune_views * view
    adapters = p.tune_steps * 2 * len(p.tune_labels) * 2e-3

    seen = labelled + 5 * judged + 4 * own
    encoding = inference * rows * (15 * seen + 4 * len(p.tune_labels) * (labelled + 3 * judged))
    points = 15 * rows * (labelled + 8 * sum(p.labels) + 33 * judged)
    probes = points * (2e-10 * p.features**2 + 5e-9 * p.features)
    tuned_views = max(2 * p.image_batch, 3 * max(tune_sizes))  # of a network at once
    networks = 4 * 8 * weights  # with gradients and the optimizer's state, and copies of both
    pictures = 4 * known * p.side**2 * 3 + 8 * known * 1024 * colours
    return [
        Part("linear model", linear + tables, drawn),
        Part("labelled points", 1.4e-3 * p.label_runs, 4 * 8 * p.label_runs * 160 * 20),
        Part("SimCLR on pictures", simclr, 7 * rows * (4 * 2 * batch * (kept + 8 * batch) + networks) + pictures),
        Part("MoCo, NNCLR and SimSiam", others, 2 * rows * (4 * 2 * batch * (kept + 1536) + 2 * networks) + pictures),
        Part(
            "fine-tuning and adapters",
            tuning + adapters,
            4 * rows * (4 * tuned_views * kept + networks) + pictures,
        ),
        Part("features of pictures", encoding, 4 * 4 * rows * min(1000, labelled) * alive + pictures),
        Part("linear probes", probes, 4 * rows * (labelled + judged) * p.features * 24 + pictures),
    ]
