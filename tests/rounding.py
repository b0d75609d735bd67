"""Arithmetic of another machine, made up: every floating-point matrix product is moved by about a unit in its last place.

Processors, linear-algebra libraries and numbers of threads add the terms of a product in different orders, and their results
differ in the last bits. Here each element of a product (of PyTorch: also of convolutions and attention, forward and backward;
of NumPy: ``@`` and the functions of :data:`FUNCTIONS`) is multiplied by 1 + eps or 1 - eps, at random. What is zero stays zero.
Kernels that numba compiles are not reached.

Tests use :func:`rounding`, and ``elsewhere.py`` for the kernels of notebooks.
"""

import ctypes
from contextlib import contextmanager

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {
    *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "addr", "dot", "vdot", "linear"),
    *("convolution", "convolution_overrideable", "mkldnn_convolution", "convolution_backward", "_cdist_forward"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
}
FUNCTIONS = ("matmul", "dot", "vdot", "inner", "einsum", "tensordot")
_POOL = 1 << 20
_AS_NUMBER, _MATRIX_MULTIPLY = 12, 34  # places, in pointers, within CPython's PyTypeObject and PyNumberMethods


class _Noise:
    """Random factors 1 + eps and 1 - eps, taken in turn from a pool of each type."""

    def __init__(self, seed: int):
        bits = torch.randint(2, (_POOL,), generator=torch.Generator().manual_seed(seed))
        self._signs, self._pools, self._place = 2 * bits - 1, {}, 0

    def __call__(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._pools:
            self._pools[dtype] = (1 + self._signs.double() * torch.finfo(dtype).eps).to(dtype)
        if n > _POOL:
            return self._pools[dtype].repeat(-(-n // _POOL))[:n]
        if self._place + n > _POOL:
            self._place = 0
        self._place += n
        return self._pools[dtype][self._place - n : self._place]


class _TorchRounding(TorchDispatchMode):
    def __init__(self, noise: _Noise):
        super().__init__()
        self._noise = noise

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled here, and being left out of it costs much

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::").rstrip("_") in PRODUCTS:
            for part in out if isinstance(out, tuple) else (out,):
                if isinstance(part, torch.Tensor) and part.is_floating_point():
                    part.mul_(self._noise(part.numel(), part.dtype).view(part.shape).to(part.device))
        return out


def _moved(value, noise: _Noise):
    """The result of a product of NumPy, moved."""
    if not isinstance(value, np.ndarray | np.floating) or value.dtype not in (np.float32, np.float64):
        return value
    factors = noise(value.size, torch.float32 if value.dtype == np.float32 else torch.float64)
    return value * factors.numpy().reshape(np.shape(value))


def _replace_operator(noise: _Noise):
    """Let ``@`` of arrays give moved results; returns what undoes it. The operator stands in a table of C functions."""
    operator = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
    table = ctypes.cast(id(np.ndarray), ctypes.POINTER(ctypes.c_void_p))[_AS_NUMBER]
    slots = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    address = slots[_MATRIX_MULTIPLY]
    original = operator(address)
    moved = operator(lambda a, b: _moved(original(a, b), noise))
    slots[_MATRIX_MULTIPLY] = ctypes.cast(moved, ctypes.c_void_p).value

    def undo():
        slots[_MATRIX_MULTIPLY] = address
        del undo.keep

    undo.keep = moved  # or the function would be collected while C still calls it
    return undo


@contextmanager
def rounding(seed: int = 0):
    """Products of PyTorch and NumPy in here are moved by about a unit in their last place, at random from ``seed``."""
    noise, before = _Noise(seed), {name: getattr(np, name) for name in FUNCTIONS}
    undo = _replace_operator(noise)
    for name, function in before.items():
        setattr(np, name, lambda *args, _function=function, **kwargs: _moved(_function(*args, **kwargs), noise))
    try:
        with _TorchRounding(noise):
            yield
    finally:
        undo()
        for name, function in before.items():
            setattr(np, name, function)
