"""Estimates of memory: near what is measured, growing with the parameters, instant, and in the way of what cannot fit."""

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mvnb.runner import catalogue, derived, errors, plans, sweeps

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = catalogue.discover(ROOT)
every_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)


@every_chapter
def test_every_preset_has_an_estimate_and_larger_ones_need_more(chapter):
    presets = catalogue.presets(ROOT)[chapter.name]
    found = {name: plans.peak_bytes(chapter, catalogue.preset(chapter, name)) for name in presets}
    default = plans.peak_bytes(chapter, {})
    assert all(size >= plans.BASE_BYTES for size in found.values())  # false for NaN
    assert found["smoke"] <= default <= found["paper"] and default < plans.FITS_ANYWHERE


def with_numbers(value, number):
    """A parameter's value with every number in it replaced; texts and truth values stay."""
    if isinstance(value, list):
        return [with_numbers(item, number) for item in value]
    return type(value)(number) if type(value) in (int, float) else value


@every_chapter
def test_an_estimate_is_instant_and_never_fails(chapter):
    """Each parameter at extreme values, and all of them; lists that are empty, too."""
    defaults = {name: parameter.default for name, parameter in chapter.parameters.items()}
    presets = [{}, catalogue.preset(chapter, "paper")]
    cases = [{name: with_numbers(value, 10**9) for name, value in defaults.items()}]
    for name, value in defaults.items():
        extremes = [with_numbers(value, number) for number in (1, 10**9, 10**100)]
        extremes += [[], value * 1000] if isinstance(value, list) else [10**400] if type(value) is int else []
        cases += [preset | {name: extreme} for preset in presets for extreme in extremes]
    cases += [{name: [] for name, value in defaults.items() if isinstance(value, list)}]
    started = time.process_time()
    found = [plans.peak_bytes(chapter, values) for values in cases]
    assert time.process_time() - started < 0.01 * len(cases)
    assert all(size >= plans.BASE_BYTES for size in found) and found[0] > 1e15
    assert plans.peak_bytes(chapter, {"replicas": 10**400}) > 1e18
    assert plans.peak_bytes(chapter, {"seed": 10**400}) == plans.peak_bytes(chapter, {})


PART = """
import os, resource
from mvnb.runner import catalogue, plans
chapter = catalogue.resolve("09")
values = catalogue.preset(chapter, "smoke") | {"draws": 1_000_000, "device": "cpu"}
code = [cell for cell in chapter.cells.cells if cell.cell_type == "code"]
last = next(n for n, cell in enumerate(code) if "(draws" in cell.source)
os.chdir("notebooks")
space = {"__name__": "__main__"}
for cell in code[: last + 1]:
    exec(cell.source, space)
    space |= values if "parameters" in cell.metadata.get("tags", []) else {}
print("\\n", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, plans.peak_bytes(chapter, values))
"""


def test_an_estimate_is_near_what_is_measured():
    """The first half of chapter 09 up to the cell with its largest tensors, with so many draws that they need gigabytes."""
    out = subprocess.run([sys.executable, "-c", PART], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    measured, estimate = map(float, out.split()[-2:])
    assert measured > 3 * plans.BASE_BYTES and 0.5 < estimate / measured < 2, (estimate, measured)


def test_what_does_not_fit_is_refused_before_it_starts(mvnb, book, monkeypatch, tmp_path):
    folder, asked = tmp_path / "run", ("-p", "replicas=10")
    monkeypatch.setattr(plans, "peak_bytes", lambda chapter, values: 9e8 * values.get("replicas", 4))
    monkeypatch.setattr(plans, "_machine_bytes", lambda device: (6e9, "this machine"))
    status, out, err = mvnb("run", "1", *asked, "-o", str(folder))
    assert (status, out) == (2, "") and err.count("\n") == 1 and not folder.exists()
    assert "needs about 9 GB, but this machine has 6 GB; try other values with mvnb plan 1 -p replicas=10, or" in err
    status, out, err = mvnb("plan", "1", *asked)
    assert status == 0 and "memory: about 9 GB" in out and "does not fit" in out
    assert mvnb("run", "1", *asked, "--anyway", "-o", str(folder))[0] == 0
    assert plans.refusal(catalogue.resolve("1"), {"replicas": 5}) is None


def test_a_sweep_refuses_points_that_do_not_fit(mvnb, book, monkeypatch, tmp_path):
    def run(*given):
        raise errors.ChapterError("the sweep begins")

    monkeypatch.setattr(plans, "peak_bytes", lambda chapter, values: 9e8 * values["replicas"])
    monkeypatch.setattr(plans, "_machine_bytes", lambda device: (6e9, "this machine"))
    monkeypatch.setattr(sweeps, "run", run)
    sweep = ("sweep", "1", "--grid", "replicas=2,10,20", "-o", str(tmp_path / "out"))
    status, out, err = mvnb(*sweep)
    assert (status, out) == (2, "") and err.count("\n") == 1 and not (tmp_path / "out").exists()
    assert (
        "replicas=10: the run needs about 9 GB" in err
        and "(2 of 3 points refused, none run: also replicas=20); run them with --anyway" in err
    )
    for option in (["--anyway"], ["--dask", "tcp://elsewhere:8786"]):  # another machine may have more
        assert "the sweep begins" in mvnb(*sweep, *option)[2]


def test_what_no_float_holds_is_refused(mvnb, book, monkeypatch):
    monkeypatch.setattr(plans, "peak_bytes", lambda chapter, values: math.inf)
    status, _, err = mvnb("run", "1")
    assert status == 2 and "needs more than 1000000000 GB" in err


def test_a_chapter_without_a_formula_is_run_and_has_no_plan(mvnb, book):
    status, out, err = mvnb("plan", "1")
    assert status == 2 and "no formula" in err and not out


def test_a_plan_says_how_long_the_defaults_took(mvnb, book, monkeypatch):
    monkeypatch.setattr(plans, "peak_bytes", lambda chapter, values: 7e8)
    said = ["memory: about 0.7 GB", "The time with other parameters is not predicted."]
    assert mvnb("plan", "1")[1].splitlines() == said
    derived.record_seconds(book, {"01": 33.3}, 1, 1)
    assert "time: 33 s with the default parameters, measured by mvnb book on " in mvnb("plan", "1", "-p", "replicas=9")[1]
