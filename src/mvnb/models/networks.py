"""Neural networks for images and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Sequential):
    """Fully connected ReLU network with PyTorch's default initialisation.

    ``widths`` contains the number of inputs, the widths of the hidden layers and the number of outputs. Raises ``ValueError``
    if there are less than two numbers or one is less than 1.

    >>> import torch
    >>> MLP([6, 16, 3])(torch.ones(8, 6)).shape
    torch.Size([8, 3])
    """

    def __init__(self, widths: Sequence[int]):
        if len(widths) < 2 or min(widths) < 1:
            raise ValueError(f"widths must hold at least two numbers of at least 1, got {list(widths)}")
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(widths)):
            layers += [nn.ReLU()] * (i > 0) + [nn.Linear(a, b)]
        super().__init__(*layers)


class SmallConvNet(nn.Module):
    """Small convolutional network that trains fast on CPUs.

    It consists of three 3x3 convolutions with group normalisation, global average pooling and a linear output layer. Inputs
    have shape ``(n, in_channels, height, width)``, with a height and width of at least 4. The first convolution has ``width``
    output channels, a multiple of 4, and the others have ``2 * width``. Since the network has no buffers, a stack of such
    networks can be evaluated in one call of ``torch.func.vmap``.
    """

    def __init__(self, in_channels: int, n_classes: int, width: int = 16):
        super().__init__()
        widths = [in_channels, width, 2 * width, 2 * width]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(4, b) for b in widths[1:])
        self.head = nn.Linear(widths[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            x = F.relu(norm(conv(x)))
            if i < 2:
                x = F.avg_pool2d(x, 2)
        return self.head(x.mean((-1, -2)))


class _BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images.

    It consists of a 3x3 convolution of stride 1, four stages of two residual blocks, global average pooling and a linear output
    layer. Inputs have shape ``(n, in_channels, height, width)``. The first stage has ``width`` channels, and each further stage
    has twice as many as the previous one. Source: He et al. 2016, in the variant for CIFAR of Chidambaram et al. 2024, section
    5.
    """

    def __init__(self, in_channels: int, n_classes: int, width: int = 64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks, inputs = [], width
        for stage in range(4):
            for block in range(2):
                outputs = width * 2**stage
                blocks.append(_BasicBlock(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((-1, -2)))
