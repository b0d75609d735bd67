"""Networks: objectives of pretraining and of fine-tuning for stacks of patch networks, and networks for images.

The encoder is that of :func:`mvnb.models.patch_features`: kernels ``weight`` ``(R, kernels, dim)`` shared by all classes,
``h_r(X) = sum_p s(<w_r, x_p>)``. Each objective maps ``(params, *batch)`` to losses ``(R,)`` and gradients derived by hand, as
:func:`mvnb.training.fit` expects; losses are means over points. ``keep``, the probability that a patch is kept (theta), is a
number or one per replica; a ``mask`` ``(R, n, patches)`` holds 1 for a kept patch, and without it the loss is the exact
expectation over masks. Source: Pan, Zhou and Yan 2023.

For images, an *encoder* maps images ``(n, channels, height, width)`` to features ``(n, features, height / patch, width /
patch)``, one vector for each patch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from mvnb import probes
from mvnb.blocks import in_parts
from mvnb.gradients import label_cross_entropy, returns_gradients
from mvnb.models import ResNet18
from mvnb.models.activations import smoothed_relu_and_slope
from mvnb.training import Params

_CACHED = 100_000  # pre-activations (60 kernels on 1,500 patches, say) whose few arrays stay in a core's cache


class _Encoder:
    """An objective on kernels with the smoothed ReLU of an integer ``power`` and a ``threshold``."""

    def __init__(self, power: int, threshold: float):
        if power != int(power) or power < 2:
            raise ValueError(f"power must be an integer of at least 2, got {power}")
        if threshold <= 0:
            raise ValueError(f"threshold must be positive, got {threshold}")
        self.power, self.threshold = int(power), float(threshold)

    @returns_gradients(weight="R kernels dim", x="R n patches dim")
    def __call__(self, params: dict[str, Tensor], x: Tensor, *rest):
        names = list(params)
        # As many replicas at a time as fit into the cache; a GPU takes all of them.
        each = x.shape[1] * x.shape[2] * params["weight"].shape[1]
        size = max(1, _CACHED // each) if x.device.type == "cpu" else len(x)

        def part(*row):
            return self._losses(dict(zip(names, row)), *row[len(names) :])

        return in_parts(part, (*params.values(), x, *rest), size)

    def _activation(self, pre: Tensor, scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
        """Smoothed ReLU at ``scale * pre`` and its slope there."""
        value, slope = smoothed_relu_and_slope(pre * (scale / self.threshold), self.power)
        return value.mul_(self.threshold), slope

    @returns_gradients(weight="R kernels dim", x="R n patches dim")
    def features(self, weight: Tensor, x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
        """``sum_p s(scale <w_r, x_p>)``: ``(R, kernels, dim)``, ``(R, n, patches, dim)`` to ``(R, n, kernels)``."""
        value, _ = self._activation(torch.bmm(x.flatten(1, 2), weight.mT), scale)
        return value.unflatten(1, x.shape[1:3]).sum(2)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum of products a replica, without a tensor of the products."""
    return torch.bmm(a.flatten(1)[:, None], b.flatten(1)[..., None])[:, 0, 0]


def _per_replica(value: float | Tensor, like: Tensor) -> float | Tensor:
    return value.to(like.dtype).view(-1, *[1] * (like.dim() - 1)) if torch.is_tensor(value) else value


class TeacherStudentObjective(_Encoder):
    """Half the squared distance between the features of a teacher, who sees all, and of a student, who sees a masked point.

    Called as ``(params, x, keep, target=None)`` with ``x`` ``(R, n, patches, dim)``: the exact expectation over masks. The
    student's features are divided by ``keep``. The teacher is the student with kernels times ``tau = 1 + (1 - keep) / keep``
    (C_p = 1 and delta_t = 0), held fixed in the gradient; with ``target`` ``(R, n, kernels)`` those features take the teacher's
    place (a frozen teacher).
    Source: Pan et al. 2023, eqs. (2) and (3), Fact 2.1. ``ValueError`` for a power that is not an integer of at least 2.
    """

    def _losses(self, params: dict[str, Tensor], x: Tensor, keep, target: Tensor | None = None):
        flat, n = x.flatten(1, 2), x.shape[1]
        keep = _per_replica(keep, flat)
        pre = torch.bmm(flat, params["weight"].mT)  # (R, n * patches, kernels)
        value, slope = self._activation(pre)

        def split(t: Tensor) -> Tensor:
            return t.unflatten(1, (n, -1))  # (R, n, patches, kernels)

        if target is None:
            target = split(self._activation(pre, 1 + (1 - keep) / keep)[0]).sum(2)
        bias = target - split(value).sum(2)  # (R, n, kernels)
        extra = value * (1 / keep - 1)
        loss = (bias.square().sum((1, 2)) + _dot(extra, value)) / 2
        push = split(slope).mul_(bias[:, :, None] - split(extra))
        return loss / n, {"weight": torch.bmm(push.flatten(1, 2).mT, flat) / -n}


class MaskedAutoencoderObjective(_Encoder):
    """Half the squared distance between every patch and its reconstruction from the masked point by the tied decoder.

    Called as ``(params, x, keep, mask=None)``; patch p is reconstructed as ``sum_r w_r s(<w_r, x_p>) / keep`` if it is
    kept, as 0 if it is masked. ``gradient="paper"`` gives the direction printed in Fact 2.2, which is not the gradient.
    Source: Pan et al. 2023, Appendix H. ``ValueError`` for an unknown gradient or a power that is not an integer of at least 2.

    No tensor of the size of the data is made: ``<w_r, g_p>`` and ``s^T g`` go through the kernels' Gram matrix.
    """

    def __init__(self, power: int, threshold: float, gradient: Literal["exact", "paper"] = "exact"):
        super().__init__(power, threshold)
        if gradient not in ("exact", "paper"):
            raise ValueError(f"gradient must be 'exact' or 'paper', got {gradient!r}")
        self.gradient = gradient

    def _losses(self, params: dict[str, Tensor], x: Tensor, keep, mask: Tensor | None = None):
        weight, flat, n = params["weight"], x.flatten(1, 2), x.shape[1]
        keep = _per_replica(keep, flat)
        pre = torch.bmm(weight, flat.mT)  # (R, kernels, n * patches): products are faster with the longer side last
        value, slope = self._activation(pre)
        back = torch.bmm(torch.bmm(weight, weight.mT), value)  # <w_r, g_p>
        # In expectation a patch counts fully; a mask drops it, or counts it 1 / keep times.
        share = 1.0 if mask is None else mask.flatten(1)[:, None].to(value.dtype) / keep
        counted = value if mask is None else value * share
        rest = torch.add(pre, back, alpha=-1 / keep) if not torch.is_tensor(keep) else pre - back / keep
        loss = (_dot(flat, flat) - _dot(counted, rest) - _dot(counted, pre)) / 2
        ascent = slope.mul_(pre.clamp(min=0) if self.gradient == "paper" else rest).add_(value)
        if mask is not None:
            ascent = ascent * share
        other = value if self.gradient == "exact" else ascent
        decoded = torch.bmm(other, (value if self.gradient == "paper" else counted).mT)  # (R, K, K)
        grad = torch.bmm(ascent, flat) - torch.bmm(decoded, weight) / keep
        return loss / n, {"weight": grad / -n}


class FineTuneObjective(_Encoder):
    """Cross-entropy of a linear head on the encoder's features: ``F_i(X) = sum_r u_{i,r} h_r(X)``, with trained kernels.

    Called as ``(params, x, y)`` with ``params["head"]`` ``(R, n_classes, kernels)`` beside the kernels and labels ``(R, n)``.
    Source: Pan et al. 2023, section 3.3 and Appendix G. ``ValueError`` for a power that is not an integer of at least 2.
    """

    @returns_gradients(head="R classes kernels", weight="R kernels dim", x="R n patches dim", y="int R n")
    def __call__(self, params: dict[str, Tensor], x: Tensor, y: Tensor):
        return super().__call__(params, x, y)

    def _losses(self, params: dict[str, Tensor], x: Tensor, y: Tensor):
        head, flat, n = params["head"], x.flatten(1, 2), x.shape[1]
        value, slope = self._activation(torch.bmm(flat, params["weight"].mT))
        hidden = value.unflatten(1, (n, -1)).sum(2)  # (R, n, kernels)
        loss, push = label_cross_entropy(torch.bmm(hidden, head.mT), y)
        spread = slope.unflatten(1, (n, -1)).mul_(torch.bmm(push, head)[:, :, None])
        return loss, {"weight": torch.bmm(spread.flatten(1, 2).mT, flat), "head": torch.bmm(push.mT, hidden)}

    def logits(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """Outputs ``(R, n, n_classes)``."""
        return torch.bmm(self.features(params["weight"], x), params["head"].mT)


def best_correlations(params: Params, n_features: int) -> Tensor:
    """Return the best correlation of any kernel with each feature, ``(R, features)``.

    If classes own their kernels, ``(R, classes, kernels, dim)``, only those of the feature's class count.
    """
    weight = params["weight"][..., :n_features]
    return weight.amax(1) if weight.dim() == 3 else probes.max_correlation(weight).flatten(1)


def stray_correlations(params: Params, n_features: int, held: float) -> Tensor:
    """Return the largest correlation of a kernel with a feature that it does not hold, one below ``held``: ``(R,)``."""
    found = params["weight"][..., :n_features]
    return torch.where(found < held, found, 0.0).amax((1, 2))


# --- Images ---

PATCH = 4  # side of a patch in pixels


def convolutions(channels: int, width: int) -> nn.Sequential:
    """Return four 3x3 convolutions with batch normalisation, the first two of stride 2; ``2 * width`` features."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise([channels, width, 2 * width, 2 * width, 2 * width])):
        layers += [nn.Conv2d(a, b, 3, stride=2 if i < 2 else 1, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class Filler(nn.Module):
    """SimMIM: masked pixels are replaced by a learned number per channel; one linear layer decodes the features of a patch.

    Called with images and with ``masked`` ``(n, 1, height, width)``, which is true on masked pixels. Source: Xie et al. 2022.
    """

    def __init__(self, encoder: nn.Module, features: int, channels: int, patch: int = PATCH):
        super().__init__()
        self.encoder, self.token = encoder, nn.Parameter(torch.zeros(channels, 1, 1))
        self.decoder = nn.Sequential(nn.Conv2d(features, channels * patch**2, 1), nn.PixelShuffle(patch))

    def forward(self, x: Tensor, masked: Tensor) -> Tensor:
        return self.decoder(self.encoder(torch.where(masked, self.token, x)))


class Classifier(nn.Module):
    """An encoder, averages of its features over each of ``squares**2`` squares, and a linear layer with weights zero."""

    def __init__(self, encoder: nn.Module, features: int, n_classes: int, squares: int):
        super().__init__()
        self.encoder, self.pool = encoder, nn.Sequential(nn.AdaptiveAvgPool2d(squares), nn.Flatten())
        self.head = nn.Linear(features * squares**2, n_classes)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.encoder(x)))


class Network(NamedTuple):
    """An encoder ``make(channels, width)``, usual width, features per unit of it, patch side, squares of the classifier."""

    make: Callable[[int, int], nn.Module]
    width: int
    features: int
    patch: int
    squares: int


def _small(channels: int, width: int) -> nn.Module:
    """Each patch by itself, then two convolutions over patches."""
    return nn.Sequential(
        nn.Conv2d(channels, width, PATCH, stride=PATCH),
        nn.ReLU(),
        *(layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())),
    )


def _resnet18(channels: int, width: int) -> nn.Module:
    net = ResNet18(channels, 1, width)
    return nn.Sequential(net.stem, net.blocks)


NETWORKS = {"small": Network(_small, 16, 1, PATCH, 4), "resnet18": Network(_resnet18, 64, 8, 8, 1)}
