"""Measurements of trained models, with a leading replica axis R.

Each docstring says whether the function is differentiable. Piecewise constant functions, such as the accuracy, have zero
derivative wherever they are differentiable; their values carry no gradient and do not change the gradient of a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from mvnb import training
from mvnb.data.multi_view import Patches
from mvnb.gradients import returns_gradients
from mvnb.models.patch_cnn import label_cross_entropy


def _hits(logits: Tensor, y: Tensor) -> Tensor:
    """Return 1 where the label's logit is larger than all others, else 0; ties count as errors."""
    own = logits.gather(-1, y[..., None])
    best_other = logits.scatter(-1, y[..., None], -torch.inf).amax(-1)
    return (own[..., 0] > best_other).double()


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the fraction of points whose label has the largest logit. Piecewise constant, without a gradient.

    The logits have shape ``(..., n, n_classes)``, the labels ``(..., n)`` and the result ``(...)``. Ties count as errors.

    >>> accuracy(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.5000, dtype=torch.float64)
    """
    return _hits(logits, y.expand(logits.shape[:-1])).mean(-1)


def class_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the accuracy within each class, or NaN for an empty class. Piecewise constant, without a gradient.

    The logits have shape ``(..., n, n_classes)``, the labels ``(..., n)`` and the result ``(..., n_classes)``.

    >>> class_accuracy(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    y = y.expand(logits.shape[:-1])
    member = torch.nn.functional.one_hot(y, logits.shape[-1]).double()
    return (_hits(logits, y)[..., None] * member).sum(-2) / member.sum(-2)


def own_correlations(weight: Tensor) -> Tensor:
    """Return the inner products of each class's filters with the class's own features. Differentiable.

    ``weight`` holds the filters in feature coordinates and has shape ``(..., n_classes, n_filters, n_classes * n_views)``. The
    result has shape ``(..., n_classes, n_filters, n_views)``.

    >>> own_correlations(torch.arange(8).view(2, 1, 4)).tolist()
    [[[0, 1]], [[6, 7]]]
    """
    views = weight.unflatten(-1, (weight.shape[-3], -1))  # (..., class of the filter, filter, class of the feature, view)
    return views.diagonal(dim1=-4, dim2=-2).movedim(-1, -3).contiguous()


def max_correlation(weight: Tensor) -> Tensor:
    """Return the largest correlation of each class's filters with each of its own features. Differentiable.

    This is ``Lambda_{y,l} = max_r <w_{y,r}, v_{y,l}>``, of shape ``(..., n_classes, n_views)``; ``weight`` is as for
    :func:`own_correlations`. Source: Chidambaram et al. 2024, App. B.

    >>> max_correlation(torch.arange(16).view(2, 2, 4))
    tensor([[ 4,  5],
            [14, 15]])
    """
    return own_correlations(weight).amax(-2)


def total_correlation(weight: Tensor, level: float) -> Tensor:
    """Return the sum of the correlations with each own feature that are at least ``level``. Differentiable.

    This sum over the filters of a class is ``C_{y,l}``, of shape ``(..., n_classes, n_views)``; ``weight`` is as for
    :func:`own_correlations`. Source: Chidambaram et al. 2024, App. B, where ``level`` is ``threshold / delta_1``, or twice that
    for mixed points.

    >>> total_correlation(torch.arange(16).view(2, 2, 4), level=2)
    tensor([[ 4,  5],
            [24, 26]])
    """
    own = own_correlations(weight)
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


def learned_counts(feature_accuracies: Tensor, threshold: float = 0.9) -> Tensor:
    """Return the number of learned features of each class, those with an accuracy of at least ``threshold``.

    ``feature_accuracies`` has shape ``(..., n_views)``, as returned by :func:`feature_accuracy`. The result holds integers from
    0 to n_views and has shape ``(...)``.

    >>> learned_counts(torch.tensor([[1.0, 0.3], [0.99, 0.97]]))
    tensor([1, 2])
    """
    return (feature_accuracies >= threshold).sum(-1)


def cosines(weight: Tensor, directions: Tensor) -> Tensor:
    """Return the signed cosines between the filters in ``weight`` and the ``directions``. Differentiable.

    Filters ``(..., m, dim)`` and directions ``(r, dim)`` give cosines ``(..., m, r)``; a single direction ``(dim,)`` gives
    ``(..., m)``. A filter of length 0 has cosine 0. The result is computed in float64, because the squares of the small
    weights after a first gradient step underflow in float32.

    >>> cosines(torch.tensor([[3.0, -4.0]]), torch.eye(2))
    tensor([[ 0.6000, -0.8000]], dtype=torch.float64)
    """
    w, v = weight.double(), directions.to(weight.device).double()
    length = w.norm(dim=-1)[(..., *[None] * (v.dim() - 1))] * v.norm(dim=-1)
    return w @ v.movedim(-1, 0) / torch.where(length > 0, length, 1.0)


def parameter_norm(params: Mapping[str, Tensor], names: Iterable[str] | None = None) -> Tensor:
    """Return the Euclidean norm ``(R,)`` of all parameters, or of those in ``names``, joined into one vector.

    The norm is computed in float64. Differentiable.

    >>> parameter_norm({"weight": torch.tensor([[3.0]]), "bias": torch.tensor([4.0])})
    tensor([5.], dtype=torch.float64)
    """
    return torch.cat([params[k].reshape(len(params[k]), -1).double() for k in names or params], 1).norm(dim=1)


def ridge_fit(features: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Return the weights ``(P, outputs)`` of ridge regression of ``targets`` ``(n, outputs)`` on ``features`` ``(n, P)``.

    ``ridge`` is relative to the mean squared norm of the rows of ``features``, as is usual for kernels: ``ridge`` times this
    mean is added to the diagonal of the Gram matrix, ``(P, P)`` or ``(n, n)``, whichever is smaller. Differentiable. Raises
    ``ValueError`` unless ``ridge`` is positive.

    >>> ridge_fit(torch.eye(2), torch.tensor([[3.0], [6.0]]), ridge=1.0)
    tensor([[1.5000],
            [3.0000]])
    """
    if ridge <= 0:
        raise ValueError(f"ridge must be positive, got {ridge}")
    n, size = features.shape
    gram = features.T @ features if size < n else features @ features.T
    gram.diagonal().add_(ridge * features.square().sum() / n)
    factor = torch.linalg.cholesky(gram)
    if size < n:
        return torch.cholesky_solve(features.T @ targets, factor)
    return features.T @ torch.cholesky_solve(targets, factor)


def linear_probe(
    features: Tensor, y: Tensor, n_classes: int, optimizer, steps: int, scale: Tensor
) -> Callable[[Tensor], Tensor]:
    """Fit a logistic regression to frozen features in each replica and return the function that maps features to logits.

    ``features`` has shape ``(R, n, dim)``, and the labels ``y`` have shape ``(R, n)``. Starting from zero, all replicas take
    ``steps`` full-batch steps of ``optimizer``, such as :class:`mvnb.training.SGD`. Features are divided by ``scale``
    ``(R, 1, 1)``, including those passed to the returned function, which is differentiable. Raises ``ValueError`` if
    ``features`` requires a gradient.

    >>> features, y = torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[0, 1]])
    >>> logits = linear_probe(features, y, 2, training.SGD(1.0), steps=20, scale=torch.ones(1, 1, 1))
    >>> logits(features).argmax(-1)
    tensor([[0, 1]])
    """
    rows, dim = len(features), features.shape[-1]
    start = {"weight": features.new_zeros(rows, n_classes, dim), "bias": features.new_zeros(rows, n_classes)}

    def logits(params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return torch.baddbmm(params["bias"][:, None], x, params["weight"].mT)

    @returns_gradients
    def objective(params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, slope = label_cross_entropy(logits(params, x), y)
        return loss, {"weight": torch.bmm(slope.mT, x), "bias": slope.sum(1)}

    batch = (features / scale, y)
    params = training.fit(objective, start, batch, steps=steps, optimizer=optimizer, log_at=[steps]).params
    return lambda other: logits(params, other / scale)
