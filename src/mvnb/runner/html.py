"""Rendering of an executed notebook as one self-contained HTML file.

Jupyter Book builds the pages of the book. To render a single run within about a second, this module only replaces MyST
directives and roles with plain Markdown: the text of a theorem is kept, but its number and cross-references are lost.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

import nbformat
from nbformat import NotebookNode

from mvnb.runner.hosts import TAG

_TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head_js_requirejs %}{% endblock %}
{% block html_head_js_mathjax %}<!-- mathematics -->{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% macro image(output, mime, data) %}
<div class="jp-RenderedImage jp-OutputArea-output"><img src="data:{{ mime }};base64,{{ data }}"
alt="{{ (output | get_metadata('alt', mime) or '') | escape_html }}"
{% for key in ('width', 'height') %}{% set value = output | get_metadata(key, mime) %}
{%- if value %} {{ key }}="{{ value }}"{% endif %}{% endfor %}></div>
{% endmacro %}
{% block data_png scoped %}{{ image(output, 'image/png', output.data['image/png']) }}{% endblock %}
{% block data_svg scoped %}
{{ image(output, 'image/svg+xml', output.data['image/svg+xml'] | text_base64) }}
{% endblock %}
"""
_CDN = "https://cdn.jsdelivr.net/npm/mathjax@3/es5/tex-svg.js"
_CONFIGURATION = """<script>
MathJax = {tex: {inlineMath: [["$", "$"], ["\\\\(", "\\\\)"]], tags: "ams", processEscapes: true}};
</script>
"""
_OPEN = re.compile(r"^(?P<fence>`{3,}|:{3,}|~{3,})\{(?P<name>[\w:+-]+)\}\s*(?P<title>.*)$")
_CITED = re.compile(r"\[([^][]+)\]\(\.\./book/references\.bib#[^)]*\)")
_ROLE = re.compile(r"\{(?P<name>[\w:+-]+)\}`(?P<text>[^`]*)`")


def render(notebook: NotebookNode, title: str) -> str:
    """Render the notebook as an HTML page with this title, including the styles, the figures and, if installed, MathJax."""
    from nbconvert import HTMLExporter
    from nbconvert.preprocessors import TagRemovePreprocessor

    plain = nbformat.from_dict(notebook)
    for cell in plain.cells:
        if cell.cell_type == "markdown":
            cell.source = _plain_markdown(cell.source)
    exporter = HTMLExporter(raw_template=_TEMPLATE, embed_images=True)
    exporter.register_preprocessor(TagRemovePreprocessor(remove_cell_tags={TAG}), enabled=True)
    page, _ = exporter.from_notebook_node(plain, {"metadata": {"name": title}})
    return page.replace("<!-- mathematics -->", _mathjax(), 1)


def _plain_markdown(text: str) -> str:
    """Replace MyST directives, roles and links to the bibliography by plain text; leave mathematics and code unchanged."""
    lines: list[str] = []
    open_fences: list[tuple[str, str]] = []
    in_code = ""
    for line in text.splitlines():
        stripped = line.strip()
        opening = None if in_code else _OPEN.match(stripped)
        if opening:
            lines.extend(_plain_opening(opening["name"], opening["title"]))
            open_fences.append((opening["fence"], opening["name"]))
        elif open_fences and stripped == open_fences[-1][0]:
            lines.extend(["$$", ""] if open_fences.pop()[1] == "math" else [""])
        elif stripped.startswith(("```", "~~~")):
            in_code = "" if in_code else stripped
            lines.append(line)
        elif in_code:
            lines.append(line)
        elif not re.fullmatch(r":[\w-]+:.*", stripped):
            line = re.sub(r"^(\s*\$\$)\s*\([\w:-]+\)\s*$", r"\1", line)
            lines.append(_ROLE.sub(_role, _CITED.sub(r"\1", line)))
    return "\n".join(lines)


def _plain_opening(name: str, title: str) -> list[str]:
    if name == "math":
        return ["", "$$"]
    word = name.rpartition(":")[2].replace("-", " ").capitalize()
    return ["", f"**{word}{f' ({title})' if title else ''}.**", ""]


def _role(match: re.Match) -> str:
    text = re.sub(r"\s*<[^>]*>$", "", match["text"])
    if match["name"] == "math":
        return f"${text}$"
    return f"({text})" if match["name"] == "eq" else text


def _mathjax() -> str:
    """Return MathJax as an inline script if ``sphinx-mathjax-offline`` is installed, or else a link to its public address."""
    try:
        files = distribution("sphinx-mathjax-offline").files or []
        path = next(file.locate() for file in files if file.name == "tex-svg.js")
        script = path.read_text(encoding="utf-8").replace("</script", "<\\/script")
    except (PackageNotFoundError, StopIteration, OSError):
        return f'{_CONFIGURATION}<script async src="{_CDN}"></script>'
    return f"{_CONFIGURATION}<script>{script}</script>"
