"""Data from several domains: features that keep or change their correlation, framed images, and folders of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.data.multi_view import Points
from mvnb.seeds import Seed, as_generator

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")


@dataclass(frozen=True)
class EnvironmentFeatures:
    """Independent features that agree with the label: some do so everywhere, the others are reversed in another environment.

    Times the label, feature j is ``D_gamma``: uniform on [0, 1] with probability ``1/2 + gamma``, else on [-1, 0]; gamma 1/2
    is the uniform law on [0, 1]. ``invariant`` and ``environmental`` hold the gammas of the two groups, in (-1/2, 1/2];
    elsewhere those of the second group change their signs. The features of a point are ``x = y z``, invariant ones first.
    ``ValueError`` for gammas outside. Source: Shi thesis 2024, section 6.4, where all gammas of a group are equal, 1/2 in the
    first.
    """

    invariant: tuple[float, ...]
    environmental: tuple[float, ...]

    def __post_init__(self):
        if not all(-0.5 < g <= 0.5 for g in (*self.invariant, *self.environmental)):
            raise ValueError("gammas must lie in (-1/2, 1/2]")

    @classmethod
    def uniform(cls, r: int, n: int, gamma: float) -> EnvironmentFeatures:
        """Return a world of ``r`` features that never fail and ``n`` of correlation gamma."""
        return cls((0.5,) * r, (gamma,) * n)

    def sample(self, n: int, generator: Seed, elsewhere: bool = False, dtype=torch.float32) -> Points:
        """Return ``n`` points: features ``(n, d)`` and labels -1 and 1, equally likely."""
        generator = as_generator(generator)
        other = torch.tensor(self.environmental, dtype=dtype)
        gamma = torch.cat([torch.tensor(self.invariant, dtype=dtype), -other if elsewhere else other])
        y = 2.0 * torch.randint(2, (n,), generator=generator).to(dtype) - 1
        size, u = torch.rand(2, n, len(gamma), generator=generator, dtype=dtype)
        return Points(y[:, None] * torch.where(u < 0.5 + gamma, size, -size), y)


@dataclass(frozen=True)
class FramedDomains:
    """Images in a frame that hints at the label, in a code that every domain has for itself.

    On each of the first ``cues`` sides of the frame one place is lit, a pixel or as many as there is room for; four further
    cues are in a second frame around the first, and so on. In domain e, counted from 0, side k says the class ``y + 3 e k``
    modulo the number of classes (k from 1) with probability ``agree``, else a uniform one: within a domain the frame goes with
    the label, and in a new domain it misleads. Domain e also turns its images by ``5 e`` degrees and fills their ground with
    the grey ``0.05 e``. Digits on coloured grounds, as in Arjovsky et al. 2019, with more domains.

    Raises ``ValueError`` if ``agree`` is not a probability, or for fewer than 0 or more than 8 cues.
    """

    agree: float = 0.7
    cues: int = 1

    def __post_init__(self):
        if not 0 <= self.agree <= 1 or not 0 <= self.cues <= 8:
            raise ValueError(f"agree must lie in [0, 1] and cues in 0 to 8, got {self.agree} and {self.cues}")

    def frame(self, images: Tensor, y: Tensor, domain: Tensor, n_classes: int, generator: Seed) -> Tensor:
        """Return framed images ``(n, channels, S, S)``.

        S is the least side with room for image, frames and a place for each class.
        """
        generator = as_generator(generator)
        n, channels, side = images.shape[:3]
        rings = max(1, -(-self.cues // 4))
        inner = max(side, n_classes)
        size = inner + 2 * rings
        shade = (0.05 * domain).to(images)[:, None, None, None]
        out = shade.expand(n, channels, size, size).clone()
        low = (size - side) // 2
        turned = _rotated(images, torch.deg2rad(5.0 * domain.to(images)))
        out[..., low : low + side, low : low + side] = torch.maximum(turned, shade)
        own = y[:, None] + 3 * domain[:, None] * torch.arange(1, 4 * rings + 1)  # (n, side of a frame)
        right = torch.rand(n, 4 * rings, generator=generator) < self.agree
        said = torch.where(right, own % n_classes, torch.randint(n_classes, (n, 4 * rings), generator=generator))
        wide = inner // n_classes
        first = rings + (inner - wide * n_classes) // 2 + wide * said
        row = torch.arange(n)[:, None]
        for k in range(self.cues):  # top, right, bottom, left
            ring, turn = divmod(k, 4)
            edge = torch.tensor(rings - 1 - ring if turn in (0, 3) else size - rings + ring)
            along = first[:, k, None] + torch.arange(wide)
            at = (edge, along) if turn % 2 == 0 else (along, edge)
            out[row, :, at[0], at[1]] = 1.0
        return out


def _rotated(images: Tensor, angle: Tensor) -> Tensor:
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def domain_folder(path: str | Path, side: int) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """Return the images of a folder ``DOMAIN/CLASS/FILE``, as DomainBed keeps them, at ``side`` by ``side`` pixels.

    Images ``(n, 3, side, side)`` in [0, 1], labels and domains ``(n,)``, and the names of the domains; classes and
    domains are numbered in the order of their names. ``FileNotFoundError`` when there are fewer than three domains;
    ``ValueError`` when they differ in their classes.
    """
    from PIL import Image

    folders = sorted(p for p in Path(path).expanduser().iterdir() if p.is_dir()) if Path(path).expanduser().is_dir() else []
    if len(folders) < 3:
        raise FileNotFoundError(f"{path} must hold at least three folders, one per domain, each with one folder per class")
    classes = [sorted(p.name for p in one.iterdir() if p.is_dir()) for one in folders]
    if any(one != classes[0] for one in classes) or len(classes[0]) < 2:
        raise ValueError(f"the domains in {path} must have the same classes, at least two")
    x, y, domain = [], [], []
    for e, folder in enumerate(folders):
        for c, name in enumerate(classes[0]):
            for file in sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in SUFFIXES):
                with Image.open(file) as image:
                    x.append(np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR), dtype=np.uint8))
                y.append(c)
                domain.append(e)
    pixels = torch.from_numpy(np.stack(x)).permute(0, 3, 1, 2).float() / 255
    return pixels.contiguous(), torch.tensor(y), torch.tensor(domain), [p.name for p in folders]


def split_domains(domain: Tensor, generator: Seed) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points on which a run trains, validates and is tested, one row per left-out domain.

    ``domain`` ``(n,)`` counts from 0. ``train`` ``(D, D - 1, m)`` and ``valid`` ``(D, (D - 1) * v)`` hold indices of points of
    the training domains, a fifth of which validates; ``test`` ``(D, t)`` all points of the left-out one. All domains are cut to
    the size of the smallest, so that the tables are full. Source: DomainBed's training-domain validation set (Gulrajani and
    Lopez-Paz 2021). ``ValueError`` for fewer than two domains, or when a part would be empty.
    """
    generator = as_generator(generator)
    n_domains, least = int(domain.max()) + 1, int(domain.bincount().min())
    n_valid = math.floor(0.2 * least)
    if n_domains < 2 or n_valid < 1:
        raise ValueError(f"need two domains or more, and points to train and validate, got {n_domains} of {least}")
    order = torch.randperm(len(domain), generator=generator)
    rows = torch.stack([order[domain[order] == e][:least] for e in range(n_domains)])  # (domain, point)
    others = torch.stack([torch.cat([rows[:out], rows[out + 1 :]]) for out in range(n_domains)])
    return others[..., n_valid:], others[..., :n_valid].flatten(1), rows
