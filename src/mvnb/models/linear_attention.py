"""Linear self-attention on prompts of labelled examples."""

from __future__ import annotations

from torch import Tensor


def linear_attention(tokens: Tensor, key_query: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``(mask o (Z Q Z^T)) Z P`` for tokens Z in rows ``(..., n, width)``, which a residual layer adds to them.

    ``key_query`` Q and ``value`` P ``(width, width)``; ``mask`` ``(n, n)``, entry [i, j] the weight with which token i may look
    at token j, everything by default. A normaliser is a factor of the mask or of P. Without a mask and with tokens in
    columns it is the layer of Shi thesis 2024, eq. (5.2), with ``Q = W^KQ^T`` and ``P = W^PV^T / N``. Source: Def. 8.6 there.
    Differentiable.
    """
    scores = tokens @ key_query @ tokens.mT  # (..., n, n)
    return (scores if mask is None else mask * scores) @ tokens @ value
