"""Errors that a command reports in one line, with exit status 2 or 1."""


class ChapterError(ValueError):
    """Invalid request: an unknown name, a value of the wrong type, a missing file."""


class CellFailed(RuntimeError):
    """Run that stopped early; for a cell, the message names the cell, the line that raised, the exception and the kept file."""


def error_text(error: Exception) -> str:
    """Return the message of an error of this module, or the type and message of any other error."""
    return str(error) if isinstance(error, CellFailed | ChapterError) else f"{type(error).__name__}: {error}"
