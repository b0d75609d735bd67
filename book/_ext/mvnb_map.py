"""The first page's map of ideas and reading paths, from ``book/map.yml``.

``{idea-map}`` draws chapters between the data they look at and the models and theorems they share, as one SVG of links, and
says the same as a list; ``{reading-paths}`` writes the paths. ``map.js`` lights up what belongs to a chapter or an idea, and
``paths.js`` leads a reader who follows a path from chapter to chapter.
"""

from __future__ import annotations

import functools
import json
import re
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from mvnb_chapters import chapters
from mvnb_lesson import reading_minutes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

log = logging.getLogger(__name__)
PLACE = "book/map.yml"
COLUMNS = {"data": "Data", "models": "Models", "theorems": "Theorems"}
WIDTH, ROW, TOP = 1180, 35, 36  # units of the drawing; a row holds one box
LEFT, MIDDLE, RIGHT = (0, 252), (316, 456), (836, 344)  # start and width of the three columns


class IdeaMap(nodes.General, nodes.Element):
    """Stands for the map until all labels are known."""


class ReadingPaths(nodes.General, nodes.Element):
    """Stands for the paths until it is known where the chapters are."""


def pages(srcdir) -> dict[int, tuple[str, str]]:
    """Number of a chapter to the name of its document and its title."""
    return {int(number): (f"notebooks/{one.name}", one.title) for number, one in chapters(srcdir).items()}


@functools.cache
def read_plan(srcdir) -> dict:
    return yaml.safe_load(Path(srcdir, PLACE).read_text(encoding="utf-8"))


def address(app, fromdoc: str, label: str) -> str:
    """Where a label of a section or of a theorem stands, as seen from a page."""
    env = app.env
    if label in env.proof_list:
        docname, anchor = env.proof_list[label]["docname"], label
    elif label in env.domains["std"].anonlabels:
        docname, anchor = env.domains["std"].anonlabels[label]
    else:
        log.warning("%s: no label %r in the book", PLACE, label)
        return "#"
    return f"{app.builder.get_relative_uri(fromdoc, docname)}#{anchor}"


def short(title: str) -> str:
    """Return a title without its condition and without what its second half explains."""
    main = re.sub("^(Given|In|With) [^,]+, ", "", re.split(": | in contrastive| in multi-view", title)[0])
    return main[0].upper() + main[1:]


def box(x: int, width: int, y: float, text: str, href: str, name: str, kind: str) -> str:
    return (
        f'<a href="{escape(href)}" class="{kind}" data-node="{name}"><rect x="{x + 1}" y="{y:.0f}" width="{width - 2}" '
        f'height="{ROW - 7}" rx="5"/><text x="{x + 10}" y="{y + 19:.0f}">{escape(text)}</text></a>'
    )


def edge(start: tuple[int, float], end: tuple[int, float], names: tuple[str, str]) -> str:
    (x, y), (u, v) = start, end
    bend = (x + u) / 2
    return f'<path d="M{x} {y:.0f}C{bend:.0f} {y:.0f} {bend:.0f} {v:.0f} {u} {v:.0f}" data-ends="{names[0]} {names[1]}"/>'


def draw(app, fromdoc: str, plan: dict) -> str:
    """The map: three columns of boxes that are links, and the lines between them."""
    known = pages(app.srcdir)
    height = TOP + ROW * max(len(known), len(plan["data"]), len(plan["models"]) + len(plan["theorems"]) + 1)
    middle = {n: TOP + (height - TOP) * (i + 0.5) / len(known) - ROW / 2 for i, n in enumerate(known)}
    boxes, lines = [], []
    for n, y in middle.items():
        docname, title = known[n]
        href = app.builder.get_relative_uri(fromdoc, docname)
        boxes.append(box(*MIDDLE, y, f"{n}. {short(title)}", href, f"chapter-{n}", "chapter"))
    theorems_from = TOP + ROW * (len(plan["models"]) + 1)
    starts = {"data": TOP, "models": TOP, "theorems": theorems_from}
    heads = [("Chapters", MIDDLE[0], TOP)]
    for column in COLUMNS:
        left = column == "data"
        heads.append((COLUMNS[column], LEFT[0] if left else RIGHT[0], starts[column]))
        space = (height - TOP) / len(plan[column]) if left else ROW
        for i, idea in enumerate(plan[column]):
            y, name = starts[column] + (space - ROW) / 2 + space * i, f"{column}-{i}"
            place = LEFT if left else RIGHT
            boxes.append(box(*place, y, idea["name"], address(app, fromdoc, idea["target"]), name, column))
            for n in idea["chapters"]:
                mid, at = middle[n] + (ROW - 7) / 2, y + (ROW - 7) / 2
                ends = ((sum(LEFT), at), (MIDDLE[0], mid)) if left else ((sum(MIDDLE), mid), (RIGHT[0], at))
                lines.append(edge(*ends, (name, f"chapter-{n}")))
    titles = "".join(f'<text class="head" x="{x + 1}" y="{y - 14:.0f}">{text}</text>' for text, x, y in heads)
    label = "Map of ideas: chapters between their data, models and theorems; every box is a link"
    start = f'<svg class="idea-map" viewBox="0 0 {WIDTH} {height:.0f}" role="group" aria-label="{label}">'
    return f"{start}{''.join(lines)}{titles}{''.join(boxes)}</svg>"


def as_list(app, fromdoc: str, plan: dict) -> str:
    """Return what the map says as lists, for phones and for paper."""
    known, rows = pages(app.srcdir), []
    for column, title in COLUMNS.items():
        items = []
        for idea in plan[column]:
            links = ", ".join(
                f'<a href="{app.builder.get_relative_uri(fromdoc, known[n][0])}" title="{escape(known[n][1])}">{n}</a>'
                for n in idea["chapters"]
            )
            where = "chapter" if len(idea["chapters"]) == 1 else "chapters"
            items.append(
                f'<li><a href="{address(app, fromdoc, idea["target"])}">{escape(idea["name"])}</a>: {where} {links}</li>'
            )
        rows.append(f"<p>{title}</p><ul>{''.join(items)}</ul>")
    return f'<div class="idea-list">{"".join(rows)}</div>'


def paths(app, fromdoc: str, plan: dict) -> str:
    """Return the reading paths, each an ordered list with minutes, whose links carry the path's name."""
    known, parts = pages(app.srcdir), []
    minutes = {int(number): reading_minutes(chapter) for number, chapter in chapters(app.srcdir).items()}
    for path in plan["paths"]:
        items = "".join(
            f'<li><a href="{app.builder.get_relative_uri(fromdoc, known[n][0])}?path={path["name"]}">{n}. '
            f"{escape(short(known[n][1]))}</a> ({minutes[n]}&nbsp;min)</li>"
            for n in path["chapters"]
        )
        hours = round(sum(minutes[n] for n in path["chapters"]) / 30) / 2
        said = f"{escape(path['says'])} About {hours:g} hours."
        parts.append(f"<section><h3>{escape(path['title'])}</h3><p>{said}</p><ol>{items}</ol></section>")
    return f'<div class="reading-paths">{"".join(parts)}</div>'


class Placeholder(SphinxDirective):
    """Leaves a node that is replaced when every label of the book is known."""

    node: type[nodes.Element]

    def run(self):
        self.env.note_dependency(PLACE)
        return [self.node()]


class IdeaMapDirective(Placeholder):
    node = IdeaMap


class ReadingPathsDirective(Placeholder):
    node = ReadingPaths


def fill(app, doctree, docname):
    for node in list(doctree.findall(lambda one: isinstance(one, (IdeaMap, ReadingPaths)))):
        writers = [draw, as_list] if isinstance(node, IdeaMap) else [paths]
        plan = read_plan(app.srcdir)
        node.replace_self(nodes.raw("", "".join(write(app, docname, plan) for write in writers), format="html"))


def add_scripts(app, pagename, templatename, context, doctree):
    if doctree is None:
        return
    if "idea-map" in context.get("body", ""):
        app.add_js_file("map.js", loading_method="defer")
    if pagename.startswith("notebooks/"):
        app.add_js_file(None, body=f"window.mvnbPaths = {paths_as_json(app.srcdir)};")
        app.add_js_file("paths.js", loading_method="defer")


@functools.cache
def paths_as_json(srcdir) -> str:
    """The paths, with the page and the title of each of their chapters."""
    found = {n: {"page": f"{Path(doc).name}.html", "title": f"{n}. {title}"} for n, (doc, title) in pages(srcdir).items()}
    plan = [
        {"name": path["name"], "title": path["title"], "chapters": [found[n] for n in path["chapters"]]}
        for path in read_plan(srcdir)["paths"]
    ]
    return json.dumps(plan, ensure_ascii=False)


def setup(app):
    for node in (IdeaMap, ReadingPaths):
        app.add_node(node)
    app.add_directive("idea-map", IdeaMapDirective)
    app.add_directive("reading-paths", ReadingPathsDirective)
    app.connect("doctree-resolved", fill)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
