"""What the outputs of a chapter depend on, as short digests: a run whose digest is known need not be repeated."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mvnb import kept_runs
from mvnb.runner.hosts import TAG

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = ("mvnb", "torch", "numpy", "scipy")


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that decide about numbers."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def _package(code: str) -> str:
    """Digest of the sources that a chapter may import of this package: the core, and rooms of papers that ``code`` names."""
    rooms = {room for room in (PACKAGE / "papers").iterdir() if room.is_dir() and room.name not in code}
    others = rooms | {PACKAGE / "runner", PACKAGE / "cli.py"}
    paths = sorted(path for path in PACKAGE.rglob("*.py") if not others & {path, *path.parents})
    # Read as text, whatever ends its lines in this checkout.
    texts = (f"{path.relative_to(PACKAGE).as_posix()}\n{path.read_text(encoding='utf-8')}" for path in paths)
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def copy_package(folder: Path) -> None:
    """Copy this package as it is into ``folder``, with what is compiled of it."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name)


def digests(chapter, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return addresses of runs with these parameters: digests of the chapter's code, kept results and claims, all parameters,
    and of versions and the modules that it may import.

    Not of its prose, nor of the cell that installs the package, nor of data sets, which are known by their names.
    """
    cells = (cell for cell in chapter.cells.cells if TAG not in cell.metadata.get("tags", []))
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    room, results = PACKAGE / "papers" / chapter.slug, kept_runs.folder(chapter.slug).glob("*.json")
    beside = [*sorted(results), *sorted(room.glob("kept/*.toml")), *room.glob("claims.toml")]
    kept = [path.read_text(encoding="utf-8") for path in beside]
    before, after = [chapter.name, code, kept], [_package("\n".join(code)), versions()]
    defaults = {name: parameter.default for name, parameter in chapter.parameters.items()}
    texts = (json.dumps([*before, defaults | dict(parameters), *after]) for parameters in runs)
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
