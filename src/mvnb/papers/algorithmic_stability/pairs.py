"""Paired runs: the same start, the same order of batches, and one controlled difference.

Runs that are to be compared must differ in one thing only. :class:`LockStep` gives every replica of a table the same sequence
of positions, a fresh permutation an epoch that the table's seed decides, so that two rows that differ in one entry meet
different data once an epoch and equal data otherwise. :func:`sample_swaps` draws such rows. Replicas of a stack whose rows,
parameters and steps are equal stay equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator
from mvnb.training.stacking import pick


class Swaps(NamedTuple):
    """Pairs of training sets that differ in one position, as indices into the pool followed by the spare points.

    ``members`` ``(2, P, size)``: ``members[0]`` are the sets S, ``members[1]`` the sets S'; ``position`` ``(P,)``, where they
    differ; ``incoming`` ``(P,)``, which of the spare points S' has there.
    """

    members: Tensor
    position: Tensor
    incoming: Tensor


def sample_swaps(n_pool: int, n_spare: int, size: int, pairs: int, generator: Seed) -> Swaps:
    """Draw ``pairs`` independent pairs (S, S') of ``size`` points.

    S is a uniform subset of the ``n_pool`` first points, without replacement and in random order; S' is S with a uniform
    position taken by a uniform one of the ``n_spare`` points after them. Source: Karp 2024, section 2.2.

    Raises ``ValueError`` unless ``1 <= size <= n_pool`` and ``pairs`` and ``n_spare`` are at least 1.
    """
    generator = as_generator(generator)
    if not 1 <= size <= n_pool:
        raise ValueError(f"size must be from 1 to the {n_pool} points of the pool, got {size}")
    if pairs < 1 or n_spare < 1:
        raise ValueError(f"pairs and n_spare must be at least 1, got {pairs} and {n_spare}")
    first = torch.stack([torch.randperm(n_pool, generator=generator)[:size] for _ in range(pairs)])
    incoming = torch.randint(n_spare, (pairs,), generator=generator)
    position = torch.randint(size, (pairs,), generator=generator)
    second = first.scatter(1, position[:, None], n_pool + incoming[:, None])
    return Swaps(torch.stack([first, second]), position, incoming)


class LockStep:
    """Mini-batches in lock-step, as the ``batches`` of :func:`mvnb.training.fit`.

    ``x`` ``(N, ...)`` and ``y`` ``(N,)`` are all points; ``tables`` hold their indices, ``(R_i, size_i)``, one row a run. All
    rows of table i take the same ``batch`` positions at the same step: in each epoch those of a fresh permutation that
    ``seeds[i]`` and the epoch decide, without the incomplete last batch. Steps may be asked for in any order. Returns the
    points ``(R, batch, ...)`` and labels ``(R, batch)`` of all tables, one after the other.

    Raises ``ValueError`` when a table has fewer points than a batch, or when seeds and tables differ in number.
    """

    def __init__(self, x: Tensor, y: Tensor, tables: Sequence[Tensor], batch: int, seeds: Sequence[int]):
        if len(tables) != len(seeds) or not tables:
            raise ValueError(f"every table needs a seed, got {len(tables)} tables and {len(seeds)} seeds")
        smallest = min(t.shape[1] for t in tables)
        if not 1 <= batch <= smallest:
            raise ValueError(f"batch must be from 1 to the {smallest} points of the smallest set, got {batch}")
        self._x, self._y, self._batch, self._seeds = x, y, batch, list(seeds)
        self._tables = [t.to(x.device) for t in tables]
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def positions(self, table: int, step: int) -> Tensor:
        """Which positions ``(batch,)`` of the sets of a table make the batch of a step."""
        size = self._tables[table].shape[1]
        epoch, turn = divmod(step, size // self._batch)
        if self._orders.get(table, (-1,))[0] != epoch:
            mixed = (self._seeds[table] * 1_000_003 + epoch) % 2**63
            order = torch.randperm(size, generator=torch.Generator().manual_seed(mixed))
            self._orders[table] = (epoch, order.to(self._x.device))
        return self._orders[table][1][turn * self._batch : (turn + 1) * self._batch]

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        rows = torch.cat([t.index_select(1, self.positions(i, step)) for i, t in enumerate(self._tables)])  # (R, batch)
        return pick(self._x, rows), pick(self._y, rows)

    def visits(self, table: int, position: Tensor, steps: int) -> Tensor:
        """At which of the first ``steps`` steps the batch holds each position: booleans ``(steps, *position.shape)``."""
        target = position.to(self._x.device)[..., None]
        return torch.stack([(target == self.positions(table, s)).any(-1) for s in range(steps)])
