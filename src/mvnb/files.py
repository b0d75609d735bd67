"""Atomic writing of files, and JSON records with a checksum that reveals manual changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it replaces ``path``, on an error it is removed."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with replaced_whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it cannot be read or is not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class RecordError(ValueError):
    """An invalid or modified record, or an invalid declaration; the message is one line."""


def write_record(path: Path, record: dict[str, Any], indent: int | None = 1) -> None:
    """Write a dictionary of measurements as JSON, with a checksum of all its values."""
    values = json.loads(json.dumps(record))
    write(path, json.dumps(values | {"checksum": _checksum(values)}, indent=indent, ensure_ascii=False) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """Return a record written by :func:`write_record`, without its checksum.

    Raises
    ------
    OSError
        If the file cannot be read.
    RecordError
        If the file is not a JSON object or its values do not match the checksum.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        checksum = record.pop("checksum", None)
    except (ValueError, AttributeError) as error:
        raise RecordError(f"{path} is not a record: {error}") from None
    if checksum != (expected := _checksum(record)):
        raise RecordError(f"{path} was changed after it was made: expected the checksum {expected}, got {checksum}")
    return record


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
