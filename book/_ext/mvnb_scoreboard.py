"""The scoreboard: every claim of every chapter, read from the committed notebooks when the site is built.

``{scoreboard}`` writes one table, each row linked to the row ``claim-<id>`` of the chapter's own ledger;
``{scoreboard-totals}`` writes how many claims of each kind and of each chapter hold, ``{scoreboard-headline}`` how many
headline claims and how many in all, ``{scoreboard-papers}`` draws the verdicts of what the papers would put into their
abstracts and ``{scoreboard-verdict}`` lists those with one verdict; ``{scoreboard-sources}`` counts the papers' claims by
where they stand in the papers. The role ``{claim}`` links to a claim with a measured value. The same rows lie in the site as
``_static/claims.json``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from docutils import nodes
from mvnb_chapters import chapters, ledger
from sphinx.util.docutils import ReferenceRole, SphinxDirective

from mvnb import files, verdicts
from mvnb.runner.catalogue import Chapter

PLACE = "_static/claims.json"
SOURCES = {
    "numbered statement": re.compile("Theorem|Lemma|Proposition|Corollary|Claim|Fact|Remark|Definition|Assumption|Proof"),
    "table or figure": re.compile("Table|Figure"),
    "text": re.compile(""),
}
"""Where claims stand in the papers, by the names in their sources; the first that matches counts."""


def rows(app) -> dict[Chapter, list[dict]]:
    """The claims of each chapter that is in the site."""
    there = [one for one in chapters(app.srcdir).values() if f"notebooks/{one.name}" in app.env.found_docs]
    return {chapter: ledger(chapter) for chapter in there}


def table(header: list[str], rows: list[list[list[nodes.Node]]], classes: list[str]) -> nodes.Node:
    """A docutils table from cells that are lists of inline nodes."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in header), cols=len(header))

    def row(cells):
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))

    group += nodes.thead("", row([[nodes.Text(title)] for title in header]))
    group += nodes.tbody("", *(row(cells) for cells in rows))
    return nodes.table("", group, classes=["scoreboard", *classes])


def inline(text: str) -> list[nodes.Node]:
    """Return a text of a claim as nodes, with its formulas, which are between dollar signs, as mathematics."""
    parts = text.split("$")
    return [nodes.math(part, part) if i % 2 else nodes.Text(part) for i, part in enumerate(parts) if part]


def marked(verdict: str, word: str = "") -> nodes.inline:
    """Return the symbol of a verdict, in its colour, and a word."""
    symbol, style = verdicts.MARKS[verdict]
    return nodes.inline("", f"{symbol} {word}".rstrip(), classes=[style])


class ScoreboardDirective(SphinxDirective):
    """Common to both directives: the committed notebooks and their rows."""

    def rows(self) -> dict[Chapter, list[dict]]:
        found = rows(self.env.app)
        for chapter in found:
            self.env.note_dependency(str(chapter.notebook))
        return found

    def link(self, text: str, target: str) -> nodes.reference:
        return nodes.reference("", "", *inline(text), refuri=target, internal=True)

    def page(self, chapter: Chapter) -> str:
        return self.env.app.builder.get_relative_uri(self.env.docname, f"notebooks/{chapter.name}")


class Totals(ScoreboardDirective):
    """How many claims have each verdict, by kind and by chapter."""

    def run(self):
        found = self.rows()
        rows = [row for some in found.values() for row in some]
        kinds = []
        for kind, meaning in verdicts.KINDS.items():
            kinds.append(([nodes.Text(f"{kind} ({meaning})")], [row for row in rows if row["kind"] == kind]))
        titles = []
        for chapter, some in found.items():
            title = f"{chapter.number} · {chapter.title}"
            titles.append(([self.link(title, self.page(chapter))], some))
        sentences = [*over_seeds(found), *over_arithmetics(self.env.app.srcdir, len(rows))]
        return [counted("Kind", kinds, rows), counted("Chapter", titles, rows), *sentences]


def counted(by: str, groups: list[tuple[list[nodes.Node], list[dict]]], rows: list[dict]) -> nodes.Node:
    """A table of how many claims were judged, and how many have each verdict."""

    def numbers(some: list[dict]) -> list[str]:
        found = verdicts.counts(some)
        return [str(n) for n in (found.total() - found["not run"], *(found[one] for one in verdicts.JUDGED))]

    body = [[name, *([nodes.Text(n)] for n in numbers(some))] for name, some in groups]
    body.append([[nodes.strong("", text)] for text in ("all", *numbers(rows))])
    return table([by, "Claims", "Hold", "Fail", "Undecided"], body, ["totals"])


def over_seeds(found: dict[Chapter, list[dict]]) -> list[nodes.Node]:
    """A sentence on how many verdicts of the chapters with a kept sweep were the same for all its seeds."""
    swept = [row for some in found.values() for row in some if row.get("seeds", {}).get("values", 0) > 1]
    if not swept:
        return []
    same = sum(not (row["seeds"]["holds"] and row["seeds"]["fails"]) for row in swept)
    runs = max(sum(row["seeds"][one] for one in verdicts.JUDGED) for row in swept)
    n_chapters = len({row["chapter"] for row in swept})
    where = f"Over {runs} unused seeds for each of {n_chapters} chapters"
    return [nodes.paragraph("", f"{where}, {same} of {len(swept)} claims that a seed enters never had opposite verdicts.")]


def over_arithmetics(srcdir: str, n_claims: int) -> list[nodes.Node]:
    """A sentence on the verdicts under the arithmetic of other machines, as they were last run."""
    path = Path(srcdir, "results", "arithmetic.json")
    if not path.is_file():
        return []
    found = files.read_record(path)["chapters"].values()
    turned = {text.split(":")[0] for one in found for profile in one["profiles"].values() for text in profile["turned"]}
    said = (
        f"Run again with other processor instructions, with two threads and with every matrix product moved at random in its "
        f"last place, {len(turned) or 'none'} of {n_claims} verdicts changed."
    )
    return [nodes.paragraph("", said)]


class Scoreboard(ScoreboardDirective):
    """One table of all claims, which ``scoreboard.js`` lets a reader filter and sort."""

    def run(self):
        header = ["Ch.", "Claim", "Source", "Kind", "Paper", "Measured here", "Rule", "Verdict"]
        found = [(chapter, row) for chapter, rows in self.rows().items() for row in rows]
        board, seen = table(header, [self.cells(*one) for one in found], ["claims"]), set()
        for line, (chapter, row) in zip(list(board.findall(nodes.row))[1:], found):  # the head is a row, too
            line["classes"] += [f"origin-{row['origin']}", "kept" if row.get("kept") else "live"]
            line["classes"] += ["headline"] if verdicts.is_headline(row) else []
            if chapter not in seen:
                line["ids"].append(f"chapter-{chapter.number}")
                seen.add(chapter)
        return [board]

    def cells(self, chapter: Chapter, row: dict) -> list[list[nodes.Node]]:
        number = self.link(chapter.number, self.page(chapter))
        claim = self.link(row["says"], f"{self.page(chapter)}#claim-{row['id']}")
        note = [marked(row["verdict"], row["verdict"])]
        if seeds := row.get("seeds"):
            runs = sum(seeds[one] for one in verdicts.JUDGED)
            said = f"{seeds['holds']} of {runs} seeds" if seeds["values"] > 1 else "no seed enters"
            note.append(nodes.inline("", f" ({said})", classes=["seeds"]))
        if said := verdicts.note(row):
            note += inline(f": {said}")
        plain = [row["source"], row["kind"], verdicts.paper(row), verdicts.measured(row), row["criterion"]]
        return [[number], [claim], *(inline(str(cell or "–")) for cell in plain), note]


class Headline(ScoreboardDirective):
    """Two sentences: how many of the papers' headline claims hold, and how many of all claims."""

    def run(self):
        every = [row for some in self.rows().values() for row in some]
        failing = [row["kind"] for row in every if row["verdict"] == "fails"]
        said = f" Of all claims in the book: {verdicts.tally(every)}. Of those that fail, {failing.count('exact')} fail in the "
        said += "paper's own set-up; the others in a smaller or another one, where our runs may be to blame."
        return [nodes.paragraph("", "", count(verdicts.headlines(every)), nodes.Text(said), classes=["scoreboard-headline"])]


def count(headlines: list[dict]) -> nodes.strong:
    """Return the sentence that counts the papers' headline claims."""
    return nodes.strong("", f"Of the papers' headline claims: {verdicts.tally(headlines)}.")


class Papers(ScoreboardDirective):
    """How many of the papers' headline claims have each verdict, and a mark for each of them by chapter and kind."""

    def run(self):
        found = {chapter: verdicts.headlines(some) for chapter, some in self.rows().items()}
        header = ["Chapter", *verdicts.KINDS]
        body = [
            [[self.chapter(chapter)], *(self.marks(chapter, some, kind) for kind in verdicts.KINDS)]
            for chapter, some in found.items()
        ]
        legend = ", ".join(f"{symbol} {verdict}" for verdict, (symbol, _) in verdicts.MARKS.items())
        sentence = count([row for some in found.values() for row in some])
        sentence = nodes.paragraph("", "", sentence, nodes.Text(f" Each sign is a claim and leads to it: {legend}."))
        return [sentence, table(header, body, ["papers"])]

    def chapter(self, chapter: Chapter) -> nodes.reference:
        link = self.link(chapter.number, self.page(chapter))
        link += nodes.inline("", f" · {chapter.title}", classes=["title"])
        return link

    def marks(self, chapter: Chapter, rows: list[dict], kind: str) -> list[nodes.Node]:
        shown = []
        for row in (row for row in rows if row["kind"] == kind):
            symbol, style = verdicts.MARKS[row["verdict"]]
            one = self.link(symbol, f"{self.page(chapter)}#claim-{row['id']}")
            one["reftitle"] = verdicts.plain(f"{row['verdict']}: {row['says']}")
            shown += [nodes.inline("", "", one, classes=["headline-mark", style]), nodes.Text(" ")]
        return shown or [nodes.Text("")]


class Verdict(ScoreboardDirective):
    """The papers' headline claims with one verdict, with the reason where it is known, and how many other claims have it."""

    required_arguments = 1

    def run(self):
        found = [(chapter, row) for chapter, some in self.rows().items() for row in some if row["verdict"] == self.arguments[0]]
        shown = [(chapter, row) for chapter, row in found if verdicts.is_headline(row)]
        items, others = nodes.bullet_list("", *(self.item(*one) for one in shown)), len(found) - len(shown)
        where = f"?headline=no&verdict={self.arguments[0]}#all-claims"
        rest = nodes.paragraph("", "Of the other claims, ", self.link(f"{others} have this verdict", where), nodes.Text("."))
        return [*([items] if items.children else []), rest]

    def item(self, chapter: Chapter, row: dict) -> nodes.list_item:
        claim = self.link(row["says"], f"{self.page(chapter)}#claim-{row['id']}")
        said = f" ({chapter.number}, {row['source']}): {verdicts.measured(row)}; rule {row['criterion']}. "
        note = verdicts.note(row)
        said += f"{note[0].upper()}{note[1:]}." if note else ""
        return nodes.list_item("", nodes.paragraph("", "", claim, *inline(said)))


def source(row: dict) -> str:
    """Return where the paper makes the claim, a key of ``SOURCES``."""
    return next(name for name, pattern in SOURCES.items() if pattern.search(row["source"]))


class Sources(ScoreboardDirective):
    """How many claims of the papers have each verdict, by where the papers make them."""

    def run(self):
        rows = [row for some in self.rows().values() for row in some if row["origin"] != "ours"]
        groups = [([nodes.Text(name)], [row for row in rows if source(row) == name]) for name in SOURCES]
        return [counted("Made in", groups, rows)]


class Claim(ReferenceRole):
    """A link to a claim, followed by its verdict.

    The target is a chapter's number, the id of a claim and, if one is enough, the name of a measured value. The text of the
    link is what was measured, unless another text is given.
    """

    def run(self):
        number, id, *names = self.target.split()
        chapter = chapters(self.env.srcdir).get(number)
        row = next((row for row in ledger(chapter) if row["id"] == id), None) if chapter else None
        if row is None or not set(names) <= set(row["measured"]):
            return [], [self.inliner.reporter.error(f"expected a claim and a value of it, got {self.target}", line=self.lineno)]
        self.env.note_dependency(str(chapter.notebook))
        value = verdicts.value(row | {"measured": {name: row["measured"][name] for name in names or row["measured"]}})
        page = self.env.app.builder.get_relative_uri(self.env.docname, f"notebooks/{chapter.name}")
        title = self.title if self.has_explicit_title else value
        link = nodes.reference("", title, refuri=f"{page}#claim-{id}", reftitle=row["says"], internal=True)
        sign = marked(row["verdict"])
        return [nodes.inline("", "", link, nodes.Text("\N{NO-BREAK SPACE}"), sign, classes=["claim-value"])], []


class ClaimsFile(ScoreboardDirective):
    """A link to the file with all rows."""

    def run(self):
        root = "../" * self.env.docname.count("/")
        return [nodes.paragraph("", "", self.link("All claims as JSON", root + PLACE))]


def write_claims(app, exc):
    if exc is None and app.builder.format == "html":
        every = [row for some in rows(app).values() for row in some]
        target = Path(app.outdir, PLACE)
        target.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def add_controls(app, pagename, templatename, context, doctree):
    if doctree is not None and any("claims" in found["classes"] for found in doctree.findall(nodes.table)):
        app.add_js_file("scoreboard.js", loading_method="defer")


def setup(app):
    app.add_directive("scoreboard", Scoreboard)
    app.add_directive("scoreboard-totals", Totals)
    app.add_directive("scoreboard-file", ClaimsFile)
    app.add_directive("scoreboard-headline", Headline)
    app.add_directive("scoreboard-papers", Papers)
    app.add_directive("scoreboard-verdict", Verdict)
    app.add_directive("scoreboard-sources", Sources)
    app.add_role("claim", Claim())
    app.connect("html-page-context", add_controls)
    app.connect("build-finished", write_claims)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
