"""Files that are written whole or not at all, and records that notice a change by hand."""

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
        partial.write_text(text, encoding="utf-8", newline="\n")


def read_json(path: Path) -> Any:
    """Return what is in a JSON file; None where there is none, or none that is whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class RecordError(ValueError):
    """A record that is not what a program wrote, or is not declared as it should be; one line."""


def write_record(path: Path, record: dict[str, Any], indent: int | None = 1) -> None:
    """Write a dictionary of what was measured as JSON, with a checksum of all its values."""
    values = json.loads(json.dumps(record))
    write(path, json.dumps(values | {"checksum": _checksum(values)}, indent=indent, ensure_ascii=False) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """Return what :func:`write_record` wrote.

    Raises
    ------
    OSError
        When there is no such file.
    RecordError
        When it is not JSON, or a value is not the one that was written.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        checksum = record.pop("checksum", None)
    except (ValueError, AttributeError) as error:
        raise RecordError(f"{path} is not a record: {error}") from None
    if checksum != (expected := _checksum(record)):
        raise RecordError(
            f"{path} was changed after it was made: it states the checksum {checksum}, its values have {expected}"
        )
    return record


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
