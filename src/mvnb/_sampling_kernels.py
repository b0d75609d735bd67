"""Random numbers from a key, compiled: chunks that depend on the key and their own number alone, so that any can be made first.

A chunk is made by 64 generators xoshiro128++ (Blackman and Vigna 2021) side by side, whose states SplitMix64 makes from the key
and the chunk's number. Loops are over arrays in a core's own cache, and integers are kept in 32 bits, so that they are
vectorised. No multiplication is fused with an addition: the numbers are the same on every processor.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from mvnb.compiled import compiled

LANES, ROWS = 64, 32
CHUNK = LANES * ROWS  # 32-bit words of a chunk

_u32, _f32 = np.uint32, np.float32
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF, _WORD = _f32(0.5), _f32(2.0**-32)
_ONE, _ROOT, _MANTISSA = _u32(0x3F800000), _u32(0x3F3504F3), _u32(0x007FFFFF)  # bits of 1 and of sqrt(1/2)
_EIGHTH = _f32(math.pi / 4 * 2.0**-31)
_ODD, _UPPER, _NONE = _u32(0x40000000), _u32(0x80000000), _u32(0)
# Cephes: log(1 + m) / m^3 on [sqrt(1/2) - 1, sqrt(2) - 1], log 2 in two parts, sine and cosine on [-pi/4, pi/4]
_LOG = tuple(
    _f32(c)
    for c in (
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
)
_LOG2 = _f32(0.693359375), _f32(-2.12194440e-4)
_SIN = _f32(-1.9515295891e-4), _f32(8.3321608736e-3), _f32(-1.6666654611e-1)
_COS = _f32(2.443315711809948e-5), _f32(-1.388731625493765e-3), _f32(4.166664568298827e-2)


@numba.njit(inline="always")
def mix(state):
    """SplitMix64's word of a state, which steps by ``GOLDEN``."""
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled()
def _words(key, chunk, state, out):
    """The words of a chunk into ``out`` ``(CHUNK,)``; ``state`` ``(4, LANES)`` is scratch."""
    start = mix(key + np.uint64(chunk) * GOLDEN)
    for j in range(LANES):
        for i in range(2):
            start += GOLDEN
            both = mix(start)
            state[2 * i, j] = _u32(both)
            state[2 * i + 1, j] = _u32(both >> np.uint64(32))
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for row in range(ROWS):
        words = out[row * LANES : (row + 1) * LANES]
        for j in range(LANES):
            a, b, c, d = s0[j], s1[j], s2[j], s3[j]
            total = _u32(a + d)
            words[j] = _u32(_u32(_u32(total << _u32(7)) | _u32(total >> _u32(25))) + a)
            shifted = _u32(b << _u32(9))
            c = _u32(c ^ a)
            d = _u32(d ^ b)
            s1[j] = _u32(b ^ c)
            s0[j] = _u32(a ^ d)
            s2[j] = _u32(c ^ shifted)
            s3[j] = _u32(_u32(d << _u32(11)) | _u32(d >> _u32(21)))


@compiled()
def _radii(words, x, bits, power, out):
    """Square root of -2 log of uniform numbers in (0, 1); ``x``, its ``bits`` and ``power`` are scratch."""
    for i in range(out.shape[0]):
        x[i] = (_f32(words[i]) + _HALF) * _WORD
    for i in range(out.shape[0]):  # x = m 2^k with m from sqrt(1/2) to sqrt(2)
        w = _u32(bits[i] + _u32(_ONE - _ROOT))
        power[i] = _f32(np.int32(_u32(w >> _u32(23))) - np.int32(127))
        bits[i] = _u32(_u32(w & _MANTISSA) + _ROOT)
    for i in range(out.shape[0]):
        m, k = x[i] - _f32(1), power[i]
        y = _LOG[0]
        for c in _LOG[1:]:
            y = y * m + c
        square = m * m
        y = y * m * square + k * _LOG2[1] - _HALF * square
        twice = _f32(-2) * (m + y + k * _LOG2[0])
        out[i] = np.sqrt(twice if twice > _f32(0) else _f32(0))


@compiled()
def _turned(words, radius, first, second):
    """Cosine and sine of uniform angles times the ``radius``: two bits of a word are the quarter turn, 30 the rest."""
    for i in range(radius.shape[0]):
        w, r = words[i], radius[i]
        t = _f32(np.int32(_u32(w << _u32(2)))) * _EIGHTH
        square = t * t
        sine = t + t * square * (_SIN[2] + square * (_SIN[1] + square * _SIN[0]))
        cosine = _f32(1) - _HALF * square + square * square * (_COS[2] + square * (_COS[1] + square * _COS[0]))
        odd = _u32(w & _ODD) != _NONE
        below = -r if _u32(w & _UPPER) != _NONE else r
        left = -below if odd else below
        first[i] = left * (sine if odd else cosine)
        second[i] = below * (cosine if odd else sine)


@compiled()
def normal(key, scale, out):
    """``scale`` times standard normal numbers into ``out`` ``(n,)``, float32, by Box and Muller's transformation."""
    half = CHUNK // 2
    words, state = np.empty(CHUNK, np.uint32), np.empty((4, LANES), np.uint32)
    x, power, radius = np.empty(half, np.float32), np.empty(half, np.float32), np.empty(half, np.float32)
    bits, rest = x.view(np.uint32), np.empty(CHUNK, np.float32)
    for chunk in range((out.size + CHUNK - 1) // CHUNK):
        begin = chunk * CHUNK
        whole = out.size - begin >= CHUNK
        last = out[begin : begin + CHUNK] if whole else rest
        _words(key, chunk, state, words)
        _radii(words[:half], x, bits, power, radius)
        for i in range(half):
            radius[i] *= scale
        _turned(words[half:], radius, last[:half], last[half:])
        if not whole:
            for i in range(out.size - begin):  # a slice would be assigned in the same time, and compiled in ten times as long
                out[begin + i] = rest[i]


@compiled()
def coins(key, low, high, out):
    """``low`` or ``high`` with equal odds into ``out`` ``(n,)``, float32."""
    words, state = np.empty(CHUNK, np.uint32), np.empty((4, LANES), np.uint32)
    step = high - low
    for begin in range(0, out.size, CHUNK):
        turn = (begin // CHUNK) % 32
        if turn == 0:
            _words(key, begin // (32 * CHUNK), state, words)
        part = out[begin : begin + CHUNK]
        for i in range(part.size):
            part[i] = low + step * _f32(np.int32(_u32(_u32(words[i] >> _u32(turn)) & _u32(1))))
