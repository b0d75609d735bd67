"""Creation of new chapters from templates: a runnable example with source, paper package, claims, test and list entries."""

from __future__ import annotations

import keyword
import os
import re
from importlib.resources import files
from pathlib import Path

from mvnb.files import write
from mvnb.runner.catalogue import Chapter, discover
from mvnb.runner.errors import ChapterError

FILES = {
    "chapter": "notebooks/NN_SLUG.py",
    "package": "src/mvnb/papers/SLUG/__init__.py",
    "claims": "src/mvnb/papers/SLUG/claims.toml",
    "test": "tests/papers/test_SLUG.py",
}
PRESETS = "NN_SLUG:\n  smoke:\n    replicas: 20\n  paper:\n    replicas: 100000\n"
_LISTED = re.compile(r".*^( *- file: notebooks/)\w+\n", re.DOTALL | re.MULTILINE)  # up to the last chapter of _toc.yml


def create(root: Path, number: str, slug: str) -> Chapter:
    """Write the files of the new chapter ``NN_slug``, add it to ``_toc.yml`` and ``presets.yml``, and return it.

    Raises
    ------
    ChapterError
        If the number or slug is invalid, or the chapter already exists. No file is written.
    """
    name = f"{number.zfill(2)}_{slug}"
    if not re.fullmatch("(?!00)[0-9]{2}_[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ChapterError(f"expected a number from 1 to 99 and lower-case words joined by underscores, got {number} {slug}")
    if keyword.iskeyword(slug):
        raise ChapterError(f"expected a slug that can be imported, got Python's keyword {slug!r}")
    if taken := [one.name for one in discover(root) if one.number == name[:2] or one.slug == slug]:
        raise ChapterError(f"{taken[0]} already exists")

    def fill(text: str) -> str:
        return text.replace("SLUG", slug).replace("NN", name[:2])

    contents, presets = root / "_toc.yml", root / "presets.yml"
    listed = contents.read_text(encoding="utf-8").rstrip() + "\n"
    texts = {contents: _LISTED.sub(rf"\g<0>\g<1>{name}\n", listed)}
    for template, path in FILES.items():
        text = files("mvnb.runner").joinpath("skeleton", f"{template}.txt").read_text(encoding="utf-8")
        texts[root / fill(path)] = fill(text)
    if there := [path for path in texts if path != contents and os.path.lexists(path)]:
        raise ChapterError(f"{there[0]} already exists; choose another slug")
    texts[presets] = f"{presets.read_text(encoding='utf-8').rstrip()}\n{fill(PRESETS)}".lstrip()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, text)
    return Chapter(root / "notebooks" / f"{name}.py", root)
