"""Every page opened in Chromium once a theme; all that is asked of a page is asked at that visit."""

from __future__ import annotations

import functools
import gzip
import re
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from site_checks import DESKTOP, PHONE, fresh_tab, leave_mathematics, visit

UNRENDERED = r"""() => {
  const text = document.querySelector('article').cloneNode(true);
  text.querySelectorAll('pre, code, script, style, mjx-container').forEach(node => node.remove());
  return (text.textContent.match(/.{0,40}(\$[^$\n]+\$|\\begin|\\frac|\\sum|\\\(|\\\[).{0,40}/g) || []);
}"""
TOO_WIDE = """() => [...document.querySelectorAll('mjx-container[display="true"]')]
  .filter(box => box.clientWidth > 0 && box.scrollWidth > box.clientWidth + 1).map(box => box.closest('[id]')?.id)"""
STRETCHED = """() => [...document.querySelectorAll("article img")]
  .filter(i => i.clientHeight && i.naturalHeight && getComputedStyle(i).objectFit === "fill")
  .filter(i => Math.abs(i.clientWidth * i.naturalHeight / (i.clientHeight * i.naturalWidth) - 1) > 0.05).map(i => i.src)"""
WIDER = """() => [document.documentElement, document.body].map(one => one.scrollWidth)
  .filter(width => width > document.documentElement.clientWidth + 1)"""
# Whether each solution's text can be seen: at first, after a click on its button, and after another.
SOLUTIONS = """() => [...document.querySelectorAll('div.solution')].map(box => {
  const text = box.querySelector('.section, section, .solution-content');
  const seen = () => text.checkVisibility({ visibilityProperty: true }) && text.getBoundingClientRect().height > 0;
  const states = [seen()];
  for (let k = 0; k < 2; k++) { box.querySelector('button.toggle-button').click(); states.push(seen()); }
  return states;
})"""
BRIGHT = ["book/intro", "book/reproduction", "book/glossary", "book/notation", "search", "notebooks/05_local_signal_adaptivity"]
BRIGHT += ["book/api", "book/api/models"]
DARK = ["book/intro", "book/glossary", "notebooks/14_looped_transformers"]
# Formulas and code are the business of MathJax and Pygments, and rows of a table are made alike; with all of them axe takes
# a minute a page.
SHORTENED = """() => {
  const left = [...document.querySelectorAll('article mjx-container, article .highlight pre')];
  const widths = left.map(one => one.offsetWidth);
  left.forEach((one, k) => {
    const box = document.createElement('span');
    box.textContent = 'x';
    box.style.cssText = `display: inline-block; width: ${widths[k]}px`;
    one.replaceWith(box);
  });
  document.querySelectorAll('article tbody').forEach(body => [...body.rows].slice(20).forEach(row => row.remove()));
}"""


def barriers(tab):
    """Return the barriers that axe calls serious or critical. The page is changed afterwards."""
    tab.evaluate(SHORTENED)
    found = Axe().run(tab).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(one["id"], len(one["nodes"]), one["nodes"][0]["html"][:120]) for one in serious]


@functools.cache
def compressed(file):
    """Bytes that a server would send of a file."""
    return len(gzip.compress(file.read_bytes(), 6))


def look(tab, site, name, accessible=()):
    """One visit of a page on a desk, which is made as narrow as a phone for a moment."""
    asked = []
    tab.goto("about:blank")
    tab.trouble.clear()
    tab.on("response", note := lambda response: asked.append(urlsplit(response.url).path))
    visit(tab, site, name)
    tab.remove_listener("response", note)
    unknown = "mjx-mtext[style*='color: red']"  # how MathJax sets a command it does not know
    found = {
        "trouble": list(tab.trouble),  # before axe, which asks for style sheets at wrong addresses
        "hosts": set(tab.hosts),
        "weight": sum(compressed(site.folder / path) for path in {unquote(path).lstrip("/") for path in asked}),
        "theme": tab.locator("html").get_attribute("data-theme"),
        "errors": tab.locator(f"mjx-merror, {unknown}").count(),
        "formulas": tab.locator("mjx-container").count(),
    }
    if name in site.written:
        asked_of = {"unrendered": UNRENDERED, "wide": TOO_WIDE, "wider": WIDER, "solutions": SOLUTIONS}
        found |= {key: tab.evaluate(question) for key, question in asked_of.items()}
        tab.set_viewport_size(PHONE)
        found["phone"] = tab.evaluate(WIDER) + tab.evaluate(STRETCHED)
        tab.set_viewport_size(DESKTOP)
    return found | {"barriers": barriers(tab) if name.removesuffix(".html") in accessible else []}


def different(site):
    """Return the pages without redirects, and one page each of the package's sources and papers, which are made alike."""
    pages = [name for name, page in site.pages.items() if not page.redirect]
    for folder in ("_modules/", "book/api/papers/"):
        alike = [name for name in pages if name.startswith(folder)]
        pages = [name for name in pages if name not in alike[1:]]
    return pages


@pytest.fixture(scope="module")
def desk(site, browser):
    """Findings on every page of the site, at desktop size in the light theme."""
    with fresh_tab(browser) as tab:
        return {name: look(tab, site, name, BRIGHT) for name in different(site)}


@pytest.fixture(scope="module")
def dark(site, browser):
    """Findings in the dark theme, on the pages with explorers."""
    drawn = {name for name, page in site.pages.items() if any(one.startswith("explorer-") for one in page.ids)}
    with fresh_tab(browser, color_scheme="dark") as tab:
        leave_mathematics(tab)
        return {name: look(tab, site, name, DARK) for name in sorted(drawn | {f"{one}.html" for one in DARK})}


def finding(pages, key, wrong=bool):
    """The pages on which something was found."""
    return {name: found[key] for name, found in pages.items() if key in found and wrong(found[key])}


@pytest.mark.parametrize("mode", ["desk", "dark"])
def test_pages_open_without_a_complaint(mode, request):
    pages = request.getfixturevalue(mode)
    assert len(pages) > 5 and not finding(pages, "trouble")
    assert not finding(pages, "hosts", lambda hosts: hosts != {"127.0.0.1"})
    assert not finding(pages, "theme", lambda theme: theme != ("dark" if mode == "dark" else "light"))


@pytest.mark.parametrize("mode", ["desk", "dark"])
def test_no_serious_barrier(mode, request):
    assert not finding(request.getfixturevalue(mode), "barriers")


def test_mathematics_is_rendered(site, desk):
    for key in ("errors", "unrendered", "wide", "wider"):
        assert not finding(desk, key), key
    few = finding(desk, "formulas", lambda count: count <= 10)
    assert not set(few) & {*site.chapters, "book/notation.html"}


def test_mathjax_is_loaded_where_there_are_formulas(site):
    for name in site.written:
        formulas = re.search('class="(?:amsmath )?math', (site.folder / name).read_text(encoding="utf-8"))
        assert any("mathjax" in asset for asset in site.pages[name].assets) == bool(formulas), name
    assert not any("mathjax" in asset for asset in site.pages[site.written[0]].assets)


def test_solutions_open_on_click(site, desk):
    for name in site.chapters:
        assert len(desk[name]["solutions"]) >= 3, name
        assert all(states == [False, True, False] for states in desk[name]["solutions"]), name


def test_pages_are_light(site, desk):
    written = {name: desk[name] for name in site.written if name in desk}
    assert not finding(written, "weight", lambda weight: weight > 1_000_000)
    assert min(found["weight"] for found in written.values()) > 10_000


def test_pages_have_one_style_sheet_with_the_icons_they_use(site, tab):
    sheets = {name: re.findall(r'<link [^>]*rel="stylesheet"[^>]*>', (site.folder / name).read_text()) for name in site.written}
    assert not {name: found for name, found in sheets.items() if len(found) != 1}
    assert compressed(site.folder / "_static" / "book.css") < 80_000
    for name in (site.written[0], site.chapters[0], "search.html"):
        visit(tab, site, name)
        icons = tab.locator("i.fa-solid, i.fas, span.fa-solid").evaluate_all(
            "all => all.map(one => [one.className, getComputedStyle(one, '::before').content])"
        )
        assert icons and not [icon for icon, content in icons if content in ("none", "normal")], name


def test_pages_fit_a_phone(desk):
    assert not finding(desk, "phone")


SIGNED = """boxes => boxes.filter(x => x.clientWidth && x.scrollWidth > x.clientWidth + 1).map(x => getComputedStyle(x))
    .map(look => look.backgroundImage.includes('gradient') && look.backgroundAttachment.split(', ').includes('local'))"""


@pytest.mark.parametrize(
    ("page", "what"),
    [
        (0, "div.math > mjx-container"),
        (0, "section > p mjx-container:not([display='true'])"),
        ("book/part-views.html", ".pst-scrollable-table-container"),
    ],
)
def test_what_goes_on_beyond_the_edge_of_a_phone_says_so(site, browser, page, what):
    with fresh_tab(browser, viewport=PHONE, has_touch=True, is_mobile=True) as tab:
        visit(tab, site, page or min(site.chapters))
        signed = tab.locator(f"article {what}").evaluate_all(SIGNED)
        assert signed and all(signed)
        grounds = tab.locator("article :is(tr, td)").evaluate_all("all => all.map(x => getComputedStyle(x).backgroundColor)")
        assert what != ".pst-scrollable-table-container" or set(grounds) == {"rgba(0, 0, 0, 0)"}


SHIFTS = """window.shifted = 0;
new PerformanceObserver(list => list.getEntries().forEach(one => { window.shifted += one.value; }))
    .observe({ type: 'layout-shift', buffered: true });"""
UNSET = """() => [...document.querySelectorAll('article .math:has(mjx-lazy)')].filter(one => one.checkVisibility())
    .map(one => one.getBoundingClientRect()).filter(box => box.bottom > 0 && box.top < innerHeight).length"""


def test_formulas_are_set_when_they_come_near_and_nothing_moves(site, browser):
    with fresh_tab(browser) as tab:
        tab.add_init_script(SHIFTS)
        tab.goto(site.url + max(site.chapters), wait_until="load")
        tab.wait_for_function("document.documentElement.classList.contains('mathematics')")
        waiting = tab.locator("mjx-lazy").count()
        assert waiting > 20
        for _ in range(12):
            tab.mouse.wheel(0, 700)
            tab.wait_for_timeout(300)
        tab.wait_for_function(f"({UNSET})() === 0")
        assert tab.locator("mjx-lazy").count() < waiting
        assert tab.evaluate("window.shifted") < 0.1


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize(
    "page, target",
    [
        ("notebooks/09_gradient_features.html", "claim-sure-probability"),
        ("notebooks/11_icl_and_scale.html", "claim-attention-spreads-with-size"),
        ("notebooks/12_nuclear_norm.html", "claim-nuclear-norm-selects"),
    ],
)
def test_a_jump_lands_though_formulas_above_are_set_later(site, browser, viewport, page, target):
    with fresh_tab(browser, viewport=viewport) as tab:
        tab.goto(f"{site.url}{page}#{target}", wait_until="load")
        tab.wait_for_function("document.documentElement.classList.contains('mathematics')")
        tab.wait_for_function(f"({UNSET})() === 0")
        tab.wait_for_timeout(1000)
        assert 0 <= tab.locator(f"[id='{target}']").bounding_box()["y"] <= 200


def test_formulas_are_no_stops_of_the_tab_key(site, browser):
    with fresh_tab(browser) as tab:
        tab.goto(site.url + max(site.chapters), wait_until="load")
        tab.wait_for_function("document.documentElement.classList.contains('mathematics')")
        assert tab.locator("mjx-container").count() > 20
        assert not tab.locator("mjx-container[tabindex='0']").count()
