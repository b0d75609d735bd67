"""Runs of chapters: one with other parameters into a folder, or the book's own notebooks in place."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nbformat

from mvnb import claims, verdicts
from mvnb.files import write
from mvnb.runner import addresses, workers
from mvnb.runner import html as page_html
from mvnb.runner.catalogue import Chapter
from mvnb.runner.errors import CellFailed, ChapterError
from mvnb.runner.kernel import run_notebook
from mvnb.runner.pairing import _partial, _stamp, _state, cells_of, stderr_text, tidy


@dataclass(frozen=True)
class RunResult:
    """What :func:`run` wrote, the claims that were recorded, and how long it took."""

    notebook: Path
    html: Path | None
    claims: Path
    rows: list[dict[str, Any]]
    seconds: float
    unrendered: str = ""  # why there is no HTML although it was wanted


def run(
    chapter: Chapter,
    parameters: Mapping[str, Any] | None = None,
    output_dir: str | Path = "runs",
    *,
    html: bool = True,
    progress: bool = False,
    timeout: float | None = None,
    memory: int | None = None,
    threads: int | None = None,
    on_cell: Callable[[], None] = lambda: None,
    startup: str = "",
) -> RunResult:
    """Run a chapter with some parameters replaced, and write notebook, HTML and claims under ``output_dir``.

    The notebook is written as ``NAME.partial.ipynb`` while it runs and takes its name when all cells are done. HTML that cannot
    be rendered is left out, and the result says why.

    Parameters
    ----------
    parameters
        Values by name, of the types of the defaults (see :meth:`~mvnb.runner.catalogue.Chapter.parse` for texts).
    html
        Whether to render ``NAME.html`` too.
    progress
        Whether to draw a progress bar on stderr when it is a terminal.
    timeout, memory
        Seconds that a cell may take, and bytes that the kernel may allocate; no limit by default.
    threads
        Threads of the numerical libraries; more than one only where nothing else runs.
    on_cell
        Called after every code cell.
    startup
        Python statements that the kernel's process executes before it starts.

    Raises
    ------
    ChapterError
        For parameters that the chapter refuses, a folder that cannot be used, another run of the chapter into the folder or a
        kernel that does not start; nothing is written.
    CellFailed
        When a cell raises or takes too long; the partial notebook is kept. An interrupt removes it.
    """
    values = chapter.check(parameters or {})
    folder = usable_folder(Path(output_dir), chapter)
    made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{chapter.name}.partial.ipynb"
    started = time.monotonic()

    def counted() -> None:
        bar.update()
        on_cell()

    try:
        with alone(folder / f".{chapter.name}.lock", f"another run of {chapter.name} writes to {folder}"):
            with progress_bar(chapter.name, chapter.n_cells, progress) as bar:
                limits = (timeout, memory, threads)
                ran = run_notebook(
                    chapter.cells, partial, values, chapter.source.parent, counted, *limits, chapter.snapshot, startup
                )
            written, told = folder / f"{chapter.name}.ipynb", folder / f"{chapter.name}.claims.json"
            try:
                rows = claims.read(partial)
                write(told, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
                os.replace(partial, written)
            except (KeyboardInterrupt, OSError):
                partial.unlink(missing_ok=True)
                raise
            page, unrendered = folder / f"{chapter.name}.html" if html else None, ""
            if page is not None:
                page.unlink(missing_ok=True)  # of an earlier run
                try:
                    write(page, page_html.render(ran, chapter.title))
                except Exception as error:  # a page is no reason to lose what was computed
                    page, unrendered = None, workers.error_text(error)
    except ChapterError:
        for path in made:
            with suppress(OSError):  # another chapter may be run into it by now
                path.rmdir()
        raise
    return RunResult(written, page, told, rows, time.monotonic() - started, unrendered)


@contextmanager
def alone(lock: Path, refusal: str) -> Iterator[None]:
    """Hold a lock, which goes with the process however it ends.

    Raises
    ------
    ChapterError
        With the text ``refusal`` when another process holds it.
    """
    from filelock import FileLock, Timeout

    try:
        with FileLock(lock, timeout=0):
            try:
                yield
            finally:
                with suppress(OSError):  # not on Windows, which does it by itself
                    lock.unlink()
    except Timeout:
        raise ChapterError(refusal) from None


def usable_folder(folder: Path, chapter: Chapter) -> Path:
    """``folder``, if runs of the chapter may be written there.

    Raises
    ------
    ChapterError
        When it holds the chapter itself, is not a folder, or cannot be written to.
    """
    if folder.resolve() == chapter.source.parent.resolve():
        raise ChapterError(f"{folder} holds the chapter itself; a run writes elsewhere")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ChapterError(f"{existing} is not a folder")
    if not os.access(existing, os.W_OK):
        raise ChapterError(f"{existing} cannot be written to")
    return folder


@dataclass(frozen=True)
class Execution:
    """What :func:`execute` did to one chapter; ``error`` is empty when its notebook was written."""

    chapter: str
    seconds: float = 0.0
    rows: Sequence[dict[str, Any]] = ()
    stderr: str = ""
    error: str = ""
    opposite: Sequence[str] = ()  # ids of claims with the opposite of the verdict that they had


def execute(chapter: Chapter, on_cell: Callable[[], None] = lambda: None) -> Execution:
    """Run a chapter with its defaults and write its committed notebook, the same bytes for the same outputs.

    Raises
    ------
    CellFailed
        When a cell raises, or the committed notebook was edited meanwhile; it is left as it was, and the partial one is kept
        under ``_build/execute``.
    """
    partial = _partial(chapter)
    partial.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    address, before = addresses.digests(chapter, [{}])[0], cells_of(chapter.notebook)  # as they are now, not after the run
    ran = run_notebook(chapter.cells, partial, {}, chapter.source.parent, on_cell)
    tidied = tidy(chapter.cells, ran)
    if cells_of(chapter.notebook) != before:
        raise CellFailed(f"{chapter.notebook.name} was edited while it ran; kept {partial}")
    verdicts_before = claims.read(chapter.notebook) if chapter.notebook.is_file() else []
    write(chapter.notebook, nbformat.writes(tidied) + "\n")
    write(_stamp(chapter), json.dumps(_state(chapter, address)))
    partial.unlink()
    rows = claims.read(chapter.notebook)
    turned = verdicts.opposite(rows, verdicts_before)
    return Execution(chapter.name, time.monotonic() - started, rows, stderr_text(ran), opposite=turned)


def execute_all(chapters: Sequence[Chapter], jobs: int | None = None, *, progress: bool = False) -> list[Execution]:
    """:func:`execute` for several chapters side by side, one process each; a failure is recorded and stops no other.

    Parameters
    ----------
    jobs
        How many at once; as many as there are cores by default.
    progress
        Whether to draw a bar per chapter on stderr or, where that is no terminal, to write a line when a chapter is done.
    """
    if not chapters:
        return []
    bars = [progress_bar(chapter.name, chapter.n_cells, progress, position) for position, chapter in enumerate(chapters)]
    results: dict[int, Execution] = {}
    try:
        with workers.connect(min(jobs or workers.cores(), len(chapters))) as client:
            items = [(replace(chapter),) for chapter in chapters]
            for index, result in workers.each(client, execute, items, lambda index: bars[index].update()):
                if isinstance(result, Exception):
                    result = Execution(chapters[index].name, error=workers.error_text(result))
                results[index] = result
                if progress and not sys.stderr.isatty():
                    said = "failed" if result.error else f"{result.seconds:.0f} s"
                    print(f"{result.chapter}: {said} ({len(results)} of {len(chapters)})", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        for index in set(range(len(chapters))) - set(results):
            _partial(chapters[index]).unlink(missing_ok=True)
        raise
    finally:
        for bar in bars:
            bar.close()
    return [results[index] for index in range(len(chapters))]


def progress_bar(name: str, cells: int, progress: bool, position: int | None = None):
    """A progress bar of a notebook's code cells, drawn on stderr when that is a terminal."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # one process draws; the usual lock is a semaphore of the system that a killed one leaks
    layout = "{desc}: {n_fmt}/{total_fmt} cells |{bar}| {elapsed}"
    disable = None if progress else True  # None: only where stderr is a terminal
    return tqdm(total=cells, desc=name, bar_format=layout, disable=disable, position=position)
