"""What a process has used once stays its own: for training, whose steps ask for the same tensors again and again."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER = 1 << 30  # bytes


def keep_freed() -> bool:
    """Let the C library keep memory that is freed, for this process, and say whether it does.

    By default glibc gives the memory of a large tensor back to the system at once, and the next tensor of that size comes page
    by page: up to a third of a chapter's time, and two thirds in workers of Dask, whose environment has it give back all. Other
    C libraries are left as they are. Blocks of 1 GB and more still go back.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):
        return False
    # An old glibc refuses the first; the second alone would make it worse.
    return library.mallopt(_MMAP_THRESHOLD, _NEVER) == 1 and library.mallopt(_TRIM_THRESHOLD, _NEVER) == 1
