"""The notebooks behind the download buttons: plain Markdown, with the numbers that the site shows."""

import base64
import re
from pathlib import Path

import mvnb_chapters
import mvnb_download
import nbformat
import pytest
from mvnb_download import Number, leave_pages, to_plain

ROOT = Path(__file__).resolve().parents[2]
HERE = "notebooks/06_lists"
NUMBERED = {
    "eq-06-a": Number(HERE, "displaymath", "6.1"),
    "thm-06-a": Number(HERE, "theorem", "6.2"),
    "ex-06-a": Number(HERE, "exercise", "6.3"),
    "lem-01-b": Number("notebooks/01_mixup", "lemma", "1.4"),
}
MYST = re.compile(r":::|\{[a-z:]+\}`|^ *\$\$ *\(|^ *:[a-z]+:|references\.bib|\{headlines\}", re.MULTILINE)

PLAIN = {
    "equation": (
        "$$\na\n$$\n\n$$\nb\n$$ (eq-06-a)\n\nSee {eq}`eq-06-a`.",
        '$$\na\n$$\n\n<a id="eq-06-a"></a>\n$$\nb \\tag{6.1}\n$$\n\nSee [(6.1)](#eq-06-a).',
    ),
    "equation in a list": ("- x\n\n  $$\n  b\n  $$ (eq-06-a)", '- x\n\n  <a id="eq-06-a"></a>\n  $$\n  b \\tag{6.1}\n  $$'),
    "theorem": (
        ":::{prf:theorem} Sums of $x$\n:label: thm-06-a\n\nOne.\n\nTwo.\n:::\n\nLast.",
        '> <a id="thm-06-a"></a>**Theorem 6.2** (Sums of $x$).\n>\n> One.\n>\n> Two.\n\nLast.',
    ),
    "proof with code": (
        "::::{prf:proof}\n```python\n{eq}`x` :::\n```\n:::{prf:remark}\nIn.\n:::\nOut.\n::::",
        "> **Proof**.\n>\n> ```python\n> {eq}`x` :::\n> ```\n> > **Remark**.\n> >\n> > In.\n> Out.",
    ),
    "fence of a directive": ("```{prf:remark}\nIn.\n```\nOut.", "> **Remark**.\n>\n> In.\nOut."),
    "exercise": (":::{exercise}\n:label: ex-06-a\nDo it.\n:::", '> <a id="ex-06-a"></a>**Exercise 6.3**.\n>\n> Do it.'),
    "solution": (
        ":::{solution} ex-06-a\n:class: dropdown\n\nDone.\n:::\n\nLast.",
        "<details><summary>Solution of Exercise 6.3</summary>\n\nDone.\n</details>\n\nLast.",
    ),
    "explorer": (
        ":::{explorer} 06-column\n:alt: Two lines.\n\nWhat if?\n:::",
        "> ![Two lines.](attachment:06-column.png)\n>\n> What if?",
    ),
    "headlines": ("Claims:\n\n```{headlines}\n```\n\nEnd.", "Claims:\n\n| table |\n\nEnd."),
    "references": (
        "{prf:ref}`thm-06-a`, {prf:ref}`lem-01-b`, {prf:ref}`here <thm-06-a>`, {eq}`eq-99-absent`",
        "[Theorem 6.2](#thm-06-a), [Lemma 1.4](01_mixup.ipynb#lem-01-b), [here](#thm-06-a), eq-99-absent",
    ),
    "pages": ("{doc}`chapter 1 <01_mixup>`, {ref}`this <06-try>`", "[chapter 1](01_mixup.ipynb), [this](#06-try)"),
    "names": ("{py:func}`~mvnb.claims.read`, {py:mod}`mvnb.claims`", "`read`, `mvnb.claims`"),
    "citation": ("([A, 2018](../book/references.bib#a2018))", "([A, 2018](#ref-a2018))"),
    "Markdown": ("# A\n\n> *B* `c` $d$\n\n| e |\n|---|", "# A\n\n> *B* `c` $d$\n\n| e |\n|---|"),
}


@pytest.mark.parametrize(("myst", "plain"), PLAIN.values(), ids=PLAIN)
def test_myst_becomes_plain_markdown(myst, plain):
    assert to_plain(myst, HERE, NUMBERED, "| table |") == plain
    assert "code" in myst or not MYST.search(plain.replace("{eq}`x` :::", ""))


@pytest.mark.parametrize(
    ("text", "on_the_site"),
    [
        ("[chapter 1](01_mixup.ipynb)", "[chapter 1](https://a.org/notebooks/01_mixup.html)"),
        ("[Lemma 1.4](01_mixup.ipynb#lem-01-b)", "[Lemma 1.4](https://a.org/notebooks/01_mixup.html#lem-01-b)"),
        ("[(1.4)](01_mixup.ipynb#eq-01-c)", "[(1.4)](https://a.org/notebooks/01_mixup.html#equation-eq-01-c)"),
        ("[`a[0]`](../book/errata.md)", "[`a[0]`](https://a.org/book/errata.html)"),
        ("[here](#06-a)", "[here](#06-a)"),
        ("[A](#ref-a), [B](https://b.org/c.md)", "[A](#ref-a), [B](https://b.org/c.md)"),
    ],
)
def test_links_to_other_pages_lead_to_the_site_or_become_text(text, on_the_site):
    assert leave_pages(f"See {text}.", "https://a.org/") == f"See {on_the_site}."
    assert leave_pages(f"See {text}.", "") == f"See {text if text == on_the_site else text[1 : text.rindex(']')]}."


def plain(site, name):
    return nbformat.read(site.folder / mvnb_download.PLACE / f"{Path(name).stem}.ipynb", as_version=4)


def markdown(notebook):
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def test_every_chapter_is_there_without_myst_and_its_links_lead_somewhere(site):
    for name in site.chapters:
        notebook = plain(site, name)
        nbformat.validate(notebook)
        text = markdown(notebook)
        assert not MYST.search(text), (name, MYST.search(text))
        anchors = re.findall(r'<a id="([^"]+)"></a>', text)
        assert len(anchors) == len(set(anchors))
        links = re.findall(r"\]\(([^()\s]+)\)", text)
        assert not [one for one in links if re.search(r"\.(ipynb|md)\b", one)], name
        assert {one[1:] for one in links if one.startswith("#")} <= set(anchors), name
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code == [
            cell
            for cell in nbformat.read(ROOT / name.replace(".html", ".ipynb"), as_version=4).cells
            if cell.cell_type == "code"
        ]


def test_the_numbers_are_those_of_the_site(site):
    for name in site.chapters:
        page, text = (site.folder / name).read_text(encoding="utf-8"), markdown(plain(site, name))
        equations = re.findall(r'<a id="(eq-[^"]+)"></a>\n.*?\\tag\{([\d.]+)\}', text.replace("> ", ""), re.DOTALL)
        shown = re.findall(r'id="equation-(eq-[^"]+)"[^>]*>\s*<span class="eqno">\(([\d.]+)\)', page)
        assert equations == shown and shown, name
        titles = re.findall(r'> <a id="([^"]+)"></a>\*\*(\w+ [\d.]+)\*\*', text)
        found = re.findall(
            r'<div class="(?:proof|exercise) ?[\w ]*admonition" id="([^"]+)">\s*<p[^>]*>(.*?)</p>', page, re.DOTALL
        )
        numbers = {id: re.sub(r"<[^>]*>", "", title).replace("\xa0", " ").strip() for id, title in found}
        assert titles and all(numbers[id].startswith(title) for id, title in titles), name


def test_headlines_explorers_and_the_cited_papers_are_in_the_notebook(site):
    notebook = plain(site, "notebooks/06_decision_lists.html")
    text = markdown(notebook)
    (headline, *_) = [row for row in mvnb_chapters.ledger(mvnb_chapters.chapters(ROOT)["06"]) if row["headline"]]
    assert re.search(rf"^\| {re.escape(headline['says'])} \| .* \| {headline['verdict']} \|$", text, re.MULTILINE)
    (pictures,) = [cell.attachments for cell in notebook.cells if "attachments" in cell]
    assert list(pictures["06-column.png"]) == ["image/png"] and "(attachment:06-column.png)" in text
    assert base64.b64decode(pictures["06-column.png"]["image/png"]).startswith(b"\x89PNG")
    assert notebook.cells[-1].source.startswith(
        '## References\n\n- <a id="ref-karp2023decision"></a>Stefani Karp, Pranjal Awasthi'
    )
    assert "mvnb" not in notebook.metadata
