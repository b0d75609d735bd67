"""The chapters of the book and their claims, which several extensions show, read once a build."""

from __future__ import annotations

import functools
from pathlib import Path

from mvnb import claims
from mvnb.runner import sweeps
from mvnb.runner.catalogue import Chapter, discover


@functools.cache
def chapters(srcdir) -> dict[str, Chapter]:
    """The chapters by their two digits."""
    return {chapter.number: chapter for chapter in discover(Path(srcdir))}


@functools.cache
def ledger(chapter: Chapter) -> list[dict]:
    """The claims of a chapter as its notebook shows them, with ``seeds`` of the kept sweep where there is one."""
    seeds = sweeps.kept(chapter)
    rows = [row | {"chapter": chapter.name} for row in claims.read(chapter.notebook)]
    return [row | ({"seeds": seeds[row["id"]]} if row["id"] in seeds else {}) for row in rows]
