"""Explorers: figures with knobs, inside chapters.

``{explorer} NAME`` shows ``_static/explorers/NAME.svg``; with scripts, ``explorers.js`` puts the live figure of
``explorers/NAME.js`` in its place. The picture says how many controls the live figure has and what its line of text is at
the start, so that the page does not move when it comes. ``tests/test_explorers.py`` draws the pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)
FOLDER = "explorers"
STATIC = Path(__file__).parents[1] / "_static"


class explorer(nodes.General, nodes.Element):
    """A figure; its children are the caption."""


class Explorer(SphinxDirective):
    """``{explorer} NAME`` with the option ``alt``, what the picture shows; the body is the caption."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict] = {"alt": directives.unchanged_required}

    def run(self):
        name = self.arguments[0]
        picture, script = (STATIC / FOLDER / f"{name}.{kind}" for kind in ("svg", "js"))
        missing = [path.name for path in (picture, script) if not path.is_file()]
        if missing or "alt" not in self.options:
            what = f"has no {' and no '.join(missing)}" if missing else "needs :alt:"
            logger.warning("explorer %s %s", name, what, location=self.get_location())
            return []
        self.env.note_dependency(str(picture))
        root = ElementTree.parse(picture).getroot()
        readout = root.findtext("{http://www.w3.org/2000/svg}desc")
        node = explorer(name=name, alt=self.options["alt"], readout=readout, controls=int(root.get("data-controls")))
        self.set_source_info(node)
        self.state.nested_parse(self.content, self.content_offset, node)
        return [node]


def visit(self, node):
    name, url = node["name"], "../" * self.builder.current_docname.count("/") + f"_static/{FOLDER}/{node['name']}.svg"
    text = self.encode(node["readout"])
    self.body.append(
        "".join(f'<span id="{label}"></span>' for label in node["ids"])
        + f'<figure class="explorer" id="explorer-{name}" data-explorer="{name}">\n<div class="explorer-controls">'
        + '<span class="explorer-slot"></span>' * node["controls"]
        + '</div>\n<div class="explorer-stage">'
        + f'<picture><source media="(max-width: 600px)" srcset="{url}#narrow"><img class="dark-light" src="{url}" '
        + f'width="720" height="280" loading="lazy" alt="{self.attval(node["alt"])}"></picture></div>\n'
        + f'<div class="explorer-foot"><p class="explorer-readout">{text}</p><span class="explorer-reset"></span></div>\n'
        + "<figcaption>\n"
    )


def depart(self, node):
    self.body.append("</figcaption>\n</figure>\n")


def add_scripts(app, pagename, templatename, context, doctree):
    names = [node["name"] for node in doctree.findall(explorer)] if doctree is not None else []
    for script in ["explorers.js", *(f"{FOLDER}/{name}.js" for name in names)] if names else []:
        app.add_js_file(script, loading_method="defer")


def setup(app):
    app.add_node(explorer, html=(visit, depart))
    app.add_directive("explorer", Explorer)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
