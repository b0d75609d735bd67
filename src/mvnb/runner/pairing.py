"""Sources and notebooks: what of a run goes into the committed notebook, whether the two agree, which need not be run."""

from __future__ import annotations

import difflib
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mvnb import claims
from mvnb.files import write
from mvnb.runner import addresses
from mvnb.runner.catalogue import Chapter, read
from mvnb.runner.errors import ChapterError

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}
FORMATS = "ipynb,py:percent"
_DERIVED = ("lines_to_next_cell", "papermill", "execution", "trusted", "collapsed")


def tidy(source: NotebookNode, ran: NotebookNode) -> NotebookNode:
    """The cells of ``source`` with the outputs of ``ran``, and nothing that differs from one run to the next."""
    cells: list[NotebookNode] = []
    seen: dict[str, int] = {}
    results = (cell for cell in ran.cells if cell.cell_type == "code")
    for cell in source.cells:
        metadata = {key: value for key, value in cell.metadata.items() if key not in _DERIVED}
        new = nbformat.from_dict({**cell, "metadata": metadata, "id": _cell_id(cell, seen)})
        if cell.cell_type == "code":
            done = next(results)
            new.outputs = _merged(done.outputs)
            new.execution_count = done.execution_count
        cells.append(new)
    kept = {key: value for key, value in source.metadata.items() if key not in ("jupytext", "papermill")}
    metadata = {**kept, "jupytext": {"formats": FORMATS}, "kernelspec": dict(KERNELSPEC), "language_info": LANGUAGE}
    return nbformat.from_dict({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def _cell_id(cell: NotebookNode, seen: dict[str, int]) -> str:
    """An id made from the cell itself, so that editing one cell leaves the ids of the others alone."""
    digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
    seen[digest] = seen.get(digest, 0) + 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs without what was written to stderr, and with neighbouring pieces of stdout joined."""
    merged: list[NotebookNode] = []
    for output in outputs:
        if output.output_type != "stream":
            merged.append(output)
        elif output.name == "stdout":
            if merged and merged[-1].output_type == "stream":
                merged[-1].text += output.text
            else:
                merged.append(nbformat.from_dict(output))
    return merged


def stderr_text(notebook: NotebookNode) -> str:
    """What the cells of a notebook wrote to stderr."""
    streams = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return "".join(output.text for output in streams if output.get("name") == "stderr")


def difference(source: NotebookNode, paired: NotebookNode, names: tuple[str, str]) -> str:
    """A unified diff of two notebooks' cell types, cell metadata and sources; empty when they agree."""
    lines = difflib.unified_diff(_outline(source), _outline(paired), *names, lineterm="", n=2)
    return "\n".join(lines)


def _outline(notebook: NotebookNode) -> list[str]:
    lines: list[str] = []
    for cell in notebook.cells:
        metadata = {key: value for key, value in cell.metadata.items() if key not in _DERIVED and value != []}
        lines.append(f"%% {cell.cell_type} {json.dumps(metadata, sort_keys=True)}")
        lines.extend(cell.source.splitlines())
    return lines


def _partial(chapter: Chapter) -> Path:
    return (chapter.root or Path.cwd()) / "_build" / "execute" / f"{chapter.name}.partial.ipynb"


def _stamp(chapter: Chapter) -> Path:
    return _partial(chapter).with_name(f"{chapter.name}.json")


def _state(chapter: Chapter) -> dict[str, str]:
    """What a run depends on, and its outputs."""
    cells = nbformat.read(chapter.notebook, as_version=4).cells
    outputs = json.dumps([cell.outputs for cell in cells if cell.cell_type == "code"])
    return {"address": addresses.digests(chapter, [{}])[0], "outputs": hashlib.sha256(outputs.encode()).hexdigest()}


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
        tidied = tidy(chapter.cells, nbformat.read(chapter.notebook, as_version=4))
        write(chapter.notebook, nbformat.writes(tidied) + "\n")
    return True


def paired(chapter: Chapter) -> str:
    """How the committed notebook's cells differ from the source, as a unified diff; empty when they agree."""
    if not chapter.notebook.is_file():
        return f"{chapter.notebook.name} is missing"
    names = (chapter.source.name, chapter.notebook.name)
    return difference(chapter.cells, read(chapter.notebook), names)


def rows_at(chapter: Chapter, commit: str) -> list[dict[str, Any]]:
    """The claims of the notebook that git has of a chapter at a commit; none where it had no such notebook.

    Raises
    ------
    ChapterError
        When git has no such commit.
    """
    folder = chapter.notebook.parent

    def git(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)

    if git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}").returncode:
        raise ChapterError(f"git has no commit {commit!r} here")
    there = git("show", f"{commit}:./{chapter.notebook.name}")
    return claims.rows_of(json.loads(there.stdout), chapter.notebook.name) if there.returncode == 0 else []
