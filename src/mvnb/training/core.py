"""The loop: a stack of independent runs trained as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mvnb.training.optimizers import GD, Adam, FlowGD
from mvnb.training.stacking import Objective, Params


@dataclass
class Run:
    """What a stack of runs left behind, and all that is needed to go on.

    ``params`` are the final parameters; ``steps`` ``(T,)`` the logged steps; ``log[name]`` ``(T, R, ...)`` the probes there,
    with ``"loss"`` and ``"time"`` (the sum of step sizes so far) always among them; ``step`` the number of steps taken,
    ``running`` ``(R,)`` the replicas that have not been stopped, ``state`` the optimizer's.
    """

    params: Params
    steps: np.ndarray
    log: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    running: Tensor | None = None
    state: dict = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the run to a file, whole or not at all."""
        partial = Path(path).with_name(Path(path).name + ".partial")
        torch.save({**vars(self), "steps": self.steps.tolist()}, partial)
        partial.replace(path)

    @classmethod
    def load(cls, path: str | Path, device="cpu") -> Run:
        """A run that was saved: parameters and state on ``device``, the log on the CPU, where it always is."""
        parts = torch.load(path, map_location=device, weights_only=True)
        log = {name: rows.cpu() for name, rows in parts["log"].items()}
        return cls(**{**parts, "steps": np.array(parts["steps"]), "log": log})


def log_steps(steps: int, count: int = 40) -> list[int]:
    """About ``count`` steps from 0 to ``steps``, evenly spaced, both ends among them."""
    return sorted({round(s) for s in np.linspace(0, steps, count)})


def _copy(tree: Mapping) -> dict:
    return {k: v.clone() if torch.is_tensor(v) else v for k, v in tree.items()}


def _rows(tree: Mapping, rows: Tensor) -> dict:
    """A copy of the given rows of every tensor with axes; anything else is common to all replicas."""
    return {k: v[rows] if torch.is_tensor(v) and v.dim() else v for k, v in tree.items()}


def _write(tree: dict, part: Mapping, rows: Tensor, replicas: int) -> None:
    """The inverse of :func:`_rows`, in place; what ``tree`` does not have yet starts as zeros."""
    for k, v in part.items():
        if torch.is_tensor(v) and v.dim():
            tree.setdefault(k, v.new_zeros(replicas, *v.shape[1:]))[rows] = v
        else:
            tree[k] = v


def fit(
    objective: Objective,
    params: Params | Run,
    batches: tuple | Callable[[int], tuple],
    *,
    steps: int,
    optimizer: GD | FlowGD | Adam,
    probes: dict[str, Callable[[Params], Tensor]] | None = None,
    log_at: Iterable[int] | None = None,
    until: Callable[[Params, Tensor], Tensor] | None = None,
) -> Run:
    """Train a stack of replicas up to step ``steps``. On a CPU, subnormal numbers count as zero meanwhile.

    Parameters
    ----------
    objective
        Maps ``(params, *batch)`` to the losses ``(R,)`` and the gradients; parameters without a gradient stay.
    params
        Tensors with a leading replica axis, left as they were; or an earlier run, which goes on from where it ended.
        Two halves are the whole: the same objective, batches and optimizer give the parameters and the log of one long run.
    batches
        The one full batch, or a function of the step that returns a batch (:class:`mvnb.training.Fresh`). Every tensor in it
        that has axes has the replica axis first.
    probes, log_at
        Before step s, for each s in ``log_at`` (default: start and end; ``steps`` itself is the state after the last), every
        probe sees the parameters. Probes must not change them. The loss at ``steps`` costs one more batch.
    until
        ``(params, losses) -> (R,)`` of booleans, asked at each logged step: replicas for which it is true stop there, and
        are no longer computed. Their rows in later probes repeat; the run ends when all have stopped.

    Raises
    ------
    ValueError
        When ``steps`` is negative or less than what the run has behind it, when ``log_at`` is empty or leaves the range, or
        when a run goes on with other probes.
    """
    first = params.step if isinstance(params, Run) else 0
    wanted = sorted(set(log_at) if log_at is not None else {first, steps})
    if steps < first:
        raise ValueError(f"steps must not be negative, or fewer than the {first} already taken, got {steps}")
    if not wanted or wanted[0] < first or wanted[-1] > steps:
        raise ValueError(f"log_at must name steps from {first} to {steps}, got {wanted[:5]}")
    _check_arguments(params, batches, optimizer)
    run = _begin(params, optimizer, ["loss", "time", *(probes or {})])
    todo = set(wanted) - set(run.steps.tolist())
    with _without_subnormals():
        while run.running.any() and (run.step < steps or steps in todo):
            _advance(run, objective, batches, steps, optimizer, probes or {}, todo, until)
    run.log = {k: torch.stack([row.cpu() for row in rows]) for k, rows in run.log.items()}
    return run


def _check_arguments(params, batches, optimizer) -> None:
    if not (hasattr(optimizer, "start") and hasattr(optimizer, "step")):
        received = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise TypeError(f"optimizer must be GD, FlowGD or Adam of mvnb.training, got {received}")
    if not isinstance(params, Run):
        if not isinstance(params, Mapping) or not params or not all(torch.is_tensor(v) for v in params.values()):
            raise TypeError(
                f"params must be a dictionary of tensors, as of stack_modules, or a Run, got {type(params).__name__}"
            )
        shapes = {k: tuple(v.shape) for k, v in params.items()}
        if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
            raise ValueError(f"params must have the replica axis first, of equal length, got shapes {shapes}")
    if not callable(batches) and not isinstance(batches, tuple | list):
        raise TypeError(f"batches must be a tuple of tensors or a function of the step, got {type(batches).__name__}")


def _check_batch(batch: tuple, replicas: int) -> tuple:
    """Return the batch, if its tensors have the replica axis."""
    for i, part in enumerate(batch):
        if torch.is_tensor(part) and part.dim() and len(part) != replicas:
            raise ValueError(
                f"batch[{i}] must have the replica axis first, shape ({replicas}, ...) as in params, "
                f"got {tuple(part.shape)}; training.stack([sample, ...]) makes it"
            )
    return batch


@contextmanager
def _without_subnormals() -> Iterator[None]:
    """Count numbers below 1e-38 (float32) as zero: CPUs take them up to a hundred times slower.

    Fitted runs, dead units and high powers of small correlations are full of them.
    """
    before = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _begin(params: Params | Run, optimizer, names: list[str]) -> Run:
    if isinstance(params, Run):
        if set(params.log) != set(names):
            raise ValueError(f"a run goes on with the probes it began with: {', '.join(params.log)}")
        log = {k: list(rows) for k, rows in params.log.items()}
        return Run(_copy(params.params), params.steps, log, params.step, params.running.clone(), _copy(params.state))
    one = next(iter(params.values()))
    state = {"time": torch.zeros(len(one), dtype=torch.float64, device=one.device), **optimizer.start(params)}
    running = torch.ones(len(one), dtype=torch.bool, device=one.device)
    return Run(_copy(params), np.array([], dtype=int), {k: [] for k in names}, 0, running, state)


def _advance(run: Run, objective, batches, steps: int, optimizer, probes: dict, todo: set[int], until) -> None:
    """Train the running replicas until some of them stop, or to the end."""
    rows, replicas = run.running.nonzero()[:, 0], len(run.running)

    def take(batch) -> tuple:
        batch = _check_batch(batch, replicas)
        return tuple(batch if len(rows) == replicas else _rows(dict(enumerate(batch)), rows).values())

    fixed = None if callable(batches) else take(batches)
    params, state = _rows(run.params, rows), _rows(run.state, rows)
    on_cpu = rows.device.type == "cpu"
    resting = False  # from then on losses and parameters stay as they are
    for step in range(run.step, steps + 1):
        looking = step in todo
        if step == steps and not looking:
            break
        if looking:  # before the objective: buffers change when they are used
            _write(run.params, params, rows, replicas)
            _write(run.state, state, rows, replicas)
        if not resting:
            # After the last step the batch is only looked at, on a copy.
            seen = params if step < steps else _copy(params)
            losses, grads = objective(seen, *(take(batches(step)) if fixed is None else fixed))
        stopping = None
        if looking:
            _look(run, step, rows, losses.detach(), probes)
            todo.remove(step)
            stopping = until(run.params, run.log["loss"][-1]) & run.running if until else None
        if step < steps:
            if not resting:
                if fixed is not None and isinstance(optimizer, FlowGD) and (on_cpu or step % 32 == 0):  # a card is waited for
                    resting = optimizer.at_rest(state)
                state["time"] += optimizer.step(params, grads, state)
        if stopping is not None and stopping.any():
            run.running &= ~stopping
            break
    keep = run.running[rows]
    _write(run.params, _rows(params, keep), rows[keep], replicas)
    _write(run.state, _rows(state, keep), rows[keep], replicas)
    run.step = min(step + 1, steps)


def _look(run: Run, step: int, rows: Tensor, losses: Tensor, probes: dict) -> None:
    """Log what there is to see; nothing leaves the device before the run is over."""
    loss = run.log["loss"][-1].to(losses.device, copy=True) if run.log["loss"] else losses.new_zeros(len(run.running))
    loss[rows] = losses  # those that have stopped keep their last
    run.log["loss"].append(loss)
    run.log["time"].append(run.state["time"].clone())
    for name, probe in probes.items():
        run.log[name].append(probe(run.params).detach().clone())
    run.steps = np.append(run.steps, step)
