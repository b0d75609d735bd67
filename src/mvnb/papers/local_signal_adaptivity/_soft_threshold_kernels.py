"""Responses of a soft-threshold filter to Gaussian patches, drawn without the patches that the threshold silences.

One random stream a replica and step, from a key; SplitMix64. Magnitudes come from a table of quantiles that is exact to 1e-5.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from scipy.special import ndtri_exp

from mvnb.compiled import compiled

_PER_UNIT = 128
# -log of an upper tail probability of a Gaussian -> its quantile, on a grid from -log 1 (clipped) to 50
QUANTILES = -ndtri_exp(-np.maximum(np.arange(50 * _PER_UNIT + 2) / _PER_UNIT, 1e-12))
QUANTILES[0] = -8.0
_BINS = 1024  # cells of equal probability, in which quantiles are interpolated
_TAIL = 16  # the last of them, where that would be too coarse
_INNER = -np.log1p(-np.arange(_BINS) / _BINS)  # -log of the share of survivors beyond a cell's lower end


GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@numba.njit(inline="always")
def mix(state):
    """Return SplitMix64's word of a state, which steps by ``GOLDEN``."""
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled()
def _uniform(bits):
    """In (0, 1), from the upper 53 bits."""
    return (np.float64(np.int64(bits >> np.uint64(11))) + 0.5) * (1.0 / 9007199254740992.0)


@compiled()
def _quantile(log_tail, table):
    x = log_tail * _PER_UNIT
    i = min(int(x), len(table) - 2)
    return table[i] + (x - i) * (table[i + 1] - table[i])


@compiled()
def _binomial_cdf(n, p, cdf):
    """Distribution function of a binomial variable into ``cdf`` ``(n + 1,)``, from the mode outwards.

    Returns the ends of the range that carries all but 1e-18 of it; nothing is written outside.
    """
    mode = min(int((n + 1) * p), n)
    odds = p / (1 - p)
    cdf[mode] = 1.0
    last = mode
    while last < n and cdf[last] > 1e-18:
        cdf[last + 1] = cdf[last] * ((n - last) * odds) / (last + 1)
        last += 1
    first = mode
    while first > 0 and cdf[first] > 1e-18:
        cdf[first - 1] = cdf[first] * first / ((n - first + 1) * odds)
        first -= 1
    total = 0.0
    for i in range(first, last + 1):
        total += cdf[i]
        cdf[i] = total
    for i in range(first, last + 1):
        cdf[i] /= total
    return first, last


@compiled(fastmath=True)
def _survivors_sum(count, state, start, slope, live):
    """Of ``count`` survivors: the signed sum, the sum of signs and the number of those that are not in the tail.

    Without a branch, so that it is vectorised: ``start``, ``slope`` and ``live`` are 0 in the cells of the tail.
    """
    total, signs, inside = 0.0, 0.0, 0.0
    for _ in range(count):
        state += GOLDEN
        bits = mix(state)
        j = np.int64(bits >> np.uint64(54))
        z = start[j] + np.float64(np.int64((bits >> np.uint64(22)) & np.uint64(0xFFFFFFFF))) * slope[j]
        sign = 1.0 - 2.0 * np.float64(np.int64(bits & np.uint64(1)))
        total += sign * z
        signs += sign * live[j]
        inside += live[j]
    return total, signs, inside, inside


@compiled(fastmath=True)
def _patches_sum(count, state, start, slope, live, double):
    """The same where nothing is silenced, and what is below ``double`` counts twice; in between, the sum of squared weights."""
    total, signs, square, inside = 0.0, 0.0, 0.0, 0.0
    for _ in range(count):
        state += GOLDEN
        bits = mix(state)
        j = np.int64(bits >> np.uint64(54))
        z = start[j] + np.float64(np.int64((bits >> np.uint64(22)) & np.uint64(0xFFFFFFFF))) * slope[j]
        sign = 1.0 - 2.0 * np.float64(np.int64(bits & np.uint64(1)))
        twice = np.float64(np.int64(z <= double))
        total += (1.0 + twice) * sign * z
        signs += (1.0 - twice) * sign * live[j]
        square += (1.0 + 3.0 * twice) * live[j]
        inside += live[j]
    return total, signs, square, inside


@compiled()
def survivors(keys, b, scale, n_noise, table, pull, tilt, square):
    """Sums over the patches that get through, for ``n`` points a replica; all outputs ``(R, n)``.

    With ``Z ~ N(0, scale^2)`` a patch's pre-activation, p and q the slopes of its two ReLUs: ``pull`` is the sum of
    ``(p + q) Z``, ``tilt`` that of ``p - q`` and ``square`` that of ``(p + q)^2``. ``keys`` ``(R,)`` uint64.
    """
    cdf, start, slope, live = np.empty(n_noise + 1), np.zeros(_BINS), np.zeros(_BINS), np.zeros(_BINS)
    live[: _BINS - _TAIL] = 1.0
    for r in range(len(keys)):
        state = mix(keys[r])
        bar, double = max(-b[r], 0.0) / scale[r], max(b[r], 0.0) / scale[r]  # in units of the scale
        p = math.erfc(bar / math.sqrt(2.0))
        if p * n_noise * pull.shape[1] < 1e-9:  # no survivor in this step, nor in the next million
            pull[r], tilt[r], square[r] = 0.0, 0.0, 0.0
            continue
        base = -math.log(p / 2)
        beyond = base + _INNER[_BINS - _TAIL]
        end = _quantile(beyond, table)
        for j in range(_BINS - _TAIL - 1, -1, -1):
            start[j] = _quantile(base + _INNER[j], table) if j else bar
            slope[j] = (end - start[j]) * (1.0 / 4294967296.0)
            end = start[j]
        if p < 1:
            first, last = _binomial_cdf(n_noise, p, cdf)
        for i in range(pull.shape[1]):
            count = n_noise
            if p < 1:
                state += GOLDEN
                count = first + np.searchsorted(cdf[first:last], _uniform(mix(state)))
                a, t, w, inside = _survivors_sum(count, state, start, slope, live)
            else:
                a, t, w, inside = _patches_sum(count, state, start, slope, live, double)
            state += np.uint64(count) * GOLDEN
            for _ in range(count - int(inside)):
                state += GOLDEN
                bits = mix(state)
                sign = 1 - 2 * np.int64(bits & np.uint64(1))
                z = _quantile(beyond - math.log(_uniform(bits)), table)
                twice = np.int64(z <= double)
                a += (1 + twice) * sign * z
                t += (1 - twice) * sign
                w += 1 + 3 * twice
            pull[r, i], tilt[r, i], square[r, i] = a * scale[r], t, w


@compiled()
def reduce(own, b, pull, tilt, square, sums):
    """From the sums of :func:`survivors` those over the points: into ``sums`` ``(R, 5)``.

    ``own`` ``(R,)`` is the signal's response, the output ``own + pull + b tilt``. With u the derivative of the logistic loss
    in it, over n: the mean loss, and the sums of u, ``u pull``, ``u tilt`` and ``u^2 square``.
    """
    n = pull.shape[1]
    sums[:] = 0.0
    for r in range(len(b)):
        for i in range(n):
            out = own[r] + pull[r, i] + b[r] * tilt[r, i]
            small = math.exp(-abs(out))
            u = -(small if out > 0 else 1.0) / (1.0 + small) / n
            sums[r, 0] += (math.log1p(small) + max(-out, 0.0)) / n
            sums[r, 1] += u
            sums[r, 2] += u * pull[r, i]
            sums[r, 3] += u * tilt[r, i]
            sums[r, 4] += u * u * square[r, i]
