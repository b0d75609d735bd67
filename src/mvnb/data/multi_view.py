"""Multi-view data, in which every class has two features, either of which identifies it.

Samples are drawn in *feature coordinates*: axes ``2y`` and ``2y + 1`` correspond to the features ``v_{y,1}`` and ``v_{y,2}``
of class ``y``, with classes counted from 0. :func:`embed` maps samples to an ambient space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb._checks import require_numbers, require_within
from mvnb.seeds import Seed, as_generator


class Patches(NamedTuple):
    """Labelled points made of patches, with equal patches stored once.

    ``x`` has shape ``(..., n, slots, dim)`` and ``y`` has shape ``(..., n)``. The patch in slot ``s`` counts
    ``multiplicity[..., s]`` times in every sum over patches, so that thousands of equal noise patches cost as much as one. For
    a network that does not accept multiplicities, restore all patches with ``x.repeat_interleave(multiplicity.long(), -2)``.
    """

    x: Tensor
    y: Tensor
    multiplicity: Tensor

    def split(self, n: int) -> list[Patches]:
        """Return the sample in parts of ``n`` points; the last may be smaller."""
        return [self._replace(x=x, y=y) for x, y in zip(self.x.split(n, -3), self.y.split(n, -1))]


class Points(NamedTuple):
    """Labelled vectors ``x`` ``(..., n, dim)`` with labels ``y`` ``(..., n)``."""

    x: Tensor
    y: Tensor


def embed(sample: Patches | Points, features: Tensor):
    """Map a sample from feature coordinates to an ambient space, given the features as rows ``(n_features, dim)``.

    >>> sample = SimpleMultiView(n_classes=2).sample(8, 0)
    >>> embed(sample, torch.randn(4, 100)).x.shape
    torch.Size([8, 100])
    """
    return sample._replace(x=sample.x @ features)


def draw_labels(n: int, n_classes: int, generator: torch.Generator, balanced: bool, given: Tensor | None = None) -> Tensor:
    """Return the ``given`` class labels, or draw ``n`` labels if ``given`` is None.

    Labels are independent and uniform, or in random order with class counts as equal as possible if ``balanced`` is true.
    Raises ``TypeError`` if ``given`` is not a tensor of integers, and ``ValueError`` if it has another shape than ``(n,)`` or
    holds a label out of range. The result has the type int64.
    """
    if given is not None:
        if not torch.is_tensor(given) or given.is_floating_point() or given.dtype == torch.bool:
            kind = given.dtype if torch.is_tensor(given) else type(given).__name__
            raise TypeError(f"y must be a tensor of class indices (torch.int64), got {kind}")
        if given.shape != (n,):
            raise ValueError(f"y must have shape ({n},), got {tuple(given.shape)}")
        given = given.long()
        require_within("y", given, 0, n_classes - 1)
        return given
    if not balanced:
        return torch.randint(n_classes, (n,), generator=generator)
    return (torch.arange(n) % n_classes)[torch.randperm(n, generator=generator)]


def place(x: Tensor, axes: Tensor, coefficients: Tensor, position: Tensor) -> Tensor:
    """Set patch ``position[i, j]`` of point i to ``coefficients[i, j]`` times the feature ``axes[i, j]``, in place.

    ``x`` ``(n, patches, dim)`` is in feature coordinates; ``axes``, ``coefficients`` and ``position`` have shape ``(n, c)``. A
    feature of -1 leaves the patch unchanged. The positions in a row must be distinct. Returns the index of the feature on each
    patch, ``(n, patches)``, with -1 for patches that were not set.
    """
    row, position = (axes >= 0).nonzero()[:, 0], position[axes >= 0]
    x[row, position] = 0.0
    x[row, position, axes[axes >= 0]] = coefficients[axes >= 0].to(x.dtype)
    holds = torch.full(x.shape[:2], -1, dtype=torch.long)
    holds[row, position] = axes[axes >= 0]
    return holds


def random_positions(n: int, slots: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` distinct positions below ``slots`` uniformly at random for each of ``n`` points, ``(n, count)``.

    Raises ``ValueError`` if ``count`` exceeds ``slots``.
    """
    if count > slots:
        raise ValueError(f"slots must be at least {count}, got {slots}")
    return torch.rand(n, slots, generator=generator).argsort(1)[:, :count]


@dataclass(frozen=True)
class SimpleMultiView:
    """Vectors with two views, ``x = b v_{y,1} + (1 - b) v_{y,2}`` with ``b`` uniform on [0.1, 0.9].

    The labels are independent and uniform on ``n_classes`` classes. If ``balanced`` is true, the classes have the same number
    of points, up to one. Raises ``ValueError`` if ``n_classes`` is less than 2. Source: Chidambaram et al. 2024, Def. 3.1.

    >>> x, y = SimpleMultiView(n_classes=3).sample(100, 0)
    >>> x.shape, torch.allclose(x.sum(1), torch.ones(100))
    (torch.Size([100, 6]), True)
    """

    n_classes: int
    balanced: bool = False

    def __post_init__(self):
        require_numbers(self)
        if self.n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {self.n_classes}")

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Draw ``n`` points ``x`` ``(n, 2 n_classes)`` of type ``dtype`` in feature coordinates, with labels ``y`` ``(n,)``."""
        generator = as_generator(generator)
        y = draw_labels(n, self.n_classes, generator, self.balanced)
        beta = 0.1 + 0.8 * torch.rand(n, generator=generator, dtype=torch.float64)
        x = torch.zeros(n, 2 * self.n_classes, dtype=torch.float64)
        x.scatter_(1, torch.stack([2 * y, 2 * y + 1], 1), torch.stack([beta, 1 - beta], 1))
        return Points(x.to(dtype), y)


@dataclass(frozen=True)
class MultiView:
    r"""Points made of patches, of which some show the two features of the class and the others are feature noise.

    A point of class ``y`` has ``signal_patches`` patches ``b v_{y,1}`` and, for each of them, a partner
    ``(coefficient_sum - b) v_{y,2}``. Every other patch is feature noise ``sum_j sum_l g_{j,l} v_{s_j,l}``, a sum over
    ``noise_classes`` random other classes ``s_j``. All noise patches of a point are equal; those outside the slots are stored
    once, with a multiplicity (see :class:`Patches`). Raises ``ValueError`` if a parameter is out of range.
    Source: Chidambaram et al. 2024, Def. 4.1.

    Parameters
    ----------
    n_classes
        Number of classes, k.
    n_patches
        Number of patches of a point, P.
    signal_patches
        Number of patches that show each view, C_P.
    coefficient_sum
        Sum of the coefficients of a signal patch and its partner, delta_2.
    low
        Smallest signal coefficient, delta_1. Coefficients are uniform between ``low`` and ``coefficient_sum - low``.
    noise_classes
        Number of other classes in the feature noise, Q.
    noise_low, noise_high
        Bounds of the noise coefficients ``g_{j,l}``, which are uniform between them, delta_3 and delta_4.
    slots
        Number of leading positions among which the signal patches are placed at random. If None, view 1 occupies the first
        ``signal_patches`` positions of every point and view 2 the next.
    balanced
        Whether all classes have the same number of points, up to one. By default, labels are independent and uniform.

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
        require_numbers(self)
        signal = 2 * self.signal_patches
        if self.n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {self.n_classes}")
        if self.signal_patches < 1 or self.n_patches < signal:
            received = f"signal_patches={self.signal_patches}, n_patches={self.n_patches}"
            raise ValueError(f"signal_patches must lie in [1, n_patches / 2], got {received}")
        if not 0 < self.low <= self.coefficient_sum / 2:
            raise ValueError(f"low must lie in (0, {self.coefficient_sum / 2}], half of coefficient_sum, got {self.low}")
        if not 1 <= self.noise_classes < self.n_classes:
            raise ValueError(f"noise_classes must lie in [1, {self.n_classes - 1}], below n_classes, got {self.noise_classes}")
        if not 0 <= self.noise_low <= self.noise_high:
            received = f"noise_low={self.noise_low}, noise_high={self.noise_high}"
            raise ValueError(f"noise_low must be non-negative and at most noise_high, got {received}")
        if self.slots is not None and not signal <= self.slots <= self.n_patches:
            raise ValueError(f"slots must lie in [{signal}, {self.n_patches}], got {self.slots}")

    @property
    def dim(self) -> int:
        """Number of feature coordinates, ``2 n_classes``."""
        return 2 * self.n_classes

    def sample(self, n: int, generator: Seed, y: Tensor | None = None, dtype=torch.float32) -> Patches:
        """Draw ``n`` points of type ``dtype`` in feature coordinates, with random labels or the given labels ``y`` ``(n,)``."""
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
