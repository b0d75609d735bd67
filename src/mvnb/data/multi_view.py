"""Multi-view data: every class owns several features, each of which identifies it.

Samples are drawn in *feature coordinates*: axis ``2y + l`` is the feature ``v_{y,l}`` (classes and views counted from 0).
:func:`embed` maps them into an ambient space with any orthonormal dictionary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Patches(NamedTuple):
    """Labelled points made of patches.

    ``x`` has shape ``(..., n, slots, dim)``, ``y`` shape ``(..., n)``; patch ``s`` counts ``multiplicity[..., s]`` times in
    every sum over patches, which is how thousands of equal noise patches cost as much as one.
    """

    x: Tensor
    y: Tensor
    multiplicity: Tensor

    def split(self, n: int) -> list[Patches]:
        """The sample in parts of ``n`` points."""
        return [self._replace(x=x, y=y) for x, y in zip(self.x.split(n, -3), self.y.split(n, -1))]


class Points(NamedTuple):
    """Labelled vectors: ``x`` of shape ``(..., n, dim)`` and ``y`` of shape ``(..., n)``."""

    x: Tensor
    y: Tensor


def embed(sample: Patches | Points, features: Tensor):
    """The same sample in the ambient space of ``features`` (rows, shape ``(n_features, dim)``)."""
    return sample._replace(x=sample.x @ features)


def draw_labels(n: int, n_classes: int, generator: torch.Generator, balanced: bool, given: Tensor | None = None) -> Tensor:
    """Return ``n`` class labels: uniform and independent, or as even as ``n`` allows, in random order, unless they are given.

    ``ValueError`` when ``given`` has another shape than ``(n,)``.
    """
    if given is not None:
        if given.shape != (n,):
            raise ValueError(f"y must have shape ({n},), got {tuple(given.shape)}")
        return given
    if not balanced:
        return torch.randint(n_classes, (n,), generator=generator)
    return (torch.arange(n) % n_classes)[torch.randperm(n, generator=generator)]


def place(x: Tensor, axes: Tensor, coefficients: Tensor, position: Tensor) -> Tensor:
    """Put features on patches, in place: patch ``position[i, j]`` of point i becomes ``coefficients[i, j]`` times a feature.

    ``x`` ``(n, patches, dim)`` in feature coordinates; ``axes`` ``(n, c)`` names the features, -1 for a place left as it is;
    ``position`` ``(n, c)`` has distinct entries in each row (:func:`random_positions`). Returns which feature each patch
    holds, ``(n, patches)``, -1 for none.
    """
    row, position = (axes >= 0).nonzero()[:, 0], position[axes >= 0]
    x[row, position] = 0.0
    x[row, position, axes[axes >= 0]] = coefficients[axes >= 0].to(x.dtype)
    holds = torch.full(x.shape[:2], -1, dtype=torch.long)
    holds[row, position] = axes[axes >= 0]
    return holds


def random_positions(n: int, slots: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` distinct positions among ``slots``, uniformly at random for each of ``n`` points: ``(n, count)``."""
    if count > slots:
        raise ValueError(f"{count} patches do not fit on {slots} positions")
    return torch.rand(n, slots, generator=generator).argsort(1)[:, :count]


@dataclass(frozen=True)
class SimpleMultiView:
    """Two mirrored views in a vector: ``x = b v_{y,1} + (1 - b) v_{y,2}`` with ``b`` uniform.

    Source: Chidambaram et al. 2024, Def. 3.1, with the smallest coefficient 0.1 and the largest 0.9.
    """

    n_classes: int
    balanced: bool = False

    def __post_init__(self):
        if self.n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {self.n_classes}")

    def sample(self, n: int, generator: torch.Generator, dtype=torch.float64) -> Points:
        """``n`` points in feature coordinates: ``x`` of shape ``(n, 2 n_classes)``."""
        y = draw_labels(n, self.n_classes, generator, self.balanced)
        beta = 0.1 + 0.8 * torch.rand(n, generator=generator, dtype=torch.float64)
        x = torch.zeros(n, 2 * self.n_classes, dtype=torch.float64)
        x.scatter_(1, torch.stack([2 * y, 2 * y + 1], 1), torch.stack([beta, 1 - beta], 1))
        return Points(x.to(dtype), y)


@dataclass(frozen=True)
class MultiView:
    r"""Multi-view patches: mirrored signal patches among patches of feature noise.

    Source: Chidambaram et al. 2024, Def. 4.1. A point of class ``y`` has ``signal_patches`` patches
    ``b v_{y,1}``, as many partners ``(coefficient_sum - b) v_{y,2}``, and every other patch is feature noise
    ``sum_j sum_l g_{j,l} v_{s_j,l}`` over ``noise_classes`` other classes. All noise patches of a point are equal, so that
    all but those in the slots are stored once, with a multiplicity.

    Parameters
    ----------
    n_classes
        Number of classes, k.
    n_patches
        Number of patches of a point, P.
    signal_patches
        Patches of each view, C_P.
    coefficient_sum
        What mirrored coefficients add up to, delta_2.
    low
        Smallest signal coefficient, delta_1; the largest is ``coefficient_sum - low``; uniform in between.
    noise_classes
        Number Q of other classes that feature noise is made of.
    noise_low, noise_high
        Range of the noise coefficients, delta_3 and delta_4; uniform in between.
    slots
        The signal patches of each point fall on random distinct positions among the first so many. ``None``: view 1 is on the
        first ``signal_patches`` positions of every point, view 2 on the next.
    balanced
        Equal class counts instead of independent uniform labels.
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

    def sample(self, n: int, generator: torch.Generator, y: Tensor | None = None, dtype=torch.float64) -> Patches:
        """``n`` points in feature coordinates; labels are drawn unless ``y`` (shape ``(n,)``) gives them."""
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
