"""Many calls at once, on worker processes of this machine or of a Dask cluster; Dask does the scheduling.

A worker has one call at a time; where that runs a notebook, its kernel is a process of its own. When a worker dies, its call is
given to another one; after three deaths it counts as failed.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mvnb.runner.errors import CellFailed, ChapterError
from mvnb.runner.kernel import KEEP_FREED

if TYPE_CHECKING:
    from distributed import Client, LocalCluster


def cores() -> int:
    """Return how many cores this process may use: those of the machine, or fewer by its affinity or a container's quota."""
    from joblib import cpu_count

    return cpu_count()


def each(
    function: Callable[..., Any], items: Sequence[tuple], jobs: int | None = None, address: str | None = None
) -> Iterator[tuple[int, Any, str]]:
    """Call ``function(*item)`` for each item; yield its index, the result and what is said of an error, as they come.

    Parameters
    ----------
    jobs
        How many at once on this machine; one a core by default.
    address
        A Dask scheduler such as ``"tcp://host:8786"``, whose workers are used instead.

    Raises
    ------
    ChapterError
        When there is no scheduler at the address, or it does not answer within ten seconds.
    CellFailed
        When the scheduler ends.
    """
    if not items:
        return
    with _connected(min(jobs or cores(), len(items)), address) as client:
        from distributed import as_completed
        from distributed.comm import CommClosedError

        lost = CellFailed("the Dask scheduler went away; what was finished is kept")
        futures = {client.submit(function, *item, pure=False): index for index, item in enumerate(items)}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if future.cancelled():
                    raise lost
                yield futures[future], None if error else future.result(), _said(error) if error else ""
        except CommClosedError:
            raise lost from None
        finally:
            with suppress(OSError):  # the scheduler may be gone
                client.cancel(list(futures), force=True)


def _said(error: Exception) -> str:
    """What the book says of its own errors, the kind and text of any other."""
    return str(error) if isinstance(error, CellFailed | ChapterError) else f"{type(error).__name__}: {error}"


@contextmanager
def _connected(jobs: int, address: str | None) -> Iterator[Client]:
    """A client of the Dask scheduler at ``address``, or of ``jobs`` processes of this machine."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        raise ChapterError("distributed is not installed: pip install 'mvnb[sweep]'") from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters of it is raised
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        if address is None:
            local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
            with dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_FREED}):  # by default Dask asks for the contrary
                cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, silence_logs=logging.CRITICAL, **local)
            _take_back()
            stack.callback(_close, cluster)
        try:
            client = stack.enter_context(Client(address or cluster, timeout=10))
        except (OSError, ValueError) as error:
            raise ChapterError(f"no Dask scheduler answers at {address}: {error}") from None
        if address is None:
            client.register_plugin(_own_worker())
        yield client


def _own_worker():
    """A plugin with which workers of this machine pass over interrupts, and hand no setting of theirs to kernels."""
    from distributed import WorkerPlugin

    class Own(WorkerPlugin):
        def setup(self, worker):
            # Ctrl-C in a terminal reaches every process; only the one that the reader started is to answer it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _take_back()

    return Own()


def _take_back() -> None:
    """Take the setting that workers begin with out of this process, whose kernels with limited memory would inherit it."""
    for name in KEEP_FREED:
        os.environ.pop(name, None)


def _close(cluster: LocalCluster) -> None:
    """Close the workers, and the kernels that they leave behind when they are closed in the middle of a notebook."""
    import psutil

    kernels = []
    for worker in cluster.workers.values():
        with suppress(psutil.NoSuchProcess, TypeError):  # a worker that is being started again has no process
            kernels += psutil.Process(worker.pid).children(recursive=True)
    cluster.close()
    for kernel in kernels:
        with suppress(psutil.NoSuchProcess):
            kernel.kill()
