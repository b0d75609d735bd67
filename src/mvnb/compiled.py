"""The decorator of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable

import numba

FAST = {"contract", "reassoc", "nsz", "arcp"}
"""Liberties of floating-point arithmetic that leave infinities, NaNs and signs alone; for ``fastmath``."""


def compiled(**options) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function with numba, without the interpreter lock and with NumPy's division.

    The machine code is kept beside the source or in the user's cache directory. Where neither can be written to (a read-only
    container without a home directory), every process compiles anew. ``options`` are those of ``numba.njit``.
    """
    options = {"nogil": True, "error_model": "numpy", **options}

    def decorate(function: Callable) -> Callable:
        try:
            return numba.njit(function, cache=True, **options)
        except RuntimeError:  # numba found no folder for its cache
            return numba.njit(function, **options)

    return decorate
