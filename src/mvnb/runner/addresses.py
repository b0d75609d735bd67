"""Addresses of runs: digests of the code, parameters and versions that the outputs depend on, used to avoid repetition."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from mvnb import kept_runs
from mvnb.runner.hosts import TAG

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = ("mvnb", "torch", "numpy", "scipy")


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect numerical results."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


@functools.cache
def _libraries() -> dict[str, str]:
    """Return the versions of Python and of all libraries that chapters may import; empty for those that are not installed."""
    from packaging.requirements import Requirement

    needed = [Requirement(text) for text in requires("mvnb") or []]
    extras = ("", "data", "llm")
    chosen = [one for one in needed if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras)]
    found = {}
    for name in sorted({one.name for one in chosen}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return versions() | found


def _strings(value: Any) -> Iterator[str]:
    """Yield the non-empty strings in a value or in nested lists and dictionaries."""
    if isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)
    elif isinstance(value, str) and value:
        yield value


def data(values: Any, base: Path = Path()) -> dict[str, str]:
    """Return digests of what strings in nested values name, by string: data sets in the folder of data, and paths.

    Relative paths start at the folder ``base``. Of a folder, the names, sizes and times of the files count.
    """
    from platformdirs import user_cache_dir

    # The folder of mvnb.data.cache.data_dir, whose import would take as long as PyTorch's.
    folder = Path(os.environ.get("MVNB_DATA") or user_cache_dir("mvnb")).expanduser()
    texts = set(_strings(values))
    paths = {text: (folder / f"{text}.npz", base / Path(text).expanduser()) for text in texts if "\0" not in text}
    return {text: _contents(path) for text, some in sorted(paths.items()) for path in some if os.path.exists(path)}


def _contents(path: Path) -> str:
    if path.is_dir():
        found = [(one.relative_to(path).as_posix(), one.stat()) for one in sorted(path.rglob("*")) if one.is_file()]
        return json.dumps([(name, status.st_size, status.st_mtime_ns) for name, status in found])
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as file:  # data sets contain checksums of their parts
        return json.dumps([(one.filename, one.CRC, one.file_size) for one in file.infolist()])
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _package(code: str) -> str:
    """Return a digest of the modules that a chapter may import: the core and the papers whose names occur in ``code``."""
    papers = {paper for paper in (PACKAGE / "papers").iterdir() if paper.is_dir() and paper.name not in code}
    others = papers | {PACKAGE / "runner", PACKAGE / "cli.py", PACKAGE / "__main__.py"}
    paths = sorted(path for path in PACKAGE.rglob("*.py") if not others & {path, *path.parents})
    # Reading as text makes the digest independent of line endings.
    texts = (f"{path.relative_to(PACKAGE).as_posix()}\n{path.read_text(encoding='utf-8')}" for path in paths)
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def digests(chapter, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the address of a run of ``chapter`` for each set of parameters in ``runs``.

    An address is a digest of the chapter's name (outside a book also its folder), code, kept runs and claims, all its
    parameters and the files that they name, the modules that it may import, and the versions of the libraries. It does not
    cover prose and the install cell.
    """
    cells = (cell for cell in chapter.cells.cells if TAG not in cell.metadata.get("tags", []))
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    paper, results = PACKAGE / "papers" / chapter.slug, kept_runs.folder(chapter.slug).glob("*.json")
    paths = [*sorted(results), *sorted(paper.glob("kept/*.toml")), *paper.glob("claims.toml")]
    kept = [path.read_text(encoding="utf-8") for path in paths]
    place = "" if chapter.root else str(chapter.source.parent.resolve())
    before, after = [chapter.name, place, code, kept], [_package("\n".join(code)), _libraries()]
    defaults = {name: parameter.default for name, parameter in chapter.parameters.items()}
    values = [defaults | dict(parameters) for parameters in runs]
    named = data(values, chapter.source.parent)  # at once, since each run of a sweep may name the same files
    used = ({text: named[text] for text in sorted(named.keys() & set(_strings(one)))} for one in values)
    texts = (json.dumps([*before, one, files, *after]) for one, files in zip(values, used))
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
