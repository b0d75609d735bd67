r"""Closed forms for looped linear attention, which descends the least-squares loss of its prompt.

Source: Shi thesis 2024, chapter 8 (after Chen, Li, Liang, Shi and Song 2024), called "Shi" below. Symbols: n examples in
dimension d, Gram matrix ``H = X^T X`` with eigenvalues ``spectrum``, extreme ones mu and L, condition number kappa; T loops
with step sizes ``steps``; ``share`` the squared coordinates of the unit vector theta* along the eigenvectors. After T loops
the error is a polynomial of H, ``p(lambda) = prod_t (1 - eta_t lambda)``, and everything here is about that polynomial. The
best steps for a mean spectrum, the loop with memory and the task's own mean square are derived in chapter 14.

Tensors in float64; the axis of eigenvalues is the last, and leading axes are prompts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def linear_attention(tokens: Tensor, key_query: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``(mask o (Z Q Z^T)) Z P``, the update that linear attention adds to the tokens Z. Differentiable.

    ``tokens`` Z has shape ``(..., n, width)``; ``key_query`` Q and ``value`` P have shape ``(width, width)``. Entry [i, j] of
    ``mask`` ``(n, n)`` is the weight with which token i attends to token j, 1 by default. Scale the mask or P to normalise the
    sum over tokens. Without a mask, this is the transpose of the layer in eq. (5.2), whose tokens are columns, with
    ``Q = (W^KQ)^T`` and ``P = (W^PV)^T / N``. Source: Shi thesis 2024, Def. 8.6.

    >>> linear_attention(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.eye(2), torch.eye(2))
    tensor([[2., 1.],
            [3., 2.]])
    """
    scores = tokens @ key_query @ tokens.mT  # (..., n, n)
    return (scores if mask is None else mask * scores) @ tokens @ value


def descent(x: Tensor, y: Tensor, steps: Tensor, start: Tensor | None = None) -> Tensor:
    """Gradient descent on ``|y - X theta|^2 / 2``: all iterates, ``(T + 1, ..., d)``.

    ``x`` ``(..., n, d)``, ``y`` ``(..., n)``, ``steps`` ``(T,)`` or one schedule a prompt ``(..., T)``; ``start``
    ``(..., d)``, zero by default. Source: Shi, eq. (8.2).
    """
    theta = torch.zeros_like(x[..., 0, :]) if start is None else start
    path = [theta]
    for eta in steps.unbind(-1):
        gradient = torch.einsum("...nd,...n->...d", x, torch.einsum("...nd,...d->...n", x, theta) - y)
        theta = theta - eta[..., None] * gradient
        path.append(theta)
    return torch.stack(path)


# --- The polynomial of a schedule ---


def residuals(spectrum: Tensor, steps: Tensor) -> Tensor:
    """``prod_{s <= t} (1 - eta_s lambda)`` after t = 0, ..., T loops: ``(..., d)`` and ``(..., T)`` to ``(..., T + 1, d)``.

    The error of the iterates is ``theta_t - theta* = -p_t(H) theta*`` from a start at zero.
    """
    factors = 1 - steps[..., :, None] * spectrum[..., None, :]
    return torch.cat([torch.ones_like(factors[..., :1, :]), factors.cumprod(-2)], -2)


def anatomy(x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues of ``X^T X``, ascending, and shares of theta* along eigenvectors, both ``(..., d)``, on the CPU."""
    spectrum, vectors = torch.linalg.eigh(x.mT @ x)
    return spectrum.cpu(), torch.einsum("...di,...d->...i", vectors, theta).square().cpu()


def momentum_residuals(spectrum: Tensor, step: float, momentum: float, loops: int) -> Tensor:
    """The same for the loop with memory, ``m' = momentum m - step gradient``, ``theta' = theta + m'``, from rest.

    ``(..., d)`` to ``(..., loops + 1, d)``, by ``r_{t+1} = (1 + momentum - step lambda) r_t - momentum r_{t-1}``.
    """
    path = [torch.ones_like(spectrum), 1 - step * spectrum]
    for _ in range(loops - 1):
        path.append((1 + momentum - step * spectrum) * path[-1] - momentum * path[-2])
    return torch.stack(path[: loops + 1], -2)


def log_error(spectrum: Tensor, share: Tensor, loops: Tensor, power: int = 2, step: Tensor | None = None) -> Tensor:
    """``log sum_i share_i |1 - eta lambda_i|^(power t)`` for a constant step, 1 / L by default, without a floor.

    ``spectrum`` and ``share`` ``(..., d)``, ``loops`` ``(K,)``; returns ``(..., K)``. ``power=2`` is the squared error of
    theta over its start; ``power=1`` the prediction error over alpha, where no factor is negative. It stays exact where an
    iterate in floating point has stopped at its rounding.
    """
    step = 1 / spectrum.amax(-1) if step is None else step
    rate = (1 - step[..., None] * spectrum).abs().log()  # -inf along the largest eigenvalue
    powers = power * loops[:, None] * rate[..., None, :]
    powers = torch.where((loops == 0)[:, None], 0.0, powers)  # 0 * -inf
    return torch.logsumexp(share.log()[..., None, :] + powers, -1)


def prediction_square(residual: Tensor) -> Tensor:
    """Mean square of ``sum_i share_i p_i`` over theta* uniform on the sphere: ``(..., d)`` to ``(...)``.

    ``(2 sum p^2 + (sum p)^2) / (d (d + 2))``, the squared prediction error over alpha squared. For p = 1 it is 1.
    """
    d = residual.shape[-1]
    return (2 * residual.square().sum(-1) + residual.sum(-1).square()) / (d * (d + 2))


def noise_square(spectrum: Tensor, residual: Tensor) -> Tensor:
    """Mean square that label noise of variance 1 adds to the prediction over alpha: ``mean_i (1 - p_i)^2 / lambda_i``.

    The mean is over noise and theta*; ``(..., d)`` twice to ``(...)``. At p = 0, least squares, it is ``tr(H^-1) / d``, on
    average over standard normal tokens ``1 / (n - d - 1)``.
    """
    return ((1 - residual).square() / spectrum).mean(-1)


def expected_square(spectrum: Tensor, deviation: float, loops: int) -> Tensor:
    """Mean squared prediction error over alpha ``(prompt, T + 1)`` of steps 1 / L, over tasks and noise of this deviation."""
    p = residuals(spectrum, (1 / spectrum[:, -1:]).expand(-1, loops))
    return prediction_square(p) + deviation**2 * noise_square(spectrum[:, None], p)


# --- Schedules ---


def chebyshev_steps(low: float, high: float, loops: int, kind: int = 1) -> Tensor:
    """Return the inverses of the zeros of a Chebyshev polynomial on [low, high], steps ``(T,)``; 0 < low <= high.

    ``kind=1``, the first kind: the least largest error over all spectra in [low, high]. ``kind=2``, the second: on the edges of
    a Marchenko-Pastur law they have the least mean squared error.
    """
    place = torch.arange(1, loops + 1, dtype=torch.float64)
    angle = place * math.pi / (loops + 1) if kind == 2 else (2 * place - 1) * math.pi / (2 * loops)
    return 1 / ((high + low) / 2 + (high - low) / 2 * angle.cos())


SCHEDULES = {
    "1/L": lambda low, high, loops: torch.full((loops,), 1 / high, dtype=torch.float64),
    "2/(L+mu)": lambda low, high, loops: torch.full((loops,), 2 / (low + high), dtype=torch.float64),
    "Chebyshev": chebyshev_steps,
}
"""Steps ``(T,)`` by smallest and largest eigenvalue and number of loops."""


# --- The best steps for a mean spectrum ---


def best_steps(nodes: Tensor, weights: Tensor, loops: int) -> Tensor:
    """Return the steps ``(T,)``, descending, of the least ``sum_i weights_i p(nodes_i)^2`` over schedules of T loops.

    ``nodes`` ``(N,)`` are positive eigenvalues of one prompt or of many, T or more different ones, ``weights`` ``(N,)`` their
    masses. The best p is the polynomial orthogonal in ``lambda weights``; its zeros are positive, so that the steps are. They
    are the eigenvalues of the matrix of its recurrence, which comes from Lanczos's method.
    """
    start = (nodes * weights).sqrt()
    basis, diagonal, off = [start / start.norm()], [], []
    for _ in range(loops):
        w = nodes * basis[-1]
        diagonal.append(w @ basis[-1])
        for b in basis * 2:  # twice: orthogonal up to rounding
            w = w - (w @ b) * b
        off.append(w.norm())
        basis.append(w / off[-1])
    return 1 / torch.linalg.eigvalsh(torch.diag(torch.stack(diagonal)) + torch.diag(torch.stack(off)[:-1], -1))


def best_steps_for(spectra: Tensor, loops: int) -> Tensor:
    """Return :func:`best_steps` ``(T,)`` for the mean over prompts with these ``spectra`` ``(prompt, d)``."""
    nodes = spectra.flatten()
    return best_steps(nodes, torch.full_like(nodes, 1 / len(nodes)), loops)


def edges(n: float, d: float) -> tuple[float, float]:
    """``(sqrt(n) -+ sqrt(d))^2``, where the spectrum of ``X^T X`` ends for large n and d."""
    return (n**0.5 - d**0.5) ** 2, (n**0.5 + d**0.5) ** 2


def least_mean_square(ratio, loops):
    """The least mean of ``p^2`` over a Marchenko-Pastur law: ``ratio^T (1 - ratio) / (1 - ratio^(T + 1))``, about (d/n)^T."""
    return ratio**loops * (1 - ratio) / (1 - ratio ** (loops + 1))


# --- The earlier bound ---


def earlier_bound(loops, dim, n):
    """Return ``8 T d^2 2^(2T) / sqrt(n)``, which is claimed from the n on where it is 1: its square at n = 1.

    Source: Gatmiry et al. 2024, Theorem 4.1, as Shi, Theorem 8.17, quotes it.
    """
    return 8 * loops * dim**2 * 4.0**loops / n**0.5
