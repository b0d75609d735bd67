"""Gradients outside autograd: values with a known slope, and objectives that return their own gradients."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor


def with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """Return ``value`` ``(...)`` with ``slope`` as its gradient with respect to the matrices ``x`` ``(..., n, k)``.

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
        return None, grad[..., None, None] * _FirstDerivative.apply(slope, x), None


class _FirstDerivative(torch.autograd.Function):
    """A slope whose dependence on ``x`` is unknown to autograd, so that differentiating it raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(slope, x):
        return slope.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("this function has a first derivative only; its second derivative is not implemented")


def returns_gradients(call: Callable | None = None, **shapes: str) -> Callable:
    """Decorate an objective that returns its own gradients, adding checks of its arguments.

    ``shapes`` maps names of arguments, or of entries of a dictionary of parameters, to the axes they must have:
    ``x="R n dim"``. Axes with the same name must have the same length, ``"..."`` stands for any further axes, and ``"int R n"``
    requires integers. Arguments that are None, numbers or missing are not checked; a missing parameter is an error.

    The decorated function raises ``ValueError`` for a tensor of another shape or type, and for one that requires a gradient,
    which autograd could not compute: the returned losses have no graph.

    >>> @returns_gradients(x="R n dim", y="int R n")
    ... def objective(params, x, y): ...
    >>> objective({}, torch.ones(4, 2), torch.ones(4))
    Traceback (most recent call last):
    ValueError: objective: x must have shape (R, n, dim), got (4, 2)
    """
    if call is None:
        return functools.partial(returns_gradients, **shapes)
    names = list(inspect.signature(call).parameters)
    wanted, required = tuple(shapes.items()), [name for name in shapes if name not in names]

    @functools.wraps(call)
    def checked(*args, **kwargs):
        tensors, title = {}, call.__name__
        if names[:1] == ["self"]:
            title = type(args[0]).__name__ + ("" if title == "__call__" else f".{title}")
        for name, argument in (*zip(names, args), *enumerate(args[len(names) :]), *kwargs.items()):
            for key, value in argument.items() if isinstance(argument, dict) else ((name, argument),):
                if not torch.is_tensor(value):
                    continue
                if value.requires_grad:
                    raise ValueError(
                        f"{title} computes gradients outside autograd and takes tensors without requires_grad, "
                        f"got one of shape {tuple(value.shape)} that requires a gradient; detach it first"
                    )
                tensors[key] = value
        if missing := [name for name in required if name not in tensors]:
            given = [str(name) for name in tensors if name not in names]
            raise ValueError(f"{title}: params must contain {', '.join(missing)}, got {', '.join(given) or 'none'}")
        found = tuple((tensors[k].shape, tensors[k].dtype) if k in tensors else None for k in shapes)
        if problem := _mismatch(wanted, found):
            raise ValueError(f"{title}: {problem}")
        return call(*args, **kwargs)

    return checked


@functools.lru_cache(maxsize=1000)  # called at every step with the same few shapes
def _mismatch(wanted: tuple[tuple[str, str], ...], found: tuple) -> str:
    """Return an error text for the first wrong shape or type, or an empty string."""
    lengths: dict[str, int] = {}
    for (name, spec), tensor in zip(wanted, found):
        kind, axes = ("int", spec[4:].split()) if spec.startswith("int ") else ("", spec.split())
        expected = f"({', '.join(axes)})"
        if tensor is None:
            continue
        shape, dtype = tensor
        named = axes[:-1] if axes[-1] == "..." else axes
        if len(shape) < len(named) or (named is axes and len(shape) > len(named)):
            return f"{name} must have shape {expected}, got {tuple(shape)}"
        for axis, length in zip(named, shape):
            if lengths.setdefault(axis, length) != length:
                return f"{name} must have shape {expected} with {axis} = {lengths[axis]}, got {tuple(shape)}"
        if kind and (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
            return f"{name} must hold integers (torch.int64), got {dtype}"
    return ""
