"""Compilation of numerical functions with Numba."""

from __future__ import annotations

from collections.abc import Callable

import numba

FAST = {"contract", "reassoc", "nsz", "arcp"}
"""Values for Numba's option ``fastmath`` that permit reordering of operations but still respect infinities and NaNs."""


def compiled(**options) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function with ``numba.njit``.

    The compiled function releases the GIL and handles division by zero as NumPy does. The machine code is cached beside the
    source file or in the user's cache directory. If neither is writable, as in a read-only container without a home directory,
    every process compiles the function again. ``options`` are additional options of ``numba.njit``.
    """
    options = {"nogil": True, "error_model": "numpy", **options}

    def decorate(function: Callable) -> Callable:
        try:
            return numba.njit(function, cache=True, **options)
        except RuntimeError:  # numba found no writable folder for its cache
            return numba.njit(function, **options)

    return decorate
