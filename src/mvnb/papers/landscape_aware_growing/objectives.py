"""What a language model is asked: objectives that turn windows of text into inputs, targets and masks.

All take windows of tokens ``(n, length)`` and return a :class:`LanguageBatch` with sequences of ``length - 1`` tokens, so that
one network can be trained on any of them, or on a mixture.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.papers.landscape_aware_growing.text import MASK, N_SENTINELS


class LanguageBatch(NamedTuple):
    """``inputs`` and ``targets`` ``(n, length)``, ``weights`` of the positions that count, and the ``prefix`` ``(n,)``.

    A position sees those before it, itself, and the first ``prefix`` ones (:func:`mvnb.models.transformer.visible`).
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    prefix: Tensor


def _causal_lm(windows: Tensor, generator: torch.Generator) -> LanguageBatch:
    """Ask for every token from those before it. The generator is not used."""
    n = len(windows)
    inputs = windows[:, :-1]
    return LanguageBatch(inputs, windows[:, 1:], torch.ones(inputs.shape), torch.zeros(n, dtype=torch.long))


def _prefix_lm(windows: Tensor, generator: torch.Generator) -> LanguageBatch:
    """Ask for the rest of a window from its beginning, which is read in both directions and has a uniform length."""
    n, length = windows.shape
    prefix = torch.randint(1, length - 1, (n,), generator=generator)
    weights = (torch.arange(length - 1) >= prefix[:, None] - 1).float()  # the prefix's last position predicts what follows
    return LanguageBatch(windows[:, :-1], windows[:, 1:], weights, prefix)


def _masked_lm(windows: Tensor, generator: torch.Generator) -> LanguageBatch:
    """Ask for a random 15 % of the tokens from all others: BERT's objective.

    Of the chosen positions 80 % show the mask token, 10 % a random character of the batch, 10 % what they are. At least one
    position of a window is chosen. Source: Devlin et al. 2019.
    """
    targets = windows[:, :-1]
    draw = torch.rand(targets.shape, generator=generator)
    chosen = (draw < 0.15) | (draw == draw.amin(1, keepdim=True))
    fate = torch.rand(targets.shape, generator=generator)
    noise = windows.flatten()[torch.randint(windows.numel(), targets.shape, generator=generator)]
    inputs = torch.where(chosen & (fate < 0.9), noise, targets)
    inputs = torch.where(chosen & (fate < 0.8), MASK, inputs)
    return LanguageBatch(inputs, targets, chosen.float(), torch.full((len(windows),), targets.shape[1]))


def _span_corruption(windows: Tensor, generator: torch.Generator) -> LanguageBatch:
    """Ask for two spans, together about 15 % of a window, from what is left of it.

    A sentinel stands for each span in the text, which is read in both directions; after it follow the first sentinel, the first
    span, the second sentinel and the second span, to be predicted (T5's objective, for one network; Raffel et al. 2020). Each
    half of the text loses one span. ``ValueError`` for windows of fewer than 12 tokens.
    """
    n, length = windows.shape
    if length < 12:
        raise ValueError(f"span corruption needs windows of at least 12 tokens, got {length}")
    span = max(1, round(0.15 * length / N_SENTINELS))
    text = windows[:, : length - 2 * N_SENTINELS]  # each sentinel is written twice
    half = text.shape[1] // N_SENTINELS
    place = torch.arange(text.shape[1])
    kept, answers = text.clone(), []
    drop = torch.zeros(text.shape, dtype=torch.bool)
    for j in range(N_SENTINELS):
        start = j * half + torch.randint(half - span + 1, (n, 1), generator=generator)
        answers += [torch.full((n, 1), MASK + j), text.gather(1, start + torch.arange(span))]
        kept = torch.where(place == start, MASK + j, kept)
        drop |= (place > start) & (place < start + span)
    order = drop.long().argsort(dim=1, stable=True)[:, : text.shape[1] - N_SENTINELS * (span - 1)]
    whole = torch.cat([kept.gather(1, order), *answers], 1)
    prefix = order.shape[1]
    weights = (torch.arange(whole.shape[1] - 1) >= prefix).float().expand(n, -1)  # the first sentinel itself is given
    return LanguageBatch(whole[:, :-1], whole[:, 1:], weights, torch.full((n,), prefix))


def _ul2_mixture(windows: Tensor, generator: torch.Generator) -> LanguageBatch:
    """Mix 60 % causal, 20 % prefix and 20 % span corruption, a window each (Karp et al. 2024, after UL2, Tay et al. 2023)."""
    parts = [make(windows, generator) for make in (_causal_lm, _prefix_lm, _span_corruption)]
    kind = torch.multinomial(torch.tensor([0.6, 0.2, 0.2]), len(windows), replacement=True, generator=generator)
    rows = torch.arange(len(windows))
    return LanguageBatch(*(torch.stack(field)[kind, rows] for field in zip(*parts)))


LANGUAGE_OBJECTIVES = {"causal": _causal_lm, "masked": _masked_lm, "mixture": _ul2_mixture}
"""The paper's objectives by name."""
