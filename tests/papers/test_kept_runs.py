"""The training core still begins the kept runs of the papers alike, and short runs return values of the same form."""

import math

import numpy as np
import pytest
import torch

from mvnb import claims, kept_runs
from mvnb.runner import catalogue

CHAPTERS = [chapter.slug for chapter in catalogue.discover()]
DECLARED = [(slug, name) for slug in CHAPTERS for name in kept_runs.declared(slug)]


@pytest.mark.parametrize(("slug", "name"), DECLARED)
def test_its_first_steps_are_those_that_were_kept(slug, name):
    record = kept_runs.load(slug, name)
    first = record["runs"][0]
    now = kept_runs.declared(slug)[name].call("beginning", first["seed"], torch.device("cpu"))
    assert len(now) == 50 and now[:10] == pytest.approx(first["beginning"][:10], rel=0.01)
    assert now == pytest.approx(first["beginning"], rel=0.2)  # with long steps, differences between CPUs grow to 3 % by then


SCRIPTS = {(slug, kept_runs.declared(slug)[name].script.name): (slug, name) for slug, name in DECLARED}
SIZES = {"cifar10": (32, 32, 3), "mnist": (28, 28)}


def shape(values):
    """Return the keys and types of nested values, where all elements of a list must have the same."""
    if isinstance(values, dict):
        return {key: shape(value) for key, value in values.items()}
    if isinstance(values, list):
        return sorted({str(shape(value)) for value in values})
    assert isinstance(values, str) or math.isfinite(values)
    return "text" if isinstance(values, str) else "number"


@pytest.mark.parametrize(("slug", "name"), SCRIPTS.values())
def test_a_short_run_returns_values_of_the_form_that_is_kept(slug, name, tmp_path, monkeypatch):
    one = kept_runs.declared(slug)[name].shortened()
    given = one.parameters
    if {given.get("dataset"), given.get("target"), *given.get("sets", ())} & SIZES.keys():
        g = np.random.default_rng(0)
        for dataset, size in SIZES.items():
            arrays = {}
            for part, n in {"train": 1500, "test": 600}.items():
                arrays |= {f"x_{part}": g.integers(256, size=(n, *size), dtype=np.uint8), f"y_{part}": np.arange(n) % 10}
            np.savez(tmp_path / f"{dataset}.npz", **arrays)
        monkeypatch.setenv("MVNB_DATA", str(tmp_path))
    found = one.call("run", one.parameters["seed"], torch.device("cpu"), tmp_path / "scratch")
    assert shape(found) == shape(kept_runs.load(slug, name)["runs"][0]["values"])


@pytest.mark.parametrize("slug", CHAPTERS)
def test_a_claim_names_a_kept_run_that_is_there(slug):
    there = {path.stem for path in kept_runs.folder(slug).glob("*.json")}
    assert {claim.kept for claim in claims.declared(slug).values()} <= {"", *there}
