"""Data of chapter 13: the linear model, small sets of pictures that ship inside packages, colour images, random views.

The small sets are handwriting, letters of many fonts, patches of photographs and patches of a relief.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.data import load_images, resize
from mvnb.training import in_blocks

# --- The linear model ---


class Mixture(NamedTuple):
    """The numbers of features in the linear model: shared, private to each task, spurious; their coordinates have this order.

    Start and projection are the same in rotated coordinates, so the dictionary of the paper's inputs makes no difference.
    """

    shared: int
    private: int
    spurious: int

    def pairs(self, shares: Sequence[float]) -> Callable:
        """Return a sampler of pairs of views ``(n, d)`` twice, from tasks with these shares."""
        cuts = torch.tensor(shares).cumsum(0)[:-1]

        def draw(n, generator):
            z = torch.randn(n, self.shared + self.private * len(shares) + self.spurious, generator=generator)
            redrawn = torch.randn(n, self.spurious, generator=generator)
            task = F.one_hot(torch.bucketize(torch.rand(n, generator=generator), cuts), len(shares)).to(z)
            z[:, self.shared : -self.spurious] *= task.repeat_interleave(self.private, 1)
            return z, torch.cat([z[:, : -self.spurious], redrawn], 1)

        return draw

    def by_kind(self, gram: Tensor) -> tuple[Tensor, ...]:
        """Return the weights ``(R, ...)`` of shared, private and spurious features, the diagonal of ``G``."""
        rest = gram.shape[-1] - self.shared - self.spurious
        return gram.diagonal(dim1=1, dim2=2).split([self.shared, rest, self.spurious], 1)

    def by_task(self, gram: Tensor) -> Tensor:
        """Return the mean weight of each task's private features, ``(R, T)``."""
        return self.by_kind(gram)[1].unflatten(1, (-1, self.private)).mean(2)


class FewLabels(NamedTuple):
    """Labelled points ``z`` ``(run, n, s + q)`` of one task and its weights ``u`` ``(run, s + q)``, half of them private."""

    z: Tensor
    u: Tensor

    @classmethod
    def draw(cls, runs: int, points: int, s: int, g: torch.Generator) -> FewLabels:
        """Draw standard normal points, and weights of squared length 1/2 on the shared and on the private features."""
        z = torch.randn(runs, points, 2 * s, generator=g).double()
        u = torch.randn(runs, 2, s, generator=g).double()
        return cls(z, (F.normalize(u, dim=-1) * 0.5**0.5).flatten(1))

    @property
    def y(self) -> Tensor:
        """Labels ``(run, n)`` without noise."""
        return (self.z @ self.u[..., None])[..., 0]


def root_weights(private: float, s: int) -> Tensor:
    """Return the factors ``(2 s,)`` of a representation: 1 on s shared features, the root of ``private`` on s private ones."""
    return torch.tensor([1.0, private**0.5], dtype=torch.float64).repeat_interleave(torch.tensor([s, s]))


# --- Small sets of pictures ---

TARGET = "handwriting"
SETS = (TARGET, "photographs", "relief", "letters")

_FONTS = ("DejaVu", "STIXGeneral", "cmr10", "cmb10", "cmss10", "cmtt10", "cmmi10")


def _letters(side: int) -> tuple[Tensor, Tensor]:
    """The capitals A to Z in two sizes of some twenty fonts: ``(n, 1, side, side)`` in [0, 1], and which letter, ``(n,)``.

    White on black, in the middle, like handwritten digits. The fonts are those that Matplotlib brings along.
    """
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(find_spec("matplotlib").origin).parent / "mpl-data" / "fonts" / "ttf"
    pictures, labels = [], []
    for path in sorted(p for p in folder.glob("*.ttf") if p.name.startswith(_FONTS) and "Display" not in p.name):
        for size in (22, 28):
            font = ImageFont.truetype(str(path), size)
            for i in range(26):
                picture = Image.new("L", (28, 28))
                draw = ImageDraw.Draw(picture)
                left, top, right, bottom = draw.textbbox((0, 0), chr(65 + i), font=font)
                draw.text((14 - (left + right) / 2, 14 - (top + bottom) / 2), chr(65 + i), fill=255, font=font)
                pictures.append(np.asarray(picture, dtype=np.float32) / 255)
                labels.append(i)
    return resize(torch.from_numpy(np.stack(pictures))[:, None], side).clamp_(0, 1), torch.tensor(labels)


def _photographs(side: int) -> tuple[Tensor, Tensor]:
    """Grey patches of three photographs, and from which quarter of which: ``(n, 1, side, side)``, labels 0 to 11.

    Patches are 96 pixels wide, 150 a quarter, in a fixed random choice; neighbours overlap. The photographs are those of
    scikit-learn (a temple, a flower) and Matplotlib (a portrait).
    """
    from PIL import Image

    own = Path(find_spec("sklearn").origin).parent / "datasets" / "images"
    other = Path(find_spec("matplotlib").origin).parent / "mpl-data" / "sample_data"
    paths = (own / "china.jpg", own / "flower.jpg", other / "grace_hopper.jpg")
    grey = [torch.from_numpy(np.asarray(Image.open(p).convert("L"), dtype=np.float32) / 255) for p in paths]
    x, y = _patches([F.avg_pool2d(g[None], 4)[0] for g in grey], (2, 2), 150, side)
    return x.clamp_(0, 1), y


def _relief(side: int) -> tuple[Tensor, Tensor]:
    """Patches of a map of heights, each stretched to [0, 1], and from which of 12 fields: ``(n, 1, side, side)``, labels.

    Patches are 24 points wide, 150 a field, in a fixed random choice; neighbours overlap. The map is Matplotlib's, of a fault
    in Tennessee.
    """
    folder = Path(find_spec("matplotlib").origin).parent / "mpl-data" / "sample_data"
    with np.load(folder / "jacksboro_fault_dem.npz") as file:
        heights = torch.from_numpy(file["elevation"].astype(np.float32))
    x, y = _patches([heights], (3, 4), 150, side)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return (x - low) / (high - low).clamp(min=1e-6), y


def _patches(images: list[Tensor], fields: tuple[int, int], each: int, side: int, width: int = 24) -> tuple[Tensor, Tensor]:
    """Random patches from every field of a grid over every image."""
    generator, out = torch.Generator().manual_seed(0), []
    for image in images:
        tall, wide = image.shape[0] // fields[0], image.shape[1] // fields[1]
        for row in range(fields[0]):
            for column in range(fields[1]):
                part = image[row * tall : (row + 1) * tall, column * wide : (column + 1) * wide]
                windows = part.unfold(0, width, 1).unfold(1, width, 1).flatten(0, 1)
                out.append(windows[torch.randperm(len(windows), generator=generator)[:each]])
    labels = torch.arange(len(out)).repeat_interleave(torch.tensor([len(o) for o in out]))
    return resize(torch.cat(out)[:, None].contiguous(), side), labels


PICTURE_SETS = {"letters": _letters, "photographs": _photographs, "relief": _relief}


class SmallSets:
    """Small sets of pictures ``(n, 1, side, side)`` and labels ``(n,)`` by name; ``own`` of each are used without labels.

    Of the target, ``known`` are the pictures that may be used with their labels, and ``test`` those for tests. ``classes`` are
    the numbers of classes. ``ValueError`` if ``own`` is more than half of one of the sets.
    """

    def __init__(self, sets: Mapping[str, tuple[Tensor, Tensor]], own: int):
        name, most = min(((name, len(y) // 2) for name, (_, y) in sets.items()), key=lambda one: one[1])
        if own > most:
            raise ValueError(f"own_images must be at most {most}, half of the set {name}, got {own}")
        self.sets, self.own, self.n_test = sets, own, min(1000, (len(sets[TARGET][1]) - own) // 2)
        self.classes = {name: int(y.max()) + 1 for name, (_, y) in sets.items()}
        places = slice(own, -self.n_test), slice(-self.n_test, None)
        self.known, self.test = ([part[place] for part in sets[TARGET]] for place in places)

    @classmethod
    def load(cls, dataset: str, side: int, own: int, device="cpu") -> SmallSets:
        """Return the four sets in a fixed random order, with ``dataset`` as the target and pictures on ``device``."""
        target = load_images(dataset)
        x = resize(torch.cat([target.x_train, target.x_test]), side).mean(1, keepdim=True)
        sets = {TARGET: (x, torch.cat([target.y_train, target.y_test]))} | {n: PICTURE_SETS[n](side) for n in SETS[1:]}
        orders = {name: torch.randperm(len(y), generator=torch.Generator().manual_seed(0)) for name, (_, y) in sets.items()}
        return cls({name: (x[orders[name]].to(device), y[orders[name]]) for name, (x, y) in sets.items()}, own)

    def pool(self, union: Iterable[str]) -> Tensor:
        """Return the unlabelled pictures of some of the sets."""
        return torch.cat([self.sets[name][0][: self.own] for name in union])

    def labelled(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the places ``(R, n)`` of each run's labelled pictures among those of the target."""
        return torch.stack([torch.randperm(len(self.known[1]), generator=g)[:n] for g in generators])


# --- Colour images ---


class ColourImages:
    """Colour images of one set, drawn for a seed: ``unlabelled`` for pretraining, some of them with labels, and ``test``.

    The first ``n_valid`` unlabelled images choose the penalties of the probes; the rest are the images with labels.
    """

    def __init__(self, dataset: str, n: int, n_valid: int, n_test: int, side: int, seed: int, device):
        images = load_images(dataset)
        x, y = torch.cat([images.x_train, images.x_test]), torch.cat([images.y_train, images.y_test])
        rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[: n + n_test]
        x = resize(x[rows], side).expand(-1, 3, -1, -1).to(device, memory_format=torch.channels_last)
        self.unlabelled = x[:n]
        parts = {"valid": slice(n_valid), "labelled": slice(n_valid, n), "test": slice(n, None)}
        self.x = {part: x[where] for part, where in parts.items()}
        self.y = {part: y[rows][where] for part, where in parts.items()}


def balanced_subset(y: Tensor, n: int, g: torch.Generator) -> Tensor:
    """Return ``n`` random rows, equally many of each class; all rows if there are no more than ``n``."""
    if n >= len(y):
        return torch.arange(len(y))
    order = torch.randperm(len(y), generator=g)
    of_class = [order[y[order] == label] for label in range(int(y.max()) + 1)]
    return torch.cat([rows[: n // len(of_class)] for rows in of_class])


# --- Views ---


def _sampling_grid(maps: Tensor, height: int, width: int) -> Tensor:
    """Where affine ``maps`` ``(n, 2, 3)`` send the centres of pixels, ``(n, height, width, 2)``, in [-1, 1] from edge to edge.

    The same as PyTorch's ``affine_grid`` with ``align_corners=False``, whose many small products take ten times as long.
    """
    like = {"device": maps.device, "dtype": maps.dtype}
    y, x = ((2 * torch.arange(size, **like) + 1) / size - 1 for size in (height, width))
    centres = torch.stack([x.expand(height, width), y[:, None].expand(height, width), torch.ones(height, width, **like)])
    return (maps.flatten(0, 1) @ centres.flatten(1)).view(-1, 2, height, width).permute(0, 2, 3, 1)


def crop(x: Tensor, u: Tensor, scale: tuple[float, float], degrees: float = 0.0, side: int | None = None) -> Tensor:
    """Return a crop of each image ``(n, channels, height, width)``, resized and turned; uniform ``u`` ``(n, 5)`` decide.

    Its size is that of the images, or ``side`` pixels both ways.

    In turn: area, from ``scale`` (range of its share); width over height, from 3/4 to 4/3; angle, up to ``degrees`` (what lies
    outside repeats the border); place across and down. Source: the recipe of Chen and He 2021 (SimSiam), which Shi's thesis
    follows; rotation is ours.
    """
    u = u.T
    area = scale[0] + (scale[1] - scale[0]) * u[0]
    low, high = math.log(3 / 4), math.log(4 / 3)
    ratio = torch.exp(low + (high - low) * u[1])
    wide, tall = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    angle = math.radians(degrees) * (2 * u[2] - 1)
    across, down = (1 - wide) * (2 * u[3] - 1), (1 - tall) * (2 * u[4] - 1)
    cosine, sine = angle.cos(), angle.sin()
    rows = [wide * cosine, -tall * sine, across, wide * sine, tall * cosine, down]
    grid = _sampling_grid(torch.stack(rows, 1).unflatten(1, (2, 3)), *(x.shape[2:] if side is None else (side, side)))
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def grey_view(x: Tensor, draws: Tensor, scale: tuple[float, float] = (0.5, 1.0), degrees: float = 15.0) -> Tensor:
    """Return the views of grey pictures ``(n, 1, height, width)`` that uniform numbers ``draws`` ``(n, 7)`` decide.

    The first five decide the :func:`crop`, the others factors of contrast and brightness from 0.6 to 1.4.
    """
    u = draws.to(x)
    out = crop(x, u[:, :5], scale, degrees)
    mean = out.mean((1, 2, 3), keepdim=True)
    contrast, brightness = (0.6 + 0.8 * u[:, 5:, None, None]).split(1, 1)
    return (((out - mean) * contrast + mean) * brightness).clamp_(0, 1)


def two_views(x: Tensor, generators: Sequence[torch.Generator], batch: int, rows=None, y: Tensor | None = None) -> Callable:
    """Return the ``batches`` of two views ``(R, n, ...)`` of the same random pictures of ``x``, with their labels if ``y``.

    Each run draws with its generator, from its own ``rows`` ``(R, m)`` or from all. n is the smaller one of ``batch`` and m.
    """
    rows = torch.arange(len(x)).expand(len(generators), -1) if rows is None else rows
    size = min(batch, rows.shape[1])

    def draw(step):
        places = [row[torch.randint(len(row), (size,), generator=g)] for row, g in zip(rows, generators)]
        return torch.stack(places), torch.stack([torch.rand(2 * size, 7, generator=g) for g in generators])

    drawn = in_blocks(draw, x.device)

    def batches(step):
        places, u = drawn(step)
        both = x[places.repeat(1, 2)].flatten(0, 1)
        views = grey_view(both, u.flatten(0, 1)).unflatten(0, (len(rows), -1)).split(size, 1)
        return views if y is None else (*views, y[places])

    return batches


LUMA = torch.tensor([0.299, 0.587, 0.114])


def recoloured(x: Tensor, u: Tensor) -> Tensor:
    """Change the colours of images by uniform numbers ``u`` ``(n, 6)``.

    In turn: lightness, contrast, saturation, hue, whether these change, whether the image loses its colours.
    """
    light, contrast, saturation = (0.6 + 0.8 * u[:, i, None, None] for i in range(3))
    angle = 0.2 * math.pi * (2 * u[:, 3] - 1)
    grey, unit = LUMA.to(x).expand(3, 3), torch.eye(3).to(x)
    cross = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]).to(x) / math.sqrt(3)
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    hue = cosine * unit + (1 - cosine) / 3 + sine * cross  # a rotation of the colours around the grey axis
    mix = light * hue @ (saturation * unit + (1 - saturation) * grey)
    mix = torch.where((u[:, 4] < 0.8)[:, None, None], mix, unit)
    contrast = torch.where((u[:, 4] < 0.8)[:, None, None], contrast, 1.0)
    mix = torch.where((u[:, 5] < 0.2)[:, None, None], grey @ mix, mix)
    out = mix @ x.flatten(2)
    mean = (LUMA.to(x) @ out).mean(-1)[:, None, None]
    return ((out - mean) * contrast + mean).clamp(0, 1).view(x.shape)


def colour_view(x: Tensor, g: torch.Generator, side: int) -> Tensor:
    """Return a random view of each image: a crop of ``side`` pixels both ways, perhaps mirrored, and other colours."""
    u = torch.rand(len(x), 12, generator=g).to(x.device)
    x = torch.where((u[:, 0] < 0.5)[:, None, None, None], x.flip(-1), x)
    return recoloured(crop(x, u[:, 1:6], (0.2, 1.0), side=side), u[:, 6:])
