"""Small worlds whose sequences are all listed, with distributions over the sequences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mvnb import training
from mvnb.papers.decision_lists import theory
from mvnb.papers.decision_lists.data import DecisionLists, every_sequence


class Populations(NamedTuple):
    """Sequences of several worlds, the distribution over them, and the value matrices P ``(R, L, L)``.

    ``tokens``, ``labels`` and ``decides`` are ``(R, S, n)``, ``probability`` is ``(R, S)``. The first three fields are what
    :func:`~mvnb.papers.decision_lists.theory.objective` takes.
    """

    tokens: Tensor
    labels: Tensor
    probability: Tensor
    decides: Tensor
    values: Tensor


def listed(size: tuple[int, int, int], seed: int, replicas: int, uniform: bool = False) -> Populations:
    """Draw lists for ``size``, (vocabulary, sequence, list), and a distribution over all sequences, for each replica.

    Three in ten sequences never occur; the others have probabilities in proportion to numbers uniform on [0.1, 1]. With
    ``uniform``, all sequences have equal probability.
    """
    streams = training.generators(seed, replicas)
    worlds = [DecisionLists.random(*size, g) for g in streams]
    tokens, labels, decides = every_sequence(worlds)
    values = torch.stack([one.value_matrix() for one in worlds])
    if uniform:
        return Populations(tokens, labels, torch.full(tokens.shape[:2], 1 / tokens.shape[1]).double(), decides, values)
    chance = torch.stack([torch.rand(tokens.shape[1], generator=g).double() for g in streams])
    weight = torch.where(chance < 0.3, 0.0, (chance - 0.3) / 0.7 * 0.9 + 0.1)
    return Populations(tokens, labels, weight / weight.sum(1, keepdim=True), decides, values)


def mistakes(some: Populations, params: dict[str, Tensor]) -> Tensor:
    """Return the probability ``(R,)`` of misclassified positions."""
    logits = theory.forward_backward(params["w"], params["v"], some.tokens, some.labels).logits
    return (theory.misclassified(logits, some.labels).double().mean(-1) * some.probability).sum(1)
