"""Texts, tables and counts of the verdicts on claims, for the terminal and for pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

Row = dict[str, Any]
MARKS = {"holds": ("✓", "holds"), "fails": ("✗", "fails"), "undecided": ("?", "open"), "not run": ("–", "absent")}
"""The verdicts, each with its symbol and its CSS class on pages."""
JUDGED = tuple(one for one in MARKS if one != "not run")
KINDS = {
    "exact": "the paper's own set-up",
    "scaled": "the paper's set-up, smaller",
    "stand-in": "other data or weights",
}
ORIGINS = {
    "paper": "the paper says so",
    "erratum": "the paper, corrected",
    "ours": "not in the paper",
}


def counts(rows: Iterable[Row]) -> Counter[str]:
    """Return the number of rows with each verdict."""
    return Counter(row["verdict"] for row in rows)


def tally(rows: Iterable[Row]) -> str:
    """Return how many of the rows hold, fail and are undecided, as a sentence fragment."""
    found = counts(rows)
    missing = found.pop("not run", 0)
    open_ = f", {found['undecided']} undecided" if found["undecided"] else ""
    rest = f"; {missing} not run" if missing else ""
    return f"{found['holds']} hold, {found['fails']} fail{open_} of {found.total()} claims{rest}"


def opposite(rows: Iterable[Row], others: Iterable[Row]) -> list[str]:
    """Return the ids of claims that hold in one of two lists of rows and fail in the other."""
    known = {row["id"]: row["verdict"] for row in others}
    return [row["id"] for row in rows if {row["verdict"], known.get(row["id"])} == {"holds", "fails"}]


def _number(value: float | None, digits: int = 3) -> str:
    """Format a value with ``digits`` significant digits."""
    return "not finite" if value is None else f"{value:.{digits}g}"


def measured(row: Row) -> str:
    """Return the measured values with intervals and unit, labelled by name if the rule has several names."""
    if not row["measured"]:
        return "–"
    several = len(row["measured"]) > 1
    parts = [f"{f'{name} ' if several else ''}{_with_interval(ends)}" for name, ends in row["measured"].items()]
    return f"{', '.join(parts)} {row['unit']}".rstrip()


def _with_interval(ends: Sequence[float | None]) -> str:
    estimate, low, high = ends
    if estimate is not None and low == high:
        return _number(estimate)
    if None in ends:
        return _number(estimate)
    if abs((high - estimate) - (estimate - low)) <= 2e-3 * (high - low):  # symmetric, up to rounding
        return f"{_number(estimate)} ± {_number((high - low) / 2, 2)}"
    return f"{_number(estimate)} [{_number(low)}, {_number(high)}]"


def paper(row: Row) -> str:
    """Return the value that the paper prints, or a dash if it prints none."""
    printed = row["paper"]
    return "–" if printed is None else printed if isinstance(printed, str) else _number(printed, 4)


def note(row: Row) -> str:
    """Return the known reason why a claim does not hold and the number of runs that would decide an undecided one."""
    if row["verdict"] == "holds":
        return ""
    needed = row["runs_to_decide"]
    runs = f"some {float(f'{needed:.2g}'):.0f} runs like these {row['runs']} would decide it" if needed else ""
    return "; ".join(filter(None, (row["reason"], runs)))


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a table for the terminal, with the measured values."""
    rows = list(rows)
    columns = ("chapter", "claim", "kind", "source", "paper", "measured", "verdict", "rule")
    lines = [
        (row["chapter"], row["id"], row["kind"], row["source"], paper(row), measured(row), row["verdict"], row["criterion"])
        for row in rows
    ]
    return f"{aligned(columns, lines)}\n\n{tally(rows)}"


def aligned(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return lines of text cells under column heads, with each column padded to its widest cell."""
    widths = [max(map(len, column)) for column in zip(columns, *lines)]
    rows = [columns, ["-" * width for width in widths], *lines]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def html(rows: Sequence[Row], prefix: str) -> str:
    """Return the rows as an HTML table; each has the id ``PREFIX-<claim's id>``."""
    heads = ("Claim", "Source", "Set-up", "Paper", "Measured", "Rule", "Verdict")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "\n".join(_html_row(row, prefix) for row in rows)
    return (
        '<table class="mvnb-claims">\n'
        f"<caption>What the paper says and what was measured here: {tally(rows)}.</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def html_verdict(row: Row) -> str:
    """Return the verdict as HTML: its symbol, the word, and the note below."""
    symbol, style = MARKS[row["verdict"]]
    text = note(row)
    reason = f'<br><span class="reason">{escape(text)}</span>' if text else ""
    return f'<span class="verdict {style}"><span aria-hidden="true">{symbol}</span> {row["verdict"]}</span>{reason}'


def _html_row(row: Row, prefix: str) -> str:
    origin = "" if row["origin"] == "paper" else f" ({ORIGINS[row['origin']]})"
    cells = (
        escape(row["source"] + origin),
        f'<abbr title="{escape(KINDS[row["kind"]])}">{row["kind"]}</abbr>',
        escape(paper(row)),
        escape(measured(row)),
        escape(row["criterion"]),
        html_verdict(row),
    )
    data = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr id="{prefix}-{row["id"]}"><th scope="row">{escape(row["says"])} <code>{row["id"]}</code></th>{data}</tr>'
