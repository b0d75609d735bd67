"""Creation of kept runs (see :mod:`mvnb.kept_runs`), seed by seed; when all seeds have finished, they form the result.

Each finished seed is stored in ``runs/keep-SLUG-NAME/DIGEST/seed-N.json``, where the digest covers the script and its
arguments. If this folder is copied to another machine, the same command continues there. A script may save the state of an
unfinished seed in ``seed-N/``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mvnb import files, kept_runs
from mvnb.runner import addresses, workers
from mvnb.runner.catalogue import Chapter
from mvnb.runner.errors import CellFailed, ChapterError
from mvnb.runner.parameters import Parameter, choices_text, parse_assignments

_SAVE_EVERY = 10  # seconds


def make(
    chapter: Chapter,
    name: str,
    assignments: Iterable[str],
    jobs: int | None = None,
    device: str = "auto",
    force: bool = False,
) -> Path:
    """Run the missing seeds of a kept run in parallel, write the result when all have finished, and return its path.

    Lines on stderr report how many seeds are left, with an estimate of the remaining time.

    Parameters
    ----------
    chapter
        Chapter that declares the kept run.
    name
        Name of the kept run.
    assignments
        ``NAME=VALUE`` strings that replace parameters of the declaration.
    jobs
        Number of seeds to run at once; one per core by default.
    device
        ``"auto"``, ``"cpu"`` or a GPU such as ``"cuda"``.
    force
        Also replace the stored result by one of other parameters than declared. Otherwise such a result, as of a pilot with one
        seed, is written to the folder of its seeds.

    Raises
    ------
    ChapterError
        If the chapter does not declare the kept run, a parameter is unknown or invalid, the device is not available, or the
        folder of the result is not writable or belongs to an installed copy of the package. No file is written.
    CellFailed
        If a seed fails; finished seeds are kept.
    """
    from mvnb.training import pick_device

    every = kept_runs.declared(chapter.slug)
    if name not in every:
        raise ChapterError(f"{chapter.name} declares no kept run {name!r}{choices_text(name, every)}")
    declared = every[name].parameters
    known = {key: Parameter(key, value, "(1 or more)" if key == "seeds" else "") for key, value in declared.items()}
    values = declared | parse_assignments(assignments, known, f"{chapter.number} {name}")
    one = replace(every[name], parameters=values)
    rules = one.rules()  # malformed claims raise before any training
    folder = _folder(one).absolute()
    result = (kept_runs.folder(chapter.slug) if force or values == declared else folder) / f"{name}.json"
    if result.is_relative_to(sysconfig.get_path("purelib")):
        raise ChapterError(f"expected a checkout of the project installed with pip install -e, got a copy in {result.parent}")
    if result.parent != folder and not os.access(result.parent, os.W_OK):
        raise ChapterError(f"{result.parent} is not writable")
    try:
        pick_device(device)
    except ValueError as error:
        raise ChapterError(str(error)) from None
    paths = {seed: folder / f"seed-{seed}.json" for seed in range(values["seed"], values["seed"] + values["seeds"])}
    _run_missing(one, paths, jobs, device)
    changed = [f"-p {key}={value}" for key, value in values.items() if value != declared[key]]
    record = {
        "command": " ".join([f"mvnb keep {chapter.number} {name}", *changed]),
        "parameters": values,
        "script": one.digest(),
        "rules": rules,
        "runs": [files.read_json(path) for path in paths.values()],
    }
    files.write_record(result, record)
    return result


def _folder(one: kept_runs.Declared) -> Path:
    """Return the folder of the finished seeds of a kept run with these parameters."""
    return Path("runs", f"keep-{one.slug}-{one.name}", one.digest())


def _run_missing(one: kept_runs.Declared, paths: dict[int, Path], jobs: int | None, device: str) -> None:
    """Run the seeds whose file does not exist yet; raise ``CellFailed`` if one of them fails."""
    missing, began, failed = [seed for seed, path in paths.items() if files.read_json(path) is None], time.monotonic(), []
    print(f"{len(paths) - len(missing)} of {len(paths)} seeds finished, {len(missing)} to run", file=sys.stderr, flush=True)
    done = workers.each(_run_seed, [(one, seed, paths[seed], device) for seed in missing], jobs)
    for n, (index, seconds, error) in enumerate(done, 1):
        if error:
            failed.append(f"seed {missing[index]}: {error}")
        state = "failed" if error else f"took {timedelta(seconds=round(seconds))}"
        left = timedelta(seconds=round((len(missing) - n) * (time.monotonic() - began) / n))
        print(f"seed {missing[index]} {state}; {len(missing) - n} left, about {left}", file=sys.stderr, flush=True)
    if failed:
        raise CellFailed(failed[0])


def _run_seed(one: kept_runs.Declared, seed: int, path: Path, device: str) -> float:
    """Run one seed, write its values to ``path``, and return the seconds that it took in all (CPU time on a CPU).

    If another process is running the seed, wait for that process instead and return its seconds.
    """
    import torch
    from filelock import FileLock

    from mvnb.training import pick_device

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if (finished := files.read_json(path)) is not None:
            return finished["seconds"]
        torch.set_num_threads(1)
        where = pick_device(device)
        clock = time.process_time if where.type == "cpu" else time.monotonic  # other processes may share the core
        with _counted(path.with_suffix(""), clock) as seconds:
            found = {"seed": seed, "values": one.call("run", seed, where, path.with_suffix(""))}
            found["seconds"] = round(seconds(), 1)
        if seed == one.parameters["seed"]:
            found["beginning"] = one.call("beginning", seed, where)
        found |= {"hardware": _hardware(where), "versions": addresses.versions()}
        found["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            text = json.dumps(found, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ChapterError(f"{one.script.name} must return JSON-serializable values: {error}") from None
        files.write(path, text + "\n")
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        path.with_suffix(".seconds").unlink(missing_ok=True)
    return found["seconds"]


@contextmanager
def _counted(scratch: Path, clock: Callable[[], float]) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds so far, including those of earlier starts whose state is in ``scratch``.

    A thread saves them every ten seconds, since the process may be killed.
    """
    saved, began, ended = scratch.with_suffix(".seconds"), clock(), threading.Event()
    before = (files.read_json(saved) or 0.0) if scratch.is_dir() else 0.0

    def total() -> float:
        return before + clock() - began

    def save() -> None:
        while not ended.wait(_SAVE_EVERY):
            files.write(saved, json.dumps(total()))

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    try:
        yield total
    finally:
        ended.set()
        thread.join()
        files.write(saved, json.dumps(total()))


def _hardware(device) -> str:
    """Return the name of the GPU or CPU behind a PyTorch device."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def status(chapters: Iterable[Chapter]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the chapter number, name, date and state of each kept run of the chapters.

    The state tells whether the result matches the current declaration, script and rules of the claims or, if there is no
    result, how many seeds have finished.
    """
    for chapter in chapters:
        every = kept_runs.declared(chapter.slug)
        results = {path.stem for path in kept_runs.folder(chapter.slug).glob("*.json")}
        for name in sorted(every.keys() | results):
            record = kept_runs.load(chapter.slug, name) if name in results else None
            made = max(run["finished"] for run in record["runs"])[:10] if record and "runs" in record else "-"
            yield chapter.number, name, made, _state(every.get(name), record)


def _state(one: kept_runs.Declared | None, record: dict[str, Any] | None) -> str:
    if one is None or (record is not None and "runs" not in record):
        return "legacy, no record"
    if record is None:
        return f"not finished: {len(list(_folder(one).glob('seed-*.json')))} of {one.parameters['seeds']} seeds"
    stale = []
    if record["parameters"] != one.parameters:
        stale.append("parameters")
    elif record["script"] != one.digest():
        stale.append("script")
    if changed := [id for id, rule in one.rules().items() if record["rules"].get(id) != rule]:
        stale.append(f"rule of {', '.join(changed)}")
    return f"stale: {' and '.join(stale)} changed" if stale else f"{len(record['runs'])} seeds, as declared"
