"""Activation functions of the theory papers."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed_relu(x: Tensor, power: int | float, threshold: float) -> Tensor:
    """Return the ReLU of ``x`` with its kink smoothed by a polynomial of degree ``power``. Differentiable.

    For ``power`` q and ``threshold`` t, the value is 0 below 0, ``x^q / (q t^(q-1))`` between 0 and t, and ``x - (1 - 1/q) t``
    above t; q = 1 is the ReLU. It is computed without branches as ``(t/q) clip(x/t, 0, 1)^q + max(x - t, 0)``, so that negative
    or large numbers are never raised to a power. Raises ``ValueError`` unless q is at least 1, t is positive and both are
    finite.
    Source: Allen-Zhu & Li 2023; Chidambaram et al. 2024, section 4.

    >>> smoothed_relu(torch.tensor([-1.0, 1.0, 3.0]), power=2, threshold=2.0)
    tensor([0.0000, 0.2500, 2.0000])
    """
    if not (1 <= power < torch.inf and 0 < threshold < torch.inf):
        expected = "power must be at least 1 and threshold positive, both finite"
        raise ValueError(f"{expected}, got power={power}, threshold={threshold}")
    if power == 1:
        return torch.relu(x)
    rise = (x / threshold).clamp(0.0, 1.0)
    return (threshold / power) * rise**power + torch.relu(x - threshold)


def smoothed_relu_and_slope(u: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Return the value and the slope of :func:`smoothed_relu` with threshold 1, for an integer ``power`` of at least 2.

    The argument ``u``, which is overwritten, and the value are in units of the threshold. For speed in training loops, value
    and slope share their intermediate results, and powers are computed by repeated squaring.
    """
    u = u.clamp_(min=0)
    rise = u.clamp(max=1)
    slope = _integer_power(rise, power - 1)
    return u.sub_(rise).addcmul_(slope, rise, value=1 / power), slope


def _integer_power(x: Tensor, exponent: int) -> Tensor:
    """Return ``x ** exponent`` by repeated squaring, several times faster than ``torch.pow`` on a CPU."""
    result = None
    while exponent:
        if exponent & 1:
            result = x.clone() if result is None else result.mul_(x)
        exponent >>= 1
        if exponent:
            x = x * x
    return result
