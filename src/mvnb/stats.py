"""Confidence intervals and fits for measurements: thin wrappers around NumPy and SciPy, which compute in float64.

SciPy is imported inside the functions because importing it takes most of a second.
"""

from __future__ import annotations

import math
import reprlib
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval; for deterministic values, both ends equal the estimate.

    >>> low, high = Interval(2.0, 1.5, 2.5)[1:]
    >>> "{} ± {}".format(*Interval(2.0, low, high).plus_minus)
    '2.0 ± 0.5'
    """

    estimate: float
    low: float
    high: float

    @property
    def plus_minus(self) -> tuple[float, float]:
        """The estimate and half the width of the interval."""
        return self.estimate, (self.high - self.low) / 2


def mean_interval(values, level=0.95):
    """Return the mean of independent measurements and its Student-t interval, an :class:`Interval`.

    ``values`` is an array of any shape with at least two elements, and ``level`` is the confidence level. The attribute
    ``plus_minus`` of the result is the mean and half the width. If all values are equal, the interval has width 0.

    Raises ``ValueError`` if there are fewer than two values, a value is not finite or ``level`` does not lie in (0, 1).

    >>> print("{:.2f} ± {:.2f}".format(*mean_interval([1.0, 2.0, 3.0, 4.0]).plus_minus))
    2.50 ± 2.05
    """
    values = _finite_values(values)
    return student_interval(float(values.mean()), values.std(ddof=1), len(values), level)


def student_interval(mean, deviation, n, level=0.95):
    """Return the Student-t interval of a mean of ``n`` independent measurements, an :class:`Interval`; unbounded for ``n = 1``.

    ``deviation`` is the sample standard deviation (with ``n - 1`` in the denominator), and ``level`` is the confidence level.

    Raises ``ValueError`` if ``n`` is not an integer of at least 1, ``deviation`` is negative or NaN although ``n > 1``, or
    ``level`` does not lie in (0, 1).

    >>> print("{:.2f} [{:.2f}, {:.2f}]".format(*student_interval(3.0, 1.0, 16)))
    3.00 [2.47, 3.53]
    """
    from scipy.special import stdtrit

    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}")
    if not (n >= 1 and n % 1 == 0):
        raise ValueError(f"n must be an integer of at least 1, got {n}")
    if n > 1 and not deviation >= 0:
        raise ValueError(f"deviation must be non-negative, got {deviation}")
    half = float(stdtrit(n - 1, (1 + level) / 2) * deviation / np.sqrt(n)) if n > 1 else math.inf
    return Interval(mean, mean - half, mean + half)


def proportion_interval(successes, n):
    """Return the share of successes in ``n`` trials and its 95 % Wilson score interval, an :class:`Interval` within [0, 1].

    Unlike the normal interval, Wilson's interval has a positive width even for 0 or ``n`` successes. Source: Wilson 1927.

    Raises ``ValueError`` if a number is not an integer, ``n < 1`` or ``successes`` does not lie in [0, n].

    >>> print("{:.3f} [{:.3f}, {:.3f}]".format(*proportion_interval(7, 8)))
    0.875 [0.529, 0.978]
    """
    from scipy.stats import binomtest

    if not (n >= 1 and 0 <= successes <= n and successes % 1 == n % 1 == 0):
        raise ValueError(f"expected integers 0 <= successes <= n with n >= 1, got successes = {successes}, n = {n}")
    share, interval = successes / n, binomtest(int(successes), int(n)).proportion_ci(0.95, method="wilson")
    # At 0 and n successes one end equals the estimate up to rounding.
    return Interval(float(share), float(min(interval.low, share)), float(max(interval.high, share)))


def holm_adjusted(p_values):
    """Return p-values adjusted for the number of tests by Holm's method, as an array ``(n,)`` in the given order.

    Rejecting each hypothesis whose adjusted value is at most ``a`` keeps the probability of any false rejection below ``a``,
    whatever the dependence of the tests. Source: Holm 1979.

    Raises ``ValueError`` if ``p_values`` is not of shape ``(n,)`` or a value does not lie in [0, 1].

    >>> holm_adjusted([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p = as_numbers(p_values)
    if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"expected p-values (n,) in [0, 1], got {reprlib.repr(p_values)}")
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return adjusted.clip(max=1)


def holm_tests(differences):
    """Return p-values of two-sided t-tests against 0 by name: of each test alone, and adjusted by :func:`holm_adjusted`.

    ``differences`` maps names to paired differences ``(n,)``.

    >>> {name: p.round(2).tolist() for name, p in holm_tests({"loss": [1, 2, 3], "time": [1, -1, 2]}).items()}
    {'loss': [0.07, 0.15], 'time': [0.53, 0.53]}
    """
    from scipy.stats import ttest_1samp

    alone = [ttest_1samp(values, 0).pvalue for values in differences.values()]
    return dict(zip(differences, np.stack([alone, holm_adjusted(alone)], 1)))


def power_law_fit(x, y):
    """Fit the line ``log y = intercept + slope log x`` by least squares and return the result of ``scipy.stats.linregress``.

    ``x`` and ``y`` are arrays of shape ``(n,)``.

    Raises ``ValueError`` if the shapes differ, a value is not finite and positive, or ``x`` has fewer than two different
    values.

    >>> fit = power_law_fit([1, 2, 4], [3, 12, 48])
    >>> print(f"{np.exp(fit.intercept):.3f} * x ** {fit.slope:.3f}")
    3.000 * x ** 2.000
    """
    from scipy.stats import linregress

    if np.ndim(x) != 1 or np.shape(x) != np.shape(y):
        raise ValueError(f"expected x and y of the same shape (n,), got {np.shape(x)} and {np.shape(y)}")
    x, y = _finite_values(x), _finite_values(y)
    if np.any(x <= 0) or np.any(y <= 0):
        raise ValueError(f"expected positive x and y, got a minimum of {min(x.min(), y.min())}")
    if np.ptp(x) == 0:
        raise ValueError(f"expected at least two different values of x, got only {x[0]}")
    return linregress(np.log(x), np.log(y))


def first_crossing_time(curves, times, level, power):
    """Return the times ``(R, ...)`` at which the curves first exceed ``level``.

    ``curves`` has shape ``(T, R, ...)`` and contains the values of ``R`` runs at their ``times`` ``(T, R)``. Between two times,
    the crossing is interpolated linearly in ``curve**power``; this is exact if ``dx/dt`` is proportional to ``x^(1 - power)``.
    The result is NaN for a curve that starts above the level or never exceeds it.

    Raises ``ValueError`` if a shape is wrong, ``power`` is 0 or not finite, or ``curve**power`` is not defined or not monotone
    where a curve crosses the level: curves must be positive there if ``power`` is negative, and non-negative unless it is an
    odd integer.

    >>> first_crossing_time([[0.0], [1.0], [4.0]], [[0.0], [10.0], [20.0]], level=2.5, power=1.0)
    array([15.])
    """
    if power == 0 or not math.isfinite(power):
        raise ValueError(f"power must be finite and not 0, got {power}")
    curves, times = as_numbers(curves), as_numbers(times)
    if curves.ndim < 2 or times.shape != curves.shape[:2]:
        raise ValueError(f"expected curves (T, R, ...) and times (T, R), got shapes {curves.shape} and {times.shape}")
    after = (curves > level).argmax(0)  # also 0 for curves that never exceed it
    there = np.indices(after.shape)
    below = curves[after - 1, *there][after > 0]
    if (bad := below[(below <= 0 if power < 0 else below < 0)]).size and not (power > 0 and power % 2 == 1):
        least = "positive" if power < 0 else "non-negative"
        raise ValueError(f"curves must be {least} before the crossing for power = {power}, got {bad[0]}")
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = curves[after - 1, *there] ** power, curves[after, *there] ** power
        share = (level**power - low) / (high - low)
    begin, end = times[after - 1, there[0]], times[after, there[0]]
    return np.where(after > 0, begin + share * (end - begin), np.nan)


def as_numbers(values):
    """Return real numbers, such as a list of floats or a tensor, as an array of float64; a tensor is detached.

    Raises ``ValueError`` if ``values`` holds complex numbers, texts or lists of different lengths.

    >>> as_numbers([True, 2, 0.5])
    array([1. , 2. , 0.5])
    """
    parts = values if isinstance(values, list | tuple) else [values]
    parts = [one.detach().cpu() if hasattr(one, "detach") else one for one in parts]
    try:
        found = np.asarray(parts if isinstance(values, list | tuple) else parts[0])
        if found.dtype.kind not in "biufO":
            raise TypeError(f"an array of type {found.dtype}")
        return found.astype(float)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"expected real numbers in an array, got {reprlib.repr(values)}: {error}") from None


def _finite_values(values):
    values = as_numbers(values).ravel()
    if len(values) < 2:
        raise ValueError(f"expected at least 2 values, got {len(values)}")
    if not np.all(np.isfinite(values)):
        raise ValueError(f"values must be finite, got {values[~np.isfinite(values)][0]}")
    return values
