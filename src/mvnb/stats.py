"""Intervals and fits for what the chapters measure: thin over NumPy and SciPy, float64, no global random state.

SciPy is imported where it is needed, since that takes most of a second.
"""

from typing import NamedTuple

import numpy as np


class PowerLaw(NamedTuple):
    """Least-squares line ``log y = intercept + slope log x``."""

    slope: float
    intercept: float


def mean_interval(values, level=0.95):
    """Mean of independent measurements and the half-width of its Student-t interval: ``(mean, half_width)``.

    ``values``: any shape, flattened, at least two; ``level`` in (0, 1). ``ValueError`` otherwise or if a value is not
    finite. Equal values give half-width 0.
    """
    values = _sample(values, 2)
    return float(values.mean()), student_half_width(values.std(ddof=1), len(values), level)


def student_half_width(deviation, n, level=0.95):
    """Half-width of the Student-t interval of a mean of ``n >= 2`` measurements with this standard deviation."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + _level(level)) / 2) * deviation / np.sqrt(n))


def proportion_interval(successes, n, level=0.95):
    """Share of successes and its Wilson score interval: ``(estimate, low, high)``, all in [0, 1].

    ``0 <= successes <= n`` and ``n >= 1``; ``level`` in (0, 1); ``ValueError`` otherwise. Unlike the normal interval it
    keeps a positive width at 0 and at n successes. Source: Wilson 1927.
    """
    from scipy.stats import binomtest

    level = _level(level)
    if not (n >= 1 and 0 <= successes <= n):
        raise ValueError(f"need 0 <= successes <= n and n >= 1, not {successes} of {n}")
    share, interval = successes / n, binomtest(int(successes), int(n)).proportion_ci(level, method="wilson")
    # at 0 and n successes the end point is the estimate itself, up to rounding
    return float(share), float(min(interval.low, share)), float(max(interval.high, share))


def power_law_fit(x, y):
    """Exponent of ``y ~ x^slope`` by least squares on logarithms: a :class:`PowerLaw`.

    ``x``, ``y``: one-dimensional, equally long, positive, at least two different ``x`` (``ValueError`` otherwise).
    """
    from scipy.stats import linregress

    x, y = _paired(x, y, 2)
    if np.any(x <= 0) or np.any(y <= 0):
        raise ValueError("a power law needs positive x and y")
    if np.ptp(x) == 0:
        raise ValueError("a power law needs at least two different x")
    line = linregress(np.log(x), np.log(y))
    return PowerLaw(float(line.slope), float(line.intercept))


class PowerCurve(NamedTuple):
    """The curve ``y = scale * x^exponent``."""

    scale: float
    exponent: float


def power_curve_fit(x, y):
    """Least squares of ``y = a x^b`` in linear space: a :class:`PowerCurve`.

    ``scipy.optimize.curve_fit`` from the line through the logarithms (Karp 2024, appendix A.1, which leaves the start open).
    Large values decide this fit; :func:`power_law_fit` weighs equal ratios equally. ``x``, ``y``: one-dimensional,
    equally long, positive, at least two different ``x`` (``ValueError`` otherwise).
    """
    from scipy.optimize import curve_fit

    line = power_law_fit(x, y)
    x, y = _paired(x, y, 2)
    # in units of their geometric means, so that one step size serves both parameters
    mean, level = np.exp(np.log(x).mean()), np.exp(np.log(y).mean())
    start = (1.0, line.slope)
    precise = {"jac": lambda z, a, b: np.stack([z**b, a * z**b * np.log(z)], 1), "ftol": 1e-13, "xtol": 1e-13, "gtol": 1e-13}
    (a, b), _ = curve_fit(lambda z, a, b: a * z**b, x / mean, y / level, p0=start, maxfev=10_000, **precise)
    return PowerCurve(float(a * level / mean**b), float(b))


def power_curve_exponents(x, y, steps=60):
    """Exponents of :func:`power_curve_fit` for many curves at once: ``x`` ``(n,)``, ``y`` ``(..., n)`` to ``(...)``.

    The best scale for an exponent is known in closed form, so Gauss-Newton in two parameters with halved steps suffices.
    All ``x`` and ``y`` must be positive (``ValueError`` otherwise).
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if np.any(x <= 0) or not np.all(y > 0) or len(np.unique(x)) < 2:
        raise ValueError("x and y must be positive, and at least two x different")
    u = np.log(x) - np.log(x).mean()
    y = y / np.exp(np.log(y).mean(-1, keepdims=True))
    b = _log_slopes(x, y)

    def parts(b):
        z = np.exp(b[..., None] * u)
        a = (z * y).sum(-1) / (z * z).sum(-1)  # the best scale for this exponent
        error = y - a[..., None] * z
        return a[..., None] * z, error, (error**2).sum(-1)

    curve, error, cost = parts(b)
    for _ in range(steps):
        slope = curve * u
        slope -= curve * ((slope * curve).sum(-1) / (curve**2).sum(-1))[..., None]  # with the scale following
        step = (slope * error).sum(-1) / (slope**2).sum(-1)
        for _ in range(8):
            better = parts(b + step)[2] <= cost
            step = np.where(better, step, step / 2)
            if better.all():
                break
        b = np.where(parts(b + step)[2] <= cost, b + step, b)
        curve, error, cost = parts(b)
    return b


def maxima_exponent(x, values, space="log", level=0.95, n_resamples=1000, seed=0):
    """Exponent of ``max = a x^b`` through the largest of P measurements at each x: ``(b, low, high)``, bootstrap interval.

    ``values`` ``(n, P)``, or ``(trials, n, P)`` with the mean over trials of the maxima: positive maxima, P measurements at
    each of the n values ``x``, which are what is resampled. ``space``: ``"log"`` fits a line to logarithms, ``"linear"`` the
    curve itself (:func:`power_curve_fit`). ``ValueError`` for other shapes or spaces.

    A resampled maximum never exceeds the sample's and equals it with probability ``1 - (1 - 1/P)^P``, about 0.63: for maxima
    the interval shows how much hangs on single measurements, and has no guaranteed coverage (Bickel and Freedman 1981).
    """
    x, values, level = np.asarray(x, dtype=float), np.asarray(values, dtype=float), _level(level)
    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3 or values.shape[1] != len(x):
        raise ValueError(f"values must have shape (..., {len(x)}, P), got {values.shape}")
    if space not in ("log", "linear"):
        raise ValueError(f"space must be 'log' or 'linear', not {space!r}")
    picks = np.random.default_rng(seed).integers(values.shape[-1], size=(n_resamples, *values.shape))
    resampled = np.take_along_axis(values[None], picks, -1).max(-1).mean(1)  # (resample, n)
    top = np.vstack([values.max(-1).mean(0), resampled])
    exponents = power_curve_exponents(x, top) if space == "linear" else _log_slopes(x, top)
    low, high = np.quantile(exponents[1:], [(1 - level) / 2, (1 + level) / 2])
    return float(exponents[0]), float(low), float(high)


def _log_slopes(x, y):
    u = np.log(x) - np.log(x).mean()
    return np.log(y) @ u / (u @ u)


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


def rank_correlation(x, y):
    """Spearman's rank correlation of two equally long one-dimensional arrays, in [-1, 1].

    ``ValueError`` for fewer than two pairs, a value that is not finite, or a constant array, where it is undefined.
    """
    from scipy.stats import spearmanr

    x, y = _paired(x, y, 2)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        raise ValueError("rank correlation of a constant is undefined")
    return float(spearmanr(x, y).statistic)


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
