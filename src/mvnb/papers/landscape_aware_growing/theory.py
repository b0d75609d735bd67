r"""Growing in depth: rank tools, the printed tables, and two closed forms.

Source: Karp et al. 2024 (chapter 5 of Karp's thesis, "Karp" below) for regret, recall, the heat map and the tables; the closed
forms are derived in chapter 07. Losses of a space of operators have shape ``(step, operator)``, one row a time of measurement;
``final`` is a row of that kind.
"""

from __future__ import annotations

from typing import NamedTuple

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


def smooth(losses, window=11) -> np.ndarray:
    """Means over a centred window of steps, ``(step, ...)``; at the ends over as much of it as there is.

    ``window`` odd and positive (``ValueError`` otherwise). Straight lines are left as they are, away from the ends.
    Source: Karp, Figure 5.3 (11 steps).
    """
    losses = np.asarray(losses, dtype=float)
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window must be odd and positive, got {window}")
    total = np.concatenate([np.zeros_like(losses[:1]), losses.cumsum(0)])
    place = np.arange(len(losses))
    low, high = np.maximum(place - window // 2, 0), np.minimum(place + window // 2 + 1, len(losses))
    return (total[high] - total[low]) / (high - low).reshape(-1, *[1] * (losses.ndim - 1))


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


# --- The printed tables ---


class Row(NamedTuple):
    """A strategy's final validation loss, regret and relative regret, as printed."""

    strategy: str
    loss: float
    regret: float
    relative: float


BERT = (
    Row("Oracle", 1.7461, 0.0, 0.0),
    Row("LAG@200", 1.7461, 0.0, 0.0),
    Row("LAG@0", 1.7875, 0.0414, 0.7986),
    Row("Stack last block on top", 1.7747, 0.0286, 0.5517),
    Row("Stack random block on top", 1.7875, 0.0414, 0.7986),
)
"""Karp, Table 5.1: BERT-Base, 12 to 16 layers."""

UL2 = (
    Row("Oracle", 2.1254, 0.0, 0.0),
    Row("LAG@2000", 2.1268, 0.0014, 0.0895),
    Row("LAG@0", 2.1398, 0.0144, 0.9202),
    Row("Stack last block on top", 2.1357, 0.0103, 0.6582),
    Row("Stack random block on top", 2.1398, 0.0144, 0.9202),
)
"""Karp, Table 5.2: UL2 with 1.1 billion parameters, 12 to 16 layers."""


def implied_spread(rows) -> tuple[float, float]:
    """The range of spreads (worst minus best final loss) with which all rows of a printed table agree, rounding included.

    The losses are printed to 4 digits, regrets and relative regrets, too; each row with regret bounds the quotient.
    ``low > high`` would mean that the table contradicts itself.
    """
    half = 0.5e-4
    bounds = [((r.regret - half) / (r.relative + half), (r.regret + half) / (r.relative - half)) for r in rows if r.regret]
    return max(low for low, _ in bounds), min(high for _, high in bounds)


# --- Random layers: how much they change ---


def arc_cosine(cosine):
    """``E relu(a) relu(b)`` of standard normal a, b with this correlation: 1/2 at 1, 1/(2 pi) at 0.

    Source: Cho and Saul 2009.
    """
    c = np.clip(cosine, -1.0, 1.0)
    return (np.sqrt(1 - c**2) + c * (np.pi - np.arccos(c))) / (2 * np.pi)


# --- Two weights: the order of losses turns round ---


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
    """When the losses of two starts on either side of the demand are equal, ``low < demand < high``; nan when they never are.

    ``log(2 a b / (b - a)) / (2 c)`` with ``a = 1 - c / high`` and ``b = c / low - 1``, where it is at least 0.
    """
    low, high, c = (np.asarray(x, dtype=float) for x in (low, high, demand))
    if np.any(low <= 0) or np.any(low >= c) or np.any(high <= c):
        raise ValueError("the demand must lie between the two starts, and the lower one above 0")
    a, b = 1 - c / high, c / low - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        time = np.log(2 * a * b / (b - a)) / (2 * c)
    return np.where((b > a) & (time >= 0), time, np.nan)
