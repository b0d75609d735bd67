"""Execution of chapters: a run with given parameters and its own output folder, or the book's notebooks in place."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mvnb import claims, verdicts
from mvnb.files import read_json, write
from mvnb.runner import addresses, derived, workers
from mvnb.runner.catalogue import Chapter, read
from mvnb.runner.errors import CellFailed, ChapterError
from mvnb.runner.kernel import run_notebook
from mvnb.runner.pairing import tidy

_PLAIN = re.compile(r"[\w=.,+-]{0,60}", re.ASCII)  # parameters that may be part of a folder's name
_NOTE = """> **A run of this chapter.** The text describes the run with the defaults, and its numbers are of that run. Outputs,
> verdicts and the table of headline claims are of this one. Changed parameters:
>"""


@dataclass(frozen=True)
class RunResult:
    """Paths of the files that :func:`run` has written, with the recorded claims and the run time."""

    notebook: Path
    claims: Path
    rows: list[dict[str, Any]]
    seconds: float


def default_folder(chapter: Chapter, preset: str | None, named: Mapping[str, Any], values: Mapping[str, Any]) -> Path:
    """Return the default folder of a run, named by its preset and parameters, such as ``runs/06-list_gap=5``.

    ``named`` are the parameters of the preset, and ``values`` those that override it; those that do not differ from it are left
    out. If the name would be too long or contain unusual characters, a number that depends on the parameters replaces them.
    """
    base = {name: one.default for name, one in chapter.parameters.items()} | named
    changed = [f"{name}={values[name]}" for name in base if values.get(name, base[name]) != base[name]]
    text = "-".join(filter(None, (preset, *changed))).replace(" ", "")
    if not _PLAIN.fullmatch(text):
        text = f"{zlib.crc32(ascii(text).encode()) % 10**6:06}"
    return Path("runs") / "-".join(filter(None, (chapter.number if chapter.root else chapter.name, text)))


def finished(chapter: Chapter, parameters: Mapping[str, Any], folder: Path) -> RunResult | None:
    """Return the result of the same run if ``folder`` holds it, or None if it holds no run of the chapter.

    Two runs are the same if their code, parameters, data and versions of libraries are; see :mod:`mvnb.runner.addresses`. A
    file of the claims that is missing or differs is written again.

    Raises
    ------
    ChapterError
        If the folder is unusable or holds another run of the chapter.
    """
    refuse_unusable(folder, chapter)
    _, written, recorded = _paths(chapter, folder)
    if not written.is_file():
        return None
    notebook = _notebook(written)
    stamp = notebook["metadata"].get("mvnb", {})
    if not notebook["cells"]:
        found = f"{written} is not a complete notebook"
    elif stamp.get("address") != addresses.digests(chapter, [parameters])[0]:
        found = f"{folder} holds a run of {chapter.name} with other parameters, data, code or libraries"
    elif stamp.get("content") != _content(notebook):
        found = f"{written} was edited after it was run"
    else:
        rows = claims.rows_of(notebook)
        if read_json(recorded) != rows:
            _write_rows(recorded, rows)
        return RunResult(written, recorded, rows, notebook["metadata"]["papermill"]["duration"])
    raise ChapterError(f"{found}; use another folder (-o), or replace it with --force")


def _content(notebook: Mapping[str, Any]) -> str:
    """Return a digest of the cells of a notebook and their outputs."""
    return hashlib.sha256(json.dumps(notebook["cells"], sort_keys=True).encode()).hexdigest()[:16]


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    write(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def last_time(chapter: Chapter, folder: Path) -> str:
    """Return how long the run in ``folder`` took, or else the default run, in parentheses; empty if not known."""
    if seconds := _notebook(_paths(chapter, folder)[1])["metadata"].get("papermill", {}).get("duration"):
        return f" (last run: {seconds:.0f} s)"
    seconds = derived.read_seconds(chapter.root)["seconds"].get(chapter.number) if chapter.root else None
    return f" (default run: {seconds} s)" if seconds else ""


def _paths(chapter: Chapter, folder: Path) -> list[Path]:
    """Return the paths of a run's partial notebook, notebook and claims."""
    return [folder / f"{chapter.name}.{end}" for end in ("partial.ipynb", "ipynb", "claims.json")]


def _notebook(path: Path) -> dict[str, Any]:
    """Return the notebook in a file, or one without cells and metadata if the file does not contain a notebook."""
    found = read_json(path)
    valid = isinstance(found, dict) and isinstance(found.get("metadata"), dict) and isinstance(found.get("cells"), list)
    return found if valid else {"cells": [], "metadata": {}}


def run(
    chapter: Chapter,
    parameters: Mapping[str, Any] | None = None,
    output_dir: str | Path = "runs",
    address: str = "",
    replace: bool = True,
    **options: Any,
) -> RunResult:
    """Run a chapter with some parameters replaced, and write the notebook and its claims to ``output_dir``.

    The notebook is named ``NAME.partial.ipynb`` while it runs, and is renamed when all cells have finished.

    Parameters
    ----------
    chapter
        Chapter to run.
    parameters
        Values by name, with the same types as the defaults. To convert strings, see
        :meth:`~mvnb.runner.catalogue.Chapter.parse`.
    output_dir
        Folder for the results; it is created if it does not exist.
    address
        Address of the run, stored in its notebook; by default that of the chapter and the package as they are now.
    replace
        Whether to replace an earlier run of the chapter in the folder. If not, return it if it is the same run.
    options
        The options ``progress``, ``timeout``, ``memory``, ``threads`` and ``startup`` of
        :func:`~mvnb.runner.kernel.run_notebook`.

    Raises
    ------
    ChapterError
        If the chapter rejects the parameters, the folder is unusable or holds another run that is not to be replaced, another
        run of the chapter is writing to the folder, or the kernel does not start. No file is written.
    CellFailed
        If a cell raises or times out, or the kernel dies; the partial notebook is kept. Also if the partial notebook cannot be
        written. An interrupt deletes the partial notebook.
    """
    values = chapter.check(parameters or {})
    folder = Path(output_dir)
    refuse_unusable(folder, chapter)
    made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    partial, written, recorded = _paths(chapter, folder)
    stamp = {"address": address or addresses.digests(chapter, [values])[0]}
    notebook, started = _with_note(chapter, values), time.monotonic()
    try:
        with alone(folder / f".{chapter.name}.lock", f"another run of {chapter.name} is writing to {folder}"):
            if not replace and (earlier := finished(chapter, values, folder)):  # by now
                return earlier
            ran = run_notebook(notebook, partial, values, chapter.source.parent, package=chapter.snapshot, **options)
            try:
                rows = claims.read(partial)
                ran = json.loads(nbformat.writes(_as_download(chapter, ran, rows)))
                ran["metadata"]["mvnb"] = stamp | {"content": _content(ran)}
                _write_rows(recorded, rows)
                write(written, json.dumps(ran, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
                partial.unlink()
            except (KeyboardInterrupt, OSError):
                partial.unlink(missing_ok=True)
                raise
    except ChapterError:
        for path in made:
            with suppress(OSError):  # another chapter may be running into it by now
                path.rmdir()
        raise
    return RunResult(written, recorded, rows, time.monotonic() - started)


def _with_note(chapter: Chapter, values: Mapping[str, Any]) -> NotebookNode:
    """Return the chapter's cells, folded as on its page, below a note on the parameters that ``values`` change."""
    notebook = tidy(chapter.cells, chapter.cells)
    defaults = {name: one.default for name, one in chapter.parameters.items()}
    changed = [f"`{name} = {one!r}` (default: `{defaults[name]!r}`)" for name, one in values.items() if one != defaults[name]]
    note = nbformat.v4.new_markdown_cell("\n> - ".join([_NOTE, *(changed or ["none"])]))
    notebook.cells = [note, *(cell for cell in notebook.cells if not cell.source.startswith(_NOTE))]
    return notebook


def _as_download(chapter: Chapter, ran: NotebookNode, rows: list[dict[str, Any]]) -> NotebookNode:
    """Return a run's notebook in the form of the downloads, which the book's site defines, with the headlines of ``rows``.

    It stays in MyST outside a book, and if the packages for the site are not installed.
    """
    ran.metadata.pop("jupytext")  # it is not the pair of a source
    if chapter.root and (folder := chapter.root / "book" / "_ext").is_dir():
        sys.path += [] if str(folder) in sys.path else [str(folder)]
        with suppress(ModuleNotFoundError):
            return import_module("mvnb_download").plain_notebook(chapter, ran, rows)
    return ran


def parameters(chapter: Chapter) -> dict[str, Any]:
    """Return the parameters with which the notebook of a chapter was run."""
    injected = read(chapter.notebook).metadata.get("papermill", {}).get("parameters", {})
    return {name: one.default for name, one in chapter.parameters.items()} | injected


@contextmanager
def alone(lock: Path, refusal: str) -> Iterator[None]:
    """Hold an exclusive lock on the file ``lock``, which the system releases even if the process is killed.

    Raises
    ------
    ChapterError
        If another process holds the lock; the message is ``refusal``.
    """
    from filelock import FileLock, Timeout

    try:
        with FileLock(lock, timeout=0):
            try:
                yield
            finally:
                with suppress(OSError):  # fails on Windows, where filelock deletes the file
                    lock.unlink()
    except Timeout:
        raise ChapterError(refusal) from None


def refuse_unusable(folder: Path, chapter: Chapter) -> None:
    """Raise ``ChapterError`` if ``folder`` is the chapter's own folder, not a folder, not writable, or not named in UTF-8."""
    for path in (folder.absolute(), chapter.source.absolute()):
        if re.search("[\ud800-\udfff]", str(path)):  # notebooks contain the paths
            raise ChapterError(f"expected a path in UTF-8, got {os.fsencode(path)}")
    if os.path.realpath(folder) == os.path.realpath(chapter.source.parent):
        raise ChapterError(f"the output folder must differ from the chapter's folder, got {folder}")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ChapterError(f"{existing} is not a folder")
    if not os.access(existing, os.W_OK):
        raise ChapterError(f"{existing} is not writable")


@dataclass(frozen=True)
class Execution:
    """Outcome of :func:`execute` for one chapter; ``error`` is empty if the notebook was written."""

    chapter: str
    seconds: float = 0.0
    rows: Sequence[dict[str, Any]] = ()
    stderr: str = ""
    error: str = ""
    opposite: Sequence[str] = ()  # ids of claims whose verdict was reversed


def execute(chapter: Chapter) -> Execution:
    """Run a chapter with its default parameters and write its committed notebook; equal outputs give identical files.

    The run is kept in ``_build/execute``, for :func:`up_to_date`.

    Raises
    ------
    ChapterError
        If the kernel does not start, or the chapter is already running.
    CellFailed
        If a cell raises, or the committed notebook was edited during the run. The committed notebook is left unchanged, and the
        run or the partial notebook is kept.
    """
    before = read_json(chapter.notebook)
    result = run(chapter, output_dir=_folder(chapter))
    if read_json(chapter.notebook) != before:
        raise CellFailed(f"{chapter.notebook.name} was edited while it ran; kept the run {result.notebook}")
    ran = read(result.notebook)
    write(chapter.notebook, nbformat.writes(tidy(chapter.cells, ran)) + "\n")
    outputs = (output for cell in ran.cells for output in cell.get("outputs", []))
    stderr = "".join(output.text for output in outputs if output.get("name") == "stderr")
    turned = verdicts.opposite(result.rows, claims.rows_of(before) if before else [])
    return Execution(chapter.name, result.seconds, result.rows, stderr, opposite=turned)


def execute_all(chapters: Sequence[Chapter], jobs: int | None = None) -> list[Execution]:
    """Run :func:`execute` on several chapters, ``jobs`` at a time (one per core by default), and return their outcomes.

    If a chapter fails, its error is recorded and the others continue. A line on stderr reports each chapter that ends.
    """
    results: dict[int, Execution] = {}
    try:
        for index, result, error in workers.each(execute, [(chapter,) for chapter in chapters], jobs):
            results[index] = result or Execution(chapters[index].name, error=error)
            outcome = "failed" if error else f"{result.seconds:.0f} s"
            print(f"{chapters[index].name}: {outcome} ({len(results)} of {len(chapters)})", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        for index in set(range(len(chapters))) - set(results):
            _paths(chapters[index], _folder(chapters[index]))[0].unlink(missing_ok=True)
        raise
    return [results[index] for index in range(len(chapters))]


def _folder(chapter: Chapter) -> Path:
    return chapter.root / "_build" / "execute"


def up_to_date(chapter: Chapter) -> bool:
    """Return whether the notebook has the outputs of a run in this copy of the book by the code and package as they are now.

    If so, and if the prose of the source has changed, update it in the notebook.
    """
    try:
        result, committed = finished(chapter, {}, _folder(chapter)), read(chapter.notebook)
    except (OSError, ValueError):
        return False
    tidied = tidy(chapter.cells, read(result.notebook)) if result else None
    if tidied is None or _outputs(tidied) != _outputs(committed):
        return False
    if tidied != committed:
        write(chapter.notebook, nbformat.writes(tidied) + "\n")
    return True


def _outputs(notebook: NotebookNode) -> list:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
