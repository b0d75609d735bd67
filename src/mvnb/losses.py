"""Losses of a model on a batch, as functions of the model ``f``, inputs ``x`` ``(n, ...)`` and labels ``y`` ``(n,)``.

If a ``multiplicity`` is given, the model is called as ``f(x, multiplicity)`` instead of ``f(x)``. The samples of
:class:`mvnb.data.MultiView` end with one. Every loss is differentiable and applies to one model;
:class:`mvnb.training.ModuleObjective` applies it to every model of a stack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb._checks import NO_LABEL, labels_below, require_within
from mvnb.gradients import nuclear_norm_and_slope, with_slope
from mvnb.seeds import Seed, as_generator

MixingLaw = Literal["midpoint", "uniform"] | float
"""Distribution of the mixing weight: always 1/2, uniform on [0, 1], or Beta(a, a) for a number a of at least 0.01."""


def sample_mixing(law: MixingLaw, shape: tuple[int, ...], generator: Seed, dtype=torch.float32) -> Tensor:
    """Draw mixing weights in [0, 1] of the given shape from a :data:`MixingLaw`.

    Beta(a, a) tends to the point mass at 1/2 as ``a`` grows, and to the uniform distribution on {0, 1} as ``a`` tends to 0.
    No value of ``a`` gives "midpoint", which is therefore a separate law. Raises ``ValueError`` if ``law`` is unknown.

    >>> sample_mixing("midpoint", (3,), 0)
    tensor([0.5000, 0.5000, 0.5000])
    """
    generator = as_generator(generator)
    if law == "midpoint":
        return torch.full(shape, 0.5, dtype=dtype)
    if law == "uniform":
        return torch.rand(shape, generator=generator, dtype=dtype)
    # Below 0.01 both gamma variables underflow, and so does their ratio.
    if isinstance(law, str) or not 0.01 <= law < float("inf"):
        raise ValueError(f"mixing law must be 'midpoint', 'uniform' or a finite a >= 0.01 for Beta(a, a), got {law!r}")
    shape_parameter = torch.full(shape, float(law), dtype=torch.float64)
    first = torch._standard_gamma(shape_parameter, generator)
    second = torch._standard_gamma(shape_parameter, generator)
    return (first / (first + second)).to(dtype)


def _labels(x: Tensor, y: Tensor, distributions: bool = False) -> Tensor:
    """Return the class indices ``y`` in int64, or distributions over the classes, if allowed.

    Raises ``TypeError`` or ``ValueError`` unless there is one for each point of ``x``, and at least one point.
    """
    if not torch.is_tensor(x) or not torch.is_tensor(y):
        raise TypeError(f"x and y must be tensors, got {type(x).__name__} and {type(y).__name__}; unpack a sample with *sample")
    if not x.dim() or not len(x):
        raise ValueError(f"x must have shape (n, ...) with at least one point, got {tuple(x.shape)}")
    if distributions and y.dim() == 2 and len(y) == len(x):
        return y
    if y.shape != x.shape[:1]:
        raise ValueError(f"y must have shape ({len(x)},), one label for each point of x, got {tuple(y.shape)}")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"y must hold class indices (torch.int64), got {y.dtype}")
    return y.long()


def _logits(f: Callable[..., Tensor], x: Tensor, multiplicity: Tensor | None) -> Tensor:
    if not callable(f):
        raise TypeError(f"f must be a model, a function of x, got {type(f).__name__}")
    if multiplicity is None:
        return f(x)
    try:
        return f(x, multiplicity)
    except TypeError:
        try:
            inspect.signature(getattr(f, "forward", f)).bind(x, multiplicity)
        except ValueError:  # a built-in function has no signature
            pass
        except TypeError:
            raise TypeError("f must take x and multiplicity, as the batch has a multiplicity, got a model of x alone") from None
        raise


def cross_entropy(f: Callable[..., Tensor], x: Tensor, y: Tensor, multiplicity: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of the logits ``f(x)``, or of ``f(x, multiplicity)`` if a multiplicity is given.

    Unlike :func:`torch.nn.functional.cross_entropy`, this takes the model and the points instead of the logits. ``y`` holds a
    class index ``(n,)`` or a distribution over the classes ``(n, n_classes)`` for each point. Differentiable. Raises
    ``ValueError`` if there is no point or a class index is out of range; none is ignored. Source: the empirical risk J of
    Chidambaram et al. 2024, eq. (2.1).

    >>> cross_entropy(lambda x: x, torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    tensor(0.6931)
    """
    y = _labels(x, y, distributions=True)
    logits = _logits(f, x, multiplicity)
    with labels_below(logits.shape[-1]):
        return F.cross_entropy(logits, y, ignore_index=NO_LABEL)


def _weights(lam: Tensor | float, x: Tensor) -> Tensor:
    require_within("lam", lam, 0, 1)
    return lam.to(x) if torch.is_tensor(lam) else x.new_full((), lam)


def mixup(
    f: Callable[..., Tensor],
    x: Tensor,
    y: Tensor,
    x2: Tensor,
    y2: Tensor,
    lam: Tensor | float,
    multiplicity: Tensor | None = None,
) -> Tensor:
    """Return the Mixup loss of given pairs, with inputs ``lam x + (1 - lam) x2`` and labels mixed in the same way.

    ``x2`` and ``y2`` have the shapes of ``x`` and ``y``, and ``lam`` is a number or has shape ``(n,)``. The model ``f`` is
    called as in :func:`cross_entropy`. Differentiable. Raises ``ValueError`` if there is no point, a shape differs, a class
    index is out of range or a weight does not lie in [0, 1]; weights on a GPU or inside ``vmap`` are not checked. Source: Zhang
    et al. 2018.

    >>> x, y = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    >>> mixup(lambda x: x, x, y, x.flip(0), y.flip(0), 0.5)
    tensor(0.6931)
    """
    y, y2 = _labels(x, y), _labels(x2, y2)
    if x.shape != x2.shape:
        raise ValueError(f"x2 must have the shape of x, {tuple(x.shape)}, got {tuple(x2.shape)}")
    return _mixup(f, x, y, x2, y2, _weights(lam, x), multiplicity)


def _mixup(f: Callable, x: Tensor, y: Tensor, x2: Tensor, y2: Tensor, lam: Tensor, multiplicity: Tensor | None) -> Tensor:
    lam = lam.expand(x.shape[0])
    logits = _logits(f, torch.lerp(x2, x, lam.view(-1, *[1] * (x.dim() - 1))), multiplicity)
    log_prob = logits.log_softmax(-1)
    with labels_below(logits.shape[-1]):
        pick = log_prob.gather(-1, torch.stack([y, y2], -1))
    return -(lam * pick[:, 0] + (1 - lam) * pick[:, 1]).mean()


def mixup_all_pairs(
    f: Callable[..., Tensor], x: Tensor, y: Tensor, lam: Tensor | float, multiplicity: Tensor | None = None
) -> Tensor:
    """Return the Mixup loss averaged over all n^2 ordered pairs, including each point with itself.

    The mixing weights ``lam`` are a number or have shape ``(n, n)``. The model ``f`` is called as in :func:`cross_entropy`.
    Differentiable. Raises ``ValueError`` as :func:`mixup` does. Source: J_M of Chidambaram et al. 2024, eq. (2.2), for one draw
    of the weights.

    >>> mixup_all_pairs(lambda x: x, torch.eye(2), torch.tensor([0, 1]), 0.3)
    tensor(0.4731)
    """
    y = _labels(x, y)
    n = x.shape[0]
    if torch.is_tensor(lam) and lam.dim() and lam.shape != (n, n):
        raise ValueError(f"lam must be a number or have shape ({n}, {n}), got {tuple(lam.shape)}")
    i, j = torch.meshgrid(torch.arange(n, device=x.device), torch.arange(n, device=x.device), indexing="ij")
    weight = _weights(lam, x).expand(n, n).flatten()
    i, j = i.flatten(), j.flatten()
    return _mixup(f, x[i], y[i], x[j], y[j], weight, multiplicity)


def midpoint_mixup(f: Callable[..., Tensor], x: Tensor, y: Tensor, multiplicity: Tensor | None = None) -> Tensor:
    """Return the Midpoint Mixup loss averaged over all n^2 ordered pairs of points.

    The model ``f`` is evaluated at the midpoints of the pairs, and called as in :func:`cross_entropy`. Differentiable.
    Source: J_MM of Chidambaram et al. 2024, eq. (3.1).

    >>> from mvnb.data import MultiView
    >>> x, y, multiplicity = MultiView(n_classes=3, n_patches=20).sample(8, 0)
    >>> network = lambda x, multiplicity: torch.einsum("nsd,s->nd", x, multiplicity).unflatten(1, (3, 2)).sum(2)
    >>> round(midpoint_mixup(network, x, y, multiplicity).item(), 2)
    0.65
    """
    return mixup_all_pairs(f, x, y, 0.5, multiplicity)


def masked_reconstruction(f: Callable[[Tensor], Tensor], x: Tensor, mask: Tensor) -> Tensor:
    """Return half the squared error of the reconstructions ``f(mask * x)``, summed over all patches and averaged over points.

    ``x`` has shape ``(n, patches, dim)``. ``mask`` ``(n, patches)`` is 1 (or True) for visible patches; masked patches are set
    to zero in the input of ``f``. Differentiable. Raises ``ValueError`` if a shape is wrong or there is no point. Source: Pan,
    Zhou and Yan 2023, Appendix H.

    >>> x, mask = torch.ones(4, 3, 2), torch.tensor([True, True, False]).expand(4, 3)
    >>> masked_reconstruction(lambda seen: seen, x, mask)  # one of three patches is lost
    tensor(1.)
    """
    if x.dim() < 3 or mask.shape != x.shape[:-1] or not len(x):
        expected = "x must have shape (n, patches, dim) with n > 0 and mask (n, patches)"
        raise ValueError(f"{expected}, got {tuple(x.shape)} and {tuple(mask.shape)}")
    return (f(x * mask[..., None]) - x).square().sum() / (2 * len(x))


def nuclear_norm(matrix: Tensor) -> Tensor:
    """Return the nuclear norms ``(...)`` of matrices ``(..., n, k)``, the sums of their singular values.

    Differentiable once, with the gradients ``U V^T``. Value and gradient are computed from the eigenvectors of the smaller Gram
    matrix. For tall matrices, this is several times faster than a singular value decomposition (SVD), and it is correct for
    repeated singular values, where the derivative of an SVD is not. At zero singular values, the subgradient is not unique, and
    this one omits their singular vectors. It scales down those of singular values below the square root of the machine
    precision times the largest, in proportion to the value. Raises ``ValueError`` if ``matrix`` has less than two axes, or no
    row or column. Source: Shi thesis 2024, eq. (6.3); Watson 1992 for the subgradients.

    >>> features = torch.eye(3, 2, requires_grad=True)
    >>> value = nuclear_norm(features)
    >>> value.backward()
    >>> value.item(), features.grad.tolist()
    (2.0, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    """
    if matrix.dim() < 2 or 0 in matrix.shape[-2:]:
        raise ValueError(f"matrix must have shape (..., n, k) with n, k >= 1, got {tuple(matrix.shape)}")
    with torch.no_grad():
        value, slope = nuclear_norm_and_slope(matrix)
    return with_slope(value, matrix, slope)
