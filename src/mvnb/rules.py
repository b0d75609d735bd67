"""Rules of claims: conditions on measured intervals that are true, false or undecided.

A rule is a string such as ``"value >= 0.8"`` or ``"0.4 < slope < 0.6 and gap > 0"``. It consists of names of measurements,
numbers, comparisons, ``and``, ``or``, ``not``, and the operators ``+ - * /`` with constants. A comparison of intervals is true
if it is true for all values in them, false if it is false for all values, and undecided otherwise; ``and``, ``or`` and
``not`` combine these outcomes.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import reprlib
import sys
from collections.abc import Mapping
from typing import NamedTuple

from mvnb import stats
from mvnb.stats import Interval

MOST_RUNS = 1_000_000  # upper limit of the search in `Rule.runs_to_decide`


class RuleError(ValueError):
    """Error for an invalid rule; its message is a single line."""


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_ORDER = {ast.Lt: ("<", False), ast.LtE: ("<=", False), ast.Gt: ("<", True), ast.GtE: ("<=", True)}  # sign, sides swapped


class Rule:
    """A parsed rule, which can be called with measured intervals.

    The attribute ``text`` is the rule as written, and ``names`` are the names of measurements in it, in order of appearance.

    Parameters
    ----------
    text
        The rule, such as ``"value >= 0.8"``.

    Raises
    ------
    RuleError
        If the text is not a rule as described in the documentation of :mod:`mvnb.rules`.
    """

    def __init__(self, text: str):
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            self._check()
        except RuleError:
            raise
        except (RecursionError, MemoryError):
            raise RuleError(f"expected a rule with less nesting, got {reprlib.repr(text)}") from None
        except (SyntaxError, ValueError):
            raise RuleError(f"expected a rule such as 'value >= 0.8', got {text!r}") from None

    def _check(self) -> None:
        """Raise ``RuleError`` if the parsed text is not a rule; otherwise set the names in it."""
        text = self.text
        if not _is_condition(self._tree):
            raise RuleError(f"expected a comparison, got {text!r}")
        named = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        self.names = tuple(dict.fromkeys(node.id for node in sorted(named, key=lambda node: (node.lineno, node.col_offset))))
        if not self.names:
            raise RuleError(f"expected a rule that names at least one measurement, got {text!r}")
        self({name: Interval(1.0, 1.0, 1.0) for name in self.names})  # raises RuleError if an expression is not allowed

    def __call__(self, measured: Mapping[str, Interval]) -> bool | None:
        """Return whether the rule is true for the ``measured`` intervals, given by name, or None if it is undecided."""
        return self._truth(self._tree, measured)

    def _truth(self, node: ast.AST, measured) -> bool | None:
        if isinstance(node, ast.BoolOp):
            found = [self._truth(one, measured) for one in node.values]
            decisive = isinstance(node.op, ast.Or)
            return decisive if decisive in found else None if None in found else not decisive
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found = self._truth(node.operand, measured)
            return None if found is None else not found
        if not isinstance(node, ast.Compare):
            raise RuleError(f"expected a comparison in {self.text!r}, got {ast.unparse(node)!r}")
        values = [self._value(one, measured) for one in (node.left, *node.comparators)]
        found = [self._compare(sign, *pair) for sign, pair in zip(node.ops, itertools.pairwise(values))]
        return False if False in found else None if None in found else True

    def _compare(self, sign: ast.cmpop, a: Interval, b: Interval) -> bool | None:
        if isinstance(sign, ast.Eq | ast.NotEq):
            apart, same = a.high < b.low or b.high < a.low, a.low == a.high == b.low == b.high
            return None if not (apart or same) else same == isinstance(sign, ast.Eq)
        if type(sign) not in _ORDER:
            raise RuleError(f"expected one of < <= > >= == != in {self.text!r}, got the operator {type(sign).__name__}")
        strict, swapped = _ORDER[type(sign)]
        a, b = (b, a) if swapped else (a, b)
        if strict == "<":
            return True if a.high < b.low else False if a.low >= b.high else None
        return True if a.high <= b.low else False if a.low > b.high else None

    def _value(self, node: ast.AST, measured) -> Interval:
        if isinstance(node, ast.Name):
            return measured[node.id]
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            if node.value > sys.float_info.max:
                largest = f"{sys.float_info.max:.2g}"
                raise RuleError(f"expected numbers up to {largest} in a rule, got {reprlib.repr(self.text)}")
            value = float(node.value)
            return Interval(value, value, value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _apply(operator.neg, self._value(node.operand, measured))
        if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
            raise RuleError(f"expected numbers, names and + - * / in {self.text!r}, got {ast.unparse(node)!r}")
        if _has_name(node.left) and _has_name(node.right):
            combined = ast.unparse(node)
            raise RuleError(f"expected one constant per operation in {self.text!r}, got {combined!r}; compute it in each run")
        a, b = (self._value(one, measured) for one in (node.left, node.right))
        if isinstance(node.op, ast.Div) and (_has_name(node.right) or b.estimate == 0):
            raise RuleError(f"expected a nonzero constant as the divisor in {self.text!r}, got {ast.unparse(node.right)!r}")
        return _apply(_ARITHMETIC[type(node.op)], a, b)

    @property
    def limits(self) -> list[tuple[str, float]]:
        """Pairs of a name and a number with which the rule compares it."""
        sides = [(node.left, *node.comparators) for node in ast.walk(self._tree) if isinstance(node, ast.Compare)]
        pairs = [pair for one in sides for pair in itertools.permutations(one, 2)]
        return [(a.id, self._value(b, {}).estimate) for a, b in pairs if isinstance(a, ast.Name) and not _has_name(b)]

    def reachable(self, runs: int) -> bool:
        """Return whether the rule can be true if its names are shares of ``runs`` runs and each share is 0 or 1."""
        extremes = [Sample(share, None, runs).with_runs(runs) for share in (0, 1)]
        return any(self(dict(zip(self.names, ends))) for ends in itertools.product(extremes, repeat=len(self.names)))

    def runs_to_decide(self, samples: Mapping[str, Sample]) -> int | None:
        """Return approximately how many runs are needed to decide whether the rule holds, or None if a million are not enough.

        ``samples`` are the measurements so far, by name; further runs are assumed not to change their means and standard
        deviations.
        """
        runs = max(one.runs for one in samples.values())
        while runs <= MOST_RUNS:
            if self({name: one.with_runs(runs) for name, one in samples.items()}) is not None:
                return runs
            runs = math.ceil(1.1 * runs) + 1
        return None


class Sample(NamedTuple):
    """Summary of the measurements of one name over ``runs`` runs.

    For numbers, it contains their mean and standard deviation. For booleans, ``mean`` is the share of true values and
    ``deviation`` is None.
    """

    mean: float
    deviation: float | None
    runs: int

    def with_runs(self, runs: int) -> Interval:
        """Return the interval that ``runs`` runs with the same mean and deviation would give.

        It is Wilson's interval for a share and Student's for a mean. The interval of the mean of a single run is unbounded, and
        so is that of further runs if the deviation is unknown (NaN).
        """
        if self.deviation is None:
            return stats.proportion_interval(round(self.mean * runs), runs)
        if math.isnan(self.deviation):
            return Interval(self.mean, -math.inf, math.inf)
        return stats.student_interval(self.mean, self.deviation, runs)


def _apply(operation, *parts: Interval) -> Interval:
    """Apply an operation to intervals; it must be monotone in each operand."""
    found = [operation(*ends) for ends in itertools.product(*((one.low, one.high) for one in parts))]
    return Interval(operation(*(one.estimate for one in parts)), min(found), max(found))


def _has_name(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) for one in ast.walk(node))


def _is_condition(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
