"""What the outputs of a chapter depend on, as short digests: a run whose digest is known need not be repeated."""

from __future__ import annotations

import ast
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
    """Python and the libraries that decide about numbers, with their versions."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


@functools.cache
def _imported(path: Path) -> frozenset[Path]:
    """The modules of this package that a module imports itself, with the packages that they lie in."""
    return _modules(path.read_text(encoding="utf-8"))


def _modules(code: str) -> frozenset[Path]:
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:  # nobody knows what it imports
        return frozenset(PACKAGE.rglob("*.py"))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update([node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)])
    found: set[Path] = set()
    for name in names:
        parts = name.split(".")
        if parts[0] == PACKAGE.name:
            stems = [PACKAGE.joinpath(*parts[1:n]) for n in range(1, len(parts) + 1)]
            found.update(path for stem in stems for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.is_file())
    return frozenset(found)


def _text(path: Path) -> bytes:
    """What is in a text file, whatever ends its lines in this checkout."""
    return path.read_text(encoding="utf-8").encode()


def package(code: str) -> str:
    """Digest of the sources of this package that ``code`` imports, and of those that they import."""
    waiting, seen = set(_modules(code)), set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        waiting |= _imported(path) - seen
    found = hashlib.sha256()
    for path in sorted(seen):
        found.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode() + _text(path))
    return found.hexdigest()[:16]


def copy_package(folder: Path) -> None:
    """Copy this package as it is into ``folder``, with what is compiled of it."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name)
    _imported.cache_clear()  # digests from here on are of the package as it is now


def digests(chapter, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Addresses of runs with these parameters: of the chapter's code, kept results and claims, all parameters, and of
    versions and the modules that it imports.

    Not of its prose, nor of the cell that installs the package, nor of data sets, which are known by their names.
    """
    cells = (cell for cell in chapter.cells.cells if TAG not in cell.metadata.get("tags", []))
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    room = PACKAGE / "papers" / chapter.slug
    beside = [*kept_runs.paths(chapter.slug), *sorted(room.glob("kept/*.toml")), *room.glob("claims.toml")]
    kept = [path.read_text(encoding="utf-8") for path in beside]
    before, after = [chapter.name, code, kept], [package("\n".join(code)), versions()]
    defaults = {name: parameter.default for name, parameter in chapter.parameters.items()}
    texts = (json.dumps([*before, defaults | dict(parameters), *after]) for parameters in runs)
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
