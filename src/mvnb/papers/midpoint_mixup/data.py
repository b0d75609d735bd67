"""Two-view data, in which each training point has a spurious companion from a partner class, and data of the stand-in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator
from mvnb.training import pick_own


def class_pairing(n_classes: int, generator: Seed) -> Tensor:
    """Return a random pairing of the classes, shape ``(n_classes,)``.

    ``pairing[pairing[y]] == y`` and ``pairing[y] != y`` for every class y. Raises ``ValueError`` if ``n_classes`` is odd.
    """
    generator = as_generator(generator)
    if n_classes % 2 or n_classes < 2:
        raise ValueError(f"n_classes must be even and at least 2, got {n_classes}")
    order = torch.randperm(n_classes, generator=generator).view(-1, 2)
    pairing = torch.empty(n_classes, dtype=torch.long)
    pairing[order[:, 0]], pairing[order[:, 1]] = order[:, 1], order[:, 0]
    return pairing


def draw_companions(y: Tensor, pairing: Tensor, generator: Seed) -> Tensor:
    """Draw for every point the index ``(n,)`` of a uniformly random point of the class paired with its own.

    Raises ``ValueError`` if a partner class has no points.
    """
    generator = as_generator(generator)
    by_class = y.argsort(stable=True)
    counts = torch.bincount(y, minlength=len(pairing))
    first = counts.cumsum(0) - counts
    partner = pairing[y]
    if (counts[partner] == 0).any():
        raise ValueError("a partner class has no points to draw companions from")
    offset = (torch.rand(len(y), generator=generator, dtype=torch.float64) * counts[partner]).long()
    return by_class[first[partner] + offset]


@dataclass(frozen=True)
class ConcatenatedViews:
    """Inputs ``[g x, (1 - g) e(x)]`` for training and ``[x, 0]`` for testing.

    They are concatenated along the first axis of a point (the channels of an image). ``x`` ``(R, n, ...)`` are the points of a
    stack of R runs, and ``companions`` ``(R, n)`` the index of each point's companion e(x), fixed for the run. With
    ``spurious=False`` companions are replaced by zeros and everything else is unchanged, as a control. Source: Chidambaram et
    al. 2024, section 5.
    """

    x: Tensor
    companions: Tensor
    spurious: bool = True

    def train(self, index: Tensor, weight: Tensor) -> Tensor:
        """Return the training inputs of the points ``index`` ``(R, b)``, with weights g in [0, 1] of the same shape."""
        own, other = pick_own(self.x, index), pick_own(self.x, self.companions.gather(1, index))
        weight = weight.to(own.dtype).view(*index.shape, *[1] * (own.dim() - 2))
        return torch.cat([weight * own, (1 - weight) * self.spurious * other], 2)

    @staticmethod
    def test(x: Tensor) -> Tensor:
        """Return test inputs ``(n, 2 c, ...)``, the points followed by zeros."""
        return torch.cat([x, torch.zeros_like(x)], 1)


class PrototypeMixture:
    """Noisy copies ``x = p + noise * N(0, I/dim)`` of the prototypes p of a class, each equally likely.

    The ``prototypes`` ``(n_classes, per_class, dim)`` are drawn uniformly on the unit sphere.
    """

    def __init__(self, n_classes: int, per_class: int, dim: int, noise: float, generator: Seed):
        generator = as_generator(generator)
        gaussian = torch.randn(n_classes, per_class, dim, generator=generator)
        self.prototypes, self.noise = gaussian / gaussian.norm(dim=-1, keepdim=True), noise

    def sample(self, points_per_class: int, generator: Seed) -> tuple[Tensor, Tensor]:
        """Draw ``(x, y)`` with ``points_per_class`` points of every class, in the order of the classes."""
        generator = as_generator(generator)
        n_classes, per_class, dim = self.prototypes.shape
        y = torch.arange(n_classes).repeat_interleave(points_per_class)
        which = torch.randint(per_class, y.shape, generator=generator)
        noise = torch.randn(len(y), dim, generator=generator) / dim**0.5
        return self.prototypes[y, which] + self.noise * noise, y


def random_coordinates(
    shape: tuple[int, ...], n_features: int, dim: float, scale: float, generator: Seed
) -> tuple[Tensor, Tensor]:
    """Draw weights from ``N(0, scale^2 I)``: coordinates ``(*shape, n_features)`` and the norm ``shape`` of the rest.

    The squared norm of the rest is ``scale^2`` times a chi-square variable with ``dim - n_features`` degrees of freedom, so no
    array of size ``dim`` is needed and ``dim`` may be any float. Both results are float64. Raises ``ValueError`` if
    ``dim < n_features``.
    """
    generator = as_generator(generator)
    if dim < n_features:
        raise ValueError(f"dim must be at least n_features={n_features}, got {dim}")
    coordinates = scale * torch.randn(*shape, n_features, generator=generator, dtype=torch.float64)
    half = torch.full(shape, (float(dim) - n_features) / 2, dtype=torch.float64)
    rest = torch._standard_gamma(half, generator) if dim > n_features else torch.zeros(shape, dtype=torch.float64)
    return coordinates, scale * math.sqrt(2) * rest.sqrt()
