"""One hidden layer with the activation z -> z^k on k one-hot inputs, with a hand-derived gradient for a stack of replicas."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mvnb.gradients import returns_gradients
from mvnb.models.patch_cnn import label_cross_entropy
from mvnb.papers.fourier_features import _polynomial_kernels


def polynomial_logits(params: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits ``(R, n, p)`` of a stack: ``u`` ``(R, k, p, width)``, ``w`` ``(R, width, p)``, integers ``x`` ``(R, n, k)``."""
    return torch.bmm(_sums(params["u"], x) ** x.shape[-1], params["w"])


def _sums(u: Tensor, x: Tensor) -> Tensor:
    """``sum_j u[r, j, x[r, i, j]]``, ``(R, n, width)``."""
    replicas, k, p, _ = u.shape
    index = x + p * torch.arange(k, device=x.device) + k * p * torch.arange(replicas, device=x.device)[:, None, None]
    return nn.functional.embedding(index, u.flatten(0, 2)).sum(2)


def neuron_norms(params: dict[str, Tensor]) -> Tensor:
    """Euclidean norms ``(R, width)`` of the neurons, embeddings and output weights together."""
    return (params["u"].square().sum((1, 2)) + params["w"].square().sum(2)).sqrt()


def group_norm(params: dict[str, Tensor]) -> Tensor:
    """``(sum_i |theta_i|^(k+1))^(1/(k+1))``, ``(R,)``: the norm ``L_{2,k+1}`` of Shi thesis 2024, section 4.3.1."""
    return torch.linalg.vector_norm(neuron_norms(params), params["u"].shape[1] + 1, dim=1)


class PolynomialObjective:
    r"""Cross-entropy plus ``penalty`` times the norm :func:`group_norm` of a stack, with its gradient written by hand.

    An objective for :func:`mvnb.training.fit`. Called with ``params`` ``u`` ``(R, k, p, width)`` and ``w`` ``(R, width, p)``,
    integers ``x`` ``(R, n, k)`` and labels ``y`` ``(R, n)`` it returns the losses ``(R,)`` and the gradients. The norm itself
    is added, not a power of it, as in Shi thesis 2024, Definition 4.1. On a CPU gathering and scattering are compiled
    (``compiled=False`` for tensor operations, which a GPU always uses). ``ValueError`` for a negative penalty.
    """

    def __init__(self, penalty: float = 0.0, compiled: bool = True):
        if penalty < 0:
            raise ValueError(f"penalty must not be negative, got {penalty}")
        self.penalty, self.compiled, self._scratch = penalty, compiled, None

    @returns_gradients
    def __call__(self, params: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        u, w = params["u"], params["w"]
        compiled = self.compiled and u.device.type == "cpu"
        act, slope = self._compiled_powers(u, x) if compiled else _powers(_sums(u, x), x.shape[-1])
        loss, push = label_cross_entropy(torch.bmm(act, w), y)  # push: derivative in the logits, (R, n, p)
        back = torch.bmm(push, w.mT)
        if compiled:
            d_u = torch.zeros_like(u)
            _polynomial_kernels.backward(back.numpy(), slope.numpy(), x.numpy(), d_u.numpy())
        else:
            d_u = _scattered(back * slope, x, u)
        grads = {"u": d_u, "w": torch.bmm(act.mT, push)}
        return (loss + self._penalise(params, grads), grads) if self.penalty else (loss, grads)

    def _compiled_powers(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:2], u.shape[-1])
        if self._scratch is None or self._scratch[0].shape != shape or self._scratch[0].dtype != u.dtype:
            self._scratch = u.new_empty(shape), u.new_empty(shape)  # kept: to have them anew costs more than to fill them
        _polynomial_kernels.forward(u.contiguous().numpy(), x.numpy(), *(v.numpy() for v in self._scratch))
        return self._scratch

    def _penalise(self, params: dict[str, Tensor], grads: dict[str, Tensor]) -> Tensor:
        """Adds the penalty's gradient, ``theta_i |theta_i|^(k-1) / norm^k`` times its coefficient; returns its value."""
        k = params["u"].shape[1]
        size, norm = neuron_norms(params), group_norm(params)
        scale = self.penalty * (size / norm[:, None]) ** (k - 1) / norm[:, None]  # (R, width); the powers stay below 1
        grads["u"].addcmul_(params["u"], scale[:, None, None])
        grads["w"].addcmul_(params["w"], scale[..., None])
        return self.penalty * norm


def _powers(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
    power = z ** (k - 1)
    return power * z, k * power


def _scattered(push: Tensor, x: Tensor, u: Tensor) -> Tensor:
    """Sums of ``push`` ``(R, n, width)`` over the points with each value of each input, in the shape of ``u``."""
    hot = nn.functional.one_hot(x, u.shape[2]).to(push.dtype)  # (R, n, k, p)
    return torch.einsum("rnkp,rnm->rkpm", hot, push)
