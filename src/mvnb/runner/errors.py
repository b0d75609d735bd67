"""Errors that a command reports in one line, with exit status 2 or 1."""


class ChapterError(ValueError):
    """Invalid request: an unknown name, a value of the wrong type, a missing file."""


class CellFailed(RuntimeError):
    """Run that stopped early; for a cell, the message names the cell, the line that raised, the exception and the kept file."""
