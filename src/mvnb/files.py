"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Where to write a file, whose name then holds all of it or, after an error, what it held before, never a part."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replaced_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
