"""Whole chapters: smoke presets on a machine elsewhere, and what the checks of their parameters accept and refuse."""

import functools
import itertools
import re
import shlex
from contextlib import suppress
from pathlib import Path

import chapter_checks
import elsewhere
import numpy as np
import pytest

from mvnb import cli
from mvnb.data.images import DATASETS, EMBEDDED, load_images
from mvnb.runner import catalogue, errors, execution, sweeps

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = catalogue.discover(ROOT)
PAGES = [*ROOT.glob("notebooks/*.py"), *ROOT.glob("book/*.md"), *ROOT.glob("*.md")]
COMMAND = re.compile(r"mvnb ((?:run|sweep) (\d\d)\b[^`#\n]*)")
TO_BE_FILLED_IN = re.compile(r"FILE|FOLDER|PATH|TABLE")

every_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
OFTEN = ("04", "05", "09", "11", "15")  # pairs in lock-step, a sampler of survivors, two layers, attention, a language model


@pytest.mark.parametrize(
    "chapter", [pytest.param(c, id=c.name, marks=[pytest.mark.weekly] * (c.number not in OFTEN)) for c in CHAPTERS]
)
def test_smoke(chapter, tmp_path):
    """On the stand-in GPU, whose rules are stricter than a CPU's, with moved last places, and a seed like ``date +%s%N``."""
    values = catalogue.preset(chapter, "smoke") | {"seed": 1_764_203_991_123_456_789}
    startup = elsewhere.startup(tmp_path / "begun", elsewhere.ROUNDING, elsewhere.CARD)
    result = execution.run(chapter, values, tmp_path, startup=startup)
    assert (tmp_path / "begun").is_file() and "device: cuda" in result.notebook.read_text(encoding="utf-8")
    assert chapter_checks.differing_outputs(chapter, result.notebook) > 0


class Begun(Exception):
    """Raised in the place of a run, with its parameters."""


def printed_settings(chapter, monkeypatch):
    """The parameters of every command of the book that runs this chapter, as the command line reads them, by command."""

    def run(found, values, *rest, **options):
        raise Begun(values)

    def prepare(found, grid, fixed, *rest, **options):
        raise Begun({name: some[-1] for name, some in grid.items()} | fixed)

    monkeypatch.setattr(execution, "run", run)
    monkeypatch.setattr(execution, "finished", lambda *given: None)
    monkeypatch.setattr(sweeps, "prepare", prepare)
    for command, number in itertools.chain(*(COMMAND.findall(page.read_text(encoding="utf-8")) for page in PAGES)):
        if number == chapter.number:
            with pytest.raises(Begun) as begun:
                cli.app(args=shlex.split(command), standalone_mode=False)
            (values,) = begun.value.args
            yield command, {name: value for name, value in values.items() if not TO_BE_FILLED_IN.search(str(value))}


@pytest.fixture(scope="session")
def blank_images(tmp_path_factory):
    """A folder that has every data set that would have to be downloaded, in its shape and size, and nothing to see."""
    folder = tmp_path_factory.mktemp("images")
    for name in set(DATASETS) - set(EMBEDDED):
        size, shape = (50_000, (32, 32, 3)) if name.startswith("cifar") else (60_000, (28, 28))
        x, y = np.zeros((size, *shape), np.uint8), np.arange(size) % (100 if name == "cifar100" else 10)
        np.savez_compressed(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x[:10_000], y_test=y[:10_000])
    return folder


def refusal(chapter, values) -> str:
    """Return the answer of a chapter's checks to parameters, run here and not in a kernel; empty where they say nothing."""
    code = [cell for cell in chapter.cells.cells if cell.cell_type == "code"]
    tags = [cell.metadata.get("tags", []) for cell in code]
    space = {"__name__": "__main__"}
    try:
        for cell, own in zip(code, tags[: max(n for n, own in enumerate(tags) if "check" in own) + 1]):
            exec(cell.source, space)
            space |= values if "parameters" in own else {}
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


@every_chapter
def test_commands_in_the_book_are_accepted(chapter, blank_images, monkeypatch):
    monkeypatch.setenv("MVNB_DATA", str(blank_images))
    monkeypatch.setattr("mvnb.data.load_images", functools.cache(load_images))
    commands, settings = zip(*printed_settings(chapter, monkeypatch))
    monkeypatch.chdir(chapter.source.parent)
    said = [refusal(chapter, values) for values in settings]
    assert not {command: text for command, text in zip(commands, said) if text}


def edges(parameter) -> list:
    """Values of a parameter's type at the edges: no element, the largest integers, the smallest of the range."""
    default = parameter.default
    if isinstance(default, list):
        return [[], default[:1], *([*default[:-1], n] for n in (0, 1, 10**9, 10**18) if default)]
    return [0, 1, 2, 10**9, 10**18] if isinstance(default, int) and not isinstance(default, bool) else []


@every_chapter
def test_values_that_make_no_sense_are_refused_in_words_that_name_a_parameter(chapter, monkeypatch):
    monkeypatch.setattr("mvnb.data.load_images", functools.cache(load_images))
    monkeypatch.chdir(chapter.source.parent)
    said = {}
    for parameter in chapter.parameters.values():
        for value in edges(parameter):
            with suppress(errors.ChapterError):
                said[f"{parameter.name}={value}"] = refusal(chapter, chapter.check({parameter.name: value}))
    named = re.compile(rf"^({'|'.join(chapter.parameters)}|.* must be) ")
    assert said and not {case: text for case, text in said.items() if text and not named.match(text)}


def test_more_replicas_than_memory_holds_are_one_line(tmp_path):
    chapter = catalogue.resolve("06", ROOT)
    values = catalogue.preset(chapter, "smoke") | {"replicas": 10**9}
    with pytest.raises(errors.CellFailed, match="out of memory") as failure:
        execution.run(chapter, values, tmp_path, memory=2 * 10**9)
    assert "\n" not in str(failure.value)


def test_a_smoke_run_that_changes_nothing_is_noticed(executed, tmp_path):
    other = execution.run(executed, catalogue.preset(executed, "smoke"), tmp_path)
    assert chapter_checks.differing_outputs(executed, executed.notebook) == 0
    assert chapter_checks.differing_outputs(executed, other.notebook) == 2
