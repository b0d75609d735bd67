"""Sweeps: runs of one chapter over a grid of parameters, with one run per cell of the grid.

The folder of a sweep contains ``sweep.json`` (the request), ``cells/ADDRESS`` (the notebook, claims and ``run.json`` of each
finished run), ``failed/ADDRESS`` (the last attempt of each failed cell), and the results of all cells as ``table.csv``,
``table.parquet`` and the figure ``held.png``. An address is a digest of the chapter's code, claims and kept runs, all its
parameters, the modules that it may import and the versions of the libraries; changing any of these creates a new cell. While a
sweep runs, ``.code`` holds the chapter and the package as they were at its start, and every cell runs that copy. Workers must
see the sweep's folder and the book at the same paths.
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
from functools import cached_property, partial
from pathlib import Path
from textwrap import fill, shorten
from typing import Any

import nbformat

from mvnb import files, verdicts
from mvnb.rules import Rule
from mvnb.runner import addresses, catalogue, execution, kernel, workers
from mvnb.runner.errors import CellFailed, ChapterError

_MOST_POINTS = 100_000
_RANGE = re.compile(r"(\d+):(\d+)(?::(\d+))?")


@dataclass(frozen=True)
class Sweep:
    """Sweep of a chapter, with the values of its grid, the fixed parameters and the folder of its runs."""

    chapter: catalogue.Chapter
    grid: dict[str, list[Any]]
    fixed: dict[str, Any]
    folder: Path

    @cached_property
    def cells(self) -> dict[str, dict[str, Any]]:
        """Parameters of each cell that replace the defaults, by address; the last parameter of the grid varies fastest."""
        values = [self.fixed | dict(zip(self.grid, point)) for point in itertools.product(*self.grid.values())]
        return dict(zip(addresses.digests(self.chapter, values), values))

    def record(self, address: str) -> dict[str, Any] | None:
        """Return the record (``run.json``) of a cell's last run, or None if no run has ended."""
        found = (files.read_json(self.folder / kind / address / "run.json") for kind in ("cells", "failed"))
        return next(filter(None, found), None)

    def missing(self) -> list[str]:
        """Return the addresses of the cells that have not been run or have failed."""
        return [address for address in self.cells if (self.record(address) or {"error": "not run"})["error"]]

    def running(self) -> list[str]:
        """Return the addresses of the cells that a worker is running now."""
        from filelock import FileLock, Timeout

        found = []
        for address in self.missing():
            lock = self.folder / ".running" / f"{address}.lock"
            if os.access(lock, os.W_OK):  # the file stays when the lock is released, or the worker killed
                try:
                    with FileLock(lock, timeout=0):
                        pass
                except Timeout:
                    found.append(address)
        return found

    def name(self, address: str) -> str:
        """Format the values of the grid at a cell for messages, such as "width=64, seed=1"."""
        return ", ".join(f"{name}={self.cells[address][name]}" for name in self.grid)

    def claims(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of all finished cells by the id of their claim, without claims that a kept run decides."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for record in filter(None, map(self.record, self.cells)):
            for row in record["claims"]:
                if not row["kept"]:
                    rows.setdefault(row["id"], []).append(row)
        return rows

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of the sweep's table: one per measured value of each finished cell, and one per failed cell."""
        rows = []
        for record in filter(None, map(self.record, self.cells)):
            # Lists become text to fit into one column, and so do integers that a column cannot hold.
            plain = {name: one if _is_plain(one) else json.dumps(one) for name, one in record["parameters"].items()}
            common = {"chapter": self.chapter.name, "address": record["address"], **plain}
            about = {key: record[key] for key in ("seconds", "device", "host", "finished", "error")} | record["versions"]
            rows += [common | part | about for claim in record["claims"] or [{}] for part in _parts(claim)]
        return rows


def _is_plain(value: Any) -> bool:
    return not isinstance(value, list) and (not isinstance(value, int) or abs(value) < 2**63)


def _parts(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the table columns of a claim for each of its parts, which are the measured values that its rule names."""
    seen = {key: claim.get(key) for key in ("says", "kind", "unit", "kept", "criterion", "verdict")}
    measured = claim.get("measured") or {None: [None] * 3}
    named = {part: dict(zip(("measured", "low", "high"), ends)) for part, ends in measured.items()}
    return [{"claim": claim.get("id"), "part": part} | ends | seen for part, ends in named.items()]


def grid(chapter: catalogue.Chapter, texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse strings of the form ``name=a,b,c`` into lists of values by name.

    Ranges of integers may be written ``name=first:end`` or ``name=first:end:step``, with ``end`` excluded.

    Raises
    ------
    ChapterError
        If a string is malformed, :meth:`~mvnb.runner.catalogue.Chapter.parse` rejects a value, a range is empty, or a name or
        value is given twice.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name or not values.strip():
            raise ChapterError(f"--grid must have the form name=a,b,c or name=first:end, got {text!r}")
        if name in found:
            raise ChapterError(f"--grid is given twice for {name!r}")
        if match := _RANGE.fullmatch(values.strip()):
            first, end, step = int(match[1]), int(match[2]), int(match[3] or 1)
            numbers = range(first, end, max(step, 1))
            if len(numbers) > _MOST_POINTS:
                raise ChapterError(f"--grid must give at most {_MOST_POINTS:,} values, got {text!r}")
            options = [str(n) for n in numbers]
            if not options or not step:
                raise ChapterError(f"--grid must give a non-empty range with a positive step, got {text!r}")
        else:
            options = re.split(r",(?![^\[(]*[\])])", values)  # at commas outside brackets
        found[name] = [chapter.parse([f"{name}={option}"])[name] for option in options]
        if len({repr(value) for value in found[name]}) < len(found[name]):
            raise ChapterError(f"--grid must give distinct values, got {text!r}")
    return found


def prepare(
    chapter: catalogue.Chapter, values: dict[str, list[Any]], fixed: dict[str, Any], folder: Path, limits: Mapping[str, Any]
) -> Sweep:
    """Return a sweep after the chapter's checks have accepted its missing cells; write no files.

    Parameters
    ----------
    chapter
        Chapter to run.
    values
        Values of each parameter in the grid, by name.
    fixed
        Values of parameters that are the same in all cells.
    folder
        Folder of the sweep.
    limits
        Limits per run, as in :func:`run`.

    Raises
    ------
    ChapterError
        If the chapter rejects or cannot check a cell, a parameter is both fixed and in the grid, or the folder is unusable or
        holds a sweep of another chapter.
    """
    if both := sorted(values.keys() & fixed.keys()):
        raise ChapterError(f"parameter {both[0]!r} is both in the grid and fixed")
    sweep = Sweep(chapter, values, fixed, folder.absolute())
    execution.refuse_unusable(sweep.folder, chapter)
    if (other := _plan(sweep.folder).get("chapter", _identity(chapter))) != _identity(chapter):
        raise ChapterError(f"{sweep.folder} holds a sweep of {other}; use another folder (-o) for {chapter.name}")
    missing = sweep.missing()
    cases = [sweep.cells[address] for address in missing]
    reasons = kernel.refusals(chapter.cells, cases, chapter.source.parent, limits) if missing else []
    if refused := {sweep.name(address): text for address, text in zip(missing, reasons) if text}:
        first, *others = refused
        also = f": also {'; '.join(others[:5])}{'; …' if others[5:] else ''}" if others else ""
        counted = f"{len(refused)} of {len(sweep.cells)} points refused, none run"
        raise ChapterError(f"{first}: {refused[first]} ({counted}{also})")
    return sweep


def _identity(chapter: catalogue.Chapter) -> str:
    """Return the name of a chapter of the book, or the path of another one."""
    return chapter.name if chapter.root else str(chapter.source)


def load(folder: Path) -> Sweep:
    """Return the sweep that was last run in a folder, with the current addresses of its cells.

    Raises
    ------
    ChapterError
        If there is none, ``sweep.json`` is invalid, or the chapter no longer accepts the parameters.
    """
    plan = _plan(folder)
    if not plan:
        raise ChapterError(f"no sweep in {folder}: sweep.json is missing")
    chapter = catalogue.resolve(plan["chapter"])
    checked = {name: [chapter.check({name: value})[name] for value in values] for name, values in plan["grid"].items()}
    return Sweep(chapter, checked, chapter.check(plan["fixed"]), folder.absolute())


def _plan(folder: Path) -> dict[str, Any]:
    """Return the chapter, grid and fixed parameters of the sweep in a folder; empty if there is no sweep."""
    path = folder / "sweep.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        kinds = {"chapter": str, "grid": dict, "fixed": dict}
        if wrong := [key for key, kind in kinds.items() if not isinstance(plan[key], kind)]:
            raise ValueError(f"expected {wrong[0]} of type {kinds[wrong[0]].__name__}, got {plan[wrong[0]]!r}")
        if lacking := [name for name, values in plan["grid"].items() if not isinstance(values, list) or not values]:
            raise ValueError(f"expected a list of values of {lacking[0]}, got {plan['grid'][lacking[0]]!r}")
        return {key: plan[key] for key in kinds}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ChapterError(f"{path} is not a valid sweep: {error}") from None


def _snapshot(sweep: Sweep) -> catalogue.Chapter:
    """Copy the chapter and the package into the sweep's folder, and return the chapter that runs this copy despite later edits.

    Raises
    ------
    ChapterError
        If the package or the claims have changed since the sweep's addresses were computed.
    CellFailed
        If the folder cannot be written to.
    """
    code = sweep.folder / ".code"
    try:
        code.mkdir(exist_ok=True)
        copy = Path(tempfile.mkdtemp(dir=code))
        shutil.copytree(addresses.PACKAGE, copy / addresses.PACKAGE.name)
        files.write(copy / sweep.chapter.notebook.name, nbformat.writes(sweep.chapter.cells))
    except OSError as error:
        reason = error.strerror or error.args[0][0][-1]  # if many files failed, the reason of the first
        raise CellFailed(f"cannot write to {sweep.folder}: {reason}") from None
    if addresses.digests(sweep.chapter, list(sweep.cells.values())) != list(sweep.cells):
        raise ChapterError("the package was edited while the sweep was prepared; start the sweep again")
    return replace(sweep.chapter, snapshot=copy)


def run(sweep: Sweep, limits: Mapping[str, Any], jobs: int | None = None, dask: str | None = None) -> dict[str, str]:
    """Run the missing cells, write the table and the figure, and return the error messages of failed cells by address.

    If stderr is a terminal, a progress bar shows the remaining time.

    Parameters
    ----------
    sweep
        Sweep returned by :func:`prepare`.
    limits
        Limits per run: ``timeout``, the maximum seconds per notebook cell, and ``memory``, the maximum bytes per kernel.
    jobs
        Number of runs at once on this machine; one per core by default.
    dask
        Address of a Dask scheduler whose workers are used instead of this machine.

    Raises
    ------
    ChapterError
        If another sweep is running in the folder, the scheduler does not answer, or the package was edited in the meantime.
    CellFailed
        If the folder cannot be written to, or the connection to the scheduler is lost.
    """
    from tqdm import tqdm

    sweep.folder.mkdir(parents=True, exist_ok=True)
    with execution.alone(sweep.folder / ".lock", f"another sweep is running in {sweep.folder}"):
        plan = {"chapter": _identity(sweep.chapter), "grid": sweep.grid, "fixed": sweep.fixed}
        missing, failed = sweep.missing(), {}
        try:
            chapter = _snapshot(sweep) if missing else sweep.chapter
            given = [(sweep.folder, chapter, address, sweep.cells[address], limits) for address in missing]
            # The plan is written when workers have been found.
            begun = partial(files.write, sweep.folder / "sweep.json", json.dumps(plan, indent=1) + "\n")
            done = workers.each(_run_cell, given, jobs, dask, begun)
            for index, failure, error in tqdm(done, sweep.chapter.name, len(missing), unit="run", disable=None):
                if error or failure:
                    failed[missing[index]] = error or failure
        except ChapterError:  # nothing has been run
            shutil.rmtree(sweep.folder / ".code", ignore_errors=True)
            raise
        except OSError as error:
            raise CellFailed(f"cannot write to {sweep.folder}: {error.strerror}") from None
        except BaseException:
            _save(sweep)
            raise
        _save(sweep)
        shutil.rmtree(sweep.folder / ".code", ignore_errors=True)
    return failed


def _run_cell(folder: Path, chapter: catalogue.Chapter, address: str, parameters, limits) -> str:
    """Run one cell on a worker, or wait while another worker runs it; return the error message, empty if it succeeded."""
    from filelock import FileLock

    running, done, failed = (folder / kind / address for kind in (".running", "cells", "failed"))
    running.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{running}.lock"):
        if files.read_json(done / "run.json") is not None:
            return ""
        for stale in (running, done, failed):
            shutil.rmtree(stale, ignore_errors=True)
        try:
            record = {"chapter": chapter.name} | _attempt(chapter, parameters, running, address, limits)
            target = failed if record["error"] else done
            record["error"] = record["error"].replace(str(running), str(target))
            files.write(running / "run.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            target.parent.mkdir(exist_ok=True)
            os.rename(running, target)
        except OSError as error:  # no space for a record
            shutil.rmtree(running, ignore_errors=True)
            return f"cannot write to {folder}: {error.strerror}"
    return record["error"]


def _attempt(chapter: catalogue.Chapter, parameters, folder: Path, address: str, limits) -> dict[str, Any]:
    """Run the notebook in ``folder`` and return the record of the run."""
    started, rows, device, error = time.monotonic(), [], "", ""
    try:
        result = execution.run(chapter, parameters, folder, address, **limits)
        rows, device = result.rows, _device(result.notebook)
    except (CellFailed, ChapterError) as failure:
        error = str(failure)
        folder.mkdir(parents=True, exist_ok=True)
    return {
        "address": address,
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
    """Return the device that a notebook reports in its output; empty if it reports none."""
    match = re.search(r"device: (\w+)", notebook.read_text(encoding="utf-8"))
    return match[1] if match else ""


def _save(sweep: Sweep) -> None:
    """Write the table (as CSV and Parquet) and the figure of the cells run so far."""
    import pandas as pd

    table = pd.DataFrame(sweep._rows())
    if table.empty:
        return
    files.write(sweep.folder / "table.csv", table.to_csv(index=False))
    with files.replaced_whole(sweep.folder / "table.parquet") as path:
        table.to_parquet(path)
    if len(judged := table[table["verdict"].isin(verdicts.JUDGED) & (table["kept"] == "")]):
        with files.replaced_whole(sweep.folder / "held.png") as path:
            _draw(sweep, judged).savefig(path, format="png")


def verdicts_of(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Return the ``terms`` of each claim, how often it held, failed and was undecided, and its number of distinct values.

    If all runs give the same value up to rounding, the claim does not depend on the seed, as if it evaluates a closed form.
    Claims that a kept run decides are left out, as are those that were not run.
    """
    found = {}
    for id, rows in sweep.claims().items():
        if not (some := [row for row in rows if row["verdict"] in verdicts.JUDGED]):
            continue
        counts = {one: verdicts.counts(some)[one] for one in verdicts.JUDGED}
        found[id] = {"terms": verdicts.terms(some[0]), **counts, "values": _count_distinct(some)}
    return found


def _count_distinct(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of distinct values of the first part, where differences of at most a millionth are ignored."""
    values = (_parts(row)[0]["measured"] for row in rows)
    found = sorted(value for value in values if value is not None)
    return 1 + sum(b - a > 1e-6 * max(1.0, abs(b)) for a, b in itertools.pairwise(found))


def keep(sweep: Sweep) -> Path:
    """Write how often each claim held to ``results/sweeps/NN.json`` for the book's scoreboard, and return the path.

    Raises
    ------
    ChapterError
        If a run is missing or has failed, parameters other than the seed differ from the defaults, or the chapter does not
        belong to a book.
    """
    if sweep.chapter.root is None:
        raise ChapterError(f"cannot keep a sweep of {sweep.chapter.source}, which does not belong to a book")
    if missing := sweep.missing():
        raise ChapterError(f"cannot keep an incomplete sweep: {len(missing)} of {len(sweep.cells)} runs are missing or failed")
    defaults = {name: one.default for name, one in sweep.chapter.parameters.items()}
    if other := [name for name, value in sweep.fixed.items() if value != defaults[name]]:
        got = f"{other[0]}={sweep.fixed[other[0]]}"
        raise ChapterError(f"cannot keep a sweep with other parameters than the defaults, got {got}")
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


def kept(chapter: catalogue.Chapter) -> dict[str, dict[str, Any]]:
    """Return the counts that :func:`keep` wrote for a chapter, in the format of :func:`verdicts_of`; empty without a record."""
    path = _kept_path(chapter)
    return files.read_record(path)["claims"] if path.is_file() else {}


def _kept_path(chapter: catalogue.Chapter) -> Path:
    return (chapter.root or chapter.source.parent) / "results" / "sweeps" / f"{chapter.number}.json"


def _draw(sweep: Sweep, judged):
    """Draw the measured values of each claim with their intervals and the limits of its rule, over the grid without the seeds.

    Each part of a claim has a panel, and each run a mark that tells the verdict; below are the numbers of each verdict.
    """
    from matplotlib.figure import Figure

    from mvnb import figures

    figures.use_style()
    names, short = [name for name in sweep.grid if name != "seed"], partial(shorten, placeholder=" …")
    judged = judged.assign(point=judged[names].astype(str).agg("\n".join, axis=1) if names else "")
    judged = judged.astype(dict.fromkeys(("measured", "low", "high"), float))
    points, panels = list(judged["point"].unique()), judged.groupby(["claim", "part"], sort=False)
    wide = max(3.4, 0.8 * len(points))
    columns = max(1, min(len(panels), int(14 / wide)))
    rows = -(-len(panels) // columns)
    fig = Figure(figsize=(max(4.5, wide * columns), 1.2 + 2.6 * rows), layout="constrained")
    for n, ((id, part), some) in enumerate(panels, 1):
        ax, (says, unit, rule) = fig.add_subplot(rows, columns, n), some.iloc[0][["says", "unit", "criterion"]]
        here = some.groupby("point")["point"]
        place = some["point"].map(points.index) + 0.7 * ((here.cumcount() + 0.5) / here.transform("size") - 0.5)
        for verdict, marker, color in zip(verdicts.JUDGED, "oXD", ("blue", "orange", "grey")):
            one = some[some["verdict"] == verdict]
            ends = [one["measured"] - one["low"], one["high"] - one["measured"]]
            ax.errorbar(place[one.index], one["measured"], ends, fmt=marker, color=figures.HUES[color], ms=5, lw=1.2)
        for limit in {limit for name, limit in Rule(rule).limits if name == part}:
            ax.axhline(limit, **figures.LINES["chance"])
        counts = [verdicts.counts(some[some["point"] == point].to_dict("records")) for point in points]
        told = ["  ".join(f"{of[one]} {verdicts.MARKS[one][0]}" for one in verdicts.JUDGED if of[one]) for of in counts]
        ax.set_xticks(range(len(points)), [f"{point}\n{text}".strip() for point, text in zip(points, told)])
        ax.set(xlim=(-0.5, len(points) - 0.5))
        ax.tick_params(labelsize=8)
        ax.set_ylabel(part if part != "value" else short(verdicts.plain(unit), 36), fontsize=8)
        ax.set_title(f"{fill(short(verdicts.plain(says), 160), int(12 * wide))}\n[{id}]", fontsize=8)
    labels = [*(f"{verdicts.MARKS[verdict][0]} {verdict}" for verdict in verdicts.JUDGED), "limit of the rule"]
    fig.legend(
        [*ax.containers, *ax.plot([], [], **figures.LINES["chance"])],
        labels,
        ncols=4 if columns > 1 else 2,
        loc="outside lower center",
    )
    fig.suptitle("\nby ".join(filter(None, [f"Runs of {sweep.chapter.name}", ", ".join(names)])), fontsize=12)
    return fig
