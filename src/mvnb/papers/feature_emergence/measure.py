"""Measurements that are judged beside chance: clusters of filters, agreement of gradients, accuracies beside a constant's."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F


def two_means(units: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the cosine of the two centres that 2-means finds, and the cosine ``(n,)`` of each unit vector with its own."""
    fit = KMeans(2, n_init=2, random_state=0).fit(units)
    centres = fit.cluster_centers_ / np.linalg.norm(fit.cluster_centers_, axis=1, keepdims=True)
    return centres[0] @ centres[1], (units * centres[fit.labels_]).sum(1)


def gathering(directions: Tensor, generator: torch.Generator, draws: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return how filters ``(R, filter, weight)`` cluster, ``(R, 2)``, and the same for random directions.

    The two quantities are the cosine of the two centres and the mean cosine of a filter with its own centre. The second array
    is a mean over ``draws`` stacks of random directions, as many in as many dimensions, clustered in the same way.
    """
    random = torch.randn(draws, *directions.shape, generator=generator)
    every = F.normalize(torch.cat([directions[None].cpu(), random]), dim=-1).numpy()
    found = np.array([[(apart, own.mean()) for apart, own in map(two_means, runs)] for runs in every])
    return found[0], found[1:].mean(0)


def typical_agreement(chunks: Tensor, gained: Tensor) -> np.ndarray:
    """Return the least cosine ``(R,)`` of two of the gradients ``(chunk, R, filter, weight)`` of each run's typical filter.

    The typical filter is the one whose gain ``(R, filter, weight)`` is nearest to a centre found by 2-means.
    """
    chunks = chunks.cpu()
    picked = [two_means(run)[1].argmax() for run in F.normalize(gained, dim=-1).cpu().numpy()]
    mine = F.normalize(chunks[:, torch.arange(len(picked)), picked], dim=-1)  # (chunk, R, weight)
    first, second = torch.triu_indices(len(chunks), len(chunks), 1)
    return (mine[first] * mine[second]).sum(-1).amin(0).numpy()


def errors_avoided(right: np.ndarray, larger: np.ndarray) -> np.ndarray:
    """Return the share of the errors of a constant, which is right on the share ``larger`` of the points, that are avoided."""
    return (right - larger) / (1 - larger)
