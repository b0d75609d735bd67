"""The claims ledger: the claims of a paper and the rules that judge the measurements.

The file ``papers/SLUG/claims.toml`` declares a paper's claims. A chapter records its measurements in a :class:`Ledger` and
shows it. The table for readers and the rows for programs (:func:`read`, the command line, the site's scoreboard) come from
the same cell output.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mvnb import verdicts
from mvnb.rules import Interval, Rule, RuleError, Sample
from mvnb.verdicts import KINDS, ORIGINS

MIME = "application/vnd.mvnb.claims+json"
MOST_HEADLINES = 8
PAPERS = Path(__file__).parent / "papers"
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_KEYS = {
    "source": (str,),
    "origin": (str,),
    "headline": (bool,),
    "says": (str,),
    "kind": (str,),
    "unit": (str,),
    "holds": (str,),
    "runs": (int,),
    "paper": (str, int, float),
    "kept": (str,),
    "reason": (str,),
}
_REQUIRED = ("source", "origin", "says", "kind", "unit", "holds")


class ClaimsError(ValueError):
    """An invalid file of claims, or a measurement that does not fit its claim; the message is one line."""


@dataclass(frozen=True)
class Claim:
    """One claim as ``claims.toml`` declares it.

    ``source``: the place in the paper, such as ``"Theorem 4.6 (2)"``; ``origin``: one of :data:`ORIGINS`; ``kind``: one of
    :data:`KINDS`; ``rule``: the condition under which the claim holds; ``headline``: whether the paper would put the claim
    into its abstract; ``runs``: the default number of runs of which a share is taken, 0 for other claims; ``paper``: the
    number that the paper prints; ``kept``: the kept run that decides the claim, empty if the chapter's own run does;
    ``reason``: why the claim does not hold, if known.
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
    paper: str | float | None = None
    kept: str = ""
    reason: str = ""


def declared(where: str | Path) -> dict[str, Claim]:
    """Return the claims of a paper by id, in the order of its ``claims.toml``.

    Parameters
    ----------
    where
        The chapter's slug, such as ``"midpoint_mixup"``, or the path of a file.

    Raises
    ------
    ClaimsError
        If the file does not exist or is not TOML, a key is missing or unknown, a rule is invalid or could not be met by a
        perfect result in the declared number of runs, or there are more than eight headlines.
    """
    path = PAPERS / where / "claims.toml" if isinstance(where, str) else where
    name = f"{path.parent.name}/{path.name}"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClaimsError(f"{name}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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


def _claim(id: str, table: Any) -> Claim:
    if not _ID.fullmatch(id):
        raise ClaimsError("expected an id in kebab-case (lowercase letters, digits, single hyphens)")
    if not isinstance(table, dict):
        raise ClaimsError(f"expected a table, got {table!r}")
    for key, value in table.items():
        if key not in _KEYS:
            raise ClaimsError(f"unknown key {key!r}; expected one of {', '.join(_KEYS)}")
        types = _KEYS[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ClaimsError(f"{key} must be of type {' or '.join(one.__name__ for one in types)}, got {value!r}")
        if isinstance(value, str) and not value.strip():
            raise ClaimsError(f"{key} must not be empty")
    if missing := [key for key in _REQUIRED if key not in table]:
        raise ClaimsError(f"{missing[0]} is missing")
    for key, choices in (("kind", KINDS), ("origin", ORIGINS)):
        if table[key] not in choices:
            raise ClaimsError(f"{key} must be one of {', '.join(choices)}, got {table[key]!r}")
    rule, runs = Rule(table["holds"]), table.get("runs")
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
        See :func:`declared`.

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
        self.chapter = where if isinstance(where, str) else where.parent.name
        self.claims = declared(where)
        self.rows: dict[str, dict[str, Any]] = {}  # measurements so far, by claim

    def mean(self, id: str, value=None, /, **named) -> None:
        """Record one number per independent run; the mean and its Student interval decide the verdict.

        Pass ``value``, and any other name of the rule as a keyword: one-dimensional, one number per run. Raises
        :class:`ClaimsError` if the claim is not declared or was already measured, if the names differ from the rule's, or if
        a number is not finite.
        """
        samples = {}
        for name, one in _named(value, named).items():
            numbers = self._numbers(id, one)
            deviation = statistics.stdev(numbers) if len(numbers) > 1 else math.nan
            samples[name] = Sample(statistics.fmean(numbers), deviation, len(numbers))
        self._measure(id, samples)

    def each(self, id: str, value=None, /, **named) -> None:
        """Record one boolean per independent run; the share of true ones and its Wilson interval decide the verdict.

        Arguments and errors as for :meth:`mean`. The claim must declare the number of runs in its key ``runs``.
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
        """Record deterministic numbers, the same for every seed up to rounding; errors as for :meth:`mean`."""
        points = {name: self._numbers(id, [one])[0] for name, one in _named(value, named).items()}
        self._measure(id, {name: Interval(one, one, one) for name, one in points.items()})

    def not_run(self, id: str, reason: str) -> None:
        """Record that the claim was not tested, and the reason."""
        self._check(id)
        self.rows[id] = self._row(id, "not run", {}, reason=reason)

    def _check(self, id: str) -> Claim:
        if id not in self.claims:
            raise ClaimsError(f"claim {id!r} is not declared in {self.chapter}/claims.toml")
        if id in self.rows:
            raise ClaimsError(f"claim {id!r} was already recorded; create a new Ledger to record it again")
        return self.claims[id]

    def _numbers(self, id: str, values) -> list[float]:
        found = np.asarray(values, dtype=float)
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
        judged = {"criterion": claim.rule.text, "measured": measured, "runs": runs, "runs_to_decide": needed}
        return {"chapter": self.chapter, "id": id} | same | judged | {"verdict": found, "reason": reason}

    def show(self, headlines: bool = False) -> None:
        """Display the ledger, or only its headlines, as a table for readers and the same rows for programs.

        Raises :class:`ClaimsError` if one of these claims was neither measured nor recorded as not run.
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
    """Round to four significant digits; return None for values that are not finite, which JSON cannot represent."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def read(notebook_path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of all ledgers shown in a notebook, in order; for duplicate ids, the row shown last counts.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read or is not a notebook.
    """
    return rows_of(json.loads(Path(notebook_path).read_text(encoding="utf-8")), str(notebook_path))


def rows_of(notebook: Any, name: str = "this") -> list[dict[str, Any]]:
    """Return the same as :func:`read` for a notebook that is already loaded."""
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise ValueError(f"{name} is not a notebook")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(MIME, []):
                row = row if "verdict" in row else row | _legacy_fields(row)
                found[row["chapter"], row["id"]] = row | {"measured": _in_rule_order(row)}
    return list(found.values())


def _in_rule_order(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements in the order of the names in the rule; notebook files sort their keys."""
    measured = row["measured"]
    return measured if len(measured) < 2 else {name: measured[name] for name in Rule(row["criterion"]).names}


def _legacy_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that rows of older commits lack."""
    return {"verdict": {True: "holds", False: "fails", None: "not run"}[row["holds"]], "runs": None, "measured": {}}
