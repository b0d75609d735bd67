"""What a command says in one line, with exit status 2 or 1."""

from importlib.util import find_spec


class ChapterError(ValueError):
    """A request that cannot be met as it stands: an unknown name, a value of the wrong type, a missing file."""


class CellFailed(RuntimeError):
    """A chapter stopped at a cell; the message names the cell, the line that raised, the exception and the file kept."""


def need(package: str, extra: str) -> None:
    """``ChapterError`` that says how to get ``package``, one of an extra, where it is not installed."""
    if find_spec(package) is None:
        raise ChapterError(f"{package} is not installed: pip install 'mvnb[{extra}]'")
