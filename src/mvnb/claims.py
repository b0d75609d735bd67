"""The claims ledger: what a paper says beside what was measured, as data.

A chapter fills one :class:`Ledger` and shows it once. The table that readers see and the rows that programs read
(:func:`read`, the command line, the site's scoreboard) come from the same cell output.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

MIME = "application/vnd.mvnb.claims+json"
KINDS = {
    "exact": "the paper's own set-up",
    "scaled": "the paper's set-up, smaller",
    "stand-in": "other data or weights",
}
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Ledger:
    """The claims of one chapter, in the order in which they are recorded.

    Parameters
    ----------
    chapter
        The chapter's file stem, such as ``"01_midpoint_mixup"``; every row carries it.
    """

    def __init__(self, chapter: str):
        self.chapter = chapter
        self.rows: list[dict[str, Any]] = []

    def record(
        self,
        id: str,
        *,
        source: str,
        says: str,
        kind: str,
        measured: float | None,
        uncertainty: float | None = None,
        paper: float | str | None = None,
        unit: str = "",
        holds: bool | None,
        criterion: str,
        reason: str = "",
    ) -> None:
        """Add one claim.

        Parameters
        ----------
        id
            Stable name in kebab-case, unique in this ledger.
        source
            Where the paper says it ("Theorem 4.6", "Figure 2").
        says
            What the paper says, in one sentence.
        kind
            ``"exact"`` (the paper's own set-up), ``"scaled"`` (the same, smaller) or ``"stand-in"`` (other data or
            weights).
        measured, uncertainty, unit
            The number found here, the half-width of its interval, and what it counts.
        paper
            The number printed in the paper, if it prints one (text for a bound or a range).
        holds, criterion
            The verdict, and in words the condition that decided it; None where what the claim needs is not installed: such a
            claim is shown as not run, and counts neither way. The criterion is fixed before the run: it must not
            contain measured values, because it is what re-runs are compared by.
        reason
            Why the claim does not hold or was not run, where that is known; shown only then.

        Raises
        ------
        ValueError
            For an unknown kind, an id that is not kebab-case, or an id recorded before.
        """
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} of claim {id!r} is none of {', '.join(KINDS)}")
        if not _ID.fullmatch(id):
            raise ValueError(f"claim id {id!r} is not kebab-case (lower-case letters, digits and single hyphens)")
        if any(row["id"] == id for row in self.rows):
            raise ValueError(f"claim {id!r} is already in this ledger; make a new Ledger to record it again")
        self.rows.append(
            {
                "chapter": self.chapter,
                "id": id,
                "source": source,
                "says": says,
                "kind": kind,
                "measured": None if measured is None else _rounded(measured),
                "uncertainty": None if uncertainty is None else _rounded(uncertainty),
                "paper": paper if paper is None or isinstance(paper, str) else _rounded(paper),
                "unit": unit,
                "holds": None if holds is None else bool(holds),
                "criterion": criterion,
                "reason": reason,
            }
        )

    def show(self) -> None:
        """Display the ledger: a table for readers, the same rows for programs, a stable summary for comparison."""
        from IPython.display import display

        display(_Shown(self.rows))


class _Shown:
    """What :meth:`Ledger.show` displays; the text form holds nothing that differs between processors."""

    def __init__(self, rows: Sequence[dict[str, Any]]):
        self.rows = [dict(row) for row in rows]

    def __repr__(self) -> str:
        columns = ("claim", "kind", "verdict", "criterion")
        lines = [(row["id"], row["kind"], verdict(row), row["criterion"]) for row in self.rows]
        return f"{aligned(columns, lines)}\n\n{tally(self.rows)}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": _html(self.rows), MIME: self.rows}


def read(notebook_path: str | Path) -> list[dict[str, Any]]:
    """Rows of every ledger shown in a notebook, in order; of rows with one id, the last shown.

    Raises
    ------
    OSError, ValueError
        When the file cannot be read, or is not a notebook.
    """
    notebook = json.loads(Path(notebook_path).read_text(encoding="utf-8"))
    if not isinstance(notebook, dict) or "cells" not in notebook:
        raise ValueError(f"{notebook_path} is not a notebook")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(MIME, []):
                rows[row["chapter"], row["id"]] = row
    return list(rows.values())


def table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows as a table for the terminal, with the measured values."""
    rows = list(rows)
    columns = ("chapter", "claim", "kind", "source", "paper", "measured", "verdict", "criterion")
    lines = [
        (
            row["chapter"],
            row["id"],
            row["kind"],
            row["source"],
            paper(row),
            measured(row),
            verdict(row),
            row["criterion"],
        )
        for row in rows
    ]
    return f"{aligned(columns, lines)}\n\n{tally(rows)}"


def verdict(row: dict[str, Any]) -> str:
    """The verdict of a row in words."""
    return {True: "holds", False: "does not hold", None: "not run"}[row["holds"]]


def mark(row: dict[str, Any]) -> tuple[str, str]:
    """The sign of a verdict and the style class in which pages show it."""
    return {True: ("✓", "holds"), False: ("✗", "fails"), None: ("–", "absent")}[row["holds"]]


def tally(rows: Sequence[dict[str, Any]]) -> str:
    """How many of the rows hold, as a sentence fragment."""
    held, run = counts(rows)
    rest = f", {len(rows) - run} not run" if run < len(rows) else ""
    return f"{held} of {run} claims hold{rest}"


def counts(rows: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """How many of the rows hold, and how many were run at all."""
    run = [row["holds"] for row in rows if row["holds"] is not None]
    return sum(run), len(run)


def _rounded(value: Any) -> float | None:
    """A plain float of four significant digits; None when it is not finite (JSON has no such number)."""
    number = float(value)
    return float(f"{number:.4g}") if math.isfinite(number) else None


def number(value: float | None, digits: int = 3) -> str:
    """A value at a readable precision: ``digits`` significant digits."""
    return "not finite" if value is None else f"{value:.{digits}g}"


def measured(row: dict[str, Any]) -> str:
    """What was measured, with its half-width and unit."""
    if row["holds"] is None:
        return "–"
    text = number(row["measured"])
    if row["uncertainty"] is not None:
        text += f" ± {number(row['uncertainty'], 2)}"
    return f"{text} {row['unit']}".rstrip()


def paper(row: dict[str, Any]) -> str:
    """What the paper printed, a dash where it printed nothing."""
    printed = row["paper"]
    return "–" if printed is None else printed if isinstance(printed, str) else number(printed, 4)


def aligned(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lines of text cells under column heads, in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(columns, *lines)]
    rows = [columns, ["-" * width for width in widths], *lines]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _html(rows: Sequence[dict[str, Any]]) -> str:
    heads = ("Claim", "Source", "Set-up", "Paper", "Measured", "Criterion", "Verdict")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "\n".join(_html_row(row) for row in rows)
    return (
        '<table class="mvnb-claims">\n'
        f"<caption>What the paper says and what was measured here: {tally(rows)}.</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def _html_row(row: dict[str, Any]) -> str:
    symbol, style = mark(row)
    reason = f'<br><span class="reason">{escape(row["reason"])}</span>' if row["reason"] and not row["holds"] else ""
    cells = (
        escape(row["source"]),
        f'<abbr title="{escape(KINDS[row["kind"]])}">{row["kind"]}</abbr>',
        escape(paper(row)),
        escape(measured(row)),
        escape(row["criterion"]),
        f'<span class="verdict {style}"><span aria-hidden="true">{symbol}</span> {verdict(row)}</span>{reason}',
    )
    data = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr id="claim-{row["id"]}"><th scope="row">{escape(row["says"])} <code>{row["id"]}</code></th>{data}</tr>'
