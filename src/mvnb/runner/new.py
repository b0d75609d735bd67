"""A new chapter: its notebook pair, its room with its claims, its test and its entries in lists, as an example that runs."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from mvnb.files import write
from mvnb.runner.catalogue import Chapter, discover, parts
from mvnb.runner.errors import ChapterError


def create(root: Path, number: str, slug: str, part: str | None = None) -> Chapter:
    """Write the sources of chapter ``number`` named ``slug`` and enter it at the end of a part; its notebook is not run yet.

    Raises
    ------
    ChapterError
        When number, name or part cannot be, or are taken, or ``root`` is no checkout of the whole project; nothing is written.
    """
    contents, rooms = root / "_toc.yml", root / "src" / "mvnb" / "papers"
    if not contents.is_file() or not rooms.is_dir():
        raise ChapterError(f"{root} is not a checkout of the project: it has no _toc.yml or no src/mvnb/papers")
    if not re.fullmatch(r"\d\d", number) or number == "00":
        raise ChapterError(f"the number of a chapter is two digits such as 16, not {number!r}")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", slug):
        raise ChapterError(f"the name of a chapter is lower-case words joined by underscores, not {slug!r}")
    taken = [chapter.name for chapter in discover(root) if chapter.number == number or chapter.slug == slug]
    if taken or (rooms / slug).exists():
        raise ChapterError(f"there is {taken[0] if taken else rooms / slug} already")
    known = parts(root)
    if part is not None and part not in known:
        raise ChapterError(f"no part {part!r} in _toc.yml; there are {', '.join(known)}")
    listed = _entered(contents.read_text(encoding="utf-8"), f"notebooks/{number}_{slug}", part or list(known)[-1])
    for path, name in (
        (root / "notebooks" / f"{number}_{slug}.py", "chapter"),
        (rooms / slug / "__init__.py", "room"),
        (rooms / slug / "plan.py", "plan"),
        (rooms / slug / "claims.toml", "claims"),
        (root / "tests" / "papers" / f"test_{slug}.py", "test"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, _filled(name, number, slug))
    presets = root / "presets.yml"
    write(presets, presets.read_text(encoding="utf-8") + _filled("presets", number, slug))
    write(contents, listed)
    return Chapter(root / "notebooks" / f"{number}_{slug}.py", root)


def _filled(name: str, number: str, slug: str) -> str:
    text = files("mvnb.runner").joinpath("skeleton", f"{name}.txt").read_text(encoding="utf-8")
    return text.replace("SLUG", slug).replace("NN", number)


def _entered(contents: str, file: str, part: str) -> str:
    """The text of ``_toc.yml`` with one more file behind the last notebook of a part; everything else stays as written."""
    start = contents.index(f"caption: {part}")
    end = contents.find("- caption:", start)
    last = list(re.finditer(r"^( *- file: )notebooks/.*\n", contents[start : end if end > 0 else None], re.MULTILINE))[-1]
    place = start + last.end()
    return f"{contents[:place]}{last[1]}{file}\n{contents[place:]}"
