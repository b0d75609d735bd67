"""The training core: a stack of independent runs ("replicas") trained as one program.

Theory papers speak of what happens for most seeds, so the unit of work is R runs at once. Parameters are a dictionary of
tensors with a leading replica axis. An *objective* maps ``(params, *batch)`` to the losses ``(R,)`` and the gradients (a
dictionary like ``params``): :func:`stacked` makes one from any module and loss, and a model may bring its own with a
hand-derived gradient (:class:`mvnb.models.patch_cnn.PatchObjective`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from tqdm import tqdm

Params = dict[str, Tensor]
Objective = Callable[..., tuple[Tensor, Params]]


def generators(seed: int, replicas: int) -> list[torch.Generator]:
    """One generator a replica. Replica r of a stack draws what a run of ``replicas=1`` with seed ``seed + r`` would."""
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1, got {replicas}")
    return [torch.Generator().manual_seed(seed + r) for r in range(replicas)]


def pick_device(name: str) -> torch.device:
    """The device of a name: ``"auto"`` is the GPU when there is one, else the CPU; anything else is PyTorch's own name.

    Raises ``ValueError`` when the name is unknown or that device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be 'auto', 'cpu' or a device of this machine, got {name!r}: {reason}") from None
    return device


def stack(samples: Sequence):
    """A list of equal NamedTuples of tensors as one, with a leading replica axis."""
    return type(samples[0])(*(torch.stack(parts) for parts in zip(*samples)))


def stack_modules(modules: Sequence[nn.Module]) -> tuple[Params, Params]:
    """Parameters and buffers of equal modules, stacked: two dictionaries of tensors ``(R, ...)``."""
    params = [dict(m.named_parameters()) for m in modules]
    buffers = [dict(m.named_buffers()) for m in modules]
    return (
        {k: torch.stack([p[k].detach() for p in params]) for k in params[0]},
        {k: torch.stack([b[k] for b in buffers]) for k in buffers[0]},
    )


def stacked(module: nn.Module, loss: Callable[..., Tensor], buffers: Params | None = None) -> Objective:
    """Objective of a stack of ``module``: replica r is ``loss(f_r, *batch_r)``.

    Without buffers the stack runs as one vectorised program. With buffers (batch normalisation) the replicas run one after
    the other, since such networks fill the device on their own; their buffers are updated in place.
    """

    def one(params: Params, *batch: Tensor) -> Tensor:
        return loss(lambda x: functional_call(module, params, (x,)), *batch)

    def vectorised(params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        grads, losses = vmap(grad_and_value(one))(params, *batch)
        return losses, grads

    def sequential(params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        losses, rows = [], []
        for r in range(len(next(iter(params.values())))):
            leaves = {k: p[r].detach().requires_grad_() for k, p in params.items()}
            state = {**leaves, **{k: b[r] for k, b in buffers.items()}}
            value = loss(lambda x, state=state: functional_call(module, state, (x,)), *(b[r] for b in batch))
            rows.append(torch.autograd.grad(value, list(leaves.values())))
            losses.append(value.detach())
        return torch.stack(losses), {k: torch.stack([row[i] for row in rows]) for i, k in enumerate(params)}

    return sequential if buffers else vectorised


def predict(module: nn.Module, params: Params, buffers: Params, x: Tensor, chunk: int = 1000) -> Tensor:
    """Outputs ``(R, n, ...)`` of a stack of ``module`` in evaluation mode on ``x`` ``(R, n, ...)``, in chunks."""
    training = module.training
    module.eval()
    call = vmap(lambda p, b, z: functional_call(module, {**p, **b}, (z,)))
    with torch.no_grad():
        out = torch.cat([call(params, buffers, z) for z in x.split(chunk, 1)], 1)
    module.train(training)
    return out


def _per_replica(scale: Tensor, like: Tensor) -> Tensor:
    return scale.to(like.dtype).view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class GD:
    """Gradient descent with a constant step."""

    step_size: float

    def start(self, params: Params) -> Params:
        return {}

    def step(self, params: Params, grads: Params, state: Params) -> Tensor | float:
        for k, p in params.items():
            p.sub_(grads[k], alpha=self.step_size)
        return self.step_size


@dataclass(frozen=True)
class FlowGD:
    r"""Gradient descent along the gradient flow, with the largest step that keeps to it, chosen per replica.

    A filter (row of a weight) shorter than ``knee`` may change by the fraction ``relative`` of its length in a step, a longer
    one by ``absolute``; no step exceeds ``max_step``. Small initial weights grow super-linearly, so a constant step spends
    almost all its steps where nothing moves; this one spends them where something does. The flow time, the sum of the steps,
    is the natural time axis; a replica whose flow time has reached ``horizon`` stands still.
    """

    max_step: float = math.inf
    relative: float = 0.1
    absolute: float = math.inf
    knee: float = math.inf
    horizon: float = math.inf

    def start(self, params: Params) -> Params:
        first = next(iter(params.values()))
        return {"time": torch.zeros(len(first), dtype=torch.float64, device=first.device)}

    def step(self, params: Params, grads: Params, state: Params) -> Tensor:
        allowed = []
        for k, p in params.items():
            length, slope = (v.reshape(len(v), -1, v.shape[-1]).norm(dim=-1) for v in (p, grads[k]))
            change = torch.where(length < self.knee, self.relative * length, self.absolute)
            allowed.append(torch.where(slope > 0, change / slope, math.inf).amin(1))
        eta = torch.stack(allowed).amin(0).double().clamp(max=self.max_step)
        eta = torch.minimum(eta, self.horizon - state["time"])
        eta = torch.where(eta.isfinite(), eta, 0.0)  # nothing moves and nothing bounds the step
        state["time"] += eta
        for k, p in params.items():
            p.sub_(_per_replica(eta, p) * grads[k])
        return eta


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma & Ba 2015)."""

    step_size: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def start(self, params: Params) -> Params:
        moments = {f"{m}.{k}": torch.zeros_like(p) for m in "mv" for k, p in params.items()}
        return {"count": torch.zeros(()), **moments}

    def step(self, params: Params, grads: Params, state: Params) -> float:
        state["count"] += 1
        t = int(state["count"])
        for k, p in params.items():
            m = state[f"m.{k}"].lerp_(grads[k], 1 - self.beta1)
            v = state[f"v.{k}"].mul_(self.beta2).addcmul_(grads[k], grads[k], value=1 - self.beta2)
            denominator = (v / (1 - self.beta2**t)).sqrt_().add_(self.eps)
            p.addcdiv_(m, denominator, value=-self.step_size / (1 - self.beta1**t))
        return self.step_size


@dataclass
class Run:
    """What a stack of runs left behind.

    ``params`` are the final parameters; ``steps`` ``(T,)`` the logged steps; ``log[name]`` ``(T, R, ...)`` the probes there,
    with ``"loss"`` and ``"time"`` (the sum of step sizes so far) always among them.
    """

    params: Params
    steps: np.ndarray
    log: dict[str, Tensor] = field(default_factory=dict)

    def table(self) -> pd.DataFrame:
        """The scalar probes as a long table with the columns ``replica``, ``step`` and one a probe."""
        scalars = {k: v.numpy() for k, v in self.log.items() if v.dim() == 2}
        n_steps, replicas = next(iter(scalars.values())).shape
        index = {"replica": np.tile(np.arange(replicas), n_steps), "step": np.repeat(self.steps, replicas)}
        return pd.DataFrame({**index, **{k: v.reshape(-1) for k, v in scalars.items()}})


def log_steps(steps: int, count: int = 40) -> list[int]:
    """About ``count`` steps from 0 to ``steps``, evenly spaced, both ends among them."""
    return sorted({round(s) for s in np.linspace(0, steps, count)})


def fit(
    objective: Objective,
    params: Params,
    batches: tuple | Callable[[int], tuple],
    *,
    steps: int,
    optimizer: GD | FlowGD | Adam,
    probes: dict[str, Callable[[Params], Tensor]] | None = None,
    log_at: Iterable[int] | None = None,
    progress: bool = False,
) -> Run:
    """Train a stack of replicas for ``steps`` steps.

    ``batches`` is the one full batch, or a function of the step that returns a batch. Before step s, for each s in ``log_at``
    (default: start and end; ``steps`` itself is the state after the last), every probe sees the parameters; probes must not
    change them. The loss at ``steps`` costs one more batch. ``params`` is left as it was. ``ValueError`` when ``steps`` is
    negative or ``log_at`` is empty or leaves [0, steps].
    """
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps}")
    draw = batches if callable(batches) else (lambda step: batches)
    params = {k: p.clone() for k, p in params.items()}
    state = optimizer.start(params)
    replicas = len(next(iter(params.values())))
    time = torch.zeros(replicas, dtype=torch.float64, device=next(iter(params.values())).device)
    wanted = sorted(set(log_at) if log_at is not None else {0, steps})
    if not wanted or wanted[0] < 0 or wanted[-1] > steps:
        raise ValueError(f"log_at must name steps from 0 to {steps}, got {wanted[:5]}")
    rows: dict[str, list[Tensor]] = {name: [] for name in ("loss", "time", *(probes or {}))}
    for step in tqdm(range(steps + 1), disable=not progress):
        losses, grads = objective(params, *draw(step)) if step < steps or step in wanted else (None, None)
        if step in wanted:
            rows["loss"].append(losses.detach().cpu())
            rows["time"].append(time.cpu().clone())
            for name, probe in (probes or {}).items():
                rows[name].append(probe(params).detach().to("cpu", copy=True))
        if step < steps:
            time += optimizer.step(params, grads, state)
    return Run(params, np.array(wanted), {k: torch.stack(v) for k, v in rows.items()})
