"""Images pasted on larger backgrounds: a local signal in Gaussian noise, in texture or among distractors."""

from __future__ import annotations

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator

PLACEMENTS = ("anywhere", "corner", "fixed")


def paste(images: Tensor, background: Tensor, placement: str, generator: Seed) -> Tensor:
    """Return the backgrounds with a block of each replaced by the image.

    ``images`` ``(n, channels, s, s)``, ``background`` ``(n, channels, S, S)``. The ``placement`` is ``"anywhere"`` (uniform),
    ``"corner"`` (a random one) or ``"fixed"`` (the bottom right). ``ValueError`` for another placement or images that are
    larger than their backgrounds.
    """
    generator = as_generator(generator)
    n, free = len(images), background.shape[-1] - images.shape[-1]
    if placement not in PLACEMENTS or free < 0:
        raise ValueError(
            f"placement must be one of {', '.join(PLACEMENTS)}, and images fit, got {placement!r} and {free} spare"
        )
    corner = torch.full((n, 2), free)  # top and left offsets
    if placement == "anywhere":
        corner = torch.randint(free + 1, (n, 2), generator=generator)
    elif placement == "corner":
        corner = free * torch.randint(2, (n, 2), generator=generator)
    out, span = background.clone(), torch.arange(images.shape[-1])
    rows, columns = corner[:, :1] + span, corner[:, 1:] + span  # (n, s)
    out[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None]] = images.permute(0, 2, 3, 1)
    return out


def texture_background(n: int, channels: int, side: int, generator: Seed) -> Tensor:
    """Return random textures ``(n, channels, side, side)`` with amplitudes ``1 / frequency``, each stretched to [0, 1].

    Natural images have spectra of about this form, so these stand in for photographs of backgrounds.
    """
    generator = as_generator(generator)
    noise = torch.fft.rfft2(torch.randn(n, channels, side, side, generator=generator))
    rows, columns = torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)
    frequency = torch.hypot(rows, columns).clamp(min=1 / side)
    x = torch.fft.irfft2(noise / frequency, s=(side, side))
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    return (x - low) / (high - low)


def distractor_background(n: int, pool: Tensor, generator: Seed) -> Tensor:
    """A two-by-two grid of random images of ``pool`` ``(m, channels, s, s)``: ``(n, channels, 2 s, 2 s)``."""
    generator = as_generator(generator)
    grid = pool[torch.randint(len(pool), (n, 2, 2), generator=generator)]  # (n, 2, 2, channels, s, s)
    return grid.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
