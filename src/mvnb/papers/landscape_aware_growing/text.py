"""Text as characters: the source of Python's standard library, or any file."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mvnb.seeds import Seed, as_generator

OTHER, MASK = 0, 1
"""Tokens that are no characters: any character without a token; the mask, which is the first sentinel, too."""
N_SENTINELS = 2
N_SPECIAL = MASK + N_SENTINELS


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
def load_text(source: str = "python") -> Text:
    """Return a text by name, its first nine tenths for training; the alphabet is the ASCII characters that occur there.

    ``"python"`` is the source of the standard library's top-level modules, sorted by name: text that people wrote, present
    wherever this runs, and a little different in every version of Python. Anything else is a file's path. ``ValueError`` for a
    file that is absent, is not text, or has fewer than 1,000 characters.
    """
    if source == "python":
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    else:
        try:
            text = Path(source).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ValueError(f"text must be 'python' or the path of a text file, got {source!r}: {reason}") from None
    if len(text) < 1000:
        raise ValueError(f"the text of {source!r} has {len(text)} characters, and at least 1,000 are needed")
    cut = int(0.9 * len(text))
    alphabet = "".join(sorted(c for c in set(text[:cut]) if c.isascii()))
    return Text(source, alphabet, _encode(text[:cut], alphabet), _encode(text[cut:], alphabet))


def structure_targets(text: Text, windows: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Places of windows ``(n, length + 1)`` where structure decides the next character, by kind of structure.

    Each kind has a mask ``(n, length)`` of the positions whose next character is to be told, and the tokens among which to
    choose. ``"brackets"``: which closing bracket comes; ``"recall"``: what follows three characters of a word that have been
    seen with the same continuation before; ``"indentation"``: one more space or not, at the beginning of a line that follows a
    whole one.
    """
    closing = ")]}"
    kinds = ("brackets", "recall", "indentation")
    masks = {kind: torch.zeros(windows[:, 1:].shape, dtype=torch.bool) for kind in kinds}
    for row, line in enumerate(text.decode(window) for window in windows):
        for place, following in enumerate(line[1:]):
            masks["brackets"][row, place] = following in closing
            triple = line[max(0, place - 2) : place + 1]
            word = len(triple) == 3 and triple.replace("_", "a").isalnum()
            masks["recall"][row, place] = word and line.find(triple + following, 0, place + 1) >= 0
            start = line.rfind("\n", 0, place + 1)
            whole = start > 0 and line.rfind("\n", 0, start) >= 0 and line[start - 1] != "\n"
            masks["indentation"][row, place] = whole and not line[start + 1 : place + 1].strip(" ") and following != "\n"
    anything = text.encode(text.alphabet)
    brackets = text.encode("".join(c for c in closing if c in text.alphabet))
    return {kind: (masks[kind], brackets if kind == "brackets" else anything) for kind in kinds}
