"""Plans: near what was measured, growing with what they are of, and in the way of a run that cannot fit the machine."""

from pathlib import Path

import costs
import pytest

from mvnb.costs import Part
from mvnb.runner import catalogue, plans

ROOT = Path(__file__).resolve().parents[2]
PLANNED = catalogue.discover(ROOT)
every_planned = pytest.mark.parametrize("chapter", PLANNED, ids=lambda chapter: chapter.name)


@every_planned
@pytest.mark.parametrize("size", costs.SIZES)
def test_a_plan_is_within_a_factor_of_two_of_what_was_measured(chapter, size):
    measured, plan = costs.read()[chapter.name][size], costs.planned(chapter, size)
    assert 0.5 < plan.seconds / measured["seconds"] < 2, (plan.seconds, measured["seconds"])
    assert 0.5 < plan.bytes / measured["bytes"] < 2, (plan.bytes, measured["bytes"])


@every_planned
def test_every_preset_has_a_plan_and_the_papers_costs_more(chapter):
    presets = catalogue.presets(ROOT)[chapter.name]
    found = {name: plans.plan(chapter, catalogue.preset(chapter, name)) for name in presets}
    usual = plans.plan(chapter, {})
    assert all(part.seconds >= 0 and part.bytes >= 0 for one in (usual, *found.values()) for part in one.parts)
    assert found["smoke"].seconds < usual.seconds < found["paper"].seconds
    assert found["smoke"].bytes <= usual.bytes <= found["paper"].bytes


def test_what_does_not_fit_is_refused_before_it_starts(mvnb, book, monkeypatch, tmp_path):
    (chapter,) = catalogue.discover(book)
    plan = plans.Plan([Part("a table", 1.0, 3e9), Part("a matrix", 2e4, 8e9)])
    monkeypatch.setattr(plans, "plan", lambda chapter, values: plan)
    monkeypatch.setattr(plans, "machine_bytes", lambda device: (6e9, "this machine"))
    status, out, err = mvnb("run", "1", "-o", str(tmp_path / "run"))
    assert status == 2 and len(err.splitlines()) == 1 and not out and not (tmp_path / "run").exists()
    assert "about 9 GB, for a matrix" in err and "has 6 GB" in err
    status, out, err = mvnb("plan", "1")
    assert status == 0 and "a matrix" in out and "5.6 h" in out and "does not fit" in out
    assert mvnb("run", "1", "--anyway", "-o", str(tmp_path / "run"))[0] == 0
    monkeypatch.setattr(plans, "machine_bytes", lambda device: (16e9, "this machine"))
    assert plans.refusal(chapter, {}) is None


def test_a_chapter_without_a_formula_is_run_and_has_no_plan(mvnb, book):
    status, out, err = mvnb("plan", "1")
    assert status == 2 and "no formula" in err and not out


@pytest.mark.parametrize(
    ("seconds", "text"), [(40.4, "40 s"), (720, "12 min"), (7200, "2.0 h"), (864_000, "10 days"), (0.2, "0 s")]
)
def test_durations_are_read_easily(seconds, text):
    assert plans.duration(seconds) == text
