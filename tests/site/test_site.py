"""The pages of the site: their files crawled, and each opened in Chromium."""

from __future__ import annotations

import importlib
import itertools
import json
import pkgutil
import re
from collections import defaultdict
from html import unescape
from pathlib import Path
from types import FunctionType, SimpleNamespace
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import mvnb_api
import mvnb_scoreboard
import pytest
from site_checks import PHONE, ROOT, visit

import mvnb

# -- the files -----------------------------------------------------------------------------------------------------


def test_build_is_strict(site):
    noted = [line for line in site.log.splitlines() if re.search(r"\b(WARNING|ERROR)\b", line)]
    assert site.status == 0 and not noted, "\n".join(noted) or site.log[-4000:]


def test_every_page_of_the_contents_is_built(site):
    assert set(site.written) <= set(site.pages)
    assert site.chapters


def test_every_reference_resolves(site):
    broken = defaultdict(list)
    for name, page in site.pages.items():
        for target in page.links + page.assets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path, fragment = urldefrag(urljoin("/" + name, target))
            path = unquote(urlsplit(path).path).lstrip("/") or "index.html"
            path += "index.html" if path.endswith("/") else ""
            if not (site.folder / path).is_file():
                broken[name].append(target)
            elif fragment and path in site.pages and unquote(fragment) not in site.pages[path].ids:
                broken[name].append(target)
    assert not broken, dict(broken)


def test_styles_reach_their_files(site):
    broken = []
    for sheet in site.folder.rglob("*.css"):
        for target in re.findall(r"url\(\s*['\"]?([^'\")]+)", sheet.read_text(encoding="utf-8")):
            if target.startswith(("data:", "#")):
                continue
            if urlsplit(target).netloc or not (sheet.parent / urlsplit(target).path).is_file():
                broken.append((sheet.name, target))
    assert not broken


def test_no_asset_from_another_host(site):
    foreign = {(name, a) for name, page in site.pages.items() for a in page.assets if urlsplit(a).netloc}
    assert not foreign
    assert not [name for name, page in site.pages.items() if re.search("https?://", page.scripts)]


def test_images_have_alternative_text(site):
    silent = [(n, image.get("src")) for n, p in site.pages.items() for image in p.images if not image.get("alt")]
    assert not silent
    lazy = [
        (name, image["src"])
        for name in site.written
        for image in site.pages[name].images
        if "_images" in image["src"] and (len(image["alt"]) < 20 or image["alt"].startswith(("../", "_images")))
    ]
    assert not lazy, "alternative text that says nothing"


def test_headings_in_order(site):
    for name in site.written:
        levels = site.pages[name].headings
        assert levels and levels.count(1) == 1, name
        jumps = [(a, b) for a, b in itertools.pairwise(levels) if b > a + 1]
        assert levels[0] == 1 and not jumps, (name, jumps)


def test_scoreboard_is_the_notebooks_ledger(site):
    from mvnb import claims

    files = [ROOT / name.replace(".html", ".ipynb") for name in site.chapters]
    expected = [row | {"chapter": file.stem} for file in files for row in claims.read(file)]
    assert expected
    served = json.loads((site.folder / "_static" / "claims.json").read_text(encoding="utf-8"))
    seeds = {(row["chapter"], row["id"]): row.pop("seeds") for row in served if "seeds" in row}
    assert served == expected
    for path in (ROOT / "results" / "sweeps").glob("*.json"):
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert {id: told for (chapter, id), told in seeds.items() if chapter == kept["chapter"]} == kept["claims"]
    board = site.pages["book/reproduction.html"]
    for row in expected:
        chapter = f"notebooks/{row['chapter']}.html"
        assert f"../{chapter}#claim-{row['id']}" in board.links
        assert f"claim-{row['id']}" in site.pages[chapter].ids


def test_closing_page_shows_what_claims_measured_and_counts_those_of_the_papers(site):
    from mvnb import claims, verdicts

    rows = {name[10:12]: claims.read(ROOT / name.replace(".html", ".ipynb")) for name in site.chapters}
    page = (site.folder / "book" / "closing.html").read_text(encoding="utf-8")
    text = " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())
    cited = re.findall(r"\{claim\}`(\d\d) ([\w-]+) ?(\w*)`", (ROOT / "book" / "closing.md").read_text(encoding="utf-8"))
    assert len(cited) > 20
    for number, id, name in cited:
        row = next(row for row in rows[number] if row["id"] == id)
        value = verdicts.value(row | {"measured": {name: row["measured"][name]} if name else row["measured"]})
        assert f"{value} {verdicts.MARKS[row['verdict']][0]}" in text, (id, value)
    papers = [row for some in rows.values() for row in some if row["origin"] != "ours"]
    groups = [
        verdicts.counts(row for row in papers if mvnb_scoreboard.source(row) == name and row["verdict"] != "not run")
        for name in mvnb_scoreboard.SOURCES
    ]
    for name, found in zip(mvnb_scoreboard.SOURCES, groups):
        assert f"{name} {found.total()} {found['holds']} {found['fails']} {found['undecided']}" in text
    # The sentences below the table.
    holds, fails, undecided = ([found[one] / found.total() for found in groups] for one in verdicts.JUDGED)
    assert holds[0] > 0.8 > max(holds[1:]) and 0 < fails[1] - fails[0] < 0.1 and undecided[1] > 5 * undecided[0]
    assert all(1.6 < fails[2] / other < 2.8 for other in fails[:2])
    false = [row for row in papers if row["kind"] == "exact" and row["verdict"] == "fails"]
    themselves = {row["id"] for row in false if re.fullmatch(r"(Theorem|Proposition) [\w.]+", row["source"])}
    assert themselves == {"lagging-feature-pushed-up", "bit-code-is-the-optimum"}


def test_formulas_of_claims_are_mathematics_on_the_scoreboard_and_in_the_chapters(site):
    from mvnb import claims

    board = unescape((site.folder / "book" / "reproduction.html").read_text(encoding="utf-8"))
    for name in site.chapters:
        page = unescape((site.folder / name).read_text(encoding="utf-8"))
        texts = [row["says"] for row in claims.read(ROOT / name.replace(".html", ".ipynb"))]
        for tex in (tex for text in texts for tex in text.split("$")[1::2]):
            assert rf"\({tex}\)" in board and rf"\({tex}\)" in page


# -- the helper package --------------------------------------------------------------------------------------------

INTERNAL = {"_checks", "_renamed", "__main__", "blocks", "cli", "compiled", "files", "gradients"}  # modules without a page


def test_every_module_has_a_page_in_the_contents(site):
    modules = {info.name for info in pkgutil.iter_modules(mvnb.__path__)}
    assert set(mvnb_api.CORE) | {"papers", "runner"} == modules - INTERNAL and INTERNAL <= modules
    pages = {f"book/api/{name.replace('.', '/')}.html": f"mvnb.{name}" for name in mvnb_api.MODULES}
    assert set(pages) == {name for name in site.pages if name.startswith("book/api/")}
    links = {link.partition("#")[0] for link in site.pages[site.written[0]].links}  # the table of contents is on every page
    for page, name in pages.items():
        assert f"module-{name}" in site.pages[page].ids
        assert page.removeprefix("book/") in links & set(site.pages["book/api.html"].links)


def test_exported_names_are_documented_as_they_are_imported(site):
    for package in ("data", "models", "training"):
        module, ids = importlib.import_module(f"mvnb.{package}"), site.pages[f"book/api/{package}.html"].ids
        names = [name for name in module.__all__ if isinstance(getattr(module, name), type | FunctionType)]
        assert len(names) > 8 and {f"{module.__name__}.{name}" for name in names} <= ids


def test_pages_of_modules_follow_the_package(tmp_path):
    book = SimpleNamespace(srcdir=tmp_path)
    mvnb_api.write_pages(book, None)
    assert not list(tmp_path.iterdir())  # not a book with a reference
    (tmp_path / "book" / "api").mkdir(parents=True)
    (tmp_path / "book" / "api.md").touch()
    (tmp_path / "book" / "api" / "gone.md").touch()
    mvnb_api.write_pages(book, None)
    pages = {path: path.stat().st_mtime_ns for path in (tmp_path / "book" / "api").rglob("*.md")}
    assert len(pages) == len(mvnb_api.MODULES) and not any(path.stem == "gone" for path in pages)
    mvnb_api.write_pages(book, None)
    assert pages == {path: path.stat().st_mtime_ns for path in pages}


# -- in the browser ------------------------------------------------------------------------------------------------


def test_front_door_leads_to_the_introduction(site, tab):
    tab.goto(site.url)
    tab.wait_for_url(f"**/{site.written[0]}")
    assert not tab.trouble


@pytest.mark.parametrize(("word", "page"), [("midpoint", "01_midpoint_mixup"), ("cross_entropy", "book/api/losses")])
def test_search_finds_chapters_and_functions(site, tab, word, page):
    visit(tab, site, f"search.html?q={word}")
    hits = tab.locator("#search-results li a")
    hits.first.wait_for()
    addresses = hits.evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert any(page in address for address in addresses)


def test_search_box_opens(site, tab):
    visit(tab, site, site.written[0])
    tab.locator("button.search-button__button:visible, button.search-button:visible").first.click()
    box = tab.locator(".search-button__search-container input[type=search]")
    box.fill("midpoint")
    box.press("Enter")
    tab.locator("#search-results li a").first.wait_for()


@pytest.mark.parametrize("tab", [{"viewport": PHONE}], indirect=True)
def test_navigation_opens_on_a_phone(site, tab):
    visit(tab, site, site.written[0])
    entry = tab.locator(f"nav.bd-links a[href$='{Path(site.chapters[0]).name}']").first
    assert not entry.is_visible() or entry.bounding_box()["x"] < 0
    tab.locator("button.primary-toggle:visible, label.primary-toggle:visible").first.click()
    tab.wait_for_function("link => link.checkVisibility() && link.getBoundingClientRect().x >= 0", arg=entry.element_handle())
    entry.click()
    tab.wait_for_url(f"**/{Path(site.chapters[0]).name}*")


def test_scoreboard_leads_to_the_claim(site, tab):
    visit(tab, site, "book/reproduction.html")
    link = tab.locator("table.claims a[href*='#claim-']").first
    target = link.get_attribute("href").split("#")[1]
    link.click()
    tab.wait_for_url(f"**#{target}")
    row = tab.locator(f"[id='{target}']")
    row.wait_for(state="visible")
    assert not tab.trouble


@pytest.mark.parametrize("tab", [{"viewport": PHONE}], indirect=True)
def test_scoreboard_answers_on_the_first_screen_of_a_phone(site, tab):
    from mvnb import verdicts

    rows = json.loads((site.folder / "_static" / "claims.json").read_text())
    headlines = [row for row in rows if row["headline"] and row["origin"] != "ours"]
    visit(tab, site, "book/reproduction.html")
    assert verdicts.tally(headlines) in tab.locator("article p strong").first.inner_text()
    picture = tab.locator("table.papers")
    box = picture.bounding_box()
    assert box["y"] + box["height"] <= PHONE["height"] and box["x"] + box["width"] <= PHONE["width"]
    marks = picture.locator(".headline-mark a").evaluate_all("all => all.map(a => a.hash)")
    assert marks and sorted(marks) == sorted(f"#claim-{row['id']}" for row in headlines)


def shown(tab):
    """The rows of the scoreboard that can be seen: chapter, claim, kind and verdict."""
    rows = tab.locator("table.claims tbody tr:visible")
    return rows.evaluate_all("rows => rows.map(row => [0, 1, 3, 7].map(i => row.cells[i].innerText.trim()))")


def test_scoreboard_filters_and_remembers_the_view(site, tab):
    everything = json.loads((site.folder / "_static" / "claims.json").read_text(encoding="utf-8"))
    failing = [row for row in everything if row["verdict"] == "fails" and row["kind"] == "exact"]
    visit(tab, site, "book/reproduction.html")
    assert len(shown(tab)) == len(everything)
    tab.get_by_label("Verdict").select_option("fails")
    tab.get_by_label("Kind").select_option("exact")
    links = tab.locator("table.claims tbody tr:visible td:nth-child(2) a").evaluate_all("all => all.map(a => a.hash)")
    assert links == [f"#claim-{row['id']}" for row in failing]
    assert tab.locator(".scoreboard-controls output").inner_text() == f"{len(failing)} of {len(everything)} claims"
    tab.get_by_label("Headline").select_option("yes")
    assert len(shown(tab)) == sum(row["headline"] and row["origin"] != "ours" for row in failing)
    tab.get_by_label("Headline").select_option("")
    tab.get_by_label("Evidence").select_option("kept run")
    assert len(shown(tab)) == sum(bool(row.get("kept")) for row in failing)
    tab.get_by_label("Evidence").select_option("")
    chapter = failing[0]["chapter"][:2]
    tab.get_by_label("Chapter").select_option(chapter)
    assert {row[0] for row in shown(tab)} == {chapter}
    before = shown(tab)
    tab.reload()
    assert shown(tab) == before
    tab.get_by_label("Words").fill("no such words anywhere")
    assert shown(tab) == [] and not tab.trouble


def test_scoreboard_sorts_by_its_heads_with_the_keyboard(site, tab):
    visit(tab, site, "book/reproduction.html")
    head = tab.locator("table.claims th", has_text="Claim")
    head.get_by_role("button").focus()
    for order in ("ascending", "descending"):
        tab.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == order
        claims = [row[1] for row in shown(tab)]
        best = tab.evaluate("c => [...c].sort(new Intl.Collator('en', { numeric: true }).compare)", claims)
        assert claims == (best if order == "ascending" else best[::-1]) and len(set(claims)) > 100


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
def test_scoreboard_is_whole_without_scripts(site, tab):
    tab.goto(site.url + "book/reproduction.html")
    everything = json.loads((site.folder / "_static" / "claims.json").read_text(encoding="utf-8"))
    assert tab.locator("table.claims tbody tr").count() == len(everything)
    assert tab.locator(".scoreboard-controls").count() == 0
    assert tab.locator("table.claims tr[id]").evaluate_all("rows => rows.map(row => row.id)") == [
        f"chapter-{Path(name).name[:2]}" for name in site.chapters
    ]


@pytest.mark.parametrize(
    "tab",
    [{"viewport": PHONE, "has_touch": True, "is_mobile": True}, {"java_script_enabled": False}],
    ids=["phone", "without scripts"],
    indirect=True,
)
def test_explorers_are_live_or_else_pictures(site, tab, request):
    found = [(name, anchor) for name, page in site.pages.items() for anchor in page.ids if anchor.startswith("explorer-")]
    assert found
    for name, anchor in found:
        tab.goto(site.url + name, wait_until="domcontentloaded")  # deferred scripts have run
        figure = tab.locator(f"figure#{anchor}")
        figure.scroll_into_view_if_needed()
        assert len(figure.locator(".explorer-readout").inner_text()) > 20 and figure.locator("figcaption p").count()
        if "without" in request.node.name:
            picture = figure.locator("img").element_handle()
            tab.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=picture)
            assert not figure.locator(".explorer-controls").is_visible()
            tab.trouble.clear()  # scripts that were not loaded
        else:
            before = figure.locator(".explorer-stage").inner_html()
            figure.locator("input").first.press("Home")
            assert figure.locator(".explorer-stage").inner_html() != before
            assert figure.locator("img").count() == 0
        box = figure.locator(".explorer-stage > *").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= tab.viewport_size["width"] and box["height"] > 200, (anchor, box)
        assert figure.evaluate("node => node.scrollWidth <= node.clientWidth"), anchor
    assert not tab.trouble
