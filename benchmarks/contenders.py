"""Contenders of the benchmarks: the training core and the alternatives to it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from tasks.base import Task, jax, jnp

from mvnb.training import SGD, ModuleObjective, Params, fit, stack

CHECKED_STEPS = 3
GEMM_SIZE = 1024
GEMM_FLOPS = 2 * GEMM_SIZE**3


def mvnb(task: Task, steps: int, fixed: bool = False, device="cpu", objective=None) -> Params:
    """Train with the core and the hand-derived gradient.

    ``fixed`` trains on the one batch of the task even if the task draws fresh samples.
    """
    if task.draw and not fixed:
        batches = task.fresh(device)
    else:
        batches = tuple(part.to(device) for part in task.batch)
    start = {k: p.to(device) for k, p in task.start.items()}
    optimizer = SGD(task.step_size, rates=task.rates)
    # Log at the start only, since logging the final loss would cost one more batch.
    return fit(objective or task.objective, start, batches, steps=steps, optimizer=optimizer, log_at=[0]).params


def autograd(task: Task, steps: int, fixed: bool = False, device="cpu") -> Params:
    """Train with the core and a gradient by automatic differentiation, as for any module and loss."""
    return mvnb(task, steps, fixed, device, ModuleObjective(task.modules[0], task.loss))


def compiled(task: Task, steps: int, fixed: bool = False, device="cpu") -> Params:
    """Train with the core and a gradient by automatic differentiation that ``torch.compile`` compiles."""
    return mvnb(task, steps, fixed, device, task.compiled)


def loop(task: Task, steps: int, fixed: bool = False, device="cpu", replicas: int | None = None) -> Params:
    """Train the first ``replicas`` replicas (default: all) one after another, in an ordinary PyTorch loop."""
    finals = []
    for r, start in enumerate(task.modules[:replicas]):
        module = copy.deepcopy(start).to(device)
        if task.rates:
            groups = [{"params": [p], "lr": task.step_size * task.rates.get(k, 1.0)} for k, p in module.named_parameters()]
        else:
            groups = module.parameters()
        optimizer = torch.optim.SGD(groups, lr=task.step_size)
        generator = torch.Generator().manual_seed(r)
        batch = tuple(part[r].to(device) for part in task.batch)
        for _ in range(steps):
            if task.draw and not fixed:
                batch = tuple(part.to(device) for part in task.user_draw(task.sizes["samples"], generator))
            optimizer.zero_grad()
            task.loss(module, *batch).backward()
            optimizer.step()
        finals.append(module)
    return stack(finals)


def authors(task: Task, steps: int, fixed: bool = False, replicas: int | None = None) -> Params:
    """Train replicas one after another, in the way of the code published by the authors of the paper."""
    return task.authors(steps, replicas or task.replicas, task.batch if fixed or not task.draw else None)


def jax_keys(n: int):
    """Return keys of JAX's ``rbg`` generator, which compiles and runs many times faster on a CPU than the default."""
    return jax.random.split(jax.random.key(0, impl="rbg"), n)


class Compiled:
    """Training compiled by JAX: a scan over steps, vectorised over replicas; ``seconds`` is the compilation time."""

    def __init__(self, task: Task, steps: int, fixed: bool = False):
        fresh = task.draw is not None and not fixed

        def train(params, source):
            def step(carry, _):
                params, key = carry
                batch = source
                if fresh:
                    key, now = jax.random.split(key)
                    batch = task.jax_draw(now)
                loss, grads = jax.value_and_grad(task.jax_loss)(params, *batch)
                params = {k: p - task.step_size * task.rates.get(k, 1.0) * grads[k] for k, p in params.items()}
                return (params, key), loss

            (params, _), losses = jax.lax.scan(step, (params, source if fresh else None), None, steps)
            return params, losses

        self._start = {k: jnp.asarray(p.numpy()) for k, p in task.start.items()}
        if fresh:
            self._source = jax_keys(task.replicas)
        else:
            self._source = tuple(jnp.asarray(part.numpy()) for part in task.batch)
        began = time.perf_counter()
        self._run = jax.jit(jax.vmap(train)).lower(self._start, self._source).compile()
        self.seconds = time.perf_counter() - began

    def __call__(self) -> Params:
        params, _ = jax.block_until_ready(self._run(self._start, self._source))
        return params


def clock(call: Callable, *args, threads: int = 1, **kwargs) -> float:
    """Return the seconds that a call takes with this number of PyTorch threads, including its work on the GPU."""
    torch.set_num_threads(threads)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    call(*args, **kwargs)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def gemm_seconds() -> float:
    """Return the seconds of a float32 matrix product of ``GEMM_FLOPS`` operations on one core."""
    a = torch.full((GEMM_SIZE, GEMM_SIZE), 0.5)
    return clock(torch.mm, a, a)


def as_torch(arrays: dict) -> Params:
    """Convert JAX arrays to tensors."""
    return {k: torch.from_numpy(np.array(v)) for k, v in arrays.items()}


def disagreements(task: Task, device="cpu") -> dict[str, float]:
    """Return the distance of each contender from ``mvnb`` after a few steps on one batch, to check that all do the same.

    The distance is the largest over the parameters, each relative to how far training moved the parameter.
    """
    results = {"loop": loop(task, CHECKED_STEPS, fixed=True, device=device)}
    if task.has_autograd:
        results["autograd"] = autograd(task, CHECKED_STEPS, fixed=True, device=device)
    if task.has_autograd and device == "cuda":  # on a CPU, torch.compile needs a C++ compiler
        results["compiled"] = compiled(task, CHECKED_STEPS, fixed=True, device=device)
    if task.authors and device == "cpu":
        results["authors"] = authors(task, CHECKED_STEPS, fixed=True)
    if jax and device == "cpu":
        results["jax"] = as_torch(Compiled(task, CHECKED_STEPS, fixed=True)())
    ours = mvnb(task, CHECKED_STEPS, fixed=True, device=device)
    moved = {k: (p.cpu() - task.start[k]).norm() for k, p in ours.items()}
    return {
        name: max(((theirs[k] - p).norm().cpu() / moved[k]).item() for k, p in ours.items()) for name, theirs in results.items()
    }
