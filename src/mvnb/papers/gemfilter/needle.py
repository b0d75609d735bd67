"""A needle in a haystack: one sentence hidden in a long text, the question about it, and the published score of an answer.

Source: Kamradt's benchmark as in the code of Shi et al. 2024 (GemFilter; Shi thesis 2024, section 9.4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
"""The sentence that is hidden."""
QUESTION = "What is the best thing to do in San Francisco?"
"""What is asked about it."""
EXPECTED = "eat a sandwich and sit in Dolores Park on a sunny day."
"""The answer that :func:`needle_score` looks for: 12 words, of which 11 are different."""
BEST_SCORE = 11 / 12
"""The score of the exact answer."""

_BEFORE = "This is a very long story book: <book>"
_AFTER = f" </book>.\nBased on the content of the book, Question: {QUESTION}"


class NeedlePrompt(NamedTuple):
    """The ``tokens`` ``(n,)`` of a prompt, int64; the needle's places ``start <= i < stop``; how many follow the book.

    Those last ``tail`` tokens are the question and what stands around it.
    """

    tokens: Tensor
    start: int
    stop: int
    tail: int


def needle_score(response: str) -> float:
    """Share of the expected answer's words that the response has, in [0, 11/12].

    Words are what lies between blanks, in lower case, and are counted once in the response; the divisor counts them as often as
    they are expected. That is how the published code does it, so that the exact answer gets 11/12.
    """
    expected = EXPECTED.lower().split()
    return len(set(expected) & set(response.lower().split())) / len(expected)


def needle_prompt(
    encode: Callable[[str], list[int]],
    sentences: Sequence[str],
    length: int,
    depth: float,
    start: str = "",
    end: str = "\nAnswer:",
) -> NeedlePrompt:
    """A prompt of exactly ``length`` tokens with the needle at ``depth`` (0: beginning, 1: end) of the haystack.

    The haystack is made of ``sentences`` in their order, cut where the prompt is full; the needle comes after the last sentence
    that ends before its depth. ``encode`` gives the tokens of a text without any that mark its ends. ``start`` comes before the
    published prompt and ``end`` after its question: as published, or what a model's chat template puts there.

    Raises
    ------
    ValueError
        When ``depth`` is outside [0, 1], when the needle and its frame leave no room, or when there is too little text.
    """
    if not 0 <= depth <= 1:
        raise ValueError(f"depth must lie between 0 and 1, got {depth}")
    before, after, needle = (encode(text) for text in (start + _BEFORE, _AFTER + end, " " + NEEDLE))
    room = length - len(before) - len(after) - len(needle)
    if room < 0:
        raise ValueError(f"a prompt with the needle has at least {length - room} tokens, got {length}")
    hay, ends = [], [0]
    for sentence in sentences:
        if len(hay) >= room:
            break
        hay += encode(" " + sentence)
        ends.append(len(hay))
    if len(hay) < room:
        raise ValueError(f"the sentences have {len(hay)} tokens, {room} are needed")
    place = max(end for end in ends if end <= depth * room)
    tokens = before + hay[:place] + needle + hay[place:room] + after
    first = len(before) + place
    return NeedlePrompt(torch.tensor(tokens), first, first + len(needle), len(after))
