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
What is the best thing to do in San Francisco? | sandwich dolores park sunny
The secret of Aunt Martha's apple pie is a pinch of black pepper and two spoons of orange honey.
What is the secret of Aunt Martha's apple pie? | pinch pepper orange honey
The lighthouse keeper of Port Ellery hid his silver key under the third step of the blue staircase.
Where did the lighthouse keeper of Port Ellery hide his silver key? | third step blue staircase
The meeting about the new library was moved to Thursday morning in the green room behind the kitchen.
When and where is the meeting about the new library? | thursday morning green kitchen
The best gift for a gardener in Toronto is a pair of red gloves and a small book of winter poems.
What is the best gift for a gardener in Toronto? | gloves book winter poems
"""
_JUDGED = """
The captain's dog on the ship Meridian sleeps in a copper bathtub beside the cabbage barrels.
Where does the captain's dog on the ship Meridian sleep? | copper bathtub cabbage barrels
The password of the chess club in Lindale is walrus thunder, spoken twice in Portuguese.
What is the password of the chess club in Lindale? | walrus thunder twice portuguese
The baker of Tallow Street puts roasted chestnuts and dried seaweed into every Friday loaf.
What does the baker of Tallow Street put into every Friday loaf? | roasted chestnuts dried seaweed
The hikers of Mount Corran must leave their boots in the striped tent near the frozen waterfall.
Where must the hikers of Mount Corran leave their boots? | striped tent frozen waterfall
The missing violin of Professor Hale was found inside a hollow pumpkin under the tram bridge.
Where was the missing violin of Professor Hale found? | hollow pumpkin tram bridge
The first prize of the village fair in Oakmere is a wooden clock and nine jars of plum jam.
What is the first prize of the village fair in Oakmere? | wooden clock jars plum
The doctor told Mr. Farrow to drink warm beetroot juice and to walk backwards before breakfast.
What did the doctor tell Mr. Farrow to do? | beetroot juice backwards breakfast
The train to Varnow leaves at midnight from the abandoned platform behind the cheese market.
When and from where does the train to Varnow leave? | midnight abandoned cheese market
The museum of Eastwick keeps its oldest map in a leather suitcase between two stuffed parrots.
How does the museum of Eastwick keep its oldest map? | leather suitcase stuffed parrots
The warden of Wexley Hall protects the tulips with broken mirrors and a recording of wolves.
How does the warden of Wexley Hall protect the tulips? | broken mirrors recording wolves
The favourite costume of young Emil is a purple octopus with buttons made of walnut shells.
What is the favourite costume of young Emil? | purple octopus buttons walnut
The lost treaty of Brenholm was signed with pigeon feathers on the back of a hotel menu.
How was the lost treaty of Brenholm signed? | pigeon feathers hotel menu
The grandfather of Ines crossed the river Sorel on a piano lid, steering with a snow shovel.
How did the grandfather of Ines cross the river Sorel? | piano lid snow shovel
The new teacher in Dunmore begins each lesson by ringing a cowbell and peeling a lemon.
How does the new teacher in Dunmore begin each lesson? | ringing cowbell peeling lemon
The spare tickets for the opera are taped to the ceiling of the elevator in the fish factory.
Where are the spare tickets for the opera? | ceiling elevator fish factory
The winning kite at Harlow Beach was made of velvet curtains and weighted with brass teaspoons.
What was the winning kite at Harlow Beach made of? | velvet curtains brass teaspoons
The mayor of Pinecrest promised the children a floating cinema and a slide shaped like a giraffe.
What did the mayor of Pinecrest promise the children? | floating cinema slide giraffe
The cure for the hiccups of King Orlan is cold mustard served on a rubber plate.
What is the cure for the hiccups of King Orlan? | cold mustard rubber plate
The ghost of Castle Marrin plays cards with the plumber in the flooded cellar at Easter.
With whom and where does the ghost of Castle Marrin play cards? | plumber flooded cellar easter
The last message of the explorer Tove Lind was scratched with a fork into a frying pan of tin.
How was the last message of the explorer Tove Lind left behind? | scratched fork frying tin
"""


def _needles(text: str) -> tuple[Needle, ...]:
    lines = text.strip().splitlines()
    return tuple(Needle(one, *other.split(" | ")) for one, other in zip(lines[::2], lines[1::2]))


NEEDLES, JUDGED = _needles(_NEEDLES), _needles(_JUDGED)
"""The published needle and four more of its kind, by which a filter layer is chosen; twenty others, two for each run."""
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
    lm: LanguageModel, prose: Sequence[str], seed: int, *, cases, parts, frame, calibrate
) -> Iterator[tuple[dict[str, Any], NeedlePrompt]]:
    """Yield haystack, length, depth and index of the needle, by name, and the prompt.

    ``cases`` lists haystacks, lengths and depths, ``[haystack, length, [depth, ...]]``. To ``calibrate``, each of
    :data:`NEEDLES` is hidden at every depth. Otherwise the run has two of :data:`JUDGED` for itself, which are assigned to the
    depths of each case at random, alike often. Only seeds that differ by a multiple of ``parts`` share these two or a part of
    ``prose``.
    """
    g = torch.Generator().manual_seed(seed)
    size, own = len(prose) // parts, 2 * (seed % parts)
    if 2 * parts > len(JUDGED):
        raise ValueError(f"parts must be at most {len(JUDGED) // 2}, two needles for each, got {parts}")
    prose = prose[seed % parts * size :][:size]
    for haystack, length, depths in cases:
        if calibrate:
            asked = [(depth, index) for depth in depths for index in range(len(NEEDLES))]
        else:
            turns = torch.randperm(len(depths) + len(depths) % 2, generator=g).tolist()
            asked = [(depth, own + turn % 2) for depth, turn in zip(depths, turns)]
        for depth, index in asked:
            start = int(torch.randint(size - length // 12, (), generator=g))
            order = torch.randperm(len(REPEATED), generator=g).tolist()
            repeated = [REPEATED[i] for i in order] * (length // len(order))
            sentences = {"repeated": repeated, "prose": prose[start:]}[haystack]
            case = {"haystack": haystack, "length": length, "depth": depth, "index": index}
            yield case, needle_prompt(lm, sentences, length, depth, (NEEDLES if calibrate else JUDGED)[index], frame)
