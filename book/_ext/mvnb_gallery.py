"""The gallery of chapters on the first page, and what a chapter costs.

``{gallery} Views`` shows a card for each chapter of a part of ``_toc.yml``: one panel of its opening figure, title, paper,
claims and seconds, all read from the committed notebooks. ``{opening-figure} 01`` shows the whole figure above a text.
``{chapter-seconds}`` is a table of the seconds; every chapter says its own with its citation, below its first picture, and the
verdicts on its headline claims above. ``{card-seconds}`` is a table of the seconds on a graphics card, where ``make gpu`` has
left its report. ``mvnb book`` writes the seconds to ``results/seconds.json``, since notebooks, the same bytes after every run,
hold no times.
"""

from __future__ import annotations

import base64
import functools
import io
import re
from datetime import date
from html import escape
from pathlib import Path
from typing import NamedTuple

import nbformat
import numpy as np
from docutils import nodes
from docutils.statemachine import StringList
from mvnb_chapters import chapters, ledger
from mvnb_explorer import explorer
from mvnb_map import read_plan
from mvnb_plain import keys
from mvnb_scoreboard import inline, marked, table
from PIL import Image
from sphinx.util.docutils import SphinxDirective

from mvnb import files, verdicts
from mvnb.runner.catalogue import Chapter, parts
from mvnb.runner.derived import SECONDS, read_seconds

CARD = "results/gpu.json"
WIDTH = 480  # of a small picture; a card is up to 360 wide
PLACE = "_static/gallery"


class Small(NamedTuple):
    data: bytes
    height: int
    alt: str


@functools.cache
def measured(srcdir) -> dict:
    return read_seconds(Path(srcdir))


def citation(chapter: Chapter) -> str:
    """Return the block quote below a chapter's title, which cites the paper; empty if there is none."""
    opening = next((cell.source for cell in chapter.cells.cells if cell.cell_type == "markdown"), "")
    quote = re.search(r"^> .*(?:\n> .*)*", opening, re.MULTILINE)
    return " ".join(line.removeprefix("> ") for line in quote[0].splitlines()) if quote else ""


def papers(chapter: Chapter) -> list[str]:
    """Return the keys of what the citation below a chapter's title cites, the chapter's paper first."""
    return keys(citation(chapter))


def gaps(ink: np.ndarray) -> np.ndarray:
    """Return start and end of every run of blank lines, given which lines have ink, in an array of shape ``(n, 2)``."""
    return np.flatnonzero(np.diff(~ink, prepend=False, append=False)).reshape(-1, 2)


def panel(image: Image.Image, side: str) -> Image.Image:
    """Return the left or right part of a figure of several panels, without the title above them; any other figure whole."""
    ink = np.asarray(image.convert("L")) < 250
    blank = gaps(ink.any(1))
    title = blank[1, 1] if len(blank) > 1 and blank[1, 0] < 0.1 * image.height else 0
    between = [run for run in gaps(ink[title:].any(0)) if np.ptp(run) >= 10 and 0.3 < run.mean() / image.width < 0.7]
    if not between:
        return image
    (left, right), top = between[0], title - 8
    return image.crop((0, top, left + 8, image.height) if side == "left" else (right - 8, top, image.width, image.height))


@functools.cache
def small(chapter: Chapter, side: str = "", width: int = WIDTH) -> Small:
    """Return one side of a chapter's first picture, or the whole picture, with the given width."""
    notebook = nbformat.read(chapter.notebook, as_version=4)
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    output = next(output for output in outputs if "image/png" in output.get("data", {}))
    whole = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGB")
    image = panel(whole, side) if side else whole
    height = round(image.height * width / image.width)
    file = io.BytesIO()
    image.resize((width, height), Image.Resampling.LANCZOS).save(file, "WEBP", quality=60, method=6)
    *others, said = re.split(rf"\b(?:{side or 'whole'})[:,] ", output.metadata["image/png"]["alt"], flags=re.IGNORECASE)
    alt = re.match(r".*?[.;](?= |$)|.*", said)[0]
    alt = alt[0].upper() + alt[1:] if others or image is whole else f"One panel of a figure. {alt}"
    return Small(file.getvalue(), height, alt)


def side(srcdir, chapter: Chapter) -> str:
    return "right" if int(chapter.number) in read_plan(srcdir)["right_panels"] else "left"


def held(chapter: Chapter) -> str:
    return verdicts.tally(ledger(chapter))


def seconds(srcdir, chapter: Chapter) -> str:
    taken = measured(srcdir)["seconds"].get(chapter.number)
    return f"runs in about {taken} s" if taken else "runs in a time that is not known yet"


class Gallery(SphinxDirective):
    """Cards of the chapters of a part."""

    required_arguments, final_argument_whitespace = 1, True

    def run(self):
        srcdir = self.env.srcdir
        self.env.note_dependency(str(Path(srcdir, SECONDS)))
        members = parts(Path(srcdir), chapters(srcdir).values())[self.arguments[0]]
        return [nodes.bullet_list("", *(self.card(chapter.number) for chapter in members), classes=["gallery"])]

    def card(self, number: str) -> nodes.list_item:
        chapter = chapters(self.env.srcdir)[number]
        self.env.note_dependency(str(chapter.notebook))
        picture, root = small(chapter, side(self.env.srcdir, chapter)), "../" * self.env.docname.count("/")
        image = (
            f'<img src="{root}{PLACE}/{number}.webp" width="{WIDTH}" height="{picture.height}" loading="lazy" decoding="async" '
            f'alt="{escape(picture.alt)}">'
        )
        cited = "; ".join(f"{{cite:t}}`{key}`" for key in papers(chapter)) or citation(chapter)
        cost = f"{held(chapter)}; {seconds(self.env.srcdir, chapter)}"
        title = f"[{int(number)}. {chapter.title}]({root}notebooks/{chapter.name}.ipynb)"
        item = nodes.list_item("", nodes.raw("", image, format="html"))
        self.state.nested_parse(StringList([title, "", cited, "", cost]), self.content_offset, item)
        for paragraph, kind in zip(item.findall(nodes.paragraph), ("title", "paper", "cost")):
            paragraph["classes"].append(f"gallery-{kind}")
        return item


class OpeningFigure(SphinxDirective):
    """The opening figure of a chapter, above the text of the directive."""

    required_arguments, has_content = 1, True

    def run(self):
        chapter = chapters(self.env.srcdir)[self.arguments[0]]
        self.env.note_dependency(str(chapter.notebook))
        width = 640
        picture = small(chapter, width=width * 3 // 2)
        size = f'width="{width}" height="{picture.height * 2 // 3}" style="--width: {width}px"'
        data = base64.b64encode(picture.data).decode()
        image = f'<img src="data:image/webp;base64,{data}" {size} alt="{escape(picture.alt)}">'
        page = self.env.app.builder.get_relative_uri(self.env.docname, f"notebooks/{chapter.name}")
        image = f'<div class="cell_output"><a class="image-reference" href="{page}">{image}</a></div>'
        found = nodes.container("", nodes.raw("", image, format="html"), classes=["opening-figure"])
        self.state.nested_parse(self.content, self.content_offset, found)
        return [found]


class Seconds(SphinxDirective):
    """The seconds of every chapter."""

    def run(self):
        self.env.note_dependency(str(Path(self.env.srcdir, SECONDS)))
        taken = measured(self.env.srcdir)["seconds"]
        rows = []
        for number, chapter in chapters(self.env.srcdir).items():
            page = self.env.app.builder.get_relative_uri(self.env.docname, f"notebooks/{chapter.name}")
            link = nodes.reference("", f"{number} · {chapter.title}", refuri=page, internal=True)
            rows.append([[link], [nodes.Text(str(taken.get(number, "–")))]])
        rows.append([[nodes.strong("", "all")], [nodes.strong("", str(sum(taken.values())))]])
        return [table(["Chapter", "Seconds"], rows, ["seconds"])]


class CardSeconds(SphinxDirective):
    """What ``make gpu`` found: seconds of every chapter on the card and on the processor beside it, and what differs."""

    def run(self):
        path = Path(self.env.srcdir, CARD)
        if not path.is_file():
            before, command = "The chapters have not been run on a graphics card yet; ", nodes.literal("", "make gpu")
            return [nodes.paragraph("", "", nodes.Text(before), command, nodes.Text(" does it."))]
        self.env.note_dependency(str(path))
        return card_seconds(files.read_record(path), chapters(self.env.srcdir).values())


def card_seconds(report: dict, book) -> list[nodes.Node]:
    """The report of a card as a sentence and a table."""
    turned = "; ".join(report["wrong"]) or "no verdict was the opposite of the committed notebooks'"
    day, torch = date.fromisoformat(report["date"]), report["versions"]["torch"]
    said = f"On one {report['card']} with PyTorch {torch}, {report['at_once']} runs at a time: {turned}."
    said += f" The runs are of {day.day} {day:%B %Y}, and chapters may have changed since then."
    rows = []
    for chapter in book:
        taken = report["seconds"].get(chapter.name, {})
        cells = [str(round(taken[kind])) if kind in taken else "–" for kind in ("card", "cpu")]
        rows.append([[nodes.Text(f"{chapter.number} · {chapter.title}")], *([nodes.Text(cell)] for cell in cells)])
    if any(not {"card", "cpu"} <= report["seconds"].get(chapter.name, {}).keys() for chapter in book):
        said += " A dash is a run that has not been made there."
    return [nodes.paragraph("", said), table(["Chapter", "Seconds on the card", "On its processor"], rows, ["seconds"])]


def say_cost(app, doctree):
    """Put the verdicts on headline claims above a chapter's first picture; below, citation, seconds and reading time."""
    match = re.match(r"notebooks/(\d\d)_", app.env.docname)
    quote = next(doctree.findall(nodes.block_quote), None)
    if match and quote is not None:
        app.env.note_dependency(str(Path(app.srcdir, SECONDS)))
        chapter, top = chapters(app.srcdir)[match[1]], quote.parent
        about = [quote, *(one for one in top if "reading-time" in one["classes"])]
        for one in about:
            top.remove(one)
        end = next((i for i, one in enumerate(top) if isinstance(one, nodes.section)), len(top))
        pictures = (i for i in range(end) for one in top[i].findall() if isinstance(one, explorer | nodes.image))
        picture = next(pictures, end)
        below = next((i for i in range(picture + 1, end) if not isinstance(top[i], nodes.paragraph)), end)
        text = f"The chapter {seconds(app.srcdir, chapter)} on two processor cores."
        about.insert(1, nodes.paragraph("", text, classes=["chapter-cost"]))
        top[below:below] = about
        if headlines := [row for row in ledger(chapter) if row["headline"]]:
            top.insert(picture, verdict_line(headlines))


def verdict_line(rows: list[dict]) -> nodes.paragraph:
    """Return the verdicts on headline claims as a sentence, in which each claim that does not hold is a link to its row."""
    held, ours = verdicts.counts(rows)["holds"], len(rows) - len(verdicts.headlines(rows))
    said = f"{held} of {len(rows)} headline claims hold here"
    if held == len(rows):
        said = f"All {held} headline claims hold here" if held > 1 else "The headline claim holds here"
    said += f" ({ours} of the {len(rows)} {'is' if ours == 1 else 'are'} ours, not the paper's)." if ours else "."
    line = nodes.paragraph(classes=["claim-verdict"])
    line += [marked("holds"), nodes.Text(f" {said}")] if held else nodes.Text(said)
    words = {"fails": "Fails", "undecided": "Undecided (the interval allows both answers)", "not run": "Not run"}
    for verdict, word in words.items():
        before = [nodes.Text(" "), marked(verdict, word), nodes.Text(": ")]
        for row in (row for row in rows if row["verdict"] == verdict):
            line += [*before, nodes.reference("", "", *inline(row["says"]), refuri=f"#claim-{row['id']}", internal=True)]
            before = [nodes.Text("; ")]
        line += [nodes.Text(".")] if len(before) == 1 else []
    return line


def write_pictures(app, exc):
    if exc is None and app.builder.format == "html":
        folder = Path(app.outdir, PLACE)
        folder.mkdir(parents=True, exist_ok=True)
        for number, chapter in chapters(app.srcdir).items():
            (folder / f"{number}.webp").write_bytes(small(chapter, side(app.srcdir, chapter)).data)


def setup(app):
    app.add_directive("gallery", Gallery)
    app.add_directive("opening-figure", OpeningFigure)
    app.add_directive("chapter-seconds", Seconds)
    app.add_directive("card-seconds", CardSeconds)
    app.connect("doctree-read", say_cost, priority=600)  # after mvnb_lesson
    app.connect("build-finished", write_pictures)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
