"""Rules of claims: conditions on measured intervals, which hold, fail or are undecided.

A rule is a text such as ``"value >= 0.8"`` or ``"0.4 < slope < 0.6 and gap > 0"``: measured names, numbers, comparisons,
``and``, ``or``, ``not``, and ``+ - * /`` with constants. It is evaluated on intervals: true where it is true for every value in
them, false where it is false for every one, and otherwise undecided.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Mapping
from typing import NamedTuple

from mvnb import stats

MOST_RUNS = 1_000_000  # looked at by `Rule.runs_to_decide`


class RuleError(ValueError):
    """A text that is no rule, or a rule that no result can meet; one line."""


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval, which lie at the estimate where no chance enters."""

    estimate: float
    low: float
    high: float


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_ORDER = {ast.Lt: ("<", False), ast.LtE: ("<=", False), ast.Gt: ("<", True), ast.GtE: ("<=", True)}  # sign, sides swapped


class Rule:
    """A rule as parsed, with its ``text`` and the ``names`` that it has.

    Raises
    ------
    RuleError
        For a text that is not a rule of the kinds above.
    """

    def __init__(self, text: str):
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            raise RuleError(f"{text!r} is not a rule") from None
        if not _condition(self._tree):
            raise RuleError(f"{text!r} compares nothing")
        named = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        self.names = tuple(dict.fromkeys(node.id for node in sorted(named, key=lambda node: (node.lineno, node.col_offset))))
        if not self.names:
            raise RuleError(f"{text!r} names nothing that is measured")
        self({name: Interval(1.0, 1.0, 1.0) for name in self.names})  # whatever is not allowed is met here

    def __call__(self, measured: Mapping[str, Interval]) -> bool | None:
        """True, false, or None where the intervals leave it undecided."""
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
            raise RuleError(f"{self.text!r} may compare, not {ast.unparse(node)!r}")
        values = [self._value(one, measured) for one in (node.left, *node.comparators)]
        found = [self._compared(sign, *pair) for sign, pair in zip(node.ops, itertools.pairwise(values))]
        return False if False in found else None if None in found else True

    def _compared(self, sign: ast.cmpop, a: Interval, b: Interval) -> bool | None:
        if isinstance(sign, ast.Eq | ast.NotEq):
            apart, same = a.high < b.low or b.high < a.low, a.low == a.high == b.low == b.high
            return None if not (apart or same) else same == isinstance(sign, ast.Eq)
        if type(sign) not in _ORDER:
            raise RuleError(f"{self.text!r} may compare with < <= > >= == !=")
        strict, swapped = _ORDER[type(sign)]
        a, b = (b, a) if swapped else (a, b)
        if strict == "<":
            return True if a.high < b.low else False if a.low >= b.high else None
        return True if a.high <= b.low else False if a.low > b.high else None

    def _value(self, node: ast.AST, measured) -> Interval:
        if isinstance(node, ast.Name):
            return measured[node.id]
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            value = float(node.value)
            return Interval(value, value, value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _ends(operator.neg, self._value(node.operand, measured))
        if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
            raise RuleError(f"{self.text!r} may have numbers, names and + - * /, not {ast.unparse(node)!r}")
        if _measured(node.left) and _measured(node.right):
            raise RuleError(f"{self.text!r} reckons with two measured names; form {ast.unparse(node)!r} inside each run")
        a, b = (self._value(one, measured) for one in (node.left, node.right))
        if isinstance(node.op, ast.Div) and (_measured(node.right) or b.estimate == 0):
            raise RuleError(f"{self.text!r} divides by {ast.unparse(node.right)}, which may be zero")
        return _ends(_ARITHMETIC[type(node.op)], a, b)

    def reachable(self, runs: int) -> bool:
        """Whether shares of so many runs can decide the rule in its favour, when each is none or all of them."""
        extremes = [Sample(share, None, runs).with_runs(runs) for share in (0, 1)]
        return any(self(dict(zip(self.names, ends))) for ends in itertools.product(extremes, repeat=len(self.names)))

    def runs_to_decide(self, samples: Mapping[str, Sample]) -> int | None:
        """How many runs would decide the rule if more of them looked like these; None where no million of them would."""
        runs = max(one.runs for one in samples.values())
        while runs <= MOST_RUNS:
            if self({name: one.with_runs(runs) for name, one in samples.items()}) is not None:
                return runs
            runs = math.ceil(1.1 * runs) + 1
        return None


class Sample(NamedTuple):
    """What was measured of one name in several runs: mean and standard deviation, or the share of which it is true."""

    mean: float
    deviation: float | None  # None for a share
    runs: int

    def with_runs(self, runs: int) -> Interval:
        """Return the interval that so many runs of this kind would have: Wilson's of a share, Student's of a mean.

        The mean of a single run leaves everything open.
        """
        if self.deviation is None:
            return Interval(*stats.proportion_interval(round(self.mean * runs), runs))
        half = stats.student_half_width(self.deviation, runs) if runs > 1 else math.inf
        return Interval(self.mean, self.mean - half, self.mean + half)


def _ends(act, *parts: Interval) -> Interval:
    """An operation on intervals, monotone in each of its operands."""
    found = [act(*ends) for ends in itertools.product(*((one.low, one.high) for one in parts))]
    return Interval(act(*(one.estimate for one in parts)), min(found), max(found))


def _measured(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) for one in ast.walk(node))


def _condition(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
