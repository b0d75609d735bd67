"""The claims ledger: what a paper says, and the rule by which what was measured is judged, as data.

A paper's claims stand in ``papers/SLUG/claims.toml``. A chapter gives one :class:`Ledger` its measurements and shows it. The
table that readers see and the rows that programs read (:func:`read`, the command line, the site's scoreboard) come from
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
    "source": str,
    "origin": str,
    "headline": bool,
    "says": str,
    "kind": str,
    "unit": str,
    "holds": str,
    "runs": int,
    "paper": (str, int, float),
    "kept": str,
    "reason": str,
}
_NEEDED = ("source", "origin", "says", "kind", "unit", "holds")


class ClaimsError(ValueError):
    """A file of claims that cannot be used, or a measurement that does not fit its claim; one line."""


@dataclass(frozen=True)
class Claim:
    """One claim as ``claims.toml`` declares it.

    ``source``: where the paper says it; ``origin`` one of :data:`ORIGINS`; ``headline``: whether the paper would put it into
    its abstract; ``kind`` one of :data:`KINDS`; ``rule``: what must be true of the measured names; ``runs``: of how many
    runs a share is taken by default, 0 for other claims; ``paper``: the number that the paper prints; ``kept``: the name of the
    kept run that decides it, nothing where the chapter's own run does; ``reason``: why the claim does not hold, where that is
    known.
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
    """The claims of a paper by id, in the order of its ``claims.toml``.

    Parameters
    ----------
    where
        The chapter's slug, such as ``"midpoint_mixup"``, or the path of a file.

    Raises
    ------
    ClaimsError
        For a file that is not there or not TOML, keys that are missing or unknown, a rule that is none or that a perfect
        result of the declared number of runs would not meet, more than eight headlines.
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
    if sum(claim.headline for claim in found.values()) > MOST_HEADLINES:
        raise ClaimsError(f"{name}: more than {MOST_HEADLINES} claims are headlines")
    return found


def _claim(id: str, table: Any) -> Claim:
    if not _ID.fullmatch(id):
        raise ClaimsError("an id is in kebab-case: small letters, digits and single hyphens")
    if not isinstance(table, dict):
        raise ClaimsError("is not a table of keys")
    for key, value in table.items():
        if key not in _KEYS:
            raise ClaimsError(f"there is no key {key!r}; there are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]) or (isinstance(value, bool) and _KEYS[key] is not bool):
            raise ClaimsError(f"{key} = {value!r} is of the wrong type")
        if isinstance(value, str) and not value.strip():
            raise ClaimsError(f"{key} is empty")
    if missing := [key for key in _NEEDED if key not in table]:
        raise ClaimsError(f"{missing[0]} is missing")
    for key, choices in (("kind", KINDS), ("origin", ORIGINS)):
        if table[key] not in choices:
            raise ClaimsError(f"{key} {table[key]!r} is none of {', '.join(choices)}")
    rule, runs = Rule(table["holds"]), table.get("runs")
    if runs is not None and (runs < 1 or not rule.reachable(runs)):
        raise ClaimsError(f"{runs} runs of the same kind would not meet {rule.text!r}: declare more runs")
    rest = {key: value for key, value in table.items() if key not in ("holds", "runs")}
    return Claim(id=id, rule=rule, runs=runs or 0, **rest)


class Ledger:
    """The claims of one paper, and what was measured of them.

    Parameters
    ----------
    where
        The chapter's slug, such as ``"midpoint_mixup"``, or the path of its file of claims.

    Raises
    ------
    ClaimsError
        As :func:`declared`.
    """

    def __init__(self, where: str | Path):
        self.chapter = where if isinstance(where, str) else where.parent.name
        self.claims = declared(where)
        self.rows: dict[str, dict[str, Any]] = {}  # what was measured so far, by claim

    def mean(self, id: str, value=None, /, **named) -> None:
        """Measured: one number for each independent run; judged by the mean over runs and its Student interval.

        ``value``, and any other names of the rule as keywords: one-dimensional, one number a run. :class:`ClaimsError` for a
        claim that is not declared or was measured before, names that are not the rule's, and numbers that are not finite.
        """
        samples = {}
        for name, one in _named(value, named).items():
            numbers = self._numbers(id, one)
            deviation = statistics.stdev(numbers) if len(numbers) > 1 else math.nan
            samples[name] = Sample(statistics.fmean(numbers), deviation, len(numbers))
        self._measure(id, samples)

    def each(self, id: str, value=None, /, **named) -> None:
        """Measured: whether something is true of each independent run; judged by the share of runs and its Wilson interval.

        As :meth:`mean`, of booleans. The claim declares by its key ``runs`` of how many runs the share is taken.
        """
        if id in self.claims and not self.claims[id].runs:
            raise ClaimsError(f"claim {id!r} is a share of runs; its declaration must say of how many: runs = …")
        samples = {}
        for name, one in _named(value, named).items():
            numbers = self._numbers(id, one)
            if not set(numbers) <= {0.0, 1.0}:
                raise ClaimsError(f"claim {id!r} takes true or false for each run")
            samples[name] = Sample(sum(numbers) / len(numbers), None, len(numbers))
        self._measure(id, samples)

    def exact(self, id: str, value=None, /, **named) -> None:
        """Measured: numbers that no chance enters, the same for every seed up to rounding. Otherwise as :meth:`mean`."""
        points = {name: self._numbers(id, [one])[0] for name, one in _named(value, named).items()}
        self._measure(id, {name: Interval(one, one, one) for name, one in points.items()})

    def not_run(self, id: str, reason: str) -> None:
        """What the claim needs is missing: say why."""
        self._check(id)
        self.rows[id] = self._row(id, "not run", {}, reason=reason)

    def _check(self, id: str) -> Claim:
        if id not in self.claims:
            raise ClaimsError(f"claim {id!r} is measured and not declared in {self.chapter}/claims.toml")
        if id in self.rows:
            raise ClaimsError(f"claim {id!r} is measured twice; make a new Ledger to measure it again")
        return self.claims[id]

    def _numbers(self, id: str, values) -> list[float]:
        found = np.asarray(values, dtype=float)
        if found.ndim != 1 or not found.size:
            raise ClaimsError(f"claim {id!r} takes one number a run, not an array of shape {found.shape}")
        if not np.isfinite(found).all():
            raise ClaimsError(f"claim {id!r} has a measurement that is not finite")
        return found.tolist()

    def _measure(self, id: str, samples: Mapping[str, Sample | Interval]) -> None:
        claim = self._check(id)
        if set(samples) != set(claim.rule.names):
            raise ClaimsError(f"claim {id!r} was given {', '.join(samples)}; its rule has {', '.join(claim.rule.names)}")
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
        """Display the ledger, or its headlines alone: a table for readers, the same rows for programs.

        :class:`ClaimsError` where a claim that is to be shown was declared and neither measured nor said not to be run.
        """
        from IPython.display import display

        chosen = [id for id, claim in self.claims.items() if claim.headline or not headlines]
        if missing := [id for id in chosen if id not in self.rows]:
            raise ClaimsError(f"claim {missing[0]!r} is declared in {self.chapter}/claims.toml and not measured")
        rows = [self.rows[id] for id in chosen]
        # The text, by which runs are compared, has nothing that is measured.
        text = verdicts.aligned(("claim", "kind", "rule"), [(row["id"], row["kind"], row["criterion"]) for row in rows])
        html = verdicts.html(rows, "headline" if headlines else "claim")
        display({"text/plain": text, "text/html": html, MIME: rows}, raw=True)


def _named(value, named: Mapping[str, Any]) -> dict[str, Any]:
    return ({} if value is None else {"value": value}) | dict(named)


def _rounded(value: float) -> float | None:
    """A plain float of four significant digits; None when it is not finite (JSON has no such number)."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def read(notebook_path: str | Path) -> list[dict[str, Any]]:
    """Rows of every ledger shown in a notebook, in order; of rows with one id, the last shown.

    Raises
    ------
    OSError, ValueError
        When the file cannot be read, or is not a notebook.
    """
    return rows_of(json.loads(Path(notebook_path).read_text(encoding="utf-8")), str(notebook_path))


def rows_of(notebook: Any, name: str = "this") -> list[dict[str, Any]]:
    """As :func:`read`, of a notebook that is read already."""
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise ValueError(f"{name} is not a notebook")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(MIME, []):
                row = row if "verdict" in row else row | _of_the_first_edition(row)
                found[row["chapter"], row["id"]] = row | {"measured": _in_order(row)}
    return list(found.values())


def _in_order(row: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, in the order in which the rule names it; notebook files sort their keys."""
    measured = row["measured"]
    return measured if len(measured) < 2 else {name: measured[name] for name in Rule(row["criterion"]).names}


def _of_the_first_edition(row: dict[str, Any]) -> dict[str, Any]:
    """What a row that older commits have lacks."""
    return {"verdict": {True: "holds", False: "fails", None: "not run"}[row["holds"]], "runs": None, "measured": {}}
