"""Optimizers for a stack of replicas: gradient descent, gradient descent that follows the gradient flow, and Adam.

An optimizer has two methods. ``start(params)`` returns its initial state, a dictionary whose tensors have a leading replica
axis. ``step(params, grads, state)`` updates the parameters that have a gradient in place and returns the step size, a number
or a tensor ``(R,)``. It does not change other entries of ``params``, such as buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adam import adam

from mvnb.training.stacking import Params

StepSize = float | Tensor | Callable[[int], float | Tensor]
"""A number, one number per replica (shape ``(R,)``), or a schedule: a function of the step that returns either."""


def _start(step_size: StepSize, params: Params) -> dict:
    first = next(iter(params.values()))
    state = {"count": 0, "replicas": len(first)}
    if callable(step_size):  # a schedule returns step sizes for stopped replicas as well
        return {**state, "replica": torch.arange(len(first), device=first.device)}
    return {**state, "step_size": _checked(step_size, state).to(first.device)} if torch.is_tensor(step_size) else state


def _checked(step_size: Tensor, state: dict) -> Tensor:
    if step_size.shape != (state["replicas"],):
        expected = f"a number or have shape ({state['replicas']},)"
        raise ValueError(f"step_size must be {expected}, got {tuple(step_size.shape)}")
    return step_size


def _step_size(step_size: StepSize, state: dict) -> float | Tensor:
    state["count"] += 1
    if callable(step_size):
        eta = step_size(state["count"] - 1)
        return _checked(eta, state).to(state["replica"].device)[state["replica"]] if torch.is_tensor(eta) else eta
    return state.get("step_size", step_size)  # from the state, which drops the rows of stopped replicas


def _moment(state: dict, name: str, like: Tensor) -> Tensor:
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]


def _like(scale: float | Tensor, p: Tensor) -> float | Tensor:
    return scale.to(p.dtype).view(-1, *[1] * (p.dim() - 1)) if torch.is_tensor(scale) else scale


def _move(p: Tensor, direction: Tensor, scale: float | Tensor) -> None:
    """Compute ``p -= scale * direction`` in place."""
    if torch.is_tensor(scale):
        p.addcmul_(direction, _like(scale, p), value=-1)
    else:
        p.sub_(direction, alpha=scale)


@dataclass(frozen=True)
class GD:
    """Gradient descent with optional heavy-ball momentum and weight decay; it is stochastic if the batches are.

    ``step_size`` is a number, a tensor ``(R,)`` or a function of the step. As in PyTorch's SGD, the velocity is ``momentum``
    times the previous velocity plus the gradient, to which ``weight_decay`` times the parameter is added. ``rates`` maps names
    of parameters to factors by which their step size is multiplied. The logged time is the sum of the step sizes, regardless
    of momentum. Training raises ``ValueError`` if ``step_size`` has the wrong shape or ``rates`` names a parameter without a
    gradient.

    >>> from mvnb.training import fit
    >>> descent = lambda params: (params["w"].square() / 2, {"w": params["w"]})
    >>> fit(descent, {"w": torch.ones(2)}, (), steps=1, optimizer=GD(torch.tensor([0.25, 0.5]))).params["w"]
    tensor([0.7500, 0.5000])
    """

    step_size: StepSize
    momentum: float = 0.0
    weight_decay: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)

    def start(self, params: Params) -> dict:
        return _start(self.step_size, params)

    def step(self, params: Params, grads: Params, state: dict) -> float | Tensor:
        eta = _step_size(self.step_size, state)
        if state["count"] == 1 and (unknown := set(self.rates) - set(grads)):
            raise ValueError(f"rates must name trained parameters ({', '.join(grads)}), got {', '.join(sorted(unknown))}")
        for k, g in grads.items():
            if self.weight_decay:
                g = g.add(params[k], alpha=self.weight_decay)
            if self.momentum:
                g = _moment(state, f"v.{k}", g).mul_(self.momentum).add_(g)
            _move(params[k], g, eta * self.rates.get(k, 1.0))
        return eta


@dataclass(frozen=True)
class FlowGD:
    """Gradient descent along the gradient flow, with the largest step size within given limits in each replica.

    In one step, a filter (a row of a weight) shorter than ``knee`` may change by at most the fraction ``relative`` of its
    length, and a longer one by at most ``absolute``; no step size exceeds ``max_step``. Small initial weights grow
    super-linearly, so with a constant step size they would barely move in almost all steps. The flow time of a replica is the
    sum of its step sizes; the replica stops moving when its flow time reaches ``horizon``.

    If ``relax`` is given, every filter of length ``knee`` or more has its own step size: in each step, it moves by at most
    ``absolute`` and with a step size of at most ``relax``. Only the shorter filters then limit the flow time. This approximates
    the limit in which short filters change infinitely slowly and long ones adapt to them at once, for losses whose minimum
    the long filters can reach. Following the flow itself would require the short steps of that adaptation throughout.

    >>> from mvnb.training import fit
    >>> descent = lambda params: (params["w"].square().sum((1, 2)) / 2, {"w": params["w"]})
    >>> run = fit(descent, {"w": torch.ones(1, 1, 4)}, (), steps=1, optimizer=FlowGD(relative=0.5))
    >>> run.params["w"].flatten()
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    max_step: float = math.inf
    relative: float = 0.1
    absolute: float = math.inf
    knee: float = math.inf
    horizon: float = math.inf
    relax: float | None = None

    def start(self, params: Params) -> dict:
        return {}

    def at_rest(self, state: dict) -> bool:
        """Return whether the flow time of every replica has reached a finite ``horizon``."""
        return math.isfinite(self.horizon) and bool((state["time"] >= self.horizon).all())

    def step(self, params: Params, grads: Params, state: dict) -> Tensor:
        allowed, own = [], {}
        for k, g in grads.items():
            length, slope = (v.reshape(len(v), -1, v.shape[-1]).norm(dim=-1) for v in (params[k], g))
            long = length >= self.knee
            change = torch.where(long, self.absolute, self.relative * length)
            bound = torch.where(slope > 0, change / slope, math.inf)  # (R, filters)
            if self.relax is not None:
                own[k] = torch.where(long, bound.clamp(max=self.relax), math.inf)
                bound = torch.where(long, math.inf, bound)
            allowed.append(bound.amin(1))
        eta = torch.stack(allowed).amin(0).double().clamp(max=self.max_step)
        eta = torch.minimum(eta, self.horizon - state["time"])
        eta = torch.where(eta.isfinite(), eta, self.relax or 0.0)  # no filter below the knee moves, no other bound applies
        for k, g in grads.items():
            if k in own:
                clock = torch.minimum(eta[:, None], own[k]).to(g.dtype).view(*g.shape[:-1], 1)
                params[k].addcmul_(g, clock, value=-1)
            else:
                _move(params[k], g, eta)
        return eta


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction and decoupled weight decay (AdamW).

    ``step_size`` is a number, a tensor ``(R,)`` or a function of the step. ``beta1`` and ``beta2`` are the decay rates of the
    mean gradient and the mean squared gradient, and ``eps`` is added to the root of the latter. Training raises ``ValueError``
    if ``step_size`` has the wrong shape. Source: Kingma & Ba 2015; Loshchilov & Hutter 2019.

    >>> from mvnb.training import fit
    >>> descent = lambda params: (params["w"].square() / 2, {"w": params["w"]})
    >>> fit(descent, {"w": torch.ones(2)}, (), steps=1, optimizer=Adam(0.25)).params["w"]
    tensor([0.7500, 0.7500])
    """

    step_size: StepSize = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def start(self, params: Params) -> dict:
        return _start(self.step_size, params)

    def step(self, params: Params, grads: Params, state: dict) -> float | Tensor:
        eta = _step_size(self.step_size, state)
        keys = list(grads)
        moving = [params[k] for k in keys]
        slopes = [grads[k].contiguous() for k in keys]  # autograd may return them transposed, and mixed layouts are slow
        means = [_moment(state, f"m.{k}", g) for k, g in zip(keys, slopes)]
        squares = [_moment(state, f"v.{k}", g) for k, g in zip(keys, slopes)]
        move = self._move_each if torch.is_tensor(eta) else self._move
        move(moving, slopes, means, squares, state["count"], eta)
        return eta

    def _move_each(self, params: list, grads: list, means: list, squares: list, count: int, eta: Tensor) -> None:
        """Update the parameters with one step size per replica, which PyTorch's kernel does not support."""
        bias, square_bias = 1 - self.beta1**count, 1 - self.beta2**count
        for p, g, mean, square in zip(params, grads, means, squares):
            mean.lerp_(g, 1 - self.beta1)
            square.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            if self.weight_decay:
                p.mul_(1 - _like(eta, p) * self.weight_decay)
            direction = mean / (square / square_bias).sqrt_().add_(self.eps)
            _move(p, direction, eta / bias)

    def _move(self, params: list, grads: list, means: list, squares: list, count: int, eta: float) -> None:
        # PyTorch's kernel adds this step to the count.
        before = list(torch.full((len(params),), float(count - 1), device=params[0].device).unbind())
        adam(
            params,
            grads,
            means,
            squares,
            [],
            before,
            fused=True,
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=eta,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )
