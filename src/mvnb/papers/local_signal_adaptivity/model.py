"""The networks of local signal adaptivity: a filter with a threshold, and a convolutional network of matrix products."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb.gradients import Params, returns_gradients

_POOL = 0.3  # the sum over places is scaled, to start well


class SoftThresholdFilter(nn.Module):
    """``f(X) = sum_i phi_b(<w, X_i>)`` with ``phi_b(x) = relu(x + b) - relu(-x + b)``: ``w`` ``(dim,)``, ``b`` a number.

    For b < 0 a soft threshold at ``|b|``, for b = 0 a linear classifier. Source: Karp thesis 2024, section 3.3.
    """

    def __init__(self, w: Tensor, b: float = 0.0):
        super().__init__()
        self.w, self.b = nn.Parameter(w), nn.Parameter(torch.tensor(b, dtype=w.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``(..., n)`` at inputs ``x`` ``(..., n, patches, dim)``."""
        z = x @ self.w
        return (torch.relu(z + self.b) - torch.relu(self.b - z)).sum(-1)


def _windows(x: Tensor, side: int, stride: int = 1) -> Tensor:
    """Return all square windows of ``x`` ``(..., height, width, channels)``, ``(..., rows, columns, side**2 * channels)``."""
    high, wide = (x.shape[axis] - side + 1 for axis in (-3, -2))
    parts = [x[..., i : i + high : stride, j : j + wide : stride, :] for i in range(side) for j in range(side)]
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

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``(n, n_classes)``. The sum over places is scaled by 0.3, to start well."""
        first = torch.relu(self.first(_windows(x.movedim(1, -1), 4, 2)))
        second = torch.relu(self.second(_windows(first, 3)))
        return self.head(_POOL * second.sum((1, 2)))

    def convolved(self, x: Tensor) -> Tensor:
        """Return the same by PyTorch's convolutions, which are faster for one wide network."""
        first, second = (
            layer.weight.unflatten(1, (side, side, -1)).movedim(-1, 1) for layer, side in ((self.first, 4), (self.second, 3))
        )
        x = F.conv2d(x, first, self.first.bias, 2).relu()
        return self.head(_POOL * F.conv2d(x, second, self.second.bias).relu().sum((2, 3)))


@returns_gradients
def window_jacobian(params: Params, x: Tensor, chunk: int = 500) -> Tensor:
    """Derivative of a :class:`WindowNet` of one output in all its parameters: ``(n, P)`` for images ``(n, ...)``.

    Every image is a stack of one, with the same parameters. Rows are the features of the empirical tangent kernel ``J J^T``
    (Jacot et al. 2018); parameters in the order of ``params``, each flattened.
    ``ValueError`` when the network has more than one output.
    """
    if len(params["head.bias"]) != 1:
        raise ValueError(f"the network must have one output, not {len(params['head.bias'])}")
    parts = []
    for z in x.split(chunk):
        many = {k: p.expand(len(z), *p.shape) for k, p in params.items()}
        layers = _forward(many, z[:, None])
        grads = _backward(many, layers, torch.ones_like(layers[-1]))
        parts.append(torch.cat([grads[k].flatten(1) for k in params], 1))
    return torch.cat(parts)


def _forward(params: Params, x: Tensor) -> tuple[Tensor, ...]:
    """Windows and activations of both layers, their pooled sum and the logits; axes (replica, image, row, column, channel)."""
    seen = _windows(x.movedim(2, -1), 4, 2)
    first = _affine(params, "first", seen).relu_()
    near = _windows(first, 3)
    second = _affine(params, "second", near).relu_()
    pooled = _POOL * second.sum((2, 3))
    return seen, first, near, second, pooled, _affine(params, "head", pooled)


def _backward(params: Params, layers: tuple[Tensor, ...], slope: Tensor) -> Params:
    """The gradient when that in the logits is ``slope`` ``(R, n, classes)``."""
    seen, first, near, second, pooled, _ = layers
    d_pooled = _POOL * torch.bmm(slope, params["head.weight"])
    d_second = torch.ops.aten.threshold_backward(d_pooled[:, :, None, None].expand_as(second), second, 0)
    d_near = torch.bmm(d_second.flatten(1, 3), params["second.weight"]).view_as(near)
    d_first = torch.ops.aten.threshold_backward(_windows_transposed(d_near, first), first, 0)
    grads = {}
    for name, inputs, out in (("first", seen, d_first), ("second", near, d_second), ("head", pooled, slope)):
        rows = out.flatten(1, -2)
        grads |= {f"{name}.weight": torch.bmm(rows.mT, inputs.flatten(1, -2)), f"{name}.bias": rows.sum(1)}
    return grads


def _affine(params: Params, name: str, x: Tensor) -> Tensor:
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    return torch.baddbmm(bias[:, None], x.flatten(1, -2), weight.mT).view(*x.shape[:-1], -1)


def _windows_transposed(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient in ``x`` from that in its windows of 3x3."""
    out, (rows, columns) = torch.zeros_like(x), grad.shape[2:4]
    for place, part in enumerate(grad.unflatten(-1, (9, -1)).unbind(-2)):
        i, j = divmod(place, 3)
        out[:, :, i : i + rows, j : j + columns] += part
    return out
