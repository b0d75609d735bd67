"""Sweeps: one chapter over a grid of parameters, each cell of the grid a run of its own, none of them run twice.

A sweep lives in a folder: ``sweep.json`` (what was asked for), ``cells/ADDRESS`` (one finished run each: notebook, claims and
``run.json``), ``failed/ADDRESS`` (the last attempt of a cell that failed), ``table.csv``, ``table.parquet`` and ``held.png``.
An address is a digest of the chapter's code, all its parameters, the package and the versions of the libraries: whatever
changes one of them makes another cell. While a sweep runs, ``.code`` holds the chapter and the package as they were at its
start, which every cell runs. Workers need to see this folder and the book at the same paths.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat

from mvnb import files, verdicts
from mvnb.runner import addresses, catalogue, execution, kernel, plans, workers
from mvnb.runner.errors import CellFailed, ChapterError

__all__ = ["Cell", "Outcome", "Sweep", "grid", "keep", "kept", "load", "prepare", "run", "run_cell", "save", "verdicts_of"]

_RANGE = re.compile(r"(\d+):(\d+)(?::(\d+))?")


@dataclass(frozen=True)
class Cell:
    """One cell of a grid: the parameters that differ from the defaults, and its address."""

    parameters: dict[str, Any]
    address: str

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.parameters.items())


@dataclass(frozen=True)
class Sweep:
    """A chapter, the cells of its grid, and the folder in which their runs lie."""

    chapter: catalogue.Chapter
    grid: dict[str, list[Any]]
    fixed: dict[str, Any]
    folder: Path

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, the last name of the grid running fastest."""
        points = (dict(zip(self.grid, values)) for values in itertools.product(*self.grid.values()))
        values = [self.fixed | point for point in points]
        return [Cell(one, address) for one, address in zip(values, addresses.digests(self.chapter, values))]

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """What is known of a cell's last run: ``run.json`` as it was written, None when it was never finished."""
        for kind in ("cells", "failed"):
            try:
                return json.loads((self.folder / kind / cell.address / "run.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
        return None

    def missing(self) -> list[Cell]:
        """The cells that have not been run, or failed when they were."""
        return [cell for cell in self.cells if (self.record(cell) or {"error": "not run"})["error"]]

    def rows(self) -> list[dict[str, Any]]:
        """The tidy table: a row for each claim of each finished cell, and one for each cell that failed."""
        rows = []
        for cell in self.cells:
            if (record := self.record(cell)) is None:
                continue
            common = {"chapter": self.chapter.name, "address": cell.address, **_plain(record["parameters"])}
            about = {key: record[key] for key in ("seconds", "device", "host", "finished", "error")} | record["versions"]
            for claim in record["claims"] or [{}]:
                rows.append(common | _measured(claim) | about)
        return rows


def _measured(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a claim: what was measured of the first name of its rule, and the verdict."""
    ends = next(iter(claim.get("measured", {}).values()), [None] * 3)
    seen = {key: claim.get(key) for key in ("kind", "unit", "verdict")}
    return {"claim": claim.get("id"), **dict(zip(("measured", "low", "high"), ends)), **seen}


@dataclass(frozen=True)
class Outcome:
    """What a call of :func:`run` did: cells found finished, run now, and the messages of those that failed, by address."""

    found: int
    ran: int
    failed: dict[str, str]
    seconds: float


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
    values: Mapping[str, Sequence[Any]],
    fixed: Mapping[str, Any],
    folder: str | Path,
    *,
    timeout: float | None = None,
    memory: int | None = None,
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
    sweep = Sweep(chapter, {name: list(some) for name, some in values.items()}, dict(fixed), Path(folder).absolute())
    execution.usable_folder(sweep.folder, chapter)
    _refuse_other(sweep)
    missing = sweep.missing()
    cases = [cell.parameters for cell in missing]
    said = [None if anyway else plans.refusal(chapter, values) for values in cases]
    large = "; run them with --anyway" if any(said) else ""
    if missing and not large:
        said = kernel.refusals(chapter.cells, cases, chapter.source.parent, timeout, memory)
    refused = [(cell, text) for cell, text in zip(missing, said) if text]
    if refused:
        more = f" (and {len(refused) - 1} more of {len(sweep.cells)} cells)" if len(refused) > 1 else ""
        raise ChapterError(f"{refused[0][0]}: {refused[0][1]}{more}{large}")
    return sweep


def load(folder: str | Path, root: Path | None = None) -> Sweep:
    """The sweep that was last run in a folder, with the addresses that its cells have now.

    Raises
    ------
    ChapterError
        When there is none, or its chapter no longer takes these parameters.
    """
    names = _plan(Path(folder))
    if names is None:
        raise ChapterError(f"no sweep in {folder}: there is no file sweep.json")
    chapter = catalogue.resolve(names[0], root)
    checked = {name: [chapter.check({name: value})[name] for value in values] for name, values in names[1].items()}
    return Sweep(chapter, checked, chapter.check(names[2]), Path(folder).absolute())


def _plan(folder: Path) -> tuple[str, dict[str, list[Any]], dict[str, Any]] | None:
    """Chapter, grid and fixed parameters of the sweep in a folder; None where there is none."""
    path = folder / "sweep.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        return plan["chapter"], plan["grid"], plan["fixed"]
    except OSError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ChapterError(f"{path} is not the plan of a sweep: {error}") from None


def _refuse_other(sweep: Sweep) -> None:
    there = _plan(sweep.folder)
    if there and there[0] != sweep.chapter.name:
        raise ChapterError(f"{sweep.folder} holds a sweep of {there[0]}; give one of {sweep.chapter.name} another folder (-o)")


def _snapshot(sweep: Sweep) -> catalogue.Chapter:
    """The chapter as every cell of the sweep runs it: copied into the folder, whatever is edited from now on.

    Raises
    ------
    ChapterError
        When package or claims are no longer those that the sweep's addresses were made from.
    CellFailed
        When the folder cannot be written to.
    """
    given = [cell.address for cell in sweep.cells]
    folder = sweep.folder / ".code" / hashlib.sha256("".join(given).encode()).hexdigest()[:16]
    if not folder.is_dir():
        try:
            _copy_code(sweep, folder)
        except OSError as error:
            reason = error.strerror or error.args[0][0][-1]  # of many files, those of the first
            raise CellFailed(f"cannot write {sweep.folder}: {reason}") from None
    return catalogue.Chapter(sweep.chapter.source, sweep.chapter.root, folder)


def _copy_code(sweep: Sweep, folder: Path) -> None:
    """Copy chapter and package into ``folder``, whole or not at all."""
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        addresses.copy_package(made)
        files.write(made / sweep.chapter.notebook.name, nbformat.writes(sweep.chapter.cells))
        now = addresses.digests(sweep.chapter, [cell.parameters for cell in sweep.cells])
        if now != [cell.address for cell in sweep.cells]:
            raise ChapterError("the package was edited while the sweep was prepared; start it again")
        os.rename(made, folder)


def run(
    sweep: Sweep,
    *,
    jobs: int | None = None,
    address: str | None = None,
    timeout: float | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> Outcome:
    """Run the cells that are missing, on processes of this machine or a Dask cluster, and write the table.

    Parameters
    ----------
    jobs
        How many at once on this machine; one a core by default.
    address
        A Dask scheduler such as ``"tcp://host:8786"``, whose workers are used instead.
    timeout, memory
        Seconds that a cell of a notebook may take, and bytes that its kernel may allocate.
    progress
        Whether to draw a bar with the time left on stderr when it is a terminal.

    Raises
    ------
    ChapterError
        When another sweep runs in the folder, there is no scheduler, or the folder cannot be written.
    """
    started = time.monotonic()
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with execution.alone(sweep.folder / ".lock", f"another sweep is running in {sweep.folder}"):
        _refuse_other(sweep)
        plan = {"chapter": sweep.chapter.name, "grid": sweep.grid, "fixed": sweep.fixed}
        files.write(sweep.folder / "sweep.json", json.dumps(plan, indent=1) + "\n")
        missing, failed = sweep.missing(), {}
        try:
            for cell, error in _results(sweep, missing, jobs, address, (timeout, memory), progress):
                if error:
                    failed[cell.address] = error
            shutil.rmtree(sweep.folder / ".code", ignore_errors=True)
        finally:
            save(sweep)
    return Outcome(len(sweep.cells) - len(missing), len(missing) - len(failed), failed, time.monotonic() - started)


def _results(sweep: Sweep, missing, jobs, address, limits, progress) -> Iterator[tuple[Cell, str]]:
    """Each missing cell with the error of its run, empty for none, as they come."""
    from tqdm import tqdm

    if not missing:
        return
    try:
        chapter = _snapshot(sweep)
    except OSError as error:  # of the many that copytree() collects, the first
        raise CellFailed(f"cannot write {sweep.folder}: {error.strerror or error.args[0][0][2]}") from None
    given = [(sweep.folder, chapter, cell, *limits) for cell in missing]
    bar = tqdm(total=len(missing), desc=sweep.chapter.name, unit="run", disable=None if progress else True)
    with bar, workers.connect(jobs and min(jobs, len(missing)), address) as client:
        for index, result in workers.each(client, run_cell, given):
            bar.update()
            yield missing[index], workers.error_text(result) if isinstance(result, Exception) else result


def run_cell(
    folder: Path, chapter: catalogue.Chapter, cell: Cell, timeout: float | None, memory: int | None, on_cell=lambda: None
) -> str:
    """Run one cell on a worker; its error, empty for none. A cell that another worker runs is waited for, not run twice."""
    from filelock import FileLock

    running, done = folder / ".running" / cell.address, folder / "cells" / cell.address
    running.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{running}.lock"):
        if (done / "run.json").is_file():
            return ""
        for stale in (running, done, folder / "failed" / cell.address):
            shutil.rmtree(stale, ignore_errors=True)
        try:
            record = _attempt(chapter, cell, running, timeout, memory, on_cell)
            target = folder / "failed" / cell.address if record["error"] else done
            record["error"] = record["error"].replace(str(running), str(target))
            files.write(running / "run.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            target.parent.mkdir(exist_ok=True)
            os.rename(running, target)
        except OSError as error:  # no room for a record either
            shutil.rmtree(running, ignore_errors=True)
            return f"cannot write {folder}: {error.strerror}"
    return record["error"]


def _attempt(chapter, cell: Cell, folder: Path, timeout, memory, on_cell) -> dict[str, Any]:
    """Run the notebook in ``folder``, and say what became of it."""
    started, rows, device, error = time.monotonic(), [], "", ""
    try:
        result = execution.run(chapter, cell.parameters, folder, html=False, timeout=timeout, memory=memory, on_cell=on_cell)
        rows, device = result.rows, _device(result.notebook)
    except (CellFailed, ChapterError) as failure:
        error = str(failure)
        folder.mkdir(parents=True, exist_ok=True)
    return {
        "chapter": chapter.name,
        "address": cell.address,
        "parameters": {name: one.default for name, one in chapter.parameters.items()} | cell.parameters,
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


def save(sweep: Sweep) -> None:
    """Write the table as CSV and Parquet, and the picture, from the cells that there are."""
    import pandas as pd

    rows = sweep.rows()
    if not rows:
        return
    table = pd.DataFrame(rows)
    files.write(sweep.folder / "table.csv", table.to_csv(index=False))
    with files.replaced_whole(sweep.folder / "table.parquet") as path:
        table.to_parquet(path)
    if len(judged := table[table["verdict"].isin(verdicts.JUDGED)]):
        with files.replaced_whole(sweep.folder / "held.png") as path:
            _picture(sweep, judged, path)


def verdicts_of(sweep: Sweep) -> list[dict[str, Any]]:
    """How often each claim held, failed and was undecided, and how many values it had, in the order of the ledger.

    One value in all runs, up to rounding, tells a claim that no seed enters: a closed form, or a run that the book keeps.
    """
    counted: dict[str, list[dict[str, Any]]] = {}
    for row in sweep.rows():
        if row["claim"] is not None:
            counted.setdefault(row["claim"], []).append(row)
    return [
        {"id": name, **{one: verdicts.counts(rows)[one] for one in verdicts.JUDGED}, "values": _different(rows)}
        for name, rows in counted.items()
    ]


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
    records = [sweep.record(cell) for cell in sweep.cells]
    record = {
        "chapter": sweep.chapter.name,
        "grid": sweep.grid,
        "fixed": sweep.fixed,
        "devices": sorted({record["device"] for record in records}),
        "versions": records[0]["versions"],
        "claims": {row.pop("id"): row for row in verdicts_of(sweep)},
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


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they fit into one column: sequences as text."""
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in parameters.items()}


def _picture(sweep: Sweep, judged, path: Path) -> None:
    """The share of runs in which each claim held: a row a claim, a column for each point of the grid apart from the seeds."""
    import numpy as np
    from matplotlib.figure import Figure

    from mvnb import figures

    figures.use_style()
    names = [name for name in sweep.grid if name != "seed"]
    label = judged[names].astype(str).agg("\n".join, axis=1) if names else judged["chapter"]
    counts = (
        judged.assign(point=label)
        .groupby(["claim", "point"], sort=False)["verdict"]
        .agg(sum=lambda v: (v == "holds").sum(), size="size")
        .unstack()
    )
    share = (counts["sum"] / counts["size"]).to_numpy(dtype=float)
    fig = Figure(figsize=(3.5 + 0.55 * share.shape[1], 0.9 + 0.24 * len(share)), layout="constrained")
    ax = fig.subplots()
    ax.imshow(share, vmin=0, vmax=1, cmap="RdYlBu", aspect="auto")
    for (row, column), value in zip(np.ndindex(share.shape), share.flat):
        if np.isfinite(value):
            text = f"{counts['sum'].iat[row, column]:.0f}/{counts['size'].iat[row, column]:.0f}"
            ax.text(column, row, text, ha="center", va="center", fontsize=7)
    ax.set_xticks(range(share.shape[1]), counts["sum"].columns if names else ["all"], fontsize=7)
    ax.set_yticks(range(len(share)), counts.index, fontsize=7)
    ax.set(xlabel=" / ".join(names), title=f"{sweep.chapter.name}: runs in which a claim held")
    ax.grid(False)
    fig.savefig(path, format="png")
