"""The glossary: its entries, and the words of chapters that lead to them."""

from __future__ import annotations

import html
import re
import unicodedata

import mvnb_glossary
import pytest
from docutils import nodes
from site_checks import ROOT

WORDS = {
    "mixup": ("mixup", ""),
    "midpoint mixup": ("midpoint", "Training on midpoints"),
    "looped transformer": ("loop", ""),
    "lottery": ("lottery", ""),
    "lottery tickets": None,
}


def link(text, target, title):
    return nodes.reference(text, text, refid=target, reftitle=title)


def linked(*blocks):
    """What is linked in a document of these blocks, as pairs of text and target."""
    document = nodes.container("", *blocks)
    mvnb_glossary.link_words(document, WORDS, link)
    return [(found.astext(), found["refid"]) for found in document.findall(nodes.reference) if "refid" in found]


def prose(*parts):
    return nodes.paragraph("", "", *(nodes.Text(part) if isinstance(part, str) else part for part in parts))


def test_the_longest_word_is_linked_once():
    assert linked(prose("A Midpoint Mixup, then Mixup; Midpoint Mixup and mixup again.")) == [
        ("Midpoint Mixup", "midpoint"),
        ("Mixup", "mixup"),
    ]


def test_whole_words_over_the_end_of_a_line():
    assert linked(prose("remixup, mixup-like, a looped", "\n", "Transformer")) == [("looped\nTransformer", "loop")]


def test_a_phrase_of_another_sense_is_no_use():
    assert linked(prose("Lottery tickets are one thing, the lottery another.")) == [("lottery", "lottery")]


@pytest.mark.parametrize("apart", [nodes.literal, nodes.math, nodes.reference])
def test_code_mathematics_and_links_are_left_alone(apart):
    assert linked(prose(apart("", "mixup"), " and ", nodes.emphasis("", "mixup"))) == [("mixup", "mixup")]


@pytest.mark.parametrize("apart", [nodes.block_quote, nodes.entry, nodes.container])
def test_only_running_prose_is_linked(apart):
    outer = nodes.table if apart is nodes.entry else nodes.container
    block = outer("", apart("", prose("mixup"), classes=["solution"] if apart is nodes.container else []))
    assert linked(nodes.title("", "Mixup"), nodes.caption("", "Mixup"), block) == []


def test_text_is_kept():
    paragraph = prose("On ", nodes.strong("", "Midpoint Mixup"), " the ", "lottery", "\n", "ends.")
    before = paragraph.astext()
    linked(paragraph)
    assert paragraph.astext() == before


def test_words_are_read_from_the_comments_of_an_entry():
    first, second = "Chance decides (chapter 1). More.", "Half of $x$, $x_1$."
    entries = [
        (nodes.paragraph("", first), nodes.comment("", "link: lottery, the  Lottery\nnot: lottery tickets")),
        (nodes.paragraph("", second),),
    ]
    items = [nodes.definition_list_item("", nodes.term("", "T", ids=["t"]), nodes.definition("", *e)) for e in entries]
    assert mvnb_glossary.entries(nodes.definition_list("", *items)) == {
        "lottery": ("t", "Chance decides"),
        "the lottery": ("t", "Chance decides"),
        "lottery tickets": None,
    }


# -- on the site ---------------------------------------------------------------------------------------------------


def test_entries_are_sorted_and_lead_to_chapters(site):
    page = (site.folder / "book" / "glossary.html").read_text(encoding="utf-8")
    found = re.findall(r'<dt id="term-[^"]+">(.*?)<a class="headerlink".*?<dd>(.*?)</dd>', page, re.DOTALL)
    terms = [html.unescape(term) for term, _ in found]
    assert 50 <= len(terms) == len(set(terms))
    assert terms == sorted(terms, key=lambda term: unicodedata.normalize("NFD", term.lower()))
    assert [term for term, text in found if 'href="../notebooks/' not in text] == []


def test_words_of_chapters_lead_to_their_entries(site):
    source = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    listed = {}
    for entry, words in re.findall(r"^(\S.*)\n(?:  .*\n)*?  % link: (.*)$", source, re.MULTILINE):
        listed |= {word.strip().lower(): entry for word in words.split(",")}
    for name in site.chapters:
        page = (site.folder / name).read_text(encoding="utf-8")
        uses = re.findall(r'<a class="std-term[^>]*href="([^"]+)"[^>]*>(.*?)</a>', page, re.DOTALL)
        targets = [target for target, _ in uses]
        assert len(targets) >= 3 and len(targets) == len(set(targets)), (name, targets)
        for target, text in uses:
            word = " ".join(html.unescape(re.sub("<[^>]+>", "", text)).lower().replace("’", "'").split())
            entry, anchor = listed[word], target.removeprefix("../book/glossary.html#")
            assert re.sub(r"\W", "", anchor) == re.sub(r"\W", "", f"term{entry}"), (name, word, target)
            assert anchor in site.pages["book/glossary.html"].ids
