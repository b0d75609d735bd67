"""Folders of downloaded and converted files: data sets and language models."""

from __future__ import annotations

import os
import warnings
from pathlib import Path


def cache_dir() -> Path:
    """Return the user's cache folder, which contains downloaded and converted files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its progress bars warn if widgets are missing
        import pooch  # imported here, since it is slow and most runs need no download

    return Path(pooch.os_cache("mvnb"))


def data_dir() -> Path:
    """Return the folder of data sets: ``$MVNB_DATA`` if this variable is set, otherwise :func:`cache_dir`."""
    return Path(os.environ.get("MVNB_DATA") or cache_dir()).expanduser()
