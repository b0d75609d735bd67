"""Chapters of the book, with their parameters and presets.

A chapter is a jupytext source ``notebooks/NN_slug.py`` with the executed notebook ``NN_slug.ipynb`` beside it. The root
of the book is ``$MVNB_ROOT`` if set, else the current folder or its nearest parent that contains ``notebooks/`` and either
``presets.yml`` or ``_toc.yml``, else the checkout that this package was installed from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from mvnb.runner.errors import ChapterError
from mvnb.runner.hosts import repository, with_install_cell
from mvnb.runner.parameters import Parameter, check_values, choices_text, parse_assignments, read_parameters

_STEM = re.compile(r"\d\d_\w+")


def read(path: Path) -> NotebookNode:
    """Read the notebook or jupytext source at ``path`` and return it in version 4 of the notebook format.

    Raises ``ChapterError`` if the file cannot be read.
    """
    import jupytext

    try:
        return nbformat.read(path, as_version=4) if path.suffix == ".ipynb" else jupytext.read(path)
    except Exception as error:
        raise ChapterError(f"cannot read {path}: {error}") from None


@dataclass(frozen=True)
class Chapter:
    """Chapter with its source and the root of its book (None for a notebook outside a book).

    ``snapshot``, if not None, is a folder with ``NAME.ipynb`` and a copy of the package. A sweep runs these copies because the
    source and the installed package may be edited during the sweep.
    """

    source: Path
    root: Path | None = None
    snapshot: Path | None = None

    @property
    def name(self) -> str:
        """Stem of the source's file name, such as ``01_midpoint_mixup``."""
        return self.source.stem

    @property
    def number(self) -> str:
        """Two leading digits of a name of the form ``NN_slug``; otherwise, an empty string."""
        return self.name[:2] if _STEM.fullmatch(self.name) else ""

    @property
    def slug(self) -> str:
        """Name without its number, such as ``midpoint_mixup``."""
        return self.name[3:] if self.number else self.name

    @property
    def notebook(self) -> Path:
        """Path of the executed notebook that is paired with the source."""
        return self.source.with_suffix(".ipynb")

    @cached_property
    def cells(self) -> NotebookNode:
        """Notebook read from the source or the snapshot; in a book, it starts with the install cell.

        Raises ``ChapterError`` if the file cannot be read.
        """
        notebook = read(self.snapshot / self.notebook.name if self.snapshot else self.source)
        return with_install_cell(notebook, repository(self.root)) if self.root else notebook

    @cached_property
    def title(self) -> str:
        """First level-one heading, or the name if there is no such heading."""
        text = "\n".join(cell.source for cell in self.cells.cells if cell.cell_type == "markdown")
        match = re.search(r"^# +(.+)$", text, re.MULTILINE)
        return match[1].strip() if match else self.name

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Parameters of the chapter by name, with their defaults and comments, in the order of the source."""
        return read_parameters(self.cells, self.name)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` converted to the parameters' types; raise ``ChapterError`` if a name or value is invalid."""
        return check_values(values, self.parameters, self.name)

    def parse(self, assignments: Iterable[str]) -> dict[str, Any]:
        """Convert ``name=value`` strings to values of the parameters' types; raise ``ChapterError`` if one is invalid."""
        return parse_assignments(assignments, self.parameters, self.name)


def find_root() -> Path:
    """Return the root of the book, as defined in this module's description; raise ``ChapterError`` if there is none."""
    if given := os.environ.get("MVNB_ROOT"):
        if not (Path(given) / "notebooks").is_dir():
            raise ChapterError(f"MVNB_ROOT must be a folder that contains 'notebooks', got {given!r}")
        return Path(given).resolve()
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[3]):
        if (folder / "notebooks").is_dir() and any((folder / mark).is_file() for mark in ("presets.yml", "_toc.yml")):
            return folder
    raise ChapterError(f"no book found: neither {here} nor a parent contains notebooks/ and presets.yml or _toc.yml")


def discover(root: Path | None = None) -> list[Chapter]:
    """Return all chapters of the book at ``root``, by default :func:`find_root`, in the order of their numbers."""
    root = root or find_root()
    sources = sorted((root / "notebooks").glob("[0-9][0-9]_*.py"))
    return [Chapter(source, root) for source in sources if _STEM.fullmatch(source.stem)]


def parts(root: Path, chapters: Iterable[Chapter]) -> dict[str, list[Chapter]]:
    """Return those of the ``chapters`` that are listed in ``_toc.yml``, in order, grouped by the caption of their part."""
    known, found, caption = {chapter.name: chapter for chapter in chapters}, {}, ""
    try:
        for part in _yaml(root / "_toc.yml")[0].get("parts", []):
            caption = part.get("caption", caption)
            names = [one.get("file", "").removeprefix("notebooks/") for one in part["chapters"]]
            found.setdefault(caption, []).extend(known[name] for name in names if name in known)
    except (AttributeError, KeyError, TypeError) as error:
        raise ChapterError(f"_toc.yml must list parts with chapters, each with its file: {error}") from None
    return {caption: some for caption, some in found.items() if some}


def resolve(text: str, root: Path | None = None) -> Chapter:
    """Return the chapter that ``text`` identifies by its number ("1", "01"), slug, file stem, or path of source or notebook.

    A path may lie outside the book. A source in ``notebooks/`` and its notebook denote the same chapter. Raises
    ``ChapterError`` if there is no such chapter or file.
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
        raise ChapterError(f"no chapter {text!r}: {root / 'notebooks'} contains no chapters")
    names, slugs = zip(*((chapter.name, chapter.slug) for chapter in chapters))
    raise ChapterError(f"no chapter {text!r}{choices_text(word, names, 'the book', slugs)}")


def _from_path(path: Path, root: Path | None) -> Chapter:
    if not path.is_file():
        raise ChapterError(f"no such file: {path}")
    if path.suffix not in (".py", ".ipynb"):
        raise ChapterError(f"expected a .py or .ipynb file, got {path}")
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
    """Return the parameter values of all presets of the book, by chapter name and preset name.

    The values are not checked against the chapters. Raises ``ChapterError`` if ``presets.yml`` is malformed.
    """
    if not root or not os.path.lexists(path := root / "presets.yml"):
        return {}
    read, tree = _yaml(path)
    for keys in _keys(tree):
        names = [key.value for key in keys]
        if duplicates := [name for name in names if names.count(name) > 1]:  # the parser keeps only the last value
            raise ChapterError(f"presets.yml has a duplicate key {duplicates[0]!r}")
        if odd := [key.value for key in keys if key.tag != "tag:yaml.org,2002:str"]:  # such as on, which YAML takes for true
            raise ChapterError(f"presets.yml must have texts as keys, got {odd[0]}; write it in quotation marks")
    nested = isinstance(read, dict) and all(isinstance(named, dict) for named in read.values())
    if not nested or not all(isinstance(values or {}, dict) for named in read.values() for values in named.values()):
        raise ChapterError("presets.yml must map each chapter to presets, and each preset to parameter values")
    return {chapter: {name: values or {} for name, values in named.items()} for chapter, named in read.items()}


def _yaml(path: Path) -> tuple[Any, Any]:
    """Return the content of a YAML file, an empty dictionary if there is none, and its tree of nodes."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        return yaml.safe_load(text) or {}, yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise ChapterError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ChapterError(f"{path.name} is not valid YAML: {error}") from None


def _keys(node) -> Iterator[list[Any]]:
    """Yield the nodes of the keys of each mapping in a tree of YAML nodes."""
    pairs = node.value if node is not None and node.id == "mapping" else []
    yield [key for key, _ in pairs]
    for _, value in pairs:
        yield from _keys(value)


def preset(chapter: Chapter, name: str) -> dict[str, Any]:
    """Return the values of a preset; raise ``ChapterError`` if it does not exist or the chapter rejects its values."""
    named = presets(chapter.root).get(chapter.name, {})
    if name not in named:
        raise ChapterError(f"{chapter.name} has no preset {name!r}{choices_text(name, named)}")
    return check_values(named[name], chapter.parameters, f"preset {name!r} of {chapter.name}: the chapter")
