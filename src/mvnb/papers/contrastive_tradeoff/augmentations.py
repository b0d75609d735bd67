"""Random views of images: crops, rotations, flips and jitter in plain torch, one resampling for all images of a stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def sampling_grid(maps: Tensor, height: int, width: int) -> Tensor:
    """Where affine ``maps`` ``(n, 2, 3)`` send the centres of pixels, ``(n, height, width, 2)``, in [-1, 1] from edge to edge.

    What PyTorch's ``affine_grid`` gives with ``align_corners=False``; its many small products take ten times as long.
    """
    like = {"device": maps.device, "dtype": maps.dtype}
    y, x = ((2 * torch.arange(size, **like) + 1) / size - 1 for size in (height, width))
    centres = torch.stack([x.expand(height, width), y[:, None].expand(height, width), torch.ones(height, width, **like)])
    return (maps.flatten(0, 1) @ centres.flatten(1)).view(-1, 2, height, width).permute(0, 2, 3, 1)


@dataclass(frozen=True)
class Augmentation:
    """What happens to an image before a contrastive method sees it.

    A crop of ``scale`` (range of its share of the area) and ``aspect`` (range of width over height), resized to the whole
    image and turned by up to ``degrees`` (what lies outside repeats the border); a mirror image with probability ``flip``;
    ``brightness`` and ``contrast`` factors from 1 minus to 1 plus these; for three channels a grey image with probability
    ``grey``. ``ValueError`` for ranges that are none. Source: the recipe of Chen and He 2021 (SimSiam), which Shi's thesis
    follows; rotation is ours.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    degrees: float = 0.0
    flip: float = 0.5
    brightness: float = 0.4
    contrast: float = 0.4
    grey: float = 0.2

    def __post_init__(self):
        if not 0 < self.scale[0] <= self.scale[1] <= 1 or not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"scale must be a range in (0, 1] and aspect one above 0, got {self.scale} and {self.aspect}")
        if not all(0 <= v <= 1 for v in (self.flip, self.brightness, self.contrast, self.grey)):
            raise ValueError("flip, brightness, contrast and grey must lie in [0, 1]")

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """What is random about the views of ``n`` images: uniform numbers ``(n, 9)``."""
        return torch.rand(n, 9, generator=generator)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """The views of images ``x`` ``(n, channels, height, width)`` that ``draws`` ``(n, 9)`` decide."""
        u = draws.to(x).T
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * u[0]
        low, high = (math.log(a) for a in self.aspect)
        ratio = torch.exp(low + (high - low) * u[1])
        wide, tall = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
        angle = math.radians(self.degrees) * (2 * u[2] - 1)
        mirror = 1 - 2 * (u[3] < self.flip).to(x)
        across, down = (1 - wide) * (2 * u[4] - 1), (1 - tall) * (2 * u[5] - 1)
        cosine, sine = angle.cos(), angle.sin()
        rows = [wide * cosine * mirror, -tall * sine, across, wide * sine * mirror, tall * cosine, down]
        grid = sampling_grid(torch.stack(rows, 1).unflatten(1, (2, 3)), *x.shape[2:])
        out = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        mean = out.mean((1, 2, 3), keepdim=True)
        contrast, brightness = (
            (1 + size * (2 * v - 1))[:, None, None, None] for size, v in ((self.contrast, u[6]), (self.brightness, u[7]))
        )
        out = ((out - mean) * contrast + mean) * brightness
        if out.shape[1] == 3:
            out = torch.where((u[8] < self.grey)[:, None, None, None], out.mean(1, keepdim=True), out)
        return out.clamp_(0, 1)

    def __call__(self, x: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One view of each image of a stack: ``x`` ``(R, n, channels, height, width)`` with a generator a replica."""
        draws = torch.cat([self.draw(x.shape[1], g) for g in generators])
        return self.apply(x.flatten(0, 1), draws).unflatten(0, x.shape[:2])
