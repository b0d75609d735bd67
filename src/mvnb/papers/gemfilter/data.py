"""What is hidden and asked for: values behind keys for small models, a sentence in a long text for language models.

Sources: the symbols are chapter 15's; the sentences are those of Kamradt's benchmark as in the code of Shi et al. 2024
(GemFilter; Shi thesis 2024, section 9.4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.models.language import LanguageModel

NOISE, KEYS, VALUES, N_NEEDLES = 8, 16, 16, 4
MARK = NOISE + KEYS + VALUES
QUERY, VOCABULARY = MARK + 1, MARK + 2


def haystack(n: int, size: int, g: torch.Generator, depth: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens ``(size, n)``, needles ``(size, 4, 4)`` and their places; the first needle is at ``depth``, if given.

    Noise fills the places between the needles ``MARK key v1 v2``, which stand in slots of four. Keys differ, and so do values.
    """
    tokens = torch.randint(NOISE, (size, n), generator=g)
    slots = torch.rand(size, n // 4, generator=g).argsort(1)[:, :N_NEEDLES]
    if depth is not None:
        wanted = round(depth * (n // 4 - 1))
        slots = torch.where(slots == wanted, slots[:, :1], slots)
        slots[:, 0] = wanted
    keys = torch.rand(size, KEYS, generator=g).argsort(1)[:, :N_NEEDLES] + NOISE
    values = torch.rand(size, VALUES, generator=g).argsort(1) + NOISE + KEYS
    values = values[:, : 2 * N_NEEDLES].view(size, N_NEEDLES, 2)
    needles = torch.cat([torch.full((size, N_NEEDLES, 1), MARK), keys[..., None], values], 2)
    places = 4 * slots[..., None] + torch.arange(4)
    return tokens.scatter(1, places.flatten(1), needles.flatten(1)), needles, places


def training_batch(n: int, size: int, g: torch.Generator) -> Tensor:
    """Return haystacks, each followed by an answered question for every needle."""
    tokens, needles, _ = haystack(n, size, g)
    order = torch.rand(size, N_NEEDLES, 1, generator=g).argsort(1).expand(-1, -1, 4)
    asked = torch.cat([torch.full_like(needles[..., :1], QUERY), needles[..., 1:]], 2)
    return torch.cat([tokens, asked.gather(1, order).flatten(1)], 1)


def prompts_at(n: int, size: int, depth: float, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return prompts ``(size, n + 2)``, answers ``(size, 2)`` and the places of the needle ``(size, 4)``."""
    tokens, needles, places = haystack(n, size, g, depth)
    asked = torch.stack([torch.full((size,), QUERY), needles[:, 0, 1]], 1)
    return torch.cat([tokens, asked], 1), needles[:, 0, 2:], places[:, 0]


def prompts_by_depth(n: int, depths: Sequence[float], size: int, g: torch.Generator, device) -> tuple[Tensor, ...]:
    """Return ``size`` prompts for each depth, those of one depth together, with answers and places of the needle."""
    return tuple(torch.cat(part).to(device) for part in zip(*(prompts_at(n, size, depth, g) for depth in depths)))


def spell(tokens: Tensor) -> str:
    """Return the names of tokens ``(n,)``: noise n0, keys k0, values v0, MARK and QUERY."""
    names = [f"{kind}{i}" for kind, size in (("n", NOISE), ("k", KEYS), ("v", VALUES)) for i in range(size)]
    return " ".join([*names, "MARK", "QUERY"][t] for t in tokens.tolist())


class Needle(NamedTuple):
    """A sentence to hide, the question about it, the answer, and the words of the answer that the question does not suggest."""

    sentence: str
    question: str
    answer: str
    words: str


NEEDLES = (
    Needle(
        "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.",
        "What is the best thing to do in San Francisco?",
        "eat a sandwich and sit in Dolores Park on a sunny day.",
        "sandwich dolores park sunny",
    ),
    Needle(
        "The secret of Aunt Martha's apple pie is a pinch of black pepper and two spoons of orange honey.",
        "What is the secret of Aunt Martha's apple pie?",
        "a pinch of black pepper and two spoons of orange honey.",
        "pinch pepper orange honey",
    ),
    Needle(
        "The lighthouse keeper of Port Ellery hid his silver key under the third step of the blue staircase.",
        "Where did the lighthouse keeper of Port Ellery hide his silver key?",
        "under the third step of the blue staircase.",
        "third step blue staircase",
    ),
    Needle(
        "The meeting about the new library was moved to Thursday morning in the green room behind the kitchen.",
        "When and where is the meeting about the new library?",
        "Thursday morning in the green room behind the kitchen.",
        "thursday morning green kitchen",
    ),
    Needle(
        "The best gift for a gardener in Toronto is a pair of red gloves and a small book of winter poems.",
        "What is the best gift for a gardener in Toronto?",
        "a pair of red gloves and a small book of winter poems.",
        "gloves book winter poems",
    ),
)
"""The published needle and four more of its kind."""
REPEATED = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
"""The five sentences of passkey tests (Mohtashami and Jaggi 2023), to be repeated as a haystack."""


class NeedlePrompt(NamedTuple):
    """The ``tokens`` ``(n,)`` of a prompt, int64; the needle's places ``start <= i < stop``; how many tokens follow the book.

    Those last ``tail`` tokens are the question and the text around it.
    """

    tokens: Tensor
    start: int
    stop: int
    tail: int


def needle_prompt(
    lm: LanguageModel,
    sentences: Sequence[str],
    length: int,
    depth: float,
    needle: Needle = NEEDLES[0],
    frame: Sequence[str] = (),
) -> NeedlePrompt:
    """Return a prompt of exactly ``length`` tokens with the needle at ``depth`` (0: beginning, 1: end) of the haystack.

    The haystack consists of ``sentences`` in their order, cut where the prompt is full; the needle follows the last sentence
    that ends before its depth. ``frame`` gives the texts before the published prompt and after its question, for a model's chat
    template; without it they are empty and "Answer:", as published. A tokenizer's mark of the beginning comes first.

    Raises ``ValueError`` if ``depth`` lies outside [0, 1], the needle and its frame are too long, or there is too little text.
    """
    if not 0 <= depth <= 1:
        raise ValueError(f"depth must lie between 0 and 1, got {depth}")
    start, end = frame or ("", "\nAnswer:")
    marks = [token for token in lm.tokenizer.encode("")[:1] if token != lm.tokenizer.eos_token_id]
    before = marks + lm.encode(f"{start}This is a very long story book: <book>")
    after = lm.encode(f" </book>.\nBased on the content of the book, Question: {needle.question}{end}")
    hidden = lm.encode(" " + needle.sentence)
    room = length - len(before) - len(after) - len(hidden)
    if room < 0:
        raise ValueError(f"a prompt with the needle has at least {length - room} tokens, got {length}")
    hay, ends = [], [0]
    for sentence in sentences:
        if len(hay) >= room:
            break
        hay += lm.encode(" " + sentence)
        ends.append(len(hay))
    if len(hay) < room:
        raise ValueError(f"expected sentences with {room} tokens, got {len(hay)}")
    place = max(end for end in ends if end <= depth * room)
    tokens = before + hay[:place] + hidden + hay[place:room] + after
    first = len(before) + place
    return NeedlePrompt(torch.tensor(tokens), first, first + len(hidden), len(after))
