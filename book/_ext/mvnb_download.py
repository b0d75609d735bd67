"""The notebook behind a chapter's download button: plain Markdown, with the numbers of the site, for readers without MyST.

The notebook that ``mvnb run`` writes has the same form, with the headline claims of its run.

Theorems, proofs and exercises are block quotes under a bold title, solutions can be opened, equations have their numbers as
tags, explorers are pictures (PNG, since JupyterLab shows no attached SVG), references are links, and the papers that the
chapter cites are listed in a last cell. Links to other pages lead to the site if its address is known, and are plain text
otherwise. Code cells and outputs stay as they are.
"""

from __future__ import annotations

import base64
import functools
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import nbformat
import pybtex.plugin
from mvnb_chapters import chapters, ledger
from mvnb_plain import keys
from pybtex.database import parse_file
from pybtex.plugin import find_plugin

from mvnb import verdicts
from mvnb.files import write

# pybtex reads the metadata of all installed packages for every citation, about a twentieth of the time of a build.
pybtex.plugin.entry_points = functools.cache(pybtex.plugin.entry_points)

PLACE = "_sources/plain"
BOOK = Path(__file__).parents[1]
_NUMBERED = re.compile(  # with the label of an equation, or the kind of a statement and the options below it
    r"^(?:# )? *\$\$ *\(([\w-]+)\)$|"
    r"^(?:# )? *(?::{3,}|`{3,})\{(?:prf:(?!proof)(\w+)|(exercise))\}.*\n((?:(?:# )? *:[\w-]+:.*\n)*)",
    re.MULTILINE,
)
_FENCE = re.compile(r"(:{3,}|`{3,})(?:\{([\w:]+)\} *)?(.*)")
_OPTION = re.compile(r" *:([\w-]+): *(.*)")
_DISPLAYED = re.compile(r"^( *)\$\$\n(.*?)\n *\$\$(?: *\(([\w-]+)\))?$", re.DOTALL | re.MULTILINE)
_ROLE = re.compile(r"\{([\w:]+)\}`(?:([^`<]*?) *<)?([^`>]*)>?`")
_PAGE_LINK = re.compile(r"\[((?:[^][]|\[[^][]*\])*)\]\((?:\.\./)?([\w/-]+)\.(?:md|ipynb)(?:#([\w-]+))?\)")


class Number(NamedTuple):
    page: str
    kind: str
    text: str


def numbers(page: str, text: str) -> dict[str, Number]:
    """Return the number of every equation, statement and exercise in the Markdown or the source of a page by its label."""
    found, counts, chapter = {}, Counter(), int(Path(page).name[:2])
    for equation, statement, exercise, options in _NUMBERED.findall(text):
        kind = statement or exercise or "displaymath"
        counts[kind] += 1
        for label in re.findall(":label: *(.+)", options) or [equation]:
            found[label] = Number(page, kind, f"{chapter}.{counts[kind]}")
    return found


@functools.cache
def all_numbers(root: Path) -> dict[str, Number]:
    """Return the numbers in all chapters of the book by label."""
    found = chapters(root).values()
    texts = {f"notebooks/{chapter.name}": chapter.source.read_text(encoding="utf-8") for chapter in found}
    return {label: number for page, text in texts.items() for label, number in numbers(page, text).items()}


def to_plain(text: str, page: str, numbered: dict[str, Number], headlines: str = "") -> str:
    """Replace the MyST in a Markdown cell of ``page``; ``headlines`` is a table that stands for ``{headlines}``."""

    def link(label: str) -> str:
        there = numbered[label].page
        return f"#{label}" if there == page else f"{Path(there).name}.ipynb#{label}"

    def tag(match: re.Match) -> str:
        indent, formula, label = match.groups()
        anchor, end = (f'{indent}<a id="{label}"></a>\n', f" \\tag{{{numbered[label].text}}}") if label else ("", "")
        return f"{anchor}{indent}$$\n{formula}{end}\n{indent}$$"

    def role(match: re.Match) -> str:
        name, title, target = match.groups()
        if name in ("eq", "prf:ref"):
            if not (number := numbered.get(target)):  # in a chapter that this site does not have
                return title or target
            shown = f"({number.text})" if name == "eq" else f"{number.kind.title()} {number.text}"
            return f"[{title or shown}]({link(target)})"
        if name.startswith("py:"):
            return f"`{target.rpartition('.')[2] if target.startswith('~') else target}`"
        return f"[{title}]({f'{target}.ipynb' if name == 'doc' else f'#{target}'})"

    def title(directive: str, argument: str, label: str) -> str:
        anchor, number = (f'<a id="{label}"></a>', f" {numbered[label].text}") if label in numbered else ("", "")
        return f"{anchor}**{directive.removeprefix('prf:').title()}{number}**{f' ({argument})' if argument else ''}."

    lines, written, open_, verbatim = _DISPLAYED.sub(tag, text).splitlines(), [], [], ""
    while lines:
        line = lines.pop(0)
        fence = _FENCE.fullmatch(line)
        prefix = "> " * sum(quoted for _, quoted in open_)
        if verbatim:
            verbatim = "" if line == verbatim else verbatim
            written.append(prefix + line)
        elif open_ and line == open_[-1][0]:
            written += [] if open_.pop()[1] else [f"{prefix}</details>"]
        elif fence and not fence[2]:  # of code
            verbatim = fence[1]
            written.append(prefix + line)
        elif fence:
            options = {}
            while lines and (option := _OPTION.fullmatch(lines[0])):
                options[option[1]] = option[2]
                lines.pop(0)
            while lines and not lines[0]:
                lines.pop(0)
            directive, argument = fence[2], fence[3].strip()
            if directive == "headlines":
                written.append(headlines)
                lines.pop(0)  # the closing fence
                continue
            open_.append((fence[1], directive != "solution"))
            if directive == "solution":
                number = f" {numbered[argument].text}" if argument in numbered else ""
                written.append(f"{prefix}<details><summary>Solution of Exercise{number}</summary>")
            elif directive == "explorer":
                written.append(f"{prefix}> ![{options['alt']}](attachment:{argument}.png)")
            else:
                written.append(f"{prefix}> {title(directive, argument, options.get('label', ''))}")
            written.append(f"{prefix}>" if open_[-1][1] else prefix)
        else:
            written.append((prefix + _ROLE.sub(role, line)).rstrip())
    return "\n".join(written).replace("(../book/references.bib#", "(#ref-")


def leave_pages(text: str, site: str) -> str:
    """Lead links to other pages of the book to the address ``site``; if it is empty, replace them by their text."""

    def link(match: re.Match) -> str:
        title, page, anchor = match.groups()
        address = f"{site}{page if '/' in page else f'notebooks/{page}'}.html"
        if anchor:
            address += f"#{'equation-' if anchor.startswith('eq-') else ''}{anchor}"
        return f"[{title}]({address})" if site else title

    return _PAGE_LINK.sub(link, text)


def headlines_table(rows: list[dict]) -> str:
    """Return the headline claims with verdicts as a Markdown table."""
    lines = [("Headline claim", "Measured; rule", "Verdict"), ("---",) * 3]
    for row in (row for row in rows if row["headline"]):
        lines.append((row["says"], f"{verdicts.measured(row)}; `{row['criterion']}`", row["verdict"]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@functools.cache
def bibliography():
    return parse_file(BOOK / "references.bib").entries


def references(cited: list[str]) -> str:
    """Return a list of the cited entries of the bibliography, formatted as on the site."""
    style, backend = find_plugin("pybtex.style.formatting", "unsrt")(), find_plugin("pybtex.backends", "markdown")()
    found = style.format_entries([bibliography()[key] for key in dict.fromkeys(cited) if key in bibliography()])
    lines = (f'- <a id="ref-{one.key}"></a>{" ".join(one.text.render(backend).split())}' for one in found)
    return "\n".join(["## References", "", *lines])


def plain_notebook(chapter, notebook: nbformat.NotebookNode, rows: list[dict], site: str = "") -> nbformat.NotebookNode:
    """Put a notebook of a chapter, with its claims ``rows``, into plain Markdown, and return it.

    Links to pages of the book lead to the address ``site``, if any.
    """
    page, cited, table = f"notebooks/{chapter.name}", [], headlines_table(rows)
    texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    numbered = all_numbers(chapter.root) | numbers(page, "\n".join(f"{cell.source}\n" for cell in texts))
    for cell in texts:
        cited += keys(cell.source)
        cell.source = leave_pages(to_plain(cell.source, page, numbered, table), site)
        for name in re.findall(r"\(attachment:([\w-]+\.png)\)", cell.source):
            picture = base64.b64encode((BOOK / "_static" / "explorers" / name).read_bytes()).decode()
            cell.setdefault("attachments", {})[name] = {"image/png": picture}
    if cited:
        notebook.cells.append(nbformat.v4.new_markdown_cell(references(cited), id="references"))
    for key in ("mvnb", "jupytext"):  # it is not the pair of a source
        notebook.metadata.pop(key, None)
    return notebook


def offer(app, pagename, templatename, context, doctree):
    """Lead the button for the notebook to the plain version."""
    chapter = next((one for one in chapters(app.srcdir).values() if pagename == f"notebooks/{one.name}"), None)
    for group in context.get("header_buttons", []) if chapter else []:
        if group.get("label") == "download-buttons":
            group["buttons"][0]["url"] = context["pathto"](f"{PLACE}/{chapter.name}.ipynb", 1)


def write_notebooks(app, exc):
    if exc is None and app.builder.format == "html":
        Path(app.outdir, PLACE).mkdir(parents=True, exist_ok=True)
        for chapter in chapters(app.srcdir).values():
            if f"notebooks/{chapter.name}" in app.env.found_docs:
                committed = nbformat.read(chapter.notebook, as_version=4)
                plain = plain_notebook(chapter, committed, ledger(chapter), app.config.html_baseurl)
                write(Path(app.outdir, PLACE, f"{chapter.name}.ipynb"), nbformat.writes(plain) + "\n")


def setup(app):
    app.connect("html-page-context", offer, priority=902)
    app.connect("build-finished", write_notebooks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
