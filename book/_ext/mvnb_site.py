"""Changes to the behaviour of Sphinx and its theme.

- Images of notebooks keep the alternative text of their output metadata.
- The claims ledger in the output of a cell is data and is not rendered.
- Chapters have the number of their file, whichever chapters the site has.
- Assets that no page needs are removed, style sheets are joined, and the buttons of the table of contents have names.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path

from docutils import nodes
from myst_nb.core.render import NbElementRenderer
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles

CLAIMS = "application/vnd.mvnb.claims+json"

# -- outputs of notebooks ------------------------------------------------------------------------------------------

_render_image = NbElementRenderer.render_image
_render_mime_type = NbElementRenderer.render_mime_type


def render_image(self, data):
    """Render an image of a notebook with the alternative text of its output metadata (``{"image/png": {"alt": ...}}``)."""
    rendered = _render_image(self, data)
    stored = data.output_metadata.get(data.mime_type, {})
    alt = stored.get("alt") or data.output_metadata.get("alt")
    if alt:
        for image in rendered:
            image["alt"] = str(alt)
    return rendered


def render_mime_type(self, data):
    """Render an output of a notebook, unless it is the claims ledger."""
    return [] if data.mime_type == CLAIMS else _render_mime_type(self, data)


# -- numbers of chapters -------------------------------------------------------------------------------------------

_assign_section_numbers = TocTreeCollectorWithStyles.assign_section_numbers


def assign_section_numbers(self, env):
    """Assign section numbers that begin with the number of the file, so that 05_slug is chapter 5 on a site of any size."""
    changed = _assign_section_numbers(self, env)
    for docname, numbers in env.toc_secnumbers.items():
        match = re.match(r"notebooks/(\d+)_", docname)
        if not match:
            continue
        chapter = int(match[1])

        def renumber(old, chapter=chapter):
            return type(old)([chapter, *old[1:]]) if old else old

        env.toc_secnumbers[docname] = {anchor: renumber(number) for anchor, number in numbers.items()}
        for reference in env.tocs[docname].findall(nodes.reference):
            reference["secnumber"] = renumber(reference.get("secnumber"))
        title = env.titles[docname]
        title["secnumber"] = renumber(title.get("secnumber"))
    return changed


# -- assets and buttons --------------------------------------------------------------------------------------------


def drop_unused_mathjax(app, exc):
    """Delete the MathJax bundles that the pages do not load (13 MB)."""
    if exc is not None or app.builder.format != "html":
        return
    for bundle in Path(app.outdir, "_static", "mathjax").glob("*.js"):
        if bundle.name not in {"tex-chtml.js", "core.js", "loader.js", "startup.js"}:
            bundle.unlink()


def skip_mathjax(app, pagename, templatename, context, doctree):
    """Leave MathJax (1 MB) out of a page without formulas; Sphinx loads it there if a page below the page has one."""
    if not re.search('class="(?:amsmath )?math', context.get("body", "")):
        context["script_files"] = [one for one in context["script_files"] if "mathjax" not in str(one.filename)]


ICONS = re.compile(r'<script [^>]*fontawesome[^>]*></script>|<link rel="preload"[^>]*fa-(?:brands|regular)[^>]*>')
TOGGLE = re.compile(r"(>([^<]+)</a><details[^>]*><summary)>")
SHEET = re.compile(r'<link (?=[^>]*rel="stylesheet")[^>]*href="([^"{]*?)(_static/[^"?]+\.css)[^>]*>\s*')
GLYPH = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"[^"]*"\}')


def rewrite_pages(app, exc):
    """Remove the icon scripts, since the fonts draw the same icons, name the toggles of the contents, and join style sheets."""
    if exc is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    pages = {page: ICONS.sub("", page.read_text(encoding="utf-8")) for page in out.rglob("*.html")}
    scripts = (script.read_text(encoding="utf-8") for script in Path(out, "_static", "scripts").glob("*.js"))
    used = frozenset(re.findall(r"\bfa-[\w-]+", "".join([*pages.values(), *scripts])))
    for page, text in pages.items():
        text = TOGGLE.sub(r'\1 aria-label="Pages of: \2">', text)
        if len(sheets := SHEET.findall(text)) > 1:  # one sheet: a page that this build did not write
            joined = sheets[0][0] + join_styles(out, tuple(name for _, name in sheets), used)
            text = SHEET.sub("", SHEET.sub(f'<link rel="joined" href="{joined}" />\n', text, count=1))
            text = text.replace('rel="joined"', 'rel="stylesheet"', 1)
        page.write_text(text, encoding="utf-8")
    for script in Path(out, "_static", "vendor", "fontawesome").rglob("*.js*"):
        script.unlink()


@functools.cache
def join_styles(out: Path, sheets: tuple[str, ...], icons: frozenset[str]) -> str:
    """Write style sheets into one file, without the rules of icons that no page uses, and return its address."""

    def read(path: Path) -> str:
        text = re.sub(r"@charset [^;]+;", "", path.read_text(encoding="utf-8"))
        text = GLYPH.sub(lambda m: m[0] if icons & set(re.findall(r"fa-[\w-]+", m[1])) else "", text)
        here = os.path.relpath(path.parent, out / "_static").replace(os.sep, "/")
        text = text if here == "." else re.sub(r"url\((?=[\w.])(?!data:)", f"url({here}/", text)
        return re.sub(r'@import "([^"]+)";?', lambda m: read(path.parent / m[1]), text)

    text = "\n".join(read(out / name) for name in sheets)
    Path(out, "_static", "book.css").write_text(text, encoding="utf-8")
    return f"_static/book.css?v={hashlib.sha256(text.encode()).hexdigest()[:8]}"


def setup(app):
    NbElementRenderer.render_image = render_image
    NbElementRenderer.render_mime_type = render_mime_type
    TocTreeCollectorWithStyles.assign_section_numbers = assign_section_numbers
    app.connect("html-page-context", skip_mathjax, priority=900)
    app.connect("build-finished", drop_unused_mathjax, priority=900)
    app.connect("build-finished", rewrite_pages, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
