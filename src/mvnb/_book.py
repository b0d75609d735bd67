"""The notebooks of the book: running chapters in place, and knowing which need not be run."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

from mvnb import _addresses, _notebooks, _workers, claims

if TYPE_CHECKING:
    from mvnb.chapters import Chapter


@dataclass(frozen=True)
class Execution:
    """What :func:`execute` did to one chapter; ``error`` is empty when its notebook was written."""

    chapter: str
    seconds: float = 0.0
    rows: Sequence[dict[str, Any]] = ()
    stderr: str = ""
    error: str = ""


def execute(chapter: Chapter, on_cell: Callable[[], None] = lambda: None) -> Execution:
    """Run a chapter with its defaults and write its committed notebook, the same bytes for the same outputs.

    Raises
    ------
    CellFailed
        When a cell raises; the committed notebook is left as it was, the partial one kept under ``_build/execute``.
    """
    partial = _partial(chapter)
    partial.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    ran = _notebooks.play(chapter.cells, partial, {}, chapter.source.parent, on_cell)
    tidied = _notebooks.tidy(chapter.cells, ran)
    _notebooks.write(chapter.notebook, nbformat.writes(tidied) + "\n")
    _notebooks.write(_stamp(chapter), json.dumps(_state(chapter)))
    partial.unlink()
    rows = claims.read(chapter.notebook)
    return Execution(chapter.name, time.monotonic() - started, rows, _notebooks.complaints(ran))


def _partial(chapter: Chapter) -> Path:
    return (chapter.root or Path.cwd()) / "_build" / "execute" / f"{chapter.name}.partial.ipynb"


def _stamp(chapter: Chapter) -> Path:
    return _partial(chapter).with_name(f"{chapter.name}.json")


def _state(chapter: Chapter) -> dict[str, str]:
    """What a run depends on, and its outputs."""
    cells = nbformat.read(chapter.notebook, as_version=4).cells
    outputs = json.dumps([cell.outputs for cell in cells if cell.cell_type == "code"])
    return {"address": _addresses.digests(chapter, [{}])[0], "outputs": hashlib.sha256(outputs.encode()).hexdigest()}


def up_to_date(chapter: Chapter) -> bool:
    """Whether the notebook was run in this folder, and code, package and outputs are what they were then.

    If so, prose that has changed since is carried over into it.
    """
    try:
        if json.loads(_stamp(chapter).read_text(encoding="utf-8")) != _state(chapter):
            return False
    except (OSError, ValueError):
        return False
    if paired(chapter):
        tidied = _notebooks.tidy(chapter.cells, nbformat.read(chapter.notebook, as_version=4))
        _notebooks.write(chapter.notebook, nbformat.writes(tidied) + "\n")
    return True


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
        Whether to draw a bar per chapter on stderr or, where that is no terminal, to write a line when a chapter is done.
    """
    if not chapters:
        return []
    bars = [_notebooks.bar(chapter.name, chapter.n_cells, progress, position) for position, chapter in enumerate(chapters)]
    results: dict[int, Execution] = {}
    try:
        with _workers.connect(min(jobs or os.cpu_count() or 1, len(chapters))) as client:
            items = [(replace(chapter),) for chapter in chapters]
            for index, result in _workers.each(client, execute, items, lambda index: bars[index].update()):
                if isinstance(result, Exception):
                    result = Execution(chapters[index].name, error=_workers.told(result))
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
