"""The command line: what it prints, its exit status, and that a bad request is one line and leaves nothing behind."""

import asyncio
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
from contextlib import suppress

import nbformat
import psutil
import pytest
import tiny_book
from nbclient import NotebookClient
from processes import kernels, start, until

from mvnb import __version__, claims, cli
from mvnb.runner import catalogue, execution, pairing, workers
from mvnb.runner.kernel import run_notebook


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


STARTED = 'import time\nopen("started", "w").close()'

BAD = {
    "unknown parameter": (["run", "1", "-p", "nois=2"], "did you mean 'noise'?"),
    "wrong type": (["run", "1", "-p", "replicas=many"], "'replicas' must be an integer, got 'many'"),
    "no replicas": (["run", "1", "-p", "replicas=0"], "'replicas' must be 1 or more, got '0'"),
    "malformed -p": (["run", "1", "-p", "replicas"], "expected name=value, got 'replicas'"),
    "parameter twice": (["run", "1", "-p", "seed=1", "-p", "seed=2"], "'seed' is given twice"),
    "unknown chapter": (["run", "7"], "no chapter '7'; the book has 01_tiny"),
    "unknown chapter for claims": (["claims", "tyny"], "did you mean"),
    "unknown chapter for book": (["book", "7", "--no-site"], "no chapter '7'"),
    "no chapter of the book": (["book", "./presets.py", "--no-site"], "is not in"),
    "missing file": (["run", "notebooks/07_none.py"], "no such file: notebooks/07_none.py"),
    "not a chapter": (["run", "./presets.yml"], "expected a .py or .ipynb file"),
    "no parameters cell": (["run", "notebooks/03_bare.py"], "exactly one cell tagged 'parameters', got 0"),
    "unknown preset": (["run", "1", "--preset", "smoky"], "did you mean 'smoke'?"),
    "preset with unknown parameter": (["run", "1", "--preset", "unknown"], "no parameter 'replica'"),
    "preset of wrong type": (["run", "1", "--preset", "mistyped"], "got 'many'"),
    "unknown option": (["run", "1", "--seed", "2"], "No such option"),
    "option without value": (["run", "1", "-p"], "requires an argument"),
    "unknown command": (["rum"], "No such command"),
    "no chapter": (["run"], "Missing argument"),
    "too many arguments": (["run", "1", "2"], "unexpected extra argument"),
    "unknown format": (["claims", "--format", "xml"], "'xml'"),
    "output over the book": (["run", "1", "-o", "notebooks"], "must differ from the chapter's folder"),
    "output that is a file": (["run", "1", "-o", "presets.yml"], "not a folder"),
    "claims before execution": (["claims"], "has not been executed"),
    "no jobs": (["book", "-j", "0", "--no-site"], "--jobs"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_a_bad_request_is_one_line_and_writes_nothing(mvnb, book, arguments, message):
    (book / "notebooks" / "03_bare.py").write_text("# %%\n1")
    (book / "presets.py").write_text(tiny_book.CHAPTER)
    before = tree(book)
    status, out, err = mvnb(*arguments)
    assert status == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("mvnb: ") and message in err
    assert tree(book) == before


def test_outside_a_book_every_command_says_so(mvnb, tmp_path, monkeypatch):
    monkeypatch.setenv("MVNB_ROOT", str(tmp_path))
    for arguments in (["list"], ["claims"], ["book"], ["run", "1"]):
        status, out, err = mvnb(*arguments)
        assert (status, out) == (2, "") and "MVNB_ROOT" in err and err.count("\n") == 1


def test_a_run_prints_paths_seconds_and_claims_and_options_override_the_preset(mvnb, book):
    status, out, _ = mvnb("run", "tiny", "--preset", "paper", "-p", "replicas=3", "-p", "seed=5", "-o", "out/deep")
    assert status == 0
    lines = out.splitlines()
    assert lines[:2] == ["out/deep/01_tiny.ipynb", "out/deep/01_tiny.claims.json"] and lines[2].endswith(" s")
    assert (
        "0 hold, 1 fail of 1" in out and "\nThe mean is small: the noise is too large\n  small-mean  fails " in out
    )  # the preset's noise
    text = (book / "out" / "deep" / "01_tiny.ipynb").read_text()
    assert all(line in text for line in ("replicas = 3", "noise = 1.0", "seed = 5"))
    assert not (book / "notebooks" / "01_tiny.ipynb").exists() and not (book / "runs").exists()


def test_a_failing_run_is_one_line_after_its_progress_and_status_1(mvnb, book):
    (book / "notebooks" / "02_broken.py").write_text(tiny_book.BROKEN)
    status, out, err = mvnb("run", "2")
    assert (status, out) == (1, "") and err.startswith("02_broken: running 4 cells\nmvnb: ") and err.count("\n") == 2
    assert "ZeroDivisionError" in err
    assert tree(book / "runs") == ["02", "02/02_broken.partial.ipynb"]


def test_a_log_gets_one_line_with_the_time_of_the_last_run(mvnb, book):
    """The time of the same run or, before the first one, of the default run."""
    (book / "results").mkdir()
    (book / "results" / "seconds.json").write_text('{"seconds": {"01": 12}}')
    assert mvnb("run", "1", "-p", "seed=3")[2] == "01_tiny (default run: 12 s): running 6 cells\n"
    assert re.fullmatch(r"01_tiny \(last run: \d+ s\): running 6 cells\n", mvnb("run", "1", "-p", "seed=3", "--force")[2])


def in_a_terminal(stream, *arguments):
    """Run the command with one of its streams in a terminal of 50 columns, and return what it shows."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 50))
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: theirs}
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}  # those of a shell
    subprocess.run([sys.executable, "-m", "mvnb", *arguments], check=True, env=environment, **streams)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of what a terminal shows
        while text := os.read(ours, 1000):
            shown += text
    return shown.decode()


def test_a_terminal_shows_a_bar_over_the_cells(book):
    shown = in_a_terminal("stderr", "run", "1")
    assert "01_tiny:   0%|" in shown and re.search(r"01_tiny: 100%\|.+\| 5/5 cells, 00:\d\d\r\n$", shown)
    assert "running" not in shown


@pytest.mark.parametrize(
    ("preset", "given", "folder"),
    [
        (None, [], "01"),
        (None, ["seed=0"], "01"),  # the default
        (None, ["noise=2", "replicas=3"], "01-replicas=3-noise=2.0"),
        (None, ["widths=[4]"], r"01-\d{6}"),
        (None, ["device=a/b"], r"01-\d{6}"),
        (None, ["device=" + 60 * "a"], r"01-\d{6}"),
        ("smoke", ["seed=7"], "01-smoke-seed=7"),
        ("smoke", ["replicas=2"], "01-smoke"),  # as in the preset
        ("smoke", ["replicas=4"], "01-smoke-replicas=4"),  # the default, but not of the preset
    ],
)
def test_a_run_has_a_folder_named_by_its_parameters(book, preset, given, folder):
    tiny = catalogue.resolve("1")
    named = catalogue.preset(tiny, preset) if preset else {}
    found = execution.default_folder(tiny, preset, named, tiny.parse(given))
    assert found.parent.name == "runs" and re.fullmatch(folder, found.name)
    assert found == execution.default_folder(tiny, preset, named, tiny.parse(given[::-1]))
    assert found != execution.default_folder(tiny, preset, named, tiny.parse([*given, "exact=False"]))


def test_a_run_does_not_overwrite_another(mvnb, book, monkeypatch):
    (book / "mine").mkdir()
    (book / "mine" / "01_tiny.py").write_text(tiny_book.PARAMETERS)
    run = ("run", "mine/01_tiny.py", "-p", "noise=0.7")
    folder = book / "runs" / "01_tiny-noise=0.7"
    assert mvnb(*run)[0] == 0 and "noise = 0.7" in (first := (folder / "01_tiny.ipynb").read_text())
    with monkeypatch.context() as patch:
        patch.setattr("mvnb.runner.execution.run_notebook", None)  # a call would fail
        status, out, err = mvnb(*run)
        assert (status, err) == (0, "") and out.startswith(f"{folder.relative_to(book)} already holds this run; ")
        (book / "mine" / "01_tiny.py").write_text(tiny_book.PARAMETERS + "# %%\nprint('edited')\n")
        for command in (run, ["run", "1", "-o", str(folder)]):
            status, out, err = mvnb(*command)
            assert (status, out) == (2, "") and "holds a run of 01_tiny with other parameters, data, code or l" in err
        assert (folder / "01_tiny.ipynb").read_text() == first
    assert mvnb(*run, "--force")[0] == 0 and "edited" in (folder / "01_tiny.ipynb").read_text()


def test_the_book_is_executed_listed_and_its_claims_checked(mvnb, book):
    status, out, _ = mvnb("book", "--no-site")
    assert status == 0 and out.splitlines()[2].split()[0::2] == ["01_tiny", "1/1"]
    assert "1/1" in mvnb("list")[1] and "smoke paper" in mvnb("list")[1]
    status, out, _ = mvnb("claims")
    assert status == 0 and "1 hold, 0 fail of 1" in out
    status, out, _ = mvnb("claims", "1", "--format", "json")
    assert status == 0 and json.loads(out)[0]["id"] == "small-mean"


def test_an_opposite_verdict_is_named_and_status_1(mvnb, book):
    notebook = book / "notebooks" / "01_tiny.ipynb"
    assert mvnb("book", "--no-site")[0] == 0

    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=book, check=True, capture_output=True
        )

    git("init"), git("add", "."), git("commit", "-m", "a")
    assert mvnb("claims", "--changed") == (0, "No verdict, value, rule or origin differs from HEAD in the notebooks.\n", "")
    assert json.loads(mvnb("claims", "--changed", "--format", "json")[1]) == []
    status, out, _ = mvnb("claims", "--against", "HEAD")
    assert status == 0 and "\nThe mean is small\n  small-mean  holds " in out
    assert out.endswith("\nNo verdict, value, rule or origin differs from HEAD in the notebooks.\n")
    status, out, _ = mvnb("run", "1", "-p", "seed=3")
    assert status == 0 and "\nNo verdict was reversed.\n1 hold, 0 fail of 1" in out
    assert "\nThe mean is small\n  small-mean  holds    value -0.0955, noise 0.5  value 0.176, noise 0.5\n" in out
    notebook.write_text(notebook.read_text().replace('"verdict": "holds"', '"verdict": "fails"'))
    assert len(json.loads(mvnb("claims", "--changed", "--format", "json")[1])) == 1
    for command in (["claims", "--changed"], ["run", "1"], ["book", "1", "--again", "--no-site"]):
        status, out, err = mvnb(*command)
        assert status == 1 and "01_tiny: the verdict of small-mean was reversed" in err
        assert "No verdict" not in out
        assert {"run": "fails → holds", "claims": "holds → fails", "book": ""}[command[0]] in out
    status, out, _ = mvnb("run", "1")  # the book was run again
    assert status == 0 and "small-mean" not in out
    assert "\nNo verdict, value, rule or origin differs from the committed notebook.\n" in out
    (rule,) = (row["criterion"] for row in claims.read(notebook))
    notebook.write_text(notebook.read_text().replace(f'"criterion": "{rule}"', '"criterion": "value < 5 and noise < 1"'))
    status, out, _ = mvnb("claims", "--changed")
    assert status == 0 and "small-mean  holds " in out and "No verdict was reversed." in out
    assert f"judged by  {rule} (origin: paper)  value < 5 and noise < 1 (origin: paper)" in out
    status, _, err = mvnb("claims", "--against", "nowhere")
    assert status == 2 and err == "mvnb: fatal: Not a valid object name nowhere\n"


EMPTY = [
    ["run", ""],
    ["run", "1", "--preset", ""],
    ["run", "1", "-p", ""],
    ["run", "1", "-o", ""],
    ["sweep", "1", "--grid", "seed=0:2", "--preset", ""],
    ["sweep", "1", "--grid", "seed=0:2", "--dask", ""],
    ["sweep", "1", "--grid", ""],
    ["sweep", "--resume", ""],
    ["claims", "1", "--against", ""],
    ["claims", ""],
    ["compare", "1", ""],
    ["keep", "1", ""],
]
OTHER = {
    "--memory inf": (["run", "1", "--memory", "inf"], "--memory"),
    "--memory 1e300": (["run", "1", "--memory", "1e300"], "--memory"),
    "--threads 1e9": (["run", "1", "--threads", "1000000000"], "--threads"),
    "keep --status and more": (["keep", "1", "--status"], "--status cannot be combined with a chapter"),
    "--timeout inf": (["sweep", "1", "--grid", "seed=0:2", "--timeout", "inf"], "--timeout"),
    "--timeout nan": (["run", "1", "--timeout", "nan"], "--timeout"),
    "not UTF-8, folder": (["run", "1", "-o", "\udcff"], "expected arguments in utf-8, got b'\\xff'"),
    "not UTF-8, value": (["run", "1", "-p", "device=\udcff"], "expected arguments in utf-8"),
    "not UTF-8, grid": (["sweep", "1", "--grid", "seed=\udcff"], "expected arguments in utf-8"),
}
OTHER |= {" ".join(one): (one, "got an empty one") for one in EMPTY}


@pytest.mark.parametrize(("arguments", "message"), OTHER.values(), ids=OTHER)
def test_values_that_say_nothing_are_refused_in_one_line(mvnb, book, arguments, message):
    before = sorted(book.rglob("*"))
    status, out, err = mvnb(*arguments)
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err
    assert sorted(book.rglob("*")) == before


def test_files_that_cannot_be_read_are_named_in_one_line(mvnb, executed_book):
    notebook = executed_book / "notebooks" / "01_tiny.ipynb"
    (executed_book / "other").mkdir()
    (executed_book / "other" / "01_tiny.ipynb").write_bytes(notebook.read_bytes()[:500])
    (executed_book / "latin").mkdir()
    (executed_book / "latin" / "01_tiny.ipynb").write_bytes(b'{"cells": "\xe9"}')
    for folder in ("other", "latin"):
        for asked in (["compare", "1", folder], ["compare", folder, "1"]):
            status, out, err = mvnb(*asked)
            assert (status, out) == (2, "") and err.startswith("mvnb: cannot read ") and err.count("\n") == 1
    (executed_book / "presets.yml").write_bytes("01_tiny: {smoke: {device: é}}".encode("latin-1"))
    for asked in (["list"], ["run", "1", "--preset", "smoke"]):
        status, out, err = mvnb(*asked)
        assert (status, out) == (2, "") and "presets.yml is not valid YAML" in err and err.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_may_be_closed(book, closed):
    for arguments, status in (("list", 0), ("run 66", 2), ("run 1 -o out --force", 0)):
        command = f"{sys.executable} -m mvnb {arguments} {closed}"
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert done.returncode == status and "Traceback" not in done.stderr + done.stdout


def test_main_prints_to_streams_of_a_notebook_and_keeps_other_exits(book, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    handler = signal.getsignal(signal.SIGTERM)
    assert cli.main(["list"]) == 0 and "tiny" in stream.getvalue()
    assert signal.getsignal(signal.SIGTERM) is handler
    monkeypatch.setattr(cli, "app", lambda **_: sys.exit(3))
    with pytest.raises(SystemExit, match="3"):
        cli.main(["list"])


def test_two_runs_are_compared(mvnb, executed_book):
    notebook = nbformat.read(executed_book / "notebooks" / "01_tiny.ipynb", as_version=4)
    (row,) = notebook.cells[-2].outputs[0].data[claims.MIME]
    row["verdict"], row["measured"]["value"] = "fails", [100, 100, 100]
    notebook.metadata["papermill"] = {"parameters": {"noise": 2.0}}
    run = "runs/01-noise=2.0"
    (executed_book / run).mkdir(parents=True)
    for name in ("01_tiny", "01_tiny.partial"):
        nbformat.write(notebook, executed_book / run / f"{name}.ipynb")
    status, out, err = mvnb("compare", "1", run)
    lines = [re.split("  +", line) for line in out.splitlines()]
    assert (status, err) == (0, "") and "reversed" not in out
    assert lines[0] == ["parameter", "1", run] and lines[2] == ["noise", "0.5", "2.0"]
    assert lines[4] == ["claim", "verdict", "1", run] and lines[6] == ["The mean is small"]
    assert lines[7][:3] == ["", "small-mean", "holds → fails"]
    assert lines[7][3].startswith("value -0.0955, noise ") and lines[7][4].startswith("value 100, noise ")
    assert "fails → holds" in mvnb("compare", run, "1")[1]
    for options, rows in ([], 1), (["--changed"], 0):
        status, out, _ = mvnb("compare", "1", "notebooks/01_tiny.ipynb", *options)
        assert status == 0 and "All parameters are equal.\n" in out and out.count("small-mean  holds  ") == rows
        assert out.endswith("No verdict, value, rule or origin differs from 1.\n")


def test_claims_fit_the_terminal_and_name_their_chapters(mvnb, executed_book):
    lines = in_a_terminal("stdout", "claims", "1").splitlines()
    assert lines[0].split()[:2] == ["claim", "verdict"] and 40 < max(map(len, lines)) <= 50
    assert max(map(len, mvnb("claims", "1")[1].splitlines())) > 50
    for suffix in (".py", ".ipynb"):
        shutil.copy(executed_book / "notebooks" / f"01_tiny{suffix}", executed_book / "notebooks" / f"02_other{suffix}")
    out = mvnb("claims")[1]
    assert "\n  01 small-mean  holds " in out and "\n  02 small-mean  holds " in out and "\n2 hold, 0 fail of 2 claims\n" in out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_not_an_error(executed_book, unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "mvnb", "claims"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
def test_messages_that_cannot_be_written_end_no_run_and_results_do(book):
    for asked, streams, status in (
        ("run 1 -o out", "2>/dev/full", 0),
        ("run 1 -o other", "2>&1 >/dev/null | head -c 0; exit ${PIPESTATUS[0]}", 0),
        ("run 66", "2>/dev/full", 2),
        ("list", ">/dev/full", 1),
    ):
        done = subprocess.run(["bash", "-c", f"{sys.executable} -m mvnb {asked} {streams}"], capture_output=True, text=True)
        assert done.returncode == status and "Traceback" not in done.stderr
    assert (book / "out" / "01_tiny.ipynb").exists() and (book / "other" / "01_tiny.ipynb").exists()


def test_an_unexpected_error_is_one_line_unless_more_is_asked_for(mvnb, book, monkeypatch):
    monkeypatch.setattr(catalogue, "discover", lambda *_: {}["list"])
    status, out, err = mvnb("list")
    assert (status, out) == (1, "") and err.count("\n") == 1
    assert err.startswith("mvnb: unexpected KeyError: 'list' (test_cli.py, line ")
    monkeypatch.setenv("MVNB_TRACEBACK", "1")
    with pytest.raises(KeyError):
        mvnb("list")


def test_what_cannot_be_compared_is_one_line(mvnb, executed_book):
    shutil.copy(executed_book / "notebooks" / "01_tiny.ipynb", executed_book / "notebooks" / "02_other.ipynb")
    for other, message in {
        "papers": "expected one finished notebook in papers, got 0",
        "notebooks": "expected one finished notebook in notebooks, got 2",
        "notebooks/02_other.ipynb": "expected two runs of one chapter, got 01_tiny and 02_other",
        "7": "no chapter '7'",
    }.items():
        status, out, err = mvnb("compare", "1", other)
        assert (status, out) == (2, "") and err.startswith(f"mvnb: {message}") and err.count("\n") == 1


def test_the_book_runs_what_has_changed_and_goes_on_where_it_was_killed(mvnb, book):
    sleeper = tiny_book.BROKEN[: tiny_book.BROKEN.index("# This")].replace("seconds = 0.0", "seconds = 600.0")
    (book / "notebooks" / "02_sleeper.py").write_text(sleeper.replace("import time", STARTED))
    process = start(book, "book", "--no-site", "-j", "1")
    until((book / "notebooks" / "started").exists)
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(below, timeout=20)[1], "workers and kernels go with the command"
    (book / "notebooks" / "02_sleeper.py").write_text(sleeper.replace("600.0", "0.0"))
    status, out, _ = mvnb("book", "--no-site")
    seconds = {line.split()[0]: line.split()[1] for line in out.splitlines()[2:]}
    assert status == 0 and seconds["01_tiny"] == "unchanged" and seconds["02_sleeper"] != "unchanged"
    assert "unchanged" not in mvnb("book", "1", "--again", "--no-site")[1]


def test_a_failed_chapter_and_a_failed_site_fail_the_book(mvnb, book, monkeypatch):
    (book / "notebooks" / "02_broken.py").write_text(tiny_book.BROKEN)
    status, out, err = mvnb("book", "2", "--no-site")
    assert status == 1 and "failed" in out and "ZeroDivisionError" in err
    monkeypatch.setattr(cli, "_build_site", lambda root: False)
    monkeypatch.setattr(cli.execution, "execute_all", lambda *_, **__: [])
    assert mvnb("book", "2")[0] == 1


def test_an_interrupt_is_told_once_although_a_cell_fails_by_it(mvnb, monkeypatch, caplog):
    left = [asyncio.new_event_loop().create_future()]

    def interrupted(*_, **__):
        """As nbclient leaves it when the kernel, too, has answered: with an error that nobody fetches."""
        left[0].set_exception(RuntimeError("the cell"))
        raise KeyboardInterrupt

    monkeypatch.setattr(NotebookClient, "execute_cell", interrupted)
    try:
        status, _, err = mvnb("run", "1")
        left.clear()  # from here on asyncio complains
    finally:
        logging.getLogger("asyncio").setLevel(logging.NOTSET)
    assert status == 130 and err.endswith("mvnb: interrupted\n") and not caplog.records


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_cores_are_those_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert workers.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_help_is_printed_for_a_bare_call(mvnb):
    assert mvnb() == mvnb("--help")
    assert mvnb()[0] == 0 and all(word in mvnb()[1] for word in ("list", "run", "compare", "claims", "book"))


def test_the_version_is_printed_also_by_python_m(mvnb):
    assert mvnb("--version") == (0, f"mvnb {__version__}\n", "")
    done = subprocess.run([sys.executable, "-m", "mvnb", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"mvnb {__version__}\n", "")
    done = subprocess.run([sys.executable, "-m", "mvnb", "run", "1", "-p", "noise"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr == "mvnb: expected name=value, got 'noise'\n"


@pytest.mark.parametrize("command", ["run", "book"])
def test_an_interrupt_leaves_nothing_half_written(book, command):
    sleeper = tiny_book.BROKEN.replace("seconds = 0.0", "seconds = 60.0").replace("import time", STARTED)
    (book / "notebooks" / "02_sleeper.py").write_text(sleeper)
    empty = nbformat.v4.new_notebook()
    old = nbformat.writes(pairing.tidy(empty, empty))
    (book / "notebooks" / "02_sleeper.ipynb").write_text(old)
    options = ["-o", "_build/execute"] if command == "run" else ["--no-site"]
    process = start(book, command, "2", *options)
    try:
        until((book / "notebooks" / "started").exists)
        running = kernels(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (
        process.returncode == 130 and err.endswith("mvnb: interrupted\n") and err.count("\n") == 2
    )  # the first says what runs
    assert set(tree(book / "_build")) <= {"execute", "execute/.02_sleeper.lock"}  # a killed worker leaves its lock
    assert (book / "notebooks" / "02_sleeper.ipynb").read_text() == old
    assert len(running) == 1 and not psutil.wait_procs(running, timeout=10)[1]


def test_a_result_takes_its_name_only_when_it_is_whole(mvnb, book, monkeypatch):
    seen = []

    def watched(*given, **options):
        ran = run_notebook(*given, **options)
        seen.append(tree(book / "runs" / "01"))
        return ran

    monkeypatch.setattr("mvnb.runner.execution.run_notebook", watched)
    assert mvnb("run", "1")[0] == 0
    assert seen == [[".01_tiny.lock", "01_tiny.partial.ipynb"]]
    assert tree(book / "runs" / "01") == ["01_tiny.claims.json", "01_tiny.ipynb"]


def test_two_runs_of_a_chapter_do_not_share_a_folder(mvnb, book):
    sleeper = tiny_book.BROKEN[: tiny_book.BROKEN.index("# This")].replace("import time", STARTED)
    (book / "notebooks" / "02_sleeper.py").write_text(sleeper)
    first = start(book, "run", "2", "-p", "seconds=600", "-o", "out")
    until((book / "notebooks" / "started").exists)
    running = kernels(first.pid)
    status, out, err = mvnb("run", "2", "-o", "out")
    assert (status, out, err) == (2, "", "mvnb: another run of 02_sleeper is writing to out\n")
    assert mvnb("run", "1", "-o", "out")[0] == 0  # another chapter may
    first.kill()
    first.communicate()
    assert not psutil.wait_procs(running, timeout=20)[1]
    assert mvnb("run", "2", "-o", "out")[0] == 0  # and what a killed run leaves stops no other
    kept = ["01_tiny.claims.json", "01_tiny.ipynb", "02_sleeper.claims.json", "02_sleeper.ipynb"]
    assert tree(book / "out") == kept
