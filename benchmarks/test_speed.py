"""Time of every contender on every row and over a sweep of replicas; contenders take turns within one run."""

from __future__ import annotations

from statistics import median

import pytest
from contenders import GEMM_FLOPS, Compiled, authors, autograd, clock, compiled, disagreements, gemm_seconds, jax, loop, mvnb
from tasks import ROWS, Task, multi_view

ROUNDS = 7
TARGET = 0.2  # seconds of one timed call
LOOPED = 2  # replicas in a timed loop, whose time is proportional to their number
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _within_target(seconds_per_step: float) -> int:
    return int(min(max(TARGET / seconds_per_step, 1), 1000))


def timer(contender, task: Task, share: float = 1.0, **kwargs):
    """Return a function that measures the seconds per step of all replicas.

    ``share`` is the share of the replicas that the contender trains.
    """
    clock(contender, task, 1, **kwargs)
    steps = task.block  # whole blocks of samples, since a part of a block takes as long to draw
    while (seconds := clock(contender, task, steps, **kwargs)) < TARGET / 10 and steps < 1000:
        steps *= 4
    steps = -(-_within_target(seconds / steps) // task.block) * task.block
    return lambda: clock(contender, task, steps, **kwargs) / steps / share


def jax_timer(task: Task):
    """Return such a function for JAX, and the compilation time in seconds; the number of steps is compiled in."""
    look = Compiled(task, 4)
    look()
    steps = _within_target(clock(look) / 4)
    run = Compiled(task, steps)
    run()
    return lambda: clock(run) / steps, run.seconds


def take_turns(benchmark, timers: dict) -> dict:
    """Return the median of every timer over rounds in which all timers run one after another."""
    values = {name: [] for name in timers}
    last = list(timers)[-1]

    def measure(name):
        values[name].append(timers[name]())

    def others():
        for name in timers:
            if name != last:
                measure(name)

    # pytest-benchmark sees only the last timer; the report reads the medians of all.
    benchmark.pedantic(measure, (last,), setup=others, rounds=ROUNDS, iterations=1)
    return {name: median(found) for name, found in values.items()}


@pytest.mark.parametrize("name", ROWS)
def test_row(benchmark, name, cores, device):
    task = ROWS[name]()
    extra = {"row": name, "sizes": task.sizes, "first_call": clock(mvnb, task, 1, device=device)}
    distances = disagreements(task, device)
    assert max(distances.values()) < 1e-3, distances
    few = min(LOOPED, task.replicas)
    timers = {"loop": timer(loop, task, few / task.replicas, threads=cores, device=device, replicas=few)}
    if task.authors and device == "cpu":
        timers["authors"] = timer(authors, task, few / task.replicas, threads=cores, replicas=few)
    if task.has_autograd:
        timers["autograd"] = timer(autograd, task, device=device)
        if device == "cuda":
            timers["compiled"] = timer(compiled, task, device=device)
    if jax and device == "cpu":
        timers["jax"], extra["jax_compile"] = jax_timer(task)
    if task.draw:
        timers["sampling"] = timer(lambda task, steps: [*map(task.fresh(device), range(steps))], task)
    found = take_turns(benchmark, timers | {"gemm": gemm_seconds, "mvnb": timer(mvnb, task, device=device)})
    extra["gemm_rate"] = GEMM_FLOPS / found.pop("gemm")
    if device == "cpu":
        extra["bound"] = task.flops / extra["gemm_rate"]
    benchmark.extra_info.update(extra, seconds=found)


def test_sweep(benchmark, cores, device):
    """Measure the time per replica of "ERM, small": constant for a loop, falling to a plateau for a stack."""
    timers = {}
    for replicas in SWEEP:
        task = multi_view(replicas)
        if replicas <= 4:
            timers["loop", replicas] = timer(loop, task, threads=cores, device=device)
        if jax and device == "cpu":
            timers["jax", replicas], _ = jax_timer(task)
        timers["mvnb", replicas] = timer(mvnb, task, device=device)
    found = take_turns(benchmark, timers)
    sweep = [{name: found[name, n] / n for name in ("mvnb", "jax", "loop") if (name, n) in found} for n in SWEEP]
    benchmark.extra_info["sweep"] = [{"replicas": n, "seconds": seconds} for n, seconds in zip(SWEEP, sweep)]
