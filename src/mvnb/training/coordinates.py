"""Feature coordinates: weights as their inner products with the features, exact at any ambient dimension.

When every input lies in the span of orthonormal features, so does every gradient in the weights: the part of a weight outside
the span never moves and never acts. A run in coordinates is the dense run, with only the norm of the untouched rest to
remember how large the space around it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def random_coordinates(
    shape: tuple[int, ...], n_features: int, dim: float, scale: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Coordinates ``(*shape, n_features)`` and norm of the rest ``shape`` of weights drawn from ``N(0, scale^2 I_dim)``.

    Nothing of size ``dim`` is made, so ``dim`` may be as large as a float goes: the rest's squared norm is
    ``scale^2`` times a chi-square variable with ``dim - n_features`` degrees of freedom. Float64. ``ValueError`` when
    ``dim < n_features``.
    """
    if dim < n_features:
        raise ValueError(f"dim must be at least n_features={n_features}, got {dim}")
    coordinates = scale * torch.randn(*shape, n_features, generator=generator, dtype=torch.float64)
    half = torch.full(shape, (float(dim) - n_features) / 2, dtype=torch.float64)
    rest = torch._standard_gamma(half, generator) if dim > n_features else torch.zeros(shape, dtype=torch.float64)
    return coordinates, scale * math.sqrt(2) * rest.sqrt()
