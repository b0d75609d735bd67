"""Addition modulo p of k numbers, all of it at once, and splits that respect that the order of the numbers does not matter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator


@dataclass(frozen=True)
class ModularSum:
    """All tuples of ``k`` numbers from 0 to ``p - 1``, labelled by their sum modulo ``p``.

    ``p`` and ``k`` are at least 2, else ``ValueError``. Source: Shi thesis 2024, section 4.3.1.
    """

    p: int
    k: int

    def __post_init__(self):
        if self.p < 2 or self.k < 2:
            raise ValueError(f"p and k must be at least 2, got p={self.p}, k={self.k}")

    @cached_property
    def points(self) -> Tensor:
        """All tuples, ``(p^k, k)``, in lexicographic order."""
        return torch.cartesian_prod(*[torch.arange(self.p)] * self.k)

    @cached_property
    def labels(self) -> Tensor:
        """Their labels, ``(p^k,)``."""
        return self.points.sum(1) % self.p

    @cached_property
    def _multisets(self) -> Tensor:
        """A number for each tuple, ``(p^k,)``, that permuted tuples share; they count from 0."""
        place = self.p ** torch.arange(self.k)
        return torch.unique(self.points.sort(1).values @ place, return_inverse=True)[1]

    def split(self, fraction: float, generator: Seed, by: Literal["tuple", "multiset"] = "tuple") -> Tensor:
        """A random training set, as booleans ``(p^k,)``; the other points are for testing.

        By tuple, ``floor(fraction p^k)`` points are drawn, and most test points have a permutation among them. By multiset,
        that share of the multisets is drawn with all their permutations, so that no test point has one. ``ValueError`` for a
        fraction outside (0, 1), a split that leaves one side empty, or another ``by``.
        """
        generator = as_generator(generator)
        if by not in ("tuple", "multiset"):
            raise ValueError(f"by must be 'tuple' or 'multiset', got {by!r}")
        group = self._multisets if by == "multiset" else torch.arange(len(self.points))
        n_groups = int(group.max()) + 1
        n_train = int(fraction * n_groups)
        if not 0 < n_train < n_groups:
            raise ValueError(f"fraction must leave points on both sides, got {fraction} of {n_groups}")
        drawn = torch.zeros(n_groups, dtype=torch.bool)
        drawn[torch.randperm(n_groups, generator=generator)[:n_train]] = True
        return drawn[group]

    def with_twin(self, train: Tensor) -> Tensor:
        """Which points have a permutation of themselves in the training set ``train`` ``(p^k,)``; the same shape."""
        seen = torch.zeros(int(self._multisets.max()) + 1, dtype=torch.bool)
        seen[self._multisets[train]] = True
        return seen[self._multisets]
