"""Activations of the theory papers."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed_relu(x: Tensor, power: int | float, threshold: float) -> Tensor:
    r"""Return a ReLU whose kink is a polynomial of degree ``power``.

    It is 0 below 0, ``x^q / (q t^(q-1))`` up to the threshold ``t``, then ``x - (1 - 1/q) t``. Differentiable.

    ``power`` q >= 1 and ``threshold`` t > 0; q = 1 is the ReLU. Written without branches as
    ``(t/q) clip(x/t, 0, 1)^q + max(x - t, 0)``, so that no power of a negative or large number is ever taken.
    Source: Allen-Zhu & Li 2023; Chidambaram et al. 2024, section 4.
    """
    if power < 1 or threshold <= 0:
        raise ValueError(f"need power >= 1 and threshold > 0, got power={power}, threshold={threshold}")
    if power == 1:
        return torch.relu(x)
    rise = (x / threshold).clamp(0.0, 1.0)
    return (threshold / power) * rise**power + torch.relu(x - threshold)


def smoothed_relu_and_slope(u: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Value of :func:`smoothed_relu` with threshold 1, and its slope, for an integer ``power`` of at least 2.

    ``u`` is in units of the threshold, and so is the value; ``u`` is overwritten. For training loops: nothing is computed
    twice, and powers are repeated squares.
    """
    u = u.clamp_(min=0)
    rise = u.clamp(max=1)
    slope = _integer_power(rise, power - 1)
    return u.sub_(rise).addcmul_(slope, rise, value=1 / power), slope


def _integer_power(x: Tensor, exponent: int) -> Tensor:
    """``x ** exponent`` by repeated squaring: several times faster than ``torch.pow`` on a CPU."""
    result = None
    while exponent:
        if exponent & 1:
            result = x.clone() if result is None else result.mul_(x)
        exponent >>= 1
        if exponent:
            x = x * x
    return result
