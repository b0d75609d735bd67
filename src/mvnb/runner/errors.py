"""Exceptions that ``mvnb`` reports in one line, and their exit status: 2 for ``ChapterError``, 1 for ``CellFailed``."""


class ChapterError(ValueError):
    """Exception for an invalid request, such as an unknown name, a value of the wrong type or a missing file."""


class CellFailed(RuntimeError):
    """Exception for a run that stopped early.

    If a cell raised, the message gives the cell, the line, the exception and the path of the partial notebook.
    """


def error_text(error: Exception) -> str:
    """Return the message of an error of this module, or the type and message of any other error."""
    return str(error) if isinstance(error, CellFailed | ChapterError) else f"{type(error).__name__}: {error}"
