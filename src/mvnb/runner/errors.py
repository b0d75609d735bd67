"""What a command says in one line, with exit status 2 or 1."""


class ChapterError(ValueError):
    """A request that cannot be met as it stands: an unknown name, a value of the wrong type, a missing file."""


class CellFailed(RuntimeError):
    """A run that stopped on its way; of a cell, the message names it, the line that raised, the exception and the file kept."""
