"""What a process has used once stays its own: for training, whose steps ask for the same tensors again and again."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed() -> bool:
    """Let the C library keep memory that this process's main thread frees, and say whether it does.

    By default glibc gives the memory of a large tensor back to the system at once, and the next tensor of that size comes page
    by page: up to a fifth of a chapter's time, and two thirds in workers of Dask, whose environment has it give all back.
    Blocks of 1 GB and more still go back. Other C libraries are left as they are, and so are processes whose memory is
    limited, in which gaps between what is kept would count.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt") or _limited():
        return False
    for largest in (1 << 30, 1 << 25):  # a glibc before 2.35 takes 32 MB at most; without any, the next would make it worse
        if library.mallopt(_MMAP_THRESHOLD, largest) == 1:
            return library.mallopt(_TRIM_THRESHOLD, -1) == 1  # never
    return False


def _limited() -> bool:
    import resource  # not on every platform

    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
