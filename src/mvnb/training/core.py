"""The training loop for a stack of independent runs (replicas)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mvnb.files import replaced_whole
from mvnb.training.optimizers import SGD, Adam, FlowGD
from mvnb.training.stacking import Objective, Params


@dataclass
class Run:
    """Result of :func:`fit`, with everything needed to resume training.

    ``params`` holds the final parameters, ``steps`` ``(T,)`` the logged steps and ``log[name]`` ``(T, R, ...)`` the values of
    each probe at these steps. The log always includes ``"loss"`` and ``"time"``, the sum of the step sizes so far. ``step`` is
    the number of steps taken, ``running`` ``(R,)`` is true for replicas that have not stopped, and ``state`` is the state of
    the optimizer.

    >>> descent = lambda params: (params["w"].square() / 2, {"w": params["w"]})
    >>> run = fit(descent, {"w": torch.ones(2)}, (), steps=3, optimizer=SGD(0.5))
    >>> run = fit(descent, run, (), steps=4, optimizer=SGD(0.5))
    >>> run.steps.tolist(), run.params["w"]
    ([0, 3, 4], tensor([0.0625, 0.0625]))
    """

    params: Params
    steps: np.ndarray
    log: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    running: Tensor | None = None
    state: dict = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Save the run to the file ``path``, which is replaced atomically if it exists."""
        with replaced_whole(Path(path)) as partial:
            torch.save({**vars(self), "steps": self.steps.tolist()}, partial)

    @classmethod
    def load(cls, path: str | Path, device="cpu") -> Run:
        """Load a saved run, with its parameters and state on ``device`` and its log on the CPU."""
        parts = torch.load(path, map_location=device, weights_only=True)
        log = {name: rows.cpu() for name, rows in parts["log"].items()}
        return cls(**{**parts, "steps": np.array(parts["steps"]), "log": log})


def log_steps(steps: int, count: int = 40) -> list[int]:
    """Return about ``count`` evenly spaced steps from 0 to ``steps``, including both ends.

    Raises ``ValueError`` if ``steps`` is negative or ``count`` is less than 2.

    >>> log_steps(1000, count=5)
    [0, 250, 500, 750, 1000]
    """
    if steps < 0 or count < 2:
        raise ValueError(f"steps must be non-negative and count at least 2, got steps={steps}, count={count}")
    return sorted({round(s) for s in np.linspace(0, steps, count)})


def _copy(tree: Mapping) -> dict:
    return {k: v.clone() if torch.is_tensor(v) else v for k, v in tree.items()}


def _rows(tree: Mapping, rows: Tensor) -> dict:
    """Return copies of the given rows of every tensor with a replica axis, and the other values unchanged."""
    return {k: v[rows] if torch.is_tensor(v) and v.dim() else v for k, v in tree.items()}


def _write(tree: dict, part: Mapping, rows: Tensor, replicas: int) -> None:
    """Write rows returned by :func:`_rows` back in place; missing entries of ``tree`` are created and filled with zeros."""
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
    optimizer: SGD | Adam | FlowGD,
    probes: dict[str, Callable[[Params], Tensor]] | None = None,
    log_at: Iterable[int] | None = None,
    until: Callable[[Params, Tensor], Tensor] | None = None,
) -> Run:
    """Train a stack of replicas until ``steps`` steps have been taken.

    On a CPU, subnormal numbers are flushed to zero during training. :class:`SGD` on a full batch with a compiled objective such
    as :class:`mvnb.models.PatchObjective` takes all steps up to the next logged one in one call.

    Parameters
    ----------
    objective
        Function of ``(params, *batch)`` that returns the losses ``(R,)`` and the gradients. Parameters without a gradient
        do not change.
    params
        Dictionary of tensors with a leading replica axis, which are copied, or an earlier :class:`Run` to resume. With the
        same objective, batches and optimizer, a resumed run has the parameters and the log of an uninterrupted run. The numbers
        of the optimizer, such as ``lr``, may be others.
    batches
        The full batch, or a function of the step that returns a batch, such as :class:`mvnb.training.Fresh`. In every tensor of
        a batch, the replica axis comes first; scalars are shared by all replicas.
    steps
        Total number of steps, including those of the run to resume.
    optimizer
        Optimizer that updates the parameters in place.
    probes
        Functions of the parameters by name, which must not change the parameters.
    log_at
        Steps before which the loss and the probes are logged; by default, the first and the last. The value ``steps`` stands
        for the state after the last step, where the loss requires one more batch.
    until
        Function of ``(params, losses)`` that returns booleans ``(R,)``, evaluated at each logged step. Replicas for which it
        is true stop there, and their last values are repeated in the log. Training ends when all replicas have stopped.

    Raises
    ------
    TypeError
        If ``params``, ``batches`` or ``optimizer`` has the wrong type.
    ValueError
        If ``steps`` is not an integer, negative or less than the number of steps already taken, ``log_at`` is empty or contains
        a step out of range or no integer, a probe is named "loss" or "time", the probes or the kind of optimizer of a resumed
        run differ from the earlier ones, or a tensor lacks the replica axis, also one that a function returned.

    Examples
    --------
    >>> from mvnb import data, losses, models, training
    >>> modules = [models.MLP([6, 16, 3]) for _ in range(5)]
    >>> batch = training.stack([data.SimpleMultiView(n_classes=3).sample(100, seed) for seed in range(5)])
    >>> objective, params = training.ModuleObjective(modules[0], losses.cross_entropy), training.stack(modules)
    >>> run = training.fit(objective, params, batch, steps=50, optimizer=training.SGD(0.5))
    >>> run.log["loss"].shape, (run.log["loss"][1] < run.log["loss"][0]).all()
    (torch.Size([2, 5]), tensor(True))
    """
    first = params.step if isinstance(params, Run) else 0
    wanted = {first, steps} if log_at is None else set(log_at)
    if not all(step % 1 == 0 for step in (steps, *wanted)):
        raise ValueError(f"steps and log_at must be integers, got {steps} and {sorted(wanted)[:5]}")
    wanted = sorted(map(int, wanted))
    if steps < first:
        least = f"at least {first}, the number already taken" if first else "non-negative"
        raise ValueError(f"steps must be {least}, got {steps}")
    if not wanted or wanted[0] < first or wanted[-1] > steps:
        raise ValueError(f"log_at must contain steps from {first} to {steps}, got {wanted[:5]}")
    _check_arguments(params, batches, optimizer)
    if taken := {"loss", "time"} & set(probes or {}):
        raise ValueError(f"probes must have other names than 'loss' and 'time', which are logged anyway, got {min(taken)!r}")
    run = _begin(params, optimizer, ["loss", "time", *(probes or {})])
    todo = set(wanted) - set(run.steps.tolist())
    with _without_subnormals():
        while run.running.any() and (run.step < steps or steps in todo):
            _advance(run, objective, batches, steps, optimizer, probes or {}, todo, until)
    run.log = {k: torch.stack([row.cpu() for row in rows]) for k, rows in run.log.items()}
    return run


def _check_arguments(params, batches, optimizer) -> None:
    if isinstance(optimizer, type) or not (hasattr(optimizer, "start") and hasattr(optimizer, "step")):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        received = f"{'the class ' * isinstance(optimizer, type)}{kind.__module__}.{kind.__qualname__}"
        raise TypeError(f"optimizer must be an SGD, Adam, AdamW or FlowGD of mvnb.training, got {received}")
    if not isinstance(params, Run):
        if not isinstance(params, Mapping) or not params or not all(torch.is_tensor(v) for v in params.values()):
            raise TypeError(f"params must be a Run or a dictionary of tensors of stack, got {type(params).__name__}")
        shapes = {k: tuple(v.shape) for k, v in params.items()}
        if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
            raise ValueError(f"params must have a leading replica axis of equal length, got shapes {shapes}")
    if not callable(batches) and not isinstance(batches, tuple | list):
        raise TypeError(f"batches must be a tuple of tensors or a function of the step, got {type(batches).__name__}")


def _check_batch(batch: tuple, replicas: int) -> tuple:
    """Return the batch, or raise ``TypeError`` if a part is a tuple or list and ``ValueError`` if it lacks the replica axis."""
    for i, part in enumerate(batch):
        if isinstance(part, tuple | list):
            raise TypeError(f"batch[{i}] must be a tensor, got {type(part).__name__}; the batch itself is a tuple of tensors")
        if torch.is_tensor(part) and part.dim() and len(part) != replicas:
            raise ValueError(
                f"batch[{i}] must have the replica axis of params first, shape ({replicas}, ...), got {tuple(part.shape)}; "
                "training.stack([sample, ...]) adds this axis"
            )
    return batch


@contextmanager
def _without_subnormals() -> Iterator[None]:
    """Flush numbers below 1e-38 (float32) to zero, because CPUs process them up to a hundred times slower.

    Such numbers are common in replicas that fit their data, in dead units and in high powers of small correlations.
    """
    before = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


_ANEW = ("lr", "replica", "replicas")  # entries of a state that hold numbers of the optimizer, not results of earlier steps


def _begin(params: Params | Run, optimizer, names: list[str]) -> Run:
    # Adam and AdamW have the same state.
    kind = next((one.__name__ for one in (SGD, FlowGD, Adam) if isinstance(optimizer, one)), type(optimizer).__name__)
    if isinstance(params, Run):
        if set(params.log) != set(names):
            raise ValueError(f"expected the probes of the resumed run ({', '.join(params.log)}), got {', '.join(names)}")
        if (kept := params.state.get("optimizer", kind)) != kind:  # runs saved by earlier versions do not name it
            raise ValueError(f"expected the kind of optimizer of the resumed run, {kept}, got {kind}")
        log = {k: list(rows) for k, rows in params.log.items()}
        state = {**optimizer.start(params.params), **_copy({k: v for k, v in params.state.items() if k not in _ANEW})}
        return Run(_copy(params.params), params.steps, log, params.step, params.running.clone(), state)
    one = next(iter(params.values()))
    time = torch.zeros(len(one), dtype=torch.float64, device=one.device)
    state = {"time": time, "optimizer": kind, **optimizer.start(params)}
    running = torch.ones(len(one), dtype=torch.bool, device=one.device)
    return Run(_copy(params), np.array([], dtype=int), {k: [] for k in names}, 0, running, state)


def _advance(run: Run, objective, batches, steps: int, optimizer, probes: dict, todo: set[int], until) -> None:
    """Train the running replicas until any of them stops or all steps have been taken."""
    rows, replicas = run.running.nonzero()[:, 0], len(run.running)

    def take(batch) -> tuple:
        batch = _check_batch(batch, replicas)
        return tuple(batch if len(rows) == replicas else _rows(dict(enumerate(batch)), rows).values())

    fixed = None if callable(batches) else take(batches)
    params, state = _rows(run.params, rows), _rows(run.state, rows)
    on_cpu = rows.device.type == "cpu"
    resting = False  # once true, losses and parameters no longer change
    # A compiled objective can take all steps up to the next logged one in one call, which reaches the step ``ahead``.
    ahead, leaps = run.step, not until and fixed is not None and isinstance(optimizer, SGD)
    leaps = leaps and optimizer.descend(objective, params, fixed, state, 0) is not None
    for step in range(run.step, steps + 1):
        logged = step in todo
        if step < ahead:
            continue
        if step == steps and not logged:
            break
        if logged:  # before the objective, which may update buffers
            _write(run.params, params, rows, replicas)
            _write(run.state, state, rows, replicas)
        if leaps and step < steps:
            ahead = min((later for later in todo if later > step), default=steps)
            losses = optimizer.descend(objective, params, fixed, state, ahead - step)
        elif not resting:
            # After the last step, only the loss is needed; buffers must not change.
            seen = params if step < steps else _copy(params)
            losses, grads = objective(seen, *(take(batches(step)) if fixed is None else fixed))
        stopping = None
        if logged:
            _log_state(run, step, rows, losses.detach(), probes)
            todo.remove(step)
            if until:
                stopping = until(run.params, run.log["loss"][-1])
                _require_rows("until", stopping, replicas, exactly=True)
                stopping = stopping & run.running
        if step < steps and not leaps:
            if not resting:
                # On a GPU the check waits for the device, so it is made every 32 steps.
                if fixed is not None and isinstance(optimizer, FlowGD) and (on_cpu or step % 32 == 0):
                    resting = optimizer.at_rest(state)
                state["time"] += optimizer.step(params, grads, state)
        if stopping is not None and stopping.any():
            run.running &= ~stopping
            break
    keep = run.running[rows]
    _write(run.params, _rows(params, keep), rows[keep], replicas)
    _write(run.state, _rows(state, keep), rows[keep], replicas)
    run.step = min(step + bool(keep.any()), steps)  # replicas that go on have taken the step at which others stopped


def _require_rows(name: str, value, replicas: int, exactly: bool = False) -> None:
    """Raise ``ValueError`` unless a function returned a tensor with one row per replica, or exactly one number per replica."""
    if not torch.is_tensor(value) or (value.shape if exactly else value.shape[:1]) != (replicas,):
        received = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
        expected = f"({replicas}{',' if exactly else ', ...'}), one {'number' if exactly else 'row'} per replica"
        raise ValueError(f"{name} must return a tensor of shape {expected}, got {received}")


def _log_state(run: Run, step: int, rows: Tensor, losses: Tensor, probes: dict) -> None:
    """Log the losses, the time and the probes; tensors stay on the device until the run ends."""
    loss = run.log["loss"][-1].to(losses.device, copy=True) if run.log["loss"] else losses.new_zeros(len(run.running))
    _require_rows("objective", losses, len(rows), exactly=True)
    loss[rows] = losses  # stopped replicas keep their last loss
    run.log["loss"].append(loss)
    run.log["time"].append(run.state["time"].clone())
    for name, probe in probes.items():
        value = probe(run.params)
        _require_rows(f"probe {name!r}", value, len(run.running))
        run.log[name].append(value.detach().clone())
    run.steps = np.append(run.steps, step)
