"""Label functions: ways of giving finer labels to data.

Source of the definitions: Hong et al. 2024, section 6 and Appendix A.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator


def grouped_labels(classes: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return the group of each class. Raises ``ValueError`` unless every class is in exactly one of the ``groups``."""
    flat = [c for group in groups for c in group]
    if sorted(flat) != list(range(len(flat))) or len(flat) <= int(classes.max()):
        raise ValueError("every class must be in exactly one group")
    table = torch.empty(len(flat), dtype=torch.long)
    for label, group in enumerate(groups):
        table[list(group)] = label
    return table[classes]


def random_ids(superclass: Tensor, n_ids: int, generator: Seed) -> Tensor:
    """Return labels ``n_ids * superclass + i`` with ``i`` uniform on ``n_ids``, independent of the data."""
    generator = as_generator(generator)
    return n_ids * superclass + torch.randint(n_ids, superclass.shape, generator=generator)


def cluster_within(points: np.ndarray, superclass: np.ndarray, n_clusters, seed: int, n_init: int = 1) -> np.ndarray:
    """Return labels of k-means clusters found inside every superclass: cluster c of superclass s is ``offset_s + c``.

    ``points`` ``(n, dim)``; ``superclass`` ``(n,)``, from 0; ``n_clusters`` is a number, or one number per superclass. With one
    superclass for all points this is k-means on the whole set. The best of ``n_init`` starts counts.
    """
    from sklearn.cluster import KMeans  # here, because importing it is slow

    sizes = np.broadcast_to(n_clusters, int(superclass.max()) + 1)
    labels, offset = np.empty(len(points), dtype=np.int64), 0
    for s, size in enumerate(sizes):
        mine = superclass == s
        labels[mine] = offset + KMeans(int(size), n_init=n_init, random_state=seed).fit_predict(points[mine])
        offset += int(size)
    return labels


def nearest_cluster(pools: Tensor, superclass: Tensor, n_clusters: int, seed: int, n_init: int):
    """Return a function from points to the label of the nearest centre of k-means clusters, found in each replica's pool.

    ``pools`` ``(R, n, dim)`` are embedded points. Clusters are found inside each ``superclass`` ``(R, n)``, or on the whole
    pool if it is 0 throughout. The function takes points ``(R, n, dim)`` and their superclasses.
    """
    centres = []
    for pool, sign in zip(pools, superclass):
        found = cluster_within(pool.numpy(), sign.numpy(), n_clusters, seed, n_init)
        centres.append(torch.stack([pool[found == c].mean(0) for c in np.unique(found)]))
    centres = torch.stack(centres)  # (R, centre, dim)

    def label(points: Tensor, sign: Tensor) -> Tensor:
        home = torch.arange(centres.shape[1], device=points.device) // n_clusters
        distance = torch.cdist(points, centres.to(points))  # (R, n, centre)
        return distance.masked_fill(home != sign[..., None], torch.inf).argmin(-1)

    return label
