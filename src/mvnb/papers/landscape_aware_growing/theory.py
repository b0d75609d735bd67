r"""Growing in depth: rank tools, and two closed forms.

Source: Karp et al. 2024 (chapter 5 of Karp's thesis, "Karp" below) for regret, recall and the heat map; the closed
forms are derived in chapter 07. Losses of a space of operators have shape ``(step, operator)``, one row a time of measurement;
``final`` is a row of that kind.
"""

from __future__ import annotations

import numpy as np

# --- Rank tools ---


def best(losses) -> np.ndarray:
    """The operator that a look at each step would pick, ``(step,)``: the one with the lowest loss (the first of equals).

    LAG@k is the entry of step k; step 0 is loss preservation. Source: Karp, section 5.4.1.
    """
    return np.argmin(_losses(losses), -1)


def regret(losses, final) -> np.ndarray:
    """Final loss of each step's pick minus the best final loss, ``(step,)``; 0 for the oracle. Source: Karp, eq. (5.1)."""
    losses, final = _with_final(losses, final)
    return final[best(losses)] - final.min()


def relative_regret(losses, final) -> np.ndarray:
    """Regret as a share of the spread of final losses, in [0, 1]. Source: Karp, eq. (5.2).

    ``ValueError`` when all final losses are equal, where it is undefined.
    """
    losses, final = _with_final(losses, final)
    if np.ptp(final) == 0:
        raise ValueError("relative regret is undefined when all final losses are equal")
    return regret(losses, final) / np.ptp(final)


def recall(losses, final, k) -> np.ndarray:
    """Whether the operator with the best final loss is among the ``k`` lowest at each step, ``(step,)`` of booleans.

    ``k`` from 1 to the number of operators. Source: Karp, section 5.3.3 (Recall@k).
    """
    losses, final = _with_final(losses, final)
    if not 1 <= k <= len(final):
        raise ValueError(f"k must lie between 1 and {len(final)}, got {k}")
    below = losses < losses[:, [final.argmin()]]
    return below.sum(-1) < k


def self_correlation(losses) -> np.ndarray:
    """Spearman's rank correlation over operators between every two steps, ``(step, step)``: symmetric, 1 on the diagonal.

    ``ValueError`` for fewer than two operators and for a step at which all losses are equal. Source: Karp, Figure 5.3.
    """
    losses = _losses(losses)
    if losses.shape[1] < 2 or np.any(np.ptp(losses, -1) == 0):
        raise ValueError("rank correlation needs two or more operators with different losses at every step")
    apart = losses[:, :, None] - losses[:, None, :]
    ranks = np.sign(apart).sum(-1)  # centred, and twice the usual ones; equal losses share a rank
    return np.corrcoef(ranks) if len(ranks) > 1 else np.ones((1, 1))


def _losses(losses) -> np.ndarray:
    losses = np.asarray(losses, dtype=float)
    if losses.ndim != 2 or losses.size == 0 or not np.isfinite(losses).all():
        raise ValueError(f"losses must be a finite table (step, operator), got shape {losses.shape}")
    return losses


def _with_final(losses, final) -> tuple[np.ndarray, np.ndarray]:
    losses, final = _losses(losses), np.asarray(final, dtype=float)
    if final.shape != losses.shape[1:]:
        raise ValueError(f"final must hold one loss an operator, {losses.shape[1]}, got shape {final.shape}")
    return losses, final


# --- Random layers: how much they change ---


def arc_cosine(cosine):
    """``E relu(a) relu(b)`` of standard normal a, b with this correlation: 1/2 at 1, 1/(2 pi) at 0.

    Source: Cho and Saul 2009.
    """
    c = np.clip(cosine, -1.0, 1.0)
    return (np.sqrt(1 - c**2) + c * (np.pi - np.arccos(c))) / (2 * np.pi)


# --- Two weights: the order of losses reverses ---


def pair_product(start, demand, time):
    r"""The product p = u v of two equal weights under the gradient flow of ``(p - demand)^2 / 2``, from ``start`` > 0.

    Broadcasts. The logistic curve ``c / (1 - (1 - c / p_0) e^{-2 c t})``. ``ValueError`` unless all are positive (the time may
    be 0).
    """
    start, demand, time = (np.asarray(x, dtype=float) for x in (start, demand, time))
    if np.any(start <= 0) or np.any(demand <= 0) or np.any(time < 0):
        raise ValueError("start and demand must be positive, and time not negative")
    return demand / (1 - (1 - demand / start) * np.exp(-2 * demand * time))


def crossing_time(low, high, demand):
    """Return the time at which the losses of two starts, ``low < demand < high``, are equal, or nan if they never are.

    ``log(2 a b / (b - a)) / (2 c)`` with ``a = 1 - c / high`` and ``b = c / low - 1``, where it is at least 0.
    """
    low, high, c = (np.asarray(x, dtype=float) for x in (low, high, demand))
    if np.any(low <= 0) or np.any(low >= c) or np.any(high <= c):
        raise ValueError("the demand must lie between the two starts, and the lower one above 0")
    a, b = 1 - c / high, c / low - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        time = np.log(2 * a * b / (b - a)) / (2 * c)
    return np.where((b > a) & (time >= 0), time, np.nan)
