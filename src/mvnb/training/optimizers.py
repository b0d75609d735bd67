"""Steps of a stack of replicas: gradient descent, gradient descent along the flow, Adam.

An optimizer has ``start(params)``, its state (a dictionary; tensors in it have a leading replica axis), and
``step(params, grads, state)``, which moves the parameters that have a gradient, in place, and returns how much time has
passed (a number or ``(R,)``). Everything else in ``params`` (buffers) is left alone.
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
"""A number, one number a replica (shape ``(R,)``), or a schedule: a function of the step."""


def _start(step_size: StepSize, params: Params) -> dict:
    first = next(iter(params.values()))
    state = {"count": 0, "replicas": len(first)}
    if callable(step_size):  # a schedule does not know which replicas have stopped
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
    return state.get("step_size", step_size)  # the state's, because it loses the rows of replicas that have stopped


def _moment(state: dict, name: str, like: Tensor) -> Tensor:
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]


def _like(scale: float | Tensor, p: Tensor) -> float | Tensor:
    return scale.to(p.dtype).view(-1, *[1] * (p.dim() - 1)) if torch.is_tensor(scale) else scale


def _move(p: Tensor, direction: Tensor, scale: float | Tensor) -> None:
    """``p -= scale * direction``, in place."""
    if torch.is_tensor(scale):
        p.addcmul_(direction, _like(scale, p), value=-1)
    else:
        p.sub_(direction, alpha=scale)


@dataclass(frozen=True)
class GD:
    """Gradient descent, stochastic when the batches are; with heavy-ball momentum and an L2 penalty on request.

    The velocity is ``momentum`` times itself plus the gradient, as in PyTorch's SGD. ``rates`` multiplies the step of the
    parameters it names. Time is the sum of the steps, without momentum's boost.
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
            raise ValueError(f"rates names parameters that are not trained: {', '.join(sorted(unknown))}")
        for k, g in grads.items():
            if self.weight_decay:
                g = g.add(params[k], alpha=self.weight_decay)
            if self.momentum:
                g = _moment(state, f"v.{k}", g).mul_(self.momentum).add_(g)
            _move(params[k], g, eta * self.rates.get(k, 1.0))
        return eta


@dataclass(frozen=True)
class FlowGD:
    r"""Gradient descent along the gradient flow, with the largest step that keeps to it, chosen per replica.

    A filter (row of a weight) shorter than ``knee`` may change by the fraction ``relative`` of its length in a step, a longer
    one by ``absolute``; no step exceeds ``max_step``. Small initial weights grow super-linearly, so a constant step spends
    almost all its steps where nothing moves; this one spends them where something does. The flow time, the sum of the steps,
    is the natural time axis; a replica whose flow time has reached ``horizon`` stands still.

    ``relax`` gives every filter from ``knee`` on a clock of its own: it moves by at most ``absolute``, and for at most
    ``relax`` of time, while time itself is set by the filters below the knee. That is the limit in which small filters take
    forever and large ones settle at once where the small ones leave them, for losses whose minimum large filters do reach.
    Steps of the flow itself would have to be as short as the settling is, however long the small ones take.
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
        """Whether every replica stands still."""
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
        eta = torch.where(eta.isfinite(), eta, self.relax or 0.0)  # nothing below the knee moves, and nothing bounds the step
        for k, g in grads.items():
            if k in own:
                clock = torch.minimum(eta[:, None], own[k]).to(g.dtype).view(*g.shape[:-1], 1)
                params[k].addcmul_(g, clock, value=-1)
            else:
                _move(params[k], g, eta)
        return eta


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma & Ba 2015); ``weight_decay`` is decoupled (AdamW, Loshchilov & Hutter 2019)."""

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
        slopes = [grads[k].contiguous() for k in keys]  # automatic gradients come transposed, and mixed layouts are slow
        means = [_moment(state, f"m.{k}", g) for k, g in zip(keys, slopes)]
        squares = [_moment(state, f"v.{k}", g) for k, g in zip(keys, slopes)]
        move = self._move_each if torch.is_tensor(eta) else self._move
        move(moving, slopes, means, squares, state["count"], eta)
        return eta

    def _move_each(self, params: list, grads: list, means: list, squares: list, count: int, eta: Tensor) -> None:
        """A step size for each replica, which PyTorch's kernel does not take."""
        bias, square_bias = 1 - self.beta1**count, 1 - self.beta2**count
        for p, g, mean, square in zip(params, grads, means, squares):
            mean.lerp_(g, 1 - self.beta1)
            square.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            if self.weight_decay:
                p.mul_(1 - _like(eta, p) * self.weight_decay)
            direction = mean / (square / square_bias).sqrt_().add_(self.eps)
            _move(p, direction, eta / bias)

    def _move(self, params: list, grads: list, means: list, squares: list, count: int, eta: float) -> None:
        # PyTorch counts this step itself
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
