"""Linear self-attention on prompts of labelled examples, with hand-derived gradients for a stack of replicas."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def linear_attention(tokens: Tensor, key_query: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``(mask o (Z Q Z^T)) Z P`` for tokens Z in rows ``(..., n, width)``, which a residual layer adds to them.

    ``key_query`` Q and ``value`` P ``(width, width)``; ``mask`` ``(n, n)``, entry [i, j] the weight with which token i may look
    at token j, everything by default. A normaliser is a factor of the mask or of P. Without a mask and with tokens in
    columns it is the layer of :class:`LinearSelfAttention`, ``Q = W^KQ^T`` and ``P = W^PV^T / N``. Source: Shi thesis 2024,
    Def. 8.6 and eq. (5.2). Differentiable.
    """
    scores = tokens @ key_query @ tokens.mT  # (..., n, n)
    return (scores if mask is None else mask * scores) @ tokens @ value


def prompt_moments(x: Tensor, y: Tensor, query: Tensor) -> Tensor:
    """Return second moments ``E E^T / N`` ``(..., dim + 1, dim + 1)`` of prompts: all that linear attention sees of them.

    ``x`` ``(..., N, dim)`` and ``y`` ``(..., N)`` are the examples; the last column of the prompt E holds ``query``
    ``(..., dim)`` with a 0 in place of its label. Source: Zhang, Frei and Bartlett 2024; Shi thesis 2024, section 5.2.
    Differentiable.
    """
    examples = torch.cat([x, y[..., None]], -1)
    last = nn.functional.pad(query, (0, 1))
    return (examples.mT @ examples + last[..., :, None] * last[..., None, :]) / x.shape[-2]


class LinearSelfAttention(nn.Module):
    r"""The prediction for the query of one layer of linear self-attention: ``v^T (E E^T / N) W x_q``.

    ``v`` ``(dim + 1,)`` is the last row of the projection-value matrix and ``W`` ``(dim + 1, dim)`` the first columns of the
    key-query matrix; the other entries never reach the prediction. Source: Shi thesis 2024, eq. (5.2).
    """

    def __init__(self, v: Tensor, w: Tensor):
        super().__init__()
        self.v, self.w = nn.Parameter(v), nn.Parameter(w)

    def forward(self, moments: Tensor, query: Tensor) -> Tensor:
        """Predictions ``(...,)`` from moments ``(..., dim + 1, dim + 1)`` and queries ``(..., dim)``."""
        return ((moments @ self.v) * (query @ self.w.mT)).sum(-1)
