"""The verdicts that the rules of claims find for what a test measured, of the real thing or of a broken variant."""

from mvnb import claims


def verdict(slug: str, id: str, how: str, *measured, **named) -> str:
    """``how`` is ``mean``, ``each`` or ``exact``, as a ledger takes ``measured`` and ``named``."""
    ledger = claims.Ledger(slug)
    getattr(ledger, how)(id, *measured, **named)
    return ledger.rows[id]["verdict"]


def verdicts(slug: str, found) -> dict[str, str]:
    """The verdict on each measurement that a function of ``measure.py`` returned, by id."""
    ledger = claims.Ledger(slug)
    ledger.judge(found)
    return {id: row["verdict"] for id, row in ledger.rows.items()}
