"""Text as characters, the source of SymPy or any file, and what a language model is asked about it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator

OTHER, MASK = 0, 1
"""Tokens that are no characters: any character without a token; the mask, which is the first sentinel, too."""
N_SENTINELS = 2
N_SPECIAL = MASK + N_SENTINELS
VERSION = "1.14.0"
PACKAGES = ("core", "functions", "geometry", "ntheory", "sets", "stats")
"""The packages of SymPy whose source is the text, and the version of it."""
DIGEST = "15e69658858f58000adf5f8d5d4fc41b7c3b629e2f2d4ee28f05f694144bcdb8"
"""SHA-256 of their files in the order of their names."""


@dataclass(frozen=True)
class Text:
    """A text as tokens, the first part for training and the rest for validation.

    Character ``alphabet[i]`` is token ``N_SPECIAL + i``; the tokens before that are special.
    """

    name: str
    alphabet: str
    train: Tensor
    valid: Tensor

    @property
    def n_tokens(self) -> int:
        """Size of the vocabulary."""
        return N_SPECIAL + len(self.alphabet)

    def encode(self, text: str) -> Tensor:
        """Tokens ``(len(text),)``, int64."""
        return _encode(text, self.alphabet)

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens ``(n,)``: ``?`` for a character without a token, ``_`` for the mask and the sentinels."""
        return "".join("?_"[t > OTHER] if t < N_SPECIAL else self.alphabet[t - N_SPECIAL] for t in tokens.tolist())

    def windows(self, n: int, length: int, generator: Seed, valid: bool = False) -> Tensor:
        """``n`` windows ``(n, length)`` from places drawn uniformly; ``ValueError`` when the text is shorter than one."""
        generator = as_generator(generator)
        tokens = self.valid if valid else self.train
        if len(tokens) < length:
            part = "validation" if valid else "training"
            raise ValueError(f"the {part} text has {len(tokens)} characters, a window needs {length}")
        start = torch.randint(len(tokens) - length + 1, (n, 1), generator=generator)
        return tokens[start + torch.arange(length)]


def _encode(text: str, alphabet: str) -> Tensor:
    """Return the tokens ``(len(text),)`` of a text with this alphabet of ASCII characters."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    table = np.full(129, OTHER, dtype=np.int64)
    table[[ord(c) for c in alphabet]] = N_SPECIAL + np.arange(len(alphabet))
    return torch.from_numpy(table[np.minimum(codes, 128)])


@lru_cache(maxsize=4)
def load_text(source: str = "sympy") -> Text:
    """Return a text by name; its alphabet is the ASCII characters that occur in the part for training.

    ``"sympy"`` is the source of some packages of SymPy (:data:`PACKAGES`) without their tests: text that people wrote, the same
    on every machine with this version of SymPy. Every tenth file is for validation. Anything else is the path of a file, whose
    last tenth is for validation. Raises ``ValueError`` if another version of SymPy is installed, and for a file that is absent,
    is not text, or has fewer than 1,000 characters.
    """
    if source == "sympy":
        files = _sympy_files()
        train, valid = ("".join(part) for part in ([f for i, f in enumerate(files) if i % 10 < 9], files[9::10]))
    else:
        try:
            text = Path(source).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ValueError(f"text must be 'sympy' or the path of a text file, got {source!r}: {reason}") from None
        if len(text) < 1000:
            raise ValueError(f"text must be a file of at least 1,000 characters, got {len(text)} in {source!r}")
        train, valid = text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]
    alphabet = "".join(sorted(c for c in set(train) if c.isascii()))
    return Text(source, alphabet, _encode(train, alphabet), _encode(valid, alphabet))


def _sympy_files() -> list[str]:
    """Return the files of ``PACKAGES`` in the order of their names, or raise ``ValueError`` unless they have the digest."""
    found = importlib.util.find_spec("sympy")
    root = Path(found.origin).parent if found else Path()
    names = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    parts = sorted(path.relative_to(root).as_posix() for path in names)
    files = [(root / part).read_bytes() for part in parts if "tests" not in part.split("/")] if found else []
    if hashlib.sha256(b"".join(files)).hexdigest() != DIGEST:
        version = importlib.metadata.version("sympy") if found else "none"
        raise ValueError(f"text must be the path of a file unless SymPy {VERSION} is installed, got 'sympy' with {version}")
    return [file.decode() for file in files]


# --- Objectives: windows of tokens (n, length) to inputs, targets and masks ---


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
