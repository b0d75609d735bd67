"""Parts of a stack of replicas on several threads at once.

The environment variable ``MVNB_THREADS`` says how many threads a process may use for that, one unless it is set: the command
``mvnb run`` gives a chapter all cores, and chapters that run side by side one each. Parts are cut between replicas, and each is
computed as it would be alone, so a result does not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import repeat
from typing import TypeVar

import torch

VARIABLE = "MVNB_THREADS"
CACHED = 1 << 18  # numbers of a part: about 1 MB in float32, so that temporaries live in a core's own cache
_WORTH = 1 << 16  # numbers, at some ten operations each: a quarter of a millisecond, ten times what handing over takes
_here = threading.local()
Result = TypeVar("Result")


def budget() -> int:
    """Threads that this process may use for parts of a stack; one where PyTorch's operations take several themselves.

    Raises ``ValueError`` when ``MVNB_THREADS`` is no positive integer.
    """
    wanted = os.environ.get(VARIABLE, "1")
    if not wanted.isdecimal() or int(wanted) < 1:
        raise ValueError(f"{VARIABLE} must be a positive integer, got {wanted!r}")
    return int(wanted) if torch.get_num_threads() == 1 else 1


def at_once(replicas: int, size: int, uses: float = 1, cached: int = CACHED) -> int:
    """How many replicas a part should have, of which each makes ``size`` numbers and reads every one ``uses`` times.

    As many as have ``cached`` numbers together, or fewer, so that all threads have their share. Stacks with little to do are
    not divided among threads.
    """
    threads, most = budget(), max(1, cached // size)
    if threads == 1 or replicas * size * uses < _WORTH:
        return most
    parts = -(-replicas // most)
    return -(-replicas // (-(-parts // threads) * threads))


def split_rows(v, size: int):
    """The parts of a tensor along its first axis; a number, a scalar tensor or None is the same for all of them."""
    if not torch.is_tensor(v) or v.dim() == 0:
        return repeat(v)
    return (v,) if size >= len(v) else v.split(size)


def spread(function: Callable[..., Result], parts: Sequence[Sequence]) -> list[Result]:
    """``[function(*part) for part in parts]``, computed by as many threads as there are parts and the budget allows.

    What a part raises is raised here, when no other part is at work any more.
    """
    threads = min(budget(), len(parts))
    if threads < 2:
        return [function(*part) for part in parts]
    results, todo, flush = [None] * len(parts), iter(range(len(parts))), getattr(_here, "flush", False)

    def work() -> None:
        for i in todo:
            results[i] = function(*parts[i])

    def help_out() -> None:
        torch.set_flush_denormal(flush)  # a setting of each thread
        work()

    helpers = [_pool(threads - 1).submit(help_out) for _ in range(threads - 1)]
    try:
        work()
    finally:
        failed = [helper.exception() for helper in helpers]
    for error in filter(None, failed):
        raise error
    return results


@lru_cache
def _pool(size: int) -> ThreadPoolExecutor:
    # Each thread has a setting of its own, and its default is a thread a core.
    return ThreadPoolExecutor(size, "mvnb-replicas", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


@contextmanager
def without_subnormals() -> Iterator[None]:
    """Numbers below 1e-38 (float32) are zero in here: processors take them up to a hundred times slower.

    Fitted runs, dead units and high powers of small correlations are full of them.
    """
    before, known = not (torch.tensor(1e-40) * 1).item(), getattr(_here, "flush", False)
    torch.set_flush_denormal(True)
    _here.flush = True
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
        _here.flush = known
