"""The linearisation of the two-layer network around its start, for stacks of replicas."""

from __future__ import annotations

import torch
from torch import Tensor


def tangent_features(start: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return derivatives of a stack of truncated two-layer networks at its start, without the inputs: gates and activations.

    ``start`` as for the objective and ``x`` ``(R, n, dim)`` to ``a 1[0 < z < 1]`` (the derivative in ``b``; times ``x`` that in
    ``w``) and ``clip(z)`` (that in ``a``), ``(R, n, width)`` each. Differentiable; gates are piecewise constant in ``w`` and
    ``b``.
    """
    z = torch.baddbmm(start["b"][:, None], x, start["w"].mT)
    gate = ((z > 0) & (z < 1)).to(z.dtype) * start["a"][:, None]
    return gate, z.clamp_(0, 1)


def tangent_outputs(change: dict[str, Tensor], x: Tensor, gate: Tensor, hidden: Tensor) -> Tensor:
    """Return what a ``change`` of the parameters adds to first order, ``(R, n)``; see :func:`tangent_features`. Differentiable.

    The network's first-order expansion less its outputs at the start.
    """
    moved = torch.baddbmm(change["b"][:, None], x, change["w"].mT)
    return (moved * gate).sum(-1) + (change["a"][:, None] @ hidden.mT)[:, 0]


def tangent_objective(
    change: dict[str, Tensor], x: Tensor, y: Tensor, gate: Tensor, hidden: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return mean hinge losses ``(R,)`` of the linearised networks (outputs at the start left out), and the gradients.

    The losses are differentiable.
    """
    margin = y * tangent_outputs(change, x, gate, hidden)
    push = -y * (margin < 1) / y.shape[1]
    d_z = push[..., None] * gate
    slope = {"w": d_z.mT @ x, "b": d_z.sum(1), "a": (push[:, None] @ hidden)[:, 0]}
    return (1 - margin).clamp(min=0).mean(1), slope
