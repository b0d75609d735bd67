"""A small book to break, the site in a browser, and how hypothesis draws: at random on a desk, the same every time in CI."""

import os
import shutil
from contextlib import nullcontext

for library in ("OMP", "MKL", "OPENBLAS"):  # one thread a process, of which there are as many as cores; before any is loaded
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest
import tiny_book
from hypothesis import settings
from rounding import rounding
from site_checks import browser, site, tab  # noqa: F401 - fixtures

from mvnb import cli
from mvnb.runner import catalogue, execution

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


# Each of these is spread over the workers by itself, the longest first.
ONE_BY_ONE = (
    "test_a_new_chapter_passes_the_checks",
    "test_notebook",
    "test_a_notebook_alone_installs_the_package_and_runs",
    "test_recipes_print_what_the_page_says",
    "test_binder_gets_the_package",
    "test_smoke",
    "test_commands_in_the_book_are_accepted",
    "test_what_a_chapter_forgets_is_noticed",
)


def _place(item) -> tuple[int, int]:
    """The site, which one worker builds and looks at, is begun first; then whole chapters, then files, short ones last."""
    folder, name = item.path.parent.name, getattr(item, "originalname", "")
    if name in ONE_BY_ONE:
        return 1, ONE_BY_ONE.index(name)
    return {"site": 0, "runner": 2}.get(folder, 3), 0


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in this hook, too
def pytest_collection_modifyitems(items):
    """A worker a file, one for all that look at the site, and one for each of ``ONE_BY_ONE``."""
    for item in items:
        alone = getattr(item, "originalname", "") in ONE_BY_ONE
        group = "site" if item.path.parent.name == "site" else item.path.stem
        item.add_marker(pytest.mark.xdist_group(item.nodeid if alone else group))
    items.sort(key=_place)


@pytest.fixture(scope="session", autouse=True)
def arithmetic():
    """With ``MVNB_ROUNDING=SEED`` in the environment, products in the tests' own process are rounded at random."""
    with rounding(int(os.environ["MVNB_ROUNDING"])) if "MVNB_ROUNDING" in os.environ else nullcontext():
        yield


@pytest.fixture
def book(tmp_path, monkeypatch):
    """The tiny book in a folder of its own, which is the current one."""
    monkeypatch.delenv("MVNB_ROOT", raising=False)
    root = tiny_book.make(tmp_path / "book")
    monkeypatch.chdir(root)
    return root


@pytest.fixture(scope="session")
def executed(tmp_path_factory):
    """The chapter of a tiny book, run once."""
    (tiny,) = catalogue.discover(tiny_book.make(tmp_path_factory.mktemp("executed") / "book"))
    execution.execute(tiny)
    return tiny


@pytest.fixture
def executed_book(book, executed):
    """The tiny book with the notebook of the chapter as it was run once."""
    shutil.copy(executed.notebook, book / "notebooks")
    return book


@pytest.fixture
def mvnb(book, capfd):
    """Run the command in this process: exit status, stdout, stderr."""

    def call(*arguments):
        status = cli.main(list(arguments))
        return status, *capfd.readouterr()

    return call
