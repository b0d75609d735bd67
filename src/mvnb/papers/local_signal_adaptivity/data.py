"""One signal patch among many noise patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mvnb.data.multi_view import Points
from mvnb.seeds import Seed, as_generator


@dataclass(frozen=True)
class SignalInNoise:
    """Of ``n_noise + 1`` patches one, at a random place, is ``y w_star``; the others are ``N(0, sigma^2 I)``.

    ``w_star`` is the first axis, ``y`` uniform on -1 and 1. Source: Karp thesis 2024, section 3.3. ``ValueError`` for sizes
    below 1 or a sigma that is not positive and finite.
    """

    n_noise: int
    dim: int
    sigma: float

    def __post_init__(self):
        if self.n_noise < 1 or self.dim < 1 or not 0 < self.sigma < float("inf"):
            raise ValueError(f"n_noise and dim must be at least 1 and sigma be positive and finite, got {self}")

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Return ``n`` points ``(n, n_noise + 1, dim)`` and their labels ``(n,)`` of -1 and 1."""
        generator = as_generator(generator)
        x = torch.randn(n, self.n_noise + 1, self.dim, generator=generator, dtype=dtype).mul_(self.sigma)
        y = 2 * torch.randint(2, (n,), generator=generator).to(dtype) - 1
        position = torch.randint(self.n_noise + 1, (n,), generator=generator)
        rows = torch.arange(n)
        x[rows, position] = 0.0
        x[rows, position, 0] = y
        return Points(x, y)
