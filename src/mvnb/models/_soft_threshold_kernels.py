"""Responses of a soft-threshold filter to Gaussian patches, drawn without the patches that the threshold silences.

One random stream a replica and step, from a key; SplitMix64. Magnitudes come from a table of quantiles that is exact to 1e-5.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from scipy.special import ndtri_exp

_jit = {"nogil": True, "cache": True, "error_model": "numpy"}
_PER_UNIT = 128
# -log of an upper tail probability of a Gaussian -> its quantile, on a grid from -log 1 (clipped) to 50
QUANTILES = -ndtri_exp(-np.maximum(np.arange(50 * _PER_UNIT + 2) / _PER_UNIT, 1e-12))
QUANTILES[0] = -8.0
_BINS = 1024
_TAIL = 16


@numba.njit(**_jit)
def _mix(state):
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@numba.njit(**_jit)
def _uniform(bits):
    """In (0, 1), from the upper 53 bits."""
    return (np.float64(np.int64(bits >> np.uint64(11))) + 0.5) * (1.0 / 9007199254740992.0)


@numba.njit(**_jit)
def _quantile(log_tail, table):
    x = log_tail * _PER_UNIT
    i = min(int(x), len(table) - 2)
    return table[i] + (x - i) * (table[i + 1] - table[i])


@numba.njit(**_jit)
def _binomial_cdf(n, p, cdf):
    """Distribution function of a binomial variable into ``cdf`` ``(n + 1,)``, from the mode outwards."""
    mode = min(int((n + 1) * p), n)
    cdf[mode] = 1.0
    for i in range(mode, n):
        cdf[i + 1] = cdf[i] * (n - i) / (i + 1) * p / (1 - p)
    for i in range(mode, 0, -1):
        cdf[i - 1] = cdf[i] * i / (n - i + 1) * (1 - p) / p
    total = 0.0
    for i in range(n + 1):
        total += cdf[i]
        cdf[i] = total
    for i in range(n + 1):
        cdf[i] /= total


@numba.njit(**_jit)
def survivors(keys, b, scale, n_noise, table, pull, tilt, square):
    """Sums over the patches that get through, for ``n`` points a replica; all outputs ``(R, n)``.

    With ``Z ~ N(0, scale^2)`` a patch's pre-activation, p and q the slopes of its two ReLUs: ``pull`` is the sum of
    ``(p + q) Z``, ``tilt`` that of ``p - q`` and ``square`` that of ``(p + q)^2``. ``keys`` ``(R,)`` uint64.
    """
    cdf, bins = np.empty(n_noise + 1), np.empty(_BINS + 1)
    for r in range(len(keys)):
        state = _mix(keys[r])
        bar = max(-b[r], 0.0) / scale[r]  # in units of the scale
        double = max(b[r], 0.0) / scale[r]
        p = math.erfc(bar / math.sqrt(2.0))
        if p < 1e-300:
            pull[r], tilt[r], square[r] = 0.0, 0.0, 0.0
            continue
        if p < 1:
            _binomial_cdf(n_noise, p, cdf)
        base = -math.log(p / 2)
        for j in range(_BINS):
            bins[j] = _quantile(base - math.log((_BINS - j) / _BINS), table)
        bins[0] = bar
        for i in range(pull.shape[1]):
            count = n_noise
            state += np.uint64(0x9E3779B97F4A7C15)
            if p < 1:
                count = np.searchsorted(cdf, _uniform(_mix(state)))
            a = 0.0
            t = 0
            w = 0
            for _ in range(count):
                state += np.uint64(0x9E3779B97F4A7C15)
                bits = _mix(state)
                j = np.int64(bits >> np.uint64(54))
                if j < _BINS - _TAIL:
                    inside = np.float64(np.int64((bits >> np.uint64(22)) & np.uint64(0xFFFFFFFF))) * (1.0 / 4294967296.0)
                    z = bins[j] + inside * (bins[j + 1] - bins[j])
                else:
                    z = _quantile(base - math.log(1.0 - _uniform(bits)), table)
                sign = 1 - 2 * np.int64(bits & np.uint64(1))
                if z <= double:
                    a += 2 * sign * z
                    w += 4
                else:
                    a += sign * z
                    t += sign
                    w += 1
            pull[r, i], tilt[r, i], square[r, i] = a * scale[r], t, w
