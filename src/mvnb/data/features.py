"""Random orthonormal features, which embed data in an ambient space."""

from __future__ import annotations

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator


def orthonormal_features(n_features: int, dim: int, generator: Seed, dtype=torch.float32) -> Tensor:
    """Draw orthonormal features from the uniform (Haar) distribution, as the rows of a matrix ``(n_features, dim)``.

    They are the Q factor in the QR decomposition of a Gaussian matrix, with signs such that the diagonal of R is positive.
    Raises ``ValueError`` if ``dim < n_features``.

    >>> features = orthonormal_features(2, 5, 0)
    >>> torch.allclose(features @ features.T, torch.eye(2), atol=1e-6)
    True
    """
    generator = as_generator(generator)
    if dim < n_features:
        raise ValueError(f"{n_features} orthonormal features need dim >= {n_features}, got dim={dim}")
    gaussian = torch.randn(dim, n_features, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return (q * r.diagonal().sign()).T.to(dtype).contiguous()
