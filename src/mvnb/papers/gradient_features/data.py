"""Binary problems whose simplified gradient is known: a margin, parities of blocks of bits, Gaussian inputs.

Source: Shi thesis 2024, chapter 3, called "Shi" below. Samplers return :class:`mvnb.data.Points` with labels of -1 and 1 (real
for :class:`MultiIndex`), in the coordinates in which the features are simplest: a rotation changes nothing in a network
that starts from an isotropic draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mvnb.data.multi_view import Points
from mvnb.seeds import Seed, as_generator


def _signs(n: int, dim: int, generator: torch.Generator, dtype) -> Tensor:
    """Return uniform signs ``(n, dim)``, eight from each random byte."""
    drawn = torch.randint(256, ((n * dim + 7) // 8,), generator=generator, dtype=torch.uint8)
    bits = torch.from_numpy(np.unpackbits(drawn.numpy(), count=n * dim))
    return bits.view(n, dim).to(dtype).mul_(2).sub_(1)


@dataclass(frozen=True)
class LinearMargin:
    """Linearly separable: ``x = y (margin + U) e_0 + z`` with U uniform on [0, 1], z normal in all other coordinates.

    Then ``E[y x] = (margin + 1/2) e_0``. An instance of Shi, Appendix B.4. ``ValueError`` for a margin that is not positive or
    fewer than 2 dimensions.
    """

    dim: int
    margin: float = 0.5

    def __post_init__(self):
        if self.dim < 2 or not self.margin > 0:
            raise ValueError(f"dim must be at least 2 and margin positive, got {self.dim} and {self.margin}")

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Return ``n`` points, ``x`` ``(n, dim)``."""
        generator = as_generator(generator)
        y = _signs(n, 1, generator, dtype)[:, 0]
        x = torch.randn(n, self.dim, generator=generator, dtype=dtype)
        x[:, 0] = y * (self.margin + torch.rand(n, generator=generator, dtype=dtype))
        return Points(x, y)


@dataclass(frozen=True)
class BlockParity:
    """Bits in {-1, 0, 1} whose first ``blocks * block`` decide: ``y`` is the sign of the sum of the blocks' products.

    With probability ``2 * blocks * signal`` a single block is all 1 or all -1 and the other blocks are 0; otherwise all
    relevant bits are uniform signs. Background bits are -1 and 1 with probability ``background`` each, else 0.
    ``signal = 0``, ``background = 1/2`` and one block is the uniform sparse parity. Source: Shi, section 3.4.2
    (structured parities; k is ``block``, r ``blocks``, p_A ``signal``, p_o ``background``), with the dictionary M = I.
    ``ValueError`` for an even number of blocks (y could be 0), an even ``block`` with several blocks or ``signal > 0`` and
    one-sided labels, or probabilities beyond their range.
    """

    dim: int
    block: int
    blocks: int = 1
    signal: float = 0.25
    background: float = 0.5

    def __post_init__(self):
        if self.block < 1 or self.blocks < 1 or self.dim <= self.block * self.blocks:
            raise ValueError(f"need block, blocks >= 1 and dim > {self.block * self.blocks}, got dim {self.dim}")
        if self.blocks % 2 == 0:
            raise ValueError(f"blocks must be odd, so that the label is never 0, got {self.blocks}")
        if self.block % 2 == 0 and self.signal > 0:
            raise ValueError("block must be odd when signal > 0: the product over an even block is 1 for both signs")
        if not (0 <= 2 * self.blocks * self.signal <= 1 and 0 <= self.background <= 0.5):
            raise ValueError("need 0 <= 2 * blocks * signal <= 1 and 0 <= background <= 1/2")

    @property
    def features(self) -> Tensor:
        """Directions ``D_j``, ``(blocks, dim)``, float64: the normalised sum of a block's axes."""
        out = torch.eye(self.blocks, dtype=torch.float64).repeat_interleave(self.block, 1) / math.sqrt(self.block)
        return torch.nn.functional.pad(out, (0, self.dim - out.shape[1]))

    @property
    def square_norm(self) -> float:
        """``E |x|^2``."""
        relevant = self.block * self.blocks
        uniform = 1 - 2 * self.blocks * self.signal
        return relevant * uniform + self.block * (1 - uniform) + 2 * self.background * (self.dim - relevant)

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Return ``n`` points, ``x`` ``(n, dim)``."""
        generator = as_generator(generator)
        relevant = self.block * self.blocks
        x = _signs(n, self.dim, generator, dtype)
        if self.background < 0.5:
            shown = torch.rand(n, self.dim - relevant, generator=generator) < 2 * self.background
            x[:, relevant:] *= shown
        if self.signal > 0:
            part = torch.rand(n, generator=generator).div_(2 * self.signal).long()  # the block that is alone, if any
            bits = x[:, :relevant].view(n, self.blocks, self.block)
            alone = torch.arange(self.blocks) == part[:, None]  # (n, blocks)
            single = bits[:, 0, :1, None] * alone[..., None]
            x[:, :relevant] = torch.where(part[:, None, None] < self.blocks, single, bits).flatten(1)
        return Points(x, x[:, :relevant].view(n, self.blocks, self.block).prod(2).sum(1).sign())


@dataclass(frozen=True)
class MultiIndex:
    """Standard normal inputs, and a polynomial of the first two coordinates with mean 0 and variance 1 as the target.

    ``kind`` is ``"quadratic"``, ``(z_1^2 - z_2^2) / 2``, or ``"cubic"``, the sum of both second and the first's third
    Hermite polynomial, over the root of 3. Instances of Shi, section 3.4.3. ``ValueError`` for other kinds, or fewer than 3
    dimensions.
    """

    dim: int
    kind: str = "quadratic"

    def __post_init__(self):
        if self.kind not in ("quadratic", "cubic") or self.dim < 3:
            raise ValueError(f"kind must be 'quadratic' or 'cubic' and dim at least 3, got {self.kind!r} and {self.dim}")

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Return ``n`` points, ``x`` ``(n, dim)``, ``y`` the targets."""
        generator = as_generator(generator)
        x = torch.randn(n, self.dim, generator=generator, dtype=dtype)
        u, v = x[:, 0], x[:, 1]
        if self.kind == "quadratic":
            return Points(x, (u**2 - v**2) / 2)
        return Points(x, ((u**2 + v**2 - 2) / math.sqrt(2) + (u**3 - 3 * u) / math.sqrt(6)) / math.sqrt(3))
