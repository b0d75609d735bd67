"""Memory of a run of the chapter."""


def peak_bytes(p) -> float:
    """Return the bytes of the largest tensors of a run with the chapter's parameters ``p``."""
    patterns, few = 8 * p.n_patterns, p.variation_replicas
    main = p.n_train * max(p.replicas * (28 * p.n_pairs + patterns), few * (28 * p.small_pairs + patterns))
    law = (p.law_replicas + 2) * p.law_points * patterns
    cifar = (4000, 768)  # images seen, and their pixels after pooling
    seen, pixels = {"digits": (1800, 16), "cifar10": cifar, "cifar100": cifar}.get(p.dataset, (4000, 196))
    return max(main, law, 1200 * few * p.gaussian_points, (48 * p.image_replicas + 300) * seen * pixels)
