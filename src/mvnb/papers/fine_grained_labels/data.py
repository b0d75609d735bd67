"""Data whose classes lie within superclasses: hierarchical multi-view points, label functions, and images.

Points are drawn in *feature coordinates*: axes 0 and 1 are the common features of the two superclasses, axis ``2 + c`` is the
fine feature of subclass ``c`` (superclass ``c // k``), then come background features, and the remaining axes hold noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.data import load_images
from mvnb.data.multi_view import place, random_positions
from mvnb.papers.fine_grained_labels import theory
from mvnb.seeds import Seed, as_generator

NOISE, COMMON, FINE, DISTRACTOR, STRONG_NOISE, BACKGROUND = range(6)
"""Contents of a patch, as recorded in the field ``kind`` of a sample."""


class HierarchicalPatches(NamedTuple):
    """Points of hierarchical multi-view data.

    ``x`` ``(..., n, patches, dim)``; ``subclass`` ``(..., n)`` from 0 to 2k - 1, the first k of them in superclass 0;
    ``superclass`` ``(..., n)``, 0 or 1; ``kind`` ``(..., n, patches)``, what each patch holds; ``background`` ``(..., n)``, -1
    where there is none.
    """

    x: Tensor
    subclass: Tensor
    superclass: Tensor
    kind: Tensor
    background: Tensor


@dataclass(frozen=True)
class HierarchicalMultiView:
    r"""Two superclasses of k subclasses each; a point shows a common and a fine feature, on separate patches.

    Easy points of subclass (+, c): about ``signal_patches`` patches ``a v_+``, as many ``a v_{+,c}``, all others noise. Hard
    points lack the common feature; instead about ``distractor_patches`` patches hold the *other* superclass's common feature,
    weakly, and one patch is strong noise. Source: Hong et al. 2024, Definitions 4.1 and 4.2 and Appendix B.

    Parameters
    ----------
    n_subclasses
        Subclasses of each superclass, k.
    dim, n_patches
        Patch dimension d, at least the number of features, and patches of a point, P.
    signal_patches
        Patches of the common feature, and of the fine one, s*.
    jitter
        Signal coefficients are uniform on [sqrt(1 - jitter), sqrt(1 + jitter)], iota.
    noise, strong_noise
        Standard deviation, per coordinate, of the noise in every patch and of the one strong noise patch of a hard point.
    distractor_patches, distractor_low, distractor_high
        Patches with the other superclass's common feature in a hard point, s-dagger, and the range of their coefficients.
    binomial
        Draw each patch independently, as in the paper's appendix, so that the numbers of patches are right on average. By
        default the numbers are exact and the positions random.
    n_backgrounds, background_patches
        An extension: every point also shows one of these features, 1.5 times as strong as the others and independent of the
        label (none by default).
    """

    n_subclasses: int
    dim: int
    n_patches: int
    signal_patches: int = 4
    jitter: float = 0.1
    noise: float = 0.0
    strong_noise: float = 0.0
    distractor_patches: int = 4
    distractor_low: float = 0.25
    distractor_high: float = 0.35
    binomial: bool = False
    n_backgrounds: int = 0
    background_patches: int = 0

    def __post_init__(self):
        low, high, backgrounds = self.distractor_low, self.distractor_high, (self.n_backgrounds, self.background_patches)
        most = max(2 * self.signal_patches, self.signal_patches + self.distractor_patches + 1) + self.background_patches
        for right, message in (
            (self.n_subclasses >= 1, f"n_subclasses must be at least 1, got {self.n_subclasses}"),
            (self.dim >= self.n_features, f"dim must be at least the number of features, {self.n_features}, got {self.dim}"),
            (self.signal_patches >= 1, f"signal_patches must be at least 1, got {self.signal_patches}"),
            (self.distractor_patches >= 0, f"distractor_patches must not be negative, got {self.distractor_patches}"),
            (min(backgrounds) > 0 or backgrounds == (0, 0), "n_backgrounds and background_patches must both be positive, or 0"),
            (self.n_patches >= most, f"n_patches must be at least {most}, got {self.n_patches}"),
            (0 <= self.jitter < 1, f"jitter must lie in [0, 1), got {self.jitter}"),
            (0 <= low <= high, f"need 0 <= distractor_low <= distractor_high, got {low}, {high}"),
            (min(self.noise, self.strong_noise) >= 0, "noise and strong_noise must not be negative"),
        ):
            if not right:
                raise ValueError(message)

    @property
    def n_features(self) -> int:
        """Number of feature coordinates: 2 common, 2k fine, and the backgrounds."""
        return 2 + 2 * self.n_subclasses + self.n_backgrounds

    def sample(self, n: int, generator: Seed, hard: bool = False, dtype=torch.float32) -> HierarchicalPatches:
        """Draw ``n`` easy (or hard) points.

        The subclasses take turns, so any 2k consecutive points contain each of them once.
        """
        generator = as_generator(generator)
        subclass = torch.arange(n) % (2 * self.n_subclasses)
        superclass = subclass // self.n_subclasses
        background = torch.full((n,), -1)
        if self.n_backgrounds:
            background = torch.randint(self.n_backgrounds, (n,), generator=generator)
        axis = {
            COMMON: superclass,
            FINE: 2 + subclass,
            DISTRACTOR: 1 - superclass,
            STRONG_NOISE: torch.full((n,), -1),
            BACKGROUND: 2 + 2 * self.n_subclasses + background,
        }
        # The patches of a point in random order: the first so many are common, the next so many fine, and so on.
        position = random_positions(n, self.n_patches, self.n_patches, generator)
        rank, kind = torch.arange(self.n_patches).expand(n, -1), torch.full((n, self.n_patches), NOISE)
        axes = torch.full((n, self.n_patches), -1)
        taken = torch.zeros(n, 1, dtype=torch.long)
        for what, count in self._counts(n, generator, hard).items():
            mine = (rank >= taken) & (rank < taken + count[:, None])
            kind[mine] = what
            axes = torch.where(mine, axis[what][:, None], axes)
            taken = taken + count[:, None]
        x = torch.zeros(n, self.n_patches, self.dim, dtype=dtype)
        low, high = math.sqrt(1 - self.jitter), math.sqrt(1 + self.jitter)
        uniform = torch.rand(kind.shape, generator=generator, dtype=torch.float64)
        signal = torch.where(kind == BACKGROUND, 1.5, 1.0) * (low + (high - low) * uniform)
        weak = self.distractor_low + (self.distractor_high - self.distractor_low) * uniform
        place(x, axes, torch.where(kind == DISTRACTOR, weak, signal), position)
        kind = torch.empty_like(kind).scatter_(1, position, kind)
        scale = torch.where(kind == STRONG_NOISE, self.strong_noise, self.noise).to(dtype)
        if self.noise or (hard and self.strong_noise):
            x += scale[..., None] * torch.randn(x.shape, generator=generator, dtype=dtype)
        return HierarchicalPatches(x, subclass, superclass, kind, background)

    def _counts(self, n: int, generator: torch.Generator, hard: bool) -> dict[int, Tensor]:
        """Return the number of patches of each kind, ``(n,)`` each, in the order in which the paper assigns them."""

        def draw(mean: int, free: Tensor) -> Tensor:
            if not self.binomial:
                return torch.full((n,), mean)
            share = (mean / free.clamp(min=1)).clamp(max=1)
            return torch.binomial(free.double(), share.double(), generator=generator).long()

        free = torch.full((n,), self.n_patches)
        common = draw(self.signal_patches, free)
        fine = draw(self.signal_patches, free - common)
        if not hard:
            counts = {COMMON: common, FINE: fine}
        else:  # the strong noise needs a patch: where a binomial draw leaves none, it takes one
            fine = fine.clamp(max=self.n_patches - 1)
            weak = draw(self.distractor_patches, free - fine).minimum(free - fine - 1)
            counts = {FINE: fine, DISTRACTOR: weak, STRONG_NOISE: torch.ones_like(fine)}
        if self.n_backgrounds:
            left = free - sum(counts.values())
            counts[BACKGROUND] = draw(self.background_patches, left).minimum(left)
        return counts


# --- Labels of points ---


class Labels(NamedTuple):
    """Labels of the points of a world, a function ``of`` the points.

    ``table`` ``(label, feature)`` has Pr[label | feature]. ``ratio`` is the growth of common over fine features at the max
    read-out that one step on the expected loss gives.
    """

    of: Callable[[HierarchicalPatches], Tensor]
    table: np.ndarray
    ratio: float


def true_labels(k: int, groups: int) -> Labels:
    """Return the labels that divide the k subclasses of each superclass into equal groups; with one group they are coarse."""
    table = theory.grouped_label_probabilities(k, groups)
    return Labels(lambda points: points.subclass * groups // k, table, theory.growth_ratio(k, groups))


def drawn_ids(k: int, n_ids: int) -> Labels:
    """Return random IDs inside superclasses, one draw per point: the place of its strongest common patch, which is random."""
    return dealt_ids(k, n_ids)._replace(of=lambda p: n_ids * p.superclass + p.x[..., :2].amax(-1).argmax(-1) % n_ids)


def dealt_ids(k: int, n_ids: int, superclasses: int = 2) -> Labels:
    """Return IDs that the points of each subclass take in turn, within superclasses or, if there is one, independent of it."""
    table = theory.random_label_probabilities(k, n_ids, superclasses)
    return Labels(lambda points: n_ids * (points.superclass % superclasses) + _turn(points, k, n_ids), table, k)


def label_kinds(k: int, nearest: Mapping[int, Callable[[HierarchicalPatches], Tensor]]) -> dict[str, Labels]:
    """Return the kinds of labels that chapter 02 compares; ``nearest`` has functions of :func:`nearest_cluster` by number."""
    true = {"coarse": 1, "true, 2": 2, f"true, {k // 2}": k // 2, "fine": k}
    kinds = {name: true_labels(k, groups) for name, groups in true.items()}
    _, table, ratio = kinds["fine"]
    kinds["fine, split"] = Labels(lambda points: 2 * points.subclass + _turn(points, k, 2), table.repeat(2, 0) / 2, ratio)
    kinds |= {f"random, {n}": drawn_ids(k, n) for n in (2, 8)} | {"random, 8 dealt": dealt_ids(k, 8)}
    return kinds | {f"clusters, {n}": dealt_ids(k, n)._replace(of=label) for n, label in nearest.items()}


def _turn(points: HierarchicalPatches, k: int, n: int) -> Tensor:
    """Return for each point how often its subclass came before, modulo ``n``."""
    return torch.arange(points.x.shape[-3], device=points.x.device) // (2 * k) % n


# --- Label functions of images ---


def grouped_labels(classes: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return the group of each class. Raises ``ValueError`` unless every class is in exactly one of the ``groups``."""
    flat = [c for group in groups for c in group]
    if sorted(flat) != list(range(len(flat))) or len(flat) <= int(classes.max()):
        raise ValueError("every class must be in exactly one group")
    table = torch.empty(len(flat), dtype=torch.long)
    for label, group in enumerate(groups):
        table[list(group)] = label
    return table[classes]


def random_ids(superclass: Tensor, n_ids: int, generator: Seed) -> Tensor:
    """Return labels ``n_ids * superclass + i`` with ``i`` uniform on ``n_ids``, independent of the data."""
    generator = as_generator(generator)
    return n_ids * superclass + torch.randint(n_ids, superclass.shape, generator=generator)


def cluster_within(points: np.ndarray, superclass: np.ndarray, n_clusters, seed: int, n_init: int = 1) -> np.ndarray:
    """Return labels of k-means clusters found inside every superclass: cluster c of superclass s is ``offset_s + c``.

    ``points`` ``(n, dim)``; ``superclass`` ``(n,)``, from 0; ``n_clusters`` is a number, or one number per superclass. With one
    superclass for all points this is k-means on the whole set. The best of ``n_init`` starts counts.
    """
    from sklearn.cluster import KMeans  # here, because importing it is slow

    sizes = np.broadcast_to(n_clusters, int(superclass.max()) + 1)
    labels, offset = np.empty(len(points), dtype=np.int64), 0
    for s, size in enumerate(sizes):
        mine = superclass == s
        labels[mine] = offset + KMeans(int(size), n_init=n_init, random_state=seed).fit_predict(points[mine])
        offset += int(size)
    return labels


def nearest_cluster(pools: HierarchicalPatches, n_clusters: int, seed: int, n_init: int):
    """Return a function from points to the label of the nearest centre of k-means clusters, found in each replica's pool.

    Points are embedded by the sums of their patches. Clusters are found inside each superclass, or on the whole pool if the
    superclass is 0 throughout. The function takes points of each replica, or points that all replicas see.
    """
    centres = []
    for pool, sign in zip(pools.x.sum(-2), pools.superclass):
        found = cluster_within(pool.numpy(), sign.numpy(), n_clusters, seed, n_init)
        centres.append(torch.stack([pool[found == c].mean(0) for c in np.unique(found)]))
    centres = torch.stack(centres)  # (R, centre, dim)

    def label(points: HierarchicalPatches) -> Tensor:
        sums = points.x.sum(-2).to(centres.dtype).expand(len(centres), -1, -1)  # (R, n, dim)
        home = torch.arange(centres.shape[1], device=sums.device) // n_clusters
        distance = torch.cdist(sums, centres.to(sums.device))  # (R, n, centre)
        return distance.masked_fill(home != points.superclass[..., None], torch.inf).argmin(-1)

    return label


# --- Images ---

TREES = {  # the target's groups of the ten classes, and groups just finer
    "digits": (((0, 2, 3, 5, 6, 8), (1, 4, 7, 9)), ((0, 6), (2, 3, 5, 8), (1, 4, 7, 9))),
    "cifar10": (((0, 1, 8, 9), (2, 3, 4, 5, 6, 7)), ((0, 1, 8, 9), (3, 4, 5, 7), (2, 6))),
}
VEHICLES = (0, 1, 8, 9)  # of CIFAR-10: airplane, automobile, ship, truck; the other six classes are animals
PAIRS = ((0, 8), (1, 9), (2, 6), (3, 5), (4, 7))  # airplane and ship, two cars, bird and frog, two pets, deer and horse
NETWORKS = ("mlp", "resnet34")
TARGET, JUST_FINER, CLASSES = "target", "just finer", "classes"


class LabelledImages(NamedTuple):
    """Images ``(n, channels, side, side)``, their labels ``(n,)`` by level, and test images with the target."""

    x: Tensor
    levels: dict[str, Tensor]
    x_test: Tensor
    y_test: Tensor


def load_labelled(dataset: str, network: str = "mlp", folder: str = "", side: int = 0) -> LabelledImages:
    """Load a data set of :data:`TREES`, or the ``folder`` if there is one, for a network of :data:`NETWORKS`.

    The levels of a data set are the target, three groups and the ten classes. Raises ``ValueError`` for other names.
    """
    for name, value, allowed in (("dataset", dataset, TREES), ("image_network", network, NETWORKS)):
        if value not in allowed:
            raise ValueError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
    if folder:
        return read_folder(Path(folder), side)
    images, (two, three) = load_images(dataset), TREES[dataset]
    levels = {TARGET: grouped_labels(images.y_train, two), JUST_FINER: grouped_labels(images.y_train, three)}
    levels[CLASSES] = images.y_train
    return LabelledImages(images.x_train, levels, images.x_test, grouped_labels(images.y_test, two))


def read_folder(folder: Path, side: int) -> LabelledImages:
    """Read images ``FOLDER/SUPERCLASS/CLASS/NAME``, scaled and cut to squares; every fifth image of a class is for testing.

    The levels are the superclasses, which are the target, and the classes. Raises ``ValueError`` if the folder does not have
    two superclasses or more, a class has fewer than five files, or a file is not an image.
    """
    from PIL import Image, ImageOps

    def inside(path: Path, folders: bool) -> list[Path]:
        found = path.iterdir() if path.is_dir() else ()
        return sorted(entry for entry in found if entry.is_dir() == folders and not entry.name.startswith("."))

    classes = [(s, path) for s, top in enumerate(inside(folder, True)) for path in inside(top, True)]
    if len({s for s, _ in classes}) < 2:
        raise ValueError(f"image_folder must be a folder SUPERCLASS/CLASS/IMAGE with two superclasses or more, got {folder}")
    x, rows = [], []
    for c, (s, path) in enumerate(classes):
        files = inside(path, False)
        if len(files) < 5:
            raise ValueError(f"image_folder must have five images or more in each class, got {len(files)} in {path}")
        for i, file in enumerate(files):
            try:
                with Image.open(file) as image:
                    x.append(np.array(ImageOps.fit(image.convert("RGB"), (side, side))))
            except OSError as error:
                raise ValueError(f"image_folder must contain images only: {error}") from None
            rows.append((s, c, i % 5 == 4))
    superclass, fine, test = torch.tensor(rows).T
    pixels, test = torch.from_numpy(np.stack(x)).permute(0, 3, 1, 2), test.bool()
    levels = {TARGET: superclass[~test], CLASSES: fine[~test]}
    return LabelledImages(pixels[~test], levels, pixels[test], superclass[test])


def image_labels(images: LabelledImages, chosen: Tensor, seed: int) -> dict[str, Tensor]:
    """Return labels ``(R, n)`` of each kind for the images ``chosen`` ``(R, n)`` by each run.

    Clusters are found by k-means in images of 8x8 pixels, where the paper uses CLIP embeddings.
    """
    small = F.adaptive_avg_pool2d(images.x.float(), 8).flatten(1)
    target = images.levels[TARGET][chosen]

    def clustered(within: Tensor, n_clusters: int) -> Tensor:
        size = min(n_clusters, *(n for w in within for n in torch.bincount(w).tolist()))
        found = [cluster_within(small[c].numpy(), w.numpy(), size, seed) for c, w in zip(chosen, within)]
        return torch.from_numpy(np.stack(found))

    return {name: labels[chosen] for name, labels in images.levels.items()} | {
        "5 clusters in each target class": clustered(target, 5),
        "20 clusters in each target class": clustered(target, 20),
        "10 clusters of all": clustered(torch.zeros_like(target), 10),
        "5 random IDs in each target class": random_ids(target, 5, seed),
        "one per image": torch.arange(chosen.shape[1]).expand_as(chosen),
    }


class Split:
    """Standardised images in parts that share none: ``pretraining`` and ``test``, of these ``sizes``, and ``validation``.

    The first two are drawn from the training images, anew for each seed. The official test images serve for validation alone,
    so that no choice sees an image of a test.
    """

    def __init__(self, dataset: str, sizes: dict[str, int], seed: int, device):
        images = load_images(dataset).standardised()
        order = torch.randperm(len(images.y_train), generator=torch.Generator().manual_seed(seed))
        if (free := len(order) - sum(sizes.values())) < 0:
            raise ValueError(f"sizes must sum to at most the {len(order)} training images, got {sizes}")
        parts = dict(zip(sizes, order.split([*sizes.values(), free])))
        x = {name: images.x_train[rows] for name, rows in parts.items()} | {"validation": images.x_test}
        self.x = {name: one.to(device, memory_format=torch.channels_last) for name, one in x.items()}
        self.y = {name: images.y_train[rows].to(device) for name, rows in parts.items()}
        self.y["validation"] = images.y_test.to(device)

    def target(self, part: str) -> Tensor:
        """Return 1 for vehicles and 0 for animals."""
        return torch.isin(self.y[part], torch.tensor(VEHICLES, device=self.y[part].device)).long()


def pretraining_labels(split: Split, seed: int) -> dict[str, Tensor]:
    """Return the labels of the pretraining images by each label function of the kept run.

    Clusters and random IDs divide the animals into six parts and the vehicles into four, like the classes. The random ID
    of each image is drawn by itself, uniformly, so that the parts are not of one size.
    """
    classes, target = split.y["pretraining"].cpu(), split.target("pretraining").cpu()
    g = torch.Generator().manual_seed(seed + 10**6)
    animal, vehicle = (torch.randint(n, target.shape, generator=g) for n in (6, 4))
    pixels = F.avg_pool2d(split.x["pretraining"], 2).flatten(1).cpu().numpy()
    return {
        "two": target,
        "pairs": grouped_labels(classes, PAIRS),
        "ten": classes,
        "clusters": torch.from_numpy(cluster_within(pixels, target.numpy(), (6, 4), seed)),
        "random IDs": torch.where(target == 1, 6 + vehicle, animal),
        "unique": torch.arange(len(classes)),
    }
