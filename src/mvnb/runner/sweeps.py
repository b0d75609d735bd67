"""Sweeps: one chapter over a grid of parameters, each cell of the grid a run of its own, none of them run twice.

A sweep lives in a folder: ``sweep.json`` (what was asked for), ``cells/ADDRESS`` (one finished run each: notebook, claims and
``run.json``), ``failed/ADDRESS`` (the last attempt of a cell that failed), ``table.csv``, ``table.parquet`` and ``held.png``.
An address is a digest of the chapter's code, all its parameters, the package and the versions of the libraries: whatever
changes one of them makes another cell. While a sweep runs, ``.code`` holds the chapter and the package as they were at its
start, which every cell runs. Workers need to see this folder and the book at the same paths.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat

from mvnb import files, verdicts
from mvnb.runner import addresses, catalogue, execution, kernel, plans, workers
from mvnb.runner.errors import CellFailed, ChapterError

_RANGE = re.compile(r"(\d+):(\d+)(?::(\d+))?")


@dataclass(frozen=True)
class Sweep:
    """A chapter, the cells of its grid, and the folder in which their runs lie."""

    chapter: catalogue.Chapter
    grid: dict[str, list[Any]]
    fixed: dict[str, Any]
    folder: Path

    @cached_property
    def cells(self) -> dict[str, dict[str, Any]]:
        """All cells by address, each its parameters that differ from the defaults; the last name of the grid runs fastest."""
        values = [self.fixed | dict(zip(self.grid, point)) for point in itertools.product(*self.grid.values())]
        return dict(zip(addresses.digests(self.chapter, values), values))

    def record(self, address: str) -> dict[str, Any] | None:
        """Return what is known of a cell's last run: ``run.json`` as it was written, None when it was never finished."""
        found = (files.read_json(self.folder / kind / address / "run.json") for kind in ("cells", "failed"))
        return next(filter(None, found), None)

    def missing(self) -> list[str]:
        """Return the addresses of cells that have not been run, or failed when they were."""
        return [address for address in self.cells if (self.record(address) or {"error": "not run"})["error"]]

    def _rows(self) -> list[dict[str, Any]]:
        """The tidy table: a row for each claim of each finished cell, and one for each cell that failed."""
        rows = []
        for record in filter(None, map(self.record, self.cells)):
            # Sequences are put as text, to fit into one column.
            plain = {name: json.dumps(one) if isinstance(one, list) else one for name, one in record["parameters"].items()}
            common = {"chapter": self.chapter.name, "address": record["address"], **plain}
            about = {key: record[key] for key in ("seconds", "device", "host", "finished", "error")} | record["versions"]
            for claim in record["claims"] or [{}]:
                rows.append(common | _measured(claim) | about)
        return rows


def _measured(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a claim: what was measured of the first name of its rule, and the verdict."""
    ends = next(iter(claim.get("measured", {}).values()), [None] * 3)
    seen = {key: claim.get(key) for key in ("kind", "unit", "verdict")}
    return {"claim": claim.get("id"), **dict(zip(("measured", "low", "high"), ends)), **seen}


def named(parameters: Mapping[str, Any]) -> str:
    """Return the parameters of a cell as messages name it."""
    return ", ".join(f"{name}={value}" for name, value in parameters.items())


def grid(chapter: catalogue.Chapter, texts: Iterable[str]) -> dict[str, list[Any]]:
    """``name=a,b,c`` and, for integers, ``name=first:end`` or ``name=first:end:step`` (end left out) as lists of values.

    Raises
    ------
    ChapterError
        For what :meth:`~mvnb.runner.catalogue.Chapter.parse` refuses, a name given twice, an empty range, a value given twice.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name or not values.strip():
            raise ChapterError(f"--grid {text!r} is not of the form name=a,b,c or name=first:end")
        if name in found:
            raise ChapterError(f"--grid has {name!r} twice")
        if match := _RANGE.fullmatch(values.strip()):
            first, end, step = int(match[1]), int(match[2]), int(match[3] or 1)
            options = [str(n) for n in range(first, end, max(step, 1))]
            if not options or not step:
                raise ChapterError(f"--grid {text!r} is an empty range")
        else:
            options = _split(values)
        found[name] = [chapter.parse([f"{name}={option}"])[name] for option in options]
        if len({repr(value) for value in found[name]}) < len(found[name]):
            raise ChapterError(f"--grid {text!r} has a value twice")
    return found


def _split(text: str) -> list[str]:
    """``text`` at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def prepare(
    chapter: catalogue.Chapter,
    values: dict[str, list[Any]],
    fixed: dict[str, Any],
    folder: Path,
    limits: Mapping[str, Any],
    anyway: bool = False,
) -> Sweep:
    """Return a sweep whose every cell has passed the chapter's own checks, within limits as in :func:`run`; write nothing.

    A cell that needs more memory than this machine has is refused, unless it is to be run ``anyway``.

    Raises
    ------
    ChapterError
        For values that the chapter refuses or cannot check or that do not fit the machine, a parameter that is both fixed and
        in the grid, a folder that cannot be used or holds a sweep of another chapter.
    """
    if both := sorted(values.keys() & fixed.keys()):
        raise ChapterError(f"{both[0]!r} is both in the grid and fixed")
    sweep = Sweep(chapter, values, fixed, folder.absolute())
    execution.refuse_unusable(sweep.folder, chapter)
    if (other := _plan(sweep.folder).get("chapter", chapter.name)) != chapter.name:
        raise ChapterError(f"{sweep.folder} holds a sweep of {other}; give one of {chapter.name} another folder (-o)")
    missing = sweep.missing()
    cases = [sweep.cells[address] for address in missing]
    said = [None if anyway else plans.refusal(chapter, values) for values in cases]
    large = "; run them with --anyway" if any(said) else ""
    if missing and not large:
        said = kernel.refusals(chapter.cells, cases, chapter.source.parent, limits)
    if refused := [f"{named(values)}: {text}" for values, text in zip(cases, said) if text]:
        more = f" (and {len(refused) - 1} more of {len(sweep.cells)} cells)" if len(refused) > 1 else ""
        raise ChapterError(f"{refused[0]}{more}{large}")
    return sweep


def load(folder: Path) -> Sweep:
    """Return the sweep that was last run in a folder, with the addresses that its cells have now.

    Raises
    ------
    ChapterError
        When there is none, or its chapter no longer takes these parameters.
    """
    plan = _plan(folder)
    if not plan:
        raise ChapterError(f"no sweep in {folder}: there is no file sweep.json")
    chapter = catalogue.resolve(plan["chapter"])
    checked = {name: [chapter.check({name: value})[name] for value in values] for name, values in plan["grid"].items()}
    return Sweep(chapter, checked, chapter.check(plan["fixed"]), folder.absolute())


def _plan(folder: Path) -> dict[str, Any]:
    """Chapter, grid and fixed parameters of the sweep in a folder; empty where there is none."""
    path = folder / "sweep.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        return {key: plan[key] for key in ("chapter", "grid", "fixed")}
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise ChapterError(f"{path} is not the plan of a sweep: {error}") from None


def _snapshot(sweep: Sweep) -> catalogue.Chapter:
    """The chapter as every cell of the sweep runs it: copied into the folder, with the package, whatever is edited from now on.

    Raises
    ------
    ChapterError
        When package or claims are no longer those that the sweep's addresses were made from.
    CellFailed
        When the folder cannot be written to.
    """
    code = sweep.folder / ".code"
    try:
        code.mkdir(exist_ok=True)
        copy = Path(tempfile.mkdtemp(dir=code))
        addresses.copy_package(copy)
        files.write(copy / sweep.chapter.notebook.name, nbformat.writes(sweep.chapter.cells))
    except OSError as error:
        reason = error.strerror or error.args[0][0][-1]  # of many files, those of the first
        raise CellFailed(f"cannot write {sweep.folder}: {reason}") from None
    if addresses.digests(sweep.chapter, list(sweep.cells.values())) != list(sweep.cells):
        raise ChapterError("the package was edited while the sweep was prepared; start it again")
    return replace(sweep.chapter, snapshot=copy)


def run(sweep: Sweep, limits: Mapping[str, Any], jobs: int | None = None, dask: str | None = None) -> dict[str, str]:
    """Run the cells that are missing, write the table, and return what is said of those that failed, by address.

    A bar on stderr, when that is a terminal, has the time that is left.

    Parameters
    ----------
    limits
        ``timeout``, seconds that a cell of a notebook may take, and ``memory``, bytes that its kernel may allocate.
    jobs, dask
        How many at once on this machine, one a core by default; or a Dask scheduler, whose workers are used instead.

    Raises
    ------
    ChapterError
        When another sweep runs in the folder, there is no scheduler, or the folder cannot be written.
    """
    from tqdm import tqdm

    sweep.folder.mkdir(parents=True, exist_ok=True)
    with execution.alone(sweep.folder / ".lock", f"another sweep is running in {sweep.folder}"):
        plan = {"chapter": sweep.chapter.name, "grid": sweep.grid, "fixed": sweep.fixed}
        files.write(sweep.folder / "sweep.json", json.dumps(plan, indent=1) + "\n")
        missing, failed = sweep.missing(), {}
        try:
            chapter = _snapshot(sweep) if missing else sweep.chapter
            given = [(sweep.folder, chapter, address, sweep.cells[address], limits) for address in missing]
            done = workers.each(_run_cell, given, jobs, dask)
            for index, said, error in tqdm(done, sweep.chapter.name, len(missing), unit="run", disable=None):
                if error or said:
                    failed[missing[index]] = error or said
            shutil.rmtree(sweep.folder / ".code", ignore_errors=True)
        finally:
            _save(sweep)
    return failed


def _run_cell(folder: Path, chapter: catalogue.Chapter, address: str, parameters, limits) -> str:
    """Run one cell on a worker; its error, empty for none. A cell that another worker runs is waited for, not run twice."""
    from filelock import FileLock

    running, done, failed = (folder / kind / address for kind in (".running", "cells", "failed"))
    running.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{running}.lock"):
        if (done / "run.json").is_file():
            return ""
        for stale in (running, done, failed):
            shutil.rmtree(stale, ignore_errors=True)
        try:
            record = {"chapter": chapter.name, "address": address} | _attempt(chapter, parameters, running, limits)
            target = failed if record["error"] else done
            record["error"] = record["error"].replace(str(running), str(target))
            files.write(running / "run.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            target.parent.mkdir(exist_ok=True)
            os.rename(running, target)
        except OSError as error:  # no room for a record either
            shutil.rmtree(running, ignore_errors=True)
            return f"cannot write {folder}: {error.strerror}"
    return record["error"]


def _attempt(chapter: catalogue.Chapter, parameters, folder: Path, limits) -> dict[str, Any]:
    """Run the notebook in ``folder``, and say what became of it."""
    started, rows, device, error = time.monotonic(), [], "", ""
    try:
        result = execution.run(chapter, parameters, folder, html=False, **limits)
        rows, device = result.rows, _device(result.notebook)
    except (CellFailed, ChapterError) as failure:
        error = str(failure)
        folder.mkdir(parents=True, exist_ok=True)
    return {
        "parameters": {name: one.default for name, one in chapter.parameters.items()} | parameters,
        "error": error,
        "seconds": round(time.monotonic() - started, 2),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "device": device,
        "versions": addresses.versions(),
        "claims": rows,
    }


def _device(notebook: Path) -> str:
    """The device that a chapter says it runs on."""
    match = re.search(r"device: (\w+)", notebook.read_text(encoding="utf-8"))
    return match[1] if match else ""


def _save(sweep: Sweep) -> None:
    """Write the table as CSV and Parquet, and the picture, from the cells that there are."""
    import pandas as pd

    table = pd.DataFrame(sweep._rows())
    if table.empty:
        return
    files.write(sweep.folder / "table.csv", table.to_csv(index=False))
    with files.replaced_whole(sweep.folder / "table.parquet") as path:
        table.to_parquet(path)
    if len(judged := table[table["verdict"].isin(verdicts.JUDGED)]):
        with files.replaced_whole(sweep.folder / "held.png") as path:
            _picture(sweep, judged, path)


def verdicts_of(sweep: Sweep) -> dict[str, dict[str, int]]:
    """Return how often each claim held, failed and was undecided, and how many values it had, in the order of the ledger.

    One value in all runs, up to rounding, tells a claim that no seed enters: a closed form, or a run that the book keeps.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in sweep._rows():
        if row["claim"] is not None:
            rows.setdefault(row["claim"], []).append(row)
    counts = {id: {one: verdicts.counts(some)[one] for one in verdicts.JUDGED} for id, some in rows.items()}
    return {id: counts[id] | {"values": _different(some)} for id, some in rows.items()}


def _different(rows: Iterable[Mapping[str, Any]]) -> int:
    """How many values were measured that differ by more than a millionth."""
    found = sorted(row["measured"] for row in rows if row["measured"] is not None)
    return 1 + sum(b - a > 1e-6 * max(1.0, abs(b)) for a, b in itertools.pairwise(found))


def keep(sweep: Sweep) -> Path:
    """Write how often each claim held to ``results/sweeps/NN.json`` of the book, which the scoreboard reads.

    Raises
    ------
    ChapterError
        When a run is missing or failed, or the chapter belongs to no book.
    """
    if sweep.chapter.root is None:
        raise ChapterError(f"{sweep.chapter.source} belongs to no book that could keep its sweep")
    if missing := sweep.missing():
        raise ChapterError(f"only a whole sweep is kept; {len(missing)} of {len(sweep.cells)} runs are missing or failed")
    records = [sweep.record(address) for address in sweep.cells]
    record = {
        "chapter": sweep.chapter.name,
        "grid": sweep.grid,
        "fixed": sweep.fixed,
        "devices": sorted({record["device"] for record in records}),
        "versions": records[0]["versions"],
        "claims": verdicts_of(sweep),
    }
    path = _kept_path(sweep.chapter)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_record(path, record)
    return path


def kept(chapter: catalogue.Chapter) -> dict[str, dict[str, int]]:
    """What :func:`keep` wrote of a chapter's claims, each as :func:`verdicts_of`; nothing where it was not kept."""
    path = _kept_path(chapter)
    return files.read_record(path)["claims"] if path.is_file() else {}


def _kept_path(chapter: catalogue.Chapter) -> Path:
    return (chapter.root or chapter.source.parent) / "results" / "sweeps" / f"{chapter.number}.json"


def _picture(sweep: Sweep, judged, path: Path) -> None:
    """The share of runs in which each claim held: a row a claim, a column for each point of the grid apart from the seeds."""
    from matplotlib.figure import Figure

    from mvnb import figures

    figures.use_style()
    names = [name for name in sweep.grid if name != "seed"]
    point = judged[names].astype(str).agg("\n".join, axis=1) if names else "all"
    table = judged.assign(point=point, held=judged["verdict"] == "holds")
    held, runs = (table.pivot_table("held", "claim", "point", of, sort=False) for of in ("sum", "count"))
    words = held.map("{:.0f}/".format) + runs.map("{:.0f}".format)
    fig = Figure(figsize=(3.5 + 0.55 * held.shape[1], 0.9 + 0.24 * len(held)), layout="constrained")
    ax = fig.subplots()
    figures.heatmap(ax, held / runs, list(held.index), list(held.columns), limits=(0, 1), cmap="RdYlBu", words=words)
    ax.set(xlabel=" / ".join(names), title=f"{sweep.chapter.name}: runs in which a claim held")
    fig.savefig(path, format="png")
