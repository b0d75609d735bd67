"""What a part of a run takes, as the formulas of the papers say it (``papers/SLUG/plan.py``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One costly part of a chapter: its ``seconds`` on one core, and the ``bytes`` of its tensors at their peak."""

    name: str
    seconds: float
    bytes: float = 0.0
