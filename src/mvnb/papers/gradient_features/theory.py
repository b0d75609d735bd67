r"""Closed forms for gradient feature learning in two-layer ReLU networks.

Source: Shi thesis 2024, chapter 3 and appendix B (after Shi, Wei and Liang 2023), called "Shi" below. The simplified gradient
of a neuron with weight w and bias b is ``G(w, b) = E[y x 1{<w, x> > b}]``. Closed forms of G, the merged parity networks, the
limits for exclusive-or and the lower bound in binomial form are derived in chapter 09.

Tensors are float64 unless said otherwise; ``w`` has shape ``(..., m, d)`` and ``b`` ``(..., m)`` for m neurons.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from mvnb.data import GaussianMixture

# --- Simplified gradients ---


def sample_gradient(w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Means over points of ``y x 1{<w, x> > b}`` ``(..., m, d)`` and of ``y relu(<w, x> - b)`` ``(..., m)``.

    ``x`` ``(..., n, d)`` and ``y`` ``(..., n)``, in any floating type. Source: Shi, Definition 3.5 and eq. (B.578).
    """
    z = x @ w.mT - b[..., None, :]  # (..., n, m)
    push = y[..., None, :] / y.shape[-1]
    g = (z > 0).to(x.dtype).mT @ (push.mT * x)
    return g, (push @ z.clamp_(min=0))[..., 0, :]


def mixture_gradient(w: Tensor, b: Tensor, world: GaussianMixture) -> tuple[Tensor, Tensor]:
    """Return the same two for a mixture of Gaussians, without any sample.

    With ``z_l = (<w, mu_l> - b) / (sigma_l |w|)`` they are the sums over clusters, weighted by ``p_l y_l``, of
    ``mu_l Phi(z_l) + sigma_l phi(z_l) w / |w|`` and of ``sigma_l |w| (z_l Phi(z_l) + phi(z_l))``.
    """
    length = w.norm(dim=-1, keepdim=True)  # (..., m, 1)
    z = (w @ world.means.T - b[..., None]) / (world.stds * length)  # (..., m, r)
    weight, cdf, pdf = world.masses * world.labels, torch.special.ndtr(z), torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    g = (weight * cdf) @ world.means + ((weight * world.stds) * pdf).sum(-1, keepdim=True) * w / length
    return g, (weight * world.stds * length * (z * cdf + pdf)).sum(-1)


def linear_gradient(w: Tensor, b: Tensor, margin: float) -> Tensor:
    """G ``(..., m, d)`` for a ``LinearMargin``: normal outside the first axis, a quadrature along it."""
    at, weight = (torch.tensor(v) for v in np.polynomial.legendre.leggauss(32))
    signal = margin + (at + 1) / 2  # (node,)
    rest = w[..., 1:]
    length = rest.norm(dim=-1, keepdim=True)  # (..., m, 1)
    g0, push = torch.zeros_like(b), torch.zeros_like(b)
    for y in (-1.0, 1.0):
        z = (y * signal * w[..., :1] - b[..., None]) / length  # (..., m, node)
        g0 = g0 + torch.special.ndtr(z) @ (weight * signal) / 4
        push = push + y * torch.exp(-z.square() / 2) @ weight / (4 * math.sqrt(2 * math.pi))
    return torch.cat([g0[..., None], push[..., None] * rest / length], -1)


def quadratic_gradient(w: Tensor, h: Tensor) -> Tensor:
    """G ``(..., m, d)`` at b = 0 for standard normal x and ``y = (x^T H x - tr H) / 2``, ``h`` ``(d, d)`` symmetric.

    ``(H u - (u^T H u) u / 2) / sqrt(2 pi)`` with ``u = w / |w|``.
    """
    u = w / w.norm(dim=-1, keepdim=True)
    image = u @ h
    return (image - (u * image).sum(-1, keepdim=True) * u / 2) / math.sqrt(2 * math.pi)


def majority_coefficient(k: int, d: int) -> float:
    """Fourier coefficient of the majority of d bits at a set of k of them; d odd. Source: Shi, eq. (B.480), O'Donnell 5.3."""
    if d % 2 == 0 or not 0 <= k <= d:
        raise ValueError(f"d must be odd and 0 <= k <= d, got k={k}, d={d}")
    if k % 2 == 0:
        return 0.0
    half, j = (d - 1) // 2, (k - 1) // 2
    return (-1) ** j * math.comb(half, j) / math.comb(d - 1, k - 1) * math.comb(d - 1, half) / 2 ** (d - 1)


def uniform_parity_gradient(w: Tensor, k: int) -> Tensor:
    """G ``(..., m, d)`` for the parity of the first k of d uniform bits; w of signs, ``|b| < 1``, k even and d odd.

    ``G_j`` is half the majority's coefficient at the relevant bits without or with j, times the product of w over that set.
    """
    d = w.shape[-1]
    if k % 2 or not 0 < k < d:
        raise ValueError(f"k must be even and between 0 and d={d}, got {k}")
    product = w[..., :k].prod(-1, keepdim=True)
    inside = torch.arange(d) < k
    return torch.where(inside, majority_coefficient(k - 1, d), majority_coefficient(k + 1, d)) / 2 * product * w


def parity_cosine(k: int, d: int, n: float = math.inf) -> float:
    """Cosine of G with the feature when w is constant on the k relevant bits, with the noise of n samples to first order."""
    signal = k * majority_coefficient(k - 1, d) ** 2 / 4
    rest = (d - k) * majority_coefficient(k + 1, d) ** 2 / 4
    return math.sqrt(signal / (signal + rest + d / (2 * n)))


# --- Small networks of gradient features ---


class Readout(NamedTuple):
    """A network ``sum_i head_i relu(sign_i z - bias_i)`` of one projection z; all ``(n,)``."""

    sign: np.ndarray
    bias: np.ndarray
    head: np.ndarray

    def __call__(self, z):
        """Values at ``z``, of any shape."""
        return np.maximum(self.sign * np.asarray(z)[..., None] - self.bias, 0) @ self.head


def parity_bumps(k: int) -> Readout:
    """The product of k signs as a network of ``z = sum of bits / sqrt(k)``: a tent at each of its k + 1 values.

    ``3 (k + 1)`` neurons with kinks on both sides of 0. Source: Shi, Lemma B.53 (k odd) and section B.6 (k even).
    """
    centre = (2 * np.arange(k + 1) - k) / math.sqrt(k)
    head = (-1.0) ** (k - np.arange(k + 1)) * math.sqrt(k)
    bias = (centre[:, None] + np.array([-1, 0, 1]) / math.sqrt(k)).ravel()
    return Readout(np.ones(len(bias)), bias, (head[:, None] * np.array([1, -2, 1])).ravel())


def parity_network(k: int) -> Readout:
    """The same function for odd k with ``k + 5`` neurons, none of which has a negative bias.

    Tents left of 0 are written in ``-z``, and where two tents touch the kinks cancel. ``ValueError`` for even k, where the
    tent at 0 cannot be written so.
    """
    if k % 2 == 0 or k < 1:
        raise ValueError(f"k must be odd and positive, got {k}")
    step = np.arange(1, k + 1, 2)
    bias = np.concatenate([[0], step, [k + 1]]) / math.sqrt(k)
    tents = (-1.0) ** ((k - step) // 2)  # the product of the bits at sum `step`
    side = np.concatenate([tents[:1], -2 * tents, tents[-1:]]) * math.sqrt(k)
    return Readout(np.repeat([1.0, -1.0], len(side)), np.tile(bias, 2), np.concatenate([side, -side]))


# --- Guarantees ---


def needed_width(epsilon, p, n_neurons, head, x_norm, bias, g_norm):
    """The m at which ``2 r B_a1 B_x1 (m p)^(-1/4) sqrt(B_b / B_G)`` is ``epsilon``.

    It is the part of Lemma 3.14's excess over OPT that a wider network makes smaller. Source: Shi, B.6.
    """
    return (2 * n_neurons * head * x_norm / epsilon) ** 4 * (bias / g_norm) ** 2 / p


def drift_bound(t, eta, x_norm, head, pull):
    r"""What bounds ``sum_{s<=t} |a^(s)|`` in Lemma B.9: ``h(t+2) = 2 h(t+1) - (1 - rho^2) h(t) + eta Z``, ``rho = eta B_x1``.

    ``head`` is ``|a^(1)| = h(1)``, ``pull`` is ``Z``, and ``h(2) = 2 h(1) + eta Z``; ``t`` from 1. The weights have
    then moved by at most ``rho h(t-1)``. Source: Shi, Lemma B.77.
    """
    rho, level = eta * x_norm, pull / (eta * x_norm**2)
    slope = (head + eta * pull) / rho
    low, high = (head + level - slope) / 2, (head + level + slope) / 2
    return -level + low * (1 - rho) ** (np.asarray(t) - 1) + high * (1 + rho) ** (np.asarray(t) - 1)


# --- Exclusive-or ---


def _pdf(z):
    return np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)


def xor_gradient(s: Tensor, length: Tensor, b: float, mean_norm: float) -> tuple[Tensor, Tensor]:
    """G of an exclusive-or in its plane, and its norm, at any dimension: ``(..., 2)`` and ``(...)``.

    ``s`` ``(..., 2)`` holds ``<w, D_1>`` and ``<w, D_3>``, ``length`` ``(...)`` is ``|w|``. What lies outside the plane is a
    multiple of w, so these three numbers are all that matters.
    """
    z = (torch.stack([s, -s], -1) * mean_norm - b) / length[..., None, None]  # (..., axis, side)
    cdf, pdf = torch.special.ndtr(z), torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    sign = torch.tensor([1.0, -1.0], dtype=s.dtype)
    along = mean_norm / 4 * sign * (cdf[..., 0] - cdf[..., 1])
    own = (sign * pdf.sum(-1)).sum(-1) / (4 * length)  # times w
    total = along.square().sum(-1) + 2 * own * (along * s).sum(-1) + (own * length).square()
    return along + own[..., None] * s, total.clamp(min=0).sqrt()


def xor_hit_probability(gamma: float, kappa: float, ratio: float) -> float:
    """Return the probability that G of a random neuron lies within cosine ``1 - gamma`` of ``+-D_1``, as the dimension grows.

    ``kappa`` is the bias over ``sigma_w |mu|``, ``ratio`` is ``|mu| / (sigma sqrt(d))``, fixed and positive; as it falls to
    0, at a fixed signal-to-noise ratio, the answer tends to ``(2 / pi) arccos(1 - gamma)``. One-dimensional quadrature.
    """
    g = np.linspace(0, 12, 6001)
    delta = ndtr(ratio * (g - kappa)) - ndtr(ratio * (-g - kappa))
    tangent = math.sqrt(1 / (1 - gamma) ** 2 - 1)
    reach = np.interp(tangent * delta, delta, g, right=np.inf)  # how large |g_3| may be
    return float(2 * np.trapezoid(_pdf(g) * (2 * ndtr(reach) - 1), g))


def xor_alignment(n, d, snr, threshold):
    """Share of the squared norm of first-step gradients of n samples that lies in the plane of the features.

    With ``R = snr = |mu| / sigma`` fixed and d large, in units of sigma: the signal is ``R^4 phi(c)^2 / (2 d)``, the sampling
    noise ``(R^2 + 2) / (2 n)`` in the plane and ``(d - 2) / (2 n)`` outside, for biases ``+-c sigma |w|`` (c is ``threshold``).
    """
    inside = snr**4 * _pdf(threshold) ** 2 / (2 * d) + (snr**2 + 2) / (2 * n)
    return inside / (inside + (d - 2) / (2 * n))


def xor_sure_probability(d):
    """Return the probability that a neuron is in the sure set of ``D_1`` (its norm aside), with Shi's thresholds of B.5.3.

    ``Q(1.2 sqrt(log log d)) (1 - 2 Q(sqrt(2)))`` with Q the normal tail.
    """
    return ndtr(-1.2 * np.sqrt(np.log(np.log(d)))) * (1 - 2 * ndtr(-math.sqrt(2)))


def xor_bayes_error(snr):
    """Least error of any classifier on exclusive-or with ``snr = |mu| / sigma``: ``2 Q (1 - Q)``, ``Q = Phi(-R / sqrt(2))``."""
    q = ndtr(-np.asarray(snr) / math.sqrt(2))
    return 2 * q * (1 - q)


# --- A network that does not learn features ---


def relu_tangent_kernel(x: Tensor, z: Tensor) -> Tensor:
    """Tangent kernel ``(..., n, k)`` of an infinitely wide two-layer ReLU network, both layers trained, over d.

    ``x`` ``(..., n, d)``, ``z`` ``(..., k, d)``, any floating type. Source: Cho and Saul 2009, Jacot et al. 2018.
    """
    norms = x.norm(dim=-1)[..., :, None] * z.norm(dim=-1)[..., None, :]
    cosine = (x @ z.mT).div_(norms).clamp_(-1, 1)
    angle = cosine.arccos().neg_().add_(math.pi)
    sine = cosine.square().neg_().add_(1).clamp_(min=0).sqrt_()
    return sine.add_(angle.mul_(cosine), alpha=2).mul_(norms).div_(x.shape[-1] * math.pi)
