"""The functions of a chapter, for tests that judge what stands on the page and not a copy of it."""

from __future__ import annotations

import ast
from pathlib import Path

import jupytext
import torch

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def functions_of(stem: str) -> dict:
    """Imports, parameters and functions, also partial ones, of ``notebooks/STEM.py`` as a namespace, on the CPU."""
    path, space = NOTEBOOKS / f"{stem}.py", {}
    for cell in jupytext.read(path).cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        everything = "parameters" in cell.metadata.get("tags", [])
        kinds = ast.stmt if everything else (ast.Import, ast.ImportFrom, ast.FunctionDef)
        tree.body = [node for node in tree.body if isinstance(node, kinds) or _partial(node)]
        exec(compile(tree, str(path), "exec"), space)
    space["device"] = torch.device("cpu")
    return space


def _partial(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("functools.partial(")
