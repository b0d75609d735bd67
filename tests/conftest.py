"""A small book to break, the site in a browser, and how hypothesis draws: at random on a desk, the same every time in CI."""

import os

import pytest
import tiny_book
from hypothesis import settings
from site_checks import browser, site, tab  # noqa: F401 - fixtures

from mvnb import cli

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture
def book(tmp_path, monkeypatch):
    """The tiny book in a folder of its own, which is the current one."""
    monkeypatch.delenv("MVNB_ROOT", raising=False)
    root = tiny_book.make(tmp_path / "book")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def mvnb(book, capfd):
    """Run the command in this process: exit status, stdout, stderr."""

    def call(*arguments):
        status = cli.main(list(arguments))
        return status, *capfd.readouterr()

    return call
