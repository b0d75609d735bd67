"""Install cell, the first code cell of every notebook, which installs the package if it is missing, as on Colab and Kaggle.

The address of the package is the value of the key ``repository`` in the table ``tool.mvnb`` of ``pyproject.toml``. The source
of a chapter does not contain the install cell; it is added when the source is read.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from mvnb.runner.errors import ChapterError

TAG = "install"
_CELL = """\
# Where the book's package is missing, as on Colab and Kaggle: install it, from
# MVNB_SOURCE or from the book's repository, which takes minutes without PyTorch.
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("mvnb") is None:
    source = os.environ.get("MVNB_SOURCE", "{source}")
    if not source:
        first = "run '%env MVNB_SOURCE=SOURCE' in a new cell above this one"
        named = "SOURCE is a wheel, a folder or an address for pip"
        raise ModuleNotFoundError(f"mvnb is not installed; {{first}} ({{named}})")
    print("installing mvnb and what it needs; without PyTorch this takes minutes")
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    named = f"mvnb[{extra}] @ {{source}}" if "://" in source else f"{{source}}[{extra}]"
    subprocess.run([*pip, named], check=True)
    importlib.invalidate_caches()"""


def repository(root: Path | None) -> str:
    """Return the address of the book's repository, or an empty string if ``pyproject.toml`` in ``root`` does not give one."""
    if not root or not (path := root / "pyproject.toml").is_file():
        return ""
    try:
        address = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("mvnb", {}).get("repository", "")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ChapterError(f"{path} is not valid TOML: {error}") from None
    if not isinstance(address, str) or not re.fullmatch(r"[^\s\"'\\{}]*", address):
        raise ChapterError(f"expected the address of a repository in tool.mvnb of {path}, got {address!r}")
    return address.rstrip("/")


def with_install_cell(notebook: NotebookNode, address: str) -> NotebookNode:
    """Return the notebook with exactly one install cell, below its title; it installs the package from the git ``address``."""
    others = [one for one in notebook.cells if TAG not in one.metadata.get("tags", [])]
    imported = any(re.search(r"^(?:from|import) transformers\b", cell.source, re.MULTILINE) for cell in others)
    text = _CELL.format(source=address and f"git+{address}", extra="llm" if imported else "data")
    cell = nbformat.v4.new_code_cell(text, metadata={"tags": [TAG, "remove-cell"]})
    place = 1 if others and others[0].cell_type == "markdown" else 0
    return nbformat.from_dict({**notebook, "cells": [*others[:place], cell, *others[place:]]})
