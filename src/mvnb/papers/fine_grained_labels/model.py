"""The patch network with plain ReLU, a fixed head and biases that are moved by rule, and ways to draw its detectors.

A *detector* of a feature is a neuron that fires on the patches of this feature. A random neuron's inner product with a feature
is Gaussian, and a negative bias lets only the few most aligned ones fire; everything below is about those.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mvnb.gradients import label_cross_entropy, returns_gradients, weight_gradient
from mvnb.models import ResNet18, patch_logits
from mvnb.training import Params

SCALE, SLACK = 1e-5, 0.2
"""Standard deviation of the initial weights, and slack of the threshold in these units."""


class Start(NamedTuple):
    """Networks before training, and which neurons are singleton and which are possible detectors of which feature.

    The masks have shape ``(R, label, neuron, feature)``.
    """

    params: Params
    single: Tensor
    possible: Tensor


class ReluPatchObjective:
    r"""Cross-entropy of a stack of ReLU patch networks, with its gradient written by hand, and the rule for the biases.

    The network is ``F_c(x) = sum_r sum_p relu(<w_{c,r}, x^(p)> + b_{c,r})``, every class with neurons of its own
    (:func:`mvnb.models.patch_logits` with ``power=1``). An objective for :func:`mvnb.training.fit`: called with ``params``
    ``weight`` ``(R, n_classes, n_neurons, dim)`` and ``bias`` ``(R, n_classes, n_neurons)``, ``x`` ``(R, n, patches, dim)``
    and labels ``(R, n)``, it returns the mean losses ``(R,)`` and the gradients. The bias has no gradient but a rule: it
    falls by ``bias_rate`` times the distance that the neuron's weight moves, so what is returned in its place is
    ``bias_rate * |gradient of the weight|``, and plain gradient descent does the rest.

    ``superclasses`` trains the *max read-out*: the labels are 0 and 1, and the two logits are the largest outputs of the first
    and of the second half of the classes. Source: Hong et al. 2024, eqs. (2), (16) to (18) and Appendix G.
    """

    def __init__(self, bias_rate: float, superclasses: bool = False):
        if bias_rate < 0:
            raise ValueError(f"bias_rate must not be negative, got {bias_rate}")
        self.bias_rate, self.superclasses = bias_rate, superclasses

    @returns_gradients(weight="R classes neurons dim", bias="R classes neurons", x="R n patches dim", y="int R n")
    def __call__(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        weight, bias = params["weight"], params["bias"]
        rows = x.flatten(1, 2)  # (R, n * patches, dim)
        hidden = relu_responses(weight, bias, x)  # (R, n, patches, class, neuron)
        logits = hidden.sum(2).sum(-1)
        losses, push = self._max_read_out(logits, y) if self.superclasses else label_cross_entropy(logits, y)
        push = push[:, :, None, :, None].expand_as(hidden)
        d_hidden = torch.ops.aten.threshold_backward(push, hidden, 0)  # push where the neuron fires, 0 elsewhere
        grad = weight_gradient(d_hidden.flatten(3).flatten(1, 2), rows).reshape(weight.shape)
        return losses, {"weight": grad, "bias": self.bias_rate * grad.norm(dim=-1)}

    @staticmethod
    def _max_read_out(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        best, where = logits.unflatten(-1, (2, -1)).max(-1)  # (R, n, 2)
        losses, push = label_cross_entropy(best, y)
        routed = torch.zeros_like(logits).unflatten(-1, (2, -1)).scatter_(-1, where[..., None], push[..., None])
        return losses, routed.flatten(-2)


def relu_responses(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Return the response of every neuron to every patch, ``(R, n, patches, n_classes, n_neurons)``.

    ``x`` is ``(R, n, patches, dim)``, or ``(n, patches, dim)`` for points that all replicas see.
    """
    x = x.expand(len(weight), *x.shape[-3:])
    rows = x.flatten(1, 2)
    response = torch.baddbmm(bias.flatten(1)[:, None], rows, weight.flatten(1, 2).mT).relu_()
    return response.view(*x.shape[:3], *bias.shape[1:])


def relu_logits(params: dict[str, Tensor], x: Tensor, chunk: int = 32) -> Tensor:
    """Return the outputs ``(R, n, n_classes)`` at ``x``, as for :func:`relu_responses`, ``chunk`` points at a time."""
    parts = (patch_logits(params["weight"], part, None, 1, 1.0, params["bias"]) for part in x.split(chunk, -3))
    return torch.cat(list(parts), 1)


def max_read_out(logits: Tensor) -> Tensor:
    """Return the two superclass logits, the largest outputs of the first and of the second half of the classes."""
    return logits.unflatten(-1, (2, -1)).amax(-1)


def compressed_detectors(
    n_classes: int, n_neurons: int, n_features: int, dim: int, scale: float, threshold: float, generators: Sequence, slack=0.3
) -> dict[str, Tensor]:
    """Return networks without the neurons that never fire: ``weight`` ``(R, n_classes, kept, dim)`` and ``bias``.

    Of ``n_neurons`` drawn for every class, with weights ``N(0, scale^2)`` and biases ``-scale * threshold``, those remain whose
    inner product with some of the first ``n_features`` axes is at least ``scale * (threshold - slack)``. A neuron below fires
    on no feature patch, hence never moves (Hong et al. 2024, Theorem F.1). Classes and replicas with fewer neurons are filled
    up with ones that cannot fire (weight 0, bias ``-scale * threshold``). With an infinite slack all neurons remain.
    """
    rows = []
    for g in generators:
        for _ in range(n_classes):
            features = torch.randn(n_neurons, n_features, generator=g)
            features = features[features.amax(1) >= threshold - slack]
            rest = torch.randn(len(features), dim - n_features, generator=g)
            rows.append(scale * torch.cat([features, rest], 1))
    weight = pad_sequence(rows, batch_first=True).unflatten(0, (len(generators), n_classes))
    return {"weight": weight, "bias": torch.full(weight.shape[:-1], -scale * threshold)}


def stratified_detectors(
    n_classes: int, n_features: int, dim: int, scale: float, replicas: int, dtype=torch.float32
) -> dict[str, Tensor]:
    """Return the idealised network, in which neuron f of every class is a detector of feature f and of nothing else.

    Since all detectors of one class and feature move alike, n of them behave as one trained with n times the step.
    The start is a tenth above the threshold ``scale``, so that the neuron also fires on weaker patches.
    """
    weight = torch.zeros(replicas, n_classes, n_features, dim, dtype=dtype)
    weight[..., torch.arange(n_features), torch.arange(n_features)] = 1.1 * scale
    return {"weight": weight, "bias": torch.full(weight.shape[:-1], -scale, dtype=dtype)}


def detector_masks(
    weight: Tensor, n_features: int, scale: float, threshold: float, slack: float = 0.3
) -> tuple[Tensor, Tensor]:
    """Return which neurons are singleton and which are possible detectors of each feature, ``(..., neurons, features)``.

    A possible detector's inner product with the feature is at least ``scale * (threshold - slack)``. A singleton's is at least
    ``scale * (threshold + slack)``, and it is a possible detector of nothing else: the sets S* and S of Hong et al. 2024,
    Definition C.1, with a finite slack in the place of the vanishing one.
    """
    aligned = weight[..., :n_features] / scale
    possible = aligned >= threshold - slack
    return (aligned >= threshold + slack) & (possible.sum(-1, keepdim=True) == 1), possible


def resnet34(channels: int) -> nn.Module:
    """Return the body of a ResNet-34 (He et al. 2016) for small images: a ResNet-18 with more blocks and no last layer."""
    net = ResNet18(channels, 1)
    widths = [64, *(width for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)) for _ in range(count))]
    net.blocks = nn.Sequential(*(type(net.blocks[0])(a, b, 1 if a == b else 2) for a, b in pairwise(widths)))
    net.head = nn.Identity()
    return net


def convolutions(x: Tensor, n_labels: int, width: int, seed: int) -> nn.Sequential:
    """Return an untrained network for images like ``x``: four convolutions, an average over the image, and a linear layer.

    The convolutions are 3x3, with batch normalisation, and have ``width`` to ``4 * width`` channels; each of the first three
    halves the side.
    """
    torch.manual_seed(seed)
    sizes, layers = [x.shape[1], width, 2 * width, 4 * width, 4 * width], []
    for (inputs, outputs), stride in zip(pairwise(sizes), (2, 2, 2, 1)):
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], n_labels)]
    return nn.Sequential(*layers).to(x.device, memory_format=torch.channels_last)
