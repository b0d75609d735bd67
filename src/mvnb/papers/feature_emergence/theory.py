r"""Closed forms for the first gradient steps on dictionary data, and for what fixed features cannot do.

Source: Shi thesis 2024, chapter 2 and appendix A, called "Shi" below (after Shi, Wei and Liang 2022). Symbols: D patterns of
which k are class relevant, gamma the covariance of the label with a relevant pattern, scale the root of the patterns' total
variance, m pairs of neurons. The finite-sample formulas, the gate moments and the bound by Parseval's identity are derived in
chapter 08.

Networks come in stacks: ``w`` ``(R, width, dim)``, ``b`` and ``a`` ``(R, width)``, inputs ``(R, n, dim)``, labels ``(R, n)``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from mvnb.gradients import Params

# --- The network with smoothed activation ---


def smoothed_clip(z: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return ``E min(1, max(0, z + xi))`` for normal xi of standard deviation ``noise``, and its derivative, the gate.

    Both have the shape of ``z``. With ``G(u) = u Phi(u) + phi(u)`` the first is ``noise (G(z / noise) - G((z - 1) / noise))``,
    the second ``Phi(z / noise) - Phi((z - 1) / noise)``. Without noise they are the clip itself and its slope, 0 at the kinks.
    Source: Shi, eq. (2.2) with noise.
    """
    if noise == 0:
        return z.clamp(0, 1), ((z > 0) & (z < 1)).to(z.dtype)
    low, high = z / noise, (z - 1) / noise
    below, above = torch.special.ndtr(low), torch.special.ndtr(high)
    density = (_bell(low) - _bell(high)) / math.sqrt(2 * math.pi)
    return noise * (low * below - high * above + density), below - above


def _bell(u: Tensor) -> Tensor:
    """``exp(-u^2 / 2)``, at least e^-80: results that float32 can only hold denormalised take ten times as long."""
    return (u.square() / -2).clamp(min=-80).exp()


def hinge_gradient(
    params: Params, x: Tensor, y: Tensor, noise: float = 0.0, weight: Tensor | None = None, chunk: int = 500
) -> tuple[Tensor, Params]:
    r"""Mean hinge losses ``(R,)`` of two-layer networks with smoothed activation, and their gradients.

    With the indicator that the margin is below 1: ``dw_i = -a_i E[y 1 gate_i x]``, ``db_i = -a_i E[y 1 gate_i]`` and
    ``da_i = -E[y 1 clip_i]``. ``weight`` ``(R, n)`` weighs points (1 by default). Memory is bounded by ``chunk`` points.
    Source: Shi, Lemma A.6, and the class-weighted loss of appendix A.8.
    """
    w, b, a = params["w"], params["b"], params["a"]
    losses, grads = y.new_zeros(len(y)), {k: torch.zeros_like(v) for k, v in params.items()}
    weight = torch.ones_like(y) if weight is None else weight
    for part, label, mass in zip(x.split(chunk, 1), y.split(chunk, 1), weight.split(chunk, 1)):
        z = torch.baddbmm(b[:, None], part, w.mT)  # (R, n, width)
        hidden, gate = smoothed_clip(z, noise)
        margin = label * (a[:, None] @ hidden.mT)[:, 0]
        losses += (mass * (1 - margin).clamp(min=0)).sum(1) / y.shape[1]
        push = mass * label * (margin < 1) / y.shape[1]  # (R, n)
        gated = push[..., None] * gate
        grads["w"] -= a[..., None] * (gated.mT @ part)
        grads["b"] -= a * gated.sum(1)
        grads["a"] -= (push[:, None] @ hidden)[:, 0]
    return losses, grads


# --- The schedule ---


def paired_start(
    n_pairs: int, dim: int, n_relevant: int, output_std: float, generators, dtype: torch.dtype = torch.float64
) -> Params:
    """Networks that are 0 everywhere: neuron m + i is neuron i with the opposite output weight. One replica a generator.

    Standard deviations are 1/k of ``w``, 1/k^2 of ``b`` and ``output_std`` of ``a``. Source: Shi, section 2.2.2.
    """
    start = {"w": [], "b": [], "a": []}
    for g in generators:
        w, b, a = (torch.randn(shape, generator=g, dtype=dtype) for shape in ((n_pairs, dim), (n_pairs,), (n_pairs,)))
        start["w"].append(torch.cat([w, w]) / n_relevant)
        start["b"].append(torch.cat([b, b]) / n_relevant**2)
        start["a"].append(torch.cat([a, -a]) * output_std)
    return {k: torch.stack(v) for k, v in start.items()}


def output_std(gamma: float, scale: float, n_relevant: int) -> float:
    """Standard deviation of the output weights at the start, ``scale^2 / (gamma k^2)``. Source: Shi, Lemma A.13."""
    return scale**2 / (gamma * n_relevant**2)


def first_step_size(gamma: float, scale: float, n_relevant: int, n_pairs: int) -> float:
    """Size of the first step, ``gamma^2 scale / (k m^3)``. Source: Shi, Lemma A.17."""
    return gamma**2 * scale / (n_relevant * n_pairs**3)


def first_steps(
    params: Params,
    x: Tensor,
    y: Tensor,
    step_size: float,
    noise: float,
    forget: float = 1.0,
    weight: Tensor | None = None,
) -> tuple[Params, Params]:
    """The networks after the first and after the second full-batch step.

    The first has size ``step_size`` and forgets the share ``forget`` of ``w``, the second has size 1 and forgets it of ``w``
    and ``a``; 1 is the theory's weight decay. What is forgotten never enters a sum, so that nothing cancels.
    Source: Shi, section 2.5.1 (weight decay 1 / (2 step size) on w, then 1/2 on both).
    """
    _, slope = hinge_gradient(params, x, y, noise, weight)
    keep = {"w": 1 - forget, "b": 1.0, "a": 1.0}
    once = {k: keep[k] * params[k] - step_size * slope[k] for k in params}
    _, slope = hinge_gradient(once, x, y, noise, weight)
    keep["a"] = 1 - forget
    return once, {k: keep[k] * once[k] - slope[k] for k in params}


# --- How well the first gradients point ---


def gate_moments(bias, variance: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and mean square of the smoothed gate at a normal pre-activation of this mean and variance; shape of ``bias``.

    The upper clip is far away and left out: ``Phi(z / noise)`` with ``z ~ N(bias, variance)``; Gauss-Hermite quadrature.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    z = np.asarray(bias, dtype=float)[..., None] + math.sqrt(variance) * nodes
    gate = ndtr(z / noise)
    weights = weights / weights.sum()
    return gate @ weights, gate**2 @ weights


def noise_to_signal(n, n_relevant: int, n_other: int, p_other: float, gamma: float, gate=(1.0, 1.0)):
    """Length of a weight outside the relevant patterns over its length along them, after a step on ``n`` points.

    ``sqrt(n_other p (1 - p) E[gate^2]) / (gamma E[gate] sqrt(k n))``; ``gate`` are :func:`gate_moments`, both 1 at the second
    step, where gates do not depend on the input. The cosine to the sum of the relevant patterns is ``1 / sqrt(1 + ratio^2)``.
    """
    mean, square = gate
    return np.sqrt(n_other * p_other * (1 - p_other) * square) / (gamma * mean * np.sqrt(n_relevant * np.asarray(n)))


# --- What a network can represent, and what fixed features cannot ---


def tent_network(labels, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """The ground-truth network: output weights and biases ``(3 (k + 1),)`` of neurons that see ``(s - mean) / (4 k)``.

    ``sum_i a_i clip((s - mean) / (4 k) + b_i)`` is ``labels[s]`` for every count s = 0..k. Of two grids of tents the one
    without small biases is taken: all are at least 1 / (32 k). Source: Shi, Lemma 2.5 / A.2.
    """
    labels = np.asarray(labels, dtype=float)
    k = len(labels) - 1
    kinks = np.array([-0.5, 0.0, 0.5])
    for shift, slope in ((0.0, 2.0), (0.25, 4.0)):
        centre = np.arange(k + 1)[:, None] - mean + shift
        b = -(centre + kinks).ravel()
        a = labels[:, None] * slope * np.array([1.0, -2.0, 1.0])
        if np.abs(b).min() >= 1 / 8:  # true for one of the grids, a quarter apart
            break
    return 4 * k * a.ravel(), b / (4 * k)


def threshold_accuracy(probability, labels) -> float:
    """Accuracy of the best threshold on the count, in either direction: ``probability`` and ``labels`` ``(k + 1,)``."""
    p, y = np.asarray(probability, dtype=float), np.asarray(labels)
    above = np.array([p @ (np.where(np.arange(len(p)) >= t, 1, -1) == y) for t in range(len(p) + 1)])
    return float(np.maximum(above, 1 - above).max())


def fixed_feature_bound(energy, norm, n_patterns: int, n_relevant: int, p_o: float) -> np.ndarray:
    """Hinge loss that no linear model on fixed features beats, on average over the choice of the relevant patterns.

    ``p_o (1 - norm sqrt(energy / C(D, k)))`` for weights of Euclidean length at most ``norm``; ``energy`` is ``E |Psi|^2`` on
    uniform points, at most N for N features in [-1, 1]. Empty when negative. Source: Shi, Theorem 2.2, with Bessel's inequality
    in the place of the quoted constant.
    """
    share = np.asarray(energy, dtype=float) / math.comb(n_patterns, n_relevant)
    return p_o * (1 - norm * np.sqrt(share))


def printed_feature_bound(n_features, norm, n_relevant: int, p_o: float) -> np.ndarray:
    """The same with the thesis's constant, ``p_o (1 - sqrt(2 N) B / 2^k)``. Source: Shi, Theorem 2.2, corrected."""
    return p_o * (1 - np.sqrt(2 * np.asarray(n_features, dtype=float)) * norm / 2.0**n_relevant)


def queries_needed(n_patterns: int, n_relevant: int) -> float:
    """Statistical queries, or inverse tolerance, needed without structure: ``C(D, k)^(1/3) / 2``. Source: Shi, Theorem 2.4."""
    return math.comb(n_patterns, n_relevant) ** (1 / 3) / 2
