"""Statements with which a kernel begins, for products that are moved in their last place and a stand-in for a card."""

from pathlib import Path

TESTS = Path(__file__).parent
ROUNDING, CARD = "rounding.rounding(0)", "card.card()"


def startup(marker: Path, *contexts: str) -> str:
    """Return statements that enter contexts such as :data:`CARD` to the end of the process, and then write ``marker``."""
    return f"""\
import sys
sys.path.insert(0, {str(TESTS)!r})
import contextlib, pathlib, card, rounding
sys.path.pop(0)
elsewhere = contextlib.ExitStack()  # the name keeps them from being collected, and undone
for context in [{", ".join(contexts)}]:
    elsewhere.enter_context(context)
pathlib.Path({str(marker)!r}).touch()
"""
