"""Intervals cover, fits recover, bad input is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as sp

from mvnb import stats


def test_mean_interval_is_students_t():
    values = np.random.default_rng(0).normal(size=12)
    mean, half = stats.mean_interval(values, level=0.9).plus_minus
    low, high = sp.t.interval(0.9, 11, loc=values.mean(), scale=sp.sem(values))
    assert np.allclose([mean - half, mean + half], [low, high], rtol=1e-12)
    assert stats.mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_mean_interval_covers():
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=(1000, 5))
    hits = [low <= 3.0 <= high for _, low, high in map(stats.mean_interval, samples)]
    assert 0.92 < np.mean(hits) < 0.98


@given(p=st.lists(st.integers(0, 40), max_size=8), level=st.integers(1, 39))
def test_holms_adjusted_values_reject_what_his_steps_reject(p, level):
    wanted = [False] * len(p)
    for left, i in zip(range(len(p), 0, -1), sorted(range(len(p)), key=p.__getitem__)):
        if p[i] * left > level:
            break
        wanted[i] = True
    adjusted = stats.holm_adjusted([one / 40 for one in p])
    assert (adjusted <= level / 40 + 1e-12).tolist() == wanted


@given(n=st.integers(1, 500), data=st.data())
def test_the_ends_of_wilsons_interval_are_a_quantile_away_from_what_was_seen(n, data):
    successes = data.draw(st.integers(0, n))
    estimate, low, high = stats.proportion_interval(successes, n)
    for end in {low, high} - {0.0, 1.0}:
        assert np.isclose(abs(end - estimate), sp.norm.ppf(0.975) * np.sqrt(end * (1 - end) / n), atol=1e-9)
    assert 0 <= low <= estimate <= high <= 1
    assert high > low


@given(slope=st.floats(-4, 4), intercept=st.floats(-3, 3))
def test_power_law_fit_recovers_an_exact_law(slope, intercept):
    x = np.array([1.0, 3.0, 10.0, 40.0])
    fit = stats.power_law_fit(x, np.exp(intercept) * x**slope)
    assert np.allclose([fit.slope, fit.intercept], [slope, intercept], atol=1e-6)


@given(power=st.sampled_from([-3.0, -1.0, 0.5, 1.0, 2.0]), level=st.floats(0.4, 0.9))
def test_a_curve_whose_power_is_linear_in_time_crosses_exactly_then(power, level):
    times = np.array([[0.0, 0.0], [1.0, 2.0], [4.0, 5.0]])  # (T, R): replicas have clocks of their own
    rate = np.array([0.2, 0.1]) * np.sign(power)
    curves = (0.3**power + rate * np.abs(1 - 0.3**power) * times) ** (1 / power)
    expected = (level**power - 0.3**power) / (rate * np.abs(1 - 0.3**power))
    found = stats.first_crossing_time(np.stack([curves, 1 + curves, curves - 5], -1), times, level, power)
    assert found.shape == (2, 3) and np.isnan(found[:, 1:]).all(), "begins above, and never gets there"
    there = expected <= times[-1]
    assert np.allclose(found[there, 0], expected[there]) and np.isnan(found[~there, 0]).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.mean_interval([1.0]),
        lambda: stats.mean_interval([1.0, np.nan]),
        lambda: stats.mean_interval([1.0, 2.0], level=1.0),
        lambda: stats.proportion_interval(3, 2),
        lambda: stats.proportion_interval(0, 0),
        lambda: stats.proportion_interval(2.7, 3),
        lambda: stats.proportion_interval(2, 3.5),
        lambda: stats.holm_adjusted([0.5, 1.5]),
        lambda: stats.holm_adjusted([0.5, np.nan]),
        lambda: stats.holm_adjusted([[0.5]]),
        lambda: stats.power_law_fit([1, 2], [1, -2]),
        lambda: stats.power_law_fit([1, 1], [1, 2]),
        lambda: stats.power_law_fit([1, 2, 3], [1, 2]),
        lambda: stats.power_law_fit([[1, 2]], [[3, 4]]),
        lambda: stats.mean_interval(np.array([1 + 5j, 2])),
        lambda: stats.mean_interval(["1", "2"]),
        lambda: stats.mean_interval([[1.0], [2.0, 3.0]]),
        lambda: stats.proportion_interval(1, np.inf),
        lambda: stats.student_interval(1.0, -1.0, 4),
        lambda: stats.student_interval(1.0, np.nan, 4),
        lambda: stats.student_interval(1.0, 1.0, 0),
        lambda: stats.student_interval(1.0, 1.0, -3),
        lambda: stats.student_interval(1.0, 1.0, 2.5),
        lambda: stats.first_crossing_time([[1.0], [4.0]], [[0.0], [10.0]], 2.0, 0),
        lambda: stats.first_crossing_time([[1.0], [4.0]], [[0.0], [10.0]], 2.0, np.nan),
        lambda: stats.first_crossing_time([[-1.0], [4.0]], [[0.0], [10.0]], 2.0, 0.5),
        lambda: stats.first_crossing_time([[-3.0], [1.0]], [[0.0], [10.0]], 0.5, 2),
        lambda: stats.first_crossing_time([[0.0], [4.0]], [[0.0], [10.0]], 2.0, -1),
        lambda: stats.first_crossing_time([[1.0], [4.0]], [[0.0, 0.0], [10.0, 10.0]], 2.0, 1),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError) as error:
        call()
    assert "got" in str(error.value) and "\n" not in str(error.value)


def test_what_is_not_used_is_not_refused():
    assert stats.student_interval(1.0, np.nan, 1) == (1.0, -np.inf, np.inf)
    found = stats.first_crossing_time([[-1.0, 1.0], [0.5, 4.0]], [[0.0, 0.0], [1.0, 1.0]], 2.5, 0.5)
    assert np.isnan(found[0]) and np.isclose(found[1], 2.5**0.5 - 1)  # the first curve stays below the level
    assert stats.first_crossing_time([[-1.0], [1.0]], [[0.0], [8.0]], 0.0, 1).tolist() == [4.0]
    assert stats.first_crossing_time([[-1.0], [1.0]], [[0.0], [8.0]], 0.5, 3).tolist() == [4.5]
