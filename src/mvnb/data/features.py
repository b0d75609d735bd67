"""Dictionaries of orthonormal features."""

from __future__ import annotations

import torch
from torch import Tensor


def orthonormal_features(n_features: int, dim: int, generator: torch.Generator, dtype=torch.float64) -> Tensor:
    """Uniformly random orthonormal features, as rows: shape ``(n_features, dim)``.

    The rows are the Q factor of a Gaussian matrix with the signs of R's diagonal absorbed, which makes them Haar
    distributed. Raises ``ValueError`` when ``dim < n_features``.
    """
    if dim < n_features:
        raise ValueError(f"{n_features} orthonormal features need dim >= {n_features}, got dim={dim}")
    gaussian = torch.randn(dim, n_features, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return (q * r.diagonal().sign()).T.to(dtype).contiguous()
