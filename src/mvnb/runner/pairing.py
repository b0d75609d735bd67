"""Pairing of sources and notebooks: tidying notebooks for a commit, comparing them with the sources, detecting edits."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mvnb import claims
from mvnb.files import write
from mvnb.runner.catalogue import Chapter, read
from mvnb.runner.errors import ChapterError
from mvnb.runner.hosts import TAG

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}
FORMATS = "ipynb,py:percent"
_DERIVED = ("lines_to_next_cell", "papermill", "jupyter", "mystnb", "execution", "trusted", "collapsed")
_FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
_COMPARED = ("tags",)  # cell metadata that is compared; editors add other keys


def tidy(source: NotebookNode, ran: NotebookNode) -> NotebookNode:
    """Return the cells of ``source`` with the outputs of ``ran``, without stderr and metadata that differs between runs."""
    cells: list[NotebookNode] = []
    seen: dict[str, int] = {}
    results = (cell for cell in ran.cells if cell.cell_type == "code")
    for cell in source.cells:
        metadata = {key: value for key, value in cell.metadata.items() if key not in _DERIVED}
        new = nbformat.from_dict({**cell, "metadata": metadata, "id": _cell_id(cell, seen)})
        if cell.cell_type == "code":
            if folded := _FOLDED & (tags := {*cell.metadata.get("tags", [])}):
                new.metadata["mystnb"] = {"code_prompt_show": f"Show {_purpose(cell.source, tags)}"}
            if folded and "parameters" not in tags:  # JupyterLab and VS Code fold what the site folds
                new.metadata["jupyter"] = {"source_hidden": True}
            done = next(results)
            new.outputs = join_streams([output for output in done.outputs if output.get("name") != "stderr"])
            new.execution_count = done.execution_count
        cells.append(new)
    kept = {key: value for key, value in source.metadata.items() if key not in ("jupytext", "papermill")}
    metadata = {**kept, "jupytext": {"formats": FORMATS}, "kernelspec": dict(KERNELSPEC), "language_info": LANGUAGE}
    written = nbformat.from_dict({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
    written.metadata["mvnb"] = {"cells": _digest(written)}
    return written


def _purpose(source: str, tags: set[str]) -> str:
    """Return what a folded cell holds, as the text of the button that shows it."""
    if "parameters" in tags:
        return "the parameters"
    if source.startswith(("import ", "from ")):
        return "the imports"
    if "figures.show(" in source:
        return "the code of the figure"
    if source.startswith("figures.show_code("):
        return "the functions"
    defined = re.match(r"(?:@.*\n)*(?:def|class) (\w+)", source)
    return f"the definition of {defined[1]}" if defined else "the code"


def _cell_id(cell: NotebookNode, seen: dict[str, int]) -> str:
    """Return an id derived from the cell's type and source, so that editing a cell does not change the ids of other cells."""
    digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
    seen[digest] = seen.get(digest, 0) + 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def join_streams(outputs: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Join adjacent outputs of the same stream, which a busy kernel may split at any point."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == "stream" and output.name == joined[-1].get("name"):
            joined[-1].text += output.text
        else:
            joined.append(nbformat.from_dict(output))
    return joined


def _outline(notebook: NotebookNode) -> list[str]:
    """Return the types, tags and sources of a notebook's cells as a list of lines."""
    lines: list[str] = []
    for cell in notebook.cells:
        metadata = {key: value for key, value in cell.metadata.items() if key in _COMPARED and value != []}
        lines.append(f"%% {cell.cell_type} {json.dumps(metadata, sort_keys=True)}")
        lines.extend(cell.source.splitlines())
    return lines


def _digest(notebook: NotebookNode) -> str:
    return hashlib.sha256("\n".join(_outline(notebook)).encode()).hexdigest()[:16]


def edited(chapter: Chapter) -> bool:
    """Return whether the notebook's cells have been edited since it was last written and differ from those of the source.

    Raises
    ------
    ChapterError
        If the notebook cannot be read.
    """
    if chapter.source == chapter.notebook or not chapter.notebook.is_file():
        return False
    try:
        notebook = read(chapter.notebook)
        written = notebook.metadata.get("mvnb", {}).get("cells")
        return written != _digest(notebook) and bool(paired(chapter))
    except (ValueError, AttributeError) as error:
        reason = str(error).removeprefix(f"cannot read {chapter.notebook}: ").splitlines()[0]
        ways = f"repair it, or delete it and run: mvnb book {chapter.number}"
        raise ChapterError(f"{chapter.notebook} cannot be read as a notebook ({reason}); {ways}") from None


def refuse_edited(chapters: Iterable[Chapter]) -> None:
    """Raise ``ChapterError`` if the notebook of one of the chapters has edits that its source lacks."""
    for chapter in chapters:
        if edited(chapter):
            newer = max((chapter.source, chapter.notebook), key=lambda path: path.stat().st_mtime)
            files = f"{chapter.notebook.name} was edited and differs from {chapter.source.name} ({newer.name} is newer)"
            ways = ", or ".join(f"mvnb book {chapter.number} --take {half}" for half in ("notebook", "source"))
            raise ChapterError(f"{files}; choose which cells to keep: {ways}")


def take_notebook(chapter: Chapter) -> None:
    """Replace the source's cells with those of the notebook, omitting outputs and the install cell.

    Of the cells' metadata, tags and what the source already uses are kept; editors add other keys.

    Raises ``ChapterError`` if the source cannot contain a cell, such as one with a pasted image or a line ``%%``.
    """
    import jupytext

    notebook = read(chapter.notebook)
    for place, cell in enumerate(notebook.cells, 1):
        if attached := ", ".join(cell.get("attachments", {})):
            wanted = f"expected images of {chapter.notebook.name} to be files, got {attached} pasted into cell {place}"
            raise ChapterError(
                f"{wanted}; save it beside the notebook and link to it, since {chapter.source.name} holds only text"
            )
    cells = [cell for cell in notebook.cells if TAG not in cell.metadata.get("tags", [])]
    kept = {*_COMPARED, *(key for cell in chapter.cells.cells for key in cell.metadata)} - {*_DERIVED}
    for cell in cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in kept}
    text = jupytext.writes(nbformat.from_dict({**notebook, "cells": cells}), "py:percent")
    written = [(cell.cell_type, cell.source.rstrip("\n")) for cell in jupytext.reads(text, "py:percent").cells]
    for place, (cell, found) in enumerate(itertools.zip_longest(cells, written), 1):
        if cell is None or (cell.cell_type, cell.source.rstrip("\n")) != found:
            why = "such as one with a line that begins with %% or an unusual line break"
            raise ChapterError(f"{chapter.source.name} cannot contain cell {place} of {chapter.notebook.name} as it is, {why}")
    header = chapter.source.read_text(encoding="utf-8").partition("# %%")[0]
    write(chapter.source, header + "".join(text.partition("# %%")[1:]))


def paired(chapter: Chapter) -> str:
    """Return a unified diff from the cells of the source to those of its notebook, or a message if the notebook is missing."""
    if not chapter.notebook.is_file():
        return f"{chapter.notebook.name} is missing"
    outlines = _outline(chapter.cells), _outline(read(chapter.notebook))
    return "\n".join(difflib.unified_diff(*outlines, chapter.source.name, chapter.notebook.name, lineterm="", n=2))


def rows_at(chapter: Chapter, commit: str) -> list[dict[str, Any]]:
    """Return the claims of a chapter's notebook at a git commit; empty if the commit does not contain the notebook.

    Raises
    ------
    ChapterError
        If git cannot be run or does not find the commit, or if the notebook is not valid JSON.
    """
    name, folder = chapter.notebook.name, chapter.notebook.parent
    if not git(folder, "ls-tree", "--name-only", "--end-of-options", f"{commit}^{{commit}}", name):
        return []
    try:
        return claims.rows_of(json.loads(git(folder, "show", "--end-of-options", f"{commit}:./{name}")), name)
    except json.JSONDecodeError as error:
        raise ChapterError(f"expected {name} at commit {commit} to be a JSON notebook, got invalid JSON: {error}") from None


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return its output; raise ``ChapterError`` if git cannot be run or fails."""
    # In a hook, git sets variables that name the repository of the hook.
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, env=surroundings, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ChapterError(f"cannot run git: {error.strerror}") from None
    if done.returncode:
        raise ChapterError(done.stderr.replace("^{commit}", ""))
    return done.stdout
