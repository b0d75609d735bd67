"""Rules of claims: what is one, three-valued truth against a grid of values, and what a number of runs can decide."""

import math

import malformed
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvnb import stats
from mvnb.rules import Interval, Rule, RuleError, Sample


@pytest.mark.parametrize("text", malformed.RULES.values(), ids=malformed.RULES)
def test_what_is_no_rule_is_refused_in_one_line(text):
    with pytest.raises(RuleError) as error:
        Rule(text)
    assert "\n" not in str(error.value) and repr(text) in str(error.value)


RULES = (
    "value >= 0.5",
    "value < 0.5 and other > -0.25",
    "not value <= 0.25 or other == 1",
    "-0.5 < 2 * value - 1 <= 0.75",
    "value / -2 > other",
    "value != other",
)
NUMBERS = st.sampled_from((-1.0, -0.5, -0.25, 0.0, 0.25, 0.375, 0.5, 0.75, 1.0))


@st.composite
def intervals(draw):
    low, high = sorted((draw(NUMBERS), draw(NUMBERS)))
    return Interval((low + high) / 2, low, high)


@pytest.mark.parametrize("text", RULES)
@given(value=intervals(), other=intervals())
def test_truth_is_that_of_every_value_in_the_intervals(text, value, other):
    """Against brute force; where several comparisons of one name meet, undecided may stand for a truth that needs both."""
    points = [np.unique([*np.linspace(one.low, one.high, 9), *(n for n in (0.25, 0.5, 1) if one.low <= n <= one.high)])
              for one in (value, other)]  # fmt: skip
    truths = {bool(eval(text, {"value": v, "other": o})) for v in points[0] for o in points[1]}
    found = Rule(text)({"value": value, "other": other})
    assert found is None or truths == {found}
    if len(truths) > 1:
        assert found is None
    elif "and" not in text and "or" not in text:
        assert found is not None or value.low < value.high or other.low < other.high


def test_names_stand_in_the_order_of_the_text():
    assert Rule("b == 1 and 0 < (a) < 1 or b > c").names == ("b", "a", "c")


def test_the_ends_of_an_interval_decide():
    rule = Rule("value >= 0.8")
    measured = {0.8: True, 0.81: True, 0.79: None}
    for low, truth in measured.items():
        assert rule({"value": Interval(0.9, low, 1.0)}) is truth
    assert rule({"value": Interval(0.5, 0.3, 0.79)}) is False and rule({"value": Interval(0.5, 0.3, 0.8)}) is None


def test_what_is_not_finite_is_never_decided():
    assert Rule("value >= 0.8")({"value": Interval(1.0, -math.inf, math.inf)}) is None
    assert Rule("value >= 0.8")({"value": Interval(1.0, math.nan, math.nan)}) is None


def test_most_of_the_runs_takes_four_and_almost_all_sixteen():
    least = {text: min(n for n in range(1, 100) if Rule(text).reachable(n)) for text in ("value > 0.5", "value >= 0.8")}
    assert least == {"value > 0.5": 4, "value >= 0.8": 16}
    assert Rule("value <= 0.2").reachable(16) and not Rule("value <= 0.2").reachable(15)
    assert Rule("value > 0.5 and other <= 0.2").reachable(16) and not Rule("value > 1").reachable(1000)


LIMITS = {
    "value >= 0.8": [("value", 0.8)],
    "1 / 4 < slope < 0.6 and not -gap > 0": [("slope", 0.25), ("slope", 0.6)],
    "0 > gap or trained < frozen": [("gap", 0.0)],
    "2 * value < 1": [],
}


@pytest.mark.parametrize(("text", "limits"), LIMITS.items(), ids=LIMITS)
def test_limits_are_the_numbers_that_a_rule_compares_names_with(text, limits):
    assert Rule(text).limits == limits


def test_intervals_are_those_of_the_statistics():
    values = np.random.default_rng(0).normal(size=7)
    mean, half = stats.mean_interval(values).plus_minus
    one = Sample(values.mean(), values.std(ddof=1), 7)
    assert one.with_runs(7) == pytest.approx((mean, mean - half, mean + half))
    assert Sample(0.75, None, 8).with_runs(8) == stats.proportion_interval(6, 8)
    assert Sample(1.0, math.nan, 1).with_runs(1) == (1.0, -math.inf, math.inf)


def test_so_many_runs_would_decide_it():
    rule, one = Rule("value > 0"), Sample(0.1, 1.0, 20)
    needed = rule.runs_to_decide({"value": one})
    assert rule({"value": one.with_runs(needed)}) is True and rule({"value": one.with_runs(int(needed / 1.2))}) is None
    assert rule.runs_to_decide({"value": Sample(0.0, 1.0, 20)}) is None
    assert rule.runs_to_decide({"value": Sample(0.1, math.nan, 1)}) is None
    assert Rule("value >= 0.8").runs_to_decide({"value": Sample(0.9, None, 20)}) > 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value >= 1" + "0" * 400, "expected numbers up to 1.8e+308 in a rule, got 'value >= 1"),
        ("value >= 1e400", "expected numbers up to 1.8e+308 in a rule, got 'value >= 1e400'"),
        ("not " * 3000 + "value > 0", "expected a rule with less nesting, got 'not not"),
        ("value > " + "-" * 3000 + "1", "expected a rule with less nesting, got 'value > --"),
    ],
)
def test_what_is_too_large_or_too_deep_is_refused_in_short(text, message):
    with pytest.raises(RuleError) as error:
        Rule(text)
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 120
