"""Replicas side by side: seeds, samples and modules of independent runs as tensors with a leading replica axis."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map_only

from mvnb.gradients import returns_gradients

Params = dict[str, Tensor]
Objective = Callable[..., tuple[Tensor, Params]]


def generators(seed: int, replicas: int) -> list[torch.Generator]:
    """One generator a replica. Replica r of a stack draws what a run of ``replicas=1`` with seed ``seed + r`` would."""
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1, got {replicas}")
    return [torch.Generator().manual_seed(seed + r) for r in range(replicas)]


def fold_seed(seed: int) -> int:
    """Return a seed below 2^31, which every library takes: ``seed`` itself where it is, else one that follows from it.

    Chapters fold their parameter ``seed`` once; what they draw from are sums and products of the result. ``ValueError`` for a
    negative seed.

    >>> fold_seed(7), fold_seed(1_764_203_991_123_456_789)
    (7, 566827080)
    """
    if seed < 0:
        raise ValueError(f"seed must be 0 or more, got {seed}")
    return seed if seed < 2**31 else int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1


def stream(seed: int, purpose: int) -> torch.Generator:
    """The generator of one purpose on a page; no other purpose has it, for seeds that are less than a million apart."""
    return torch.Generator().manual_seed(seed + 1_000_003 * purpose)


def pick_device(name: str) -> torch.device:
    """Return the device of a name: ``"auto"`` is the GPU when there is one, else the CPU; other names are PyTorch's own.

    Raises ``ValueError`` when the name is unknown, or that device is not there or cannot compute in float64.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones((), dtype=torch.float64, device=device).item()  # "meta" can be named, but holds no numbers
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:
        reason = re.split(r"\. |\n", str(error))[0]  # the rest is advice, of up to a page
        expected = "'auto', 'cpu' or a device of this machine with float64"
        raise ValueError(f"device must be {expected}, got {name!r}: {reason}") from None
    return device


def to_device(values, device):
    """The same tuples, NamedTuples, lists and dictionaries with every tensor in them on ``device``."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), values)


def stack(samples: Sequence):
    """A list of equal NamedTuples of tensors as one, with a leading replica axis."""
    return type(samples[0])(*(torch.stack(parts) for parts in zip(*samples)))


class Fresh:
    """Fresh samples at every step, as the ``batches`` of :func:`mvnb.training.fit`.

    ``draw(n, generator)`` returns ``n`` points, as a sample with a method ``split`` (:class:`mvnb.data.Patches`) or a tuple of
    tensors with leading axis n (:class:`mvnb.data.Points`). The points of ``block`` steps are drawn at once, since structured
    samplers cost as much for one point as for hundreds; ``block`` is part of what the seed decides. ``generators`` has one
    generator a replica, used by no other. Steps are asked for in order, repetitions allowed; skipped blocks are drawn and
    thrown away, so that a resumed run meets the samples it would have met. ``ValueError`` on a way back.
    """

    def __init__(self, draw, n: int, generators: Sequence[torch.Generator], block: int = 16, device="cpu"):
        if n < 1 or block < 1:
            raise ValueError(f"n and block must be at least 1, got n={n}, block={block}")
        self._draw, self._n, self._generators, self._block, self._device = draw, n, generators, block, device
        self._current, self._steps = -1, []

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        block, offset = divmod(step, self._block)
        if block < self._current:
            raise ValueError(f"fresh samples cannot go back to step {step}")
        while self._current < block:
            samples = [self._draw(self._n * self._block, g) for g in self._generators]
            self._current += 1
            if self._current == block:
                parts = [_split(sample, self._n) for sample in samples]
                self._steps = _sent([tuple(torch.stack(p) for p in zip(*step)) for step in zip(*parts)], self._device)
        return self._steps[offset]


def in_blocks(draw: Callable[[int], tuple[Tensor, ...]], device, block: int = 16) -> Callable[[int], tuple[Tensor, ...]]:
    """Batches on ``device`` from a function of the step that draws them on the CPU, as the ``batches`` of a fit.

    On a card the batches of ``block`` steps are drawn ahead, in order, and sent at once, so that a step waits for no transfer.
    Steps are asked for in order, repetitions allowed.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return draw
    current, steps = -1, []

    def batch(step: int) -> tuple[Tensor, ...]:
        nonlocal current, steps
        if step // block != current:
            current = step // block
            steps = _sent([draw(s) for s in range(current * block, (current + 1) * block)], device)
        return steps[step % block]

    return batch


def _sent(steps: list[tuple[Tensor, ...]], device) -> list[tuple[Tensor, ...]]:
    """Batches of equal shapes on ``device``, in one transfer for each of their tensors."""
    if torch.device(device).type == "cpu":
        return steps
    return list(zip(*(torch.stack(parts).to(device) for parts in zip(*steps))))


def _split(sample, n: int) -> list[tuple[Tensor, ...]]:
    return sample.split(n) if hasattr(sample, "split") else list(zip(*(part.split(n) for part in sample)))


def stack_modules(modules: Sequence[nn.Module]) -> Params:
    """Parameters and buffers of equal modules, copied and stacked: a dictionary of tensors ``(R, ...)``."""
    params, buffers = stack_module_state(list(modules))
    return {k: v.detach() for k, v in (params | buffers).items()}


def one_by_one(module: nn.Module, device: torch.device) -> bool:
    """Whether replicas of a module are better run one after the other than as one vectorised program.

    With buffers (batch normalisation), which are updated in place among the parameters, and convolutions on a CPU, where a
    grouped convolution over all replicas is slower than as many plain ones.
    """
    if next(module.buffers(), None) is not None:
        return True
    return device.type == "cpu" and any(isinstance(m, _ConvNd) for m in module.modules())


def stacked(module: nn.Module, loss: Callable[..., Tensor]) -> Objective:
    """Objective of a stack of ``module``: replica r is ``loss(f_r, *batch_r)``, differentiated automatically.

    The stack runs as one vectorised program, except where replicas are better run :func:`one_by_one`.
    """
    names = [k for k, _ in module.named_parameters()]
    buffers = [k for k, _ in module.named_buffers()]
    in_turn = functools.cache(functools.partial(one_by_one, module))  # asked at every step, of one device or two

    def one(params: Params, *batch: Tensor) -> Tensor:
        return loss(lambda *x: functional_call(module, params, x), *batch)

    def vectorised(params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        # The gradient of the sum is the stack of the gradients: replicas share nothing.
        leaves = {k: params[k].detach().requires_grad_() for k in names}
        losses = vmap(one)(leaves, *batch)
        return losses.detach(), dict(zip(names, torch.autograd.grad(losses.sum(), list(leaves.values()))))

    def sequential(params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        losses, rows = [], []
        for r in range(len(params[names[0]])):
            leaves = {k: params[k][r].detach().requires_grad_() for k in names}
            value = one({**leaves, **{k: params[k][r] for k in buffers}}, *(b[r] for b in batch))
            rows.append(torch.autograd.grad(value, list(leaves.values())))
            losses.append(value.detach())
        return torch.stack(losses), {k: torch.stack(row) for k, row in zip(names, zip(*rows))}

    @returns_gradients
    def objective(params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        return (sequential if in_turn(params[names[0]].device) else vectorised)(params, *batch)

    return objective


def pick(x: Tensor, index: Tensor) -> Tensor:
    """``x[index]``, points ``(*index.shape, ...)`` of ``x`` ``(n, ...)``; three times as fast on a processor."""
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)


def pick_own(x: Tensor, index: Tensor) -> Tensor:
    """Points ``(R, b, ...)`` that each replica picks by ``index`` ``(R, b)`` from its own, ``x`` ``(R, n, ...)``."""
    first = x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
    return pick(x.flatten(0, 1), first + index)


def predict(module: nn.Module, params: Params, x: Tensor, chunk: int = 1000) -> Tensor:
    """Return outputs ``(R, n, ...)`` of a stack of ``module`` in evaluation mode on ``x`` ``(R, n, ...)``, in chunks.

    Differentiable: tensors of ``params`` or ``x`` that require a gradient get one.
    """
    training = module.training
    module.eval()
    call = vmap(lambda p, z: functional_call(module, p, (z,)))
    out = torch.cat([call(params, z) for z in x.split(chunk, 1)], 1)
    module.train(training)
    return out
