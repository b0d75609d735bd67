"""Seeds and random number generators; functions that draw random numbers accept either."""

from __future__ import annotations

from numbers import Integral

import torch

Seed = int | torch.Generator
"""A seed from 0 to 2^64 - 1, or a generator, which continues from its current state."""


def as_generator(seed: Seed) -> torch.Generator:
    """Return the given generator, or a new CPU generator for a seed.

    Raises ``TypeError`` if ``seed`` is neither an integer nor a generator, and ``ValueError`` if it is out of range.

    >>> torch.rand(2, generator=as_generator(0))
    tensor([0.4963, 0.7682])
    """
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        kind = type(seed)
        raise TypeError(f"generator must be a seed or a torch.Generator, got {kind.__module__}.{kind.__qualname__}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed must lie in 0 to 2^64 - 1, got {seed}")
    return torch.Generator().manual_seed(int(seed))
