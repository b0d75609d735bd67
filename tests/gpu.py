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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from mvnb import claims, files
from mvnb.runner import addresses, catalogue

KINDS = {"smoke": ["--preset", "smoke", "-p", "device=cuda"], "card": ["-p", "device=cuda"], "cpu": ["-p", "device=cpu"]}
"""What is run of a chapter, with the arguments of ``mvnb run``."""


def run(chapter: catalogue.Chapter, kind: str, folder: Path, digest: str) -> dict:
    """One run: ``seconds`` and the ``verdicts`` by claim, or ``failed``, why; ``digest`` is of the code that is meant."""
    command = [sys.executable, "-m", "mvnb.cli", "run", str(chapter.source), "--no-html", "-o", str(folder), *KINDS[kind]]
    began = time.monotonic()
    done = subprocess.run(command, cwd=chapter.root, capture_output=True, encoding="utf-8")
    seconds = round(time.monotonic() - began, 1)
    if done.returncode:
        return {"seconds": seconds, "failed": done.stderr.strip().splitlines()[-1]}
    if addresses.digests(replace(chapter), [{}])[0] != digest:
        return {"seconds": seconds, "failed": "chapter or package was edited since the report was begun"}
    return {"seconds": seconds, "verdicts": verdicts(folder / f"{chapter.name}.ipynb")}


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


def main(seconds: float = 600, at_once: int = 1, root: Path | None = None) -> int:
    """Run what there is time for, ``at_once`` runs at a time, write the report, and say what turned."""
    if not torch.cuda.is_available():
        print("make gpu needs a graphics card, and PyTorch finds none", file=sys.stderr)
        return 2
    root = root or catalogue.find_root()
    card, began = torch.cuda.get_device_name(), time.monotonic()
    kept = root / "runs" / "gpu"
    kept.mkdir(parents=True, exist_ok=True)
    book = catalogue.discover(root)
    digests = {one.name: addresses.digests(one, [{}])[0] for one in book}

    def job(one: catalogue.Chapter, kind: str) -> Callable[[], dict]:
        return lambda: run(one, kind, kept / kind, digests[one.name])

    jobs = {f"{one.name}-{kind}": job(one, kind) for kind in KINDS for one in book}
    if (root / "benchmarks").is_dir():
        jobs["benchmark"] = lambda: benchmark(root, kept)
    keys = {f"{one}-{kind}": [digest, card] for one, digest in digests.items() for kind in KINDS}
    keys["benchmark"] = [digests[book[0].name], card]

    def found(name: str) -> dict | None:
        """What a job finds or has found; nothing where its time is up."""
        path = kept / f"{name}.json"
        if path.is_file() and (before := json.loads(path.read_text(encoding="utf-8")))["key"] == keys[name]:
            return before["found"]
        if time.monotonic() - began >= seconds:
            return None
        told = jobs[name]()
        path.write_text(json.dumps({"key": keys[name], "found": told}), encoding="utf-8")
        print(f"{name}: {told.get('failed') or told.get('seconds', 'done')}", flush=True)
        return told

    runs = [name for name in jobs if name != "benchmark"]
    with ThreadPoolExecutor(at_once) as pool:
        by_job = dict(zip(runs, pool.map(found, runs)))
    if "benchmark" in jobs:  # it is timed: nothing beside it
        by_job["benchmark"] = found("benchmark")
    return report(root, card, at_once, book, jobs, {name: told for name, told in by_job.items() if told is not None})


def report(root: Path, card: str, at_once: int, book: list[catalogue.Chapter], jobs: dict, found: dict) -> int:
    """Write what was found so far; the exit status."""
    by_chapter = {one.name: {k: found[f"{one.name}-{k}"] for k in KINDS if f"{one.name}-{k}" in found} for one in book}
    wrong = [line for one in book for line in objections(one, by_chapter[one.name])]
    wrong += [f"benchmark: {found['benchmark']['failed']}"] if "failed" in found.get("benchmark", {}) else []
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    seconds = {name: {kind: one["seconds"] for kind, one in of.items()} for name, of in by_chapter.items()}
    kept = {"card": card, "at_once": at_once, "versions": versions, "seconds": seconds, "wrong": wrong}
    kept["benchmark"] = found.get("benchmark", {})
    path = root / "results" / "gpu.json"
    path.parent.mkdir(exist_ok=True)
    files.write_record(path, kept)
    left = len(jobs) - len(found)
    print("\n".join(wrong) or f"{card}: no verdict is the opposite of the committed one")
    print(f"{left} of {len(jobs)} runs are left: run it again" if left else f"all {len(jobs)} runs are done")
    return 1 if wrong else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
