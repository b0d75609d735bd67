"""What chapters take, beside what ``mvnb plan`` says: ``python tests/costs.py [CHAPTER ...]`` writes ``results/costs.json``.

Each chapter is run alone on one core at two sizes, its smoke preset and its defaults; kept are seconds of processor time and
the largest memory of a process. What is kept is not run again; take a chapter out of the file to measure it anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mvnb.runner import catalogue, plans

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "results" / "costs.json"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
SIZES = {"smoke": ["--preset", "smoke"], "default": []}


def measure(chapter: catalogue.Chapter, size: str) -> dict[str, float]:
    """Seconds of processor time of one run, and bytes of its largest process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mvnb.cli", "run", str(chapter.source), "--no-html", "-o", folder, "-p", "device=cpu"]
        process = subprocess.Popen([*command, *SIZES[size]], cwd=ROOT, env=os.environ | ONE_THREAD, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{chapter.name} failed")
    return {"seconds": round(used.ru_utime + used.ru_stime, 1), "bytes": used.ru_maxrss * 1024}


def read() -> dict[str, dict[str, dict[str, float]]]:
    """What was measured, by chapter and size."""
    return json.loads(REPORT.read_text(encoding="utf-8")) if REPORT.is_file() else {}


def planned(chapter: catalogue.Chapter, size: str) -> plans.Plan | None:
    """The plan of one size of a chapter."""
    return plans.plan(chapter, catalogue.preset(chapter, "smoke") if size == "smoke" else {})


def main(names: list[str]) -> None:
    """Measure what is not kept yet, and print it beside the plan."""
    for chapter in [catalogue.resolve(name, ROOT) for name in names] or catalogue.discover(ROOT):
        for size in SIZES:
            kept = read()
            if size not in kept.setdefault(chapter.name, {}):
                kept[chapter.name][size] = measure(chapter, size)
                REPORT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            found, plan = kept[chapter.name][size], planned(chapter, size)
            said = f"; planned {plan.seconds:.0f} s, {plan.bytes / 1e9:.2f} GB" if plan else ""
            print(f"{chapter.name}, {size}: {found['seconds']:.0f} s, {found['bytes'] / 1e9:.2f} GB{said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
