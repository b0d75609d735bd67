"""Gradients that are not automatic: values with a known slope, and objectives that return their own gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """Return ``value`` ``(...)`` as a function of matrices ``x`` ``(..., n, k)`` that autograd differentiates to ``slope``.

    Differentiating a second time raises ``NotImplementedError``.
    """
    return _WithSlope.apply(value, x, slope)


class _WithSlope(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value, x, slope):
        return value.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, grad):
        x, slope = ctx.saved_tensors
        return None, grad[..., None, None] * _Once.apply(slope, x), None


class _Once(torch.autograd.Function):
    """A slope that depends on ``x`` in a way that autograd is not told."""

    generate_vmap_rule = True

    @staticmethod
    def forward(slope, x):
        return slope.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("this function has a first derivative only, not a second")


def returns_gradients(call: Callable) -> Callable:
    """Decorate an objective that returns its own gradients, so that it refuses tensors that require one.

    Its losses have no graph: ``losses.sum().backward()`` would train nothing, or only what else is in the sum. Raises
    ``ValueError`` for a tensor with ``requires_grad`` among the arguments or in a dictionary of parameters.
    """

    @functools.wraps(call)
    def checked(*args, **kwargs):
        for argument in (*args, *kwargs.values()):
            for value in argument.values() if isinstance(argument, dict) else (argument,):
                if torch.is_tensor(value) and value.requires_grad:
                    name = type(args[0]).__name__ if call.__name__ == "__call__" else call.__name__
                    raise ValueError(
                        f"{name} computes gradients outside autograd and takes tensors without requires_grad, "
                        f"got one of shape {tuple(value.shape)} that requires a gradient; pass its detach()"
                    )
        return call(*args, **kwargs)

    return checked
