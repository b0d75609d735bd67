"""Gradients computed without autograd: values with a known gradient, objectives that return their own, and parts of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mvnb._checks import labels_below

Params = dict[str, Tensor]


def with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """Return ``value`` with ``slope`` as its gradient with respect to ``x``.

    ``value`` has shape ``(...)``; the matrices ``x`` and their gradients ``slope`` have shape ``(..., n, k)``. Differentiating
    a second time raises ``NotImplementedError``.
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
    """Gradient with respect to ``x`` that raises ``NotImplementedError`` when it is itself differentiated."""

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


def with_gradients(loss: Callable[..., Tensor], names: Iterable[str] | None = None) -> Callable[..., tuple[Tensor, Params]]:
    """Return the objective, for :func:`mvnb.training.fit`, of a ``loss(params, *batch)`` that returns one number per replica.

    The gradients are those of autograd, in the parameters ``names``, by default in all. Replicas must be independent, so that
    the gradient of the sum of their losses is the stack of their gradients.

    >>> objective = with_gradients(lambda params: params["w"].square().sum(1))
    >>> objective({"w": torch.ones(1, 2)})
    (tensor([2.]), {'w': tensor([[2., 2.]])})
    """

    def objective(params: Params, *batch) -> tuple[Tensor, Params]:
        leaves = {name: params[name].detach().requires_grad_() for name in (params if names is None else names)}
        losses = loss(params | leaves, *batch)
        return losses.detach(), dict(zip(leaves, torch.autograd.grad(losses.sum(), list(leaves.values()))))

    return objective


def returns_gradients(call: Callable | None = None, **shapes: str) -> Callable:
    """Decorate an objective that returns its own gradients, so that its arguments are checked.

    ``shapes`` gives the axes of an argument of the function ``call``, or of an entry of its dictionary of parameters, as in
    ``x="R n dim"``. Axes with the same name must have the same length, ``"..."`` stands for any number of further axes, and
    ``"int R n"`` requires integers. ``"sign R n"`` requires the values -1 and 1, checked on a CPU for the first batch of each
    shape. Arguments that are omitted, None or numbers are not checked.

    The decorated function raises ``ValueError`` if a tensor has the wrong shape or type, if a parameter in ``shapes`` is
    missing, or if a tensor requires a gradient, since autograd cannot differentiate the returned losses.

    >>> @returns_gradients(x="R n dim", y="int R n")
    ... def objective(params, x, y): ...
    >>> objective({}, torch.ones(4, 2), torch.ones(4))
    Traceback (most recent call last):
    ValueError: objective: x must have shape (R, n, dim), got (4, 2)
    """
    if call is None:
        return functools.partial(returns_gradients, **shapes)
    names = list(inspect.signature(call).parameters)
    required = [name for name in shapes if name not in names]
    accepted: set[tuple] = set()  # shapes and types seen before, since a training loop passes the same ones at every step

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
        if found not in accepted:
            if problem := _mismatch(shapes, tensors):
                raise ValueError(f"{title}: {problem}")
            accepted.add(found)
        return call(*args, **kwargs)

    return checked


def _mismatch(shapes: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """Return the error message for the first tensor of the wrong shape or type; empty if all are correct."""
    lengths: dict[str, int] = {}
    for name, spec in shapes.items():
        kind, axes = (spec.split()[0], spec.split()[1:]) if spec.startswith(("int ", "sign ")) else ("", spec.split())
        expected = f"({', '.join(axes)})"
        if name not in tensors:
            continue
        value, named = tensors[name], axes[:-1] if axes[-1] == "..." else axes
        if value.dim() < len(named) or (named is axes and value.dim() > len(named)):
            return f"{name} must have shape {expected}, got {tuple(value.shape)}"
        for axis, length in zip(named, value.shape):
            if lengths.setdefault(axis, length) != length:
                return f"{name} must have shape {expected} with {axis} = {lengths[axis]}, got {tuple(value.shape)}"
        if kind == "int" and (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool):
            return f"{name} must hold integers (torch.int64), got {value.dtype}"
        if kind == "sign" and value.device.type == "cpu" and not (value.abs() == 1).all():
            return f"{name} must hold labels -1 and 1, got {value[value.abs() != 1][0].item():g}"
    return ""


def nuclear_norm_and_slope(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nuclear norms ``(...)`` and their gradients ``(..., n, k)``; see :func:`mvnb.losses.nuclear_norm`."""
    scale, limits = _scale(matrix), torch.finfo(matrix.dtype)
    wide = matrix.shape[-2] < matrix.shape[-1]
    tall = matrix.mT * scale if wide else matrix * scale
    basis = torch.linalg.eigh(tall.mT @ tall)[1]
    moved = tall @ basis  # U times the singular values: their norms are exact where roots of eigenvalues are not
    values = moved.norm(dim=-2)
    floor = limits.eps**0.5 * values.amax(-1, keepdim=True) + limits.tiny
    slope = (moved / values.maximum(floor)[..., None, :]) @ basis.mT
    return values.sum(-1) / scale[..., 0, 0], slope.mT if wide else slope


def _scale(matrix: Tensor) -> Tensor:
    """Return factors ``(..., 1, 1)`` for matrices whose squares would under- or overflow; those of other matrices are 1."""
    top, limits = torch.linalg.vector_norm(matrix.detach(), torch.inf, (-2, -1), keepdim=True), torch.finfo(matrix.dtype)
    return top.clamp(limits.tiny**0.25, limits.max**0.25) / top.clamp(limits.tiny, limits.max)


def weight_gradient(slope: Tensor, x: Tensor) -> Tensor:
    """Return the gradient ``slope^T x`` ``(R, out, in)`` of a layer's weights, given the gradient in its outputs.

    ``slope`` ``(R, n, out)`` is the gradient in the outputs and ``x`` ``(R, n, in)`` holds the inputs. The product is computed
    with the longer axis last, because the other order takes up to 50% longer.
    """
    return torch.bmm(slope.mT, x) if x.shape[-1] >= slope.shape[-1] else torch.bmm(x.mT, slope).mT


def label_cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy ``(R,)`` for labels ``y`` ``(R, n)`` and its gradient in the logits ``(R, n, classes)``."""
    log_prob = logits.log_softmax(-1)
    own = y[..., None]
    with labels_below(logits.shape[-1]):
        loss = -log_prob.gather(-1, own).mean((1, 2))
    push = log_prob.exp_()  # all in place: with many classes, allocation would take a third of the time
    return loss, push.scatter_add_(-1, own, -torch.ones_like(push[..., :1])).div_(y.shape[-1])
