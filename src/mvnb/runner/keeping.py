"""Creation of kept runs (see :mod:`mvnb.kept_runs`), seed by seed; when all seeds have finished, they form the result.

Each finished seed is stored in ``runs/keep-SLUG-NAME/DIGEST/seed-N.json``, where the digest covers the script, the modules of
the paper that it imports, its arguments and the data sets that they name. If this folder is copied to another machine, the same
command continues there. A script may save the state of an unfinished seed in ``seed-N/``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mvnb import files, kept_runs
from mvnb.runner import addresses, kernel, pairing, workers
from mvnb.runner.catalogue import Chapter
from mvnb.runner.errors import CellFailed, ChapterError
from mvnb.runner.parameters import Parameter, choices_text, parse_assignments

_SAVE_EVERY = 10  # seconds
_MOST_COMMITS = 50
# Save what a kept run returns for its first seed, after a check of its digest if one is given. An older commit may not declare
# the run, or not know kept runs at all; then it has another digest.
_RUN = """import json, sys
from dataclasses import replace
from pathlib import Path
slug, name, valid, parameters, device, folder = json.loads(sys.argv[1])
try:
    from mvnb import kept_runs
    one = kept_runs.declared(slug)[name]
    stale = valid and one.digest() != valid
except Exception:
    if not valid:
        raise
    stale = True
if stale:
    sys.exit("stale")
import torch
from mvnb.training import pick_device
torch.set_num_threads(1)
values = replace(one, parameters=parameters).call("run", parameters["seed"], pick_device(device), Path(folder, "scratch"))
Path(folder, "values.json").write_text(json.dumps(values))"""


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

    declaration = _declared(chapter, name)
    declared = declaration.parameters
    known = {key: Parameter(key, value, "(1 or more)" if key == "seeds" else "") for key, value in declared.items()}
    values = declared | parse_assignments(assignments, known, f"{chapter.number} {name}")
    one = replace(declaration, parameters=values)
    rules, terms = one.rules(), one.terms()  # malformed claims raise before any training
    folder = _folder(one)
    result = (kept_runs.folder(chapter.slug) if force or values == declared else folder) / f"{name}.json"
    if result.is_relative_to(sysconfig.get_path("purelib")):
        raise ChapterError(f"expected a checkout of the project installed with pip install -e, got a copy in {result.parent}")
    if result.parent != folder and not os.access(result.parent, os.W_OK):
        raise ChapterError(f"{result.parent} is not writable")
    try:
        pick_device(device)
    except ValueError as error:
        raise ChapterError(str(error)) from None
    paths = _paths(one, folder)
    _run_missing(one, paths, jobs, device)
    changed = [f"-p {key}={value}" for key, value in values.items() if value != declared[key]]
    record = {
        "command": " ".join([f"mvnb keep {chapter.number} {name}", *changed]),
        "parameters": values,
        "script": one.digest(),
        "rules": rules,
        "terms": terms,
        "runs": [_finished(path) for path in paths.values()],
    }
    files.write_record(result, record)
    return result


def renew(chapter: Chapter, name: str, device: str = "auto") -> Path:
    """Record that a change of the code alone did not change a kept run, and return the path of its result.

    The short version of the run (see :mod:`mvnb.kept_runs`) is run for one seed with the code of the last commit for which the
    result is valid, and with the code as it is now. If both return equal values, the result gets today's digest and date.

    Raises
    ------
    ChapterError
        If the chapter does not declare the kept run, there is no result or it does not need this, its parameters have changed,
        or no commit is found for which it is valid.
    CellFailed
        If the values differ or a run fails. The result is not changed.
    """
    one = _declared(chapter, name)
    result = kept_runs.folder(chapter.slug) / f"{name}.json"
    if not result.is_file():
        raise ChapterError(f"{chapter.name} has no result of {name} to renew; make it: mvnb keep {chapter.number} {name}")
    record, short = kept_runs.load(chapter.slug, name), one.shortened().parameters
    if record["parameters"] != one.parameters:
        raise ChapterError(f"the parameters of {name} have changed; make it again: mvnb keep {chapter.number} {name}")
    if record["script"] == one.digest():
        raise ChapterError(f"{result.name} is valid for the code as it is; there is nothing to renew")
    log = pairing.git(result.parent, "log", "--format=%H", "-n", str(_MOST_COMMITS), "--", "..").split()
    with tempfile.TemporaryDirectory(prefix="mvnb-") as scratch:
        for commit in ["HEAD", *log]:
            old = Path(scratch, commit)
            pairing.git(addresses.PACKAGE, "archive", f"--output={old}.zip", f"--prefix={addresses.PACKAGE.name}/", commit)
            shutil.unpack_archive(f"{old}.zip", old)
            before = _short_run(one, record["script"], short, device, old)
            if before is not None:
                break
        else:
            raise ChapterError(f"{result.name} is not valid for any of the last {len(log)} commits of {result.parents[1]}")
        now = _short_run(one, "", short, device, addresses.PACKAGE.parent)
    if now != before:
        raise CellFailed(f"a short run of {name} gives other values than before; make it again or mend the code")
    renewed = {"date": datetime.now(UTC).date().isoformat(), "script": record["script"]}
    files.write_record(result, record | {"script": one.digest(), "renewed": renewed})
    return result


def _short_run(one: kept_runs.Declared, valid: str, parameters: dict[str, Any], device: str, source: Path) -> str | None:
    """Run one seed with the package in the folder ``source``, and return its values as JSON.

    Return None if the digest of the run in this package is not ``valid``, unless that is empty.
    """
    surroundings = {**kernel.inherited(source), **kernel.ENVIRONMENT}
    with tempfile.TemporaryDirectory(prefix="mvnb-") as folder:
        given = json.dumps([one.slug, one.name, valid, parameters, device, folder])
        command = [sys.executable, "-P", "-c", _RUN, given]  # -P: no modules of the working directory
        done = subprocess.run(command, env=surroundings, capture_output=True, encoding="utf-8", errors="replace")
        said = done.stderr.strip().rpartition("\n")[2]
        if valid and said == "stale":
            return None
        if done.returncode:
            raise CellFailed(f"a short run of {one.name} failed: {said}")
        return Path(folder, "values.json").read_text(encoding="utf-8")


def _declared(chapter: Chapter, name: str) -> kept_runs.Declared:
    every = kept_runs.declared(chapter.slug)
    if name not in every:
        raise ChapterError(f"{chapter.name} declares no kept run {name!r}{choices_text(name, every)}")
    return every[name]


def _folder(one: kept_runs.Declared) -> Path:
    """Return the folder of the finished seeds of a kept run with these parameters and data."""
    determines = json.dumps([one.digest(), addresses.data(one.parameters)])
    return Path("runs", f"keep-{one.slug}-{one.name}", hashlib.sha256(determines.encode()).hexdigest()[:16]).absolute()


def _paths(one: kept_runs.Declared, folder: Path) -> dict[int, Path]:
    """Return the file of each seed of a kept run in the folder of its seeds."""
    first, number = one.parameters["seed"], one.parameters["seeds"]
    return {seed: folder / f"seed-{seed}.json" for seed in range(first, first + number)}


def _finished(path: Path) -> dict[str, Any] | None:
    """Return the record of a finished seed, or None if there is none or it was damaged or edited."""
    with suppress(OSError, files.RecordError):
        return files.read_record(path)


def _run_missing(one: kept_runs.Declared, paths: dict[int, Path], jobs: int | None, device: str) -> None:
    """Run the seeds that have not finished; raise ``CellFailed`` if one of them fails."""
    missing, began, failed = [seed for seed, path in paths.items() if not _finished(path)], time.monotonic(), []
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
        if finished := _finished(path):
            return finished["seconds"]
        if one.edited():
            raise ChapterError(f"the modules that {one.script.name} imports were edited after the start; start again")
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
            json.dumps(found, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ChapterError(f"{one.script.name} must return JSON-serializable values: {error}") from None
        files.write_record(path, found)
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
        paths = _paths(one, _folder(one)).values()
        return f"not finished: {sum(map(bool, map(_finished, paths)))} of {len(paths)} seeds"
    stale = []
    if record["parameters"] != one.parameters:
        stale.append("parameters")
    elif record["script"] != one.digest():
        stale.append("code")
    then, now = (record["terms"], one.terms()) if "terms" in record else (record["rules"], one.rules())
    if changed := [id for id in now if then.get(id) != now[id]]:
        stale.append(f"rule or origin of {', '.join(changed)}")
    return f"stale: {' and '.join(stale)} changed" if stale else f"{len(record['runs'])} seeds, as declared"
