"""Prompts of chapter 14: normal tokens, and tokens whose Gram matrix has a given condition number."""

from __future__ import annotations

import torch
from torch import Tensor


def prompts(n: int, d: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return standard normal tokens ``(count, n, d)`` and tasks theta* ``(count, d)``, in float64 (Definition 8.3)."""
    x = torch.randn(count, n, d, generator=generator, dtype=torch.float64)
    theta = torch.randn(count, d, generator=generator, dtype=torch.float64)
    return x, theta / theta.norm(dim=1, keepdim=True)


def conditioned_prompts(n: int, d: int, kappa: float, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return tokens ``(count, n, d)`` of mean 0 whose Gram matrix has this condition number, and tasks ``(count, d)``.

    ``X^T X / n`` has the eigenvalues 1 and 1 / kappa, and others log-uniform between them, in random directions. ``n`` exceeds
    ``d``, ``d`` is 2 or more.
    """
    tokens, theta = prompts(n, d, count, generator)
    basis = torch.linalg.qr(tokens - tokens.mean(1, keepdim=True))[0]
    power = torch.rand(count, 1, d, generator=generator, dtype=torch.float64)
    power[..., 0], power[..., 1] = 0, 1
    turn, upper = torch.linalg.qr(torch.randn(count, d, d, generator=generator, dtype=torch.float64))
    turn = turn * upper.diagonal(dim1=1, dim2=2).sign()[:, None]  # uniform on the orthogonal group
    return n**0.5 * basis * kappa ** (-power / 2) @ turn.mT, theta


def labelled(x: Tensor, theta: Tensor) -> Tensor:
    """Return examples ``(..., n, d + 1)`` with rows ``(x_i, <x_i, theta>)`` for tokens ``x`` ``(..., n, d)``."""
    return torch.cat([x, x @ theta[..., None]], -1)
