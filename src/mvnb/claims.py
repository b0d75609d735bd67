"""Ledger of a paper's claims, of their measurements and of the verdicts.

The file ``papers/SLUG/claims.toml`` declares the claims of a paper, each with a rule that decides whether it holds. A chapter
records its measurements in a :class:`Ledger` and displays it. The cell output contains a table for readers and the same rows
in machine-readable form, which :func:`read`, the command line and the site's scoreboard use.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from mvnb import stats, verdicts
from mvnb.rules import MOST_RUNS, Interval, Rule, RuleError, Sample
from mvnb.verdicts import KINDS, ORIGINS

MIME = "application/vnd.mvnb.claims+json"
MOST_HEADLINES = 8
PAPERS = Path(__file__).parent / "papers"
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_REQUIRED = ("source", "origin", "says", "kind", "unit", "holds")


class ClaimsError(ValueError):
    """Error for an invalid file of claims or a measurement that does not fit its claim; its message is a single line."""


@dataclass(frozen=True)
class Claim:
    """A claim as declared in ``claims.toml``.

    The fields are ``id``, the key of the claim's table; ``source``, the place in the paper, such as ``"Theorem 4.6 (2)"``;
    ``origin``, one of :data:`ORIGINS`; ``says``, the claim in words; ``kind``, one of :data:`KINDS`; ``unit``, the unit of the
    measured values; ``rule``, the condition under which the claim holds; ``headline``, whether the claim is important enough
    for the paper's abstract; ``runs``, the default number of runs if the claim is about a share of runs, otherwise 0;
    ``paper``, the value printed in the paper; ``kept``, the name of the kept run that decides the claim, or an empty string if
    the chapter's own run decides it; and ``reason``, the known reason why the claim does not hold.
    """

    id: str
    source: str
    origin: str
    says: str
    kind: str
    unit: str
    rule: Rule
    headline: bool = False
    runs: int = 0
    paper: str | int | float | None = None
    kept: str = ""
    reason: str = ""


_KEYS = {key: kind for key, kind in get_type_hints(Claim).items() if key not in ("id", "rule")} | {"holds": str}


def declared(where: str | Path) -> dict[str, Claim]:
    """Return the claims of a paper by id, in the order of its ``claims.toml``.

    Parameters
    ----------
    where
        The chapter's slug, such as ``"midpoint_mixup"``, or the path of a file of claims.

    Raises
    ------
    ClaimsError
        If the file cannot be read or is not valid TOML, a key is missing or unknown, a value is invalid, a rule is invalid or
        cannot become true with the declared number of runs, or there are more than eight headlines.
    """
    path = _file(where)
    name = f"{path.parent.name}/{path.name}"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClaimsError(f"{name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # a subclass of ValueError if the text is not UTF-8 or not TOML
        raise ClaimsError(f"{name}: {error}") from None
    found = {}
    for id, table in tables.items():
        try:
            found[id] = _claim(id, table)
        except (RuleError, ClaimsError) as error:
            raise ClaimsError(f"{name}: [{id}]: {error}") from None
    if (headlines := sum(claim.headline for claim in found.values())) > MOST_HEADLINES:
        raise ClaimsError(f"{name}: expected at most {MOST_HEADLINES} headlines, got {headlines}")
    return found


def _file(where: str | Path) -> Path:
    """Return the path of the claims of a paper, given by its slug or by this path."""
    return Path(where) if isinstance(where, Path) or where.endswith(".toml") else PAPERS / where / "claims.toml"


def _claim(id: str, table: Any) -> Claim:
    if not _ID.fullmatch(id):
        raise ClaimsError(f"expected an id in kebab-case (lowercase letters, digits, single hyphens), got {id!r}")
    if not isinstance(table, dict):
        raise ClaimsError(f"expected a table, got {table!r}")
    for key, value in table.items():
        if key not in _KEYS:
            raise ClaimsError(f"unknown key {key!r}; expected one of {', '.join(_KEYS)}")
        if not isinstance(value, kind := _KEYS[key]) or (isinstance(value, bool) and kind is not bool):
            raise ClaimsError(f"{key} must be of type {getattr(kind, '__name__', kind)}, got {value!r}")
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise ClaimsError(f"{key} must be a finite number, got {reprlib.repr(value)}")
        if isinstance(value, str) and not value.strip():
            raise ClaimsError(f"{key} must not be empty, got {value!r}")
    if table.get("says", "").endswith("."):
        raise ClaimsError(f"says must have no full stop at its end, since some pages go on behind it, got {table['says']!r}")
    if missing := [key for key in _REQUIRED if key not in table]:
        raise ClaimsError(f"{missing[0]} is missing")
    for key, choices in (("kind", KINDS), ("origin", ORIGINS)):
        if table[key] not in choices:
            raise ClaimsError(f"{key} must be one of {', '.join(choices)}, got {table[key]!r}")
    rule, runs = Rule(table["holds"]), table.get("runs")
    if runs is not None and runs > MOST_RUNS:
        raise ClaimsError(f"runs must be at most {MOST_RUNS}, got {runs}")
    if runs is not None and (runs < 1 or not rule.reachable(runs)):
        raise ClaimsError(f"expected enough runs for {rule.text!r} to hold, got {runs}")
    rest = {key: value for key, value in table.items() if key not in ("holds", "runs")}
    return Claim(id=id, rule=rule, runs=runs or 0, **rest)


class Ledger:
    """The claims of one paper and their measurements.

    Parameters
    ----------
    where
        The chapter's slug, such as ``"midpoint_mixup"``, or the path of its file of claims.

    Raises
    ------
    ClaimsError
        If the file of claims is invalid, see :func:`declared`.

    Examples
    --------
    >>> ledger = Ledger("midpoint_mixup")
    >>> ledger.claims["gap-always-closes"].rule.text
    'value < 0'
    >>> ledger.exact("gap-always-closes", -0.25)
    >>> ledger.rows["gap-always-closes"]["verdict"]
    'holds'
    """

    def __init__(self, where: str | Path):
        path = _file(where)
        self.chapter, self._folder = path.parent.name, path.parent
        self.claims = declared(path)
        self.rows: dict[str, dict[str, Any]] = {}  # measurements so far, by claim

    def mean(self, id: str, value=None, /, **named) -> None:
        """Record one number per independent run and judge the claim by the mean and its Student t interval.

        If the rule uses the name ``value``, pass its measurements positionally; pass those for other names as keyword
        arguments. Each is a one-dimensional array with one number per run.

        Raises :class:`ClaimsError` if the claim ``id`` is not declared or was already recorded, if the names differ from the
        rule's, or if an argument is not a non-empty one-dimensional array of finite numbers.
        """
        samples = {}
        for name, one in _named(value, named).items():
            numbers = self._numbers(id, one)
            try:
                deviation = statistics.stdev(numbers) if len(numbers) > 1 else math.nan
                samples[name] = Sample(statistics.fmean(numbers), deviation, len(numbers))
            except OverflowError:
                raise ClaimsError(f"measurements of claim {id!r} must have a finite sum, got up to {max(numbers):g}") from None
        self._measure(id, samples)

    def each(self, id: str, value=None, /, **named) -> None:
        """Record one boolean per independent run and judge the claim by the share of true values and its Wilson interval.

        The arguments are those of :meth:`mean`, with booleans instead of numbers.

        Raises :class:`ClaimsError` if the claim does not declare its number of runs in the key ``runs``, if a value is not a
        boolean, and for the reasons given in :meth:`mean`.
        """
        if id in self.claims and not self.claims[id].runs:
            raise ClaimsError(f"claim {id!r} is a share of runs and must declare their number in the key 'runs'")
        samples = {}
        for name, one in _named(value, named).items():
            numbers = self._numbers(id, one)
            if others := set(numbers) - {0.0, 1.0}:
                raise ClaimsError(f"expected one boolean per run for claim {id!r}, got {min(others)}")
            samples[name] = Sample(sum(numbers) / len(numbers), None, len(numbers))
        self._measure(id, samples)

    def exact(self, id: str, value=None, /, **named) -> None:
        """Record deterministic numbers, which do not depend on the seed except for rounding, and judge the claim by them.

        If the rule uses the name ``value``, pass its number positionally; pass the others as keyword arguments.

        Raises :class:`ClaimsError` if the claim ``id`` is not declared or was already recorded, if the names differ from the
        rule's, or if an argument is not a finite number.
        """
        points = {name: self._numbers(id, [one])[0] for name, one in _named(value, named).items()}
        self._measure(id, {name: Interval(one, one, one) for name, one in points.items()})

    def judge(self, found: Mapping[str, Any]) -> None:
        """Record the measurements of several claims, by id.

        A measurement is what the rule's ``value`` takes, or a mapping from the names in the rule to what they take. Numbers are
        recorded by :meth:`exact`. Arrays are recorded by :meth:`each` if the claim declares its number of runs, otherwise by
        :meth:`mean`.

        Raises :class:`ClaimsError` for the reasons given in these methods.
        """
        for id, one in found.items():
            named = dict(one) if isinstance(one, Mapping) else {"value": one}
            of_runs = self.each if id in self.claims and self.claims[id].runs else self.mean
            record = of_runs if any(isinstance(value, Sequence) or np.ndim(value) for value in named.values()) else self.exact
            record(id, named.pop("value", None), **named)

    def not_run(self, id: str, reason: str) -> None:
        """Record that the claim ``id`` was not tested, with the reason.

        Raises :class:`ClaimsError` if the claim is not declared or was already recorded.
        """
        self._check(id)
        self.rows[id] = self._row(id, "not run", {}, reason=reason)

    def _check(self, id: str) -> Claim:
        if id not in self.claims:
            raise ClaimsError(f"claim {id!r} is not declared in {self.chapter}/claims.toml")
        if id in self.rows:
            raise ClaimsError(f"claim {id!r} was already recorded; create a new Ledger to record it again")
        return self.claims[id]

    def _numbers(self, id: str, values) -> list[float]:
        try:
            found = stats.as_numbers(values)
        except ValueError as error:
            raise ClaimsError(f"measurements of claim {id!r}: {error}") from None
        if found.ndim != 1 or not found.size:
            raise ClaimsError(f"expected one number per run for claim {id!r}, got an array of shape {found.shape}")
        if not np.isfinite(found).all():
            raise ClaimsError(f"measurements of claim {id!r} must be finite, got {found[~np.isfinite(found)][0]}")
        return found.tolist()

    def _measure(self, id: str, samples: Mapping[str, Sample | Interval]) -> None:
        claim = self._check(id)
        if set(samples) != set(claim.rule.names):
            names = ", ".join(claim.rule.names)
            raise ClaimsError(f"expected measurements of {names} for claim {id!r}, got {', '.join(samples) or 'none'}")
        by_chance = {name: one for name, one in samples.items() if isinstance(one, Sample)}
        intervals = samples | {name: one.with_runs(one.runs) for name, one in by_chance.items()}
        found = {True: "holds", False: "fails", None: "undecided"}[claim.rule(intervals)]
        needed = claim.rule.runs_to_decide(by_chance) if found == "undecided" else None
        runs = max((one.runs for one in by_chance.values()), default=None)
        measured = {name: [_rounded(end) for end in intervals[name]] for name in claim.rule.names}
        self.rows[id] = self._row(id, found, measured, runs, needed, claim.reason)

    def _row(self, id: str, found: str, measured, runs=None, needed=None, reason="") -> dict[str, Any]:
        claim = self.claims[id]
        same = {key: getattr(claim, key) for key in ("source", "origin", "headline", "says", "kind", "unit", "paper", "kept")}
        same["untraced"] = bool(claim.kept) and not (self._folder / "kept" / f"{claim.kept}.toml").is_file()
        judged = {"criterion": claim.rule.text, "measured": measured, "runs": runs, "runs_to_decide": needed}
        return {"chapter": self.chapter, "id": id} | same | judged | {"verdict": found, "reason": reason}

    def show(self, headlines: bool = False) -> None:
        """Display the ledger, or only its headlines, as a table, and embed the rows as machine-readable output.

        Raises :class:`ClaimsError` if a displayed claim was neither measured nor recorded as not run.
        """
        from IPython.display import display

        chosen = [id for id, claim in self.claims.items() if claim.headline or not headlines]
        if missing := [id for id in chosen if id not in self.rows]:
            raise ClaimsError(f"claim {missing[0]!r} is declared in {self.chapter}/claims.toml but was not measured")
        rows = [self.rows[id] for id in chosen]
        # Tests compare the text between runs, so it leaves out the measurements.
        text = verdicts.aligned(("claim", "kind", "rule"), [(row["id"], row["kind"], row["criterion"]) for row in rows])
        html = verdicts.html(rows, "headline" if headlines else "claim")
        display({"text/plain": text, "text/html": html, MIME: rows}, raw=True)


def _named(value, named: Mapping[str, Any]) -> dict[str, Any]:
    return ({} if value is None else {"value": value}) | dict(named)


def _rounded(value: float) -> float | None:
    """Round a value to four significant digits, or return None if it is not finite, since JSON cannot represent it."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def read(notebook_path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of all ledgers displayed in a notebook file, in order of appearance.

    If a claim is displayed several times, the row displayed last is returned. Rows of the first edition, which have no verdict,
    are left out.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file is not a notebook.
    """
    return rows_of(json.loads(Path(notebook_path).read_text(encoding="utf-8")), str(notebook_path))


def rows_of(notebook: Any, name: str = "the argument") -> list[dict[str, Any]]:
    """Return the rows of all ledgers displayed in a notebook that is already loaded, as :func:`read` does for a file.

    ``name`` denotes the notebook in the message of the ``ValueError`` that is raised if it is not a notebook.
    """
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise ValueError(f"expected {name} to be a notebook with the key 'cells', got {reprlib.repr(notebook)}")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(MIME, []):
                if "verdict" in row:
                    found[row["chapter"], row["id"]] = row | {"measured": _in_rule_order(row)}
    return list(found.values())


def _in_rule_order(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements of a row in the order of the names in its rule, since notebook files sort the keys."""
    measured = row["measured"]
    return measured if len(measured) < 2 else {name: measured[name] for name in Rule(row["criterion"]).names}
