"""Explorers in a bare page: their numbers are those of the papers' closed forms, their pictures those in the repository.

``MVNB_DRAW=1 pytest tests/site/test_explorers.py`` draws the pictures anew, also as PNG, for notebooks that are downloaded.
"""

from __future__ import annotations

import functools
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from print_book import Quiet, served
from scipy import special
from site_checks import check_picture, fresh_tab

from mvnb import figures, kept_runs
from mvnb.papers.algorithmic_stability import theory as stability
from mvnb.papers.decision_lists import theory as lists
from mvnb.papers.gemfilter import theory as gemfilter
from mvnb.papers.icl_and_scale import icl
from mvnb.papers.landscape_aware_growing import measure as growing
from mvnb.papers.landscape_aware_growing import theory as growth
from mvnb.papers.local_signal_adaptivity import theory as local
from mvnb.papers.looped_transformers import theory as looped
from mvnb.papers.midpoint_mixup import theory as midpoint
from mvnb.papers.nuclear_norm import theory as nuclear

STATIC = Path(__file__).resolve().parents[2] / "book" / "_static"
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


def tie(power, m, start, overlap, seen):
    def weak(size, level, q):  # the flow has no scale of its own: a race to `level` is one to 1 from a smaller start
        return level * stability.tie_weights(size, overlap, start / level, q)[1]

    q, sizes, levels = int(power), np.array(seen["sizes"]), np.array(seen["levels"][1:-1])
    assert sizes[0] in (m, m + 1) and sizes[0] % 2
    return {
        "weak": [start, *(weak(sizes[0], level, q) for level in levels), weak(sizes[0], 1.0, q)],
        "change": stability.tie_stability(sizes, overlap, start, q),
        "linear": stability.tie_stability(sizes, overlap, start, 1),
    }


def schedules(loops, step, kappa, seen):
    grid, ends = torch.tensor(seen["grid"], dtype=torch.float64), torch.tensor([1 / kappa, 1], dtype=torch.float64)
    steps = torch.full((40,), step, dtype=torch.float64)
    chebyshev, t = looped.chebyshev_steps(1 / kappa, 1, loops), np.arange(41)
    return {
        "along": {
            "constant": looped.residuals(grid, steps[:loops])[-1].numpy(),
            "chebyshev": looped.residuals(grid, chebyshev)[-1].numpy(),
        },
        "worst": {
            "constant": looped.residuals(ends, steps).abs().amax(1).numpy(),
            "chebyshev": [1, *(looped.residuals(ends, looped.chebyshev_steps(1 / kappa, 1, n))[-1].abs().max() for n in t[1:])],
            "printed": np.exp(-t / (2 * kappa)),
        },
        "best": looped.SCHEDULES["2/(L+mu)"](1 / kappa, 1, 1).item(),
    }


@functools.cache
def descent(k):
    return local.population_path(10_000, k, local.noise_scale(k), 0.1, 1 / k)


def forces(at, k, tilt, seen):
    k = int(k)
    sigma = local.noise_scale(k)

    def slopes(c, ratio):
        found = local.population_gradient(c, -ratio * c, k, sigma, tilt * c)
        return [found.c, found.b]

    def accuracy(ratio):
        return local.accuracy(1.0, -ratio, k, sigma, tilt)

    c, b = descent(k)[:, seen["steps"]]
    ratio, scale = -b[at] / c[at], sigma * np.hypot(1, tilt)
    return {
        "path": [c, -b / c],
        "here": slopes(c[at], ratio),
        "map": [[slopes(x, r) for x in seen["columns"]] for r in seen["rows"]],
        "exact": [accuracy(r) for r in seen["ratios"]],
        "now": accuracy(ratio),
        "linear": local.linear_accuracy(k, scale),
        "survivors": 2 * k * special.ndtr(-ratio / scale),
    }


def rank(reach, context, noise, flip, seen):
    spectrum, weights = np.linspace(1, 0.8, 20), np.exp(-np.arange(20) / reach)
    setting = {"n_context": context, "flip": flip}
    missed, inputs = icl.risk_terms(spectrum, weights, icl.pass_through(spectrum, 1e5, np.arange(21)), noise=0.0, **setting)
    risk = icl.risk(spectrum, weights, 1e5, np.arange(21), noise=noise, **setting)
    return {
        "missed": missed.sum(-1),
        "inputs": inputs.sum(-1),
        "labels": risk - (missed + inputs).sum(-1),
        "risk": risk,
        "gain": icl.direction_gain(spectrum, weights, 1e5, noise=noise, **setting),
    }


def order(time, demand, seen):
    starts = np.array(seen["starts"])

    def losses(times):
        return (growth.pair_product(starts[:, None], demand, times) - demand) ** 2 / 2

    high, low = starts[starts > demand], starts[starts < demand]
    return {
        "before": losses(np.zeros(1))[:, 0],
        "now": losses(np.array([time]))[:, 0],
        "curves": losses(np.array(seen["times"])),
        "swapped": (growth.crossing_time(low[:, None], high, demand) < time).sum(),
    }


def picked(look, run, rate, seen):
    kept, run = kept_runs.load("landscape_aware_growing", "operators"), int(run) - 1
    races, looks = growing.kept_losses(kept, f"{rate} rate")[:, [run]], kept["parameters"]["looks"]
    rows = [*(growing.seen(races, looks, step)[0] for step in seen["steps"]), growing.end(races, looks)[0]]
    losses = np.array(seen["losses"])
    np.testing.assert_allclose(losses, 1e4 * (np.array(rows) - kept["runs"][run]["values"]["small"]), atol=0.051)
    now, end = losses[int(look)], losses[-1]
    return {
        "pick": now.argmin(),
        "best": end.argmin(),
        "regret": growth.relative_regret(now[None], end)[0],
        "spearman": growth.self_correlation(np.stack([now, end]))[0, 1],
    }


def race(time, lead, alpha, seen):
    def escape(start, level=np.inf):
        return midpoint.escape_time(start, 1.0, 10, alpha, 1.0, level)

    first, second = 1 + lead, 1.0
    clock = escape(first) * np.array([*seen["way"], seen["reached"]])
    # a path is right if the time it takes to each of its values is the time at which it has it
    assert seen["reached"] == min(time, seen["way"][-1])
    for name, start, now in zip(("first", "second"), (first, second), seen["now"]):
        taken = [float(escape(start, level)) for level in (*seen[name], now)]
        np.testing.assert_allclose(taken, clock, rtol=1e-6, atol=1e-6 * escape(first))
    return {
        "share": escape(first) / escape(second),
        "grown": midpoint.race_bound(lead, alpha),
        "curve": midpoint.race_bound(np.array(seen["leads"]), alpha),
    }


def column(steps, list, present, size, seen):
    problem, scale = lists.ColumnPopulation(size, 3, len(list)), torch.tensor([8.0], dtype=torch.float64)
    w, way = {"entries": torch.zeros(1, len(list)).double(), "outside": torch.zeros(1, 1).double()}, []
    for _ in range(61):
        way.append(torch.cat([w["entries"], w["outside"]], 1)[0])
        _, slope = problem(w, scale)
        rates = {"entries": 0.25, "outside": 0.25 / (size - len(list))}
        w = {name: w[name] - rate * slope[name] for name, rate in rates.items()}
    scores = way[steps].where(problem.copies > 0, -torch.inf)  # (case, kind)
    own = torch.nn.functional.one_hot(problem.decides, len(list) + 1).bool()
    correct = scores[own] > scores.masked_fill(own, -torch.inf).amax(1) + 1e-9  # a tie is a mistake

    tokens = sorted(["a", *present], key=lambda token: [*list, token].index(token))
    alone = [torch.stack([way[steps][[*list, token].index(token)] for token in tokens])]
    attention, query = alone[0].softmax(0), tokens.index("a")
    matrix, values = torch.zeros(1, size, size).double(), 8 * torch.eye(size).double()[None]
    for _ in range(5):  # the sequence is tokens 0, 1 and 2, of which 0 decides
        matrix[0, :3, query] = alone[-1]
        one = lists.forward_backward(matrix, values, torch.arange(3)[None, None], torch.zeros(1, 1, 3).long())
        alone.append(alone[-1] - 0.25 * one.slope[0, 0, :, query])
    assert seen["tokens"] == tokens
    share = problem.probability[correct].sum()
    return {"way": torch.stack(way), "alone": torch.stack(alone), "attention": attention, "share": share}


def survivors(r, strength, n, share, seen):
    def both(share, r, strength):
        groups = nuclear.GroupPopulation(r, n, 0.3, strength), nuclear.GroupPopulation(n, r, strength, 0.3)
        weight = share * groups[1].nuclear_limit()
        return [weight, *(one.excess(weight) if weight < one.nuclear_limit() else -1 for one in groups)]

    return {
        "own": both(share, r, strength),
        "map": [[both(share, k, s)[1:] for k in seen["counts"]] for s in seen["strengths"]],
        "dial": [both(f, r, strength) for f in seen["shares"]],
    }


def one_label(angle, beta, seen):
    roots = np.sqrt([[[1, weight]] for weight in seen["weights"]])  # (weight, 1, feature)
    assert seen["weights"][0] == beta

    def fits(degrees):  # (weight, point, coefficient)
        z = np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], -1)
        inputs = roots * z  # the shortest vector that fits one label is a multiple of the input
        return roots * inputs * (z.sum(-1) / np.square(inputs).sum(-1))[..., None]

    own, others = fits(np.array([angle])), fits(np.linspace(-45, 135, 4003)[1::2])  # evenly spaced
    spread = np.linalg.norm(others - 1, axis=-1)
    return {
        "fits": own[:, 0],
        "distances": np.linalg.norm(own[:, 0] - 1, axis=-1),
        "median": np.quantile(spread, 0.5, 1),
        "tenth": np.quantile(spread, 0.9, 1),
    }


EXPECTED = {
    "01-race": (race, {"way", "leads", "first", "second", "reached", "now"}),
    "04-tie": (tie, {"sizes", "levels"}),
    "05-map": (forces, {"steps", "ratios", "columns", "rows"}),
    "06-column": (column, {"tokens"}),
    "07-order": (order, {"starts", "times"}),
    "07-pick": (picked, {"losses", "steps"}),
    "11-rank": (rank, set()),
    "12-survivors": (survivors, {"counts", "strengths", "shares"}),
    "13-one-label": (one_label, {"weights"}),
    "14-schedules": (schedules, {"grid"}),
    "15-find-and-read": (find_and_read, {"margins", "lengths"}),
}

# -- the page ------------------------------------------------------------------------------------------------------

FIGURE = """<!doctype html><html data-theme="light"><meta charset="utf-8"><title>{name}</title>
<link rel="stylesheet" href="/mvnb.css"><article class="bd-article"><figure class="explorer" data-explorer="{name}">
<div class="explorer-controls"></div><div class="explorer-stage"></div>
<p class="explorer-readout"></p><span class="explorer-reset"></span></figure></article>
<script src="/explorers.js"></script><script src="/explorers/{name}.js"></script></html>"""


@pytest.fixture(scope="module")
def address():
    class Pages(Quiet):
        def do_GET(self):
            if not self.path.startswith("/page/"):
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(FIGURE.format(name=self.path.removeprefix("/page/")).encode())

    with served(STATIC, Pages) as address:
        yield f"{address}page/"


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
            parts = value.items() if isinstance(value, dict) else [(None, value)]
            for part, numbers in parts:
                found = np.array(seen[key][part] if part else seen[key], dtype=float)
                np.testing.assert_allclose(found, numbers, rtol=1e-6, atol=1e-9, err_msg=f"{key} {part} at {values}")


def test_picture_is_the_figure_at_its_defaults(explorer):
    drawn = explorer.evaluate("name => mvnbExplorer.picture(name)", explorer.explorer)
    path = STATIC / "explorers" / f"{explorer.explorer}.svg"
    if os.environ.get("MVNB_DRAW"):
        path.write_text(drawn, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == drawn, "MVNB_DRAW=1 pytest tests/site/test_explorers.py draws it anew"

    def screenshot():
        size = {"viewport": {"width": 720, "height": 280}, "device_scale_factor": 2}
        with fresh_tab(explorer.context.browser, **size) as tab:
            tab.goto(explorer.url.replace("/page/", "/explorers/") + ".svg")
            return tab.screenshot()

    check_picture(path.with_suffix(".png"), drawn, screenshot)


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
    """At the defaults every label is drawn, inside the picture and apart from the others."""
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


@pytest.mark.parametrize("explorer", NAMES[:1], indirect=True)
def test_palette_is_the_books(explorer):
    palette = explorer.evaluate("mvnbExplorer.LIGHT")
    book = {*figures.COLORS.values(), figures.HUES["sky"], figures.HUES["yellow"]}
    assert {palette[name] for name in palette if name not in ("rule", "ground")} <= book


def test_every_explorer_is_compared():
    assert set(NAMES) == set(EXPECTED)


# -- motion --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[None, "reduce"], ids=["motion", "less motion"])
def film(browser, address, request):
    """A tab with a figure that can be played, under a clock that stands still until a test moves it."""
    context = browser.new_context(reduced_motion=request.param or "no-preference")
    tab = context.new_page()
    tab.clock.install()
    tab.goto(address + "07-order")
    tab.clock.pause_at("2100-01-01")
    yield tab
    context.close()


def test_time_runs_when_asked_and_stops_when_asked(film, request):
    button, slider = film.get_by_role("button", name="Play: time t"), film.get_by_label("time t", exact=True)
    readout = film.locator(".explorer-readout")

    def state():
        pressed = button.get_attribute("aria-pressed")
        assert readout.get_attribute("aria-live") == {"true": "off", "false": "polite"}[pressed]
        assert f"t = {float(slider.input_value()):.2f}" in readout.inner_text()
        return pressed == "true", float(slider.input_value())

    def after(seconds):
        film.clock.run_for(int(1000 * seconds))
        return state()

    start, least = state()[1], 0.25 if "less" in request.node.name else 0.02
    assert after(2) == (False, start), "nothing moves by itself"
    button.press("Enter")  # from the start, as the slider is where it was put
    assert after(2.1) == (True, pytest.approx(0.51, abs=least))
    button.press("Space")
    paused = state()
    assert not paused[0] and after(1) == paused
    button.press("Space")
    values = [after(0.1)[1] for _ in range(20)]
    assert values == sorted(values) and values[-1] == pytest.approx(1, abs=2 * least)
    assert len(set(values)) <= 3 if "less" in request.node.name else len(set(values)) == 20
    assert after(5) == (False, 2)
    button.click()
    assert after(1.1) == (True, pytest.approx(0.26, abs=least))
    slider.press("ArrowRight")
    assert not state()[0]
    button.click()
    film.get_by_role("button", name="Reset").click()
    assert after(1) == (False, start)
