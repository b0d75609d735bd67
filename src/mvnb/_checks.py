"""Checks of arguments that several modules share."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

NO_LABEL = -(2**63)
"""Value for ``ignore_index`` of PyTorch's cross-entropies, by default -100, so that no wrong label is ignored."""


def require_within(name: str, values: Tensor | float, low: float, high: float) -> None:
    """Raise ``ValueError`` unless all values lie in ``[low, high]``.

    Tensors on a GPU are not checked, since the check would wait for the device, nor tensors inside ``vmap``, which hides their
    values.
    """
    least = most = values
    if isinstance(values, Tensor):
        if values.device.type != "cpu" or is_functorch_wrapped_tensor(values) or not values.numel():
            return
        least, most = (bound.item() for bound in values.detach().aminmax())
    if not low <= least <= most <= high:
        received = f"{least}" if least == most else f"{least} to {most}"
        raise ValueError(f"{name} must lie in {low} to {high}, got {received}")


@contextmanager
def labels_below(n_classes: int, name: str = "y") -> Iterator[None]:
    """Raise ``ValueError`` if PyTorch refuses a label within the context; it checks all labels, also inside ``vmap``."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if "out of bounds" not in str(error):
            raise
        received = str(error).split(" is out of bounds")[0].split()[-1]
        raise ValueError(f"{name} must lie in 0 to {n_classes - 1}, got {received}") from None


def require_numbers(instance) -> None:
    """Raise ``ValueError`` if a field of a dataclass that is declared as ``int`` or ``float`` is no integer or not finite."""
    for one in fields(instance):
        value = getattr(instance, one.name)
        if one.type == "float" and not math.isfinite(value):
            raise ValueError(f"{one.name} must be finite, got {value}")
        if one.type == "int" or (one.type == "int | None" and value is not None):
            try:
                operator.index(value)
            except TypeError:
                raise ValueError(f"{one.name} must be an integer, got {value!r}") from None
