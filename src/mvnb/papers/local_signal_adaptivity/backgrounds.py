"""Images pasted on larger backgrounds: a local signal in Gaussian noise, in texture or among distractors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Placement = Literal["anywhere", "corner", "fixed"]
PLACEMENTS = ("anywhere", "corner", "fixed")


def draw_corners(n: int, free: int, placement: Placement, generator: torch.Generator) -> Tensor:
    """Top and left offsets ``(n, 2)``: uniform on 0 to ``free``, a random corner, or always the bottom right one.

    ``ValueError`` for another placement or a negative ``free``.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
    if free < 0:
        raise ValueError(f"the image is larger than its background by {-free} pixels")
    if placement == "anywhere":
        return torch.randint(free + 1, (n, 2), generator=generator)
    if placement == "fixed":
        return torch.full((n, 2), free)
    return free * torch.randint(2, (n, 2), generator=generator)


def paste(images: Tensor, background: Tensor, corner: Tensor) -> Tensor:
    """Replace the pixels of a block of each background by the image.

    ``images`` ``(n, channels, s, s)``, ``background`` ``(n, channels, S, S)``, ``corner`` ``(n, 2)`` top and left offsets;
    returns a new tensor of the background's shape. ``ValueError`` when an image would leave its background.
    """
    side, free = images.shape[-1], background.shape[-1] - images.shape[-1]
    if len(corner) and (corner.min() < 0 or corner.max() > free):
        raise ValueError(f"offsets must lie in 0 to {free}")
    out, span = background.clone(), torch.arange(side)
    rows, columns = corner[:, :1] + span, corner[:, 1:] + span  # (n, s)
    point = torch.arange(len(images))[:, None, None]
    out[point, :, rows[:, :, None], columns[:, None]] = images.permute(0, 2, 3, 1)
    return out


def gaussian_background(n: int, channels: int, side: int, generator: torch.Generator) -> Tensor:
    """Independent standard normal pixels, ``(n, channels, side, side)``."""
    return torch.randn(n, channels, side, side, generator=generator)


def texture_background(n: int, channels: int, side: int, generator: torch.Generator, roughness: float = 1.0) -> Tensor:
    """Random textures with amplitudes ``1 / frequency**roughness``, each image stretched to [0, 1].

    Natural images have spectra of about this form with ``roughness`` 1, so these stand in for photographs of backgrounds.
    """
    noise = torch.fft.rfft2(torch.randn(n, channels, side, side, generator=generator))
    rows, columns = torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)
    frequency = torch.hypot(rows, columns).clamp(min=1 / side)
    x = torch.fft.irfft2(noise / frequency**roughness, s=(side, side))
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    return (x - low) / (high - low)


def distractor_background(n: int, pool: Tensor, generator: torch.Generator) -> Tensor:
    """A two-by-two grid of random images of ``pool`` ``(m, channels, s, s)``: ``(n, channels, 2 s, 2 s)``."""
    pick = torch.randint(len(pool), (n, 2, 2), generator=generator)
    grid = pool[pick]  # (n, 2, 2, channels, s, s)
    side = pool.shape[-1]
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(n, pool.shape[1], 2 * side, 2 * side)
