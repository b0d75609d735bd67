"""Random numbers: of the distribution that they name, from a key alone, independent across calls and replicas."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from mvnb import _sampling_kernels as kernels
from mvnb import sampling


def g(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def many():
    return sampling.normal(20_000_000, generator=g(1)).numpy()


def test_moments_are_those_of_a_gaussian(many):
    n = many.size
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        found = np.mean(many.astype(float) ** power)
        assert abs(found - mean) < 5 * math.sqrt(variance / n), power


def test_the_distribution_is_gaussian_out_to_five_sigma(many):
    assert stats.kstest(many[:2_000_000].astype(float), "norm").pvalue > 1e-4
    edges = np.array([-np.inf, -5, -4.5, -4, -3.5, -3, -2, -1, 0, 1, 2, 3, 3.5, 4, 4.5, 5, np.inf])
    expected = np.diff(stats.norm.cdf(edges)) * many.size
    assert stats.chisquare(np.histogram(many, edges)[0], expected).pvalue > 1e-4
    assert 5 < np.abs(many).max() < 6.7


def test_neighbours_chunks_calls_and_replicas_are_independent(many):
    lags = [1, 2, kernels.LANES, kernels.CHUNK // 2, kernels.CHUNK]  # lanes, the two halves of a chunk, the next chunk
    pairs = [(many[:-lag], many[lag:]) for lag in lags]
    stream = g(2)
    calls = [sampling.normal(1_000_000, generator=stream).numpy() for _ in range(2)]
    replicas = [sampling.normal(1_000_000, generator=one).numpy() for one in (g(7), g(8))]
    for a, b in [*pairs, calls, replicas]:
        for f in (lambda x: x, lambda x: x**2 - 1, lambda x: np.abs(x) > 2):
            assert abs(np.corrcoef(f(a), f(b))[0, 1]) < 5 / math.sqrt(len(a))


def test_a_generator_decides_and_moves_on():
    a, b = g(3), g(3)
    first = sampling.normal(5, 3, generator=a)
    assert torch.equal(first, sampling.normal(5, 3, generator=b)) and not torch.equal(first, sampling.normal(5, 3, generator=a))
    assert torch.equal(2 * first, sampling.normal(5, 3, generator=g(3), scale=2.0))
    whole = sampling.normal(5000, generator=g(3))
    assert torch.equal(whole[:15], first.flatten()) and torch.equal(whole[:3000], sampling.normal(3000, generator=g(3)))
    double = sampling.normal(4, generator=g(3), dtype=torch.float64, scale=3.0)
    assert torch.equal(double, 3 * torch.randn(4, generator=g(3), dtype=torch.float64))
    assert sampling.normal(0, 4, generator=a).shape == (0, 4)


def test_coins_are_fair_and_independent():
    found = sampling.coins(4_000_000, generator=g(4), low=-1.0)
    assert set(found[:1000].tolist()) == {-1.0, 1.0}
    n = len(found)
    for lag in (0, 1, kernels.LANES, kernels.CHUNK, 31 * kernels.CHUNK, 32 * kernels.CHUNK):
        total = found.sum() if lag == 0 else (found[:-lag] * found[lag:]).sum()
        assert abs(total) < 5 * math.sqrt(n)
    runs = torch.stack(found[: n // 8 * 8].view(-1, 8).clamp(0).unbind(1)).long()
    codes = (runs * 2 ** torch.arange(8)[:, None]).sum(0)
    assert stats.chisquare(torch.bincount(codes, minlength=256).numpy()).pvalue > 1e-4
    some = sampling.coins(3, 5, generator=g(4), low=0.0, high=2.0, dtype=torch.float64)
    assert some.dtype == torch.float64 and set(some.flatten().tolist()) <= {0.0, 2.0}


def _splitmix(state):
    mask = 2**64 - 1
    z = state & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def test_words_are_those_of_the_published_generator():
    key, chunk, golden, mask = 12345, 3, 0x9E3779B97F4A7C15, 2**64 - 1
    out = np.empty(kernels.CHUNK, np.uint32)
    kernels._words(np.uint64(key), chunk, np.empty((4, kernels.LANES), np.uint32), out)
    start = _splitmix(key + chunk * golden)
    for lane in (0, 1, kernels.LANES - 1):
        both = [_splitmix(start + (2 * lane + i + 1) * golden & mask) for i in range(2)]
        s = [both[0] & 0xFFFFFFFF, both[0] >> 32, both[1] & 0xFFFFFFFF, both[1] >> 32]

        def turned(x, k):
            return (x << k | x >> 32 - k) & 0xFFFFFFFF

        for row in range(kernels.ROWS):  # xoshiro128++, as Blackman and Vigna publish it
            result = turned(s[0] + s[3] & 0xFFFFFFFF, 7) + s[0] & 0xFFFFFFFF
            shifted = s[1] << 9 & 0xFFFFFFFF
            s[2] ^= s[0]
            s[3] ^= s[1]
            s[1] ^= s[2]
            s[0] ^= s[3]
            s[2] ^= shifted
            s[3] = turned(s[3], 11)
            assert out[row * kernels.LANES + lane] == result


def test_numbers_are_the_transformation_of_their_words():
    """Box and Muller's formula in double precision, from the words themselves."""
    out, words = np.empty(kernels.CHUNK, np.float32), np.empty(kernels.CHUNK, np.uint32)
    kernels.normal(np.uint64(99), np.float32(1), out)
    kernels._words(np.uint64(99), 0, np.empty((4, kernels.LANES), np.uint32), words)
    uniform, angle = np.split(words.astype(float), 2)
    radius = np.sqrt(-2 * np.log((uniform + 0.5) / 2**32))
    quarter, rest = np.divmod(angle, 2**30)
    turn = np.pi / 2 * (quarter + (rest - np.where(rest >= 2**29, 2**30, 0)) / 2**30)
    expected = np.concatenate([radius * np.cos(turn), radius * np.sin(turn)])
    assert np.abs(out - expected).max() < 1e-5
