"""Measurements of trained models, with a leading replica axis R.

Each docstring says whether the function is differentiable. Piecewise constant functions, such as the accuracy, have zero
derivative wherever they are differentiable; their values carry no gradient and do not change the gradient of a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from mvnb import _renamed, training
from mvnb._checks import labels_below
from mvnb.gradients import label_cross_entropy, returns_gradients


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the fraction of points whose label has the largest logit. Piecewise constant, without a gradient.

    The logits have shape ``(..., n, n_classes)``, the labels ``(..., n)`` and the result ``(...)``. Ties count as errors.
    Raises ``ValueError`` if a label is out of range.

    >>> accuracy(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.5000, dtype=torch.float64)
    """
    y = y.expand(logits.shape[:-1])[..., None]
    with labels_below(logits.shape[-1]):
        own, best_other = logits.gather(-1, y), logits.scatter(-1, y, -torch.inf).amax(-1)
    return (own[..., 0] > best_other).double().mean(-1)


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

    The norm is computed in float64. Differentiable. Raises ``ValueError`` if ``names`` is empty or names another parameter.

    >>> parameter_norm({"weight": torch.tensor([[3.0]]), "bias": torch.tensor([4.0])})
    tensor([5.], dtype=torch.float64)
    """
    chosen = list(params if names is None else names)
    if not chosen or set(chosen) - set(params):
        raise ValueError(f"names must be of parameters ({', '.join(params)}), got {', '.join(chosen) or 'none'}")
    return torch.cat([params[k].reshape(len(params[k]), -1).double() for k in chosen], 1).norm(dim=1)


def ridge_fit(features: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Return the weights ``(P, outputs)`` of ridge regression of ``targets`` ``(n, outputs)`` on ``features`` ``(n, P)``.

    ``ridge`` is relative to the mean squared norm of the rows of ``features``, as is usual for kernels: ``ridge`` times this
    mean is added to the diagonal of the Gram matrix, ``(P, P)`` or ``(n, n)``, whichever is smaller. Differentiable. Raises
    ``ValueError`` unless ``ridge`` is positive and finite.

    >>> ridge_fit(torch.eye(2), torch.tensor([[3.0], [6.0]]), ridge=1.0)
    tensor([[1.5000],
            [3.0000]])
    """
    if not 0 < ridge < torch.inf:
        raise ValueError(f"ridge must be positive and finite, got {ridge}")
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
    ``features`` requires a gradient, ``scale`` has another shape or a label is out of range.

    >>> features, y = torch.tensor([[[-1.0], [1.0]]]), torch.tensor([[0, 1]])
    >>> logits = linear_probe(features, y, 2, training.SGD(1.0), steps=20, scale=torch.ones(1, 1, 1))
    >>> logits(features).argmax(-1)
    tensor([[0, 1]])
    """
    rows, dim = len(features), features.shape[-1]
    if scale.shape != (rows, 1, 1):
        raise ValueError(f"scale must have shape ({rows}, 1, 1), got {tuple(scale.shape)}")
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


_MOVED = ("feature_accuracy", "class_accuracy", "balance", "total_correlation")
__getattr__ = _renamed.old_names(__name__, **{name: f"mvnb.papers.midpoint_mixup.measure.{name}" for name in _MOVED})
