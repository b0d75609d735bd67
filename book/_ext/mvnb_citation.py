"""How to cite a chapter: a box at its end with BibTeX for it and for its paper, and the same as data in the page's head.

The book's own entry, from ``CITATION.cff``, stands on the first page. Addresses appear only where the site knows its own.
The bibliography says of every entry where it is cited.
"""

from __future__ import annotations

import functools
import re
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from mvnb_chapters import chapters
from mvnb_gallery import papers

PAGE = "book/references"


@functools.cache
def book(srcdir) -> dict:
    return yaml.safe_load(Path(srcdir, "CITATION.cff").read_text(encoding="utf-8"))


def bibtex(kind: str, key: str, fields: dict[str, str]) -> str:
    width = max(map(len, fields))
    lines = (f"  {name:<{width}} = {{{value}}}," for name, value in fields.items())
    return "\n".join((f"@{kind}{{{key},", *lines, "}"))


def own(app, pagename: str, chapter) -> tuple[str, dict[str, str], str]:
    """Title, fields of the head and BibTeX of a chapter, or of the book."""
    about = book(app.srcdir)
    author, year = about["authors"][0]["name"], app.config.copyright
    fields = {"title": chapter.title if chapter else about["title"], "author": f"{{{author}}}"}
    head = {"title": fields["title"], "author": author, "publication_date": year, "language": "en"}
    if chapter:
        fields |= {"booktitle": about["title"], "chapter": str(int(chapter.number))}
        head["inbook_title"] = about["title"]
    fields |= {"year": year, "note": f"Version {about['version']}"}
    if app.config.html_baseurl:
        fields["url"] = head["public_url"] = f"{app.config.html_baseurl}{app.builder.get_target_uri(pagename)}"
    name = f"mvnb{year}" + (f"chapter{chapter.number}" if chapter else "")
    return fields["title"], head, bibtex("incollection" if chapter else "book", name, fields)


def title_of(entry) -> str:
    return re.sub("[{}]", "", entry.fields["title"])  # which keep capitals, and are all that titles of papers have of TeX


def reference(entry) -> str:
    """A paper in one line, as readers of such data expect it."""
    names = [person.rich_first_names + person.rich_middle_names + person.rich_last_names for person in entry.persons["author"]]
    people = [("author", " ".join(map(str, parts))) for parts in names]
    pairs = [("title", title_of(entry)), *people, ("publication_date", entry.fields["year"])]
    return "; ".join(f"citation_{name}={value}" for name, value in pairs)


def cite(app, pagename, templatename, context, doctree):
    chapter = next((one for one in chapters(app.srcdir).values() if pagename == f"notebooks/{one.name}"), None)
    if chapter is None and pagename != app.config.root_doc:
        return
    title, head, entry = own(app, pagename, chapter)
    shown = {"This chapter" if chapter else "The book": entry}
    tags = {f"citation_{name}": value for name, value in head.items()}
    tags |= {"DC.title": title, "DC.creator": head["author"], "DC.date": head["publication_date"]}
    if chapter and (keys := papers(chapter)):
        paper = app.env.get_domain("cite").bibdata.data.entries[keys[0]]
        authors = " and ".join(map(str, paper.persons["author"]))
        shown["The paper that it is about"] = bibtex(paper.type, keys[0], {"author": authors, **paper.fields})
        tags |= {"citation_reference": reference(paper), "DC.relation": title_of(paper)}
    context["metatags"] += "".join(f'\n<meta name="{name}" content="{escape(value)}" />' for name, value in tags.items())
    blocks = "".join(
        f'<p>{what}:</p><div class="highlight-bibtex notranslate"><div class="highlight"><pre>{escape(one)}</pre></div></div>'
        for what, one in shown.items()
    )
    context["body"] += (
        f'<details class="cite"><summary>Cite {"this chapter" if chapter else "this book"}</summary>{blocks}</details>'
    )


def lead_back(app, doctree, docname):
    """After every entry of the bibliography the pages that cite it, each link to the first place there."""
    if docname != PAGE:
        return
    domain, places = app.env.get_domain("cite"), {}
    for one in domain.citation_refs:
        for target in one.targets:
            places.setdefault(target.key, {}).setdefault(one.docname, one.citation_ref_id)
    pages = list(app.env.toctree_includes[app.config.root_doc])
    order = {name: place for place, name in enumerate([app.config.root_doc, *pages])}
    keys = {one.citation_id: one.key for one in domain.citations}
    for node in doctree.findall(nodes.citation):
        found = places.get(keys[node["ids"][0]], {})
        links = [nodes.Text(" Cited in")]
        for name in sorted(found, key=order.get):
            chapter = re.match(r"notebooks/0?(\d+)_", name)
            title = "the first page" if name == app.config.root_doc else app.env.titles[name].astext()
            text = f"chapter {chapter[1]}" if chapter else title
            uri = f"{app.builder.get_relative_uri(docname, name)}#{found[name]}"
            links += [nodes.Text(" " if len(links) == 1 else ", "), nodes.reference("", text, refuri=uri, internal=True)]
        if found:
            node[-1] += nodes.inline("", "", *links, nodes.Text("."), classes=["cited-in"])


def setup(app):
    app.connect("doctree-resolved", lead_back)
    app.connect("html-page-context", cite, priority=902)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
