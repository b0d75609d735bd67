"""Multi-view data, in which every class has several features and each of them identifies it.

Samples are drawn in *feature coordinates*: axis ``2y + l`` is the feature ``v_{y,l}``, with classes and views counted from 0.
:func:`embed` maps them into an ambient space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator


class Patches(NamedTuple):
    """Labelled points made of patches, with equal patches stored once.

    ``x`` has shape ``(..., n, slots, dim)`` and ``y`` shape ``(..., n)``. Patch ``s`` counts ``multiplicity[..., s]`` times in
    every sum over patches, so that thousands of equal noise patches cost as much as one. For a network without multiplicities,
    restore all patches by ``x.repeat_interleave(multiplicity.long(), -2)``.
    """

    x: Tensor
    y: Tensor
    multiplicity: Tensor

    def split(self, n: int) -> list[Patches]:
        """Split the sample into parts of ``n`` points."""
        return [self._replace(x=x, y=y) for x, y in zip(self.x.split(n, -3), self.y.split(n, -1))]


class Points(NamedTuple):
    """Labelled vectors ``x`` ``(..., n, dim)`` with labels ``y`` ``(..., n)``."""

    x: Tensor
    y: Tensor


def embed(sample: Patches | Points, features: Tensor):
    """Map a sample from feature coordinates to the ambient space, with ``features`` as rows ``(n_features, dim)``.

    >>> sample = SimpleMultiView(n_classes=2).sample(8, 0)
    >>> embed(sample, torch.randn(4, 100)).x.shape
    torch.Size([8, 100])
    """
    return sample._replace(x=sample.x @ features)


def draw_labels(n: int, n_classes: int, generator: torch.Generator, balanced: bool, given: Tensor | None = None) -> Tensor:
    """Return the ``given`` class labels, or draw ``n``: independent and uniform, or with counts as equal as possible.

    Raises ``ValueError`` if ``given`` does not have shape ``(n,)``.
    """
    if given is not None:
        if given.shape != (n,):
            raise ValueError(f"y must have shape ({n},), got {tuple(given.shape)}")
        return given
    if not balanced:
        return torch.randint(n_classes, (n,), generator=generator)
    return (torch.arange(n) % n_classes)[torch.randperm(n, generator=generator)]


def place(x: Tensor, axes: Tensor, coefficients: Tensor, position: Tensor) -> Tensor:
    """Set patch ``position[i, j]`` of point i to ``coefficients[i, j]`` times a feature, in place.

    ``x`` ``(n, patches, dim)`` is in feature coordinates. ``axes`` ``(n, c)`` names the features; -1 leaves the patch as it is.
    ``position`` ``(n, c)`` has distinct entries in each row (:func:`random_positions`). Returns the feature on each patch,
    ``(n, patches)``, with -1 for patches that were not set.
    """
    row, position = (axes >= 0).nonzero()[:, 0], position[axes >= 0]
    x[row, position] = 0.0
    x[row, position, axes[axes >= 0]] = coefficients[axes >= 0].to(x.dtype)
    holds = torch.full(x.shape[:2], -1, dtype=torch.long)
    holds[row, position] = axes[axes >= 0]
    return holds


def random_positions(n: int, slots: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` distinct positions among ``slots`` for each of ``n`` points, uniformly at random: ``(n, count)``."""
    if count > slots:
        raise ValueError(f"slots must be at least {count}, got {slots}")
    return torch.rand(n, slots, generator=generator).argsort(1)[:, :count]


@dataclass(frozen=True)
class SimpleMultiView:
    """Vectors with two mirrored views, ``x = b v_{y,1} + (1 - b) v_{y,2}`` with ``b`` uniform on [0.1, 0.9].

    Source: Chidambaram et al. 2024, Def. 3.1.

    >>> x, y = SimpleMultiView(n_classes=3).sample(100, 0)
    >>> x.shape, torch.allclose(x.sum(1), torch.ones(100))
    (torch.Size([100, 6]), True)
    """

    n_classes: int
    balanced: bool = False

    def __post_init__(self):
        if self.n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {self.n_classes}")

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Draw ``n`` points in feature coordinates; ``x`` has shape ``(n, 2 n_classes)``."""
        generator = as_generator(generator)
        y = draw_labels(n, self.n_classes, generator, self.balanced)
        beta = 0.1 + 0.8 * torch.rand(n, generator=generator, dtype=torch.float64)
        x = torch.zeros(n, 2 * self.n_classes, dtype=torch.float64)
        x.scatter_(1, torch.stack([2 * y, 2 * y + 1], 1), torch.stack([beta, 1 - beta], 1))
        return Points(x.to(dtype), y)


@dataclass(frozen=True)
class MultiView:
    r"""Points with two views: mirrored signal patches among patches of feature noise.

    A point of class ``y`` has ``signal_patches`` patches ``b v_{y,1}``, as many partners ``(coefficient_sum - b) v_{y,2}``, and
    every other patch is feature noise ``sum_j sum_l g_{j,l} v_{s_j,l}`` over ``noise_classes`` other classes. All noise
    patches of a point are equal; those outside the slots are stored once, with a multiplicity (:class:`Patches`).
    Source: Chidambaram et al. 2024, Def. 4.1.

    Parameters
    ----------
    n_classes
        Number of classes, k.
    n_patches
        Number of patches of a point, P.
    signal_patches
        Patches of each view, C_P.
    coefficient_sum
        Sum of two mirrored coefficients, delta_2.
    low
        Smallest signal coefficient, delta_1. Coefficients are uniform up to the largest, ``coefficient_sum - low``.
    noise_classes
        Number of other classes in the feature noise, Q.
    noise_low, noise_high
        Range of the noise coefficients, which are uniform: delta_3 and delta_4.
    slots
        The signal patches fall on distinct random positions among the first ``slots``. With ``None``, view 1 is on the first
        ``signal_patches`` positions of every point and view 2 on the next.
    balanced
        Whether all classes have the same number of points. By default labels are independent and uniform.

    Examples
    --------
    >>> x, y, multiplicity = MultiView(n_classes=4, n_patches=100).sample(32, 0)
    >>> x.shape, multiplicity
    (torch.Size([32, 3, 8]), tensor([ 1.,  1., 98.]))
    """

    n_classes: int
    n_patches: int
    signal_patches: int = 1
    coefficient_sum: float = 2.0
    low: float = 0.6
    noise_classes: int = 1
    noise_low: float = 0.0
    noise_high: float = 0.0
    slots: int | None = None
    balanced: bool = False

    def __post_init__(self):
        signal = 2 * self.signal_patches
        if self.n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {self.n_classes}")
        if self.signal_patches < 1 or self.n_patches < signal:
            raise ValueError(f"need 1 <= signal_patches <= n_patches / 2, got {self.signal_patches} of {self.n_patches}")
        if not 0 < self.low <= self.coefficient_sum / 2:
            raise ValueError(f"low must lie in (0, coefficient_sum / 2], got {self.low}")
        if not 1 <= self.noise_classes < self.n_classes:
            raise ValueError(f"noise_classes must lie in [1, n_classes - 1], got {self.noise_classes}")
        if not 0 <= self.noise_low <= self.noise_high:
            raise ValueError(f"need 0 <= noise_low <= noise_high, got {self.noise_low}, {self.noise_high}")
        if self.slots is not None and not signal <= self.slots <= self.n_patches:
            raise ValueError(f"slots must lie in [{signal}, {self.n_patches}], got {self.slots}")

    @property
    def dim(self) -> int:
        """Number of feature coordinates, 2 n_classes."""
        return 2 * self.n_classes

    def sample(self, n: int, generator: Seed, y: Tensor | None = None, dtype=torch.float32) -> Patches:
        """Draw ``n`` points in feature coordinates, with random labels or the given ``y`` of shape ``(n,)``."""
        generator = as_generator(generator)
        y = draw_labels(n, self.n_classes, generator, self.balanced, y)
        stored = min((self.slots or 2 * self.signal_patches) + 1, self.n_patches)
        multiplicity = torch.ones(stored, dtype=dtype)
        multiplicity[-1] = self.n_patches - stored + 1
        x = self._noise(n, y, generator)[:, None].repeat(1, stored, 1)
        self._place_signal(x, y, generator)
        return Patches(x.to(dtype), y, multiplicity)

    def _noise(self, n: int, y: Tensor, generator: torch.Generator) -> Tensor:
        # The first Q of a random order of the other classes; skipping y keeps the order uniform.
        order = torch.rand(n, self.n_classes - 1, generator=generator).argsort(1)[:, : self.noise_classes]
        others = order + (order >= y[:, None])  # (n, Q)
        axes = torch.stack([2 * others, 2 * others + 1], -1)  # (n, Q, view)
        uniform = torch.rand(axes.shape, generator=generator, dtype=torch.float64)
        gamma = self.noise_low + (self.noise_high - self.noise_low) * uniform
        noise = torch.zeros(n, self.dim, dtype=torch.float64)
        return noise.scatter_(1, axes.flatten(1), gamma.flatten(1))

    def _place_signal(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        n, count = len(y), self.signal_patches
        uniform = torch.rand(n, count, generator=generator, dtype=torch.float64)
        beta = self.low + (self.coefficient_sum - 2 * self.low) * uniform
        if self.slots is None:
            position = torch.arange(2 * count).expand(n, -1)
        else:
            position = random_positions(n, self.slots, 2 * count, generator)
        coefficient = torch.cat([beta, self.coefficient_sum - beta], 1)  # (n, 2 C_P)
        axis = torch.stack([2 * y, 2 * y + 1], 1).repeat_interleave(count, 1)
        place(x, axis, coefficient, position)
