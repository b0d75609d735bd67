"""Measurements on trained patch networks: correlations with features, and features that a class has learned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mvnb import probes
from mvnb.data import Patches


def total_correlation(weight: Tensor, level: float) -> Tensor:
    """Return the sum of the correlations with each own feature that are at least ``level``. Differentiable.

    This sum over the filters of a class is ``C_{y,l}``, of shape ``(..., n_classes, n_views)``; ``weight`` is as for
    :func:`~mvnb.probes.own_correlations`. Source: Chidambaram et al. 2024, App. B, where ``level`` is ``threshold / delta_1``,
    or twice that for mixed points.

    >>> total_correlation(torch.arange(16).view(2, 2, 4), level=2)
    tensor([[ 4,  5],
            [24, 26]])
    """
    own = probes.own_correlations(weight)
    return (own * (own >= level)).sum(-2)


def balance(correlation: Tensor) -> Tensor:
    """Return the ratio of the smallest to the largest correlation over the views of a class. Differentiable.

    ``correlation`` has shape ``(..., n_views)`` and the result ``(...)``. The ratio is 0 if either correlation is not positive.

    >>> balance(torch.tensor([[2.0, 1.0], [3.0, -1.0]]))
    tensor([0.5000, 0.0000])
    """
    high = correlation.amax(-1)
    positive = torch.where(high > 0, high, 1.0)  # autograd also differentiates unused quotients
    return torch.where(high > 0, correlation.amin(-1).clamp(min=0) / positive, 0.0)


def class_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the accuracy within each class, or NaN for an empty class. Piecewise constant, without a gradient.

    The logits have shape ``(..., n, n_classes)``, the labels ``(..., n)`` and the result ``(..., n_classes)``.

    >>> class_accuracy(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    y = y.expand(logits.shape[:-1])
    member = torch.nn.functional.one_hot(y, logits.shape[-1]).double()
    right = probes.accuracy(logits[..., None, :], y[..., None])  # 1 or 0 per point
    return (right[..., None] * member).sum(-2) / member.sum(-2)


def feature_accuracy(logits_of: Callable[[Tensor, Tensor], Tensor], sample: Patches) -> Tensor:
    """Return the accuracy on each class when only one of its two features is kept, ``(R, n_classes, 2)``.

    ``logits_of(x, multiplicity)`` maps patches in feature coordinates to logits ``(R, n, n_classes)``. ``sample`` holds fresh
    points, without a replica axis. A feature counts as *learned* if this accuracy is near 1. Piecewise constant, without
    a gradient. Source: Chidambaram et al. 2024, Def. 4.5.

    >>> from mvnb.data import MultiView
    >>> first_views = lambda x, multiplicity: x[..., ::2].sum(-2)[None]
    >>> feature_accuracy(first_views, MultiView(n_classes=2, n_patches=20).sample(60, 0)).tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    logits = [logits_of(_keep_feature(sample, view).x, sample.multiplicity) for view in range(2)]
    return torch.stack([class_accuracy(z, sample.y) for z in logits], -1)


def _keep_feature(sample: Patches, view: int) -> Patches:
    """Return the sample with every feature of a point's own class except ``view`` set to zero."""
    axes = torch.arange(sample.x.shape[-1], device=sample.x.device)
    drop = (axes // 2 == sample.y[..., None]) & (axes % 2 != view)  # (..., n, dim)
    return sample._replace(x=sample.x.masked_fill(drop[..., None, :], 0.0))
