"""Which chapters there are, with their parameters and presets.

A chapter is a jupytext source ``notebooks/NN_slug.py`` with the executed notebook ``NN_slug.ipynb`` beside it. The root
of the book is ``$MVNB_ROOT``, or the nearest folder upwards from the current one that holds ``notebooks/`` and
``presets.yml`` or ``_toc.yml``, or the checkout that this package was installed from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mvnb.runner.errors import ChapterError
from mvnb.runner.hosts import repository, with_install_cell
from mvnb.runner.parameters import Parameter, check_values, did_you_mean, parse_assignments, read_parameters

_STEM = re.compile(r"\d\d_\w+")


def read(path: Path) -> NotebookNode:
    """The notebook at ``path`` (``.ipynb``, or a jupytext source), as a version-4 notebook."""
    import jupytext

    if path.suffix == ".ipynb":
        return nbformat.read(path, as_version=4)
    return jupytext.read(path)


@dataclass(frozen=True)
class Chapter:
    """A chapter: its source, and the root of the book it belongs to (None for a notebook from elsewhere).

    ``snapshot`` is a folder with what a sweep runs in place of the source and the installed package, which may be edited
    meanwhile: ``NAME.ipynb`` and a copy of the package.
    """

    source: Path
    root: Path | None = None
    snapshot: Path | None = None

    @property
    def name(self) -> str:
        """The file stem, such as ``01_midpoint_mixup``."""
        return self.source.stem

    @property
    def number(self) -> str:
        """The two digits in front, or nothing."""
        return self.name[:2] if _STEM.fullmatch(self.name) else ""

    @property
    def slug(self) -> str:
        """The name without its number."""
        return self.name[3:] if self.number else self.name

    @property
    def notebook(self) -> Path:
        """The executed notebook that is paired with the source."""
        return self.source.with_suffix(".ipynb")

    @cached_property
    def cells(self) -> NotebookNode:
        """The source as a notebook, without outputs unless it is an ``.ipynb``; the book's begin by installing the package."""
        try:
            notebook = read(self.snapshot / self.notebook.name if self.snapshot else self.source)
        except Exception as error:
            raise ChapterError(f"cannot read {self.source}: {error}") from None
        return with_install_cell(notebook, repository(self.root)) if self.root else notebook

    @cached_property
    def title(self) -> str:
        """The first heading of level one."""
        text = "\n".join(cell.source for cell in self.cells.cells if cell.cell_type == "markdown")
        match = re.search(r"^# +(.+)$", text, re.MULTILINE)
        return match[1].strip() if match else self.name

    @cached_property
    def citation(self) -> str:
        """The line below the title that says which paper the chapter is about, as its source has it; empty without one."""
        opening = next((cell.source for cell in self.cells.cells if cell.cell_type == "markdown"), "")
        quote = re.search(r"^> .*(?:\n> .*)*", opening, re.MULTILINE)
        return " ".join(line.removeprefix("> ") for line in quote[0].splitlines()) if quote else ""

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The chapter's parameters with defaults and comments, in order."""
        return read_parameters(self.cells, self.name)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by name as the parameters' types; ChapterError for what does not fit."""
        return check_values(values, self.parameters, self.name)

    def parse(self, assignments: Iterable[str]) -> dict[str, Any]:
        """``name=value`` texts as values of the parameters' types; ChapterError for what does not fit."""
        return parse_assignments(assignments, self.parameters, self.name)


def find_root() -> Path:
    """The root of the book; see the module's description for where it is looked for."""
    given = os.environ.get("MVNB_ROOT")
    if given:
        if not (Path(given) / "notebooks").is_dir():
            raise ChapterError(f"MVNB_ROOT is {given!r}, which has no folder 'notebooks'")
        return Path(given).resolve()
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "notebooks").is_dir() and any((folder / mark).is_file() for mark in ("presets.yml", "_toc.yml")):
            return folder
    raise ChapterError("no book here: neither this folder nor one above it has notebooks/ and presets.yml")


def discover(root: Path | None = None) -> list[Chapter]:
    """All chapters of the book, in order."""
    root = root or find_root()
    sources = sorted((root / "notebooks").glob("[0-9][0-9]_*.py"))
    return [Chapter(source, root) for source in sources if _STEM.fullmatch(source.stem)]


def parts(root: Path) -> dict[str, list[Chapter]]:
    """The captions of ``_toc.yml`` below which chapters stand, with these, in order."""
    import yaml

    known, found, caption = {chapter.name: chapter for chapter in discover(root)}, {}, ""
    for part in yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8")).get("parts", []):
        caption = part.get("caption", caption)
        names = [one.get("file", "").removeprefix("notebooks/") for one in part["chapters"]]
        found.setdefault(caption, []).extend(known[name] for name in names if name in known)
    return {caption: chapters for caption, chapters in found.items() if chapters}


def resolve(text: str, root: Path | None = None) -> Chapter:
    """The chapter meant by a number ("1", "01"), a slug, a file stem, or the path of a source or notebook.

    A path may lie outside the book; what a source in ``notebooks/`` and its notebook name is the same chapter.
    """
    if text.endswith((".py", ".ipynb")) or os.sep in text:
        return _from_path(Path(text), root)
    root = root or find_root()
    chapters = discover(root)
    word = text.strip().replace("-", "_")
    for chapter in chapters:
        if word in (chapter.name, chapter.slug) or (word.isdecimal() and int(word) == int(chapter.number)):
            return chapter
    if not chapters:
        raise ChapterError(f"no chapter {text!r}: there is none in {root / 'notebooks'}")
    hint = did_you_mean(word, [name for chapter in chapters for name in (chapter.slug, chapter.name)])
    raise ChapterError(f"no chapter {text!r}; there are {', '.join(chapter.name for chapter in chapters)}{hint}")


def _from_path(path: Path, root: Path | None) -> Chapter:
    if not path.is_file():
        raise ChapterError(f"no such file: {path}")
    if path.suffix not in (".py", ".ipynb"):
        raise ChapterError(f"{path} is neither a .py nor an .ipynb file")
    path = path.resolve()
    try:
        root = root or find_root()
    except ChapterError:
        root = None
    if root is None or path.parent != (root / "notebooks").resolve():
        return Chapter(path)
    source = path.with_suffix(".py")
    return Chapter(source if source.is_file() else path, root)


def presets(root: Path | None) -> dict[str, dict[str, dict[str, Any]]]:
    """All presets of the book: chapter stem, preset name, parameter values; as written, unchecked."""
    path = root / "presets.yml" if root else None
    if path is None or not path.is_file():
        return {}
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        read, tree = yaml.safe_load(text) or {}, yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ChapterError(f"presets.yml is not YAML: {error}") from None
    if twice := _repeated(tree):
        raise ChapterError(f"presets.yml has {twice!r} twice in one place")
    nested = isinstance(read, dict) and all(isinstance(named, dict) for named in read.values())
    if not nested or not all(isinstance(values or {}, dict) for named in read.values() for values in named.values()):
        raise ChapterError("presets.yml must map chapters to preset names to parameter values")
    return {chapter: {name: values or {} for name, values in named.items()} for chapter, named in read.items()}


def _repeated(node) -> str:
    """A key that a YAML mapping has twice, of which its reader would keep the last; nothing where there is none."""
    pairs = node.value if node is not None and node.id == "mapping" else []
    keys = [key.value for key, _ in pairs]
    here = next((key for key in keys if keys.count(key) > 1), "")
    return here or next(filter(None, (_repeated(value) for _, value in pairs)), "")


def preset(chapter: Chapter, name: str) -> dict[str, Any]:
    """The values of one preset, checked against the chapter's parameters."""
    named = presets(chapter.root).get(chapter.name, {})
    if name not in named:
        there = f"; it has {', '.join(named)}" if named else "; it has none"
        raise ChapterError(f"{chapter.name} has no preset {name!r}{there}{did_you_mean(name, named)}")
    return check_values(named[name], chapter.parameters, f"preset {name!r} of {chapter.name}: the chapter")
