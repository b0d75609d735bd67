"""Every chapter on a graphics card: do its verdicts stay, and what does a card save?

``python tests/gpu.py [SECONDS [JOBS]]`` runs every chapter's smoke preset on the card, then the defaults on the card and on the
processor beside it, JOBS (1) runs at a time, then the rows of the benchmark on the card alone, and writes ``results/gpu.json``.
What was run before with the same code on the same card is not run again, and after SECONDS (600) nothing more is begun: call
it again for the rest.

Exit status: 0 when all was run and no verdict is the opposite of the committed one, 1 when something failed or one is,
2 without a card, 3 when something is left to run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from mvnb import claims, files
from mvnb.runner import addresses, catalogue, execution, workers
from mvnb.runner.errors import CellFailed, ChapterError

KINDS = {"smoke": "cuda", "card": "cuda", "cpu": "cpu"}
"""What is run of a chapter, and on which device; of the first the smoke preset, of the others the defaults."""


def run(chapter: catalogue.Chapter, kind: str, folder: Path, key: list[str], until: float, startup: str) -> dict | None:
    """One run: ``seconds`` and the ``verdicts`` by claim, or ``failed``, why; from disk where it was run before.

    None when the clock is past ``until``. ``key`` is a digest of the code that is meant, and the card.
    """
    kept = folder / f"{chapter.name}-{kind}.json"
    if (before := read(kept, key)) is not None:
        return before
    began = time.time()
    if began >= until:
        return None
    values = (catalogue.preset(chapter, "smoke") if kind == "smoke" else {}) | {"device": KINDS[kind]}
    try:
        found = {"verdicts": verdicts(execution.run(chapter, values, folder / kind, startup=startup).notebook)}
    except (CellFailed, ChapterError) as error:
        found = {"failed": str(error)}
    if addresses.digests(replace(chapter), [{}])[0] != key[0]:
        found = {"failed": "chapter or package was edited since the report was begun"}
    return keep(kept, key, {"seconds": round(time.time() - began, 1)} | found)


def read(path: Path, key: list[str]) -> dict | None:
    """What was found before with the same code on the same card."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"key": None}
    return before["found"] if before["key"] == key else None


def keep(path: Path, key: list[str], found: dict) -> dict:
    """Write what was found for the next call, and return it."""
    path.write_text(json.dumps({"key": key, "found": found}), encoding="utf-8")
    return found


def verdicts(notebook: Path) -> dict[str, str]:
    """The verdict of each claim of a notebook that was run."""
    return {row["id"]: row["verdict"] for row in claims.read(notebook)}


def benchmark(root: Path, folder: Path) -> dict:
    """Milliseconds a step of the rows of the benchmark on the card, and the other contenders' times over them."""
    if importlib.util.find_spec("pytest_benchmark") is None:
        lock = ["--require-hashes", "-r", "requirements-bench.lock"]
        subprocess.run([sys.executable, "-m", "pip", "install", "-qq", *lock], cwd=root, check=True)
    told = folder / "bench.json"
    command = [sys.executable, "-m", "pytest", "benchmarks/test_speed.py", "-q", "-n0", "-k", "test_row"]
    env = os.environ | {"MVNB_BENCH_DEVICE": "cuda"}
    done = subprocess.run([*command, f"--benchmark-json={told}"], cwd=root, env=env, capture_output=True, encoding="utf-8")
    if done.returncode:
        return {"failed": done.stdout.strip().splitlines()[-1]}
    rows = {}
    for one in json.loads(told.read_text(encoding="utf-8"))["benchmarks"]:
        seconds = one["extra_info"]["seconds"]
        ours = seconds.pop("mvnb")
        ratios = {name: round(value / ours, 2) for name, value in seconds.items() if name != "sampling"}
        rows[one["extra_info"]["row"]] = {"ms": round(1e3 * ours, 3)} | ratios
    return {"rows": rows}


def objections(chapter: catalogue.Chapter, found: dict[str, dict]) -> list[str]:
    """What failed, and which verdicts on the card are the opposite of the committed notebook's; a line each."""
    said = [f"{chapter.name}, {kind}: {one['failed']}" for kind, one in found.items() if "failed" in one]
    committed, there = verdicts(chapter.notebook), found.get("card", {}).get("verdicts", {})
    turned = [id for id in there if {there[id], committed.get(id)} == {"holds", "fails"}]
    return said + [f"{chapter.name}, {id}: {there[id]} on the card, {committed.get(id)} in the notebook" for id in turned]


def main(seconds: float = 600, at_once: int = 1, root: Path | None = None, startup: str = "") -> int:
    """Run what there is time for, ``at_once`` runs at a time, write the report, and say what turned.

    ``startup``: Python statements with which kernels begin.
    """
    if not torch.cuda.is_available():
        print("make gpu needs a graphics card, and PyTorch finds none", file=sys.stderr)
        return 2
    root = root or catalogue.find_root()
    card, until = torch.cuda.get_device_name(), time.time() + seconds
    kept = root / "runs" / "gpu"
    kept.mkdir(parents=True, exist_ok=True)
    book = catalogue.discover(root)
    keys = {one.name: [addresses.digests(one, [{}])[0], card] for one in book}
    jobs = [(one, kind, kept, keys[one.name], until, startup) for kind in KINDS for one in book]
    found = {}
    for index, result, error in workers.each(run, jobs, at_once):
        name = f"{jobs[index][0].name}-{jobs[index][1]}"
        found[name] = {"seconds": 0, "failed": error} if error else result
        if found[name] is not None:
            print(f"{name}: {found[name].get('failed') or found[name]['seconds']}", flush=True)
    n_jobs = len(jobs) + (root / "benchmarks").is_dir()
    if n_jobs > len(jobs):  # it is timed: nothing beside it
        path, key = kept / "benchmark.json", keys[book[0].name]
        found["benchmark"] = read(path, key)
        if found["benchmark"] is None and time.time() < until:
            found["benchmark"] = keep(path, key, benchmark(root, kept))
    found = {name: told for name, told in found.items() if told is not None}
    return report(root, card, at_once, book, n_jobs, found)


def report(root: Path, card: str, at_once: int, book: list[catalogue.Chapter], n_jobs: int, found: dict) -> int:
    """Write what was found so far; the exit status."""
    by_chapter = {one.name: {k: found[f"{one.name}-{k}"] for k in KINDS if f"{one.name}-{k}" in found} for one in book}
    wrong = [line for one in book for line in objections(one, by_chapter[one.name])]
    wrong += [f"benchmark: {found['benchmark']['failed']}"] if "failed" in found.get("benchmark", {}) else []
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    seconds = {name: {kind: one["seconds"] for kind, one in of.items()} for name, of in by_chapter.items()}
    kept = {"card": card, "date": date.today().isoformat(), "at_once": at_once, "versions": versions}
    kept |= {"seconds": seconds, "wrong": wrong}
    kept["benchmark"] = found.get("benchmark", {})
    path = root / "results" / "gpu.json"
    path.parent.mkdir(exist_ok=True)
    files.write_record(path, kept)
    left = n_jobs - len(found)
    print("\n".join(wrong) or f"{card}: no verdict is the opposite of the committed one")
    print(f"{left} of {n_jobs} runs are left: run it again" if left else f"all {n_jobs} runs are done")
    return 1 if wrong else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
