"""Intervals and fits for what the chapters measure: thin over NumPy and SciPy, float64, no global random state."""

from typing import NamedTuple

import numpy as np
from scipy import stats as _stats


class PowerLaw(NamedTuple):
    """Least-squares line ``log y = intercept + slope log x`` and the standard error of its slope."""

    slope: float
    intercept: float
    slope_error: float


def mean_interval(values, level=0.95):
    """Mean of independent measurements and the half-width of its Student-t interval: ``(mean, half_width)``.

    ``values``: any shape, flattened, at least two; ``level`` in (0, 1). ``ValueError`` otherwise or if a value is not
    finite. Equal values give half-width 0.
    """
    values, level = _sample(values, 2), _level(level)
    quantile = _stats.t.ppf((1 + level) / 2, len(values) - 1)
    return float(values.mean()), float(quantile * values.std(ddof=1) / np.sqrt(len(values)))


def proportion_interval(successes, n, level=0.95):
    """Share of successes and its Wilson score interval: ``(estimate, low, high)``, all in [0, 1].

    ``0 <= successes <= n`` and ``n >= 1``; ``level`` in (0, 1); ``ValueError`` otherwise. Unlike the normal interval it
    keeps a positive width at 0 and at n successes. Source: Wilson 1927.
    """
    level = _level(level)
    if not (n >= 1 and 0 <= successes <= n):
        raise ValueError(f"need 0 <= successes <= n and n >= 1, not {successes} of {n}")
    share, z = successes / n, _stats.norm.ppf((1 + level) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # at 0 and n successes the end point is the estimate itself, up to rounding
    return float(share), float(min(max(centre - half, 0.0), share)), float(max(min(centre + half, 1.0), share))


def bootstrap_interval(values, statistic=np.mean, level=0.95, n_resamples=2000, seed=0):
    """A statistic of a sample and its percentile bootstrap interval: ``(estimate, low, high)``.

    ``values``: any shape, flattened, at least two, all finite; ``statistic`` maps a one-dimensional array to a number;
    ``level`` in (0, 1); ``n_resamples >= 1``; ``seed`` an integer. ``ValueError`` otherwise.
    """
    values, level = _sample(values, 2), _level(level)
    if n_resamples < 1:
        raise ValueError("n_resamples must be at least 1")
    resamples = np.random.default_rng(seed).choice(values, size=(n_resamples, len(values)))  # (resample, value)
    low, high = np.quantile(np.apply_along_axis(statistic, 1, resamples), [(1 - level) / 2, (1 + level) / 2])
    return float(statistic(values)), float(low), float(high)


def power_law_fit(x, y):
    """Exponent of ``y ~ x^slope`` by least squares on logarithms: a :class:`PowerLaw`.

    ``x``, ``y``: one-dimensional, equally long, positive, at least two different ``x`` (``ValueError`` otherwise). The
    standard error is nan with two points, where nothing is left over to judge the line by.
    """
    x, y = _paired(x, y, 2)
    if np.any(x <= 0) or np.any(y <= 0):
        raise ValueError("a power law needs positive x and y")
    if np.ptp(x) == 0:
        raise ValueError("a power law needs at least two different x")
    log_x, log_y = np.log(x), np.log(y)
    centred = log_x - log_x.mean()
    slope = centred @ log_y / (centred @ centred)
    intercept = log_y.mean() - slope * log_x.mean()
    residual, freedom = log_y - intercept - slope * log_x, len(x) - 2
    error = np.sqrt(residual @ residual / freedom / (centred @ centred)) if freedom else np.nan
    return PowerLaw(float(slope), float(intercept), float(error))


def rank_correlation(x, y):
    """Spearman's rank correlation of two equally long one-dimensional arrays, in [-1, 1].

    ``ValueError`` for fewer than two pairs, a value that is not finite, or a constant array, where it is undefined.
    """
    x, y = _paired(x, y, 2)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        raise ValueError("rank correlation of a constant is undefined")
    return float(_stats.spearmanr(x, y).statistic)


def _level(level):
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), not {level}")
    return level


def _sample(values, least):
    values = np.asarray(values, dtype=float).ravel()
    if len(values) < least:
        raise ValueError(f"need at least {least} values, not {len(values)}")
    if not np.all(np.isfinite(values)):
        raise ValueError("values must be finite")
    return values


def _paired(x, y, least):
    if np.ndim(x) != 1 or np.shape(x) != np.shape(y):
        raise ValueError("x and y must be one-dimensional and equally long")
    return _sample(x, least), _sample(y, least)
