"""The first use of a glossary word in a chapter leads to its entry.

Which words are meant stands in the glossary itself, in comments at the end of an entry (``% link: patch, patches``), since
only its author can say which words have the same sense wherever they occur. Phrases in which a word has another sense are
listed likewise (``% not: lottery tickets``). An entry without a comment is never linked.
"""

from __future__ import annotations

import functools
import re
from itertools import groupby

from docutils import nodes
from sphinx.util.nodes import make_refnode

GLOSSARY = "book/glossary"
# Not running prose; theorems, proofs and exercises are, but a link in a closed solution would be found by nobody.
APART = (nodes.table, nodes.figure, nodes.block_quote, nodes.footnote)
INSIDE = (nodes.reference, nodes.literal, nodes.math, nodes.raw, nodes.title_reference, nodes.footnote_reference)


def entries(glossary) -> dict[str, tuple[str, str] | None]:
    """Words in lower case: the id of their entry and its first sentence, if that is plain text; None for what is no use."""
    found = {}
    for item in glossary.findall(nodes.definition_list_item):
        prose = " ".join(next(item.findall(nodes.paragraph)).astext().split())
        first = re.match(r".*?(?=[.;:] |[.;:]?$| \()", prose)[0]
        plain = "" if re.search(r"[\\_^{}]", first) else first
        for line in (line for comment in item.findall(nodes.comment) for line in comment.astext().splitlines()):
            kind, _, listed = line.partition(":")
            for word in listed.split(",") if kind.strip() in ("link", "not") else ():
                found[" ".join(word.lower().split())] = (item[0]["ids"][0], plain) if kind.strip() == "link" else None
    return found


@functools.cache
def pattern_of(words: tuple[str, ...]) -> re.Pattern:
    # Longest first: "Midpoint Mixup" is not a use of "Mixup". A hyphen belongs to a word, an apostrophe may be curly.
    ordered = sorted(words, key=len, reverse=True)
    joined = "|".join(re.escape(word).replace(r"\ ", r"\s+").replace("'", "['’]") for word in ordered)
    return re.compile(rf"(?<![\w-])(?:{joined})(?![\w-])", re.IGNORECASE)


def link_words(doctree, words, link) -> set[str]:
    """Put ``link(text, id, title)`` in place of the first use of each entry in prose; the ids of the entries linked."""
    pattern = pattern_of(tuple(words))
    seen = set()
    for paragraph in list(doctree.findall(nodes.paragraph)):
        if not in_prose(paragraph):
            continue
        join_lines(paragraph)
        for text in list(paragraph.findall(nodes.Text)):
            if not any(isinstance(node, INSIDE) for node in lineage(text.parent)):
                pieces = list(split(text, pattern, words, seen, link))
                if len(pieces) > 1:
                    text.parent.replace(text, pieces)
    return seen


def join_lines(paragraph):
    """A line break within a sentence is a text node of its own; neighbours become one, as terms go over the end of lines."""
    for element in {id(text.parent): text.parent for text in paragraph.findall(nodes.Text)}.values():
        runs = [list(run) for _, run in groupby(element.children, key=lambda node: type(node) is nodes.Text or id(node))]
        element.children.clear()
        element.extend(nodes.Text("".join(run)) if len(run) > 1 else run[0] for run in runs)


def split(text, pattern, words, seen, link):
    start = 0
    for match in pattern.finditer(text):
        entry = words[" ".join(match[0].lower().replace("’", "'").split())]
        if entry and entry[0] not in seen:
            seen.add(entry[0])
            yield from (nodes.Text(text[start : match.start()]), link(match[0], *entry))
            start = match.end()
    yield nodes.Text(text[start:])


def lineage(node):
    while node is not None:
        yield node
        node = node.parent


def in_prose(paragraph) -> bool:
    for node in lineage(paragraph):
        classes = {*node.get("classes", ()), type(node).__name__} if isinstance(node, nodes.Element) else set()
        if isinstance(node, APART) or classes & {"cell_output", "solution", "solution_node"}:
            return False
    return True


def on_resolved(app, doctree, docname):
    if not docname.startswith("notebooks/") or GLOSSARY not in app.env.found_docs:
        return

    def link(text, target, title):
        reference = make_refnode(app.builder, docname, GLOSSARY, target, nodes.inline(text, text), title or None)
        reference["classes"].append("std-term")
        return reference

    link_words(doctree, entries_of(app), link)


@functools.cache
def entries_of(app) -> dict[str, tuple[str, str] | None]:
    return entries(app.env.get_doctree(GLOSSARY))


def setup(app):
    app.connect("doctree-resolved", on_resolved)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
