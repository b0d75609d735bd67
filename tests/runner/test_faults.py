"""Machines and people at their worst: what hangs, fills memory or disk, may not be written, or is not what it seems."""

import ast
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest
from processes import kernels, start, until

from mvnb import cli, files
from mvnb.runner import addresses, catalogue, execution

ROOT = Path(__file__).resolve().parents[2]
HARM = """\
# %% tags=["parameters"]
seed = 0  # seed (integer, 0 or more)
harm = ""  # what to do: "hang", "memory", "die", "disk" or nothing
check = ""  # what to do where the parameters are checked: "hang", "memory", "die" or nothing
text = ""  # is printed

# %% tags=["check"]
import ast
import os
import time


def do(harm):
    if harm == "hang":
        time.sleep(600)
    if harm == "memory":
        full = bytearray(4_000_000_000)
    if harm == "die":
        os.kill(os.getpid(), 9)


do(check)

# %%
do(harm)
print(text, flush=True)
print("end")
if harm == "disk":
    print(os.urandom(1_500_000).hex())
"""
LIMITS = ["--timeout", "4", "--memory", "2"]


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
    status, out, err = mvnb("sweep", "2", "--grid", "harm=hang,memory,none", *LIMITS, "-o", "out")
    assert status == 1 and "1 succeeded and 2 failed" in out
    lines = err.splitlines()
    assert len(lines) == 2 and "harm=hang: a cell took more than 4 s; kept" in lines[0]
    assert "harm=memory: cell [" in lines[1] and "out of memory (MemoryError)" in lines[1]


@pytest.mark.parametrize(("harm", "message"), [("hang", "a cell took more than 4 s"), ("memory", "out of memory")])
def test_one_run_has_the_same_limits(mvnb, book, harm, message):
    status, out, err = mvnb("run", "2", "-p", f"harm={harm}", *LIMITS, "-o", "out")
    assert (status, out) == (1, "") and err.count("\n") == 2 and message in err


def test_a_kernel_that_dies_is_told_in_one_line(mvnb, book):
    status, out, err = mvnb("run", "2", "-p", "harm=die", "-o", "out")
    assert (
        (status, out) == (1, "")
        and err.count("\n") == 2
        and "the kernel died, possibly out of memory; kept the partial notebook out" in err
    )


FAILING = {
    "too little memory": ({"memory": 50_000_000}, ""),
    "an exit": ({"startup": "raise SystemExit('enough')"}, "SystemExit: enough\n"),
    "a thread that goes on": (
        {"startup": "import threading, time\nthreading.Thread(target=time.sleep, args=[600]).start()\n1 / 0"},
        "ZeroDivisionError: division by zero\n",
    ),
    "no words": ({"startup": "os._exit(3)"}, "Kernel died before replying"),
}


@pytest.mark.parametrize(("options", "message"), FAILING.values(), ids=FAILING)
def test_a_kernel_that_does_not_start_is_one_line_and_writes_nothing(mvnb, book, monkeypatch, options, message):
    run, began, before = execution.run, time.monotonic(), sorted(book.rglob("*"))
    monkeypatch.setattr(execution, "run", lambda *given, **others: run(*given, **others | options))
    status, out, err = mvnb("run", "2", "-o", "deep/er")
    assert (status, out) == (2, "") and err.startswith(f"mvnb: the kernel did not start: {message}") and err.count("\n") == 1
    assert sorted(book.rglob("*")) == before and time.monotonic() - began < 30


def test_a_sweep_whose_kernel_does_not_start_is_one_line(mvnb, book):
    status, out, err = mvnb("sweep", "2", "--grid", "seed=0:2", "--memory", "0.05", "-o", "out")
    assert (status, out) == (2, "") and err.startswith("mvnb: the kernel did not start: ") and err.count("\n") == 1


CHECKS = {"hang": "took more than 4 s", "memory": "check=memory: out of memory (MemoryError)", "die": "the kernel died"}


@pytest.mark.parametrize(("harm", "message"), CHECKS.items(), ids=CHECKS)
def test_checks_that_do_not_end_well_end_the_sweep_before_it_begins(mvnb, book, harm, message):
    status, out, err = mvnb("sweep", "2", "--grid", f"check={harm}", *LIMITS, "-o", "out")
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err and not (book / "out").exists()


def test_a_full_disk_is_one_line_and_spoils_nothing(mvnb, mounted, monkeypatch):
    monkeypatch.setattr(shutil, "copytree", lambda *_: None)  # which alone would fill this disk
    folder = mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    assert mvnb("run", "2", "-p", "text=old", "-o", str(folder))[0] == 0
    old = (folder / "02_harm.ipynb").read_text()
    status, out, err = mvnb("run", "2", "-p", "harm=disk", "--force", "-o", str(folder))
    assert (status, out) == (1, "") and err.count("\n") == 2 and "No space left on device" in err
    assert (folder / "02_harm.ipynb").read_text() == old
    status, out, err = mvnb("sweep", "2", "--grid", "harm=disk,none", "-j", "1", "-o", str(folder / "sweep"))
    assert status == 1 and "1 succeeded and 1 failed" in out and "No space left on device" in err

    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(OSError):
        files.write(folder / "02_harm.claims.json", "x" * 2_000_000)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before

    shutil.rmtree(folder / "sweep")
    room = os.statvfs(folder)
    (folder / "ballast").write_bytes(bytes((room.f_bavail - 1) * room.f_frsize))  # what is left is for the plan
    status, out, err = mvnb("sweep", "2", "--grid", "harm=none", "-j", "1", "-o", str(folder / "sweep"))
    assert status == 1 and err.count("\n") == 1 and f"cannot write to {folder / 'sweep'}: No space left on device" in err
    assert not [path for path in (folder / "sweep").glob(".running/*") if path.is_dir()]


def test_an_output_that_may_not_be_written_is_one_line(mvnb, book, mounted, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):  # root may write wherever the file system lets it
        folder = mounted("-t", "tmpfs", "-o", "ro", "tmpfs")
    for command in (["run", "1"], ["sweep", "1", "--grid", "seed=0:2"]):
        for output in (folder, folder / "deep" / "er"):
            status, out, err = mvnb(*command, "-o", str(output))
            assert (status, out, err) == (2, "", f"mvnb: {folder} is not writable\n")
    assert not list(folder.iterdir()) and not (book / "runs").exists()


def test_a_read_only_book_is_read_and_run_from_but_not_written(mvnb, book, mounted, tmp_path, monkeypatch):
    assert mvnb("book", "1", "--no-site")[0] == 0
    monkeypatch.chdir(mounted("-o", "bind,ro", str(book)))
    assert mvnb("list")[0] == mvnb("claims", "1")[0] == 0
    assert mvnb("run", "1", "-o", str(tmp_path / "out"))[0] == 0
    for command in (["run", "1"], ["sweep", "1", "--grid", "seed=0:2"], ["book", "1", "--again", "--no-site"]):
        status, out, err = mvnb(*command)
        assert (status, out) == (2, "") and err.count("\n") == 1 and "is not writable" in err


def test_letters_and_spaces_survive_a_locale_without_them(book):
    plain = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    source = book / "notebooks" / "01_tiny.py"
    source.write_text(source.read_text(encoding="utf-8").replace("A tiny chapter", "A tïny chapter ≤ 1"), encoding="utf-8")

    def call(*arguments):
        command = [sys.executable, "-m", "mvnb", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | plain)

    for arguments in (["list"], ["run", "1", "-o", "a folder"], ["sweep", "1", "--grid", "seed=0:1", "-o", "a folder/s"]):
        done = call(*arguments)
        assert done.returncode == 0, done.stderr
    assert "A tïny chapter ≤ 1" in (book / "a folder" / "01_tiny.ipynb").read_text(encoding="utf-8")


SURROUNDINGS = """\
# %% tags=["parameters"]
seed = 0  # seed (integer, 0 or more)

# %%
import os
import warnings

import matplotlib.pyplot as plt

warnings.warn("a warning is not an error", stacklevel=1)
print(*(os.environ.get(name, "-") for name in ("CUDA_VISIBLE_DEVICES", "https_proxy", "PYTHONPATH")))
print(os.environ["PYTHONOPTIMIZE"] + os.environ["PYTHONWARNINGS"] + "nothing else")
assert seed == 0, "seen"
"""


def test_kernels_inherit_what_they_need_and_not_what_changes_the_meaning_of_programs(mvnb, book, monkeypatch, tmp_path):
    (book / "notebooks" / "03_surroundings.py").write_text(SURROUNDINGS)
    changing = {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error", "PYTHONINSPECT": "1", "PYTHONPROFILEIMPORTTIME": "1"}
    changing |= {"MPLBACKEND": "tkaggg"}
    needed = {"CUDA_VISIBLE_DEVICES": "3", "https_proxy": "http://127.0.0.1:9", "PYTHONPATH": str(tmp_path)}
    for name, value in (changing | needed).items():
        monkeypatch.setenv(name, value)
    assert mvnb("run", "3", "-o", "out")[0] == 0
    notebook = nbformat.read(book / "out" / "03_surroundings.ipynb", as_version=4)
    (printed,) = (one.text for one in notebook.cells[-1].outputs if one.get("name") == "stdout")
    assert printed == f"3 http://127.0.0.1:9 {tmp_path}\nnothing else\n"
    status, _, err = mvnb("run", "3", "-p", "seed=1", "-o", "failed")
    assert status == 1 and "AssertionError: seen" in err


def test_the_build_of_the_site_inherits_no_variable_that_changes_the_meaning_of_programs(book, monkeypatch):
    seen, ended = {}, subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(subprocess, "run", lambda command, env, **how: seen.update(env) or ended)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert cli._build_site(book)
    assert "PYTHONWARNINGS" not in seen and seen["https_proxy"] == "http://127.0.0.1:9"


DATA = """\
# %% tags=["parameters"]
dataset = "mnist"  # a set of images

# %% tags=["check"]
from mvnb.data import load_images

load_images(dataset)
"""


def test_data_that_are_absent_or_damaged_are_one_line_without_a_network(mvnb, book, monkeypatch):
    (book / "notebooks" / "03_data.py").write_text(DATA)
    monkeypatch.setenv("MVNB_DATA", "data")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    for message in ("could not be downloaded (ProxyError)", "is damaged or not an NPZ file"):
        status, out, err = mvnb("run", "3", "-o", "out")
        assert (status, out) == (2, "") and err.count("\n") == 1 and message in err and not (book / "out").exists()
        (book / "data" / "mnist.npz").write_bytes(b"PK\3\4 and no more")
    with zipfile.ZipFile(book / "data" / "mnist.npz", "w") as file:
        file.writestr("x_train.npy", bytes(100))
    whole = (book / "data" / "mnist.npz").read_bytes()
    (book / "data" / "mnist.npz").write_bytes(whole.replace(b"PK\1\2", b"PK\1\3"))  # the list of its parts is damaged
    status, out, err = mvnb("run", "3", "-o", "out")
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err


def test_a_run_with_other_data_is_another_run(mvnb, book, tmp_path, monkeypatch):
    (book / "notebooks" / "03_data.py").write_text(DATA)
    pixels = np.arange(8 * 4 * 4, dtype=np.uint8).reshape(8, 4, 4)
    for folder, first in ((tmp_path / "a", 0), (tmp_path / "b", 1)):
        folder.mkdir()
        labels = np.array([first, 1] * 4)
        np.savez(folder / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels, y_test=labels)
    monkeypatch.setenv("MVNB_DATA", str(tmp_path / "a"))
    assert mvnb("run", "3", "-o", "out")[0] == 0
    assert "already holds this run" in mvnb("run", "3", "-o", "out")[1]
    monkeypatch.setenv("MVNB_DATA", str(tmp_path / "b"))
    status, out, err = mvnb("run", "3", "-o", "out")
    assert (status, out) == (2, "") and "holds a run of 03_data with other parameters, data, code or libraries" in err
    shutil.copy(tmp_path / "a" / "mnist.npz", tmp_path / "b")  # the same data elsewhere
    assert "already holds this run" in mvnb("run", "3", "-o", "out")[1]


@pytest.mark.parametrize("library", ["scikit-learn", "numba", "transformers", "torch", "python"])
def test_a_run_with_another_version_of_a_library_is_another_run(book, monkeypatch, library):
    chapter = catalogue.resolve("1")
    before, found = addresses.digests(chapter, [{}]), addresses._libraries()
    assert library in found
    monkeypatch.setattr(addresses, "_libraries", lambda: {**found, library: "0"})
    assert addresses.digests(chapter, [{}]) != before


def test_a_run_that_was_edited_or_cut_is_not_taken_for_the_run(mvnb, book):
    assert mvnb("run", "1", "-o", "out")[0] == 0
    notebook, recorded = book / "out" / "01_tiny.ipynb", book / "out" / "01_tiny.claims.json"
    whole, rows = notebook.read_text(), recorded.read_text()
    for spoil in (recorded.unlink, lambda: recorded.write_text(rows[:9]), lambda: recorded.write_text("[]")):
        spoil()
        assert "already holds this run" in mvnb("run", "1", "-o", "out")[1] and recorded.read_text() == rows
    edited = json.loads(whole)
    edited["cells"][-1]["source"] = ["seed = 5"]
    for text, message in ((json.dumps(edited), "was edited after it was run"), (whole[:500], "is not a complete notebook")):
        notebook.write_text(text)
        status, out, err = mvnb("run", "1", "-o", "out")
        assert (status, out) == (2, "") and message in err and notebook.read_text() == text
    assert mvnb("run", "1", "-o", "out", "--force")[0] == 0 and json.loads(notebook.read_text())["cells"][-1] != "seed = 5"


def test_a_run_that_ended_meanwhile_is_not_replaced_unasked(mvnb, book, monkeypatch):
    (other,) = mvnb("run", "1", "-p", "seed=1", "-o", "out")[1].splitlines()[:1]
    before, look = Path(other).read_bytes(), execution.finished
    for seed, status in ((2, 2), (1, 0)):
        looked = []  # the folder was empty when the command began
        monkeypatch.setattr(execution, "finished", lambda *asked, seen=looked: look(*asked) if seen else seen.append(1))
        assert mvnb("run", "1", "-p", f"seed={seed}", "-o", "out")[0] == status and Path(other).read_bytes() == before


@pytest.mark.parametrize("content", ["[1]", "{}", '{"metadata": null, "cells": []}', '{"metadata": {}, "cells": 5}'])
def test_what_is_no_notebook_is_not_taken_for_a_run(mvnb, book, content):
    (book / "out").mkdir()
    (book / "out" / "01_tiny.ipynb").write_text(content)
    status, out, err = mvnb("run", "1", "-o", "out")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "is not a complete notebook" in err
    assert mvnb("run", "1", "-o", "out", "--force")[0] == 0


QUITTING = """\
# %% tags=["parameters"]
how = "sys.exit()"  # how the cell ends

# %%
import sys

exec(how)

# %%
print("here")
"""


@pytest.mark.parametrize("how", ["sys.exit()", "sys.exit(0)", "exit(0); raise SystemExit", "sys.exit(3)"])
def test_a_cell_that_ends_the_run_is_a_failure(mvnb, book, how):
    (book / "notebooks" / "03_quitting.py").write_text(QUITTING.replace('"sys.exit()"', repr(how)))
    status, out, err = mvnb("run", "3", "-o", "out")
    assert (status, out) == (1, "") and err.splitlines()[-1].startswith("mvnb: ") and "kept the partial notebook" in err
    assert not (book / "out" / "03_quitting.ipynb").exists()
    assert mvnb("book", "3", "--no-site")[0] == 1 and not (book / "notebooks" / "03_quitting.ipynb").exists()


OUTSIDE = """\
# %% tags=["parameters"]
seed = 0  # (0 or more)

# %%
print("device: cpu", open("data.txt").read(), seed)
"""


def test_chapters_of_one_name_in_two_folders_are_two_chapters(mvnb, book, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(OUTSIDE)
        (tmp_path / folder / "data.txt").write_text(folder)
    assert mvnb("run", f"{tmp_path}/a/mine.py")[0] == 0 and "already holds" in mvnb("run", f"{tmp_path}/a/mine.py")[1]
    assert mvnb("run", f"{tmp_path}/b/mine.py")[0] == 2
    assert mvnb("sweep", f"{tmp_path}/a/mine.py", "--grid", "seed=0:1", "-o", "out")[0] == 0
    assert "1 of 1 runs done" in mvnb("sweep", "--status", "out")[1] and "1 runs reused" in mvnb("sweep", "--resume", "out")[1]
    status, _, err = mvnb("sweep", f"{tmp_path}/b/mine.py", "--grid", "seed=0:1", "-o", "out")
    assert status == 2 and f"holds a sweep of {tmp_path}/a/mine.py" in err


def test_a_relative_folder_of_modules_is_meant_from_where_the_command_runs(mvnb, book, monkeypatch):
    (book / "modules").mkdir()
    (book / "modules" / "nearby.py").write_text("here = 5")
    (book / "notebooks" / "03_nearby.py").write_text('# %% tags=["parameters"]\nseed = 0\n\n# %%\nimport nearby\n')
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["modules", os.environ.get("PYTHONPATH", "")]))
    assert mvnb("run", "3", "-o", "out")[0] == 0


def test_a_link_that_names_itself_is_one_line(mvnb, book):
    (book / "loop").symlink_to(book / "loop")
    for asked in (["run", "1"], ["sweep", "1", "--grid", "seed=0:1"]):
        status, out, err = mvnb(*asked, "-o", "loop")
        assert status in (1, 2) and out == "" and err.count("\n") == 1 and "Traceback" not in err


FOLDER = """\
# %% tags=["parameters"]
texts = "texts"  # folder or file of texts
"""


def test_a_run_with_another_folder_or_file_named_by_a_parameter_is_another_run(book, tmp_path):
    (book / "notebooks" / "03_folder.py").write_text(FOLDER)
    chapter, seen = catalogue.resolve("3"), []

    def look():
        seen.append(addresses.digests(chapter, [{}, {"texts": str(tmp_path / "others")}]))

    look()
    for base in (book / "notebooks" / "texts", tmp_path / "others"):  # relative paths start where the kernel works
        base.mkdir()
        look()
        (base / "a.txt").write_text("1")
        look()
        (base / "a.txt").write_text("12")
        look()
        (base / "a.txt").rename(base / "b.txt")
        look()
    relative, absolute = zip(*seen)
    assert len(set(relative)) == len(set(absolute)) == 5
    look()
    assert seen[-1] == seen[-2]


def test_a_path_on_the_command_line_is_meant_from_where_the_command_runs(book, tmp_path, monkeypatch):
    (book / "notebooks" / "03_folder.py").write_text(FOLDER.replace('texts = "', 'dataset = "digits"\nnone = ""\ntexts = "', 1))
    chapter = catalogue.resolve("3")
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "mine.npz", "photos"):
        (tmp_path / name).mkdir()
    given = {"dataset": ["mine.npz", "./photos", "yours.npz", "digits"], "none": ["photos", "other", ""]}
    found = {key: [chapter.parse([f"{key}={text}"])[key] for text in texts] for key, texts in given.items()}
    here = [str(tmp_path / name) for name in ("mine.npz", "photos")]
    assert found == {"dataset": [*here, "yours.npz", "digits"], "none": [here[1], "other", ""]}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_folder_whose_name_is_not_text_is_one_line(mvnb, book, tmp_path, monkeypatch):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff")
    os.mkdir(odd)
    monkeypatch.setenv("MVNB_ROOT", str(book))
    monkeypatch.chdir(odd)
    for asked in (["run", "1", "-o", "out"], ["run", "1"], ["sweep", "1", "--grid", "seed=0:1", "-o", "out"]):
        status, out, err = mvnb(*asked)
        assert (status, out) == (2, "") and err.count("\n") == 1 and "expected a path in UTF-8, got b'" in err
    assert os.listdir(odd) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_is_an_interrupt(book, number):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("the tests were started with nohup, whose children ignore the signal")
    for command, hint in ((["run", "2", "-p", "harm=hang"], ""), (["sweep", "2", "--grid", "harm=hang"], "continue with")):
        process = start(book, *command, "-o", "out")
        until(lambda process=process: kernels(process.pid))
        until(lambda: list((book / "out").rglob("*.partial.ipynb")))
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number and "mvnb: interrupted" in err and hint in err and "Traceback" not in err
        assert command[0] == "sweep" or not (book / "out").exists() or not list((book / "out").iterdir())
        shutil.rmtree(book / "out", ignore_errors=True)


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
    status, _, err = mvnb("run", "2", "-p", f"text={text}", "-o", "out")
    assert status == 0, err
    assert not list(book.rglob("executed"))
    (injected,) = (one for one in cells(book / "out" / "02_harm.ipynb") if one.startswith("# Parameters"))
    (assignment,) = ast.parse(injected).body
    assert ast.literal_eval(assignment.value) == text


def test_text_that_the_kernel_sends_in_pieces_is_one_output(mvnb, book):
    assert mvnb("run", "2", "-p", "text=begin", "-o", "out")[0] == 0
    last = nbformat.read(book / "out" / "02_harm.ipynb", as_version=4).cells[-1]
    assert [output.text for output in last.outputs] == ["begin\nend\n"]


@pytest.mark.parametrize(
    "value", ["__import__('os').system('touch executed')", "(lambda: 0)()", "[].__class__", "1+1", "9" * 5000]
)
def test_only_literals_of_the_right_type_are_values(mvnb, book, value):
    for given in (["run", "2", "-p", f"seed={value}"], ["sweep", "2", "--grid", f"seed={value}"]):
        status, out, err = mvnb(*given)
        assert (status, out) == (2, "") and err.count("\n") == 1
    assert not list(book.rglob("executed")) and not (book / "runs").exists()


@pytest.mark.parametrize("ready", [".venv/.pages", ".venv/.ready"])
def test_the_site_is_served_to_this_machine_only_and_nothing_beside_it(tmp_path, ready):
    (tmp_path / ready).parent.mkdir()
    (tmp_path / ready).touch()
    (tmp_path / "_build" / "html").mkdir(parents=True)
    (tmp_path / "_build" / "html" / "index.html").write_text("the site")
    (tmp_path / "_build" / "secret").write_text("a secret")
    given = ["-o", ready, f"BIN={Path(sys.executable).parent}", "PORT=0"]
    make = ["make", "-s", "-f", str(ROOT / "Makefile"), *given, "serve"]
    process = subprocess.Popen(make, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until(lambda: listening(process))
        (heard,) = listening(process)
        assert heard.ip == "127.0.0.1" and fetch(heard.port, "/") == (200, b"the site")
        for path in ("/../secret", "/%2e%2e/secret", "//../secret", f"/{tmp_path}/_build/secret"):
            assert fetch(heard.port, path)[0] == 404
    finally:
        for one in family(process):
            with suppress(psutil.NoSuchProcess):  # make takes the server along
                one.terminate()
        process.wait(20)


def family(process):
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def listening(process):
    """The addresses at which a process and those below it wait for others."""
    addresses = []
    for one in family(process):
        with suppress(psutil.NoSuchProcess):  # shells of make come and go
            addresses += [end.laddr for end in one.net_connections() if end.status == "LISTEN"]
    return addresses


def fetch(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of exactly this path, which other clients would put right first."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def cells(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]
