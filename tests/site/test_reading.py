"""A reader follows the map and a path, links to a theorem, prints, runs a chapter again, and uses the keyboard."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from site_checks import PHONE, ROOT, check_picture, fresh_tab, visit

from mvnb import claims, verdicts
from mvnb.runner.catalogue import resolve

PLAN = yaml.safe_load((ROOT / "book" / "map.yml").read_text(encoding="utf-8"))
# -- the first page ------------------------------------------------------------------------------------------------


def test_map_lights_up_what_belongs_together_by_keyboard(site, tab):
    visit(tab, site, site.written[0])
    boxes = tab.locator("svg.idea-map a")
    ideas = PLAN["data"] + PLAN["models"] + PLAN["theorems"]
    assert boxes.count() == len(site.chapters) + len(ideas)
    race = next(idea for idea in PLAN["theorems"] if idea["target"] == "thm-01-erm")
    tab.locator("svg.idea-map a", has_text=race["name"]).focus()
    lit = tab.locator("svg.idea-map a.lit.chapter").evaluate_all("all => all.map(a => a.dataset.node)")
    assert lit == [f"chapter-{n}" for n in race["chapters"]]
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/01_midpoint_mixup.html#thm-01-erm")
    assert not tab.trouble


def test_labels_of_the_map_fit_into_their_boxes(site, tab):
    visit(tab, site, site.written[0])
    room = tab.locator("svg.idea-map a").evaluate_all(
        "all => all.map(a => a.querySelector('rect').getBBox().width - a.querySelector('text').getBBox().width)"
    )
    assert len(room) > 30 and min(room) > 16


def test_every_chapter_is_on_the_map_and_ideas_know_their_chapters(site):
    ideas = PLAN["data"] + PLAN["models"] + PLAN["theorems"]
    assert {n for idea in ideas for n in idea["chapters"]} == {int(Path(name).name[:2]) for name in site.chapters}
    for idea in ideas:
        own = re.search(r"\d\d", idea["target"])[0]
        assert int(own) in idea["chapters"], idea


@pytest.mark.parametrize("tab", [{"viewport": PHONE, "java_script_enabled": False}], indirect=True)
def test_map_is_a_list_on_a_phone_without_scripts(site, tab):
    tab.goto(site.url + site.written[0])
    assert not tab.locator("svg.idea-map").is_visible()
    assert tab.locator("div.idea-list").is_visible()
    assert tab.locator("div.idea-list li").count() == sum(len(PLAN[column]) for column in ("data", "models", "theorems"))


def test_a_path_leads_from_chapter_to_chapter(site, tab):
    path = PLAN["paths"][0]
    visit(tab, site, site.written[0])
    tab.locator(f".reading-paths a[href*='path={path['name']}']").first.click()
    for place, number in enumerate(path["chapters"]):
        tab.wait_for_url(f"**/{number:02}_*.html?path={path['name']}")
        bar = tab.locator("nav.path-bar")
        assert f"{place + 1} of {len(path['chapters'])}" in bar.inner_text()
        if place + 1 < len(path["chapters"]):
            tab.locator(".prev-next-area a.right-next").click()
    assert not tab.locator(".prev-next-area a.right-next").is_visible()
    tab.get_by_text("leave the path").click()
    tab.wait_for_url(lambda url: "?" not in url)
    assert tab.locator("nav.path-bar").count() == 0 and not tab.trouble


def test_the_gallery_shows_every_chapter(site):
    from PIL import Image

    page = site.pages[site.written[0]]
    text = (site.folder / site.written[0]).read_text(encoding="utf-8")
    seconds = json.loads((ROOT / "results" / "seconds.json").read_text(encoding="utf-8"))["seconds"]
    images = [image for image in page.images if "gallery" in image["src"]]
    assert len(images) == len(site.chapters) == len(seconds)
    for name, image in zip(site.chapters, images):
        number, rows = Path(name).name[:2], claims.read(ROOT / name.replace(".html", ".ipynb"))
        file = site.folder / "_static" / "gallery" / f"{number}.webp"
        assert image["src"].endswith(f"/{number}.webp") and f"../{name}" in page.links
        assert file.stat().st_size < 20_000 and image["loading"] == "lazy" and len(image["alt"]) > 20
        assert Image.open(file).size == (int(image["width"]), int(image["height"]))
        chapter = (site.folder / name).read_text(encoding="utf-8")
        assert verdicts.tally(rows) in text
        assert f"runs in about {seconds[number]} s" in text and f"runs in about {seconds[number]} s" in chapter


def test_a_card_shows_one_panel_without_the_title_above_all(tmp_path):
    from matplotlib.figure import Figure
    from mvnb_gallery import panel
    from PIL import Image

    def drawn(*colors):
        fig = Figure(figsize=(7.5, 3.4), layout="constrained")
        for ax, color in zip(fig.subplots(1, len(colors), squeeze=False)[0], colors):
            ax.set(facecolor=color, ylabel="height")
        fig.suptitle("All panels", color="lime")
        fig.savefig(tmp_path / "figure.png", dpi=200)
        return Image.open(tmp_path / "figure.png").convert("RGB")

    def colors(image):
        return {color for _, color in image.getcolors(image.width * image.height)}

    red, blue, lime = (255, 0, 0), (0, 0, 255), (0, 255, 0)
    two = drawn("red", "blue")
    assert {red, blue, lime} <= colors(two)
    for side, shown in (("left", red), ("right", blue)):
        part = panel(two, side)
        assert {red, blue, lime} & colors(part) == {shown} and part.width < 0.6 * two.width
        assert colors(part.crop((0, 0, 4, part.height))) == {(255, 255, 255)}, "a label is cut"
    one = drawn("red")
    assert panel(one, "left") is one


def test_letters_of_cards_are_legible(site, tab):
    from mvnb_gallery import WIDTH, panel, side
    from PIL import Image

    visit(tab, site, site.written[0])
    boxes = tab.locator("ul.gallery img").evaluate_all(
        "all => all.map(i => [i.clientWidth, i.clientHeight, i.width, i.height])"
    )
    sizes = [[int(i["width"]), int(i["height"])] for i in site.pages[site.written[0]].images if "gallery" in i["src"]]
    for name, box, size in zip(site.chapters, boxes, sizes, strict=True):
        chapter = resolve(Path(name).stem, ROOT)
        notebook = nbformat.read(chapter.notebook, as_version=4)
        data = [o["data"] for cell in notebook.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
        figure = panel(Image.open(io.BytesIO(base64.b64decode(data[0]["image/png"]))).convert("RGB"), side(ROOT, chapter))
        shown = min((box[0] - 13) / size[0], (box[1] - 13) / size[1]) * WIDTH / figure.width
        assert 11 / 72 * 200 * shown > 8, (name, "pixels of letters of 11 points, at 200 dots per inch")


def test_the_first_page_and_the_scoreboard_count_the_same_claims(site):
    pages = [(site.folder / name).read_text(encoding="utf-8") for name in (site.written[0], "book/reproduction.html")]
    counts = [re.search(r"<strong>(Of the papers’ headline claims: .*?)</strong>", page)[1] for page in pages]
    assert counts[0] == counts[1]
    failing = [row for row in json.loads((site.folder / "_static" / "claims.json").read_text()) if row["verdict"] == "fails"]
    exact = sum(row["kind"] == "exact" for row in failing)
    assert f"{len(failing)} fail" in pages[0] and f"{exact} fail in the paper’s own set-up" in pages[0]


def test_the_verdicts_on_headline_claims_stand_below_the_claim(site):
    for name in site.chapters:
        rows = [row for row in claims.read(ROOT / name.replace(".html", ".ipynb")) if row["headline"]]
        _, _, article = (site.folder / name).read_text(encoding="utf-8").partition("<article")
        opening, _, _ = article.partition("<h2>")
        line = re.search(r'<p class="claim-verdict">.*?</p>', opening, re.DOTALL)[0]
        held = sum(row["verdict"] == "holds" for row in rows)
        assert (f"All {held}" if held == len(rows) else f"{held} of {len(rows)}") in line
        assert set(re.findall(r'href="#claim-([^"]+)"', line)) == {row["id"] for row in rows if row["verdict"] != "holds"}
        claim = re.search(r"<p( id=[^>]*)?>", opening)[0]
        order = (claim, "claim-verdict", "<img", "<blockquote", "chapter-cost", "reading-time")
        places = [opening.index(one) for one in order]
        assert places == sorted(places), (name, "the claim and a picture come first, then what the chapter cites and takes")
        assert re.search(r"[^.;:]\.</p>$", re.sub(r"</?[^p/][^>]*>", "", line)) and not re.search(r"\.\s*[.;]", line), name
        assert ("allows both answers" in line) == any(row["verdict"] == "undecided" for row in rows)
        assert re.search(r"The (chapter|lesson) takes about \d+ minutes; it assumes ", opening)


@pytest.mark.parametrize("tab", [{"viewport": PHONE, "java_script_enabled": False}], indirect=True)
def test_a_card_leads_to_its_chapter_without_scripts(site, tab):
    tab.goto(site.url + site.written[0])
    card = tab.locator("ul.gallery > li").nth(4)
    card.locator("img").scroll_into_view_if_needed()
    box = card.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] and card.locator(".gallery-paper a").count() == 2
    card.click(position={"x": 40, "y": 40})
    tab.wait_for_url(f"**/{site.chapters[4]}")


def test_the_picture_of_a_page_in_the_readme_is_current(site, browser):
    def screenshot():
        with fresh_tab(browser) as tab:
            visit(tab, site, site.chapters[0])
            return tab.screenshot()

    opening = re.search("<h1>.*?(?=<figure)", (site.folder / site.chapters[0]).read_text(encoding="utf-8"), re.DOTALL)[0]
    check_picture(ROOT / "book" / "_static" / "page.png", re.sub("<[^>]+>", "", opening), screenshot)


# -- citing --------------------------------------------------------------------------------------------------------


def test_chapters_say_how_they_and_their_papers_are_cited(site):
    for name in site.chapters:
        text = (site.folder / name).read_text(encoding="utf-8")
        title = resolve(Path(name).stem, ROOT).title
        assert f'<meta name="citation_title" content="{html.escape(title)}" />' in text
        assert re.search(
            r'<meta name="citation_reference" content="citation_title=[^"]{20,}; citation_author=[^"]+=20\d\d" />', text
        )
        box = re.search(r'<details class="cite">.*?</details>', text, re.DOTALL)[0]
        assert box.count("<pre>") == 2 and f"{{{html.escape(title)}}}" in box and "url" not in box
    assert "@book{mvnb" in (site.folder / site.written[0]).read_text(encoding="utf-8")


def test_the_bibliography_leads_back(site):
    page = site.pages["book/references.html"]
    text = (site.folder / "book" / "references.html").read_text(encoding="utf-8")
    entries = re.findall(r'<div class="citation" .*?</div>', text, re.DOTALL)
    assert sum("Cited in" in entry for entry in entries) > 0.9 * len(entries) > 50  # it also lists what none cites
    for name in site.chapters:  # the crawl sees that the places exist
        assert any(link.startswith(f"../{name}#") for link in page.links), name


def test_a_citation_has_an_address_where_the_site_has_one():
    import mvnb_citation

    config = SimpleNamespace(copyright="2026", html_baseurl="https://example.org/b/")
    app = SimpleNamespace(srcdir=ROOT, config=config, builder=SimpleNamespace(get_target_uri="{}.html".format))
    _, head, entry = mvnb_citation.own(app, "notebooks/05_local_signal_adaptivity", resolve("05", ROOT))
    assert head["public_url"] == "https://example.org/b/notebooks/05_local_signal_adaptivity.html"
    assert entry.startswith("@incollection{mvnb2026chapter05,\n") and entry.endswith("},\n}")
    fields = dict(re.findall(r"^  (\w+) += \{(.+)\},$", entry, re.MULTILINE))
    assert fields["url"] == head["public_url"] and fields["chapter"] == "5" and fields["author"] == "{The mvnb authors}"


# -- links to everything -------------------------------------------------------------------------------------------


def test_statements_claims_equations_and_pictures_have_permalinks(site):
    named = (
        r'<div class="(?:proof|exercise) [\w ]*" id="(\w+-\d\d-[^"]+)"',
        r'<div class="math [\w ]*" id="(equation-[^"]+)"',
        r'<tr id="(claim-[^"]+)"',
        r'<div class="picture" id="([^"]+)"',
    )
    for name in site.chapters:
        text = (site.folder / name).read_text(encoding="utf-8")
        linked = set(re.findall(r'<a class="headerlink" href="#([^"]+)"', text))
        for pattern in named:
            wanted = set(re.findall(pattern, text))
            assert wanted and wanted <= linked, (name, pattern, wanted - linked)


def test_no_line_begins_with_the_full_stop_behind_a_formula(site):
    followed = r'<span class="math[^>]*>[^<]*</span>[.,;:)]'
    for name in site.chapters:
        text = (site.folder / name).read_text(encoding="utf-8")
        kept = len(re.findall('<span class="formula-and-end">' + followed, text))
        assert kept == len(re.findall(followed, text)) > 0, name


def test_search_finds_a_theorem_by_its_name(site, tab):
    visit(tab, site, "search.html?q=gap+always+closes")
    hits = tab.locator("#search-results li a")
    hits.first.wait_for()
    assert "01_midpoint_mixup" in hits.first.get_attribute("href")


def test_pages_say_what_they_are_to_others(site):
    for name in site.written:
        text = (site.folder / name).read_text(encoding="utf-8")
        for key in ("og:title", "og:description", "og:type"):
            assert re.search(rf'<meta property="{key}" content="[^"]{{3,}}"', text), (name, key)


def test_a_wrong_address_leads_back(site, tab):
    visit(tab, site, "404.html")
    assert tab.locator("h1:visible").inner_text().startswith("There is no such page")
    tab.locator("article a[href$='intro.html']").click()
    tab.wait_for_url(f"**/{site.written[0]}")
    assert not tab.trouble


# -- light and calm ------------------------------------------------------------------------------------------------


def test_pictures_move_nothing_when_they_come(site, tab):
    for name in site.chapters:
        drawn = [image for image in site.pages[name].images if "_images" in image["src"]]
        assert drawn and all(one.get("loading") == "lazy" for one in drawn), name
    visit(tab, site, site.chapters[0])
    pictures = "[...document.querySelectorAll('article .cell_output img')]"
    assert not tab.evaluate(f"() => {pictures}.at(-1).complete")
    before = tab.evaluate("() => document.documentElement.scrollHeight")
    tab.evaluate(f"() => Promise.all({pictures}.map(one => {{ one.loading = 'eager'; return one.decode(); }}))")
    assert tab.evaluate("() => document.documentElement.scrollHeight") == before


@pytest.mark.parametrize("tab", [{"viewport": {"width": w, "height": 900}} for w in (1280, 1800)], indirect=True)
def test_text_stands_still_when_the_contents_on_its_right_come(site, tab):
    """They come after it in the page, and a slow browser shows it without them first."""
    tab.goto(site.url + site.chapters[0], wait_until="domcontentloaded")
    article = tab.locator("article.bd-article")
    before = article.bounding_box()
    tab.evaluate("document.querySelector('.bd-sidebar-secondary').remove()")
    assert article.bounding_box() == before


def test_figures_and_pages_have_the_same_letters_on_every_machine(site, tab):
    import matplotlib as mpl
    from matplotlib.font_manager import FontProperties, findfont

    from mvnb import figures

    with mpl.rc_context():
        figures.use_style()
        families, file = mpl.rcParams["font.sans-serif"], findfont(FontProperties())
    assert Path(file).is_relative_to(mpl.get_data_path()) and len(families) == 1
    visit(tab, site, site.chapters[0])
    for place in ("article p", "article h1", ".explorer-picture text"):
        found = tab.locator(place).first.evaluate("node => getComputedStyle(node).fontFamily")
        assert found.startswith(f'"{families[0]}", '), place


@pytest.mark.parametrize("tab", [{"viewport": {"width": w, "height": 900}} for w in (1280, 1800)], indirect=True)
def test_figures_have_the_size_at_which_they_were_drawn(site, tab):
    visit(tab, site, site.chapters[0])
    widths = tab.locator("article .cell_output img").evaluate_all(
        "all => all.map(i => [i.clientWidth, +i.getAttribute('width')])"
    )
    assert widths and all(shown == drawn for shown, drawn in widths)


# -- for everyone --------------------------------------------------------------------------------------------------


def test_paper_shows_the_text_alone_with_its_solutions(site, tab):
    visit(tab, site, site.chapters[0])
    tab.emulate_media(media="print")
    for gone in (".bd-sidebar-primary", ".bd-sidebar-secondary", ".prev-next-area", "article h1 a.headerlink"):
        assert not tab.locator(gone).first.is_visible(), gone
    solution = tab.locator("div.solution").first.locator(".section, section, .solution-content").first
    assert solution.is_visible() and solution.bounding_box()["height"] > 20


def test_the_book_is_bound_as_one_file(site, tmp_path):
    from pypdf import PdfReader

    target, pages = tmp_path / "book.pdf", ["book/intro.html", "book/closing.html"]
    command = [sys.executable, ROOT / "book" / "_ext" / "print_book.py", site.folder, target, *pages]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    pdf = PdfReader(target)
    titles = [entry.title for entry in pdf.outline]
    assert len(titles) == 2 and "feature learning" in pdf.pages[0].extract_text()
    actions = [mark.get_object().get("/A", {}) for sheet in pdf.pages for mark in sheet.get("/Annots", ())]
    assert not [one for one in actions if "127.0.0.1" in str(one.get("/URI", ""))]
    places = [one["/D"][0] for one in actions if one.get("/S") == "/GoTo" and isinstance(one["/D"], list)]
    assert len(set(map(pdf.get_page_number, [place.get_object() for place in places]))) > 1
    wrong = subprocess.run([*map(str, command[:3]), str(target), "book/nowhere.html"], capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stderr.count("\n") == 1


# -- running again -------------------------------------------------------------------------------------------------


def test_sources_can_be_downloaded(site, tab):
    for name in site.chapters:
        stem = name.removesuffix(".html")
        for kind in ("py", "ipynb"):
            assert (site.folder / "_sources" / f"{stem}.{kind}").read_bytes() == (ROOT / f"{stem}.{kind}").read_bytes()
    visit(tab, site, site.chapters[0])
    links = tab.locator(".dropdown-download-buttons a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    name = Path(site.chapters[0]).stem
    assert links[:2] == [f"../_sources/plain/{name}.ipynb", f"../_sources/notebooks/{name}.py"]


@pytest.fixture(scope="module")
def build_with(tmp_path_factory):
    """Builds a site of one chapter, of a repository with an address and, with those in the environment, other addresses."""

    def build(repository: str, **addresses: str):
        folder = tmp_path_factory.mktemp("small")
        (folder / "notebooks").mkdir()
        (folder / "notebooks" / "01_small.py").write_text("# %%\n1 + 1\n", encoding="utf-8")
        cells = [nbformat.v4.new_markdown_cell("# Small"), nbformat.v4.new_code_cell("1 + 1")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "notebooks" / "01_small.ipynb")
        (folder / "_toc.yml").write_text("format: jb-book\nroot: notebooks/01_small\n", encoding="utf-8")
        (folder / "pyproject.toml").write_text(f'[tool.mvnb]\nrepository = "{repository}"\n', encoding="utf-8")
        config = {"execute": {"execute_notebooks": "off"}}
        config["sphinx"] = {"local_extensions": {"mvnb_reading": str(ROOT / "book" / "_ext")}}
        (folder / "_config.yml").write_text(json.dumps(config), encoding="utf-8")
        command = [Path(sys.executable).with_name("jupyter-book"), "build", folder, "--all"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("MVNB_")} | addresses
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=env)
        return done, folder / "_build" / "html"

    return build


def test_a_site_with_addresses_offers_runs_and_a_sitemap(build_with):
    done, site = build_with("https://github.com/someone/features", MVNB_SITE="https://someone.github.io/features")
    page = (site / "notebooks" / "01_small.html").read_text(encoding="utf-8")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "mybinder.org" in page and "colab.research.google.com/github/someone/features" in page
    assert "git clone https://github.com/someone/features" in page and "mvnb run 01" in page
    assert "https://someone.github.io/features/notebooks/01_small.html" in (site / "sitemap.xml").read_text(encoding="utf-8")


def test_a_site_without_addresses_offers_none_and_a_wrong_one_is_refused(build_with, site):
    for name in site.chapters:
        page = (site.folder / name).read_text(encoding="utf-8")
        assert "mybinder" not in page and "run-again" not in page
    assert not (site.folder / "sitemap.xml").exists()
    done, _ = build_with("someone/features")
    assert done.returncode != 0 and "repository in pyproject.toml must be a web address" in done.stdout + done.stderr


# -- lesson and record ---------------------------------------------------------------------------------------------

ADDRESSES = json.loads((ROOT / "tests" / "site" / "addresses.json").read_text())


@pytest.mark.parametrize("page", ADDRESSES)
def test_addresses_that_others_may_have_noted_still_lead_somewhere(site, page):
    assert not set(ADDRESSES[page]) - site.pages[f"{page}.html"].ids


@pytest.mark.parametrize("tab", [{}, {"viewport": PHONE}], ids=["desktop", "phone"], indirect=True)
def test_a_lesson_says_how_long_it_takes_and_leads_to_its_record(site, tab):
    visit(tab, site, "notebooks/06_decision_lists.html")
    said = tab.locator("p.reading-time")
    assert re.search(r"takes about \d\d minutes", said.inner_text())
    said.get_by_role("link", name="the record").click()
    record = tab.locator("section.record")
    sections = record.locator(":scope > section > :is(h2, h3)").all_inner_texts()
    listed = record.locator("ul.record-contents a").all_inner_texts()
    assert len(listed) > 5 and listed == [re.sub(r"^[\d.]+ |#$", "", title).strip() for title in sections]
    assert not tab.locator("div.cell_input", has_text="NBVAL_CHECK_OUTPUT").count()
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_headlines_stand_in_the_lesson_and_lead_to_the_ledger(site, tab):
    visit(tab, site, "notebooks/06_decision_lists.html")
    claims_of_page = json.loads((site.folder / "_static" / "claims.json").read_text())
    rows = [row for row in claims_of_page if row["chapter"] == "06_decision_lists" and row["headline"]]
    table = tab.locator("table.mvnb-headlines")
    links = table.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == [f"#claim-{row['id']}" for row in rows]
    assert [verdict.split()[-1] for verdict in table.locator(".verdict").all_inner_texts()] == [row["verdict"] for row in rows]
    links.first.click()
    assert tab.locator(f"#claim-{rows[0]['id']}").is_visible()


def test_parameters_of_a_lesson_are_folded(site, tab):
    visit(tab, site, "notebooks/06_decision_lists.html")
    folded = tab.locator("details", has_text="one_step_sequences = ").first
    assert folded.get_attribute("open") is None
