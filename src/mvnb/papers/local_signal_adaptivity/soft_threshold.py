"""One filter and one learned threshold: the convolutional network of local signal adaptivity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mvnb.blocks import CACHED, in_parts
from mvnb.gradients import Params, returns_gradients
from mvnb.papers.local_signal_adaptivity import _soft_threshold_kernels as kernels


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


class SoftThresholdObjective:
    """Logistic loss of a stack of :class:`SoftThresholdFilter` and its gradient, written by hand.

    An objective for :func:`mvnb.training.fit`: ``params`` ``w`` ``(R, dim)`` and ``b`` ``(R,)``, points ``x``
    ``(R, n, patches, dim)``, labels ``y`` ``(R, n)`` of -1 and 1; returns losses ``(R,)`` and gradients. Both slopes are 0 at
    the kinks. Source: Karp thesis 2024, Algorithm 3.1.
    """

    @returns_gradients(w="R dim", b="R", x="R n patches dim", y="sign R n")
    def __call__(self, params: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        chunk = max(1, CACHED // x[0].numel()) if x.device.type == "cpu" else len(x)
        losses, w, b = in_parts(self._part, (params["w"], params["b"], x, y), chunk)
        return losses, {"w": w, "b": b}

    def _part(self, w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, flat = b[:, None, None], x.flatten(1, 2)  # (replica, batch * patch, dim)
        z = torch.bmm(w[:, None], flat.mT).view(x.shape[:3])  # the other way round takes five times as long
        up, down = (z + b).relu_(), (b - z).relu_()
        margin = y * (up - down).sum(-1)
        push = (-y * torch.sigmoid(-margin) / y.shape[1])[..., None]  # derivative in the output, (replica, batch, 1)
        up, down = up.sign_(), down.sign_()
        d_z = (up + down).mul_(push)
        d_w = torch.bmm(d_z.view(len(x), 1, -1), flat)[:, 0]
        return F.softplus(-margin).mean(1), d_w, ((up - down) * push).sum((1, 2))


class SurvivorObjective:
    r"""The same loss on ``n`` fresh :class:`~mvnb.papers.local_signal_adaptivity.data.SignalInNoise` points, without patches.

    A noise patch enters the output and the gradient in b through its projection on w alone, and the gradient in w through that
    and, if it survives the threshold, through a part orthogonal to w that is independent of everything else. So only the
    projections of the *surviving* patches are drawn (their number is binomial, their size a truncated Gaussian), and one
    Gaussian vector a step for all orthogonal parts. The law of losses and gradients is that of the dense objective.

    Called with float64 ``params`` ``w`` ``(R, dim)``, the signal along the first axis, and ``b`` ``(R,)``, and with the
    ``keys`` ``(R,)`` of a step (:func:`step_keys`), which decide all randomness. CPU only.
    """

    def __init__(self, n_noise: int, sigma: float, n: int):
        if n_noise < 1 or n < 1 or sigma <= 0:
            raise ValueError(f"need n_noise >= 1, n >= 1 and sigma > 0, got {n_noise}, {n} and {sigma}")
        self.n_noise, self.sigma, self.n = n_noise, sigma, n

    @returns_gradients(w="R dim", b="R", keys="int R")
    def outputs(self, params: Params, keys: Tensor) -> tuple[Tensor, ...]:
        """For a point with y = 1: the output and the sums of ``(p + q) Z``, ``p - q`` and ``(p + q)^2``; each ``(R, n)``."""
        own, sums = self._draw(params, keys.numpy().view(np.uint64))
        pull, tilt, square = map(torch.from_numpy, sums)
        return torch.from_numpy(own)[:, None] + pull + params["b"][:, None] * tilt, pull, tilt, square

    def _draw(self, params: Params, keys: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        w, b = params["w"].numpy(), params["b"].numpy()
        sums = [np.empty((len(b), self.n)) for _ in range(3)]
        kernels.survivors(keys, b, self.sigma * _lengths(w), self.n_noise, kernels.QUANTILES, *sums)
        return np.maximum(w[:, 0] + b, 0) - np.maximum(b - w[:, 0], 0), sums

    @returns_gradients(w="R dim", b="R", keys="int R")
    def __call__(self, params: Params, keys: Tensor) -> tuple[Tensor, Params]:
        w, b, keys = params["w"].numpy(), params["b"].numpy(), keys.numpy().view(np.uint64)
        own, sums = self._draw(params, keys)  # by symmetry, y = 1 throughout
        total, loose = np.empty((len(b), 5)), _gaussians(keys, w.shape[1])
        kernels.reduce(own, b, *sums, total)
        loss, push, pull, tilt, square = total.T
        ray = w / _lengths(w)[:, None]
        loose *= self.sigma * np.sqrt(square)[:, None]
        along = pull / _lengths(w) - (loose * ray).sum(1)
        d_w = along[:, None] * ray + loose
        up, down = w[:, 0] + b > 0, b - w[:, 0] > 0
        d_w[:, 0] += push * (up * 1.0 + down)
        d_b = tilt + push * (up * 1.0 - down)
        return torch.from_numpy(loss.copy()), {"w": torch.from_numpy(d_w), "b": torch.from_numpy(d_b)}


def _gaussians(keys: np.ndarray, dim: int) -> np.ndarray:
    """Return standard normal numbers ``(R, dim)`` from the keys, of streams that the survivors do not use."""
    mix = kernels.mix.py_func
    state = mix(~keys)[:, None] + np.arange(1, 2 * dim + 1, dtype=np.uint64) * kernels.GOLDEN
    uniform = ((mix(state) >> np.uint64(11)) + 0.5) * 2.0**-53
    return np.sqrt(-2 * np.log(uniform[:, ::2])) * np.cos(2 * np.pi * uniform[:, 1::2])


def _lengths(w: np.ndarray) -> np.ndarray:
    return np.maximum(np.linalg.norm(w, axis=1), 1e-150)


def step_keys(seed: int, replicas: int) -> Callable[[int], tuple[Tensor]]:
    """The ``batches`` of :func:`mvnb.training.fit` for :class:`SurvivorObjective`: a function of the step that returns keys.

    Replica r has the keys of a single run with seed ``seed + r``.
    """
    base = np.array([(seed + r) * 0xD1342543DE82EF95 % 2**64 for r in range(replicas)], dtype=np.uint64)

    def keys(step: int) -> tuple[Tensor]:
        return (torch.from_numpy((base + np.uint64((step + 1) * 0x632BE59BD9B4E019 % 2**64)).view(np.int64)),)

    return keys
