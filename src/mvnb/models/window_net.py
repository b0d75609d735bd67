"""A convolutional network that matrix products alone can run: small windows, a sum over places, a linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def windows(x: Tensor, side: int, stride: int = 1) -> Tensor:
    """All square windows of ``x`` ``(n, height, width, channels)`` as vectors: ``(n, rows, columns, side**2 * channels)``."""
    high, wide = (x.shape[axis] - side + 1 for axis in (1, 2))
    parts = [x[:, i : i + high : stride, j : j + wide : stride] for i in range(side) for j in range(side)]
    return torch.cat(parts, -1)


class WindowNet(nn.Module):
    """Two convolutions without padding (4x4 with stride 2, 3x3), ReLUs, sum over places, linear head.

    A unit of the second layer sees 8x8 pixels. Inputs ``(n, in_channels, height, width)``, at least 8x8; without buffers,
    so that a stack runs as one program, and written with matrix products, which stacks of small networks need on CPUs.
    """

    def __init__(self, in_channels: int, n_classes: int, widths: tuple[int, int] = (16, 32)):
        super().__init__()
        self.first = nn.Linear(16 * in_channels, widths[0])
        self.second = nn.Linear(9 * widths[0], widths[1])
        self.head = nn.Linear(widths[1], n_classes)
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Activations of the two layers, ``(n, rows, columns, width)`` each."""
        first = torch.relu(self.first(windows(x.movedim(1, -1), 4, 2)))
        return first, torch.relu(self.second(windows(first, 3)))

    def forward(self, x: Tensor, hidden: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits ``(n, n_classes)``, or what :meth:`hidden` returns. The sum over places is scaled by 0.3, to start well."""
        layers = self.hidden(x)
        return layers if hidden else self.head(0.3 * layers[1].sum((1, 2)))
