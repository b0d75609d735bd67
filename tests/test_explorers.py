"""Explorers in a bare page: their numbers are those of ``mvnb.theory``, their pictures those in the repository.

``MVNB_DRAW=1 pytest tests/test_explorers.py`` draws the pictures anew.
"""

from __future__ import annotations

import functools
import http.server
import os
import random
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from mvnb import figures
from mvnb.theory import gemfilter

STATIC = Path(__file__).resolve().parents[1] / "book" / "_static"
NAMES = sorted(path.stem for path in (STATIC / "explorers").glob("*.js"))

# -- the same numbers in Python: from the values of the controls and what else a figure returns, such as its grids ------


def find_and_read(n, share, margin, seen):
    k = max(1, round(share * n))
    margins, lengths = np.array(seen["margins"]), np.array(seen["lengths"])
    return {
        "k": k,
        "read": gemfilter.reading_share(margins, 1.0, n),
        "again": gemfilter.reading_share(margins, 1.0, k),
        "found": gemfilter.finding_probability(margins, 1.0, n, k),
        "toRead": gemfilter.reading_margin(1.0, lengths),
        "toReadAgain": gemfilter.reading_margin(1.0, share * lengths),
        "toFind": gemfilter.finding_margin(1.0, 1.0, share),
    }


EXPECTED = {"15-find-and-read": (find_and_read, {"margins", "lengths"})}

# -- the page ------------------------------------------------------------------------------------------------------

FIGURE = """<!doctype html><html data-theme="light"><meta charset="utf-8"><title>{name}</title>
<link rel="stylesheet" href="/mvnb.css"><article class="bd-article"><figure class="explorer" data-explorer="{name}">
<div class="explorer-controls"></div><div class="explorer-stage"></div>
<p class="explorer-readout"></p><span class="explorer-reset"></span></figure></article>
<script src="/explorers.js"></script><script src="/explorers/{name}.js"></script></html>"""


@pytest.fixture(scope="module")
def address():
    class Pages(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if not self.path.startswith("/page/"):
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(FIGURE.format(name=self.path.removeprefix("/page/")).encode())

        def log_message(self, *args):
            pass

    handler = functools.partial(Pages, directory=str(STATIC))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/page/"
        server.shutdown()


@pytest.fixture(params=NAMES)
def explorer(browser, address, request):
    """A tab with one live figure."""
    tab = browser.new_page()
    tab.trouble, tab.explorer = [], request.param
    tab.on("pageerror", lambda error: tab.trouble.append(str(error)))
    tab.goto(address + request.param)
    yield tab
    assert not tab.trouble
    tab.close()


def settings(explorer):
    """Values of the controls: defaults, ends, and five at random."""
    controls = explorer.evaluate("name => mvnbExplorer.known[name].controls", explorer.explorer)
    start = explorer.evaluate("name => mvnbExplorer.defaults(mvnbExplorer.known[name])", explorer.explorer)
    draw = random.Random(explorer.explorer)

    def choices(control):
        if "options" in control:
            return [value for value, _ in control["options"]]
        return [control["min"], control["max"]]

    def anywhere(control):
        if "options" in control:
            return draw.choice(choices(control))
        t = draw.random()
        low, high = choices(control)
        if control.get("log"):
            value = low * (high / low) ** t
            return round(value) if control.get("integer") else value
        return low + control["step"] * round(t * (high - low) / control["step"])

    ends = [{**start, one["name"]: value} for one in controls for value in choices(one)]
    return [start, *ends, *({one["name"]: anywhere(one) for one in controls} for _ in range(5))]


def test_numbers_are_those_of_the_package(explorer):
    reference, grids = EXPECTED[explorer.explorer]
    for values in settings(explorer):
        seen = explorer.evaluate("([name, values]) => mvnbExplorer.known[name].compute(values)", [explorer.explorer, values])
        expected = reference(**values, seen=seen)
        assert set(seen) == set(expected) | grids
        for key, value in expected.items():
            np.testing.assert_allclose(seen[key], value, rtol=1e-6, atol=1e-9, err_msg=f"{key} at {values}")


def test_picture_is_the_figure_at_its_defaults(explorer):
    drawn = explorer.evaluate("name => mvnbExplorer.picture(name)", explorer.explorer)
    path = STATIC / "explorers" / f"{explorer.explorer}.svg"
    if os.environ.get("MVNB_DRAW"):
        path.write_text(drawn, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == drawn, "MVNB_DRAW=1 pytest tests/test_explorers.py draws it anew"


def shown(explorer):
    picture = explorer.locator(".explorer-stage").inner_html()
    readout = explorer.locator(".explorer-readout").inner_text()
    assert not re.search("NaN|undefined|Infinity|null|∞", picture + readout), (picture, readout)
    assert explorer.locator(".explorer-picture").get_attribute("aria-label").endswith(readout)
    return re.sub('aria-label="[^"]*"', "", picture), readout


def test_every_control_moves_the_figure_by_keyboard(explorer):
    start = shown(explorer)
    controls = explorer.locator(".explorer-controls :is(input, select)")
    assert controls.count() >= 2
    for k in range(controls.count()):
        control = controls.nth(k)
        assert control.evaluate("node => node.labels[0].textContent")
        states = []
        for key in ("End", "Home"):
            control.press(key)
            states.append(shown(explorer))
        assert states[0][0] != states[1][0] and states[0][1] != states[1][1], control.get_attribute("id")
        explorer.get_by_role("button", name="Reset").press("Enter")
        assert shown(explorer) == start


def test_every_label_finds_a_place(explorer):
    """At the defaults none is dropped, none lies on another or leaves the picture."""
    wanted = explorer.evaluate(
        """name => { const e = mvnbExplorer.known[name], v = mvnbExplorer.defaults(e);
        return e.draw(v, e.compute(v)).panels.flatMap(p => p.marks.map(m => m.label).filter(Boolean)) }""",
        explorer.explorer,
    )
    boxes = explorer.locator(".explorer-stage .label").evaluate_all(
        "all => all.map(node => [node.textContent, node.getBoundingClientRect().toJSON()])"
    )
    assert sorted(text for text, _ in boxes) == sorted(wanted)
    for i, (text, a) in enumerate(boxes):
        for other, b in boxes[:i]:
            apart = (
                a["right"] <= b["left"] or b["right"] <= a["left"] or a["bottom"] <= b["top"] + 4 or b["bottom"] <= a["top"] + 4
            )
            assert apart, (text, other)


def test_palette_is_the_books(explorer):
    palette = explorer.evaluate("mvnbExplorer.LIGHT")
    book = {*figures.COLORS.values(), *figures.VIEW_COLORS}
    assert {palette[name] for name in palette if name not in ("rule", "ground")} <= book


def test_every_explorer_is_compared():
    assert set(NAMES) == set(EXPECTED)
