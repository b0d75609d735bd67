"""Counts and tables of the verdicts on claims, as plain text for the terminal and as HTML for pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest
from textwrap import wrap
from typing import Any

Row = dict[str, Any]
MARKS = {"holds": ("✓", "holds"), "fails": ("✗", "fails"), "undecided": ("?", "open"), "not run": ("–", "absent")}
"""Symbol and CSS class of each verdict."""
JUDGED = tuple(one for one in MARKS if one != "not run")
KINDS = {"exact": "the paper's own set-up", "scaled": "the paper's set-up, smaller", "stand-in": "other data or weights"}
ORIGINS = {"paper": "the paper says so", "erratum": "the paper, corrected", "ours": "not in the paper"}
UNTRACED = "from a stored file that does not say how it was made"
_FORMULA = re.compile(r"\$([^$]+)\$")
_SIGNS = {"ge": ">=", "le": "<=", "lvert": "|", "rvert": "|", "lVert": "|", "rVert": "|", ",": " "}


def plain(text: str) -> str:
    r"""Return a text of a claim with its formulas, TeX between dollar signs, in characters for the terminal.

    >>> plain(r"at most $\exp(-T/(2\kappa))$ for $k\ge\log d$ and $d=k^{20}$")
    'at most exp(-T/(2 kappa)) for k>=log d and d=k^20'
    """

    def characters(formula: re.Match) -> str:
        tex = re.sub(r"(?:\\mathrm|(?<=[\^_]))\{(\w+)\}", r"\1", formula[1])
        tex = re.sub(r"\\([A-Za-z]+|,)", lambda name: _SIGNS.get(name[1], f" {name[1]} "), tex)
        tex = " ".join(tex.replace("{", "(").replace("}", ")").split())
        return re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", tex)

    return _FORMULA.sub(characters, text)


def html_text(text: str) -> str:
    """Return a text of a claim as HTML, with its formulas for MathJax, each on one line with the punctuation behind it."""

    def formula(match: re.Match) -> str:
        math = rf'<span class="math notranslate nohighlight">\({match[1]}\)</span>'
        return f'<span class="formula-and-end">{math}{match[2]}</span>' if match[2] else math

    return re.sub(_FORMULA.pattern + r"([.,;:)]*)", formula, escape(text))


def counts(rows: Iterable[Row]) -> Counter[str]:
    """Count the rows with each verdict."""
    return Counter(row["verdict"] for row in rows)


def is_headline(row: Row) -> bool:
    """Return whether a claim is one that the paper would put into its abstract."""
    return row["headline"] and row["origin"] != "ours"


def headlines(rows: Iterable[Row]) -> list[Row]:
    """Return the claims that the papers would put into their abstracts."""
    return list(filter(is_headline, rows))


def terms(row: Row) -> str:
    """Return the terms on which a claim was judged: its rule, the number of runs, and who makes the claim."""
    runs = f"; {row['runs']} runs" if row["runs"] else ""
    return f"{rule(row)}{runs}"


def rule(row: Row) -> str:
    """Return the rule of a claim, and who makes the claim."""
    return f"{row['criterion']} (origin: {row['origin']})"


def tally(rows: Iterable[Row]) -> str:
    """Return the number of claims with each verdict as text, such as ``"3 hold, 1 fail of 4 claims; 2 not run"``."""
    found = counts(rows)
    missing = found.pop("not run", 0)
    open_ = f", {found['undecided']} undecided" if found["undecided"] else ""
    rest = f"; {missing} not run" if missing else ""
    return f"{found['holds']} hold, {found['fails']} fail{open_} of {found.total()} claims{rest}"


def opposite(rows: Iterable[Row], others: Iterable[Row]) -> list[str]:
    """Return the ids of the claims that hold in one of two collections of rows and fail in the other."""
    known = {row["id"]: row["verdict"] for row in others}
    return [row["id"] for row in rows if {row["verdict"], known.get(row["id"])} == {"holds", "fails"}]


def moved(before: Iterable[Row], after: Iterable[Row]) -> list[str]:
    """Return the ids of the claims whose verdict, displayed value, rule or origin differs between two collections of rows."""
    first, second = ({row["id"]: (row["verdict"], value(row), rule(row)) for row in rows} for rows in (before, after))
    return [id for id in first | second if first.get(id) != second.get(id)]


def _number(value: float | None, digits: int = 3) -> str:
    """Format a value with ``digits`` significant digits; None stands for a value that is not finite."""
    return "not finite" if value is None else f"{value:.{digits}g}"


def value(row: Row) -> str:
    """Return the measured values as text, with their intervals; a dash if there are none.

    If the rule has several names, each value is preceded by its name.
    """
    several = len(row["measured"]) > 1
    parts = [f"{f'{name} ' if several else ''}{_with_interval(ends)}" for name, ends in row["measured"].items()]
    return ", ".join(parts) or "–"


def measured(row: Row) -> str:
    """Return the text of :func:`value` with the unit, if there are measured values."""
    return f"{value(row)} {row['unit']}".rstrip() if row["measured"] else value(row)


def _with_interval(ends: Sequence[float | None]) -> str:
    estimate, low, high = ends
    if None in ends or low == high:
        return _number(estimate)
    if abs((high - estimate) - (estimate - low)) <= 2e-3 * (high - low):  # symmetric, up to rounding
        return f"{_number(estimate)} ± {_number((high - low) / 2, 2)}"
    return f"{_number(estimate)} [{_number(low)}, {_number(high)}]"


def paper(row: Row) -> str:
    """Return the value printed in the paper as text, or a dash if there is none."""
    printed = row["paper"]
    return "–" if printed is None else printed if isinstance(printed, str) else _number(printed, 4)


def note(row: Row) -> str:
    """Return what a reader should know about a verdict, as text; empty if there is nothing to say.

    The text, without a full stop at its end, gives the known reason for a verdict other than "holds", the number of runs that
    would decide an undecided claim, and, whatever the verdict, whether it rests on a kept run without a declaration.
    """
    needed, untraced = row["runs_to_decide"], row.get("untraced")
    runs = f"some {float(f'{needed:.2g}'):.0f} runs like these {row['runs']} would decide it" if needed else ""
    return "; ".join(filter(None, (row["verdict"] != "holds" and row["reason"].rstrip("."), runs, untraced and UNTRACED)))


def table(rows: Iterable[Row], width: int | None = None) -> str:
    """Return the rows as a plain-text table, each below its claim and :func:`note`, followed by the number of each verdict."""
    rows = list(rows)
    lines = [(f"  {row['id']}", row["verdict"], value(row), plain(paper(row)), row["criterion"]) for row in rows]
    columns = ("claim", "verdict", "measured", "paper", "rule")
    titles = [plain(": ".join(filter(None, (row["says"], note(row))))) for row in rows]
    return f"{aligned(columns, lines, width, titles)}\n\n{tally(rows)}"


def side_by_side(
    before: Iterable[Row], after: Iterable[Row], names: tuple[str, str], ids: Iterable[str], width: int | None = None
) -> str:
    """Return the claims ``ids`` of two runs as a plain-text table with the values in both; ``names`` are the headings.

    Each row is below what the claim says in the later run. Where the rule or the origin differs, a second line gives both.
    """
    runs = [{row["id"]: row for row in rows} for rows in (before, after)]
    lines, titles = [], []
    for id in ids:
        rows = [run.get(id) for run in runs]
        found = dict.fromkeys(row["verdict"] if row else "absent" for row in rows)
        lines.append((f"  {id}", " → ".join(found), *(value(row) if row else "–" for row in rows)))
        titles.append(plain((rows[1] or rows[0])["says"]))
        if None not in rows and len(both := dict.fromkeys(map(rule, rows))) > 1:
            lines.append(("", "judged by", *both))
            titles.append("")
    return aligned(("claim", "verdict", *names), lines, width, titles)


def aligned(
    columns: Sequence[str], lines: Sequence[Sequence[str]], width: int | None = None, titles: Iterable[str] = ()
) -> str:
    """Return a plain-text table with the headings ``columns`` and the rows ``lines``, padded to align the columns.

    If the table would be wider than ``width`` characters, the cells of its widest columns are wrapped, and so are ``titles``,
    texts above the rows. A row whose title is empty has none.
    """
    widths = [max(map(len, column)) for column in zip(columns, *lines)]
    while width and sum(widths) + 2 * len(widths) - 2 > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    printed = []
    for row, title in zip_longest([columns, ["-" * one for one in widths], *lines], ["", "", *titles], fillvalue=""):
        printed += wrap(title, width or len(title) + 1)
        cells = [wrap(cell, one) if len(cell) > one else [cell] for cell, one in zip(row, widths)]
        printed += ["  ".join(map(str.ljust, parts, widths)).rstrip() for parts in zip_longest(*cells, fillvalue="")]
    return "\n".join(printed)


def html(rows: Sequence[Row], prefix: str) -> str:
    """Return the rows as an HTML table; the HTML id of each row is ``prefix``, a hyphen and the claim's id."""
    heads = ("Claim", "Source", "Set-up", "Paper", "Measured", "Rule", "Verdict")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "\n".join(_html_row(row, prefix) for row in rows)
    return (
        '<table class="mvnb-claims">\n'
        f"<caption>What the paper says and what was measured here: {tally(rows)}.</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def html_verdict(row: Row) -> str:
    """Return the verdict of a row as HTML, with its symbol and, on a second line, its :func:`note`."""
    symbol, style = MARKS[row["verdict"]]
    text = note(row)
    reason = f'<br><span class="reason">{html_text(text)}</span>' if text else ""
    return f'<span class="verdict {style}"><span aria-hidden="true">{symbol}</span> {row["verdict"]}</span>{reason}'


def _html_row(row: Row, prefix: str) -> str:
    origin = "" if row["origin"] == "paper" else f" ({ORIGINS[row['origin']]})"
    cells = (
        html_text(row["source"] + origin),
        f'<abbr title="{escape(KINDS[row["kind"]])}">{row["kind"]}</abbr>',
        html_text(paper(row)),
        html_text(measured(row)),
        escape(row["criterion"]),
        html_verdict(row),
    )
    data = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr id="{prefix}-{row["id"]}"><th scope="row">{html_text(row["says"])} <code>{row["id"]}</code></th>{data}</tr>'
