"""The two readings of a chapter: a lesson, and a record for those who check, which begins at the anchor ``NN-record``.

- with the citation stands how many minutes the chapter or its lesson takes, what it assumes, and where the record is;
- the record opens with a table of its sections;
- ``{headlines}`` is a table of the chapter's headline claims, from the notebook's own ledger;
- marks for the tests of notebooks do not show;
- headings that every chapter had before are found at their old addresses.

Chapters without the label have only the line with the citation and the marks of tests removed.
"""

from __future__ import annotations

import functools
import re
from html import escape
from typing import NamedTuple

import nbformat
from docutils import nodes
from mvnb_chapters import chapters, ledger
from sphinx.util.docutils import SphinxDirective

from mvnb import verdicts
from mvnb.runner.catalogue import Chapter

CHAPTER = re.compile(r"notebooks/(\d\d)_")
MARK = "# NBVAL_CHECK_OUTPUT"
WORDS_PER_MINUTE, LINES_PER_MINUTE, FORMULAS_PER_MINUTE = 200, 6, 1  # of text; of code that is shown; displayed
_FENCE = re.compile(r"^ *(`{3,}|~{3,}|:{3,})(.*)$")
_OPTION = re.compile(r' *:[\w-]+:|<a id="[\w-]+"></a>$')
_DISPLAYED = re.compile(r"\$\$.*?\$\$(?: *\(eq-[^)]*\))?", re.DOTALL)
_PROVED = re.compile(r"\{prf:(?!definition|example|remark)")
_NOT_READ = ("{solution}",)
_FORMERLY = {
    "experiments": "the-experiments",
    "held-up": "what-held-up",
    "not-run": "not-run-here",
    "further": "further-reading",
}
_HIDDEN = {"remove-cell", "remove-input"}
_FOLDED = {"hide-input", "hide-cell"}


class Length(NamedTuple):
    """Length of a lesson: words (a formula is one), words in statements and proofs, displayed formulas, code, figures."""

    words: int
    words_in_proofs: int
    formulas: int
    lines_shown: int
    lines_folded: int
    figures: int

    @property
    def minutes(self) -> int:
        """Return the estimated reading time."""
        lines = self.lines_shown / LINES_PER_MINUTE
        return round(self.words / WORDS_PER_MINUTE + lines + self.formulas / FORMULAS_PER_MINUTE)


def lesson(notebook: nbformat.NotebookNode, number: str) -> list[nbformat.NotebookNode] | None:
    """Return the cells in front of the record, or ``None`` if there is no record."""
    label, cells = f'<a id="{number}-record"></a>', []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and label in cell.source:
            return [*cells, nbformat.v4.new_markdown_cell(cell.source.partition(label)[0])]
        cells.append(cell)
    return None


def length(cells: list[nbformat.NotebookNode]) -> Length:
    """Return the length of some cells without their solutions, parameters and imports."""
    words = proofs = formulas = shown = folded = figures = 0
    for cell in cells:
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type == "markdown":
            all_, inside = _words(cell.source)
            words, proofs = words + all_, proofs + inside
            formulas += len(_DISPLAYED.findall(cell.source))
        elif "figures.show_code(" in cell.source:
            shown += sum(map(_code_lines, cell.get("outputs", [])))
        elif "figures.opening(" in cell.source:
            figures += 1
        elif not tags & {*_HIDDEN, "parameters", "install"} and not cell.source.startswith(("import ", "from ")):
            lines = sum(bool(line.strip()) and line != MARK for line in cell.source.splitlines())
            shown, folded = (shown, folded + lines) if tags & _FOLDED else (shown + lines, folded)
            figures += "figures.show(" in cell.source and "opening=" not in cell.source
    return Length(words, proofs, formulas, shown, folded, figures)


def _code_lines(output: nbformat.NotebookNode) -> int:
    """Return how many lines of source an output shows, docstrings included and blank lines left out."""
    return sum(bool(line.strip()) for line in output.get("data", {}).get("text/plain", "").splitlines())


def _words(source: str) -> tuple[int, int]:
    """Return the number of words of a text, and how many of them stand in statements and proofs."""
    source = _DISPLAYED.sub("formula", source)
    source = re.sub(r"\$[^$]+\$", "formula", source)
    counted, inside, open_ = 0, 0, []
    for line in source.splitlines():
        if fence := _FENCE.match(line):
            if open_ and fence[1] == open_[-1][0] and not fence[2].strip():
                open_.pop()
            else:
                open_.append((fence[1], fence[2].strip()))
            continue
        kinds = [kind for _, kind in open_]
        if any(kind.startswith(_NOT_READ) for kind in kinds) or _OPTION.match(line):
            continue
        found = len(line.split())
        counted += found
        inside += found if any(_PROVED.match(kind) for kind in kinds) else 0
    return counted, inside


@functools.cache
def reading_minutes(chapter: Chapter) -> int:
    """Return the minutes that a chapter's lesson takes, in fives; those of the whole chapter where it has no record yet."""
    notebook = nbformat.read(chapter.notebook, as_version=4)
    return max(5, 5 * round(length(lesson(notebook, chapter.number) or notebook.cells).minutes / 5))


# -- on the page ---------------------------------------------------------------------------------------------------


class Headlines(SphinxDirective):
    """The headline claims of the chapter in three columns; each leads to its row of the ledger."""

    def run(self):
        chapter = chapters(self.env.srcdir)[CHAPTER.match(self.env.docname)[1]]
        self.env.note_dependency(str(chapter.notebook))
        rows = [row for row in ledger(chapter) if row["headline"]]
        return [nodes.raw("", headlines_html(rows), format="html")]


def headlines_html(rows: list[dict]) -> str:
    """The table: what is claimed, what was measured beside the rule, and the verdict."""
    body = []
    for row in rows:
        body.append(
            f'<tr><th scope="row"><a href="#claim-{row["id"]}">{verdicts.html_text(row["says"])}</a></th>'
            f"<td>{verdicts.html_text(verdicts.measured(row) + ';')} <code>{escape(row['criterion'])}</code></td>"
            f"<td>{verdicts.html_verdict(row)}</td></tr>"
        )
    head = "".join(f'<th scope="col">{text}</th>' for text in ("Headline claim", "Measured; rule", "Verdict"))
    return f'<table class="mvnb-headlines"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def two_readings(app, doctree):
    """Put in what follows from the label of the record."""
    docname = app.env.docname
    if not (match := CHAPTER.match(docname)):
        return
    for block in doctree.findall(nodes.literal_block):
        if block.rawsource.startswith(MARK) or block.astext().startswith(MARK):
            text = block.astext().removeprefix(MARK).lstrip("\n")
            block.rawsource, block[:] = text, [nodes.Text(text)]
    record = next((one for one in doctree.findall(nodes.section) if f"{match[1]}-record" in one["names"]), None)
    chapter = next(doctree.findall(nodes.section))
    where = next((i for i, child in enumerate(chapter) if isinstance(child, nodes.block_quote)), 0)
    chapter.insert(where + 1, _reading_time(reading_minutes(chapters(app.srcdir)[match[1]]), record))
    if record is None:
        return
    for section in doctree.findall(nodes.section):
        section["ids"] += [
            old for key, old in _FORMERLY.items() if f"{match[1]}-{key}" in section["names"] and old not in section["ids"]
        ]
    record["classes"].append("record")
    sections = [child for child in record if isinstance(child, nodes.section)]
    place = next(i for i, child in enumerate(record) if isinstance(child, nodes.section))
    items = [nodes.list_item("", nodes.paragraph("", "", _link(one, *_title(one)))) for one in sections]
    record.insert(place, nodes.bullet_list("", *items, classes=["record-contents"]))


def _title(section: nodes.section) -> list[nodes.Node]:
    return [child.deepcopy() for child in next(section.findall(nodes.title)).children]


def _link(section: nodes.section, *children: nodes.Node) -> nodes.reference:
    return nodes.reference("", "", *children, internal=True, refid=section["ids"][0])


def _reading_time(minutes: int, record: nodes.section | None) -> nodes.paragraph:
    what = "chapter" if record is None else "lesson"
    said = f"The {what} takes about {minutes} minutes; it assumes gradient descent, probability, linear algebra and PyTorch."
    line = nodes.paragraph("", said, classes=["reading-time"])
    if record is not None:
        line += [nodes.Text(" Proofs, tests and all claims are in "), _link(record, nodes.Text("the record"))]
        line += nodes.Text(" behind it.")
    return line


def setup(app):
    app.add_directive("headlines", Headlines)
    app.connect("doctree-read", two_readings)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
