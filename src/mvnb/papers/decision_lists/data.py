"""Sequences whose tokens are labelled by decision lists: the first token of a list that is present decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator


class Sequences(NamedTuple):
    """Sequences of ``tokens`` ``(..., n, length)`` and the token that ``decides`` each position's label, of the same shape."""

    tokens: Tensor
    decides: Tensor


@dataclass(frozen=True, eq=False)
class DecisionLists:
    r"""Distribution of sequences of different tokens whose labels follow from decision lists.

    Every token a has a list, row a of ``lists``, that ends with a itself. In a sequence that holds a, the first entry of the
    list that is present is the *deciding* token b, and the label at a's position is ``permutation[b]``. Source: Karp thesis
    2024, sections 4.2.2 and 4.2.3; the uniform distribution of sequences is that of its Figure 4.1.

    Parameters
    ----------
    lists
        ``(n_tokens, list_length)``, the lists L_a; a shorter list is filled up by repeating its last entry.
    permutation
        ``(n_tokens,)``, the map pi from the deciding token to the label.
    length
        Tokens of a sequence, n, at most ``n_tokens``.

    Raises
    ------
    ValueError
        If a list does not end with its own token, ``permutation`` is not a permutation, or ``length`` is out of range.
    """

    lists: Tensor
    permutation: Tensor
    length: int

    def __post_init__(self):
        if not 1 <= self.length <= self.n_tokens:
            raise ValueError(f"length must be from 1 to the {self.n_tokens} tokens, got {self.length}")
        if self.lists.dim() != 2 or not torch.equal(self.lists[:, -1], torch.arange(self.n_tokens)):
            raise ValueError("lists must be a matrix whose row a ends with token a")
        if not torch.equal(self.permutation.sort().values, torch.arange(self.n_tokens)):
            raise ValueError("permutation must hold every token once")

    @classmethod
    def shifted(cls, n_tokens: int = 200, length: int = 25, offsets=(10, 20, 30), shift: int = 20) -> DecisionLists:
        """Return the world of lists ``(a + offsets[0], a + offsets[1], ..., a)`` and labels ``b + shift``, modulo ``n_tokens``.

        The defaults are those of Karp thesis 2024, Figure 4.1, with tokens counted from 0. Raises ``ValueError`` unless the
        offsets are different and not 0 modulo ``n_tokens``.
        """
        entries = [*(offset % n_tokens for offset in offsets), 0]
        if len(set(entries)) < len(entries):
            raise ValueError(f"offsets must be different, and not 0, modulo {n_tokens}, got {tuple(offsets)}")
        tokens = torch.arange(n_tokens)
        return cls((tokens[:, None] + torch.tensor(entries)) % n_tokens, (tokens + shift) % n_tokens, length)

    @classmethod
    def random(cls, n_tokens: int, length: int, list_length: int, generator: Seed) -> DecisionLists:
        """Draw lists of ``list_length`` different tokens in random order, the own token last, and a random permutation.

        Raises ``ValueError`` unless ``1 <= list_length <= n_tokens``.
        """
        generator = as_generator(generator)
        if not 1 <= list_length <= n_tokens:
            raise ValueError(f"list_length must be from 1 to {n_tokens}, got {list_length}")
        order = torch.rand(n_tokens, n_tokens, generator=generator).fill_diagonal_(-1)
        own = torch.arange(n_tokens)[:, None]
        lists = torch.cat([order.topk(list_length - 1, dim=1).indices, own], dim=1)
        return cls(lists, torch.randperm(n_tokens, generator=generator), length)

    @property
    def n_tokens(self) -> int:
        """Size of the vocabulary, L."""
        return len(self.lists)

    def deciding(self, tokens: Tensor) -> Tensor:
        """Return the token that decides each position's label, ``(n, length)``, for ``tokens`` ``(n, length)``."""
        present = torch.zeros(len(tokens), self.n_tokens, dtype=torch.bool).scatter_(1, tokens, True)
        entries = self.lists[tokens]  # (n, length, list_length)
        hit = present.gather(1, entries.flatten(1)).view(entries.shape)
        first = hit.byte().argmax(-1, keepdim=True)  # the first of equal maxima
        return entries.gather(-1, first)[..., 0]

    def value_matrix(self, scale: float = 1.0) -> Tensor:
        """Return the matrix ``c P`` ``(n_tokens, n_tokens)``: entry ``(permutation[b], b)`` is ``scale``, all others 0."""
        return scale * torch.nn.functional.one_hot(self.permutation).T.double()

    def sample(self, n: int, generator: Seed, containing: int | None = None) -> Sequences:
        """Draw ``n`` sequences of ``length`` different tokens, uniformly.

        With ``containing``, all sequences contain that token, at their first position. Raises ``ValueError`` if it does not
        exist.
        """
        generator = as_generator(generator)
        if containing is not None and not 0 <= containing < self.n_tokens:
            raise ValueError(f"containing must be a token from 0 to {self.n_tokens - 1}, got {containing}")
        keys = torch.rand(n, self.n_tokens, generator=generator)
        if containing is not None:
            keys[:, containing] = 2.0
        tokens = keys.topk(self.length, dim=1).indices
        return Sequences(tokens, self.deciding(tokens))


def every_sequence(worlds: Sequence[DecisionLists]) -> tuple[Tensor, Tensor, Tensor]:
    """Return all token sets of worlds of equal size: tokens, labels and deciding tokens ``(world, set, length)``.

    Tokens of a set are in ascending order; a layer without positional encoding does not depend on the order.
    """
    sets = torch.combinations(torch.arange(worlds[0].n_tokens), worlds[0].length)
    decides = torch.stack([world.deciding(sets) for world in worlds])
    labels = torch.stack([world.permutation[one] for world, one in zip(worlds, decides)])
    return sets.expand_as(decides), labels, decides
