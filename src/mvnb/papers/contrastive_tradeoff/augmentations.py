"""Random views of images: crops, rotations, flips and jitter in plain torch, one resampling for all images of a stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def _sampling_grid(maps: Tensor, height: int, width: int) -> Tensor:
    """Where affine ``maps`` ``(n, 2, 3)`` send the centres of pixels, ``(n, height, width, 2)``, in [-1, 1] from edge to edge.

    The same as PyTorch's ``affine_grid`` with ``align_corners=False``, whose many small products take ten times as long.
    """
    like = {"device": maps.device, "dtype": maps.dtype}
    y, x = ((2 * torch.arange(size, **like) + 1) / size - 1 for size in (height, width))
    centres = torch.stack([x.expand(height, width), y[:, None].expand(height, width), torch.ones(height, width, **like)])
    return (maps.flatten(0, 1) @ centres.flatten(1)).view(-1, 2, height, width).permute(0, 2, 3, 1)


@dataclass(frozen=True)
class Augmentation:
    """A random change of an image before a contrastive method sees it.

    A crop of ``scale`` (range of its share of the area), its width over its height from 3/4 to 4/3, resized to the whole image
    and turned by up to ``degrees`` (what lies outside repeats the border); factors of contrast and brightness from 0.6 to 1.4.
    ``ValueError`` for a scale that is no range in (0, 1]. Source: the recipe of Chen and He 2021 (SimSiam), which Shi's thesis
    follows, for grey pictures that must not be mirrored; rotation is ours.
    """

    scale: tuple[float, float]
    degrees: float

    def __post_init__(self):
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be a range in (0, 1], got {self.scale}")

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """Return the views of images ``x`` ``(n, channels, height, width)`` that uniform numbers ``draws`` ``(n, 9)`` decide.

        In turn: area, aspect, angle, one that is free (mirror images), place across and down, contrast, brightness, and
        another that is free (colours).
        """
        u = draws.to(x).T
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * u[0]
        low, high = math.log(3 / 4), math.log(4 / 3)
        ratio = torch.exp(low + (high - low) * u[1])
        wide, tall = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
        angle = math.radians(self.degrees) * (2 * u[2] - 1)
        across, down = (1 - wide) * (2 * u[4] - 1), (1 - tall) * (2 * u[5] - 1)
        cosine, sine = angle.cos(), angle.sin()
        rows = [wide * cosine, -tall * sine, across, wide * sine, tall * cosine, down]
        grid = _sampling_grid(torch.stack(rows, 1).unflatten(1, (2, 3)), *x.shape[2:])
        out = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        mean = out.mean((1, 2, 3), keepdim=True)
        contrast, brightness = ((1 + 0.4 * (2 * v - 1))[:, None, None, None] for v in (u[6], u[7]))
        return (((out - mean) * contrast + mean) * brightness).clamp_(0, 1)

    def __call__(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return one view of each image of a stack: ``x`` ``(R, n, channels, height, width)`` with a generator a replica."""
        draws = torch.cat([torch.rand(x.shape[1], 9, generator=g) for g in generators])
        return self.apply(x.flatten(0, 1), draws).unflatten(0, x.shape[:2])
