"""Two-layer network of the feature-learning papers, with hand-derived gradients for stacks of replicas."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from mvnb.gradients import returns_gradients


class TwoLayer(nn.Module):
    """Network ``g(x) = sum_i a_i s(<w_i, x> + b_i)`` with one hidden layer.

    ``s`` is the ReLU, or the ReLU truncated at 1 if ``truncated`` is true. The initial values of ``w`` ``(width, dim)``, ``b``
    ``(width,)`` and ``a`` ``(width,)`` are arguments, because each paper draws them differently. Source: Shi thesis 2024,
    eq. (2.2) (truncated ReLU) and section 3.2 (ReLU).

    >>> network = TwoLayer(torch.eye(2), b=torch.zeros(2), a=torch.tensor([1.0, -1.0]))
    >>> network(torch.tensor([[3.0, 1.0]])).tolist()
    [2.0]
    """

    def __init__(self, w: Tensor, b: Tensor, a: Tensor, truncated: bool = False):
        super().__init__()
        self.w, self.b, self.a, self.truncated = nn.Parameter(w), nn.Parameter(b), nn.Parameter(a), truncated

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs ``(..., n)`` for the inputs ``x`` ``(..., n, dim)``."""
        z = x @ self.w.mT + self.b
        return z.clamp(0, 1 if self.truncated else None) @ self.a


def two_layer_outputs(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs ``(R, n)`` of a stack of :class:`TwoLayer` networks with ReLU. Differentiable.

    ``params`` holds the stacked parameters ``w`` ``(R, width, dim)``, ``b`` ``(R, width)`` and ``a`` ``(R, width)``; the inputs
    ``x`` have shape ``(R, n, dim)``.

    >>> params = {"w": torch.eye(2)[None], "b": torch.zeros(1, 2), "a": torch.tensor([[1.0, -1.0]])}
    >>> two_layer_outputs(params, torch.tensor([[[3.0, 1.0]]]))
    tensor([[2.]])
    """
    hidden = torch.baddbmm(params["b"][:, None], x, params["w"].mT).relu_()
    return torch.bmm(params["a"][:, None], hidden.mT)[:, 0]


class TwoLayerObjective:
    """Logistic or hinge loss of a stack of :class:`TwoLayer` networks, with a hand-derived gradient.

    This is an objective for :func:`mvnb.training.fit`. Call it with the parameters ``w`` ``(R, width, dim)``, ``b``
    ``(R, width)`` and ``a`` ``(R, width)``, inputs ``x`` ``(R, n, dim)`` and labels ``y`` ``(R, n)`` of -1 and 1 in the
    floating type of the parameters. It returns the mean losses ``(R,)`` and the gradients. If ``truncated`` is true, the ReLU
    is truncated at 1. The slopes of activation and loss are taken as 0 at their kinks. Raises ``ValueError`` if ``loss`` is
    unknown. Tensors that require gradients are rejected; for autograd, use :class:`TwoLayer`.

    >>> params = {"w": torch.ones(5, 3, 2), "b": torch.zeros(5, 3), "a": torch.zeros(5, 3)}
    >>> value, grads = TwoLayerObjective("hinge")(params, torch.ones(5, 8, 2), torch.ones(5, 8))
    >>> value, grads["w"].shape
    (tensor([1., 1., 1., 1., 1.]), torch.Size([5, 3, 2]))
    """

    def __init__(self, loss: Literal["logistic", "hinge"] = "logistic", truncated: bool = False):
        if loss not in ("logistic", "hinge"):
            raise ValueError(f"loss must be 'logistic' or 'hinge', got {loss!r}")
        self.loss, self.truncated = loss, truncated

    @returns_gradients(w="R width dim", b="R width", a="R width", x="R n dim", y="sign R n")
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
        # The second layer's weights multiply the sum over points, which is smaller than its terms.
        d_w = torch.bmm(d_z.mT, x).mul_(a[..., None])
        return losses.mean(1), {"w": d_w, "b": d_z.sum(1).mul_(a), "a": d_a}
