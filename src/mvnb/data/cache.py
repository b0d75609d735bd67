"""Folders of downloaded and converted files: data sets and language models."""

from __future__ import annotations

import os
import warnings
from pathlib import Path


def cache_dir() -> Path:
    """Return the user's cache folder, which contains downloaded and converted files.

    Raises ``FileNotFoundError`` if ``pooch``, which knows this folder, is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its progress bars warn if widgets are missing
        try:
            import pooch  # imported here, since it is slow and most runs need no download
        except ImportError:
            raise FileNotFoundError("the cache folder requires pooch: pip install 'mvnb[data]', or set MVNB_DATA") from None

    return Path(pooch.os_cache("mvnb"))


def make_folder(path: Path) -> None:
    """Create the folder ``path`` of downloads; raise ``FileNotFoundError`` if this is impossible or it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise FileNotFoundError(
            f"expected a folder in which files can be created at {path}, got: {error.strerror}; set MVNB_DATA to such a folder"
        ) from None


def data_dir() -> Path:
    """Return the folder of data sets: ``$MVNB_DATA`` if this variable is set, otherwise :func:`cache_dir`."""
    return Path(os.environ.get("MVNB_DATA") or cache_dir()).expanduser()
