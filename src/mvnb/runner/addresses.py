"""Addresses of runs: digests of the code, parameters and versions that the outputs depend on, used to avoid repetition."""

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
from mvnb.runner.hosts import TAG

PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = ("mvnb", "torch", "numpy", "scipy")


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect numerical results."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


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

    An address is a digest of the chapter's code, kept runs and claims, all its parameters, the modules that it may import, and
    the versions of the libraries. It does not cover prose, the install cell or the contents of data sets.
    """
    cells = (cell for cell in chapter.cells.cells if TAG not in cell.metadata.get("tags", []))
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    paper, results = PACKAGE / "papers" / chapter.slug, kept_runs.folder(chapter.slug).glob("*.json")
    paths = [*sorted(results), *sorted(paper.glob("kept/*.toml")), *paper.glob("claims.toml")]
    kept = [path.read_text(encoding="utf-8") for path in paths]
    before, after = [chapter.name, code, kept], [_package("\n".join(code)), versions()]
    defaults = {name: parameter.default for name, parameter in chapter.parameters.items()}
    texts = (json.dumps([*before, defaults | dict(parameters), *after]) for parameters in runs)
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
