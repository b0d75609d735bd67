"""A stand-in for CUDA: tensors say that they are on a card, their data stay on the CPU, and CUDA's rules are enforced.

Books are kept by storage: what was sent to the card (``.to``, ``.cuda``, ``device=``) or computed from it is on the card, views
included. ``.device`` and ``.is_cuda`` say so, and what CUDA would refuse is refused: two devices in an operation (tensors
without axes excepted), ``.numpy()`` of a card's tensor, a CPU tensor indexed by a card's, a generator of another device.
Transfers and synchronisations are counted.

Tests use :func:`card`, and ``elsewhere.py`` for the kernels of notebooks. What a card computes otherwise than a processor, its
memory and its kernels, are not imitated.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

CARD, CPU = torch.device("cuda", 0), torch.device("cpu")
TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
NO_NUMPY = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
SYNCHRONISING = {"_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "_unique2", "unique_dim"}
COPIES = {"copy_", "_to_copy"}
INDEXED = {"index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"}
SCALARS = {"fill_", "fill", "masked_fill", "masked_fill_", "index_fill", "index_fill_", "_foreach_mul", "_foreach_mul_"}


@dataclass
class Counts:
    """``transfers`` between the devices, and ``synchronisations``, where the processor waits for the card."""

    transfers: int = 0
    synchronisations: int = 0


class _Shelf:
    """The storages that are on the card."""

    def __init__(self):
        self._refs, self._limit = {}, 10_000

    def put(self, tensor: Tensor) -> Tensor:
        for storage in _storages(tensor):
            ref = StorageWeakRef(storage)  # while it is held, no other storage has the address
            self._refs.setdefault(ref.cdata, ref)
        if len(self._refs) > self._limit:
            self._refs = {key: ref for key, ref in self._refs.items() if not ref.expired()}
            self._limit = max(10_000, 2 * len(self._refs))
        return tensor

    def holds(self, tensor: Tensor) -> bool:
        for storage in _storages(tensor):  # asked a million times a run: a generator would cost as much again
            if storage._cdata in self._refs:
                return True
        return False


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    """Storages behind a tensor, of which views share one; also under the wrappers of ``torch.func``."""
    with torch._C.DisableTorchFunction():
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        if tensor.layout is torch.strided:
            return [tensor.untyped_storage()]
        parts = (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()
        return [part.untyped_storage() for part in parts]


def _tensors(tree, found: list[Tensor] | None = None) -> list[Tensor]:
    """The tensors among arguments or results, in their order; ``tree_leaves`` takes ten times as long."""
    found = [] if found is None else found
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            _tensors(part, found)
    elif isinstance(tree, dict):
        for part in tree.values():
            _tensors(part, found)
    return found


def on_card(device) -> bool:
    """Whether a device as PyTorch takes it (a device, its name or number, or None) is the card; ``ValueError`` for others."""
    if device is None:
        return False
    type_ = torch.device(device).type if not isinstance(device, int) else "cuda"
    if type_ not in ("cpu", "cuda", "meta"):
        raise ValueError(f"the stand-in knows cpu and cuda, not {device!r}")
    return type_ == "cuda"


class _At:
    """See :meth:`_Computing.at`; a generator's context would take four times as long, once a call of PyTorch."""

    def __init__(self, computing: "_Computing", here: bool, named: bool):
        self.computing, self.inside = computing, (here, named)

    def __enter__(self):
        self.outside = self.computing.here, self.computing.named
        self.computing.here, self.computing.named = self.inside

    def __exit__(self, *error):
        self.computing.here, self.computing.named = self.outside


class _Computing(TorchDispatchMode):
    """Every operation, those of ``torch.func`` and of the backward pass among them: checks devices and keeps the books."""

    def __init__(self, shelf: _Shelf, counts: Counts):
        super().__init__()
        self.shelf, self.counts = shelf, counts
        self.here = self.named = False

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is compiled here, and being left out of it costs as much as the checks

    def at(self, here: bool, named: bool = False) -> "_At":
        """What has no tensor among its arguments is made on the card in here, or not; where a device is named, everything."""
        return _At(self, here, named)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        held = [self.shelf.holds(tensor) for tensor in tensors]
        name = func._schema.name.removeprefix("aten::")
        if any(held) and not all(held):
            self._two_devices(func, name, args, kwargs, tensors, held)
        out = func(*args, **kwargs)
        if any(held) and (name in SYNCHRONISING or (name in INDEXED and _boolean(args[1]))):
            self.counts.synchronisations += 1
        if self._is_made_here(name, held):
            for part in _tensors(out):
                self.shelf.put(part)
        return out

    def _is_made_here(self, name: str, held: list[bool]) -> bool:
        if self.named or not held:
            return self.here
        return held[0] if name in COPIES | INDEXED else any(held)

    def _two_devices(self, func, name: str, args, kwargs, tensors: list[Tensor], held: list[bool]) -> None:
        if name in COPIES:
            self.counts.transfers += 1
            self.counts.synchronisations += 1
            return
        if name in INDEXED:
            self._indices(name, args)
            return
        scalars_may_differ = torch.Tag.pointwise in func.tags or name in SCALARS
        if not scalars_may_differ or any(t.dim() and not there for t, there in zip(tensors, held)):
            raise RuntimeError(f"{TWO_DEVICES} (when checking arguments of {func})")

    def _indices(self, name: str, args) -> None:
        """A card's tensor takes the CPU's indices, at the cost of a transfer; nothing else may differ but a single value."""
        target, indices = args[0], _tensors(args[1])
        if not self.shelf.holds(target) and any(self.shelf.holds(index) for index in indices):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        value = args[2] if len(args) > 2 else target
        if self.shelf.holds(value) != self.shelf.holds(target) and value.dim():
            raise RuntimeError(f"{TWO_DEVICES} (when checking arguments of {name})")
        self.counts.transfers += sum(not self.shelf.holds(index) for index in indices)


def _boolean(indices) -> bool:
    return any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(indices))


class _Copy(torch.autograd.Function):
    """A copy on the other device, whose gradient goes the way back."""

    @staticmethod
    def forward(ctx, x, surface, to_card):
        ctx.surface, ctx.to_card = surface, to_card
        return surface.copied(x, to_card)

    @staticmethod
    def backward(ctx, grad):
        return ctx.surface.copied(grad, not ctx.to_card), None, None


class _Surface(TorchFunctionMode):
    """What Python says to PyTorch: where tensors are, transfers, ``device=``, generators, NumPy."""

    def __init__(self, shelf: _Shelf, counts: Counts, computing: _Computing):
        super().__init__()
        self._shelf, self._counts, self._computing = shelf, counts, computing
        self._special = {
            Tensor.device.__get__: lambda x: CARD if shelf.holds(x) else _true_device(x),
            Tensor.is_cuda.__get__: lambda x: shelf.holds(x),
            Tensor.is_cpu.__get__: lambda x: not shelf.holds(x),
            Tensor.get_device: lambda x: 0 if shelf.holds(x) else -1,
            Tensor.numpy: self._numpy(Tensor.numpy),
            Tensor.__array__: self._numpy(Tensor.__array__),
            Tensor.tolist: self._tolist,
            Tensor.to: self._to,
            Tensor.cuda: lambda x, *args, **kwargs: self._send(x, True),
            Tensor.cpu: lambda x, *args, **kwargs: self._send(x, False),
            torch.as_tensor: self._as_tensor,
            torch.nn.functional.one_hot: self._one_hot,
        }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if special := self._special.get(func):
            return special(*args, **kwargs)
        tensors = _tensors((args, kwargs))
        held = [self._shelf.holds(tensor) for tensor in tensors]
        named = kwargs.get("device") is not None
        here = on_card(kwargs.pop("device")) if named else any(held)
        self._check_generators((*args, *kwargs.values()), here)
        if named and func is torch.tensor and here:
            self._counts.transfers += 1
        with self._computing.at(here, named):
            out = func(*args, **kwargs)
        made = [part for part in _tensors(out) if not self._shelf.holds(part)] if here else []
        if made:  # where no operation is seen, such as in deepcopy
            ours = [storage._cdata for t, there in zip(tensors, held) if not there for storage in _storages(t)]
            for part in made:
                if not any(storage._cdata in ours for storage in _storages(part)):
                    self._shelf.put(part)
        return out

    def _check_generators(self, arguments, here: bool) -> None:
        for one in arguments:
            if isinstance(one, torch._C.Generator) and on_card(one.device) != here:
                wanted, found = (CARD.type, CPU.type) if here else (CPU.type, CARD.type)
                raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")

    def _numpy(self, func):
        def converted(x, *args, **kwargs):
            if self._shelf.holds(x):
                raise TypeError(NO_NUMPY)
            return func(x, *args, **kwargs)

        return converted

    def _tolist(self, x):
        self._counts.synchronisations += self._shelf.holds(x)
        return x.tolist()

    def _one_hot(self, x, *args, **kwargs):
        """On a card PyTorch does not look at the labels first."""
        before = self._counts.synchronisations
        with self._computing.at(self._shelf.holds(x)):
            out = torch.nn.functional.one_hot(x, *args, **kwargs)
        self._counts.synchronisations = before
        return out

    def _to(self, x, *args, **kwargs):
        """``x.to`` in its three forms: with a device, with another tensor, with a type alone."""
        other = next((value for value in (*args[:1], kwargs.get("other")) if isinstance(value, Tensor)), None)
        names = [value for value in (*args, kwargs.get("device")) if isinstance(value, str | torch.device)]
        names += [value for value in args[:1] if isinstance(value, int) and not isinstance(value, bool)]
        if other is None and not names:
            return self._keeping(x, args, kwargs)
        to_card = self._shelf.holds(other) if other is not None else on_card(names[0])
        if to_card == self._shelf.holds(x):
            return self._keeping(x, *tree_map(lambda v: CPU if v in names and v is not None else v, (args, kwargs)))
        dtype = other.dtype if other is not None else None
        dtype = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)), dtype)
        moved = self._send(x, to_card)
        return moved if dtype is None else self._keeping(moved, (dtype,), {})

    def _keeping(self, x, args, kwargs):
        with self._computing.at(self._shelf.holds(x)):
            return x.to(*args, **kwargs)

    def _send(self, x, to_card: bool):
        if to_card == self._shelf.holds(x):
            return x
        if x.requires_grad and torch.is_grad_enabled() and not torch._C._functorch.is_functorch_wrapped_tensor(x):
            return _Copy.apply(x, self, to_card)
        return self.copied(x, to_card)

    def copied(self, x, to_card: bool):
        """A copy of a tensor on the other device."""
        self._counts.transfers += 1
        self._counts.synchronisations += 1
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            out = x.clone()
        return self._shelf.put(out) if to_card else out

    def _as_tensor(self, data, dtype=None, device=None):
        if isinstance(data, Tensor):
            moved = data if device is None else self._to(data, device)
            return moved if dtype is None else self._keeping(moved, (dtype,), {})
        out = torch.as_tensor(data, dtype=dtype)
        return self.copied(out, True) if on_card(device) else out


def _true_device(x: Tensor) -> torch.device:
    with torch._C.DisableTorchFunction():
        return x.device


class _Generator(torch.Generator):
    """A generator that knows which device it was made for."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        made._here = on_card(device)
        return made

    @property
    def device(self):
        return CARD if self._here else CPU


@contextmanager
def card():
    """PyTorch has one card in here; yields the :class:`Counts`."""
    shelf, counts = _Shelf(), Counts()
    computing = _Computing(shelf, counts)
    load = torch.load

    def load_to(file, map_location=None, **kwargs):
        here = isinstance(map_location, str | torch.device) and on_card(map_location)
        found = load(file, map_location="cpu" if here else map_location, **kwargs)
        return tree_map(lambda v: shelf.put(v) if isinstance(v, Tensor) else v, found) if here else found

    def synchronise(*_):
        counts.synchronisations += 1

    there = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "stand-in",
        "get_device_capability": lambda *_: (8, 0),
        "synchronize": synchronise,
        "empty_cache": lambda: None,
        "get_rng_state": lambda *_: torch.empty(0, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
        "manual_seed": lambda *_: None,
        "manual_seed_all": lambda *_: None,
    }
    patches = [mock.patch.object(torch.cuda, name, value) for name, value in there.items()]
    patches += [mock.patch.object(torch, "load", load_to), mock.patch.object(torch, "Generator", _Generator)]
    with ExitStack() as stack:
        for one in (*patches, computing, _Surface(shelf, counts, computing)):
            stack.enter_context(one)
        yield counts
