"""One signal patch among many noise patches, and images pasted on larger backgrounds: noise, texture or distractors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mvnb.data import load_images, resize
from mvnb.data.multi_view import Points
from mvnb.seeds import Seed, as_generator

VEHICLES = (0, 1, 8, 9)  # aeroplane, car, ship and truck among the classes of CIFAR-10; the others are animals


@dataclass(frozen=True)
class SignalInNoise:
    """Of ``n_noise + 1`` patches one, at a random place, is ``y w_star``; the others are ``N(0, sigma^2 I)``.

    ``w_star`` is the first axis, ``y`` uniform on -1 and 1. Source: Karp thesis 2024, section 3.3. ``ValueError`` for sizes
    below 1 or a sigma that is not positive and finite.
    """

    n_noise: int
    dim: int
    sigma: float

    def __post_init__(self):
        if self.n_noise < 1 or self.dim < 1 or not 0 < self.sigma < float("inf"):
            raise ValueError(f"n_noise and dim must be at least 1 and sigma be positive and finite, got {self}")

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Return ``n`` points ``(n, n_noise + 1, dim)`` and their labels ``(n,)`` of -1 and 1."""
        generator = as_generator(generator)
        x = torch.randn(n, self.n_noise + 1, self.dim, generator=generator, dtype=dtype).mul_(self.sigma)
        y = 2 * torch.randint(2, (n,), generator=generator).to(dtype) - 1
        position = torch.randint(self.n_noise + 1, (n,), generator=generator)
        rows = torch.arange(n)
        x[rows, position] = 0.0
        x[rows, position, 0] = y
        return Points(x, y)


def paste(images: Tensor, background: Tensor, generator: Seed) -> Tensor:
    """Return the backgrounds with a block of each replaced by the image, at uniformly random places.

    ``images`` ``(n, channels, s, s)``, ``background`` ``(n, channels, S, S)``. ``ValueError`` for images that are larger than
    their backgrounds.
    """
    generator = as_generator(generator)
    n, free = len(images), background.shape[-1] - images.shape[-1]
    if free < 0:
        raise ValueError(f"images must fit their backgrounds, got sides {images.shape[-1]} and {background.shape[-1]}")
    corner = torch.randint(free + 1, (n, 2), generator=generator)  # top and left offsets
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


def two_classes(dataset: str, *, n_train: int, n_test: int, side: int, judged: str, seed: int) -> tuple[Points, Points]:
    """Return training images of a set with classes 0 (animals in CIFAR-10) and 1 (vehicles), and the images to judge on.

    Images ``(n, channels, side, side)``, drawn with the seed from the training part of the set. If ``judged`` is "test", the
    others are drawn from the rest of that part; if it is "valid", they are the first of the set's test part, which serves for
    nothing else. ``ValueError`` for another value, or if there are too few images.
    """
    raw = load_images(dataset)
    own, rest = torch.randperm(len(raw.y_train), generator=as_generator(seed)).tensor_split([n_train])
    x, y = raw.x_train, raw.y_train
    if judged == "valid":
        x, y, rest = raw.x_test, raw.y_test, torch.arange(len(raw.y_test))
    if judged not in ("test", "valid") or len(own) < n_train or len(rest) < n_test:
        found = f"{judged!r}, {len(own)} images and {len(rest)} others"
        raise ValueError(f"judged must be 'test' or 'valid', with {n_train} images and {n_test} others, got {found}")
    parts = (raw.x_train[own], raw.y_train[own]), (x[rest[:n_test]], y[rest[:n_test]])
    first, second = (Points(resize(a, side), torch.isin(b, torch.tensor(VEHICLES)).long()) for a, b in parts)
    return first, second


def on_background(images: Tensor, background: str, level: float, generator: Seed) -> Tensor:
    """Return images at random places of backgrounds of twice their side: ``level`` times Gaussian noise or textures.

    Places and backgrounds are the same for all levels. ``ValueError`` unless ``background`` is "Gaussian" or "texture".
    """
    generator = as_generator(generator)
    n, channels, side = images.shape[:3]
    if background not in ("Gaussian", "texture"):
        raise ValueError(f"background must be 'Gaussian' or 'texture', got {background!r}")
    if background == "texture":
        behind = texture_background(n, channels, 2 * side, generator)
    else:
        behind = torch.randn(n, channels, 2 * side, 2 * side, generator=generator)
    return paste(images, level * behind, generator)
