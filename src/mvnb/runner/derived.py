"""Generated facts about the chapters: their run times, and their list in the README."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mvnb.files import read_json, write
from mvnb.runner import workers
from mvnb.runner.catalogue import Chapter, parts

SECONDS = "results/seconds.json"
_LIST = re.compile(r"(<!-- chapters[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


def read_seconds(root: Path) -> dict[str, Any]:
    """Return the recorded ``seconds`` by chapter number, with ``machine`` and ``command`` of a run of the whole book."""
    return read_json(root / SECONDS) or {"seconds": {}}


def record_seconds(root: Path, taken: Mapping[str, float], chapters: int, jobs: int | None) -> None:
    """Record run times by chapter number; a run of some chapters only adds times that are not yet known."""
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


def readme_with_chapters(root: Path) -> str:
    """Return the text of the README, with its list of chapters updated from the table of contents and their first cells."""
    text = (root / "README.md").read_text(encoding="utf-8")
    lines = [line for part, chapters in parts(root).items() for line in (f"\n{part}\n", *map(_list_item, chapters))]
    return _LIST.sub(lambda match: match[1] + "\n".join(lines).lstrip("\n") + "\n" + match[2], text)


def _list_item(chapter: Chapter) -> str:
    paper = re.split(r" ?\{cite|;", chapter.citation)[0].rstrip(".")
    return f"- {chapter.number} [{chapter.title}](notebooks/{chapter.name}.ipynb): {paper}"
