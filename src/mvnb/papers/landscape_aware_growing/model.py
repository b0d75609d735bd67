"""Growing a trained network in depth: which layers the larger network begins with, and where its new ones come from.

A :class:`Growth` operator is a point of a small algebra, index x block size x initialisation. It is carried out by a *plan*, a
list of layer numbers, and so acts on parameters, on an optimizer's moments, and on a stack of networks alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mvnb import training


@dataclass(frozen=True)
class Growth:
    """A depth-growing operator: ``k`` consecutive layers from ``index`` (counted from 0) become ``2 k``.

    They are cut into ``k / block`` blocks, and every block is followed by ``block`` new layers: copies of it, or random ones.
    Source: Karp et al. 2024, section 5.2.1, where the index counts from 1.
    """

    k: int
    index: int
    block: int
    random: bool = False

    def plan(self, n_layers: int) -> list[int]:
        """The layers of the grown network, ``n_layers + k`` numbers; ``n_layers + j`` stands for the j-th random layer.

        Raises ``ValueError`` when ``block`` does not divide ``k`` or the ``k`` layers do not lie within the network.
        """
        k, i, b = self.k, self.index, self.block
        if k < 1 or b < 1 or k % b:
            raise ValueError(f"the block size must divide k, got block {b} for k = {k}")
        if not 0 <= i <= n_layers - k:
            raise ValueError(f"the index must lie between 0 and {n_layers - k}, got {i}")
        layers = list(range(i))
        for start in range(i, i + k, b):
            old = list(range(start, start + b))
            fresh = [n_layers + j - i for j in old]
            layers += old + (fresh if self.random else old)
        return layers + list(range(i + k, n_layers))

    def __str__(self) -> str:
        return f"{self.index}/{self.block} {'random' if self.random else 'copy'}"


def search_space(k: int, indices: Iterable[int], blocks: Iterable[int], random: Sequence[bool] = (False, True)) -> list[Growth]:
    """All operators with these indices, block sizes and initialisations; the paper's 12 -> 16 space has 5 x 3 x 2."""
    indices, blocks = list(indices), list(blocks)
    return [Growth(k, i, b, r) for r in random for b in blocks for i in indices]


def post_stacking(n_layers: int, k: int) -> Growth:
    """The last ``k`` layers once more, on top: gradual stacking (Reddi et al. 2023)."""
    return Growth(k, n_layers - k, k)


def grow(tree: dict, plans: Sequence[Sequence[int]], fresh: Callable[[str, Tensor], Tensor]) -> dict:
    """Every network of a stack grown by every plan: ``(R, L, ...)`` to ``(R * P, L + k, ...)``, plans innermost.

    ``tree`` may be parameters or an optimizer's state: in entries whose name contains ``"layers."`` the plan picks layers along
    axis 1, other tensors with axes are repeated, anything else is kept. ``fresh(name, like)`` makes the ``k`` random layers
    ``(R, k, ...)`` of an entry, the same for all plans that ask for any; ``like`` is an empty tensor of that shape.
    """
    grown, index = {}, torch.tensor([list(plan) for plan in plans])
    for name, value in tree.items():
        if not torch.is_tensor(value) or not value.dim():
            grown[name] = value
        elif "layers." in name:
            k = index.shape[1] - value.shape[1]
            parts = torch.cat([value, fresh(name, torch.empty_like(value[:, :1].expand(-1, k, *value.shape[2:])))], 1)
            grown[name] = parts[:, index.to(value.device)].flatten(0, 1)  # (R, P, L + k, ...) to (R * P, L + k, ...)
        else:
            grown[name] = value.repeat_interleave(len(plans), 0)
    return grown


def random_layers(seeds: Sequence[int], std: float) -> Callable[[str, Tensor], Tensor]:
    """Return the argument ``fresh`` of :func:`grow`: normal random layers, drawn once per seed and kind of parameter."""
    kinds = ("layers.down", "layers.out", "layers.qkv", "layers.up")

    def fresh(name: str, like: Tensor) -> Tensor:
        draws = [torch.randn(like.shape[1:], generator=training.stream(seed, 2 + kinds.index(name))) for seed in seeds]
        return std * torch.stack(draws).to(like)

    return fresh
