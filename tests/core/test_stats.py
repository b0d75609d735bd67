"""Intervals cover, fits recover, bad input is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sp

from mvnb import stats


def test_mean_interval_is_students_t():
    values = np.random.default_rng(0).normal(size=12)
    mean, half = stats.mean_interval(values, level=0.9)
    low, high = sp.t.interval(0.9, 11, loc=values.mean(), scale=sp.sem(values))
    assert np.allclose([mean - half, mean + half], [low, high], rtol=1e-12)
    assert stats.mean_interval([2.0, 2.0, 2.0]) == (2.0, 0.0)


def test_mean_interval_covers():
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=(1000, 5))
    hits = [abs(mean - 3.0) <= half for mean, half in map(stats.mean_interval, samples)]
    assert 0.92 < np.mean(hits) < 0.98


@given(n=st.integers(1, 500), data=st.data(), level=st.floats(0.5, 0.999))
def test_proportion_interval_is_wilsons(n, data, level):
    successes = data.draw(st.integers(0, n))
    estimate, low, high = stats.proportion_interval(successes, n, level)
    reference = sp.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert np.allclose([low, high], [reference.low, reference.high], atol=1e-10)
    assert 0 <= low <= estimate <= high <= 1
    assert high > low


def test_bootstrap_interval_agrees_with_theory_and_seed():
    values = np.random.default_rng(2).normal(size=400)
    estimate, low, high = stats.bootstrap_interval(values, seed=3)
    mean, half = stats.mean_interval(values)
    assert estimate == mean
    assert np.allclose([low, high], [mean - half, mean + half], atol=0.02)
    assert (estimate, low, high) == stats.bootstrap_interval(values, seed=3)
    assert (low, high) != stats.bootstrap_interval(values, seed=4)[1:]
    assert stats.bootstrap_interval([1.0, 2.0, 9.0], np.median)[0] == 2.0


@given(slope=st.floats(-4, 4), intercept=st.floats(-3, 3))
def test_power_law_fit_recovers_an_exact_law(slope, intercept):
    x = np.array([1.0, 3.0, 10.0, 40.0])
    fit = stats.power_law_fit(x, np.exp(intercept) * x**slope)
    assert np.allclose(fit, [slope, intercept, 0.0], atol=1e-6)


def test_power_law_fit_standard_error():
    rng, x = np.random.default_rng(4), np.geomspace(1, 100, 20)
    fits = [stats.power_law_fit(x, x**-1.5 * np.exp(0.1 * rng.normal(size=20))) for _ in range(300)]
    slopes = np.array([fit.slope for fit in fits])
    y = x**-1.5 * np.exp(0.1 * rng.normal(size=20))
    reference = sp.linregress(np.log(x), np.log(y))
    assert np.allclose(stats.power_law_fit(x, y), [reference.slope, reference.intercept, reference.stderr], rtol=1e-10)
    assert abs(slopes.mean() + 1.5) < 0.005
    assert np.isclose(slopes.std(), np.mean([fit.slope_error for fit in fits]), rtol=0.15)
    assert np.isnan(stats.power_law_fit([1, 2], [1, 2]).slope_error)


@settings(max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=3, max_size=20, unique=True))
def test_rank_correlation_sees_only_order(x):
    x = np.array(x)
    assert np.isclose(stats.rank_correlation(x, x), 1.0)
    assert np.isclose(stats.rank_correlation(x, -x), -1.0)
    y = np.random.default_rng(0).normal(size=len(x))
    assert np.isclose(stats.rank_correlation(x, y), stats.rank_correlation(x, np.exp(y)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.mean_interval([1.0]),
        lambda: stats.mean_interval([1.0, np.nan]),
        lambda: stats.mean_interval([1.0, 2.0], level=1.0),
        lambda: stats.proportion_interval(3, 2),
        lambda: stats.proportion_interval(0, 0),
        lambda: stats.bootstrap_interval([]),
        lambda: stats.bootstrap_interval([1.0, 2.0], n_resamples=0),
        lambda: stats.power_law_fit([1, 2], [1, -2]),
        lambda: stats.power_law_fit([1, 1], [1, 2]),
        lambda: stats.power_law_fit([1, 2, 3], [1, 2]),
        lambda: stats.rank_correlation([1, 2], [3, 3]),
        lambda: stats.rank_correlation([[1, 2]], [[3, 4]]),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError):
        call()
