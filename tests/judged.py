"""The verdict that a claim's own rule finds for what a test measured, of the real thing or of a broken variant."""

from mvnb import claims


def verdict(slug: str, id: str, how: str, *measured, **named) -> str:
    """``how`` is ``mean``, ``each`` or ``exact``, as a ledger takes ``measured`` and ``named``."""
    ledger = claims.Ledger(slug)
    getattr(ledger, how)(id, *measured, **named)
    return ledger.rows[id]["verdict"]
