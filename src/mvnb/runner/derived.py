"""Generated information about the chapters: their run times, and their list and the score in the README."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mvnb import claims, verdicts
from mvnb.files import read_json, write
from mvnb.runner import workers
from mvnb.runner.catalogue import Chapter, parts
from mvnb.runner.errors import ChapterError

SECONDS = "results/seconds.json"
_BLOCK = re.compile(r"(<!-- (score|chapters):[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


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


def updated_readme(root: Path, chapters: Sequence[Chapter]) -> str:
    """Return the README's text with the list of ``chapters`` and the score of the committed notebooks updated."""
    text = (root / "README.md").read_text(encoding="utf-8")
    found = {"score": _score(chapters)}
    found["chapters"] = [f"- *{part}*: {'; '.join(map(_name, some))}" for part, some in parts(root, chapters).items()]
    return _BLOCK.sub(lambda match: match[1] + "\n".join([*found[match[2]], match[3]]), text)


def _score(chapters: Iterable[Chapter], shown: int = 2) -> list[str]:
    """Return lines on the verdicts of the papers' headline claims, with the failures that take the fewest words."""
    there = {one.notebook: one for one in chapters if one.notebook.is_file()}
    rows = [row | {"chapter": int(one.number)} for one in there.values() for row in claims.read(one.notebook)]
    headlines = verdicts.headlines(rows)
    failing = [row for row in headlines if row["verdict"] == "fails" and row["reason"]]
    failing = sorted(failing, key=lambda row: len(row["says"] + row["reason"]))[:shown]
    said = [f"{row['says']}. *Fails* in chapter {row['chapter']}: {row['reason'].rstrip('.')}." for row in failing]
    lines = [f"- {verdicts.plain(text)}" for text in said]
    return [f"**Of the papers' headline claims: {verdicts.tally(headlines)}.** Two that fail:", "", *lines]


def _name(chapter: Chapter) -> str:
    return f"{int(chapter.number)} {chapter.title}"
