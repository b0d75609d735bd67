"""Small sets of real pictures that ship inside packages, and random views of pictures in plain torch.

The sets are letters of many fonts, patches of photographs and patches of a relief.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.data import resize

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


PICTURE_SETS = {
    "letters": _letters,
    "photographs": _photographs,
    "relief": _relief,
}


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

    def crop(self, x: Tensor, u: Tensor) -> Tensor:
        """Return a crop of each image ``(n, channels, height, width)``, resized and turned; uniform ``u`` ``(n, 5)`` decide.

        In turn: area, aspect, angle, and place across and down.
        """
        u = u.T
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * u[0]
        low, high = math.log(3 / 4), math.log(4 / 3)
        ratio = torch.exp(low + (high - low) * u[1])
        wide, tall = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
        angle = math.radians(self.degrees) * (2 * u[2] - 1)
        across, down = (1 - wide) * (2 * u[3] - 1), (1 - tall) * (2 * u[4] - 1)
        cosine, sine = angle.cos(), angle.sin()
        rows = [wide * cosine, -tall * sine, across, wide * sine, tall * cosine, down]
        grid = _sampling_grid(torch.stack(rows, 1).unflatten(1, (2, 3)), *x.shape[2:])
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """Return the views of images ``x`` ``(n, channels, height, width)`` that uniform numbers ``draws`` ``(n, 7)`` decide.

        The first five decide the crop, the others contrast and brightness.
        """
        u = draws.to(x)
        out = self.crop(x, u[:, :5])
        mean = out.mean((1, 2, 3), keepdim=True)
        contrast, brightness = (0.6 + 0.8 * u[:, 5:, None, None]).split(1, 1)
        return (((out - mean) * contrast + mean) * brightness).clamp_(0, 1)
