"""A needle in a haystack: one sentence hidden in a long text, the question about it, and how much of it an answer has.

Source: Kamradt's benchmark as in the code of Shi et al. 2024 (GemFilter; Shi thesis 2024, section 9.4.1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mvnb.models.language import LanguageModel
from mvnb.papers.gemfilter import token_selection


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


def needle_score(response: str) -> float:
    """Return the published score: the share of the first needle's expected words that the response has, in [0, 11/12].

    Words are separated by blanks, in lower case, and counted once in the response; the divisor counts them as often as they are
    expected, so the exact answer gets 11/12.
    """
    expected = NEEDLES[0].answer.lower().split()
    return len(set(expected) & set(response.lower().split())) / len(expected)


def words_found(response: str, needle: Needle) -> float:
    """Return the share of ``needle.words`` that the response has, in [0, 1], whatever their case and the marks around them."""
    wanted = set(needle.words.split())
    return len(wanted & set(re.findall(r"\w+", response.lower()))) / len(wanted)


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


def end_tokens(lm: LanguageModel) -> list[int]:
    """Return the tokens that end an answer: those of the generation configuration, of the model and of the tokenizer."""
    named = [lm.model.generation_config.eos_token_id, lm.model.config.eos_token_id, lm.tokenizer.eos_token_id]
    return sorted({token for one in named for token in (one if isinstance(one, list) else [one]) if token is not None})


def answer_text(lm: LanguageModel, tokens: Tensor) -> str:
    """Return the text of an answer ``(n_new,)`` up to its first end token, without special tokens."""
    row, ends = tokens.tolist(), set(end_tokens(lm))
    stop = next((i for i, token in enumerate(row) if token in ends), len(row))
    return lm.tokenizer.decode(row[:stop], skip_special_tokens=True).strip()


def share_in(places: Tensor, start: int, stop: int) -> Tensor:
    """Return the share ``(...)`` of the places ``start`` to ``stop - 1`` that are among ``places`` ``(..., k)``."""
    return ((places >= start) & (places < stop)).sum(-1) / (stop - start)


class Looked(NamedTuple):
    """``places`` ``(layer, prompt, k)`` that each layer selects, ``share`` ``(layer, prompt)`` of the needle, and ``answers``.

    ``answers`` are texts by method, one for each prompt.
    """

    places: Tensor
    share: Tensor
    answers: dict[str, list[str]]


def look(lm: LanguageModel, prompts: Sequence[NeedlePrompt], k: int, filter_layer: int, n_new: int) -> Looked:
    """Return what every layer selects from prompts of one length, and answers of GemFilter, the whole cache and SnapKV.

    Raises ``ValueError`` if prompt and answer are longer than the model's positions.
    """
    model, ends, limit = lm.model, end_tokens(lm), lm.model.config.get_text_config().max_position_embeddings
    if len(prompts[0].tokens) + n_new > limit:
        raise ValueError(f"prompt and answer must have at most {limit} tokens, got {len(prompts[0].tokens)} and {n_new}")
    tokens = torch.stack([one.tokens for one in prompts]).to(model.device)
    gem = token_selection.gem_filter(model, tokens, n_new, k, filter_layer, ends)
    prompt = token_selection.read(model, tokens, window=32)
    found = {"GemFilter": gem, "whole cache": token_selection.all_kv(model, prompt, n_new, ends)}
    found["SnapKV"] = token_selection.snap_kv(model, prompt, n_new, k, ends=ends)
    places = token_selection.select_tokens(prompt.rows, k).cpu()
    share = torch.stack([share_in(places[:, i], one.start, one.stop) for i, one in enumerate(prompts)], 1)
    return Looked(places, share, {name: [answer_text(lm, row) for row in answer.tokens] for name, answer in found.items()})
