"""Linear self-attention on prompts of labelled examples."""

from __future__ import annotations

from torch import Tensor


def linear_attention(tokens: Tensor, key_query: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``(mask o (Z Q Z^T)) Z P``, the update that linear attention adds to the tokens Z. Differentiable.

    ``tokens`` Z has shape ``(..., n, width)``; ``key_query`` Q and ``value`` P have shape ``(width, width)``. Entry [i, j] of
    ``mask`` ``(n, n)`` is the weight with which token i attends to token j, 1 by default. Scale the mask or P to normalise the
    sum over tokens. Without a mask, this is the transpose of the layer in eq. (5.2), whose tokens are columns, with
    ``Q = (W^KQ)^T`` and ``P = (W^PV)^T / N``. Source: Shi thesis 2024, Def. 8.6.

    >>> import torch
    >>> linear_attention(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.eye(2), torch.eye(2))
    tensor([[2., 1.],
            [3., 2.]])
    """
    scores = tokens @ key_query @ tokens.mT  # (..., n, n)
    return (scores if mask is None else mask * scores) @ tokens @ value
