"""Optimizers for a stack of replicas: SGD, gradient descent that follows the gradient flow, Adam and AdamW.

An optimizer has two methods. ``start(params)`` returns its initial state, a dictionary whose tensors have a leading replica
axis. ``step(params, grads, state)`` updates the parameters that have a gradient in place and returns the step size, a number
or a tensor ``(R,)``. It does not change other entries of ``params``, such as buffers.

SGD, Adam and AdamW take the steps of the optimizers of the same names in :mod:`torch.optim` and check their arguments alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial

import torch
from torch import Tensor
from torch.optim.adam import adam

from mvnb._checks import require_within
from mvnb._renamed import old_arguments
from mvnb.training.stacking import Params

LearningRate = float | Tensor | Callable[[int], float | Tensor]
"""A number, one number per replica (shape ``(R,)``), or a schedule: a function of the step that returns either."""


def _require_ranges(optimizer) -> None:
    """Raise ``ValueError`` if a number is out of range, and ``TypeError`` if ``lr`` is not of the expected kind."""
    for name in (one.name for one in fields(optimizer)):
        value = getattr(optimizer, name)
        if name == "lr" and not (isinstance(value, int | float | Tensor) or callable(value)):
            wanted = "a number, a tensor (R,) or a function of the step"
            raise TypeError(f"lr must be {wanted}, got {type(value).__name__}; the parameters are an argument of fit")
        if name == "betas":
            if not isinstance(value, tuple | list) or len(value) != 2 or not all(0 <= beta < 1 for beta in value):
                raise ValueError(f"betas must be two numbers of at least 0 and below 1, got {value}")
        elif isinstance(value, int | float) and not value >= 0:
            raise ValueError(f"{name} must be non-negative, got {value}")
        elif torch.is_tensor(value) and not (value >= 0).all():
            raise ValueError(f"{name} must be non-negative, got a minimum of {value.min().item()}")


def _start(lr: LearningRate, params: Params) -> dict:
    first = next(iter(params.values()))
    state = {"count": 0, "replicas": len(first)}
    if callable(lr):  # a schedule returns step sizes for stopped replicas as well
        return {**state, "replica": torch.arange(len(first), device=first.device)}
    return {**state, "lr": _checked(lr, state).to(first.device)} if torch.is_tensor(lr) else state


def _checked(lr: float | Tensor, state: dict) -> float | Tensor:
    if torch.is_tensor(lr) and lr.shape != (state["replicas"],):
        raise ValueError(f"lr must be a number or have shape ({state['replicas']},), got {tuple(lr.shape)}")
    require_within("lr", lr, 0, math.inf)
    return lr


def _step_size(lr: LearningRate, state: dict) -> float | Tensor:
    state["count"] += 1
    if callable(lr):
        eta = _checked(lr(state["count"] - 1), state)
        return eta.to(state["replica"].device)[state["replica"]] if torch.is_tensor(eta) else eta
    return state.get("lr", lr)  # from the state, which drops the rows of stopped replicas


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


@old_arguments(step_size="lr")
@dataclass(frozen=True)
class SGD:
    """Gradient descent with optional momentum and weight decay, as :class:`torch.optim.SGD`; stochastic if the batches are.

    The logged time is the sum of the step sizes, regardless of momentum.

    Parameters
    ----------
    lr
        Step size: a number, a tensor ``(R,)`` or a function of the step.
    momentum
        Factor of the previous velocity, to which the gradient is added.
    weight_decay
        Factor of the parameters that are added to the gradient.
    rates
        Factors by which the step sizes of the named parameters are multiplied.

    Raises
    ------
    ValueError
        If a number is negative; in training, if ``lr`` has the wrong shape, a schedule returns a negative number or ``rates``
        names a parameter without a gradient. What a schedule returns on a GPU is not checked.

    Examples
    --------
    >>> from mvnb.training import fit
    >>> descent = lambda params: (params["w"].square() / 2, {"w": params["w"]})
    >>> fit(descent, {"w": torch.ones(2)}, (), steps=1, optimizer=SGD(torch.tensor([0.25, 0.5]))).params["w"]
    tensor([0.7500, 0.5000])
    >>> fit(descent, {"w": torch.ones(2)}, (), steps=2, optimizer=SGD(lambda step: 0.5 / (1 + step))).params["w"]
    tensor([0.3750, 0.3750])
    """

    lr: LearningRate = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)

    __post_init__ = _require_ranges

    def start(self, params: Params) -> dict:
        return _start(self.lr, params)

    def step(self, params: Params, grads: Params, state: dict) -> float | Tensor:
        eta = _step_size(self.lr, state)
        if state["count"] == 1 and (unknown := set(self.rates) - set(grads)):
            raise ValueError(f"rates must name trained parameters ({', '.join(grads)}), got {', '.join(sorted(unknown))}")
        for k, g in grads.items():
            if self.weight_decay:
                g = g.add(params[k], alpha=self.weight_decay)
            if self.momentum:
                g = _moment(state, f"v.{k}", g).mul_(self.momentum).add_(g)
            _move(params[k], g, eta * self.rates.get(k, 1.0))
        return eta

    def descend(self, objective: Callable, params: Params, batch: tuple, state: dict, steps: int) -> Tensor | None:
        """Take ``steps`` steps on one batch in a single call of the objective's ``descend``, and return the losses before them.

        Return None if the objective has no such method or does not support the arguments, or if ``lr`` varies over the steps.
        """
        inner, more = (objective.func, objective.keywords) if isinstance(objective, partial) else (objective, {})
        if callable(self.lr) or self.weight_decay or self.rates or len(params) > 1 or "descend" not in vars(type(inner)):
            return None  # a subclass may have another gradient
        velocity = {k: _moment(state, f"v.{k}", p) if self.momentum else p for k, p in params.items()}
        lr = torch.as_tensor(state.get("lr", self.lr), dtype=torch.float64).expand_as(state["time"]).contiguous()
        how = {"steps": steps, "lr": lr.numpy(), "momentum": self.momentum, "time": state["time"].numpy()}
        state["count"] += steps
        return inner.descend(params, *batch, velocity=velocity, **how, **more)


@dataclass(frozen=True)
class FlowGD:
    """Gradient descent along the gradient flow, with the largest step size within given limits in each replica.

    Small initial weights grow super-linearly, so with a constant step size they would barely move in almost all steps. The flow
    time of a replica is the sum of its step sizes. A filter is a row of a weight.

    Parameters
    ----------
    max_step
        Largest step size.
    relative
        Largest change of a filter shorter than ``knee`` in one step, as a fraction of its length.
    absolute
        Largest change of a longer filter in one step.
    knee
        Length from which a filter is long.
    horizon
        Flow time at which a replica stops moving.
    relax
        If given, every long filter has its own step size, at most ``relax``, and only the shorter filters limit the flow time.
        This approximates the limit in which short filters change infinitely slowly and long ones adapt to them at once, for
        losses whose minimum the long filters can reach. Following the flow itself would require the short steps of that
        adaptation throughout.

    Raises
    ------
    ValueError
        If a number is negative.

    Examples
    --------
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

    __post_init__ = _require_ranges

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


@old_arguments(step_size="lr", beta1="betas", beta2="betas")
@dataclass(frozen=True)
class Adam:
    """Adam, as :class:`torch.optim.Adam`. Source: Kingma & Ba 2015.

    Parameters
    ----------
    lr
        Step size: a number, a tensor ``(R,)`` or a function of the step.
    betas
        Decay rates of the mean gradient and of the mean squared gradient.
    eps
        Number added to the root of the mean squared gradient.
    weight_decay
        Factor of the parameters that are added to the gradient; for :class:`AdamW`, times ``lr`` the fraction by which the
        parameters shrink in each step.

    Raises
    ------
    ValueError
        If a number is negative or one of ``betas`` is not below 1; in training, if ``lr`` has the wrong shape or a schedule
        returns a negative number. What a schedule returns on a GPU is not checked.

    Examples
    --------
    >>> from mvnb.training import fit
    >>> descent = lambda params: (params["w"].square() / 2, {"w": params["w"]})
    >>> fit(descent, {"w": torch.ones(2)}, (), steps=1, optimizer=Adam(0.25)).params["w"]
    tensor([0.7500, 0.7500])
    """

    lr: LearningRate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    __post_init__ = _require_ranges

    def start(self, params: Params) -> dict:
        return _start(self.lr, params)

    def step(self, params: Params, grads: Params, state: dict) -> float | Tensor:
        eta = _step_size(self.lr, state)
        keys = list(grads)
        moving = [params[k] for k in keys]
        slopes = [grads[k].contiguous() for k in keys]  # autograd may return them transposed, and mixed layouts are slow
        means = [_moment(state, f"m.{k}", g) for k, g in zip(keys, slopes)]
        squares = [_moment(state, f"v.{k}", g) for k, g in zip(keys, slopes)]
        plain = not torch.is_tensor(eta) and all(p.is_contiguous() for p in moving)
        move = self._move if plain else self._move_each
        move(moving, slopes, means, squares, state["count"], eta)
        return eta

    def _move_each(self, params: list, grads: list, means: list, squares: list, count: int, eta: float | Tensor) -> None:
        """Update parameters in any layout, with one step size per replica or one for all.

        PyTorch's kernel supports neither step sizes per replica nor gradients in another layout than the parameters.
        """
        bias, square_bias = (1 - beta**count for beta in self.betas)
        for p, g, mean, square in zip(params, grads, means, squares):
            if self.weight_decay and isinstance(self, AdamW):
                p.mul_(1 - _like(eta, p) * self.weight_decay)
            elif self.weight_decay:
                g = g.add(p, alpha=self.weight_decay)
            mean.lerp_(g, 1 - self.betas[0])
            square.mul_(self.betas[1]).addcmul_(g, g, value=1 - self.betas[1])
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
            decoupled_weight_decay=isinstance(self, AdamW),
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=eta,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )


@old_arguments(step_size="lr", beta1="betas", beta2="betas")
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, 0.01 by default, as :class:`torch.optim.AdamW`. Source: Loshchilov & Hutter 2019.

    The arguments are those of :class:`Adam`.

    >>> from mvnb.training import fit
    >>> flat = lambda params: (params["w"] * 0, {"w": params["w"] * 0})
    >>> fit(flat, {"w": torch.ones(2)}, (), steps=1, optimizer=AdamW(0.5, weight_decay=0.5)).params["w"]
    tensor([0.7500, 0.7500])
    """

    weight_decay: float = 0.01
