"""Machines and people at their worst: what hangs, fills memory or disk, may not be written, or is not what it seems."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HARM = """\
# %% tags=["parameters"]
seed = 0  # seed (integer, 0 or more)
harm = ""  # what to do: "hang", "memory", "disk" or nothing
text = ""  # is printed

# %%
import os
import time

if harm == "hang":
    time.sleep(600)
if harm == "memory":
    full = bytearray(4_000_000_000)
print(text)
if harm == "disk":
    print(os.urandom(1_500_000).hex())
"""


@pytest.fixture
def book(book):
    (book / "notebooks" / "02_harm.py").write_text(HARM)
    return book


@pytest.fixture
def mounted(tmp_path):
    """Mounts a file system on a folder: ``mounted(options...)``; skips, visibly, where that is not allowed."""
    folder = tmp_path / "mounted"
    folder.mkdir()

    def mount(*options):
        done = subprocess.run(["mount", *options, folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        return folder

    yield mount
    subprocess.run(["umount", "-l", folder], capture_output=True)


def test_what_hangs_and_what_takes_all_memory_is_told_and_the_rest_goes_on(mvnb, book):
    limits = ["--timeout", "10", "--memory", "2"]
    status, out, err = mvnb("sweep", "2", "--grid", "harm=hang,memory,none", *limits, "-o", "out")
    assert status == 1 and "1 ended well and 2 failed" in out
    lines = err.splitlines()
    assert len(lines) == 2 and "harm=hang: a cell took more than 10 s; kept" in lines[0]
    assert "harm=memory: cell [" in lines[1] and "MemoryError" in lines[1]


def test_a_full_disk_is_one_line_and_spoils_nothing(mvnb, mounted):
    folder = mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    assert mvnb("run", "2", "-p", "text=old", "--no-html", "-o", str(folder))[0] == 0
    old = (folder / "02_harm.ipynb").read_text()
    status, out, err = mvnb("run", "2", "-p", "harm=disk", "--no-html", "-o", str(folder))
    assert (status, out) == (1, "") and err.count("\n") == 1 and "No space left on device" in err
    assert (folder / "02_harm.ipynb").read_text() == old
    status, out, err = mvnb("sweep", "2", "--grid", "harm=disk,none", "-j", "1", "-o", str(folder / "sweep"))
    assert status == 1 and "1 ended well and 1 failed" in out and "No space left on device" in err


def test_a_read_only_book_is_read_and_run_from_but_not_written(mvnb, book, mounted, tmp_path, monkeypatch):
    assert mvnb("book", "1", "--no-site")[0] == 0
    monkeypatch.chdir(mounted("-o", "bind,ro", str(book)))
    assert mvnb("list")[0] == mvnb("claims", "1")[0] == 0
    assert mvnb("run", "1", "--no-html", "-o", str(tmp_path / "out"))[0] == 0
    for command in (["run", "1"], ["sweep", "1", "--grid", "seed=0:2"], ["book", "1", "--again", "--no-site"]):
        status, out, err = mvnb(*command)
        assert (status, out) == (2, "") and err.count("\n") == 1 and "cannot be written to" in err


def test_letters_and_spaces_survive_a_locale_without_them(book):
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    source = book / "notebooks" / "01_tiny.py"
    source.write_text(source.read_text(encoding="utf-8").replace("A tiny chapter", "A tïny chapter ≤ 1"), encoding="utf-8")

    def call(*arguments):
        command = [sys.executable, "-m", "mvnb.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | plain)

    for arguments in (["list"], ["run", "1", "-o", "a folder"], ["sweep", "1", "--grid", "seed=0:1", "-o", "a folder/s"]):
        done = call(*arguments)
        assert done.returncode == 0, done.stderr
    assert "A tïny chapter ≤ 1" in (book / "a folder" / "01_tiny.ipynb").read_text(encoding="utf-8")


HOSTILE = [
    '"; open("executed", "w"); "',
    "'); __import__('os').system('touch executed') #",
    '"""\nopen("executed", "w")\n"""',
    "{__import__('os').system('touch executed')}",
    "\\\nopen('executed', 'w')",
    "%run executed\n!touch executed",
    "\u2028\x00\x1b[31m",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_values_are_data_and_never_code(mvnb, book, text):
    status, _, err = mvnb("run", "2", "-p", f"text={text}", "-o", "out", "--no-html")
    assert status == 0, err
    assert not list(book.rglob("executed"))
    assert repr(text) in cells(book / "out" / "02_harm.ipynb")


@pytest.mark.parametrize(
    "value", ["__import__('os').system('touch executed')", "(lambda: 0)()", "[].__class__", "1+1", "9" * 5000]
)
def test_only_literals_of_the_right_type_are_values(mvnb, book, value):
    for given in (["run", "2", "-p", f"seed={value}"], ["sweep", "2", "--grid", f"seed={value}"]):
        status, out, err = mvnb(*given)
        assert (status, out) == (2, "") and err.count("\n") == 1
    assert not list(book.rglob("executed")) and not (book / "runs").exists()


def cells(path: Path) -> str:
    import nbformat

    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
