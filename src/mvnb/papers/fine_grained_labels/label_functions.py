"""Label functions: ways of giving finer labels to data, all of them on integer tensors.

Source of the definitions: Hong et al. 2024, section 6 and Appendix A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator


def hierarchy_level(parent: Mapping[str, str], leaf: str, level: int) -> str:
    """The node ``level`` steps above a leaf of a tree given by ``parent``, or the root when the path is shorter.

    ``ValueError`` when ``level`` is negative.
    """
    if level < 0:
        raise ValueError(f"level must not be negative, got {level}")
    for _ in range(level):
        leaf = parent.get(leaf, leaf)
    return leaf


def grouped_labels(classes: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Which of the ``groups`` each class belongs to. ``ValueError`` unless every class is in exactly one."""
    flat = [c for group in groups for c in group]
    if sorted(flat) != list(range(len(flat))) or len(flat) <= int(classes.max()):
        raise ValueError("every class must be in exactly one group")
    table = torch.empty(len(flat), dtype=torch.long)
    for label, group in enumerate(groups):
        table[list(group)] = label
    return table[classes]


def random_ids(superclass: Tensor, n_ids: int, generator: Seed) -> Tensor:
    """Labels ``n_ids * superclass + i`` with ``i`` uniform on ``n_ids``: sub-labels that say nothing."""
    generator = as_generator(generator)
    return n_ids * superclass + torch.randint(n_ids, superclass.shape, generator=generator)


def cluster_within(points: np.ndarray, superclass: np.ndarray, n_clusters, seed: int, n_init: int = 1) -> np.ndarray:
    """Labels of k-means clusters found inside every superclass: cluster c of superclass s is ``offset_s + c``.

    ``points`` ``(n, dim)``; ``superclass`` ``(n,)``, from 0; ``n_clusters`` is a number, or one number a superclass. With
    one superclass for all points this is plain k-means on the whole set; the best of ``n_init`` starts counts.
    """
    from sklearn.cluster import KMeans  # here, because importing it is slow

    sizes = np.broadcast_to(n_clusters, int(superclass.max()) + 1)
    labels, offset = np.empty(len(points), dtype=np.int64), 0
    for s, size in enumerate(sizes):
        mine = superclass == s
        labels[mine] = offset + KMeans(int(size), n_init=n_init, random_state=seed).fit_predict(points[mine])
        offset += int(size)
    return labels


def rebalanced_counts(clusterings: Mapping[int, np.ndarray], superclass: np.ndarray, least: int) -> list[int]:
    """For every superclass the largest number of clusters whose smallest still has more than ``least`` points.

    ``clusterings`` maps C to the labels :func:`cluster_within` gives with C clusters a superclass; 1 where none qualifies.
    """
    best = []
    for s in range(int(superclass.max()) + 1):
        mine = superclass == s
        fit = [
            size for size, labels in clusterings.items() if np.bincount(labels[mine] - size * s, minlength=size).min() > least
        ]
        best.append(max(fit, default=1))
    return best
