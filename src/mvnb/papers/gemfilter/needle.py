"""A needle in a haystack: one sentence hidden in a long text, the question about it, and the published score of an answer.

Source: Kamradt's benchmark as in the code of Shi et al. 2024 (GemFilter; Shi thesis 2024, section 9.4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.models.language import LanguageModel
from mvnb.papers.gemfilter import token_selection
from mvnb.seeds import Seed, as_generator

NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
"""The sentence that is hidden."""
QUESTION = "What is the best thing to do in San Francisco?"
"""What is asked about it."""
EXPECTED = "eat a sandwich and sit in Dolores Park on a sunny day."
"""The answer that :func:`needle_score` looks for: 12 words, of which 11 are different."""
BEST_SCORE = 11 / 12
"""The score of the exact answer."""

METHODS = ("All KV", "SnapKV", "H2O", "nothing forced", "One-Run", "middle row", "largest row")
"""What :class:`NeedleTest` judges beside GemFilter; *nothing forced* is GemFilter without the question kept by force."""

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


def _needle_prompt(
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


class Reading(NamedTuple):
    """What a language model made of prompts of one length, in the order of the depths, those of one depth together.

    ``places`` ``(layer, prompt, k)`` are those that each layer would select, ``share`` ``(layer, prompt)`` how much of the
    needle is among them, and ``scores`` those of the answers by method, a filter layer's under its number as text.
    """

    places: Tensor
    share: Tensor
    scores: dict[str, list[float]]


@dataclass(frozen=True)
class NeedleTest:
    """A needle at several depths of real prose, looked for by every layer, and answers of several methods.

    ``k`` tokens are selected, the question among them; answers of ``methods`` (of :data:`METHODS`, filtered at
    ``filter_layer``) and of GemFilter with each of ``layers`` have ``n_new`` tokens at most; ``frame`` is what stands before
    and behind the published prompt.
    """

    k: int
    filter_layer: int
    depths: Sequence[float]
    n_new: int
    frame: Sequence[str] = ()
    methods: Sequence[str] = ()
    layers: Sequence[int] = ()

    def draw(
        self, encode: Callable[[str], list[int]], sentences: Sequence[str], length: int, size: int, generator: Seed
    ) -> list[NeedlePrompt]:
        """Return ``size`` prompts per depth, each from another place of the prose."""
        generator = as_generator(generator)
        starts = torch.randint(len(sentences) - length // 8, (len(self.depths), size), generator=generator).tolist()
        return [
            _needle_prompt(encode, sentences[start:], length, depth, *self.frame)
            for depth, some in zip(self.depths, starts)
            for start in some
        ]

    def read(self, lm: LanguageModel, prompts: list[NeedlePrompt]) -> Reading:
        """What the model makes of prompts of one length, in one batch."""
        model, tokens = lm.model, torch.stack([one.tokens for one in prompts]).to(lm.model.device)
        k, tail, filter_layer = self.k, prompts[0].tail, self.filter_layer
        scores = token_selection.filter_scores(model, tokens, range(model.config.num_hidden_layers))
        places = token_selection.select_tokens(scores, k, keep_last=tail)

        chosen = {str(layer): places[layer] for layer in sorted({filter_layer, *self.layers})}
        if "nothing forced" in self.methods:
            chosen["nothing forced"] = token_selection.select_tokens(scores[filter_layer], k)
        for row in {"middle", "largest"} & {name.removesuffix(" row") for name in self.methods}:
            other = token_selection.filter_scores(model, tokens, [filter_layer], row)[0]
            chosen[f"{row} row"] = token_selection.select_tokens(other, k, keep_last=tail)
        read_again = torch.cat([tokens.gather(1, one) for one in chosen.values()])
        answers = dict(zip(chosen, token_selection.all_kv(model, read_again, self.n_new).tokens.split(len(prompts))))

        from_cache = {
            "All KV": token_selection.all_kv,
            "SnapKV": partial(token_selection.snap_kv, k=k),
            "H2O": partial(token_selection.h2o, k=k),
            "One-Run": partial(token_selection.gem_filter, k=k, layer=filter_layer, one_run=True, keep_last=tail),
        }
        answers |= {name: from_cache[name](model, tokens, self.n_new).tokens for name in self.methods if name in from_cache}
        judged = {name: _answer_scores(lm, one) for name, one in answers.items()}
        return Reading(places.cpu(), _selected_share(places.cpu(), prompts), judged)


def _answer_scores(lm: LanguageModel, tokens: Tensor) -> list[float]:
    """The score of every answer ``(prompt, token)``, up to its end mark."""
    end = lm.model.config.eos_token_id
    rows = [row[: row.index(end)] if end in row else row for row in tokens.tolist()]
    return [needle_score(lm.decode(row)) for row in rows]


def _selected_share(places: Tensor, prompts: Sequence[NeedlePrompt]) -> Tensor:
    """Share ``(..., prompt)`` of each prompt's needle that is among ``places`` ``(..., prompt, k)``."""
    start, stop = (torch.tensor([getattr(one, end) for one in prompts])[:, None] for end in ("start", "stop"))
    return ((places >= start) & (places < stop)).sum(-1) / (stop - start)[:, 0]
