"""What the outputs of a chapter depend on, as short digests: a run whose digest is known need not be repeated."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mvnb import kept_runs
from mvnb._hosts import TAG

LIBRARIES = ("mvnb", "torch", "numpy", "scipy")


@functools.cache
def versions() -> dict[str, str]:
    """Python and the libraries that decide about numbers, with their versions."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


@functools.cache
def package() -> str:
    """Digest of the sources of the package as it is installed here."""
    folder = Path(__file__).parent
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def digests(chapter, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Addresses of runs with these parameters: of the chapter's code and kept results, all parameters, package and versions.

    Not of its prose, nor of the cell that installs the package, nor of data sets, which are known by their names.
    """
    cells = (cell for cell in chapter.cells.cells if TAG not in cell.metadata.get("tags", []))
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    kept = [path.read_text(encoding="utf-8") for path in kept_runs.paths(chapter.slug)]
    before, after = [chapter.name, code, kept], [package(), versions()]
    defaults = {name: parameter.default for name, parameter in chapter.parameters.items()}
    texts = (json.dumps([*before, defaults | dict(parameters), *after]) for parameters in runs)
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
