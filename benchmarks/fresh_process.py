"""What only a fresh process can tell: its peak memory, and how long the first call of the compiled objective takes.

``python benchmarks/fresh_process.py memory erm|midpoint`` and ``... compile`` print a dictionary as JSON.
"""

import json
import re
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)


def peak() -> float:
    """Peak memory of this process in MB. Not ``ru_maxrss``, which a child inherits from the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status).group(1)) / 1024


def memory(objective: str, replicas: int = 256) -> dict[str, float]:
    """Peak after the imports and after a few steps of a chapter's worth of replicas."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # what tasks and tests share
    from contenders import CHECKED_STEPS, mvnb
    from tasks import multi_view

    before = peak()
    mvnb(multi_view(replicas, 0.5 if objective == "midpoint" else None), CHECKED_STEPS)
    return {"imports": before, "peak": peak()}


def first_calls() -> dict[str, float]:
    """Seconds of the first calls of the patch objective: compiled, or read from numba's cache on disk."""
    from mvnb.models import PatchObjective

    x, y, multiplicity = torch.ones(1, 2, 2, 3), torch.tensor([[0, 1]]), torch.ones(1, 2)
    objective, seconds = PatchObjective(8, 0.1), {}
    for name, lam in (("plain", None), ("mixed", 0.5)):
        began = time.perf_counter()
        objective({"weight": torch.ones(1, 2, 2, 3)}, x, y, multiplicity, lam)
        seconds[name] = time.perf_counter() - began
    return seconds


if __name__ == "__main__":
    print(json.dumps(first_calls() if sys.argv[1] == "compile" else memory(sys.argv[2])))
