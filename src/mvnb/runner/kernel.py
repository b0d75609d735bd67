"""Execution of a notebook, or only of its parameter checks, in a fresh kernel.

The kernel always uses the Python interpreter that runs this module. Each numerical library uses one thread unless the caller or
the environment sets another number. The working directory is the folder of the chapter, as under Jupyter and nbval. IPython
configuration and startup files are ignored.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mvnb.runner.errors import CellFailed, ChapterError
from mvnb.runner.pairing import KERNELSPEC, join_streams

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
ENVIRONMENT = dict.fromkeys(_THREADS, "1") | {"PYTHONHASHSEED": "0"}
# Of Python's variables, processes inherit those that say where modules are and how text is encoded. Others change what a
# program means, such as PYTHONOPTIMIZE, which removes assertions.
_INHERITED = {"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX"}
_INHERITED |= {"PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE", "PYTHONHASHSEED"}
KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment variables that let glibc reuse freed blocks of up to 1 GB; new blocks would be cleared page by page."""
_SAVE_EVERY = 20  # seconds
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} cells, {elapsed}"
_LONGEST_SOCKET = 100  # bytes of a path; macOS allows 103, including the number of the socket
CHECK = "check"  # tag of the cells that validate parameters before any computation
# Messages of Python, NumPy and PyTorch when memory runs out.
_NO_MEMORY = re.compile("MemoryError|bad_alloc|(Unable to|can't) allocate|out of memory")
# This limits allocated data, not the address space, which libraries and GPU drivers map freely.
_LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_DATA, ({memory}, {memory}))"
# The libraries create half a million long-lived objects. Scanning them for garbage as often as Python does takes a second per
# run, so full collections are ten times rarer; young objects are collected as usual. IPython would also read the machine's
# configuration. Without os._exit, a process that fails to start would wait for the threads that it has started.
_START = """import gc, os, runpy, traceback
stderr = os.dup(2)
gc.set_threshold(700, 10, 100)
try:
    exec({first!r})
    from IPython.core import application
    application.SYSTEM_CONFIG_DIRS.clear(), application.ENV_CONFIG_DIRS.clear()
    runpy.run_module("ipykernel_launcher", run_name="__main__")
except BaseException:
    os.write(stderr, traceback.format_exc().encode())
    os._exit(1)"""
_REFUSAL = """def refusal(values):
    space = {{"__name__": "__main__"}}
    try:
        for source, holds_defaults in {cells!r}:
            exec(get_ipython().transform_cell(source), space)
            space |= values if holds_defaults else {{}}
    except Exception as error:
        return str(error) or type(error).__name__
    return ''"""


def inherited(package: Path | None = None) -> dict[str, str]:
    """Return the environment variables for processes that run Python: all but those that change what a program means.

    Python searches the folder ``package`` first. Relative folders are resolved here, since processes may work elsewhere.
    """
    found = {name: one for name, one in os.environ.items() if not name.startswith("PYTHON") or name in _INHERITED}
    searched = [str(package or ""), *found.pop("PYTHONPATH", "").split(os.pathsep)]
    paths = [os.path.abspath(path) for path in searched if path]
    return found | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})


def run_notebook(
    notebook: NotebookNode,
    partial: Path,
    parameters: Mapping[str, Any],
    folder: Path,
    *,
    progress: str = "",
    timeout: float | None = None,
    memory: int | None = None,
    threads: int | None = None,
    package: Path | None = None,
    startup: str = "",
) -> NotebookNode:
    """Run a notebook and return it with its outputs; save it at intervals and at the end, even if it fails.

    Parameters
    ----------
    notebook
        Notebook to run; it is not modified.
    partial
        Path to which the notebook is saved.
    parameters
        Values that replace defaults: numbers, strings, booleans and lists of them.
    folder
        Working directory of the kernel.
    progress
        Label of the progress on stderr: a bar over the cells in a terminal, or else one line after the checks have passed; if
        empty, there is neither.
    timeout
        Maximum time per cell in seconds; unlimited by default.
    memory
        Maximum number of bytes that the kernel may allocate; unlimited by default.
    threads
        Number of threads of PyTorch and other numerical libraries; by default as set in the environment, or one.
    package
        Folder with a copy of this package, which Python searches before the installed packages.
    startup
        Python statements that the kernel's process executes before the kernel starts.

    Raises
    ------
    ChapterError
        If a cell that checks the parameters rejects them, or the kernel does not start; ``partial`` is removed.
    CellFailed
        If another cell raises or times out, or the kernel dies; ``partial`` then holds the cells run so far. Also if
        ``partial`` cannot be written.
    KeyboardInterrupt
        If the run is interrupted; ``partial`` is removed.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from tqdm import tqdm

    notebook = nbformat.from_dict({**notebook, "metadata": {**notebook.metadata, "kernelspec": dict(KERNELSPEC)}})
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    checks = [cell.source for cell in code if CHECK in cell.metadata.get("tags", [])]
    total = len(code) + bool(parameters)
    accepted = [*(cell.source for cell in code[:1]), *checks][-1:]  # from then on, a log says that the run has begun
    tqdm.set_lock(threading.RLock())  # one process draws; the default lock is a system semaphore, which a killed process leaks
    papermill.engines.papermill_engines.register("mvnb", _engine())
    try:
        with (
            _kernel_manager(memory, threads, package, startup) as manager,
            tqdm(total=total, desc=progress, bar_format=_BAR, disable=None if progress else True) as bar,
        ):

            def report(cell, cell_index, execute_reply):
                bar.update()
                if progress and bar.disable and [cell.source] == accepted and execute_reply["content"]["status"] == "ok":
                    print(f"{progress}: running {total} cells", file=sys.stderr, flush=True)

            ran = papermill.execute_notebook(
                notebook,
                str(partial.resolve()).replace("{", "{{").replace("}", "}}"),
                parameters=parameters,
                cwd=str(folder.resolve()),
                engine_name="mvnb",
                kernel_name=KERNELSPEC["name"],
                progress_bar=False,
                kernel_manager_class=manager,
                on_cell_executed=report,
                execution_timeout=timeout,
            )
        left = [cell for cell in ran.cells if cell.cell_type == "code" and cell.source.strip() and not cell.execution_count]
        if left:  # papermill takes sys.exit() for a success
            first = left[0].source.partition("\n")[0]
            raise CellFailed(f"a cell ended the run before the cell {first!r}; kept the partial notebook {partial}")
        return ran
    except papermill.PapermillExecutionError as error:
        if error.source in checks:
            partial.unlink(missing_ok=True)
            raise ChapterError(_with_memory_note(error.evalue or error.ename)) from None
        raised = _with_memory_note(" ".join(f"{error.ename}: {error.evalue}".split()).removesuffix(":"))
        where = f"cell [{error.exec_count}] failed at {_failed_line(error)!r}"
        raise CellFailed(f"{where}: {raised}; kept the partial notebook {partial}") from None
    except DeadKernelError:
        raise CellFailed(f"the kernel died, possibly out of memory; kept the partial notebook {partial}") from None
    except CellTimeoutError:
        raise CellFailed(f"a cell took more than {timeout:g} s; kept the partial notebook {partial}") from None
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CellFailed(f"cannot write to {partial.parent}: {error.strerror or error}") from None
    except (KeyboardInterrupt, ChapterError):
        partial.unlink(missing_ok=True)
        raise


def refusals(notebook: NotebookNode, cases: Sequence[Mapping[str, Any]], folder: Path, limits: Mapping[str, Any]) -> list[str]:
    """Return the error message of a notebook's checks for each set of parameters in ``cases``; empty if the checks pass.

    The cells up to the last check run once per case, in one kernel that works in ``folder``; ``limits`` are options of
    :func:`run_notebook`.

    Raises
    ------
    ChapterError
        If a case times out, or the kernel dies or does not start.
    """
    code = [(cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells if cell.cell_type == "code"]
    checks = [place for place, (_, tags) in enumerate(code) if CHECK in tags]
    if not checks:
        return ["" for _ in cases]
    cells = [(source, "parameters" in tags) for source, tags in code[: checks[-1] + 1]]
    sources = [_REFUSAL.format(cells=cells), *(f"refusal({dict(values)!r})" for values in cases)]
    trial = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with tempfile.TemporaryDirectory(prefix="mvnb-") as scratch:
        try:
            ran = run_notebook(trial, Path(scratch) / "checks.ipynb", {}, folder, **limits)
        except CellFailed as error:
            raise ChapterError(f"the parameters could not be checked: {str(error).partition('; kept')[0]}") from None
    results = (next(out for out in cell.outputs if out.output_type == "execute_result") for cell in ran.cells[1:])
    return [_with_memory_note(ast.literal_eval(result.data["text/plain"])) for result in results]


def _failed_line(error) -> str:
    """Return the line of the failed cell that comes last in the traceback, or else its first line that is not a comment."""
    lines = error.source.splitlines()
    trace = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback or []))
    found = re.findall(rf"Cell In\[{error.exec_count}\], line (\d+)", trace)
    if found and int(found[-1]) <= len(lines):
        return lines[int(found[-1]) - 1].strip()
    return next((line for line in lines if line.strip() and not line.startswith("#")), "")


def _with_memory_note(raised: str) -> str:
    """Return the error message ``raised``, preceded by "out of memory" if that is its cause."""
    return f"out of memory ({raised})" if _NO_MEMORY.search(raised) else raised


def _engine() -> type:
    """Return a papermill engine that saves at intervals; papermill saves twice per cell, which takes 15 s in a long chapter."""
    from papermill.engines import NBClientEngine

    logging.getLogger("papermill").setLevel(logging.CRITICAL + 1)  # its messages are also raised

    class ThrottledEngine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man, kernel_name, **options):
            save = nb_man.save

            def throttled(**kwargs):
                if (nb_man.now() - nb_man.last_save_time).total_seconds() >= _SAVE_EVERY:
                    save(**kwargs)

            nb_man.save = throttled
            try:
                super().execute_managed_notebook(nb_man, kernel_name, **options)
            finally:
                nb_man.save = save  # papermill saves once more at the end
                for cell in nb_man.nb.cells:
                    if cell.cell_type == "code":
                        cell.outputs = join_streams(cell.outputs)

    return ThrottledEngine


@contextmanager
def _kernel_manager(memory: int | None, threads: int | None, package: Path | None, startup: str) -> Iterator[type]:
    """Yield a kernel manager class that always starts this interpreter, regardless of the kernels registered on the machine.

    Raises
    ------
    ChapterError
        If the kernel does not start; the message contains the last line that it wrote to stderr.
    """
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient.exceptions import DeadKernelError

    # After a timeout or an interrupt, asyncio complains about tasks that nbclient leaves behind; the error itself is raised.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    surroundings = inherited(package)
    added = dict.fromkeys(os.environ.keys() - surroundings.keys(), "")
    added["PYTHONPATH"] = surroundings.get("PYTHONPATH", "")
    added |= {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    added["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    added |= {} if threads is None else dict.fromkeys(_THREADS, str(threads))
    added |= KEEP_FREED if memory is None else {}  # gaps between kept blocks would count towards the limit
    if os.environ.get("MVNB_DATA"):
        added["MVNB_DATA"] = os.path.abspath(os.path.expanduser(os.environ["MVNB_DATA"]))
    limit = "" if memory is None else _LIMIT.format(memory=int(memory))
    command = [sys.executable, "-c", _START.format(first=f"{limit}\n{startup}"), "--log-level=50", "-f", "{connection_file}"]
    with (
        tempfile.TemporaryDirectory(prefix="mvnb-", ignore_cleanup_errors=True) as own,
        open(os.path.join(own, "stderr"), "w+", encoding="utf-8", errors="replace") as stderr,
    ):
        command += [f"--ipython-dir={own}", "--IPKernelApp.exec_PYTHONSTARTUP=False"]
        spec = KernelSpec(**{**get_kernel_dict(), "argv": command, "env": added})

        class ThisInterpreter(AsyncKernelManager):
            kernel_spec = spec

            def __init__(self, **options):
                super().__init__(**sockets(own), **options)

            async def start_kernel(self, **options):
                await super().start_kernel(stderr=stderr, **options)

            async def shutdown_kernel(self, now=False, restart=False):
                # All outputs have arrived by now, and an orderly shutdown would take two seconds.
                await super().shutdown_kernel(now=True, restart=restart)

        try:
            yield ThisInterpreter
        except DeadKernelError:
            raise
        except RuntimeError as error:  # from jupyter_client, for a kernel that dies before its first reply or does not reply
            stderr.seek(0)
            last = stderr.read().strip().rpartition("\n")[2]
            raise ChapterError(f"the kernel did not start: {_with_memory_note(last or str(error))}") from None


def sockets(folder: str) -> dict[str, str]:
    """Return kernel manager options for communication through Unix sockets in ``folder``; empty if they are not supported.

    Sockets are safer than the default, TCP: another process may take the chosen port before the kernel binds it.
    """
    prefix = os.path.join(folder, "kernel")
    if os.name != "posix" or len(os.fsencode(prefix)) > _LONGEST_SOCKET:
        return {}
    return {"transport": "ipc", "ip": prefix}
