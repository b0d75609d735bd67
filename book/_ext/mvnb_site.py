"""What this site asks of Sphinx beyond its extensions.

- the alternative text, and the width, that a notebook stores with a picture reach the page;
- the ledger of claims in a cell's output is data, not something to draw;
- a chapter carries the number of its file, whichever chapters stand beside it;
- the page of the helper package lists its rooms from the docstrings;
- pages ask for nothing that the site does not serve.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

from docutils import nodes
from myst_nb.core.render import NbElementRenderer
from sphinx.ext.napoleon.docstring import NumpyDocstring
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles

CLAIMS = "application/vnd.mvnb.claims+json"
ROOMS = "data sampling threads models losses training probes stats claims rules verdicts figures papers".split()
ROOMS += [f"runner.{name}" for name in ("catalogue", "execution", "sweeps", "errors")]

# -- outputs of notebooks ------------------------------------------------------------------------------------------

_render_image = NbElementRenderer.render_image
_render_mime_type = NbElementRenderer.render_mime_type


def render_image(self, data):
    """An image of a notebook, with the alternative text of its output metadata (``{"image/png": {"alt": ...}}``)."""
    rendered = _render_image(self, data)
    stored = data.output_metadata.get(data.mime_type, {})
    alt = stored.get("alt") or data.output_metadata.get("alt")
    if alt:
        for image in rendered:
            image["alt"] = str(alt)
    return rendered


def render_mime_type(self, data):
    return [] if data.mime_type == CLAIMS else _render_mime_type(self, data)


# -- numbers of chapters -------------------------------------------------------------------------------------------

_assign_section_numbers = TocTreeCollectorWithStyles.assign_section_numbers


def assign_section_numbers(self, env):
    """Sphinx's section numbers, led by the number of the file: 05_slug is chapter 5 even beside 01 alone."""
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


# -- the helper package --------------------------------------------------------------------------------------------


def rooms_as_myst() -> str:
    """A section for every room of ``mvnb`` that exists; what a room re-exports is documented where it is written."""
    parts = []
    for room in ROOMS:
        name = f"mvnb.{room}"
        if importlib.util.find_spec(name) is None:
            continue
        parts.append(f"(api-{room})=\n## `{name}`")
        module = importlib.import_module(name)
        inner = [info.name for info in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}.")]
        inner = [submodule for submodule in inner if not submodule.rpartition(".")[2].startswith(("_", "plan"))]
        parts.append(automodule(name, members=not inner))
        if names := ", ".join(f"{{py:obj}}`~{name}.{item}`" for item in getattr(module, "__all__", ()) if inner):
            parts.append(f"To be imported from `{name}`: {names}.")
        parts += [f"### `{submodule}`\n\n{automodule(submodule)}" for submodule in inner]
    return "\n\n".join(parts)


def automodule(name: str, members: bool = True) -> str:
    options = "\n   :members:" if members else ""
    return f"```{{eval-rst}}\n.. automodule:: {name}{options}\n```"


def where_written(app, env, node, contnode):
    """Let ``mvnb.data.MultiView`` find ``mvnb.data.multi_view.MultiView``, and a bare name its module's import of it.

    A name of the package that has no entry of its own, such as a constant, is set as code; a name it lacks is an error.
    """
    if node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    for name in (node["reftarget"], f"{node.get('py:module')}.{node['reftarget']}"):
        module, _, attribute = name.rpartition(".")
        if not module.startswith("mvnb"):
            continue
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
        written = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
        same = [known for known in domain.objects if known.endswith(f".{attribute}") and known.startswith(module)]
        for target in (written, *same):
            if target in domain.objects:
                return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contnode)
        return contnode
    return None


def fill_api_page(app, docname, source):
    if docname == "book/api":
        source[0] = source[0].replace("<!-- rooms -->", rooms_as_myst())


def skip_tuple_fields(app, what, name, obj, skip, options):
    """Fields of a NamedTuple say 'Alias for field number 0' unless documented; the class docstring names them."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def description_of_data(self):
    """The docstring of a module's data is prose; napoleon would read the words before its first colon as a type."""
    return "", self._dedent(self._consume_to_end())


# -- nothing from elsewhere ----------------------------------------------------------------------------------------


def drop_unused_mathjax(app, exc):
    """Of MathJax's bundles the pages load one; the others hold the same pieces again (13 MB)."""
    if exc is not None or app.builder.format != "html":
        return
    for bundle in Path(app.outdir, "_static", "mathjax").glob("*.js"):
        if bundle.name not in {"tex-chtml.js", "core.js", "loader.js", "startup.js"}:
            bundle.unlink()


ICONS = re.compile(r'<script [^>]*fontawesome[^>]*></script>|<link rel="preload"[^>]*fa-(?:brands|regular)[^>]*>')


def draw_icons_from_fonts(app, exc):
    """The theme sends its icons twice, as fonts and as a program of half a megabyte that draws them; the fonts do."""
    if exc is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            if (light := ICONS.sub("", text)) != text:
                page.write_text(light, encoding="utf-8")
        for script in Path(app.outdir, "_static", "vendor", "fontawesome").rglob("*.js*"):
            script.unlink()


def setup(app):
    NbElementRenderer.render_image = render_image
    NbElementRenderer.render_mime_type = render_mime_type
    TocTreeCollectorWithStyles.assign_section_numbers = assign_section_numbers
    NumpyDocstring._consume_inline_attribute = description_of_data
    app.connect("missing-reference", where_written)
    app.connect("source-read", fill_api_page)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    app.connect("build-finished", drop_unused_mathjax, priority=900)
    app.connect("build-finished", draw_icons_from_fonts, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
