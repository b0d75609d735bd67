"""Scaling of the training core: time against replicas, patches and samples, peak memory, and the first call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from contenders import mvnb
from tasks import multi_view
from test_speed import take_turns, timer

# Sizes at which the work far exceeds the fixed cost of a step, doubling three times; last, the replicas where others vary.
AXES = {
    "erm": (None, {"replicas": (32, 64, 128, 256), "patches": (16, 32, 64, 128), "n": (128, 256, 512, 1024)}, 8),
    "midpoint": (0.5, {"replicas": (8, 16, 32, 64), "patches": (4, 8, 16, 32), "n": (64, 128, 256, 512)}, 4),
}


@pytest.mark.parametrize("objective", AXES)
def test_slopes(benchmark, objective, device):
    lam, axes, replicas = AXES[objective]
    timers = {
        (axis, size): timer(mvnb, multi_view(**{"replicas": replicas, "lam": lam, axis: size}), device=device)
        for axis, sizes in axes.items()
        for size in sizes
    }
    seconds, found = take_turns(benchmark, timers), {}
    for axis, sizes in axes.items():
        times = [seconds[axis, size] for size in sizes]
        slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
        found[axis] = {"sizes": sizes, "seconds": times, "slope": slope}
    benchmark.extra_info.update(slopes=objective, axes=found)


def _fresh(*arguments: str, **environment: str) -> dict:
    script = Path(__file__).with_name("fresh_process.py")
    done = subprocess.run(
        [sys.executable, script, *arguments], env=os.environ | environment, capture_output=True, encoding="utf-8", check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("objective", AXES)
def test_memory(benchmark, objective, device):
    if device != "cpu":
        pytest.skip("the peak is measured for the process, not for the GPU")
    peak = benchmark.pedantic(_fresh, ("memory", objective), rounds=1, iterations=1)
    benchmark.extra_info.update(memory=objective, megabytes=peak)


def test_first_call(benchmark, tmp_path):
    cold = benchmark.pedantic(_fresh, ("compile",), {"NUMBA_CACHE_DIR": str(tmp_path)}, rounds=1, iterations=1)
    cached = _fresh("compile", NUMBA_CACHE_DIR=str(tmp_path))
    benchmark.extra_info.update(first_call={"cold": cold, "cached": cached})
