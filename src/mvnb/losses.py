"""Objectives: plain functions of a model ``f`` (inputs to logits), inputs ``x`` ``(n, ...)`` and labels ``y`` ``(n,)``.

All of them are differentiable by autograd, and none knows about replicas: :func:`mvnb.training.stacked` puts a stack of models
through any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.gradients import with_slope

MixingLaw = Literal["midpoint", "uniform"] | float
"""Law of the mixing weight: always 1/2, uniform on [0, 1], or ``a`` (at least 0.01) for Beta(a, a)."""


def sample_mixing(law: MixingLaw, shape: tuple[int, ...], generator: torch.Generator, dtype=torch.float64) -> Tensor:
    """Return mixing weights of the given shape, in [0, 1]. Raises ``ValueError`` for anything but the three laws.

    Beta(a, a) tends to the point mass at 1/2 as a grows and to a fair coin on {0, 1} as a falls to 0, so "midpoint" is a law
    of its own and never a value of ``a``.
    """
    if law == "midpoint":
        return torch.full(shape, 0.5, dtype=dtype)
    if law == "uniform":
        return torch.rand(shape, generator=generator, dtype=dtype)
    # Below 0.01 both gamma variables underflow, and their ratio with them.
    if isinstance(law, str) or not 0.01 <= law < float("inf"):
        raise ValueError(f"mixing law must be 'midpoint', 'uniform' or a finite a >= 0.01 for Beta(a, a), got {law!r}")
    shape_parameter = torch.full(shape, float(law), dtype=torch.float64)
    first = torch._standard_gamma(shape_parameter, generator)
    second = torch._standard_gamma(shape_parameter, generator)
    return (first / (first + second)).to(dtype)


def cross_entropy(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the empirical risk, J in Chidambaram et al. 2024, eq. (2.1). Differentiable.

    ``y`` may also hold a distribution over the labels for each point, ``(n, n_classes)``.
    """
    return F.cross_entropy(f(x), y)


def _weights(lam: Tensor | float, x: Tensor) -> Tensor:
    return lam.to(x) if torch.is_tensor(lam) else x.new_full((), lam)


def mixup(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, x2: Tensor, y2: Tensor, lam: Tensor) -> Tensor:
    """Return Mixup over the sampled pairs ``(x_i, x2_i)``: inputs and labels mixed with the weight ``lam``, scalar or ``(n,)``.

    Differentiable. Source: Zhang et al. 2018.
    """
    lam = _weights(lam, x).expand(x.shape[0])
    logits = f(torch.lerp(x2, x, lam.view(-1, *[1] * (x.dim() - 1))))
    log_prob = logits.log_softmax(-1)
    pick = log_prob.gather(-1, torch.stack([y, y2], -1))
    return -(lam * pick[:, 0] + (1 - lam) * pick[:, 1]).mean()


def mixup_all_pairs(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, lam: Tensor | float) -> Tensor:
    """Return Mixup averaged over all n^2 ordered pairs, i = j included; ``lam`` is a number or ``(n, n)``.

    Differentiable. J_M of Chidambaram et al. 2024, eq. (2.2), for one draw of the weights.
    """
    n = x.shape[0]
    i, j = torch.meshgrid(torch.arange(n, device=x.device), torch.arange(n, device=x.device), indexing="ij")
    weight = _weights(lam, x).expand(n, n).flatten()
    i, j = i.flatten(), j.flatten()
    return mixup(f, x[i], y[i], x[j], y[j], weight)


def midpoint_mixup(f: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return Midpoint Mixup over all pairs, J_MM of Chidambaram et al. 2024, eq. (3.1). Differentiable."""
    return mixup_all_pairs(f, x, y, 0.5)


def nuclear_norm(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of singular values of matrices ``(..., n, k)``, ``(...)``, and its gradient ``U V^T``, ``(..., n, k)``.

    The first is differentiable, once, by that gradient; the second is a constant. Both come from the eigenvectors of the
    smaller Gram matrix, several times as fast as a singular value decomposition of a tall matrix, and right for repeated
    singular values, where the derivative of that decomposition is not. Singular values below the square root of the
    precision times the largest, where there are many subgradients, contribute only the part that is certain: nothing where
    they are zero. Source: Shi thesis 2024, eq. (6.3); Watson 1992 for the subgradients.

    >>> features = torch.eye(3, 2, requires_grad=True)
    >>> value, slope = nuclear_norm(features)
    >>> value.backward()
    >>> value.item(), torch.equal(features.grad, slope)
    (2.0, True)
    """
    with torch.no_grad():
        tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
        basis = torch.linalg.eigh(tall.mT @ tall)[1]
        moved = tall @ basis  # U times the singular values: their norms are exact where roots of eigenvalues are not
        values = moved.norm(dim=-2)
        floor = torch.finfo(matrix.dtype).eps ** 0.5 * values.amax(-1, keepdim=True) + torch.finfo(matrix.dtype).tiny
        slope = (moved / values.maximum(floor)[..., None, :]) @ basis.mT
        slope = slope if tall is matrix else slope.mT
    return with_slope(values.sum(-1), matrix, slope), slope
