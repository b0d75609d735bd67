"""Every chapter under the arithmetic of other machines: does a verdict turn, does a compared output change?

``python tests/arithmetic.py [CHAPTER ...]`` runs chapters at their defaults under each profile and writes
``results/arithmetic.json``, named chapters beside what stands there of the others; where no chapter is named, the tests of the
papers are run, too. What was run before with the same code under the same profile, on a processor of the same instruction set,
is not run again. Exit status 1 when a verdict turns, a compared output differs or a test fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import elsewhere
import nbformat

from mvnb import claims, files, verdicts
from mvnb.runner import addresses, catalogue, execution, workers
from mvnb.runner.errors import CellFailed, ChapterError

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "results" / "arithmetic.json"
RUNS = ROOT / "runs" / "arithmetic"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_THREAD = dict.fromkeys(THREADS, "1")
PROFILES = {
    "plain": ONE_THREAD,
    "other": ONE_THREAD
    | {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Haswell",
        "NUMBA_CPU_NAME": "generic",
    },
    "two threads": dict.fromkeys(THREADS, "2") | {"OMP_WAIT_POLICY": "PASSIVE"},  # threads that wait let others work
    "rounding": ONE_THREAD | {"MVNB_ROUNDING": "0"},  # for the tests of the papers
}
"""Environments of a process, by name; ``plain`` is the machine as it is. See ``rounding.py`` for the last."""
STARTUP = {"rounding": [elsewhere.ROUNDING]}
"""What kernels begin with under a profile."""


def compared(notebook: nbformat.NotebookNode) -> list[str]:
    """What nbval compares of a notebook: the texts of its marked cells."""
    marked = [cell for cell in notebook.cells if re.search(r"^# NBVAL_CHECK_OUTPUT$", cell.source, re.MULTILINE)]
    outputs = [[out for out in cell.outputs if out.get("name") != "stderr"] for cell in marked]
    return ["".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell) for cell in outputs]


def run(chapter: catalogue.Chapter, profile: str) -> dict:
    """One chapter under one profile: its rows, and what nbval would compare; from disk where it was run before.

    The committed notebook is the plain run where it was made here and nothing has changed since.
    """
    if profile == "plain" and execution.up_to_date(chapter):
        return found_in(chapter.notebook)
    folder = RUNS / profile.replace(" ", "-")
    kept = folder / f"{chapter.name}.json"
    key = [addresses.digests(chapter, [{}])[0], PROFILES[profile], instruction_set()]
    if kept.is_file() and (found := json.loads(kept.read_text(encoding="utf-8")))["key"] == key:
        return found
    marker = folder / f"{chapter.name}.begun"
    marker.unlink(missing_ok=True)
    startup = elsewhere.startup(marker, *STARTUP[profile]) if profile in STARTUP else ""
    try:
        with mock.patch.dict(os.environ, PROFILES[profile]):
            result = execution.run(chapter, {}, folder, startup=startup)
    except (CellFailed, ChapterError) as error:
        return failed(str(error))
    if startup and not marker.is_file():
        return failed("the kernel did not begin with what the profile says")
    if addresses.digests(replace(chapter), [{}])[0] != key[0]:
        return failed("chapter or package was edited while it ran")
    found = {"key": key} | found_in(result.notebook)
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def failed(why: str) -> dict:
    """The result of a run that did not end well."""
    return {"failed": why, "rows": [], "compared": []}


def found_in(notebook: Path) -> dict:
    """The rows of a notebook that was run, and what nbval compares of it."""
    return {"rows": claims.read(notebook), "compared": compared(nbformat.read(notebook, as_version=4))}


def instruction_set() -> str:
    """The instruction set that PyTorch uses on this processor, such as ``AVX2``."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def summary(found: dict[str, dict]) -> dict:
    """What to keep of one chapter: verdicts that turn against the plain run, and changed outputs."""
    if any("failed" in one for one in found.values()):
        return {"claims": 0, "profiles": {name: {"failed": one.get("failed", ""), "turned": []} for name, one in found.items()}}
    plain = {row["id"]: row for row in found["plain"]["rows"]}
    profiles = {}
    for name, one in found.items():
        rows = {row["id"]: row for row in one["rows"]}
        turned = [f"{id}: {_told(plain[id])}, {_told(rows[id])}" for id in verdicts.opposite(one["rows"], plain.values())]
        profiles[name] = {"turned": turned, "same_output": one["compared"] == found["plain"]["compared"]}
    return {"claims": len(plain), "profiles": profiles}


def _told(row: dict) -> str:
    return f"{row['verdict']} at {verdicts.measured(row)}"


def read() -> dict:
    """The report that was written last."""
    return files.read_record(REPORT)


def main(names: list[str]) -> int:
    """Run, write the report, and say what turned."""
    chosen = [catalogue.resolve(name, ROOT) for name in names] or catalogue.discover(ROOT)
    RUNS.mkdir(parents=True, exist_ok=True)
    jobs = [(chapter, profile) for chapter in chosen for profile in PROFILES]
    results = {}
    for index, result, error in workers.each(run, jobs, int(os.environ.get("MVNB_JOBS", workers.cores()))):
        results[jobs[index]] = result or failed(error)
        print(f"{jobs[index][0].name}, {jobs[index][1]}: {results[jobs[index]].get('failed', 'done')}", flush=True)
    report = {one.name: summary({profile: results[one, profile] for profile in PROFILES}) for one in chosen}
    before = read() if names else {"instruction_set": instruction_set(), "chapters": {}}
    if before["instruction_set"] == instruction_set():
        every = dict(sorted((before["chapters"] | report).items()))
        kept = {"instruction_set": instruction_set(), "profiles": PROFILES, "chapters": every}
        files.write_record(REPORT, kept)
    wrong = [f"{name}, {said}" for name, one in report.items() for said in objections(one)]
    if not names:
        wrong += [f"{name}: the tests of the papers fail" for name in ("other", "rounding") if papers_fail(name)]
    n_claims = sum(one["claims"] for one in report.values())
    print("\n".join(wrong) or f"{n_claims} claims, {len(PROFILES)} profiles: no verdict turns")
    return 1 if wrong else 0


def papers_fail(profile: str) -> bool:
    """Whether a test of the papers fails under a profile."""
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "papers")]
    return bool(subprocess.run(command, cwd=ROOT, env=os.environ | PROFILES[profile]).returncode)


def objections(one: dict) -> list[str]:
    """What is wrong in one chapter's summary, a line each."""
    said = []
    for profile, found in one["profiles"].items():
        changed = [] if found.get("same_output", True) else ["a compared output differs"]
        said += [f"{profile}: {text}" for text in (*found["turned"], *changed, found.get("failed")) if text]
    return said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
