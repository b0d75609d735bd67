"""The parameters of a chapter: reading them from its source, and turning typed text into values of their types.

Papermill's own inspection gives defaults as texts and passes over lines whose comment has an equals sign; here defaults are
values and anything but a literal is refused. Papermill knows lists and no tuples, so a tuple becomes a list.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from nbformat import NotebookNode

from mvnb.runner.errors import ChapterError


@dataclass(frozen=True)
class Parameter:
    """One knob of a chapter: its name, its default (which fixes its type) and the comment that explains it."""

    name: str
    default: Any
    comment: str

    @property
    def range(self) -> str:
        """The numbers that are allowed, as the comment says in parentheses, such as "above 0, at most 1"."""
        said = (part.strip() for group in re.findall(r"\(([^()]*)\)", self.comment) for part in re.split("[,;]", group))
        return ", ".join(part for part in said if any(re.fullmatch(bound, part) for bound in _BOUNDS))


_NUMBER = r"(-?[\d.]+(?:e-?\d+)?(?:/\d+)?)"
# How a comment states a range. "0: all" allows a number that the rest of the range does not.
_BOUNDS: dict[str, Callable[..., bool]] = {
    rf"{_NUMBER} or more": lambda x, low: x >= low,
    rf"above {_NUMBER}": lambda x, low: x > low,
    rf"at most {_NUMBER}": lambda x, high: x <= high,
    rf"below {_NUMBER}": lambda x, high: x < high,
    rf"{_NUMBER} to {_NUMBER}": lambda x, low, high: low <= x <= high,
    rf"between {_NUMBER} and {_NUMBER}": lambda x, low, high: low < x < high,
    rf"{_NUMBER}: .*": lambda x, other: x == other,
}
_EXCEPTION = rf"{_NUMBER}: .*"


def _fits(number: float, range: str) -> bool:
    """Whether a number keeps to a range in the words of :attr:`Parameter.range`."""
    allowed, excepted = True, False
    for part in range.split(", ") if range else ():
        bound, match = next((bound, found) for bound in _BOUNDS if (found := re.fullmatch(bound, part)))
        kept = _BOUNDS[bound](number, *(float(Fraction(text)) for text in match.groups()))
        if bound == _EXCEPTION:
            excepted |= kept
        else:
            allowed &= kept
    return allowed or excepted


def read_parameters(notebook: NotebookNode, name: str) -> dict[str, Parameter]:
    """The assignments of the cell tagged ``parameters``, in order.

    Raises
    ------
    ChapterError
        When there is not exactly one such cell, or it holds anything but assignments of literals.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ChapterError(f"{name} has {len(cells)} cells tagged 'parameters'; it needs exactly one")
    source = cells[0].source
    try:
        statements = ast.parse(source).body
        comments = _comments(source)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ChapterError(f"the parameters cell of {name} is not Python: {error}") from None
    parameters: dict[str, Parameter] = {}
    for parameter in (_parameter(statement, comments, name) for statement in statements):
        if parameter.name in parameters:
            raise ChapterError(f"the parameters cell of {name} assigns {parameter.name!r} twice")
        parameters[parameter.name] = parameter
    return parameters


def _parameter(statement: ast.stmt, comments: dict[int, str], name: str) -> Parameter:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if len(targets) != 1 or not isinstance(targets[0], ast.Name) or not getattr(statement, "value", None):
        raise ChapterError(f"line {statement.lineno} of the parameters cell of {name} is not of the form name = literal")
    try:
        default = _lists(ast.literal_eval(statement.value))
    except ValueError:
        raise ChapterError(f"parameter {targets[0].id!r} of {name} is not a literal") from None
    return Parameter(targets[0].id, default, comments.get(statement.end_lineno, ""))


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ").rstrip() for token in tokens if token.type == tokenize.COMMENT}


def parse_assignments(texts: Iterable[str], parameters: Mapping[str, Parameter], name: str) -> dict[str, Any]:
    """Turn ``name=value`` texts into values of the parameters' types.

    Raises
    ------
    ChapterError
        For a text that is not ``name=value``, a name that is unknown or given twice, a value of the wrong type.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ChapterError(f"{text!r} is not of the form name=value")
        if key in values:
            raise ChapterError(f"parameter {key!r} is given twice")
        parameter = _known(key, parameters, name)
        values[key] = _coerce(_literal(value, parameter), parameter, shown=value)
    return values


def check_values(values: Mapping[str, Any], parameters: Mapping[str, Parameter], name: str) -> dict[str, Any]:
    """Check names and types of values that are already Python objects; ints become floats where a float is expected."""
    return {key: _coerce(value, _known(key, parameters, name)) for key, value in values.items()}


def _coerce(value: Any, parameter: Parameter, shown: str | None = None) -> Any:
    """The value as the parameter's type, or a ChapterError that says what was expected.

    Numbers are finite, not negative (where the default is not), and in the range that the comment states.
    """
    shown = repr(value) if shown is None else repr(shown.strip())
    try:
        value = _like(_lists(value), parameter.default)
    except (TypeError, OverflowError):  # a list of floats with an integer that exceeds any float
        example = f" such as {parameter.default!r}" if isinstance(parameter.default, list) else ""
        raise ChapterError(f"parameter {parameter.name!r} is {_type_name(parameter.default)}{example}, not {shown}") from None
    usual, given = list(_numbers(parameter.default)), list(_numbers(value))
    if parameter.range and isinstance(value, list) and len(given) < len(value):  # an empty default shows no type
        raise ChapterError(f"parameter {parameter.name!r} is a list of numbers, not {shown}")
    if any(isinstance(number, float) and not math.isfinite(number) for number in given):  # an integer may exceed any float
        raise ChapterError(f"parameter {parameter.name!r} must be finite, not {shown}")
    if min(usual, default=0) >= 0 > min(given, default=0):
        raise ChapterError(f"parameter {parameter.name!r} must be 0 or more, not {shown}")
    if not all(_fits(number, parameter.range) for number in given):
        raise ChapterError(f"parameter {parameter.name!r} must be {parameter.range}, not {shown}")
    return value


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Real) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest choice, or nothing when none is near."""
    near = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _known(key: str, parameters: Mapping[str, Parameter], name: str) -> Parameter:
    if key not in parameters:
        hint = did_you_mean(key, parameters)
        raise ChapterError(f"{name} has no parameter {key!r}; it has {', '.join(parameters)}{hint}")
    return parameters[key]


def _literal(text: str, parameter: Parameter) -> Any:
    """What a typed text stands for, given the type that is expected; the text itself when nothing else."""
    if isinstance(parameter.default, str):
        return text
    text = text.strip()
    try:
        if isinstance(parameter.default, bool):
            return {"true": True, "false": False}[text.lower()]
        return float(text) if isinstance(parameter.default, float) else ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _like(value: Any, default: Any) -> Any:
    """``value`` as the type of ``default``; sequences element by element. TypeError when it does not fit."""
    if isinstance(default, list) and isinstance(value, list):
        return [_like_any(item, default) for item in value]
    kind = type(default)
    allowed = {bool: bool, int: Integral, float: Real, str: str}.get(kind, ())
    if not isinstance(value, allowed) or isinstance(value, bool) != (kind is bool):
        raise TypeError
    return kind(value)


def _lists(value: Any) -> Any:
    """The value with lists in the place of tuples."""
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _like_any(item: Any, examples: list) -> Any:
    """``item`` as the type of the first example it fits; of numbers, floats are asked first when any example is one."""
    if not examples:
        return item
    for example in sorted(examples, key=lambda example: not isinstance(example, float)):
        try:
            return _like(item, example)
        except TypeError:
            continue
    raise TypeError


def _type_name(default: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text", list: "a list"}
    name = names.get(type(default), type(default).__name__)
    if isinstance(default, list) and default:
        kinds = {bool: "booleans", int: "integers", float: "numbers", str: "texts"}
        inner = {kinds.get(type(item), "sequences") for item in default}
        name += " of " + ("numbers" if inner == {"numbers", "integers"} else " or ".join(sorted(inner)))
    return name
