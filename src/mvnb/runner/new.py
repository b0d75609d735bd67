"""Creation of new chapters from templates: a runnable example with source, paper package, claims, test and list entries."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from mvnb.files import write
from mvnb.runner.catalogue import Chapter, discover, parts
from mvnb.runner.errors import ChapterError
from mvnb.runner.parameters import choices_text


def create(root: Path, number: str, slug: str, part: str | None = None) -> Chapter:
    """Write the files of the new chapter ``NN_slug``, and return it without running its notebook.

    The chapter is listed at the end of the part with the caption ``part``, by default the last part with chapters.

    Raises
    ------
    ChapterError
        If the number, slug or part is invalid, the chapter already exists, or ``root`` is not a checkout of the project. No
        file is written.
    """
    contents, papers = root / "_toc.yml", root / "src" / "mvnb" / "papers"
    if not contents.is_file() or not papers.is_dir():
        raise ChapterError(f"{root} is not a checkout of the project: _toc.yml or src/mvnb/papers is missing")
    if not re.fullmatch("[0-9]{1,2}", number) or not int(number):
        raise ChapterError(f"the chapter number must be one or two digits, from 1 to 99, got {number!r}")
    number = number.zfill(2)
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", slug):
        raise ChapterError(f"the chapter name must be lower-case words joined by underscores, got {slug!r}")
    taken = [chapter.name for chapter in discover(root) if chapter.number == number or chapter.slug == slug]
    if taken or (papers / slug).exists():
        raise ChapterError(f"{taken[0] if taken else papers / slug} already exists")
    known = parts(root)
    if part is not None and part not in known:
        raise ChapterError(f"no part {part!r} in _toc.yml{choices_text(part, known)}")
    listed = _with_entry(contents.read_text(encoding="utf-8"), f"notebooks/{number}_{slug}", part or list(known)[-1])
    for path, name in (
        (root / "notebooks" / f"{number}_{slug}.py", "chapter"),
        (papers / slug / "__init__.py", "package"),
        (papers / slug / "recipe.py", "recipe"),
        (papers / slug / "claims.toml", "claims"),
        (root / "tests" / "papers" / f"test_{slug}.py", "test"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, _fill_template(name, number, slug))
    presets = root / "presets.yml"
    write(presets, presets.read_text(encoding="utf-8") + _fill_template("presets", number, slug))
    write(contents, listed)
    return Chapter(root / "notebooks" / f"{number}_{slug}.py", root)


def _fill_template(name: str, number: str, slug: str) -> str:
    text = files("mvnb.runner").joinpath("skeleton", f"{name}.txt").read_text(encoding="utf-8")
    return text.replace("SLUG", slug).replace("NN", number)


def _with_entry(contents: str, file: str, part: str) -> str:
    """Return ``contents``, the text of ``_toc.yml``, with ``file`` added after the last notebook of ``part``."""
    start = contents.index(f"caption: {part}")
    end = contents.find("- caption:", start)
    last = list(re.finditer(r"^( *- file: )notebooks/.*\n", contents[start : end if end > 0 else None], re.MULTILINE))[-1]
    place = start + last.end()
    return f"{contents[:place]}{last[1]}{file}\n{contents[place:]}"
