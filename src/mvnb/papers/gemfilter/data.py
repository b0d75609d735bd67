"""What is hidden and asked for: values behind keys for small models, a sentence in a long text for language models.

Sources: the symbols are chapter 15's; the sentences are those of Kamradt's benchmark as in the code of Shi et al. 2024
(GemFilter; Shi thesis 2024, section 9.4.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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


def prompts_by_depth(n: int, depths: Sequence[float], size: int, g: torch.Generator, device="cpu") -> tuple[Tensor, ...]:
    """Return prompts ``(b, n + 2)``, answers ``(b, 2)``, places of the needle ``(b, 4)``: ``size`` for each depth in turn."""
    parts = []
    for depth in depths:
        tokens, needles, places = haystack(n, size, g, depth)
        asked = torch.stack([torch.full((size,), QUERY), needles[:, 0, 1]], 1)
        parts.append((torch.cat([tokens, asked], 1), needles[:, 0, 2:], places[:, 0]))
    return tuple(torch.cat(part).to(device) for part in zip(*parts))


def spell(tokens: Tensor) -> str:
    """Return the names of tokens ``(n,)``: noise n0, keys k0, values v0, MARK and QUERY."""
    names = [f"{kind}{i}" for kind, size in (("n", NOISE), ("k", KEYS), ("v", VALUES)) for i in range(size)]
    return " ".join([*names, "MARK", "QUERY"][t] for t in tokens.tolist())


class Needle(NamedTuple):
    """A sentence to hide, the question about it, and the words of the answer that the question does not suggest."""

    sentence: str
    question: str
    words: str


_NEEDLES = """
The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.
What is the best thing to do in San Francisco?
sandwich dolores park sunny

The secret of Aunt Martha's apple pie is a pinch of black pepper and two spoons of orange honey.
What is the secret of Aunt Martha's apple pie?
pinch pepper orange honey

The lighthouse keeper of Port Ellery hid his silver key under the third step of the blue staircase.
Where did the lighthouse keeper of Port Ellery hide his silver key?
third step blue staircase

The meeting about the new library was moved to Thursday morning in the green room behind the kitchen.
When and where is the meeting about the new library?
thursday morning green kitchen

The best gift for a gardener in Toronto is a pair of red gloves and a small book of winter poems.
What is the best gift for a gardener in Toronto?
gloves book winter poems
"""
NEEDLES = tuple(Needle(*lines.split("\n")) for lines in _NEEDLES.strip().split("\n\n"))
"""The published needle and four more of its kind."""
ANSWER = "eat a sandwich and sit in Dolores Park on a sunny day."
"""The published answer to the first question."""
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

    def shares(self, places: Tensor) -> dict[str, Tensor]:
        """Return the shares ``(...)`` of the needle and of the question, to the end, among ``places`` ``(..., k)``."""
        n = len(self.tokens)
        parts = {"needle": (self.start, self.stop), "question": (n - self.tail, n)}
        return {name: ((places >= a) & (places < b)).sum(-1) / (b - a) for name, (a, b) in parts.items()}


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


def needle_prompts(
    lm: LanguageModel, prose: Sequence[str], seed: int, *, haystacks, lengths, depths, frame, prose_parts
) -> Iterator[tuple[dict[str, Any], NeedlePrompt]]:
    """Yield haystack, length, depth and index of the needle, by name, and the prompt.

    Only seeds that differ by a multiple of ``prose_parts`` use the same part of ``prose``. At each length, the needles are
    assigned to the depths at random, alike in all haystacks.
    """
    g = torch.Generator().manual_seed(seed)
    size = len(prose) // prose_parts
    prose = prose[seed % prose_parts * size :][:size]
    orders = {length: torch.randperm(len(NEEDLES), generator=g).tolist() for length in lengths}
    for haystack in haystacks:
        for length in lengths:
            for depth, index in zip(depths, orders[length]):
                start = int(torch.randint(size - length // 12, (), generator=g))
                order = torch.randperm(len(REPEATED), generator=g).tolist()
                repeated = [REPEATED[i] for i in order] * (length // len(order))
                sentences = {"repeated": repeated, "prose": prose[start:]}[haystack]
                case = {"haystack": haystack, "length": length, "depth": depth, "index": index}
                yield case, needle_prompt(lm, sentences, length, depth, NEEDLES[index], frame)
