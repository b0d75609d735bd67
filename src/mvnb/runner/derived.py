"""Generated information about the chapters: their run times and the list of chapters in the README."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mvnb.files import read_json, write
from mvnb.runner import workers
from mvnb.runner.catalogue import Chapter, parts
from mvnb.runner.errors import ChapterError

SECONDS = "results/seconds.json"
_LIST = re.compile(r"(<!-- chapters[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


def read_seconds(root: Path) -> dict[str, Any]:
    """Return the recorded ``seconds`` by chapter number and, after a run of the whole book, its ``machine`` and ``command``.

    Raises ``ChapterError`` if the file exists but is not such a record.
    """
    if not os.path.lexists(root / SECONDS):
        return {"seconds": {}}
    found = read_json(root / SECONDS)
    seconds = found.get("seconds") if isinstance(found, dict) else None
    if not isinstance(seconds, dict) or not all(isinstance(one, int | float) for one in seconds.values()):
        raise ChapterError(f"expected {SECONDS} to contain seconds by chapter; restore the file, or delete it")
    return found


def record_seconds(root: Path, taken: Mapping[str, float], chapters: int, jobs: int | None) -> None:
    """Record run times in ``results/seconds.json``.

    ``taken`` gives seconds by chapter number, ``chapters`` is the number of chapters in the book, and ``jobs`` is the number of
    parallel runs (None: one per core). A run of the whole book replaces the record; other runs only add times of chapters that
    have none.
    """
    path, kept = root / SECONDS, read_seconds(root)
    rounded = {number: round(seconds) for number, seconds in taken.items()}
    if len(taken) == chapters:
        cores = workers.cores()
        machine = f"{cores} cores, {min(jobs or cores, chapters)} chapters at a time, one thread each"
        kept = {"machine": machine, "command": "mvnb book", "seconds": rounded}
    else:
        kept["seconds"] = rounded | kept["seconds"]
    kept["seconds"] = dict(sorted(kept["seconds"].items()))
    path.parent.mkdir(exist_ok=True)
    write(path, json.dumps(kept, indent=1) + "\n")


def readme_with_chapters(root: Path, chapters: Iterable[Chapter]) -> str:
    """Return the README's text with its list of ``chapters`` updated from the table of contents and the titles."""
    text = (root / "README.md").read_text(encoding="utf-8")
    lines = [f"- *{part}*: {', '.join(map(_link, some))}" for part, some in parts(root, chapters).items()]
    return _LIST.sub(lambda match: match[1] + "\n".join(lines) + "\n" + match[2], text)


def _link(chapter: Chapter) -> str:
    return f"{int(chapter.number)} [{chapter.title}](notebooks/{chapter.name}.ipynb)"
