"""Multi-view patches with sparse foreign features and dense noise, the same as pictures, and images with few labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from scipy.linalg import hadamard
from torch import Tensor
from torch.nn import functional as F

from mvnb import training
from mvnb.data import embed, load_images
from mvnb.data.multi_view import draw_labels, place, random_positions
from mvnb.seeds import Seed, as_generator

_OWN, _FOREIGN = (1.0, 1.3), (0.2, 0.4)  # ranges of the strength of own and of foreign features


class SparsePatches(NamedTuple):
    """Labelled points made of patches, and how each was made.

    ``x`` ``(..., n, patches, dim)``, ``y`` ``(..., n)``, ``multiplicity`` ``(..., patches)`` (ones); ``strong`` ``(...,
    n)`` is the view that a single-view point shows at full strength, -1 for a multi-view point; ``holds`` ``(..., n,
    patches)`` names the feature on each patch, -1 for background, and ``strength``, of the same shape, its coefficient. The
    first three fields are those of :class:`mvnb.data.Patches`.
    """

    x: Tensor
    y: Tensor
    multiplicity: Tensor
    strong: Tensor
    holds: Tensor
    strength: Tensor


@dataclass(frozen=True)
class SparseMultiView:
    r"""Every class has two features; a point shows both (multi-view) or mainly one (single-view), beside a few foreign ones.

    Source: Pan, Zhou and Yan 2023, Def. 3.1, with one patch a feature (C_p) and no feature noise (gamma). Own features have a
    strength uniform on [1, 1.3], foreign ones on [0.2, 0.4]. The features are the first ``2 n_classes`` axes, ``2y + l`` is
    ``v_{y,l}``; by rotation that is no restriction, and :func:`mvnb.data.embed` takes a sample to any other orthonormal basis.

    Parameters
    ----------
    n_classes
        Number of classes, k.
    n_patches
        Number of patches of a point, P. Foreign features that find no room are left out.
    dim
        Dimension of a patch, d, at least ``2 n_classes``.
    foreign
        Each feature of another class is present with probability ``foreign / n_classes``; s.
    single_view
        Probability of a single-view point, mu.
    weak
        Strength of a single-view point's weak view, as a fraction of a strong one; rho.
    patch_noise, background_noise
        Root mean square length of the Gaussian noise on patches with a feature, and on those without: sigma_p sqrt(d), and
        gamma k, which is here a parameter of its own.
    balanced
        Equal class counts instead of independent uniform labels.
    """

    n_classes: int
    n_patches: int
    dim: int
    foreign: float = 2.0
    single_view: float = 0.0
    weak: float = 0.1
    patch_noise: float = 0.05
    background_noise: float = 1.0
    balanced: bool = False

    def __post_init__(self):
        if self.n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {self.n_classes}")
        if self.dim < self.n_features:
            raise ValueError(f"dim must be at least 2 n_classes = {self.n_features}, got {self.dim}")
        if self.n_patches < 2:
            raise ValueError(f"n_patches must be at least 2, got {self.n_patches}")
        for name in ("single_view", "weak"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if not 0 <= self.foreign <= self.n_classes:
            raise ValueError(f"foreign must lie in [0, n_classes], got {self.foreign}")
        if min(self.patch_noise, self.background_noise) < 0:
            raise ValueError("noise must not be negative")

    @property
    def n_features(self) -> int:
        """Number of features, 2 n_classes."""
        return 2 * self.n_classes

    def sample(self, n: int, generator: Seed, y: Tensor | None = None, dtype=torch.float32) -> SparsePatches:
        """``n`` points; labels are drawn unless ``y`` (shape ``(n,)``) gives them."""
        generator = as_generator(generator)
        y = draw_labels(n, self.n_classes, generator, self.balanced, y)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, dtype=torch.float64)

        axes, strength = self._foreign(y, uniform)
        # Own features come first, and at full strength: (n, 2)
        own = _OWN[0] + (_OWN[1] - _OWN[0]) * uniform(n, 2)
        single, view = uniform(n) < self.single_view, (uniform(n) < 0.5).long()
        strong = torch.where(single, view, -1)
        own[single] *= torch.where(torch.arange(2) == view[single, None], 1.0, self.weak)
        axes, strength = torch.cat([torch.stack([2 * y, 2 * y + 1], 1), axes], 1), torch.cat([own, strength], 1)
        x = torch.zeros(n, self.n_patches, self.dim, dtype=dtype)
        holds = place(x, axes, strength, random_positions(n, self.n_patches, axes.shape[1], generator))
        shown = x.sum(-1)  # before the noise, the only coordinate of a patch is its strength
        length = torch.where(holds >= 0, self.patch_noise, self.background_noise).to(dtype) / self.dim**0.5
        x += length[..., None] * torch.randn(x.shape, generator=generator, dtype=dtype)
        return SparsePatches(x, y, torch.ones(self.n_patches, dtype=dtype), strong, holds, shown)

    def _foreign(self, y: Tensor, uniform) -> tuple[Tensor, Tensor]:
        """Foreign features of each point and their strengths, ``(n, room)``; -1 where there is none."""
        shape = (len(y), self.n_features)
        owner = torch.arange(self.n_features) // 2
        present = (uniform(*shape) < self.foreign / self.n_classes) & (owner != y[:, None])
        # Those that are present in random order, then the others.
        order = (uniform(*shape) + 2.0 * ~present).argsort(1)[:, : self.n_patches - 2]
        axes = torch.where(present.gather(1, order), order, -1)
        return axes, _FOREIGN[0] + (_FOREIGN[1] - _FOREIGN[0]) * uniform(*axes.shape)


def draw(
    world: SparseMultiView, n_points: int, n_kernels: int, scale: float, generators: Sequence[torch.Generator], device
) -> tuple[SparsePatches, Tensor]:
    """Return a sample of ``n_points`` points and normal kernels ``(R, n_kernels, dim)`` of size ``scale`` per generator."""
    points = training.stack([world.sample(n_points, g) for g in generators])
    kernels = torch.stack([torch.randn(n_kernels, world.dim, generator=g) for g in generators])
    return training.to_device(points, device), scale * kernels.to(device)


# --- Planted parts: the patches of a point as tiles of a picture ---


def world_of_tiles(n_classes: int, foreign: float, noise: float) -> SparseMultiView:
    """Return the world whose points are drawn as pictures of 16 tiles."""
    return SparseMultiView(n_classes, 16, 64, foreign=foreign, balanced=True, patch_noise=noise, background_noise=noise)


def pictures(sample: SparsePatches) -> Tensor:
    """Return 16 patches of dimension 64 as tiles of pictures ``(n, 1, 32, 32)``; axes become Walsh patterns by frequency."""
    signs = torch.from_numpy(hadamard(8)).float() / 8**0.5
    rows = signs[(signs[:, 1:] != signs[:, :-1]).sum(1).argsort()]
    order = sorted((i + j, i, j) for i in range(8) for j in range(8))
    patterns = torch.stack([torch.outer(rows[i], rows[j]) for _, i, j in order[1:] + order[:1]])
    tiles = (8 * embed(sample, patterns.flatten(1)).x).unflatten(2, (8, 8)).unflatten(1, (4, 4))  # (n, row, column, y, x)
    return tiles.transpose(2, 3).reshape(-1, 1, 32, 32)


def own_tiles(sample: SparsePatches) -> Tensor:
    """Return which tiles show a feature of the picture's class, ``(n, 16)``."""
    return (sample.holds // 2 == sample.y[:, None]) & (sample.holds >= 0)


# --- Real images ---


class Split:
    """Images in parts ``x`` with labels ``y``: ``all`` for pretraining, ``judged``, which errors are for, and labelled sets.

    A labelled set ``(n, draw)`` has equally many images of each class; sets of one ``n`` are disjoint, and all are parts of
    ``all``. ``labels`` gives the number of sets of each ``n``. The same ``n_aside`` images are put aside for every seed. With
    ``tuning``, judged and labelled images are drawn from these; otherwise judged ones are drawn from the others, so that no
    judged image has been judged or had a label in tuning. The official test images are in one pool with the training images.
    Pixels are standardised by the mean and the deviation of ``all``.
    """

    def __init__(self, dataset: str, labels: dict[int, int], n_judged: int, n_aside: int, tuning: bool, seed: int, device):
        images, fixed = load_images(dataset), torch.Generator().manual_seed(0)
        x, y = torch.cat([images.x_train, images.x_test]), torch.cat([images.y_train, images.y_test])
        order = torch.randperm(len(y), generator=fixed)
        aside, others = order[:n_aside], order[n_aside:]
        own, rest = (aside, others) if tuning else (others, aside)
        own = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))]
        parts: dict = {"judged": own[:n_judged], "all": torch.cat([own[n_judged:], rest])}
        of_class = [parts["all"][y[parts["all"]] == label] for label in range(images.n_classes)]
        for n, draws in labels.items():
            each = n // images.n_classes
            parts |= {(n, i): torch.cat([rows[i * each :][:each] for rows in of_class]) for i in range(draws)}
        seen = x[parts["all"]]
        mean, std = (f(seen, (0, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        self.x = {part: ((x[i] - mean) / std).to(device, memory_format=torch.channels_last) for part, i in parts.items()}
        self.y = {part: y[i].to(device) for part, i in parts.items()}


def shifted(x: Tensor, most: int, g: torch.Generator) -> Tensor:
    """Move each image by up to ``most`` pixels down or up and right or left, at random; the border is background."""
    n, _, height, width = x.shape
    down, right = torch.randint(2 * most + 1, (2, n, 1), generator=g).to(x.device)
    rows, columns = (move + torch.arange(side, device=x.device) for move, side in ((down, height), (right, width)))
    padded = F.pad(x, [most] * 4, value=float(x.min()))
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
