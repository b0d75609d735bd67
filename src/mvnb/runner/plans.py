"""Estimates of the memory of a run, computed from its parameters before it starts, with one formula per chapter.

The formula is the function ``peak_bytes(p)`` in ``mvnb/papers/SLUG/plan.py``. It returns the size of the chapter's largest
tensors in bytes; the parameters are attributes of ``p``, and all numbers are floats. The estimate should be correct to a factor
of two. Run times are measured (``results/seconds.json``), not predicted.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from mvnb.runner.catalogue import Chapter

BASE_BYTES = 0.6e9  # memory of a process that has imported PyTorch
FITS_ANYWHERE = 4e9  # bytes below which the machine's memory is not checked


def peak_bytes(chapter: Chapter, values: Mapping[str, Any]) -> float | None:
    """Return the estimated bytes of a run in which ``values`` replace the defaults; None if the chapter has no formula.

    The estimate is infinite if it exceeds the largest float.
    """
    given = {name: parameter.default for name, parameter in chapter.parameters.items()} | dict(values)
    try:
        formula = importlib.import_module(f"mvnb.papers.{chapter.slug}.plan").peak_bytes
        largest = formula(SimpleNamespace(**{name: _with_floats(value) for name, value in given.items()}))
    except (ModuleNotFoundError, AttributeError):  # an edited copy of a chapter may lack a parameter
        return None
    except OverflowError:
        return math.inf
    return BASE_BYTES + (math.inf if math.isnan(largest) else largest)


def _with_floats(value: Any) -> Any:
    """Return a parameter's value with integers replaced by floats, whose powers are fast or raise ``OverflowError``."""
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return float(min(value, 10**300)) if type(value) is int else value


def _machine_bytes(device: str) -> tuple[float, str]:
    """Return the memory in bytes of ``device`` (``"auto"``, ``"cpu"`` or a GPU), and the name of that device."""
    if device != "cpu":
        import torch  # slow to import, and not needed for a CPU

        if torch.cuda.is_available():
            return torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_name()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"


def refusal(chapter: Chapter, values: Mapping[str, Any]) -> str | None:
    """Return a message if a run needs more memory than the machine has; None if it fits or its memory is unknown."""
    needed = peak_bytes(chapter, values)
    if needed is None or needed < FITS_ANYWHERE:
        return None
    device = values.get("device", chapter.parameters["device"].default if "device" in chapter.parameters else "cpu")
    available, where = _machine_bytes(device)
    return None if needed <= available else f"the run needs {gigabytes(needed)}, but {where} has {available / 1e9:.0f} GB"


def gigabytes(size: float) -> str:
    """Format an estimate in bytes, such as ``"about 0.8 GB"``, ``"about 120 GB"`` or ``"more than 1000000000 GB"``."""
    if size > 1e18:
        return "more than 1000000000 GB"
    return f"about {size / 1e9:.{1 if size < 4e9 else 0}f} GB"
