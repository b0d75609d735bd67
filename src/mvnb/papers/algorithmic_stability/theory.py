"""Bounds and closed forms for *On the Algorithmic Stability of SGD in Deep Learning*.

Source: Karp, Neyshabur and Mohri 2020, in the form of Karp's thesis 2024, chapter 2, called "Karp 2024" below. The paper has no
theorem of its own: the bounds are those it argues about (Hardt, Recht and Singer 2016; Feldman and Vondrak 2019), and the
lock-step forms and the two-feature example are derived in chapter 04. Two training sets S, S' of m points differ in one.
"""

from __future__ import annotations

import math

import numpy as np

# --- The convex route ---


def logistic_constants(x):
    """Lipschitz constant and smoothness of the logistic loss in the weights: ``(max |x|, max |x|^2 / 4)``.

    ``x`` ``(n, d)``: the inputs, with the constant coordinate of the bias if there is one. The second number bounds the
    curvature of every single loss; a mean over points is as smooth as :func:`mean_smoothness` says, which is less.
    """
    norms = (np.asarray(x, dtype=float) ** 2).sum(1)
    return float(np.sqrt(norms.max())), float(norms.max() / 4)


def mean_smoothness(x):
    """Bound of the curvature of the mean logistic loss over points ``x`` ``(n, d)``: the top eigenvalue of X'X / 4n."""
    x = np.asarray(x, dtype=float)
    return float(np.linalg.eigvalsh(x.T @ x / len(x))[-1] / 4)


def most_visits(steps, batch, size):
    """How often a position is met at most in ``steps`` steps: once an epoch of ``size // batch`` steps.

    ``ValueError`` unless ``1 <= batch <= size`` and ``steps >= 0``.
    """
    if not 1 <= batch <= size or steps < 0:
        raise ValueError(f"need 1 <= batch <= size and steps >= 0, got batch={batch}, size={size}, steps={steps}")
    return math.ceil(steps / (size // batch))


def distance_bound(step_size, lipschitz, batch, visits, curvature=0.0, gap_steps=1):
    """Bound of the parameter distance of two lock-step runs after ``visits`` batches that held the swapped point.

    ``2 eta L / B`` a visit. With a ridge penalty of ``curvature`` lambda, ``eta lambda <= 1``, each step shrinks what is there
    by ``1 - eta lambda``, and with ``gap_steps`` steps or more between visits the visits add up to a geometric sum that
    stays bounded. Derived in chapter 04; ``visits`` may be an array.
    """
    visits = np.asarray(visits, dtype=float)
    kick = 2 * step_size * lipschitz / batch
    shrink = (1 - step_size * curvature) ** gap_steps
    return kick * (visits if shrink == 1 else (1 - shrink**visits) / (1 - shrink))


def gap_bound(stability, size):
    """Return the high-probability bound of the gap, ``beta log m log(m / delta) + sqrt(log(1 / delta) / m)``, delta 0.05.

    Karp 2024, equation 2.1, after Feldman and Vondrak 2019 and Bousquet et al. 2020, with the constant 1. ``size > 1``.
    """
    size = np.asarray(size, dtype=float)
    if np.any(size <= 1):
        raise ValueError(f"need size > 1, got {size}")
    return stability * np.log(size) * np.log(size / 0.05) + np.sqrt(np.log(1 / 0.05) / size)


# --- A tie that one point decides ---


def _tie_ratio(size, overlap):
    """Mean of the rarer over the commoner feature when ``(m + 1) / 2`` of m points show (1, h), the others (h, 1).

    ``size`` m odd, ``overlap`` h in [0, 1). Swapping one point turns the ratio over.
    """
    m, h = np.asarray(size, dtype=float), overlap
    return ((1 + h) * m - (1 - h)) / ((1 + h) * m + (1 - h))


def tie_weights(size, overlap, start, power):
    """Both weights ``(u1, u2)`` of ``f = u1^q x1 + u2^q x2`` when the commoner feature's has reached 1.

    Gradient flow of the mean margin from ``u1 = u2 = start``, ``0 < start < 1``; ``power`` q at least 1. q = 1 is the linear
    model; ``u2^(2-q) = r + (1 - r) s^(2-q)``, for q = 2 ``u2 = s^(1 - r)``, where r is the mean of the rarer feature over that
    of the commoner one.
    """
    if power < 1 or not 0 < start < 1:
        raise ValueError(f"need power >= 1 and 0 < start < 1, got {power} and {start}")
    r = _tie_ratio(size, overlap)
    weak = start ** (1 - r) if power == 2 else (r + (1 - r) * start ** (2.0 - power)) ** (1 / (2.0 - power))
    return np.ones_like(weak), weak


def tie_stability(size, overlap, start, power):
    """Change of the logistic loss of the test point (1, 0) when the one point is swapped that decides the tie.

    The weights of S' are those of S exchanged, so it is ``log(1 + exp(-u2^q)) - log(1 + exp(-1))``: a lower bound of the
    uniform stability at m. For q = 1 it falls like 1/m; for q > 2 it is near ``log 2 - log(1 + 1/e) = 0.38`` until m is about
    ``start^(2-q)``.
    """
    strong, weak = tie_weights(size, overlap, start, power)
    return np.log1p(np.exp(-(weak**power))) - np.log1p(np.exp(-(strong**power)))
