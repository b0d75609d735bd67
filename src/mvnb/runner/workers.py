"""Many notebooks at once, on worker processes of this machine or of a Dask cluster; Dask does the scheduling.

A worker supervises one notebook at a time, whose kernel is a process of its own. When a worker dies, its notebook is given to
another one; after three deaths it counts as failed.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mvnb.runner.errors import CellFailed, ChapterError, need
from mvnb.runner.kernel import KEEP_FREED

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

_CELLS = "mvnb-cells"
_LOST = "the Dask scheduler went away; what was finished is kept"


class WorkersLost(RuntimeError):
    """The scheduler ended before its work did."""


def cores() -> int:
    """How many cores this process may use: those of the machine, or fewer by its affinity or a container's quota."""
    from joblib import cpu_count

    return cpu_count()


@contextmanager
def connect(jobs: int | None = None, address: str | None = None) -> Iterator[Client]:
    """A client of the Dask scheduler at ``address``, or of ``jobs`` processes of this machine (one a core by default).

    Raises
    ------
    ChapterError
        When there is no scheduler at the address, or it does not answer within ten seconds.
    """
    need("distributed", "sweep")
    import dask
    from distributed import Client, LocalCluster

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters of it is raised
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    cluster = None
    with ExitStack() as stack:
        if address is None:
            jobs = jobs or cores()
            local = {
                "host": "127.0.0.1",
                "dashboard_address": "127.0.0.1:0",
                "memory_limit": 0,
                "silence_logs": logging.CRITICAL,
            }
            with dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_FREED}):  # by default Dask asks for the contrary
                address = cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, **local)
            stack.enter_context(_no_kernel_stays(cluster))
        try:
            client = Client(address, timeout=10)
        except (OSError, ValueError) as error:
            raise ChapterError(f"no Dask scheduler answers at {address}: {error}") from None
        stack.enter_context(client)
        if cluster is not None:
            client.register_plugin(_deaf_to_interrupts())
        yield client


def _deaf_to_interrupts():
    """Ctrl-C in a terminal reaches every process; only the one that the reader started is to answer it."""
    from distributed import WorkerPlugin

    class Deaf(WorkerPlugin):
        def setup(self, worker):
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    return Deaf()


@contextmanager
def _no_kernel_stays(cluster: LocalCluster) -> Iterator[None]:
    """Close the workers, and the kernels that they leave behind when they are closed in the middle of a notebook."""
    import psutil

    try:
        yield
    finally:
        kernels = []
        for worker in cluster.workers.values():
            with suppress(psutil.NoSuchProcess, TypeError):  # a worker that is being started again has no process
                kernels += psutil.Process(worker.pid).children(recursive=True)
        cluster.close()
        for kernel in kernels:
            with suppress(psutil.NoSuchProcess):
                kernel.kill()


def each(
    client: Client, function: Callable[..., Any], items: Sequence[tuple], on_cell: Callable[[int], None] = lambda index: None
) -> Iterator[tuple[int, Any]]:
    """Call ``function(*item, on_cell)`` for each item on the workers; index and result, or exception, as they come.

    Parameters
    ----------
    on_cell
        Called here, with the index of an item, when its call calls the function that it is given.

    Raises
    ------
    WorkersLost
        When the scheduler ends.
    """
    from distributed import as_completed
    from distributed.comm import CommClosedError

    # One topic a call: clients of a common scheduler do not hear each other.
    topic = f"{_CELLS}-{client.id}"
    client.subscribe_topic(topic, lambda event: on_cell(event[1]["index"]))
    futures = {client.submit(_call, function, item, topic, index, pure=False): index for index, item in enumerate(items)}
    try:
        for future in as_completed(futures):
            error = future.exception()
            if future.cancelled():
                raise WorkersLost(_LOST)
            yield futures[future], future.result() if error is None else error
    except CommClosedError:
        raise WorkersLost(_LOST) from None
    finally:
        with suppress(OSError):  # the scheduler may be gone
            client.cancel(list(futures), force=True)
            client.unsubscribe_topic(topic)


def error_text(error: Exception) -> str:
    """What is said of an error that :func:`each` gave: what the book says of its own, the kind and text of any other."""
    return str(error) if isinstance(error, CellFailed | ChapterError) else f"{type(error).__name__}: {error}"


def _call(function, item, topic, index):
    from distributed import get_worker

    for name in KEEP_FREED:  # a setting of this process, which a kernel whose memory is limited would inherit
        os.environ.pop(name, None)
    return function(*item, lambda: get_worker().log_event(topic, {"index": index}))
