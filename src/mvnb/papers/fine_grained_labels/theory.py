"""Closed forms for *Why Fine-grained Labels in Pretraining Benefit Generalization?*

Source: Hong, Cui, Fuxman, Chan and Luo 2024 (Transactions on Machine Learning Research), called "Hong et al. 2024" below.

Everything is about the idealised network: every class has one detector of each common and of each fine feature, and a
detector that has moved by A responds to a patch with coefficient a by ``(a - bias_rate) A``. Symbols: k is ``n_subclasses``, s*
``signal_patches``, lambda ``1 / bias_rate``, and ``step`` is the factor in front of the gradient of the mean cross-entropy
(eta / P in the paper). Only the late form of the log law and the constants of Lemma G.2 are the paper's; the other closed forms
are derived in chapter 02.
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import ndtr, ndtri, wrightomega
from scipy.stats import irwinhall

# --- The first step ---


def grouped_label_probabilities(n_subclasses, groups):
    """Return ``Pr[label | feature]`` if the k subclasses of each superclass form ``groups`` equal groups, the labels.

    Shape ``(2 groups, 2 + 2k)``. ``groups=1`` are coarse labels, ``groups=k`` fine ones; ``ValueError`` unless ``groups``
    divides k.
    """
    k, g = _positive(n_subclasses, "n_subclasses"), _positive(groups, "groups")
    if k % g:
        raise ValueError(f"groups must divide n_subclasses, got {g} and {k}")
    label = np.arange(2 * g)[:, None]
    return np.concatenate([(label // g == [0, 1]) / g, label == np.arange(2 * k) * g // k], 1)


def random_label_probabilities(n_subclasses, n_ids, superclasses=2):
    """Return ``Pr[label | feature]`` for uniform random IDs inside superclasses, shape ``(superclasses n_ids, 2 + 2k)``.

    With ``superclasses=1`` the IDs are independent of the class.
    """
    k, ids = _positive(n_subclasses, "n_subclasses"), _positive(n_ids, "n_ids")
    superclass = np.concatenate([[0, 1], np.repeat([0, 1], k)]) % superclasses
    return np.where(np.repeat(np.arange(superclasses), ids)[:, None] == superclass, 1.0 / ids, 0.0)


def first_drift(label_given_feature, step, signal_patches, mean_coefficient):
    """Return how far one step moves each class's detector of each feature along it, from outputs near 0.

    ``step s* a Pr[u] (Pr[q | u] - 1 / G)`` for a label function whose G labels are equally frequent: shape ``(G, 2 + 2k)``. A
    point shows each common feature with probability 1/2, each fine one with 1/(2k).
    """
    conditional = np.asarray(label_given_feature, dtype=float)
    shown = np.full(conditional.shape[1], 1 / (conditional.shape[1] - 2))
    shown[:2] = 0.5
    return step * signal_patches * mean_coefficient * shown * (conditional - 1 / len(conditional))


def growth_ratio(n_subclasses, groups=1):
    """Return the first growth of common over own fine detectors, ``k / (2g - 1)`` with g labels per superclass."""
    return n_subclasses / (2 * groups - 1)


# --- Trajectories ---


def coarse_clock(step, signal_patches, coefficient, bias_rate, n_subclasses):
    """Return the rate kappa of the coarse log law: ``step s* a / 2`` times ``s* (a - 1/lambda) (1 + 1 / k)``."""
    drift = step * signal_patches * coefficient / 2
    return drift * signal_patches * (coefficient - bias_rate) * (1 + 1 / n_subclasses)


def coarse_response(clock):
    """Return the output F of the own superclass under coarse labels at ``clock = kappa t``: ``F + exp(F) = clock + 1``.

    ``F = log(omega(clock + 1))`` with Wright's omega, which solves ``omega + log(omega) = clock + 1``. ``ValueError`` for a
    negative clock.
    """
    clock = np.asarray(clock, dtype=float)
    if np.any(clock < 0):
        raise ValueError("clock must not be negative")
    return np.log(wrightomega(clock + 1))


def fine_trajectory(times, step, signal_patches, coefficient, bias_rate, n_subclasses):
    """Return the movements ``(A_common, A_fine)``, shape ``(2, len(times))``, of a class's detectors under fine labels.

    Solves ``A_c' = v k / Z`` and ``A_f' = v ((k - 1) exp(F_s) + k) / Z`` with ``v = step s* a / (2k)``,
    ``Z = exp(F_o) + (k - 1) exp(F_s) + k``, ``F_s = u A_c``, ``F_o = F_s + u A_f`` and ``u = s* (a - 1/lambda)``. With k = 1 it
    is the coarse trajectory.
    """
    k, times = n_subclasses, np.asarray(times, dtype=float)
    speed, u = step * signal_patches * coefficient / (2 * k), signal_patches * (coefficient - bias_rate)

    def velocity(_, a):
        siblings = u * a[0]
        own = siblings + u * a[1]
        total = np.exp(own) + (k - 1) * np.exp(siblings) + k
        return speed / total * np.array([k, (k - 1) * np.exp(siblings) + k])

    span = (0.0, max(float(times.max()), 1e-12))
    return solve_ivp(velocity, span, [0.0, 0.0], t_eval=times, rtol=1e-9, atol=1e-12).y


# --- Hard samples ---


def critical_subclasses(signal_patches, coefficient, distractor_patches, distractor, bias_rate):
    """Return the number of subclasses k* from which coarse labels fail on an average hard sample.

    ``s* (a - 1/lambda) / (s' (a' - 1/lambda))``; ``ValueError`` when distractors are too weak to be seen
    (``a' <= 1/lambda``).
    """
    if distractor <= bias_rate:
        raise ValueError(f"distractors below bias_rate={bias_rate} do not make any detector fire, got {distractor}")
    return signal_patches * (coefficient - bias_rate) / (distractor_patches * (distractor - bias_rate))


def hard_error(ratio, signal_patches, coefficient, distractor_patches, low, high, bias_rate):
    """Return the probability that the distractors of a hard sample outweigh its fine feature.

    ``Pr[sum_p (a'_p - 1/lambda) * ratio >= s* (a - 1/lambda)]`` with ``a'_p`` uniform on ``[low, high]``, where ``ratio`` is
    the growth of common over fine detectors. Strong noise and the small jitter of the fine patches are left out. ``ValueError``
    when ``low < bias_rate``: then some distractors make no detector fire, and the sum is not one of uniforms.
    """
    if low < bias_rate or high <= low:
        raise ValueError(f"need bias_rate <= low < high, got {bias_rate}, {low}, {high}")
    needed = signal_patches * (coefficient - bias_rate) / np.asarray(ratio, dtype=float)
    return irwinhall.sf((needed - distractor_patches * (low - bias_rate)) / (high - low), distractor_patches)


# --- The initial geometry ---


def detector_threshold(n_neurons, n_detectors):
    """Return the threshold that ``n_detectors`` of ``n_neurons`` Gaussians exceed on average, in units of the initial scale."""
    if not 0 < n_detectors < n_neurons:
        raise ValueError(f"need 0 < n_detectors < n_neurons, got {n_detectors}, {n_neurons}")
    return -float(ndtri(n_detectors / n_neurons))


def detector_counts(n_neurons, n_features, threshold, slack):
    """Return the expected numbers ``(singleton, possible)`` of a class's detectors of one feature.

    ``m Q(threshold + slack) (1 - Q(threshold - slack))^(n_features - 1)`` and ``m Q(threshold - slack)``, Q the Gaussian tail.
    Source: Hong et al. 2024, Propositions 1 and 2, before asymptotics.
    """
    low = ndtr(slack - threshold)
    return n_neurons * ndtr(-threshold - slack) * (1 - low) ** (n_features - 1), n_neurons * low


def _positive(n, name):
    if int(n) != n or n < 1:
        raise ValueError(f"{name} must be a positive integer, got {n}")
    return int(n)
