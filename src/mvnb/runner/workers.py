"""Parallel calls on worker processes of this machine or of a Dask cluster, scheduled by Dask.

A worker runs one call at a time; the kernel of a notebook is a separate process. If a worker dies, its call is retried on
another worker; after three retries, the call counts as failed.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from mvnb.runner.errors import CellFailed, ChapterError, error_text
from mvnb.runner.kernel import KEEP_FREED

if TYPE_CHECKING:
    from distributed import Client, LocalCluster


def cores() -> int:
    """Return the number of cores that this process may use, given its CPU affinity and the quota of its container."""
    from joblib import cpu_count

    return cpu_count()


def each(
    function: Callable[..., Any],
    items: Sequence[tuple],
    jobs: int | None = None,
    address: str | None = None,
    begun: Callable[[], Any] = lambda: None,
) -> Iterator[tuple[int, Any, str]]:
    """Call ``function(*item)`` for each item in parallel, and yield the index, result and error message of each finished call.

    If a call fails, its result is None; otherwise, its error message is empty.

    Parameters
    ----------
    function
        Function to call; it must be picklable.
    items
        Tuples of positional arguments.
    jobs
        Number of calls at once on this machine; one per core by default.
    address
        Address of a Dask scheduler, such as ``"tcp://host:8786"``, whose workers are used instead of this machine.
    begun
        Function that is called when the workers have been found.

    Raises
    ------
    ChapterError
        If Dask is not installed, or no scheduler answers at the address within ten seconds.
    CellFailed
        If the connection to the scheduler is lost.
    """
    if not items:
        begun()
        return
    with _connected(min(jobs or cores(), len(items)), address) as client:
        from distributed import as_completed
        from distributed.comm import CommClosedError

        begun()
        lost = CellFailed("lost the connection to the Dask scheduler; finished runs were kept")
        futures = {client.submit(function, *item, pure=False): index for index, item in enumerate(items)}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if future.cancelled():
                    raise lost
                yield futures[future], None if error else future.result(), error_text(error) if error else ""
        except CommClosedError:
            raise lost from None
        finally:
            with suppress(OSError):  # the scheduler may be gone
                client.cancel(list(futures), force=True)


@contextmanager
def _connected(jobs: int, address: str | None) -> Iterator[Client]:
    """Yield a client of the Dask scheduler at ``address`` or, if that is None, of ``jobs`` processes on this machine."""
    try:
        import dask
        from distributed import Client, LocalCluster

        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are raised instead
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    except ModuleNotFoundError:
        raise ChapterError("distributed is not installed; install it with: pip install 'mvnb[sweep]'") from None
    except ValueError as error:  # a file in Dask's folders is not valid YAML
        raise ChapterError(f"expected valid files of Dask's configuration, got an error: {error}") from None
    with ExitStack() as stack:
        if address is None:
            stack.enter_context(_own_configuration())
            local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
            keep_freed = dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_FREED})  # Dask's default is the opposite
            with keep_freed, _deferred_interrupts():  # Dask cannot close a cluster whose workers are starting
                cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, silence_logs=logging.CRITICAL, **local)
                stack.callback(_close, cluster)
            _unset_allocator_settings()
        try:
            client = stack.enter_context(Client(address or cluster, timeout=10))
        except Exception as error:  # of many classes, depending on the protocol
            raise ChapterError(f"no Dask scheduler answers at {address}: {error}") from None
        if address is None:
            client.register_plugin(_local_worker_plugin())
        yield client


@contextmanager
def _own_configuration() -> Iterator[None]:
    """Use Dask's defaults instead of the user's configuration, which is meant for clusters, also in processes started here."""
    import dask

    users = dict(dask.config.config)
    dask.config.refresh(paths=[], env={})
    try:
        yield
    finally:
        dask.config.config.clear()
        dask.config.config.update(users)


@contextmanager
def _deferred_interrupts() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, and hide it from the processes that are started in the block."""
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    resource_tracker.ensure_running()  # the thread that starts it unblocks interrupts, here before they are blocked
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by threads and processes
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, handler)
    for number in received[:1]:
        signal.raise_signal(number)


def _local_worker_plugin():
    """Return a plugin that makes local workers ignore interrupts and hide their allocator settings from kernels."""
    from distributed import WorkerPlugin

    class LocalWorker(WorkerPlugin):
        def setup(self, worker):
            # Ctrl-C in a terminal reaches every process; only the one that the user started should react.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # kernels inherit the mask
            _unset_allocator_settings()

    return LocalWorker()


def _unset_allocator_settings() -> None:
    """Remove the workers' allocator settings from this process, so that kernels with limited memory do not inherit them."""
    for name in KEEP_FREED:
        os.environ.pop(name, None)


def _close(cluster: LocalCluster) -> None:
    """Close the workers, and kill what is left behind, such as kernels of a worker that is closed while running a notebook."""
    import psutil

    processes = []
    for worker in cluster.workers.values():
        with suppress(psutil.NoSuchProcess, TypeError):  # a worker that is restarting has no process
            process = psutil.Process(worker.pid)
            processes += [process, *process.children(recursive=True)]
    with suppress(TimeoutError, AssertionError):  # on a busy machine workers may take longer to end than Dask waits
        cluster.close()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
