"""Measurements that need a fresh process: peak memory, and the time of the first call of the compiled objective.

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
    """Return the peak memory of this process in MB.

    Not ``ru_maxrss``, which a process inherits from its parent.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status).group(1)) / 1024


def memory(objective: str, replicas: int = 256) -> dict[str, float]:
    """Return the peak memory in MB after the imports, and after a few training steps of ``replicas`` replicas."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # for modules shared with the tests
    from contenders import CHECKED_STEPS, mvnb
    from tasks import multi_view

    before = peak()
    mvnb(multi_view(replicas, 0.5 if objective == "midpoint" else None), CHECKED_STEPS)
    return {"imports": before, "peak": peak()}


def first_calls() -> dict[str, float]:
    """Return the seconds of the first calls of the patch objective, which compile it or read numba's cache on disk."""
    from mvnb.models import PatchObjective
    from mvnb.training import SGD, fit

    x, y, multiplicity = torch.ones(1, 2, 2, 3), torch.tensor([[0, 1]]), torch.ones(1, 2)
    objective, seconds = PatchObjective(8, 0.1), {}
    for name, lam in (("plain", None), ("mixed", 0.5)):
        began = time.perf_counter()
        objective({"weight": torch.ones(1, 2, 2, 3)}, x, y, multiplicity, lam)
        seconds[name] = time.perf_counter() - began
    began = time.perf_counter()
    fit(objective, {"weight": torch.ones(1, 2, 2, 3)}, (x, y, multiplicity), steps=3, optimizer=SGD(0.1))
    return seconds | {"steps": time.perf_counter() - began}


if __name__ == "__main__":
    print(json.dumps(first_calls() if sys.argv[1] == "compile" else memory(sys.argv[2])))
