"""Results of runs too long for a chapter: JSON files that the package carries, ``papers/SLUG/kept/NAME.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAPERS = Path(__file__).parent / "papers"


def paths(slug: str) -> list[Path]:
    """The files of the kept runs of one chapter, in the order of their names."""
    return sorted((PAPERS / slug / "kept").glob("*.json"))


def load(slug: str, name: str) -> dict[str, Any]:
    """A kept run by the chapter's slug, such as ``"nuclear_norm"``, and its own name; ``OSError`` when there is none."""
    return json.loads((PAPERS / slug / "kept" / f"{name}.json").read_text(encoding="utf-8"))


def check_name(name: str) -> None:
    """``ValueError`` unless ``name``, a chapter's parameter ``keep``, is a name of a kept run, or empty for keeping nothing."""
    if not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-"):
        raise ValueError(f"keep must be small letters, digits and hyphens, got {name!r}")


def save(slug: str, name: str, results: dict[str, Any]) -> None:
    """Keep ``results``, whole or not at all; ``OSError`` where the package's folder cannot be written to."""
    from mvnb.files import write

    path = PAPERS / slug / "kept" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(results) + "\n")
