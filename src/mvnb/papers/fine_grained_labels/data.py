"""Hierarchical multi-view data: classes within superclasses, with a feature for each of the two levels.

Samples are drawn in *feature coordinates*: axes 0 and 1 are the common features of the two superclasses, axis ``2 + c`` is the
fine feature of subclass ``c`` (superclass ``c // k``), then come background features, and the remaining axes hold noise alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.data.multi_view import place, random_positions
from mvnb.seeds import Seed, as_generator

NOISE, COMMON, FINE, DISTRACTOR, STRONG_NOISE, BACKGROUND = range(6)
"""Contents of a patch, as recorded in the field ``kind`` of a sample."""


class HierarchicalPatches(NamedTuple):
    """Points of hierarchical multi-view data.

    ``x`` ``(..., n, patches, dim)``; ``subclass`` ``(..., n)`` from 0 to 2k - 1, the first k of them in superclass 0;
    ``superclass`` ``(..., n)``, 0 or 1; ``kind`` ``(..., n, patches)``, what each patch holds; ``background`` ``(..., n)``, -1
    where there is none.
    """

    x: Tensor
    subclass: Tensor
    superclass: Tensor
    kind: Tensor
    background: Tensor


@dataclass(frozen=True)
class HierarchicalMultiView:
    r"""Two superclasses of k subclasses each; a point shows a common and a fine feature, on separate patches.

    Easy points of subclass (+, c): about ``signal_patches`` patches ``a v_+``, as many ``a v_{+,c}``, all others noise. Hard
    points lack the common feature; instead about ``distractor_patches`` patches hold the *other* superclass's common feature,
    weakly, and one patch is strong noise. Source: Hong et al. 2024, Definitions 4.1 and 4.2 and Appendix B.

    Parameters
    ----------
    n_subclasses
        Subclasses of each superclass, k.
    dim, n_patches
        Patch dimension d, at least the number of features, and patches of a point, P.
    signal_patches
        Patches of the common feature, and of the fine one, s*.
    jitter
        Signal coefficients are uniform on [sqrt(1 - jitter), sqrt(1 + jitter)], iota.
    noise, strong_noise
        Standard deviation, per coordinate, of the noise in every patch and of the one strong noise patch of a hard point.
    distractor_patches, distractor_low, distractor_high
        Patches with the other superclass's common feature in a hard point, s-dagger, and the range of their coefficients.
    binomial
        Draw each patch independently, as in the paper's appendix, so that the numbers of patches are right on average. By
        default the numbers are exact and the positions random.
    n_backgrounds, background_patches
        An extension: every point also shows one of these features, 1.5 times as strong as the others and independent of the
        label (none by default).
    """

    n_subclasses: int
    dim: int
    n_patches: int
    signal_patches: int = 4
    jitter: float = 0.1
    noise: float = 0.0
    strong_noise: float = 0.0
    distractor_patches: int = 4
    distractor_low: float = 0.25
    distractor_high: float = 0.35
    binomial: bool = False
    n_backgrounds: int = 0
    background_patches: int = 0

    def __post_init__(self):
        low, high, backgrounds = self.distractor_low, self.distractor_high, (self.n_backgrounds, self.background_patches)
        most = max(2 * self.signal_patches, self.signal_patches + self.distractor_patches + 1) + self.background_patches
        for right, message in (
            (self.n_subclasses >= 1, f"n_subclasses must be at least 1, got {self.n_subclasses}"),
            (self.dim >= self.n_features, f"dim must be at least the number of features, {self.n_features}, got {self.dim}"),
            (self.signal_patches >= 1, f"signal_patches must be at least 1, got {self.signal_patches}"),
            (self.distractor_patches >= 0, f"distractor_patches must not be negative, got {self.distractor_patches}"),
            (min(backgrounds) > 0 or backgrounds == (0, 0), "n_backgrounds and background_patches must both be positive, or 0"),
            (self.n_patches >= most, f"n_patches must be at least {most}, got {self.n_patches}"),
            (0 <= self.jitter < 1, f"jitter must lie in [0, 1), got {self.jitter}"),
            (0 <= low <= high, f"need 0 <= distractor_low <= distractor_high, got {low}, {high}"),
            (min(self.noise, self.strong_noise) >= 0, "noise and strong_noise must not be negative"),
        ):
            if not right:
                raise ValueError(message)

    @property
    def n_features(self) -> int:
        """Number of feature coordinates: 2 common, 2k fine, and the backgrounds."""
        return 2 + 2 * self.n_subclasses + self.n_backgrounds

    def sample(self, n: int, generator: Seed, hard: bool = False, dtype=torch.float32) -> HierarchicalPatches:
        """Draw ``n`` easy (or hard) points.

        The subclasses take turns, so any 2k consecutive points contain each of them once.
        """
        generator = as_generator(generator)
        subclass = torch.arange(n) % (2 * self.n_subclasses)
        superclass = subclass // self.n_subclasses
        background = torch.full((n,), -1)
        if self.n_backgrounds:
            background = torch.randint(self.n_backgrounds, (n,), generator=generator)
        axis = {
            COMMON: superclass,
            FINE: 2 + subclass,
            DISTRACTOR: 1 - superclass,
            STRONG_NOISE: torch.full((n,), -1),
            BACKGROUND: 2 + 2 * self.n_subclasses + background,
        }
        # The patches of a point in random order: the first so many are common, the next so many fine, and so on.
        position = random_positions(n, self.n_patches, self.n_patches, generator)
        rank, kind = torch.arange(self.n_patches).expand(n, -1), torch.full((n, self.n_patches), NOISE)
        axes = torch.full((n, self.n_patches), -1)
        taken = torch.zeros(n, 1, dtype=torch.long)
        for what, count in self._counts(n, generator, hard).items():
            mine = (rank >= taken) & (rank < taken + count[:, None])
            kind[mine] = what
            axes = torch.where(mine, axis[what][:, None], axes)
            taken = taken + count[:, None]
        x = torch.zeros(n, self.n_patches, self.dim, dtype=dtype)
        low, high = math.sqrt(1 - self.jitter), math.sqrt(1 + self.jitter)
        uniform = torch.rand(kind.shape, generator=generator, dtype=torch.float64)
        signal = torch.where(kind == BACKGROUND, 1.5, 1.0) * (low + (high - low) * uniform)
        weak = self.distractor_low + (self.distractor_high - self.distractor_low) * uniform
        place(x, axes, torch.where(kind == DISTRACTOR, weak, signal), position)
        kind = torch.empty_like(kind).scatter_(1, position, kind)
        scale = torch.where(kind == STRONG_NOISE, self.strong_noise, self.noise).to(dtype)
        if self.noise or (hard and self.strong_noise):
            x += scale[..., None] * torch.randn(x.shape, generator=generator, dtype=dtype)
        return HierarchicalPatches(x, subclass, superclass, kind, background)

    def _counts(self, n: int, generator: torch.Generator, hard: bool) -> dict[int, Tensor]:
        """Return the number of patches of each kind, ``(n,)`` each, in the order in which the paper assigns them."""

        def draw(mean: int, free: Tensor) -> Tensor:
            if not self.binomial:
                return torch.full((n,), mean)
            share = (mean / free.clamp(min=1)).clamp(max=1)
            return torch.binomial(free.double(), share.double(), generator=generator).long()

        free = torch.full((n,), self.n_patches)
        common = draw(self.signal_patches, free)
        fine = draw(self.signal_patches, free - common)
        if not hard:
            counts = {COMMON: common, FINE: fine}
        else:  # the strong noise needs a patch: where a binomial draw leaves none, it takes one
            fine = fine.clamp(max=self.n_patches - 1)
            weak = draw(self.distractor_patches, free - fine).minimum(free - fine - 1)
            counts = {FINE: fine, DISTRACTOR: weak, STRONG_NOISE: torch.ones_like(fine)}
        if self.n_backgrounds:
            left = free - sum(counts.values())
            counts[BACKGROUND] = draw(self.background_patches, left).minimum(left)
        return counts
