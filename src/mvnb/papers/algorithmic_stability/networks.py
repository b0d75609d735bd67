"""Residual networks for small images, and a gradient written by hand for the smaller of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb.gradients import label_cross_entropy, returns_gradients

_passed = torch.ops.aten.threshold_backward
"""The gradient where a ReLU is positive, else 0."""


class _Layers:
    """Linear layers of a stack of replicas by name, ``NAME.weight`` ``(R, out, in)`` and ``NAME.bias``, and their gradients."""

    def __init__(self, params: dict[str, Tensor]):
        self.params, self.grads = params, {}

    def forward(self, name: str, x: Tensor) -> Tensor:
        return torch.baddbmm(self.params[f"{name}.bias"][:, None], x, self.params[f"{name}.weight"].mT)

    def backward(self, name: str, slope: Tensor, x: Tensor, last: bool = False) -> Tensor | None:
        """Keep the gradient of a layer that saw ``x``; returns that in ``x``, unless it is the last to be asked."""
        self.grads[f"{name}.weight"], self.grads[f"{name}.bias"] = torch.bmm(slope.mT, x), slope.sum(1)
        return None if last else torch.bmm(slope, self.params[f"{name}.weight"])


class ResidualMLP(nn.Module):
    """Residual network on flattened images: a ReLU stem, ``blocks`` blocks of two layers with identity shortcuts, a head.

    Input ``(n, inputs)`` or images with ``inputs`` numbers. No normalisation: the last layer of each block starts at zero
    (Zhang et al. 2019, Fixup), the others with He's normal initialisation. Without buffers, so stacks run as one program.
    """

    def __init__(self, inputs: int, n_classes: int, width: int = 32, blocks: int = 2):
        super().__init__()
        self.stem = nn.Linear(inputs, width)
        self.first = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.head = nn.Linear(width, n_classes)
        _residual_init(self, self.second)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x.flatten(1)))
        for first, second in zip(self.first, self.second):
            h = F.relu(h + second(F.relu(first(h))))
        return self.head(h)


class ResidualMLPObjective:
    """Cross-entropy of a stack of :class:`ResidualMLP` and its gradient, written by hand.

    An objective for :func:`mvnb.training.fit`: ``params`` as of ``training.stack``, inputs ``x`` ``(R, n, ...)``,
    labels ``y`` ``(R, n)``. The same as ``training.ModuleObjective`` with that loss, two to four times faster at the sizes of
    chapter 4. Tensors that require a gradient are refused; for autograd, use :class:`ResidualMLP`.
    """

    @returns_gradients(x="R n ...", y="int R n")
    def __call__(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        layers = _Layers(params)
        x, blocks = x.flatten(2), sum(k.startswith("first") for k in params) // 2
        h, inner = [layers.forward("stem", x).relu_()], []
        for i in range(blocks):
            inner.append(layers.forward(f"first.{i}", h[-1]).relu_())
            h.append(layers.forward(f"second.{i}", inner[-1]).add_(h[-1]).relu_())
        loss, slope = label_cross_entropy(layers.forward("head", h[-1]), y)
        slope = layers.backward("head", slope, h[-1])
        for i in reversed(range(blocks)):
            slope = _passed(slope, h[i + 1], 0)
            part = _passed(layers.backward(f"second.{i}", slope, inner[i]), inner[i], 0)
            slope = slope + layers.backward(f"first.{i}", part, h[i])
        layers.backward("stem", _passed(slope, h[0], 0), x, last=True)
        return loss, layers.grads


class _PlainBlock(nn.Module):
    """Two 3x3 convolutions; the shortcut subsamples and pads with zero channels (option A of He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool):
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=not norm)
        self.norm1, self.norm2 = (nn.BatchNorm2d(outputs) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[..., :: self.stride, :: self.stride]
        shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, self.extra))
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + shortcut)


class ResNet20(nn.Module):
    """The ResNet-20 for small images and its smaller relatives; He et al. 2016, section 4.2.

    A 3x3 stem, three stages of ``blocks`` blocks with ``width``, 2 and 4 times ``width`` channels, stride 2 between stages,
    parameter-free shortcuts, global average pooling, a linear head. Inputs ``(n, in_channels, height, width)``. With the
    defaults about 0.27 million parameters. ``norm=False`` leaves out batch normalisation; the last convolution of each
    block then starts at zero, and a stack of such networks runs as one program. Weights have He's normal initialisation.
    """

    def __init__(self, in_channels: int, n_classes: int, width: int = 16, blocks: int = 3, norm: bool = True):
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.stem = nn.Conv2d(in_channels, width, 3, 1, 1, bias=not norm)
        self.stem_norm = nn.BatchNorm2d(width) if norm else nn.Identity()
        layers, inputs = [], width
        for stage, outputs in enumerate(widths):
            for block in range(blocks):
                layers.append(_PlainBlock(inputs, outputs, 2 if stage and not block else 1, norm))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, n_classes)
        _residual_init(self, [] if norm else [layer.conv2 for layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem_norm(self.stem(x)))
        return self.head(self.blocks(h).mean((-1, -2)))


def _residual_init(module: nn.Module, zeros: Sequence[nn.Module]) -> None:
    """He's normal initialisation of all weights, zero biases, and zeros in the given layers."""
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    for part in zeros:
        nn.init.zeros_(part.weight)
