"""What is measured on trained models. Everything takes a leading replica axis R and returns one value a replica and class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mvnb.data.multi_view import Patches, keep_feature


def _hits(logits: Tensor, y: Tensor) -> Tensor:
    """1 where the label's logit is larger than every other: a tie is no knowledge."""
    own = logits.gather(-1, y[..., None])
    best_other = logits.scatter(-1, y[..., None], -torch.inf).amax(-1)
    return (own[..., 0] > best_other).double()


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Fraction of points whose strictly largest logit is the label's: ``(..., n, n_classes)``, ``(..., n)`` to ``(...)``."""
    return _hits(logits, y.expand(logits.shape[:-1])).mean(-1)


def class_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Accuracy within every class: ``(..., n, n_classes)``, ``(..., n)`` to ``(..., n_classes)``; nan for an empty class."""
    y = y.expand(logits.shape[:-1])
    member = torch.nn.functional.one_hot(y, logits.shape[-1]).double()
    return (_hits(logits, y)[..., None] * member).sum(-2) / member.sum(-2)


def own_correlations(weight: Tensor, n_views: int = 2) -> Tensor:
    """Inner products of each class's filters with the class's own features.

    ``weight`` ``(..., n_classes, n_filters, n_classes * n_views)`` in feature coordinates; returns
    ``(..., n_classes, n_filters, n_views)``.
    """
    n_classes, n_filters = weight.shape[-3:-1]
    views = weight.view(*weight.shape[:-1], n_classes, n_views)
    index = torch.arange(n_classes, device=weight.device).view(-1, 1, 1, 1)
    index = index.expand(*weight.shape[:-3], n_classes, n_filters, 1, n_views)
    return views.gather(-2, index).squeeze(-2)


def max_correlation(weight: Tensor, n_views: int = 2) -> Tensor:
    """The best filter's correlation with each own feature, ``Lambda_{y,l} = max_r <w_{y,r}, v_{y,l}>``.

    Shapes ``(..., n_classes, n_filters, dim)`` to ``(..., n_classes, n_views)``. Source: Chidambaram et al. 2024, App. B.
    """
    return own_correlations(weight, n_views).amax(-2)


def total_correlation(weight: Tensor, level: float, n_views: int = 2) -> Tensor:
    """Summed correlation of the filters that are past ``level``, ``C_{y,l}``: ``(..., n_classes, n_views)``.

    Source: Chidambaram et al. 2024, App. B; ``level`` is ``threshold / delta_1``, for mixed points twice that.
    """
    own = own_correlations(weight, n_views)
    return (own * (own >= level)).sum(-2)


def balance(correlation: Tensor) -> Tensor:
    """Smaller over larger correlation, ``(..., n_views)`` to ``(...)``, 0 where the larger is not positive."""
    high = correlation.amax(-1)
    return torch.where(high > 0, correlation.amin(-1).clamp(min=0) / high.clamp(min=1e-300), 0.0)


def feature_accuracy(logits_of: Callable[[Tensor, Tensor], Tensor], sample: Patches, n_views: int = 2) -> Tensor:
    """Accuracy on each class when only one of its features is left: ``(R, n_classes, n_views)``.

    ``logits_of(x, multiplicity)`` maps patches in feature coordinates to logits ``(R, n, n_classes)``; ``sample`` is one set of
    fresh points, without a replica axis. A feature counts as *learned* when this is near 1: Chidambaram et al. 2024,
    Def. 4.5.
    """
    kept = [keep_feature(sample, view, n_views) for view in range(n_views)]
    logits = [logits_of(s.x, s.multiplicity) for s in kept]
    return torch.stack([class_accuracy(z, sample.y) for z in logits], -1)


def learned_counts(feature_accuracies: Tensor, threshold: float = 0.9) -> Tensor:
    """How many of a class's features are learned: ``(..., n_views)`` to ``(...)``, integers from 0 to n_views."""
    return (feature_accuracies >= threshold).sum(-1)
