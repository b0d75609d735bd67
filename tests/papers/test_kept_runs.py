"""The kept runs of the papers are those that their declarations ask for, and the training core still begins them alike."""

import pytest
import torch

from mvnb import claims, kept_runs
from mvnb.runner import catalogue, keeping

CHAPTERS = {chapter.slug: chapter for chapter in catalogue.discover()}
DECLARED = [(slug, name) for slug in CHAPTERS for name in kept_runs.declared(slug)]


@pytest.mark.parametrize(("slug", "name"), DECLARED)
def test_a_kept_run_is_what_would_be_made_today(slug, name):
    (line,) = [line for line in keeping.status([CHAPTERS[slug]]) if line[1] == name]
    assert "as declared" in line[3], f"{line[3]}: mvnb keep {CHAPTERS[slug].number} {name}"


@pytest.mark.parametrize(("slug", "name"), DECLARED)
def test_its_first_steps_are_those_that_were_kept(slug, name):
    record = kept_runs.load(slug, name)
    first = record["runs"][0]
    now = kept_runs.declared(slug)[name].call("beginning", first["seed"], torch.device("cpu"))
    assert len(now) == 50 and now[:10] == pytest.approx(first["beginning"][:10], rel=0.01)
    assert now == pytest.approx(first["beginning"], rel=0.2)  # with long steps, differences between CPUs grow to 3 % by then


@pytest.mark.parametrize("slug", CHAPTERS)
def test_a_claim_names_a_kept_run_that_is_there(slug):
    there = {path.stem for path in kept_runs.folder(slug).glob("*.json")}
    assert {claim.kept for claim in claims.declared(slug).values()} <= {"", *there}
