"""Closed forms for *Towards Understanding Why Mask-Reconstruction Pretraining Helps in Downstream Tasks*.

Source: Pan, Zhou and Yan 2023 (arXiv 2206.03826), called "Pan et al. 2023" below.

A kernel ``w`` meets a feature ``v`` with the *correlation* ``u = <w, v>``; a patch shows the feature with a strength ``z``,
and the kernel answers ``s(u z)`` with the smoothed ReLU ``s`` of exponent ``power`` (q) and ``threshold`` (rho with a bar).
``keep`` is the probability that a patch is kept (theta). A present feature has one patch (C_p = 1), and the teacher's kernels
are ``tau = 1 / keep`` times as long as the student's (Assumption C.2 with delta_t = 0). How often a feature is met, and how
strongly, enters through *moments* ``E[sum_p z_p^n]``.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq

from mvnb.models.activations import smoothed_relu_and_slope

# --- Growth below the threshold, and the lottery's clock ---


class GrowthLaw(NamedTuple):
    """``du/dt = constant * u ** exponent`` while the kernel answers in the polynomial part."""

    constant: float
    exponent: int

    def time(self, start, end=np.inf):
        """Flow time from ``start`` to ``end``, both positive; with ``end`` infinite the time of escape. Broadcasts."""
        start, end = np.asarray(start, dtype=float), np.asarray(end, dtype=float)
        n = self.exponent - 1
        if n == 0:
            return np.log(end / start) / self.constant
        return (start**-n - end**-n) / (n * self.constant)


def teacher_student_growth(power, threshold, keep, moment_2q, moment_qq):
    """Return the growth law of the teacher-student loss, exponent ``2q - 1``.

    ``moment_2q`` is ``E[sum_p z_p^2q]``, ``moment_qq`` is ``E[(sum_p z_p^q)^2]``; the teacher enters with ``tau^q - 1``,
    the masks with ``1/keep - 1``. With one strength a, met with probability f, both moments are ``f a^2q``. A constant of 0
    or less means that nothing grows. Source: Pan et al. 2023, Claim E.5.
    """
    scale = 1 / _keep(keep)
    constant = ((scale**power - 1) * moment_qq - (scale - 1) * moment_2q) / (power * threshold ** (2 * power - 2))
    return GrowthLaw(constant, 2 * power - 1)


def autoencoder_growth(power, threshold, moment):
    """Growth law of the masked autoencoder, exponent q; ``moment`` is ``E[sum_p z_p^(q+1)]``. ``keep`` does not enter.

    Source: Pan et al. 2023, Claim H.7.
    """
    return GrowthLaw((1 + power) * moment / (power * threshold ** (power - 1)), power)


def supervised_growth(power, threshold, moment, n_classes):
    """Growth law of a class's own kernel under the cross-entropy, exponent ``q - 1``, while all softmax outputs are ``1/k``.

    ``moment`` is ``E[sum_p z_p^q]`` over points of the class, times the probability ``1/k`` of the class; foreign
    appearances, which push back, are left out. Source: Allen-Zhu and Li 2023; Pan et al. 2023, Lemma 1.
    """
    return GrowthLaw((1 - 1 / n_classes) * moment / threshold ** (power - 1), power - 1)


# --- Beyond the threshold ---


def teacher_student_drift(power, threshold, keep, frequency, strength=1.0):
    """Return ``du/dt`` of a kernel that holds one feature, constant in the linear part (``u strength >= threshold``).

    The feature is met with probability ``frequency``.
    """
    return frequency * strength * ((1 / _keep(keep) - 1) * (1 - 1 / power) * threshold)


def teacher_student_pair_rate(keep, frequency):
    """Return the exponential rate of growth of a kernel that holds two features of strength 1 that always appear together."""
    return frequency * (1 / _keep(keep) - 1)


def autoencoder_fixed_point(power, threshold, keep, strengths, weights=None):
    """Correlation at which the only kernel that holds a feature comes to rest under the masked autoencoder's loss.

    ``strengths`` ``(n,)`` and ``weights`` are a rule for the law of the strength on a patch; the root of
    ``E[(s(uz) + s'(uz) u z)(z - u s(uz) / keep)] = 0`` is found by bisection. With one strength it solves
    ``u s(uz) = keep z``. ``ValueError`` unless the strengths are positive.
    """
    z = np.atleast_1d(np.asarray(strengths, dtype=float))
    weights = np.ones_like(z) if weights is None else np.asarray(weights, dtype=float)
    if np.any(z <= 0) or z.shape != weights.shape:
        raise ValueError("strengths must be positive, with a weight each")

    def push(u):
        value, slope = _activation(u * z, power, threshold)
        return weights @ ((value + slope * u * z) * (z - u * value / _keep(keep)))

    low, high = 1e-9, 2.0 + threshold / z.min()
    while push(high) > 0:
        high *= 2
    # The push is positive but tiny near 0, where its sign drowns in rounding; walk up to where it is not.
    while push(low) <= 0:
        low *= 2
    return brentq(push, low, high, xtol=1e-12)


def stair(level, strength, power, threshold, keep):
    """Return how much the masked autoencoder's loss of a patch falls when its feature is held at ``level`` by one kernel."""
    answer = level * _activation(level * np.asarray(strength), power, threshold)[0]
    return answer * strength - answer**2 / (2 * keep)


def per_feature(value, strength, holds, n_features):
    """Return ``value(strength)``, summed over a feature's patches, mean over points: (..., n, patches) to (..., 2k)."""
    value = value(np.asarray(strength, dtype=float))
    return np.stack([np.where(holds == f, value, 0.0).sum((-2, -1)) for f in range(n_features)], -1) / holds.shape[-2]


def strength_rule(own, foreign, rate, n_classes):
    """Return a Gauss-Legendre rule ``(strengths, weights)`` for a feature's strength on a patch that holds it.

    ``own`` and ``foreign`` are the ranges ``(low, high)`` of its strength, uniform, in a point of its own class (probability
    ``1 / n_classes``) and in another that has it (else with probability ``rate / n_classes``); one patch a feature. Source:
    Pan et al. 2023, Def. 3.1.
    """
    node, weight = np.polynomial.legendre.leggauss(20)
    parts = ((own, 1 / n_classes), (foreign, (1 - 1 / n_classes) * rate / n_classes))
    strengths = [low + (high - low) * (1 + node) / 2 for (low, high), _ in parts]
    weights = np.concatenate([weight / 2 * p for _, p in parts])
    return np.concatenate(strengths), weights / weights.sum()


# --- The lottery ---


def lottery(initial):
    """Which (kernel, feature) pairs will be held once every feature is: a prediction from the initial correlations alone.

    ``initial``: shape (..., kernels, features). A pair is predicted if its correlation is at least the smallest, over
    features, of the best kernel's: all grow by one law, so what is ahead of the last winner arrives before it.
    """
    initial = np.asarray(initial)
    return initial >= initial.max(-2).min(-1)[..., None, None]


# --- Fine-tuning ---


def centroid_head(hidden, y, n_classes, step_size=1.0):
    """The head after one gradient step from zero, ``step_size / N sum_n (1[y_n = i] - 1/k) h(X_n)``: shape (..., k, kernels).

    ``hidden`` (..., n, kernels), ``y`` (..., n). With balanced classes this is ``step_size / k`` times class mean minus mean.
    Source: Pan et al. 2023, Appendix G.
    """
    hidden, y = np.asarray(hidden, dtype=float), np.asarray(y)
    target = (y[..., None] == np.arange(n_classes)) - 1 / n_classes
    return step_size * np.swapaxes(target, -1, -2) @ hidden / y.shape[-1]


def ideal_margin(z_own, z_rival, psi_own, psi_rival, mean_own, mean_foreign, rate, n_classes, step_size):
    """``F_y - F_j`` after one head step for an encoder with one kernel ``psi v`` a feature that answers linearly.

    ``z_own`` and ``z_rival`` (..., 2) are the total strengths of the two features of classes y and j in the point,
    ``psi_*`` their kernels' squared lengths (Psi), ``mean_own`` and ``mean_foreign`` the mean strengths, ``rate`` is s.
    Equals ``step_size / k (mean_own - s/k mean_foreign) (sum_l Psi_y,l Z_y,l - sum_l Psi_j,l Z_j,l)``. Source: Pan et al.
    2023, App. G.
    """
    front = step_size / n_classes * (mean_own - rate / n_classes * mean_foreign)
    return front * ((np.asarray(psi_own) * z_own).sum(-1) - (np.asarray(psi_rival) * z_rival).sum(-1))


def single_view_accuracy(learned, rate):
    """Accuracy on single-view points of a network that holds the features ``learned`` (..., 2k), true or false, and no others.

    A point whose strong view is held is right. One whose strong view is missing is wrong exactly if a held foreign feature is
    present, each with probability ``rate / k``; the weak view cannot outweigh it. Averaged over classes and views.
    """
    learned = np.asarray(learned, dtype=bool)
    learned = learned.reshape(*learned.shape[:-1], -1, 2)
    k = learned.shape[-2]
    others = learned.sum((-2, -1))[..., None, None] - learned.sum(-1, keepdims=True)
    return np.where(learned, 1.0, (1 - rate / k) ** others).mean((-2, -1))


def _activation(u, power, threshold):
    value, slope = smoothed_relu_and_slope(torch.tensor(u / threshold, dtype=torch.float64), power)
    return threshold * value.numpy(), slope.numpy()


def _keep(keep):
    keep = np.asarray(keep, dtype=float)
    if np.any(keep <= 0) or np.any(keep > 1):
        raise ValueError("keep must lie in (0, 1]")
    return keep[()]
