"""Intervals and fits for what the chapters measure: thin over NumPy and SciPy, float64, no global random state.

SciPy is imported where it is needed, since that takes most of a second.
"""

import numpy as np


def mean_interval(values, level=0.95):
    """Mean of independent measurements and the half-width of its Student-t interval: ``(mean, half_width)``.

    ``values``: any shape, flattened, at least two; ``level`` in (0, 1). ``ValueError`` otherwise or if a value is not
    finite. Equal values give half-width 0.
    """
    values = _sample(values)
    return float(values.mean()), student_half_width(values.std(ddof=1), len(values), level)


def student_half_width(deviation, n, level=0.95):
    """Half-width of the Student-t interval of a mean of ``n >= 2`` measurements with this standard deviation."""
    from scipy.special import stdtrit

    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), not {level}")
    return float(stdtrit(n - 1, (1 + level) / 2) * deviation / np.sqrt(n))


def proportion_interval(successes, n):
    """Share of successes and its Wilson score interval of level 0.95: ``(estimate, low, high)``, all in [0, 1].

    ``0 <= successes <= n`` and ``n >= 1``; ``ValueError`` otherwise. Unlike the normal interval it keeps a positive width at
    0 and at n successes. Source: Wilson 1927.
    """
    from scipy.stats import binomtest

    if not (n >= 1 and 0 <= successes <= n):
        raise ValueError(f"need 0 <= successes <= n and n >= 1, not {successes} of {n}")
    share, interval = successes / n, binomtest(int(successes), int(n)).proportion_ci(0.95, method="wilson")
    # at 0 and n successes the end point is the estimate itself, up to rounding
    return float(share), float(min(interval.low, share)), float(max(interval.high, share))


def power_law_fit(x, y):
    """Least-squares line ``log y = intercept + slope log x``, as ``scipy.stats.linregress`` returns it.

    ``x``, ``y``: one-dimensional, equally long, positive, at least two different ``x`` (``ValueError`` otherwise).
    """
    from scipy.stats import linregress

    if np.ndim(x) != 1 or np.shape(x) != np.shape(y):
        raise ValueError("x and y must be one-dimensional and equally long")
    x, y = _sample(x), _sample(y)
    if np.any(x <= 0) or np.any(y <= 0):
        raise ValueError("a power law needs positive x and y")
    if np.ptp(x) == 0:
        raise ValueError("a power law needs at least two different x")
    return linregress(np.log(x), np.log(y))


def first_crossing_time(curves, times, level, power):
    """When curves ``(T, R, ...)``, logged at ``times`` ``(T, R)``, first pass ``level`` upwards: ``(R, ...)``.

    Between two logs, time is taken to be linear in ``curve**power`` (not 0): exact for ``dx/dt ~ x^(1 - power)``. nan for a
    curve that begins above the level or never passes it.
    """
    curves, times = np.asarray(curves, dtype=float), np.asarray(times, dtype=float)
    after = (curves > level).argmax(0)  # 0 for never, too
    there = np.indices(after.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = curves[after - 1, *there] ** power, curves[after, *there] ** power
        share = (level**power - low) / (high - low)
    begin, end = times[after - 1, there[0]], times[after, there[0]]
    return np.where(after > 0, begin + share * (end - begin), np.nan)


def _sample(values):
    values = np.asarray(values, dtype=float).ravel()
    if len(values) < 2:
        raise ValueError(f"need at least 2 values, not {len(values)}")
    if not np.all(np.isfinite(values)):
        raise ValueError("values must be finite")
    return values
