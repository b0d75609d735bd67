"""Computation on stacks of replicas in parts that are small enough for the cache of a CPU core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch.utils._pytree import tree_map

CACHED = 1 << 18
"""Number of elements per part, which take about 1 MB in float32."""


def in_parts(function: Callable[..., Any], stack: Sequence, size: int) -> Any:
    """Return ``function(*stack)``, computed for ``size`` replicas, or points, at a time.

    ``stack`` contains the arguments of ``function``. Tensors with at least one axis are split along the first axis, which
    numbers the replicas; other arguments are passed on unchanged. ``function`` must treat replicas independently and return
    tensors whose first axis numbers the replicas, or tuples or dictionaries of such tensors. Raises ``ValueError`` if ``size``
    is less than 1 or the first axes differ in length.

    >>> total = lambda x, scale: {"sum": scale * x.sum(1)}
    >>> in_parts(total, (torch.ones(3, 4), 2.0), size=2)
    {'sum': tensor([8., 8., 8.])}
    """
    cut = [torch.is_tensor(one) and one.dim() > 0 for one in stack]
    rows = sorted({len(one) for one, has_rows in zip(stack, cut) if has_rows})
    if size < 1 or len(rows) != 1:
        raise ValueError(f"expected size of at least 1 and first axes of equal length, got {size} and lengths {rows}")
    if size >= rows[0]:
        return function(*stack)
    parts = zip(*(one.split(size) if has_rows else repeat(one) for one, has_rows in zip(stack, cut)))
    return tree_map(lambda *rows: torch.cat(rows), *[function(*part) for part in parts])
