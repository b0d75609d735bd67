"""Parameters of a chapter: reading them from its source, and converting strings to values of their types.

Papermill's own inspection returns defaults as strings and skips lines whose comment contains an equals sign. This module
returns Python values and only accepts literals. Papermill supports lists but not tuples, so tuples become lists.
"""

from __future__ import annotations

import ast
import io
import math
import os
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from mvnb.runner.errors import ChapterError


@dataclass(frozen=True)
class Parameter:
    """Parameter of a chapter, with its name, its default (which determines its type) and the comment that explains it."""

    name: str
    default: Any
    comment: str

    @property
    def range(self) -> str:
        """Range of allowed numbers that the comment states in parentheses, such as "above 0, at most 1"; may be empty."""
        stated = (part.strip() for group in re.findall(r"\(([^()]*)\)", self.comment) for part in re.split("[,;]", group))
        return ", ".join(part for part in stated if any(re.fullmatch(bound, part) for bound in _BOUNDS))


_NUMBER = r"(-?[\d.]+(?:e-?\d+)?(?:/\d+)?)"
# How a comment states a range. "0: all" allows a number that the rest of the range excludes.
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
    """Return whether a number lies in a range that is worded like :attr:`Parameter.range`."""
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
    """Return the parameters assigned in the cell tagged ``parameters``, in order.

    Error messages refer to the chapter as ``name``.

    Raises
    ------
    ChapterError
        If there is not exactly one such cell, or it contains anything but assignments of literals to distinct names.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ChapterError(f"{name} must have exactly one cell tagged 'parameters', got {len(cells)}")
    source = cells[0].source
    try:
        statements = ast.parse(source).body
        comments = _comments(source)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ChapterError(f"the parameters cell of {name} is not valid Python: {error}") from None
    parameters: dict[str, Parameter] = {}
    for parameter in (_parameter(statement, comments, name) for statement in statements):
        if parameter.name in parameters:
            raise ChapterError(f"the parameters cell of {name} assigns {parameter.name!r} twice")
        parameters[parameter.name] = parameter
    return parameters


def _parameter(statement: ast.stmt, comments: dict[int, str], name: str) -> Parameter:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if len(targets) != 1 or not isinstance(targets[0], ast.Name) or not getattr(statement, "value", None):
        place = f"line {statement.lineno} of the parameters cell of {name}"
        raise ChapterError(f"{place} must have the form name = literal, got {ast.unparse(statement)!r}")
    try:
        default = _listed(ast.literal_eval(statement.value))
    except ValueError:
        raise ChapterError(
            f"parameter {targets[0].id!r} of {name} must be a literal, got {ast.unparse(statement.value)}"
        ) from None
    return Parameter(targets[0].id, default, comments.get(statement.end_lineno, ""))


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ").rstrip() for token in tokens if token.type == tokenize.COMMENT}


def parse_assignments(texts: Iterable[str], parameters: Mapping[str, Parameter], name: str) -> dict[str, Any]:
    """Convert ``name=value`` strings to values of the parameters' types.

    Error messages refer to the chapter as ``name``.

    Raises
    ------
    ChapterError
        If a string does not have the form ``name=value``, a name is unknown or given twice, or a value has the wrong type or is
        out of range.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ChapterError(f"expected name=value, got {text!r}")
        if key in values:
            raise ChapterError(f"parameter {key!r} is given twice")
        parameter = _lookup(key, parameters, name)
        values[key] = _coerce(_parse_literal(value, parameter), parameter, shown=value)
    return values


def check_values(values: Mapping[str, Any], parameters: Mapping[str, Parameter], name: str) -> dict[str, Any]:
    """Check Python values by parameter name, and return them with integers converted to floats where a float is expected.

    Raises ``ChapterError`` if a name is unknown or a value has the wrong type or is out of range; ``name`` is the chapter's
    name for messages.
    """
    return {key: _coerce(value, _lookup(key, parameters, name)) for key, value in values.items()}


def _coerce(value: Any, parameter: Parameter, shown: str | None = None) -> Any:
    """Convert a value to the parameter's type; raise ``ChapterError`` if it has the wrong type or is out of range.

    Numbers must be finite, non-negative if the default is non-negative, and in the range that the comment states. Error
    messages quote ``shown``, by default the value itself.
    """
    shown = repr(value) if shown is None else repr(shown.strip())
    try:
        value = _as_type_of(_listed(value), parameter.default)
    except (TypeError, OverflowError):  # a list of floats with an integer that exceeds any float
        raise ChapterError(f"parameter {parameter.name!r} must be {_type_name(parameter.default)}, got {shown}") from None
    usual, given = _numbers(parameter.default), _numbers(value)
    if parameter.range and isinstance(value, list) and len(given) < len(value):  # an empty default has no element type
        raise ChapterError(f"parameter {parameter.name!r} must be a list of numbers, got {shown}")
    if any(isinstance(number, float) and not math.isfinite(number) for number in given):  # an integer may exceed any float
        raise ChapterError(f"parameter {parameter.name!r} must be finite, got {shown}")
    if min(usual, default=0) >= 0 > min(given, default=0):
        raise ChapterError(f"parameter {parameter.name!r} must be 0 or more, got {shown}")
    if not all(_fits(number, parameter.range) for number in given):
        raise ChapterError(f"parameter {parameter.name!r} must be {parameter.range}, got {shown}")
    return value


def _numbers(value: Any) -> list[float]:
    """Return the numbers in a value: itself, or the elements of a list."""
    values = value if isinstance(value, list) else [value]
    return [number for number in values if isinstance(number, Real) and not isinstance(number, bool)]


def choices_text(word: str, choices: Collection[str], owner: str = "it", also: Iterable[str] = ()) -> str:
    """Return the end of a message about an unknown name, such as ``; did you mean 'x'? It has x, y``.

    The question is left out if no choice, and no name of ``also``, is close to ``word``.
    """
    near = get_close_matches(word, [*choices, *also], n=1, cutoff=0.6)
    listed = f"{owner} has {', '.join(choices) or 'none'}"
    return f"; did you mean {near[0]!r}? {listed[0].upper()}{listed[1:]}" if near else f"; {listed}"


def _lookup(key: str, parameters: Mapping[str, Parameter], name: str) -> Parameter:
    if key not in parameters:
        raise ChapterError(f"{name} has no parameter {key!r}{choices_text(key, parameters)}")
    return parameters[key]


def _parse_literal(text: str, parameter: Parameter) -> Any:
    """Parse ``text`` as a value of the parameter's type; return ``text`` itself if it cannot be parsed.

    A path to an existing file or folder becomes absolute, since chapters run in another folder.
    """
    if isinstance(parameter.default, str):
        path = Path(text).expanduser()
        named = os.sep in text or path.suffix or not parameter.default  # a folder may be called like a data set
        return str(path.absolute()) if named and text and "\0" not in text and path.exists() else text
    text = text.strip()
    try:
        if isinstance(parameter.default, bool):
            return {"true": True, "false": False}[text.lower()]
        return float(text) if isinstance(parameter.default, float) else ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _as_type_of(value: Any, default: Any) -> Any:
    """Convert ``value`` to the type of ``default``, lists element by element; raise ``TypeError`` if they do not match."""
    if isinstance(default, list) and isinstance(value, list):
        return [_as_type_of(item, _example(default)) for item in value] if default else value
    kind = type(default)
    allowed = {bool: bool, int: Integral, float: Real, str: str}.get(kind, ())
    if not isinstance(value, allowed) or isinstance(value, bool) != (kind is bool):
        raise TypeError
    return kind(value)


def _example(default: list) -> Any:
    """Return an element of a default that is not empty; if integers and floats are mixed, a float."""
    return next((item for item in default if isinstance(item, float)), default[0])


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _type_name(default: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string", list: "a list"}
    kinds = {bool: "booleans", int: "integers", float: "numbers", str: "strings"}
    of = f" of {kinds.get(type(_example(default)), 'sequences')}" if isinstance(default, list) and default else ""
    such = f" such as {default!r}" if isinstance(default, list) else ""
    return f"{names.get(type(default), type(default).__name__)}{of}{such}"
