"""Prompts of labelled examples for in-context linear regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator


class Prompts(NamedTuple):
    """Examples ``x`` ``(n, M, dim)``, labels ``y`` ``(n, M)``, queries ``(n, dim)`` and their noise-free labels ``(n,)``."""

    x: Tensor
    y: Tensor
    query: Tensor
    target: Tensor


@dataclass(frozen=True)
class InContextRegression:
    """Prompts of ``n_examples`` normal tokens with independent coordinates of variances ``spectrum`` ``(dim,)``.

    The task vector is drawn from N(0, I) for every prompt. A covariance with other axes is a rotation of this one, which no
    result depends on. Source: Shi thesis 2024, section 5.4.
    """

    spectrum: tuple[float, ...]
    n_examples: int

    def __post_init__(self):
        if not self.spectrum or min(self.spectrum) < 0 or self.n_examples < 1:
            raise ValueError(f"variances must not be negative and n_examples be 1 or more, got {self.n_examples}")

    def sample(
        self,
        n: int,
        generator: Seed,
        weights: Tensor | None = None,
        noise: float = 0.0,
        flip: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> Prompts:
        """Return ``n`` prompts; of one task ``weights`` ``(dim,)`` if given, with normal noise on the labels and flipped signs.

        Each label, its noise included, changes its sign with probability ``flip``.
        """
        generator = as_generator(generator)
        scale, shape = torch.tensor(self.spectrum, dtype=torch.float64).sqrt().to(dtype), (n, self.n_examples)
        x = torch.randn(*shape, len(scale), generator=generator, dtype=dtype) * scale
        query = torch.randn(n, len(scale), generator=generator, dtype=dtype) * scale
        w = torch.randn(n, len(scale), generator=generator, dtype=dtype) if weights is None else weights.to(dtype).expand(n, -1)
        y = (x @ w[..., None])[..., 0]
        if noise:
            y = y + noise * torch.randn(shape, generator=generator, dtype=dtype)
        if flip:
            y = torch.where(torch.rand(shape, generator=generator) < flip, -y, y)
        return Prompts(x, y, query, (query * w).sum(-1))

    def correlations(self, n: int, generator: Seed) -> tuple[Tensor, Tensor, Tensor]:
        """What attention without cross terms sees of noise-free prompts: ``X^T y / M`` ``(n, dim)``, query and target.

        Drawn directly, at a cost that does not depend on ``n_examples``. With ``u = scale * w`` and G standard normal,
        ``G^T G u = |u| (c e + sqrt(c) t)``, where c is chi-squared with M degrees of freedom, e the direction of u, and t
        standard normal at right angles to it.
        """
        generator = as_generator(generator)
        scale = torch.tensor(self.spectrum, dtype=torch.float64).sqrt().float()
        w, query, t = (torch.randn(n, len(scale), generator=generator) for _ in range(3))
        u = scale * w
        length = u.norm(dim=1, keepdim=True)
        e = u / length
        c = 2 * torch._standard_gamma(torch.full((n, 1), self.n_examples / 2), generator=generator)
        t = t - (t * e).sum(1, keepdim=True) * e
        query = query * scale
        return scale * length * (c * e + c.sqrt() * t) / self.n_examples, query, (query * w).sum(1)
