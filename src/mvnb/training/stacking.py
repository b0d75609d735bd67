"""Stacks of replicas: generators, samples and modules of independent runs, stacked along a leading replica axis."""

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

from mvnb._checks import require_within
from mvnb.gradients import Params, returns_gradients, with_gradients
from mvnb.seeds import as_generator

Objective = Callable[..., tuple[Tensor, Params]]


def generators(seed: int, replicas: int) -> list[torch.Generator]:
    """Return one generator per replica; that of replica r has the seed ``seed + r``.

    Raises ``ValueError`` if ``replicas`` is less than 1 or a seed is out of range.

    >>> [generator.initial_seed() for generator in generators(7, replicas=3)]
    [7, 8, 9]
    """
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1, got {replicas}")
    return [as_generator(seed + r) for r in range(replicas)]


def fold_seed(seed: int) -> int:
    """Return a seed below 2^31, which every library accepts: ``seed`` if it is small enough, or else a seed derived from it.

    Chapters fold their parameter ``seed`` once and compute all other seeds from the result by sums and products. Raises
    ``ValueError`` if ``seed`` is negative.

    >>> fold_seed(7), fold_seed(1_764_203_991_123_456_789)
    (7, 566827080)
    """
    if seed < 0:
        raise ValueError(f"seed must be non-negative, got {seed}")
    return seed if seed < 2**31 else int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1


def stream(seed: int, purpose: int) -> torch.Generator:
    """Return the generator that a chapter uses for one purpose, such as the training data or the initial weights.

    Generators for different purposes differ, even for different values of ``seed`` if these are less than a million apart.
    Raises ``ValueError`` if the seed is out of range.

    >>> [stream(7, purpose).initial_seed() for purpose in range(3)]
    [7, 1000010, 2000013]
    """
    return as_generator(seed + 1_000_003 * purpose)


def pick_device(name: str) -> torch.device:
    """Return the named device, where ``"auto"`` is the GPU if available and the CPU otherwise.

    Other names are those of :class:`torch.device`. Raises ``ValueError`` if the name is unknown, or if the device is not
    available or does not support float64.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones((), dtype=torch.float64, device=device).item()  # fails on "meta", which holds no data
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:
        reason = re.split(r"\. |\n", str(error))[0]  # the rest is up to a page of advice
        expected = "'auto', 'cpu' or another available device that supports float64"
        raise ValueError(f"device must be {expected}, got {name!r}: {reason}") from None
    return device


def to_device(values, device):
    """Return a copy of nested tuples, NamedTuples, lists and dictionaries with all their tensors on ``device``.

    >>> to_device({"x": torch.ones(2), "name": "train"}, "cpu")
    {'x': tensor([1., 1.]), 'name': 'train'}
    """
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), values)


def stack(items: Sequence):
    """Stack the samples or modules of R replicas along a leading replica axis.

    Samples are tuples of tensors with equal shapes and give one sample of the same type. Modules have the same architecture
    and give a dictionary with copies of their parameters and buffers ``(R, ...)``, the ``params`` of :func:`fit`. Raises
    ``ValueError`` if there is no item, or if samples differ in length or modules in the names of their parameters, and
    ``TypeError`` if the items are neither.

    >>> from mvnb.data import SimpleMultiView
    >>> stack([SimpleMultiView(n_classes=2).sample(8, seed) for seed in range(5)]).x.shape
    torch.Size([5, 8, 4])
    >>> params = stack([nn.Linear(2, 3) for _ in range(5)])
    >>> params["weight"].shape, params["bias"].shape
    (torch.Size([5, 3, 2]), torch.Size([5, 3]))
    """
    items = list(items)
    if not items:
        raise ValueError("items must hold at least one sample or module, got none")
    modules = isinstance(items[0], nn.Module)
    if not modules and not isinstance(items[0], tuple | list):
        raise TypeError(f"items must be modules or tuples of tensors, got {type(items[0]).__name__}")
    sizes = [sorted(one.state_dict()) if modules else len(one) for one in items]
    if other := [size for size in sizes if size != sizes[0]]:
        what = "modules with the same parameters" if modules else "samples of the same length"
        raise ValueError(f"items must be {what}, got {sizes[0]} and {other[0]}")
    if modules:
        params, buffers = stack_module_state(items)
        return {k: v.detach() for k, v in (params | buffers).items()}
    kind, parts = type(items[0]), [torch.stack(parts) for parts in zip(*items)]
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


class _Blocks:
    """Batches of steps that are drawn in order, ``block`` steps at a time; skipped blocks are drawn and discarded."""

    def __init__(self, draw: Callable[[int], list[tuple[Tensor, ...]]], block: int, device):
        self._draw, self._block, self._device = draw, block, device
        self._current, self._steps = -1, []

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        block, offset = divmod(step, self._block)
        if block < self._current:
            least = self._current * self._block
            raise ValueError(f"steps must be requested in order: expected step {least} or later, got {step}")
        while self._current < block:
            self._current += 1
            drawn = self._draw(self._current * self._block)
            if self._current == block:
                self._steps = _transfer(drawn, self._device)
        return self._steps[offset]


class Fresh(_Blocks):
    """Callable that returns a batch of fresh samples at each step, for the ``batches`` argument of :func:`mvnb.training.fit`.

    A batch has ``n`` points per replica and lies on ``device``. ``draw(n, generator)`` returns ``n`` points, as a sample with a
    ``split`` method (such as :class:`mvnb.data.Patches`) or as a tuple of tensors whose first axis has length n (such as
    :class:`mvnb.data.Points`). ``generators`` holds one generator per replica, which must not be used elsewhere.

    The points of ``block`` steps are drawn at once, because many samplers take as long for one point as for hundreds. The
    samples depend on ``block`` and on the seeds. Steps must be requested in order; a step may be repeated or skipped. Skipped
    blocks are drawn and discarded, so that a resumed run uses the samples of an uninterrupted one. Raises ``ValueError`` if
    ``n`` or ``block`` is less than 1, there is no generator, a step from an earlier block is requested, or ``draw`` returns
    another number of points.

    >>> from mvnb.data import SimpleMultiView
    >>> batches = Fresh(SimpleMultiView(n_classes=2).sample, 8, generators(0, replicas=5))
    >>> [part.shape for part in batches(0)]
    [torch.Size([5, 8, 4]), torch.Size([5, 8])]
    """

    def __init__(self, draw, n: int, generators: Sequence[torch.Generator], block: int = 16, device="cpu"):
        if n < 1 or block < 1:
            raise ValueError(f"n and block must be at least 1, got n={n}, block={block}")
        if not generators:
            raise ValueError("generators must hold one generator per replica, got none")

        def drawn(first: int) -> list[tuple[Tensor, ...]]:
            parts = [_split(draw(n * block, g), n, block) for g in generators]
            return [tuple(torch.stack(p) for p in zip(*step)) for step in zip(*parts)]

        super().__init__(drawn, block, device)


def in_blocks(draw: Callable[[int], tuple[Tensor, ...]], device, block: int = 16) -> Callable[[int], tuple[Tensor, ...]]:
    """Return the ``batches`` argument of :func:`mvnb.training.fit` on ``device``, given a function that draws on the CPU.

    ``draw(step)`` returns the batch of one step. It is called once for each step, in order. On a GPU, the batches of ``block``
    steps are drawn and transferred at once, so that individual steps do not wait for transfers. Steps must be requested in
    order; a step may be repeated or skipped, and skipped steps are drawn and discarded. Raises ``ValueError`` if ``block`` is
    less than 1, or if an earlier step is requested.

    >>> batches = in_blocks(lambda step: (torch.full((2,), step),), "cpu")
    >>> batches(3)
    (tensor([3, 3]),)
    """
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    block = 1 if torch.device(device).type == "cpu" else block
    return _Blocks(lambda first: [draw(step) for step in range(first, first + block)], block, device)


def _transfer(steps: list[tuple[Tensor, ...]], device) -> list[tuple[Tensor, ...]]:
    """Move the batches of several steps, which have equal shapes, to ``device``, with one transfer per tensor of a batch."""
    if torch.device(device).type == "cpu":
        return steps
    return list(zip(*(torch.stack(parts).to(device) for parts in zip(*steps))))


def _split(sample, n: int, block: int) -> list[tuple[Tensor, ...]]:
    if hasattr(sample, "split"):
        return sample.split(n)
    if other := [len(part) for part in sample if len(part) != n * block]:
        raise ValueError(f"draw must return {n * block} points in every tensor, got {other[0]}")
    return list(zip(*(part.split(n) for part in sample)))


def one_by_one(module: nn.Module, device: torch.device) -> bool:
    """Return whether to run the replicas of a module in sequence rather than as one vectorised program.

    The result is true for modules with buffers, such as batch normalisation, which updates them in place. It is also true for
    modules with convolutions on a CPU, where one grouped convolution over all replicas is slower than separate ones.
    """
    if next(module.buffers(), None) is not None:
        return True
    return device.type == "cpu" and any(isinstance(m, _ConvNd) for m in module.modules())


class ModuleObjective:
    """Loss of a stack of modules with the architecture of ``module``, with gradients computed by autograd.

    This is an objective for :func:`mvnb.training.fit`. Call it with the parameters of a :func:`stack` of modules and a batch.
    It returns the losses ``(R,)`` and the gradients. The loss of replica r is ``loss(f_r, *batch_r)``, a scalar, where ``f_r``
    calls the module with the parameters of the replica and ``batch_r`` is the replica's part of the batch. Being a function,
    ``f_r`` has no attributes of the module; for a penalty on features, let the module return them beside the outputs. The
    replicas run as one vectorised program, or in sequence if the module has buffers, or convolutions on a CPU.

    >>> from mvnb import losses
    >>> modules = [nn.Linear(2, 3) for _ in range(5)]
    >>> objective = ModuleObjective(modules[0], losses.cross_entropy)
    >>> value, grads = objective(stack(modules), torch.ones(5, 8, 2), torch.zeros(5, 8, dtype=torch.int64))
    >>> value.shape, grads["weight"].shape
    (torch.Size([5]), torch.Size([5, 3, 2]))
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Tensor]):
        self._module, self._loss = module, loss
        self._names = [k for k, _ in module.named_parameters()]
        self._buffers = [k for k, _ in module.named_buffers()]
        self._in_turn = functools.cache(functools.partial(one_by_one, module))  # asked at every step

    @returns_gradients
    def __call__(self, params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        if missing := [k for k in self._names if k not in params]:
            raise ValueError(f"params must contain {', '.join(missing)}, as of stack, got {', '.join(params)}")
        return (self._sequential if self._in_turn(params[self._names[0]].device) else self._vectorised)(params, *batch)

    def _one(self, params: Params, *batch: Tensor) -> Tensor:
        return self._loss(lambda *x: functional_call(self._module, params, x), *batch)

    def _vectorised(self, params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        axes = (0, *(0 if _per_replica(part) else None for part in batch))
        own = {k: params[k] for k in self._names}
        return with_gradients(vmap(self._one, axes, randomness="different"))(own, *batch)

    def _sequential(self, params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
        losses, rows = [], []
        for r in range(len(params[self._names[0]])):
            leaves = {k: params[k][r].detach().requires_grad_() for k in self._names}
            value = self._one(
                {**leaves, **{k: params[k][r] for k in self._buffers}},
                *(part[r] if _per_replica(part) else part for part in batch),
            )
            rows.append(torch.autograd.grad(value, list(leaves.values())))
            losses.append(value.detach())
        return torch.stack(losses), {k: torch.stack(row) for k, row in zip(self._names, zip(*rows))}


def _per_replica(part) -> bool:
    """Return whether a part of a batch has a replica axis; scalars are shared by all replicas."""
    return torch.is_tensor(part) and part.dim() > 0


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Return ``x[index]``, of shape ``(*index.shape, ...)``, three times as fast on a CPU as by indexing."""
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)


def pick_own(x: Tensor, index: Tensor) -> Tensor:
    """Return the points ``(R, b, ...)`` of ``x`` ``(R, n, ...)`` with the indices ``index`` ``(R, b)`` in each replica.

    Raises ``ValueError`` if an index is negative or at least n; indices on a GPU are not checked.

    >>> pick_own(torch.tensor([[0, 1, 2], [10, 11, 12]]), torch.tensor([[0, 2], [1, 1]]))
    tensor([[ 0,  2],
            [11, 11]])
    """
    require_within("index", index, 0, x.shape[1] - 1)  # others would be points of another replica
    first = x.shape[1] * torch.arange(len(x), device=x.device)[:, None]
    return pick(x.flatten(0, 1), first + index)


def apply_stack(module: nn.Module, params: Params, x: Tensor):
    """Return the outputs of a stack of modules on ``x`` ``(R, n, ...)``: what ``module`` returns, with a leading replica axis.

    ``params`` are those of :func:`stack` and may have other entries; buffers change in place. Computed as one vectorised
    program or in sequence, see :func:`one_by_one`.
    """
    own = {k: params[k] for k in module.state_dict()}
    if not one_by_one(module, x.device):
        return vmap(lambda p, one: functional_call(module, p, (one,)))(own, x)
    rows = [functional_call(module, {k: v[r] for k, v in own.items()}, (x[r],)) for r in range(len(x))]
    return torch.stack(rows) if torch.is_tensor(rows[0]) else tuple(torch.stack(parts) for parts in zip(*rows))


def predict(module: nn.Module, params: Params, x: Tensor, chunk: int = 1000) -> Tensor:
    """Return the outputs ``(R, n, ...)`` of a stack of modules in evaluation mode on ``x`` ``(R, n, ...)``.

    ``module`` gives the architecture and ``params`` the stacked parameters. ``chunk`` points per replica are evaluated at a
    time. The modes of the module and its parts stay as they were. Differentiable with respect to ``params`` and ``x``.

    >>> modules = [nn.Linear(2, 3) for _ in range(5)]
    >>> predict(modules[0], stack(modules), torch.ones(5, 8, 2)).shape
    torch.Size([5, 8, 3])
    """
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        return torch.cat([apply_stack(module, params, z) for z in x.split(chunk, 1)], 1)
    finally:
        for part, training in modes.items():
            part.training = training
