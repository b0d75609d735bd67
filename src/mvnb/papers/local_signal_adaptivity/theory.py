"""Closed forms for *Local Signal Adaptivity: Provable Feature Learning in Neural Networks Beyond Kernels*.

Source: Karp, Winston, Li and Singh 2021, in the form of Karp's thesis 2024, chapter 3 and appendix B, called "Karp 2024"
below. One of k + 1 patches is ``y w_star``, the k others (``n_noise``) are ``N(0, sigma^2 I)``. The network is
``f(X) = sum_i phi_b(<w, X_i>)`` with ``phi_b(x) = relu(x + b) - relu(-x + b)``; ``c`` is the component of w along ``w_star``,
``v`` the norm of the rest, and a response to noise is ``S_i = phi_b(Z_i)`` with ``Z_i ~ N(0, s^2)``,
``s = sigma sqrt(c^2 + v^2)`` (``scale``). Everything after the Gaussian facts is derived in chapter 05; the paper bounds it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq
from scipy.special import ndtr, stdtr, wofz

# --- Gaussian facts ---


def _density(x):
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def noise_scale(n_noise):
    """Return the paper's noise level, ``sigma = log(k) / sqrt(k)``; the dimension of Theorem 3.2 is ``1 / sigma^2``."""
    return math.log(n_noise) / math.sqrt(n_noise)


def _soft_threshold(x: float, b: float) -> float:
    """Return ``phi_b(x)``: for b < 0 shrink by ``|b|``; for b >= 0 double up to b, then add b. Karp 2024, sec. 3.3."""
    return max(x + b, 0.0) - max(b - x, 0.0)


def _response_variance(scale, b):
    """``Var S_i = 2 ((s^2 + b^2) Phi(b / s) + b s phi(b / s))`` for ``b <= 0``; ``ValueError`` otherwise."""
    if np.any(np.asarray(b) > 0):
        raise ValueError(f"b must not be positive, got {b}")
    return 2 * ((scale**2 + b**2) * ndtr(b / scale) + b * scale * _density(b / scale))


def linear_accuracy(n_noise, sigma):
    """Return the accuracy of the sum of all patches along ``w_star``, the network with b = 0: ``Phi(1 / (sigma sqrt(k)))``."""
    return ndtr(1 / (sigma * np.sqrt(n_noise)))


# --- The sum of the noise responses, exactly ---


def _half_line(u, beta, scale):
    """``int_beta^inf exp(i u (z - beta)) phi(z / s) / s dz``, by the Faddeeva function w; ``beta >= 0``."""
    alpha = beta / scale
    return 0.5 * np.exp(-(alpha**2) / 2) * wofz((u * scale + 1j * alpha) / math.sqrt(2))


def _response(u, scale, b):
    """``E exp(i u S)``, ``E[Z sin(u S) 1{Z >= -b}]`` and ``E[sin(u S) 1{Z > |b|}]`` for one response S.

    The second by Stein's identity ``E[Z h(Z)] = s^2 E h'(Z)`` on each piece of the half-line.
    """
    tail = _half_line(u, abs(b), scale)
    if b <= 0:
        return 1 - 2 * ndtr(b / scale) + 2 * tail.real, scale**2 * u * tail.real, tail.imag
    turn = np.exp(2j * u * b)
    tail = turn * tail
    inner = 0.5 * np.exp(-2 * (u * scale) ** 2) - (turn * _half_line(2 * u, b, scale)).real
    edge = np.sin(2 * u * b) * _density(b / scale) / scale
    return 2 * (inner + tail.real), scale**2 * (u * tail.real + 4 * u * inner - edge), tail.imag


_legendre = cache(np.polynomial.legendre.leggauss)  # nodes and weights on (-1, 1)


def _rule(upper, panels):
    """Return nodes and weights on (0, upper), denser towards 0: Gauss-Legendre with 20 nodes on each of ``panels`` parts."""
    x, weight = _legendre(20)
    t = ((np.arange(panels)[:, None] + (x + 1) / 2) / panels).ravel()
    return upper * t**3, 3 * upper * t**2 * np.tile(weight / (2 * panels), panels)


_U, _W = _rule(12.0, 8)  # 1 / sinh(pi u) leaves less than 1e-15 beyond 12
_KERNEL = 2 * _W / np.sinh(np.pi * _U)


def accuracy(c, b, n_noise, sigma, v=0.0):
    """``Pr[y f(X) > 0]`` of the network, exactly, by inversion of the characteristic function.

    Ties (all units dead, or an output of 0) count as errors. Numbers ``c``, ``b``, ``v``; absolute error below 1e-4 where
    ``|b|`` is below 4 ``scale``.
    """
    scale = sigma * math.hypot(c, v)
    own = _soft_threshold(c, b)
    silent = max(1 - 2 * ndtr(b / scale), 0.0) ** n_noise if b < 0 else 0.0
    spread = math.sqrt(n_noise * max(_response_variance(scale, min(b, 0.0)), 1e-300))
    u, weight = _rule(200 / max(min(spread, scale), 1e-3 * scale), 60)
    loud = _response(u, scale, b)[0] ** n_noise - silent
    below = silent * (own > 0) + (1 - silent) / 2 + np.sum(weight * np.sin(u * own) * loud / u) / np.pi
    return float(np.clip(below, 0, 1))


class Gradient(NamedTuple):
    """The population gradient of the logistic loss along ``w_star``, the rest of w and b; and the noise's part of the first."""

    c: float
    v: float
    b: float
    c_noise: float


def population_gradient(c, b, n_noise, sigma, v=0.0):
    r"""The exact population gradient at ``(c, v, b)``, not all of c and v 0; quadrature error about 1e-10.

    The noise part along ``w_star`` is ``c / (c^2 + v^2) k int_0^inf 2 cos(u g) M(u) cf(u)^(k - 1) / sinh(pi u) du`` with
    ``g = phi_b(c)`` and ``M(u) = E[Z sin(u S) 1{Z >= -b}]``: Karp 2024, appendix B.1 (proof of Lemma 3.1), in Fourier space.
    """
    size = math.hypot(c, v)
    scale = sigma * size
    own = _soft_threshold(c, b)
    one, weighted, sine = _response(_U, scale, b)
    others = _KERNEL * one ** (n_noise - 1)
    both = others * np.cos(_U * own)
    pull = n_noise * (both @ weighted) / size**2
    push = n_noise * (both @ sine)
    wrong = 0.5 - 0.5 * ((others * one) @ np.sin(_U * own))  # E sigmoid(-y f)
    up, down = float(c >= -b), float(c <= b)
    return Gradient(c * pull - wrong * (up + down), v * pull, push - wrong * (up - down), c * pull)


def population_path(steps, n_noise, sigma, step_size, b_rate, c0=1e-6, log_every=1):
    """Return gradient descent on the population loss from ``(c0, 0)``, with v = 0: arrays ``(c, b)`` of shape ``(2, logged)``.

    ``b_rate`` is the step of b over that of w. The state after every ``log_every`` steps is kept, the start included.
    """
    path = [(c0, 0.0)]
    for _ in range(steps):
        c, b = path[-1]
        g = population_gradient(c, b, n_noise, sigma)
        path.append((c - step_size * g.c, b - step_size * b_rate * g.b))
    return np.array(path[::log_every]).T


def noise_pull_bound(c, b, n_noise, sigma):
    """Upper bound for the size of the noise part along ``w_star``: ``k sigma^2 |c|``, a quarter of it for ``b <= 0``."""
    return n_noise * sigma**2 * np.abs(c) * (0.25 if b <= 0 else 1.0)


# --- Frozen filters ---


def one_filter_error(overlap, threshold, n_noise, sigma):
    r"""Return the error ``Phi(-SNR)`` of the best weights on one frozen filter, if sums over patches are Gaussian.

    ``overlap`` is ``a = <w_hat, w_star>``, ``threshold`` the t with ``tau = t sigma``;
    ``SNR^2 = 1{|a| >= tau} / (k sigma^2) ((1 - a^2) / P + a^2 / (P + 2 t phi(t)))``, ``P = 2 Phi^c(t)``.
    """
    a, t = np.asarray(overlap, dtype=float), np.asarray(threshold, dtype=float)
    active = 2 * ndtr(-t)
    snr = ((1 - a**2) / active + a**2 / (active + 2 * t * _density(t))) / (n_noise * sigma**2)
    return np.where(np.abs(a) >= t * sigma, ndtr(-np.sqrt(snr)), 0.5)


def lucky_probability(n_noise, error=0.1):
    """Return the probability that one random filter with the threshold ``0.999 |a|`` errs on less than ``error``.

    In dimension ``d = 1 / sigma^2``, where ``a sqrt((d - 1) / (1 - a^2))`` has Student's law with d - 1 degrees of freedom.
    """
    sigma = noise_scale(n_noise)
    t = brentq(lambda t: one_filter_error(t * sigma, 0.999 * t, n_noise, sigma) - error, 0.01, min(20, 0.99 / sigma))
    others = sigma**-2 - 1
    return float(2 * stdtr(others, -t * sigma * math.sqrt(others / (1 - (t * sigma) ** 2))))


def random_filters(m, dim, generator: int | np.random.Generator):
    """Return ``m`` random directions, rows of length 1, in coordinates whose first is that along ``w_star``.

    There are ``min(dim, m + 1)`` coordinates: with ``dim > m`` those of the span of ``w_star`` and the filters, in which their
    triangular factor has Gaussians below and chi variables on the diagonal (Bartlett), so that ``dim`` may be huge.
    """
    generator = np.random.default_rng(generator)
    if dim <= m:
        rows = generator.standard_normal((m, dim))
    else:
        rows, j = np.tril(generator.standard_normal((m, m + 1))), np.arange(m)
        rows[j, j + 1] = np.sqrt(generator.chisquare(dim - 1 - j))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _pair_moments(correlation, t, t2):
    """``(P, E[U^2], E[UV], E[V^2])`` restricted to ``|U| >= t, |V| >= t2``, for unit Gaussians with this correlation.

    Arrays of one shape, ``|correlation| < 1``; the result has a leading axis of 4.
    """
    rho, t, t2 = (np.asarray(z, dtype=float)[..., None] for z in (correlation, t, t2))
    x, weight = _legendre(100)
    u = t + (x + 1) / 2 * 9.0  # the half-line from t; the other half follows by symmetry
    density = 2 * weight * 4.5 * _density(u)
    mean, sd = rho * u, np.sqrt(1 - rho**2)
    high, low = (t2 - mean) / sd, (-t2 - mean) / sd
    p = ndtr(-high) + ndtr(low)
    first = mean * p + sd * (_density(high) - _density(low))
    second = (mean**2 + sd**2) * p + sd * ((t2 + mean) * _density(high) + (t2 - mean) * _density(low))
    return np.stack([np.sum(density * part, -1) for part in (p, u**2 * p, u * first, second)])


def frozen_covariance(filters, thresholds):
    r"""Return the covariance ``(m, d, m, d)`` of the features ``e 1{|<w_hat_j, e>| >= t_j}`` of one patch ``e ~ N(0, I)``.

    ``filters`` ``(m, d)`` as of :func:`random_filters`, ``thresholds`` ``(m,)``. In the plane of two filters, with basis W and
    Gram matrix G, a block is ``p I + W^T (G^-1 M G^-1 - p G^-1) W``, p and M being the moments of the projections. Single
    precision for more than 100 filters, to save time.
    """
    w, t = np.asarray(filters), np.asarray(thresholds, dtype=float)
    (m, d), eye = w.shape, np.eye(w.shape[1])
    j, l = np.triu_indices(m, 1)
    rho = (w @ w.T)[j, l]
    p, uu, uv, vv = _pair_moments(rho, t[j], t[l])
    one, moments = np.ones_like(rho), np.stack([uu, uv, uv, vv], -1).reshape(-1, 2, 2)
    inverse = (np.stack([one, -rho, -rho, one], -1) / (1 - rho**2)[:, None]).reshape(-1, 2, 2)
    pair, p = np.stack([w[j], w[l]], 1), p[:, None, None]  # (pair, 2, d)
    covariance = np.empty((m, d, m, d), np.float32 if m > 100 else np.float64)
    covariance[j, :, l] = covariance[l, :, j] = p * eye + pair.mT @ (inverse @ moments @ inverse - p * inverse) @ pair
    active, extra = 2 * ndtr(-t), 2 * t * _density(t)
    own = np.arange(m)
    covariance[own, :, own] = active[:, None, None] * eye + extra[:, None, None] * w[:, :, None] * w[:, None]
    return covariance


def best_weights(filters, thresholds, n_noise, sigma):
    """Return the best weights ``(m, d)`` on m frozen filters and their error ``Phi(-SNR)``, if sums over patches are Gaussian.

    ``thresholds`` are the t_j with ``tau_j = t_j sigma``. The mean of the features given y = 1 is ``w_star`` for filters that
    the signal passes and 0 for others; the weights are ``Sigma^-1 mu``, ``SNR^2 = mu^T Sigma^-1 mu`` (Fisher).
    """
    matrix = frozen_covariance(filters, thresholds).reshape(filters.size, -1)
    mean = np.zeros_like(filters)
    mean[:, 0] = np.abs(filters[:, 0]) >= np.asarray(thresholds) * sigma
    # filters with threshold 0 are all the same one: hence the diagonal
    matrix[np.diag_indices(len(matrix))] += (1e-11 if matrix.dtype == np.float64 else 1e-7) * np.trace(matrix) / len(matrix)
    solution = cho_solve(cho_factor(matrix, overwrite_a=True), mean.ravel())
    snr = math.sqrt(max(mean.ravel() @ solution, 0.0) / n_noise) / sigma
    return solution.reshape(mean.shape), float(ndtr(-snr))
