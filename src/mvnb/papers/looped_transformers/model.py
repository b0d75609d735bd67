"""Looped attention of chapter 14: the loop as defined, its weights, and its last row alone, also with a softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from mvnb.papers.looped_transformers.theory import linear_attention


def as_prompt(x: Tensor, y: Tensor, q: Tensor, alpha: float) -> Tensor:
    """Return the prompt ``(..., n + 1, d + 1)`` with rows ``(x_i, y_i)`` and ``(q, alpha)``."""
    examples = torch.cat([x, y[..., None]], -1)
    last = torch.cat([q, torch.full_like(q[..., :1], alpha)], -1)
    return torch.cat([examples, last[..., None, :]], -2)


def gradient_weights(n: int, d: int, b: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q = I, P = diag(B, 0) with B = I by default, and the mask, by which the last of n + 1 tokens sees all others."""
    block, mask = torch.eye(d).double() if b is None else b, torch.zeros(n + 1, n + 1).double()
    mask[-1, :-1] = 1
    return torch.eye(d + 1).double(), torch.nn.functional.pad(block, (0, 1, 0, 1)), mask


def loop(z: Tensor, query: Tensor, value: Tensor, mask: Tensor, steps: Tensor) -> Tensor:
    """Return the states ``(T + 1, ..., n + 1, d + 1)``: each loop subtracts a step of ``(..., T)`` times linear attention."""
    states = [z]
    for eta in steps.unbind(-1):
        z = z - eta[..., None, None] * linear_attention(z, query, value, mask)
        states.append(z)
    return torch.stack(states)


def last_row(examples: Tensor, query: Tensor, value: Tensor, steps: Tensor, sharpness: float = 0.0) -> Tensor:
    """Return the vector -q ``(..., d)`` after T loops from q = 0 with alpha = 1. Differentiable.

    The last row alone is computed, since no other row changes: ``examples`` ``(..., n, d + 1)`` have rows ``(x_i, y_i)``;
    ``query`` Q is ``(..., d + 1, d + 1)``, ``value`` ``(..., d + 1, d)`` has the columns of P that are not zero, ``steps``
    are ``(..., T)``. Attention is the softmax of ``sharpness`` times the scores, divided by ``sharpness``; with 0 it is the
    scores divided by n, its limit for tokens of mean 0.
    """
    keys, values = query @ examples.mT, value.mT @ examples.mT  # (..., d + 1, n), (..., d, n)
    if not sharpness:  # scores are linear in q, so a matrix (..., d + 1, d) takes the place of the examples
        keys = keys @ values.mT / examples.shape[-2]
    q = torch.zeros_like(values[..., 0])
    for eta in steps.unbind(-1):
        move = (keys[..., :-1, :] * q[..., None]).sum(-2) + keys[..., -1, :]  # without a softmax
        if sharpness:
            move = (values * (sharpness * move).softmax(-1)[..., None, :]).sum(-1) / sharpness
        q = q - eta[..., None] * move
    return -q
