"""Chapters: finding them, their parameters and presets, running one, and refreshing the committed notebooks.

A chapter is a jupytext source ``notebooks/NN_slug.py`` with the executed notebook ``NN_slug.ipynb`` beside it. The root
of the book is ``$MVNB_ROOT``, or the nearest folder upwards from the current one that holds ``notebooks/`` and
``presets.yml`` or ``_toc.yml``, or the checkout that this package was installed from.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mvnb import _html, _notebooks, claims
from mvnb._notebooks import CellFailed
from mvnb._parameters import ChapterError, Parameter, check_values, did_you_mean, parse_assignments, read_parameters

__all__ = [
    "CellFailed",
    "Chapter",
    "ChapterError",
    "Execution",
    "Parameter",
    "RunResult",
    "discover",
    "execute",
    "execute_all",
    "find_root",
    "paired",
    "preset",
    "presets",
    "resolve",
    "run",
]

_STEM = re.compile(r"(?P<number>\d\d)_(?P<slug>\w+)")


@dataclass(frozen=True)
class Chapter:
    """One chapter: its source, and the root of the book it belongs to (None for a notebook from elsewhere)."""

    source: Path
    root: Path | None = None

    @property
    def name(self) -> str:
        """The file stem, such as ``01_midpoint_mixup``."""
        return self.source.stem

    @property
    def number(self) -> str:
        """The two digits in front, or nothing."""
        match = _STEM.fullmatch(self.name)
        return match["number"] if match else ""

    @property
    def slug(self) -> str:
        """The name without its number."""
        match = _STEM.fullmatch(self.name)
        return match["slug"] if match else self.name

    @property
    def notebook(self) -> Path:
        """The executed notebook that is paired with the source."""
        return self.source.with_suffix(".ipynb")

    @cached_property
    def cells(self) -> NotebookNode:
        """The source as a notebook, without outputs unless it is itself an ``.ipynb``."""
        try:
            return _notebooks.read(self.source)
        except Exception as error:
            raise ChapterError(f"cannot read {self.source}: {error}") from None

    @cached_property
    def title(self) -> str:
        """The first heading of level one."""
        text = "\n".join(cell.source for cell in self.cells.cells if cell.cell_type == "markdown")
        match = re.search(r"^# +(.+)$", text, re.MULTILINE)
        return match[1].strip() if match else self.name

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The chapter's parameters with defaults and comments, in order."""
        return read_parameters(self.cells, self.name)

    @property
    def n_cells(self) -> int:
        """How many code cells the source has."""
        return sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in self.cells.cells)

    def parse(self, assignments: Iterable[str]) -> dict[str, Any]:
        """``name=value`` texts as values of the parameters' types; ChapterError for what does not fit."""
        return parse_assignments(assignments, self.parameters, self.name)


@dataclass(frozen=True)
class RunResult:
    """What :func:`run` wrote, the claims that were recorded, and how long it took."""

    notebook: Path
    html: Path | None
    claims: Path
    rows: list[dict[str, Any]]
    seconds: float


@dataclass(frozen=True)
class Execution:
    """What :func:`execute` did to one chapter; ``error`` is empty when its notebook was written."""

    chapter: str
    seconds: float = 0.0
    rows: Sequence[dict[str, Any]] = ()
    stderr: str = ""
    error: str = ""


def find_root() -> Path:
    """The root of the book; see the module's description for where it is looked for."""
    given = os.environ.get("MVNB_ROOT")
    if given:
        if not (Path(given) / "notebooks").is_dir():
            raise ChapterError(f"MVNB_ROOT is {given!r}, which has no folder 'notebooks'")
        return Path(given).resolve()
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / "notebooks").is_dir() and any((folder / mark).is_file() for mark in ("presets.yml", "_toc.yml")):
            return folder
    raise ChapterError("no book here: neither this folder nor one above it has notebooks/ and presets.yml")


def discover(root: Path | None = None) -> list[Chapter]:
    """All chapters of the book, in order."""
    root = root or find_root()
    sources = sorted((root / "notebooks").glob("[0-9][0-9]_*.py"))
    return [Chapter(source, root) for source in sources if _STEM.fullmatch(source.stem)]


def resolve(text: str, root: Path | None = None) -> Chapter:
    """The chapter meant by a number ("1", "01"), a slug, a file stem, or the path of a source or notebook.

    A path may lie outside the book; what a source in ``notebooks/`` and its notebook name is the same chapter.
    """
    if text.endswith((".py", ".ipynb")) or os.sep in text:
        return _from_path(Path(text), root)
    root = root or find_root()
    chapters = discover(root)
    word = text.strip().replace("-", "_")
    for chapter in chapters:
        if word in (chapter.name, chapter.slug) or (word.isdecimal() and int(word) == int(chapter.number)):
            return chapter
    if not chapters:
        raise ChapterError(f"no chapter {text!r}: there is none in {root / 'notebooks'}")
    hint = did_you_mean(word, [name for chapter in chapters for name in (chapter.slug, chapter.name)])
    raise ChapterError(f"no chapter {text!r}; there are {', '.join(chapter.name for chapter in chapters)}{hint}")


def _from_path(path: Path, root: Path | None) -> Chapter:
    if not path.is_file():
        raise ChapterError(f"no such file: {path}")
    if path.suffix not in (".py", ".ipynb"):
        raise ChapterError(f"{path} is neither a .py nor an .ipynb file")
    path = path.resolve()
    try:
        root = root or find_root()
    except ChapterError:
        root = None
    if root is None or path.parent != (root / "notebooks").resolve():
        return Chapter(path)
    source = path.with_suffix(".py")
    return Chapter(source if source.is_file() else path, root)


def presets(root: Path | None) -> dict[str, dict[str, dict[str, Any]]]:
    """All presets of the book: chapter stem, preset name, parameter values; as written, unchecked."""
    path = root / "presets.yml" if root else None
    if path is None or not path.is_file():
        return {}
    import yaml

    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ChapterError(f"presets.yml is not YAML: {error}") from None
    nested = isinstance(read, dict) and all(isinstance(named, dict) for named in read.values())
    if not nested or not all(isinstance(values or {}, dict) for named in read.values() for values in named.values()):
        raise ChapterError("presets.yml must map chapters to preset names to parameter values")
    return {chapter: {name: values or {} for name, values in named.items()} for chapter, named in read.items()}


def preset(chapter: Chapter, name: str) -> dict[str, Any]:
    """The values of one preset, checked against the chapter's parameters."""
    named = presets(chapter.root).get(chapter.name, {})
    if name not in named:
        there = f"; it has {', '.join(named)}" if named else "; it has none"
        raise ChapterError(f"{chapter.name} has no preset {name!r}{there}{did_you_mean(name, named)}")
    return check_values(named[name], chapter.parameters, f"preset {name!r} of {chapter.name}: the chapter")


def run(
    chapter: Chapter,
    parameters: Mapping[str, Any] | None = None,
    output_dir: str | Path = "runs",
    *,
    html: bool = True,
    progress: bool = False,
) -> RunResult:
    """Run a chapter with some parameters replaced, and write notebook, HTML and claims under ``output_dir``.

    The notebook is written as ``NAME.partial.ipynb`` while it runs and takes its name when everything is done.

    Parameters
    ----------
    parameters
        Values by name, of the types of the defaults (see :meth:`Chapter.parse` for texts).
    html
        Whether to render ``NAME.html`` too.
    progress
        Whether to draw a progress bar on stderr when it is a terminal.

    Raises
    ------
    ChapterError
        Before anything is written, for parameters or a folder that cannot be used.
    CellFailed
        When a cell raises; the partial notebook is kept. An interrupt removes it.
    """
    values = check_values(parameters or {}, chapter.parameters, chapter.name)
    folder = _usable(Path(output_dir), chapter)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{chapter.name}.partial.ipynb"
    started = time.monotonic()
    with _bar(chapter, progress) as bar:
        ran = _notebooks.play(chapter.cells, partial, values, chapter.source.parent, bar.update)
    try:
        page = _html.render(ran, chapter.title) if html else None
        rows = claims.read(partial)
        result = RunResult(
            folder / f"{chapter.name}.ipynb",
            folder / f"{chapter.name}.html" if html else None,
            folder / f"{chapter.name}.claims.json",
            rows,
            time.monotonic() - started,
        )
        if page is not None:
            _notebooks.write(result.html, page)
        _notebooks.write(result.claims, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        os.replace(partial, result.notebook)
    except KeyboardInterrupt:
        partial.unlink(missing_ok=True)
        raise
    return result


def _usable(folder: Path, chapter: Chapter) -> Path:
    """``folder``, if a run may write there."""
    if folder.resolve() == chapter.source.parent.resolve():
        raise ChapterError(f"{folder} holds the chapter itself; a run writes elsewhere")
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ChapterError(f"{existing} is not a folder")
    if not os.access(existing, os.W_OK):
        raise ChapterError(f"{existing} cannot be written to")
    return folder


def _bar(chapter: Chapter, progress: bool, position: int | None = None):
    from tqdm import tqdm

    layout = "{desc}: {n_fmt}/{total_fmt} cells |{bar}| {elapsed}"
    disable = None if progress else True  # None: only where stderr is a terminal
    return tqdm(total=chapter.n_cells, desc=chapter.name, bar_format=layout, disable=disable, position=position)


def execute(chapter: Chapter, on_cell: Callable[[], None] = lambda: None) -> Execution:
    """Run a chapter with its defaults and write its committed notebook, the same bytes for the same outputs.

    Raises
    ------
    CellFailed
        When a cell raises; the committed notebook is left as it was, the partial one kept under ``_build/execute``.
    """
    folder = (chapter.root or Path.cwd()) / "_build" / "execute"
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{chapter.name}.partial.ipynb"
    started = time.monotonic()
    ran = _notebooks.play(chapter.cells, partial, {}, chapter.source.parent, on_cell)
    tidied = _notebooks.tidy(chapter.cells, ran)
    _notebooks.write(chapter.notebook, nbformat.writes(tidied) + "\n")
    partial.unlink()
    rows = claims.read(chapter.notebook)
    return Execution(chapter.name, time.monotonic() - started, rows, _notebooks.complaints(ran))


def paired(chapter: Chapter) -> str:
    """How the committed notebook's cells differ from the source, as a unified diff; empty when they agree."""
    if not chapter.notebook.is_file():
        return f"{chapter.notebook.name} is missing"
    names = (chapter.source.name, chapter.notebook.name)
    return _notebooks.difference(chapter.cells, _notebooks.read(chapter.notebook), names)


def execute_all(chapters: Sequence[Chapter], jobs: int | None = None, *, progress: bool = False) -> list[Execution]:
    """:func:`execute` for several chapters side by side, one process each; a failure is recorded and stops no other.

    Parameters
    ----------
    jobs
        How many at once; as many as there are cores by default.
    progress
        Whether to draw a bar per chapter on stderr when it is a terminal.
    """
    spawn = multiprocessing.get_context("spawn")
    bars = [_bar(chapter, progress, position) for position, chapter in enumerate(chapters)]
    waiting = list(range(len(chapters)))[::-1]
    running: dict[Connection, tuple[int, multiprocessing.process.BaseProcess]] = {}
    results: dict[int, Execution] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (jobs or os.cpu_count() or 1):
                index = waiting.pop()
                ours, theirs = spawn.Pipe(duplex=False)
                process = spawn.Process(target=_execute_in_process, args=(replace(chapters[index]), theirs))
                process.start()
                theirs.close()
                running[ours] = index, process
            for connection in wait(list(running)):
                index, process = running[connection]
                if _receive(connection, chapters[index], bars[index], results, index):
                    process.join()
                    del running[connection]
    finally:
        _stop([process for _, process in running.values()])
        for bar in bars:
            bar.close()
    return [results[index] for index in range(len(chapters))]


def _receive(connection: Connection, chapter: Chapter, bar, results: dict[int, Execution], index: int) -> bool:
    """Take one message of a chapter's process; whether it was the last."""
    try:
        message = connection.recv()
    except EOFError:
        message = Execution(chapter.name, error="its process ended without a result")
    if message is None:
        bar.update()
        return False
    results[index] = message
    return True


def _execute_in_process(chapter: Chapter, connection: Connection) -> None:
    """Execute one chapter and send the result; only the parent stops it, as Ctrl-C in a terminal reaches everyone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()
    try:
        result = execute(chapter, lambda: connection.send(None))
    except KeyboardInterrupt:
        return
    except Exception as error:
        text = str(error) if isinstance(error, CellFailed | ChapterError) else f"{type(error).__name__}: {error}"
        result = Execution(chapter.name, time.monotonic() - started, error=text)
    connection.send(result)


def _interrupt(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _stop(processes: Sequence[multiprocessing.process.BaseProcess]) -> None:
    """Stop processes so that each takes its kernel and its partial notebook with it."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(15)
        process.kill()
