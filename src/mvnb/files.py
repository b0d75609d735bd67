"""Atomic writing of files, and JSON records with a checksum by which later modifications are detected."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to.

    When the context ends, the temporary file replaces ``path``, whose permissions it takes; if an exception is raised, it is
    removed instead. If ``path`` is a symbolic link, the file that it names is replaced.
    """
    path = path.resolve()
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}-{threading.get_ident()}")
    try:
        yield partial
        if path.exists():
            shutil.copymode(path, partial)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write(path: Path, text: str) -> None:
    """Write ``text`` to the file ``path`` atomically, in UTF-8 and with Unix line endings."""
    with replaced_whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def read_json(path: Path) -> Any:
    """Return the content of the JSON file ``path``, or None if it cannot be read or is not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class RecordError(ValueError):
    """Error for an invalid or modified record, or for an invalid declaration; its message is a single line."""


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON-compatible dictionary to the file ``path``, with a checksum of all its values."""
    values = json.loads(json.dumps(record))
    write(path, json.dumps(values | {"checksum": _checksum(values)}, indent=1, ensure_ascii=False) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """Return a record written by :func:`write_record`, without the checksum.

    Raises
    ------
    OSError
        If the file cannot be read.
    RecordError
        If the file does not contain a JSON object or the values do not match the checksum.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path} is not a record: expected a JSON object, got invalid JSON: {error}") from None
    if not isinstance(record, dict):
        raise RecordError(f"{path} is not a record: expected a JSON object, got {type(record).__name__}")
    checksum = record.pop("checksum", None)
    if checksum != (expected := _checksum(record)):
        raise RecordError(f"{path} was changed after it was made: expected the checksum {expected}, got {checksum}")
    return record


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
