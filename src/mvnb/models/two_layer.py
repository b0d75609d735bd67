"""The two-layer network of the feature-learning papers and its linearisation, with hand-derived gradients for replicas."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from mvnb.gradients import returns_gradients


class TwoLayer(nn.Module):
    r"""One hidden layer, one output: ``g(x) = sum_i a_i s(<w_i, x> + b_i)``, ``s`` the ReLU or the ReLU cut off at 1.

    ``w`` ``(width, dim)``, ``b`` and ``a`` ``(width,)`` are given, since every paper draws them in its own way.
    Source: Shi thesis 2024, eq. (2.2) (truncated ReLU) and section 3.2 (ReLU).
    """

    def __init__(self, w: Tensor, b: Tensor, a: Tensor, truncated: bool = False):
        super().__init__()
        self.w, self.b, self.a, self.truncated = nn.Parameter(w), nn.Parameter(b), nn.Parameter(a), truncated

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``(..., n)`` at inputs ``x`` ``(..., n, dim)``."""
        z = x @ self.w.mT + self.b
        return z.clamp(0, 1 if self.truncated else None) @ self.a


def two_layer_outputs(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return outputs ``(R, n)`` at ``x`` ``(R, n, dim)`` of a stack of ReLU :class:`TwoLayer`. Differentiable."""
    hidden = torch.baddbmm(params["b"][:, None], x, params["w"].mT).relu_()
    return torch.bmm(params["a"][:, None], hidden.mT)[:, 0]


class TwoLayerObjective:
    """Logistic or hinge loss of a stack of :class:`TwoLayer`, with its gradient written by hand.

    An objective for :func:`mvnb.training.fit`. Called with ``params`` ``w`` ``(R, width, dim)``, ``b`` and ``a``
    ``(R, width)``, inputs ``x`` ``(R, n, dim)`` and labels ``y`` ``(R, n)`` of -1 and 1, in the floating type of ``params``,
    it returns the mean losses ``(R,)`` and the gradients. Both slopes are taken to be 0 at the kinks. Tensors that require a
    gradient are refused; for autograd, use :class:`TwoLayer`.
    """

    def __init__(self, loss: Literal["logistic", "hinge"] = "logistic", truncated: bool = False):
        if loss not in ("logistic", "hinge"):
            raise ValueError(f"loss must be 'logistic' or 'hinge', got {loss!r}")
        self.loss, self.truncated = loss, truncated

    @returns_gradients(w="R width dim", b="R width", a="R width", x="R n dim", y="R n")
    def __call__(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        w, b, a = params["w"], params["b"], params["a"]
        z = torch.baddbmm(b[:, None], x, w.mT)  # (R, n, width)
        hidden = z.clamp_(0, 1) if self.truncated else z.relu_()
        margin = y * torch.bmm(a[:, None], hidden.mT)[:, 0]
        if self.loss == "logistic":
            losses, push = nn.functional.softplus(-margin), -torch.sigmoid(-margin)
        else:
            losses, push = (1 - margin).clamp(min=0), -(margin < 1).to(margin.dtype)
        push = push * y / y.shape[1]  # derivative in the output, (R, n)
        d_a = torch.bmm(push[:, None], hidden)[:, 0]
        spread = push[..., None].expand_as(hidden)
        if self.truncated:
            d_z = torch.ops.aten.hardtanh_backward(spread, hidden, 0, 1)
        else:
            d_z = torch.ops.aten.threshold_backward(spread, hidden, 0)
        # The second layer's weights can wait: they are the same for all points.
        d_w = torch.bmm(d_z.mT, x).mul_(a[..., None])
        return losses.mean(1), {"w": d_w, "b": d_z.sum(1).mul_(a), "a": d_a}
