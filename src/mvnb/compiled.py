"""A decorator for compiled kernels."""

from __future__ import annotations

from collections.abc import Callable

import numba

FAST = {"contract", "reassoc", "nsz", "arcp"}
"""Floating-point relaxations for ``fastmath`` that keep infinities and NaNs valid."""


def compiled(**options) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function with numba; it releases the GIL and divides as NumPy does.

    The machine code is cached beside the source or in the user's cache directory. If neither is writable (a read-only
    container without a home directory), every process compiles again. ``options`` are those of ``numba.njit``.
    """
    options = {"nogil": True, "error_model": "numpy", **options}

    def decorate(function: Callable) -> Callable:
        try:
            return numba.njit(function, cache=True, **options)
        except RuntimeError:  # numba found no writable folder for its cache
            return numba.njit(function, **options)

    return decorate
