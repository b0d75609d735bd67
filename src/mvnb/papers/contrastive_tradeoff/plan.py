"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    fixed = p.shared + p.spurious
    features = max(fixed + p.private * max([5, *p.tasks]), 7 * (fixed + p.private))  # of one fit, of seven at once
    linear = max(256 * p.replicas * p.sgd_batch * features, 100_000 * p.label_runs)

    h, pixels, known = p.hidden, p.side**2, {"digits": 1797, "mnist5k": 5000}.get(p.dataset, 70_000)
    kept, judged, weights = {  # of a picture, for the backward pass and without one; parameters
        "mlp": (pixels + 2 * h + p.features, pixels + 2 * h, h * (pixels + p.features)),
        "conv": (4 * h * pixels, 4 * h * pixels, 54 * h**2 + 2 * h * p.features),
    }.get(p.network, (19 * h * pixels, 6 * h * pixels, 2730 * h**2 + 8 * h * p.features))
    batch = min(p.image_batch, p.own_images)
    pretraining = 7 * (8 * batch * (kept + 8 * batch) + 32 * weights)
    largest = max(pretraining, 32 * p.image_batch * kept, 16_000 * judged, 96 * known * p.features)
    return max(linear, p.image_replicas * largest + known * (12 * pixels + 8192))
