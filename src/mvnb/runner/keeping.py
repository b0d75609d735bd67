"""Making a kept run: its script called once a seed, each seed's values kept in a file until all of them make the result.

The files of the seeds lie in ``runs/keep-SLUG-NAME/DIGEST/seed-N.json``, where the digest is that of the script and what it is
given; the folder may be copied to another machine, where the same command goes on. A seed's state on the way, if its script
saves one, lies in ``seed-N/``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mvnb import files, kept_runs
from mvnb.runner import addresses, plans, workers
from mvnb.runner.catalogue import Chapter
from mvnb.runner.errors import CellFailed, ChapterError
from mvnb.runner.parameters import Parameter, did_you_mean, parse_assignments


@dataclass(frozen=True)
class Kept:
    """A declared run with the parameters that it gets, and the folder of its seeds."""

    chapter: Chapter
    declared: kept_runs.Declared
    parameters: dict[str, Any]
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / self.declared.digest(self.parameters)

    @property
    def seeds(self) -> list[int]:
        return list(range(self.parameters["seed"], self.parameters["seed"] + self.parameters["seeds"]))

    def done(self) -> dict[int, dict[str, Any]]:
        """What was written of each seed that is finished."""
        return {seed: found for seed in self.seeds if (found := _read(self._path(seed))) is not None}

    def _path(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}.json"

    @property
    def result(self) -> Path:
        return kept_runs.folder(self.chapter.slug) / f"{self.declared.name}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def prepare(chapter: Chapter, name: str, assignments: Iterable[str], folder: Path | None = None) -> Kept:
    """A kept run of a chapter, its parameters replaced by ``NAME=VALUE`` texts; nothing is written.

    Raises
    ------
    ChapterError
        For a name that the chapter does not declare, parameters that the run does not have or that do not fit, and a
        package that cannot be written to.
    """
    every = kept_runs.declared(chapter.slug)
    if name not in every:
        there = f"it has {', '.join(every)}" if every else "it has none"
        raise ChapterError(f"{chapter.name} declares no kept run {name!r}; {there}{did_you_mean(name, every)}")
    one = every[name]
    known = {key: Parameter(key, value, "(1 or more)" if key == "seeds" else "") for key, value in one.parameters.items()}
    values = one.parameters | parse_assignments(assignments, known, f"{chapter.number} {name}")
    one.rules()  # claims that are malformed are said before anything is trained
    where = Path("runs", f"keep-{chapter.slug}-{name}") if folder is None else folder
    kept = Kept(chapter, one, values, where.absolute())
    if not os.access(kept.result.parent, os.W_OK):
        raise ChapterError(f"{kept.result.parent} cannot be written to")
    return kept


def run(kept: Kept, jobs: int | None = None, device: str = "auto", say: Callable[[str], None] = print) -> Path:
    """Run the seeds that are missing, ``jobs`` at once (one per core by default), and write the result when all are there.

    Raises
    ------
    ChapterError
        For a device that is not there.
    CellFailed
        When a seed fails; those that are finished are kept.
    """
    from mvnb.training import pick_device

    try:
        pick_device(device)
    except ValueError as error:
        raise ChapterError(str(error)) from None
    missing, began, failed = [seed for seed in kept.seeds if seed not in kept.done()], time.monotonic(), []
    say(f"{len(kept.seeds) - len(missing)} of {len(kept.seeds)} seeds are there, {len(missing)} to run")
    for n, (seed, result) in enumerate(_each(kept, missing, jobs, device), 1):
        if isinstance(result, Exception):
            failed.append(f"seed {seed}: {workers.error_text(result)}")
        state = "failed" if isinstance(result, Exception) else f"took {plans.duration(result)}"
        left = (len(missing) - n) * (time.monotonic() - began) / n
        say(f"seed {seed} {state}; {len(missing) - n} left, about {plans.duration(left)}")
    if failed:
        raise CellFailed(failed[0])
    return _write(kept)


def _each(kept: Kept, seeds: list[int], jobs: int | None, device: str) -> Iterator[tuple[int, float | Exception]]:
    """Each seed with its seconds or its error, as they come."""
    if not seeds:
        return
    kept.folder.mkdir(parents=True, exist_ok=True)
    with workers.connect(min(jobs or workers.cores(), len(seeds))) as client:
        for index, result in workers.each(client, run_seed, [(kept, seed, device) for seed in seeds]):
            yield seeds[index], result


def run_seed(kept: Kept, seed: int, device: str, on_cell: Callable[[], None] = lambda: None) -> float:
    """Run one seed and write what it gave; its seconds, on a processor those that it computed since it was last begun.

    A seed that another process runs is waited for, not run twice.
    """
    from filelock import FileLock

    path = kept._path(seed)
    with FileLock(path.with_suffix(".lock")):
        if (there := _read(path)) is not None:
            return there["seconds"]
        import torch

        from mvnb.training import pick_device

        torch.set_num_threads(1)
        where = pick_device(device)
        clock = time.process_time if where.type == "cpu" else time.monotonic  # others may be at work on the same core
        began = clock()
        found = {"seed": seed, "values": kept.declared.call("run", seed, where, kept.parameters, path.with_suffix(""))}
        found["seconds"] = round(clock() - began, 1)
        if seed == kept.seeds[0]:
            found["beginning"] = kept.declared.call("beginning", seed, where, kept.parameters)
        found |= {"hardware": hardware(where), "versions": addresses.versions()}
        found["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            text = json.dumps(found, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ChapterError(f"{kept.declared.script.name} gave what cannot be kept: {error}") from None
        files.write(path, text + "\n")
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
    return found["seconds"]


def hardware(device) -> str:
    """The card, or the processor, that computes on a PyTorch device."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _write(kept: Kept) -> Path:
    """The result from the files of all seeds, whole or not at all."""
    changed = [f"-p {key}={value}" for key, value in kept.parameters.items() if value != kept.declared.parameters[key]]
    runs = list(kept.done().values())
    record = {
        "command": " ".join([f"mvnb keep {kept.chapter.number} {kept.declared.name}", *changed]),
        "parameters": kept.parameters,
        "script": kept.declared.digest(kept.parameters),
        "rules": kept.declared.rules(),
        "runs": runs,
    }
    files.write_record(kept.result, record)
    return kept.result


def status(chapters: Iterable[Chapter], root: Path = Path("runs")) -> Iterator[tuple[str, str, str, str]]:
    """A line a kept run: chapter, name, when it was made, and whether it is what would be made today."""
    for chapter in chapters:
        every = kept_runs.declared(chapter.slug)
        results = {path.stem for path in kept_runs.paths(chapter.slug)}
        for name in sorted(every.keys() | results):
            record = kept_runs.load(chapter.slug, name) if name in results else None
            made = max(run["finished"] for run in record["runs"])[:10] if record and "runs" in record else "-"
            yield chapter.number, name, made, _state(every.get(name), record, root)


def _state(one: kept_runs.Declared | None, record: dict[str, Any] | None, root: Path) -> str:
    if one is None or (record is not None and "runs" not in record):
        return "legacy, no record"
    if record is None:
        found = root / f"keep-{one.slug}-{one.name}" / one.digest(one.parameters)
        return f"not finished: {len(list(found.glob('seed-*.json')))} of {one.parameters['seeds']} seeds"
    stale = []
    if record["parameters"] != one.parameters:
        stale.append("parameters")
    elif record["script"] != one.digest(one.parameters):
        stale.append("script")
    if turned := [id for id, rule in one.rules().items() if record["rules"].get(id) != rule]:
        stale.append(f"rule of {', '.join(turned)}")
    return f"stale: other {' and '.join(stale)} since" if stale else f"{len(record['runs'])} seeds, as declared"


__all__ = ["Kept", "hardware", "prepare", "run", "run_seed", "status"]
