"""What a run will cost, before it is started: seconds and memory from its parameters, by one formula a chapter.

A chapter's formula is ``parts(p)`` in ``mvnb/papers/SLUG/plan.py``, or in a room that is one file: its costly parts, with the
parameters as attributes of ``p``. The seconds were fitted to runs on one processor core, and are meant to be right to a
factor of two.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mvnb.costs import Part
from mvnb.runner.catalogue import Chapter

BASE_SECONDS, BASE_BYTES = 9.0, 0.6e9
"""What every run takes: the interpreter, the imports, the kernel, figures; memory of a process that has imported PyTorch."""
FITS_ANYWHERE = 4e9  # bytes below which nobody asks what the machine has


@dataclass(frozen=True)
class Plan:
    """The parts of a run; ``seconds`` of all of them, and ``bytes`` of the largest, with what every run takes."""

    parts: list[Part]

    @property
    def seconds(self) -> float:
        return BASE_SECONDS + sum(part.seconds for part in self.parts)

    @property
    def bytes(self) -> float:
        return BASE_BYTES + max((part.bytes for part in self.parts), default=0.0)


def plan(chapter: Chapter, values: Mapping[str, Any]) -> Plan | None:
    """The plan of a chapter with these parameters in place of its defaults; None for a chapter without a formula."""
    room = f"mvnb.papers.{chapter.slug}"
    try:
        name = f"{room}.plan" if importlib.util.find_spec(f"{room}.plan") else room
    except ModuleNotFoundError:
        return None
    parts = getattr(importlib.import_module(name), "parts", None)
    defaults = {name: parameter.default for name, parameter in chapter.parameters.items()}
    return None if parts is None else Plan(parts(SimpleNamespace(**defaults | dict(values))))


def machine_bytes(device: str) -> tuple[float, str]:
    """Memory of what a run on ``device`` (as in the chapters: ``"auto"``, ``"cpu"`` or a card) has, and what that is."""
    if device != "cpu":
        import torch  # here: seconds that a run on a processor need not wait

        if torch.cuda.is_available():
            return torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_name()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"


def refusal(chapter: Chapter, values: Mapping[str, Any]) -> str | None:
    """One line on why a run cannot fit the machine; None where it can, or where nobody knows."""
    found = plan(chapter, values)
    if found is None or found.bytes < FITS_ANYWHERE:
        return None
    device = values.get("device", chapter.parameters["device"].default if "device" in chapter.parameters else "cpu")
    there, where = machine_bytes(device)
    if found.bytes <= there:
        return None
    largest = max(found.parts, key=lambda part: part.bytes)
    return f"the run would need about {found.bytes / 1e9:.0f} GB, for {largest.name}, and {where} has {there / 1e9:.0f} GB"


def duration(seconds: float) -> str:
    """Seconds as one reads them: ``"40 s"``, ``"12 min"``, ``"3.0 h"`` or ``"8 days"``."""
    for unit, size, form in (("s", 1, ".0f"), ("min", 60, ".0f"), ("h", 3600, ".1f")):
        if seconds < {"s": 100, "min": 6000, "h": 172_800}[unit]:
            return f"{seconds / size:{form}} {unit}"
    return f"{seconds / 86_400:.0f} days"
