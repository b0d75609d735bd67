"""One hidden layer with the activation z -> z^k on k one-hot inputs, with a hand-derived gradient for a stack of replicas."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mvnb.gradients import label_cross_entropy, returns_gradients


def polynomial_logits(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits ``(R, n, p)`` of a stack: ``u`` ``(R, k, p, width)``, ``w`` ``(R, width, p)``, integers ``x`` ``(R, n, k)``."""
    return torch.bmm(_sums(params["u"], _rows(params["u"], x)) ** x.shape[-1], params["w"])


def _rows(u: Tensor, x: Tensor) -> Tensor:
    """Where ``u[r, j, x[r, i, j]]`` stands among the rows of ``u``, ``(R, n, k)``."""
    replicas, k, p, _ = u.shape
    return x + p * torch.arange(k, device=x.device) + k * p * torch.arange(replicas, device=x.device)[:, None, None]


def _sums(u: Tensor, rows: Tensor) -> Tensor:
    """``sum_j u[r, j, x[r, i, j]]``, ``(R, n, width)``."""
    return nn.functional.embedding_bag(rows.flatten(0, 1), u.flatten(0, 2), mode="sum").unflatten(0, rows.shape[:2])


def _neuron_norms(params: dict[str, Tensor]) -> Tensor:
    """Euclidean norms ``(R, width)`` of the neurons, embeddings and output weights together."""
    return (params["u"].square().sum((1, 2)) + params["w"].square().sum(2)).sqrt()


def group_norm(params: dict[str, Tensor]) -> Tensor:
    """``(sum_i |theta_i|^(k+1))^(1/(k+1))``, ``(R,)``: the norm ``L_{2,k+1}`` of Shi thesis 2024, section 4.3.1."""
    return torch.linalg.vector_norm(_neuron_norms(params), params["u"].shape[1] + 1, dim=1)


class PolynomialObjective:
    r"""Cross-entropy plus ``penalty`` times the norm :func:`group_norm` of a stack, with its gradient written by hand.

    An objective for :func:`mvnb.training.fit`. Called with ``params`` ``u`` ``(R, k, p, width)`` and ``w`` ``(R, width, p)``,
    integers ``x`` ``(R, n, k)`` and labels ``y`` ``(R, n)`` it returns the losses ``(R,)`` and the gradients. The norm itself
    is added, not a power of it, as in Shi thesis 2024, Definition 4.1. ``ValueError`` for a negative penalty.
    """

    def __init__(self, penalty: float = 0.0):
        if penalty < 0:
            raise ValueError(f"penalty must not be negative, got {penalty}")
        self.penalty = penalty

    @returns_gradients(u="R k p width", w="R width p", x="int R n k", y="int R n")
    def __call__(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        u, w, k = params["u"], params["w"], x.shape[-1]
        rows = _rows(u, x)
        z = _sums(u, rows)  # (R, n, width)
        power = z ** (k - 1)
        act = power * z
        loss, push = label_cross_entropy(torch.bmm(act, w), y)  # push: derivative in the logits, (R, n, p)
        d_z = torch.bmm(push, w.mT).mul_(power).mul_(k)
        grads = {"u": torch.zeros_like(u), "w": torch.bmm(act.mT, push)}
        for j in range(k):  # every point adds to the k rows that it read
            grads["u"].flatten(0, 2).index_add_(0, rows[..., j].flatten(), d_z.flatten(0, 1))
        return (loss + self._penalise(params, grads), grads) if self.penalty else (loss, grads)

    def _penalise(self, params: dict[str, Tensor], grads: dict[str, Tensor]) -> Tensor:
        """Adds the penalty's gradient, ``theta_i |theta_i|^(k-1) / norm^k`` times its coefficient; returns its value."""
        k = params["u"].shape[1]
        size, norm = _neuron_norms(params), group_norm(params)
        scale = self.penalty * (size / norm[:, None]) ** (k - 1) / norm[:, None]  # (R, width); the powers stay below 1
        grads["u"].addcmul_(params["u"], scale[:, None, None])
        grads["w"].addcmul_(params["w"], scale[..., None])
        return self.penalty * norm
