"""Sweeps over a small chapter: what is run, what is not run again, what is written, on processes and on Dask workers."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
import tiny_book
from processes import command_line, kernels, start, until

from mvnb.runner import catalogue, sweeps, workers

# Each run that comes to this cell leaves a line; `pause` makes a run long enough to be killed, `fail` fails some seeds.
TRACE = """\
# %%
import os
import time

time.sleep(pause)
if fail and seed % fail == 0:
    raise RuntimeError(f"seed {seed} fails")
with open(os.environ["MVNB_TRACE"], "a") as trace:
    trace.write(f"{seed} {noise}\\n")

# %% [markdown]
# <a id="01-held-up"></a>
"""
PARAMETERS = 'pause = 0.0  # seconds (0 or more)\nfail = 0  # every so manieth seed fails (0: none)\n\n# %% tags=["check"]\n'
CHECK = 'if noise > 100:\n    raise ValueError(f"noise must be at most 100, got {noise}")\n\n'
CHAPTER = tiny_book.CHAPTER.replace('# %% [markdown]\n# <a id="01-held-up"></a>\n', TRACE).replace(
    "interval = [0.1, 2.0]  # ends of what is drawn (0 or more)\n\n",
    f"interval = [0.1, 2.0]  # ends of what is drawn (0 or more)\n{PARAMETERS}{CHECK}",
)


@pytest.fixture
def book(tmp_path, monkeypatch):
    root = tiny_book.make(tmp_path / "a böok", CHAPTER)  # a path with a space and a letter that is not ASCII
    monkeypatch.chdir(root)
    monkeypatch.delenv("MVNB_ROOT", raising=False)
    monkeypatch.setenv("MVNB_TRACE", str(tmp_path / "trace"))
    (tmp_path / "trace").touch()
    return root


def counted(out):
    """How often the tiny chapter's claim held, failed and was undecided, as a sweep prints it."""
    (found,) = re.findall(
        r"^claim +holds +fails +undecided\n.*\nThe mean is small\n  small-mean +(\d+) +(\d+) +(\d+)$", out, re.MULTILINE
    )
    return " ".join(found)


def traced(book):
    return sorted((book.parent / "trace").read_text().split("\n")[:-1])


# -- what a grid means ---------------------------------------------------------------------------------------------


def test_grids_are_lists_ranges_and_lists_of_lists(book):
    chapter = catalogue.resolve("1")
    before = psutil.Process().children(recursive=True)
    found = sweeps.grid(chapter, ["seed=0:6:2", "noise=0.5,2", "widths=[8,16],[4]", "device=cpu"])
    assert found == {"seed": [0, 2, 4], "noise": [0.5, 2.0], "widths": [[8, 16], [4]], "device": ["cpu"]}
    sweep = sweeps.prepare(chapter, found, {"replicas": 2}, Path("out"), {})
    assert len(sweep.cells) == 12
    assert list(sweep.cells.values())[1] == {"replicas": 2, "seed": 0, "noise": 0.5, "widths": [4], "device": "cpu"}
    assert psutil.Process().children(recursive=True) == before  # no kernel stays


BAD = {
    "no grid": (["sweep", "1"], "at least one --grid"),
    "no chapter": (["sweep", "--grid", "seed=0:2"], "needs a chapter"),
    "not a grid": (["sweep", "1", "--grid", "seed"], "must have the form"),
    "no values": (["sweep", "1", "--grid", "seed="], "must have the form"),
    "name twice": (["sweep", "1", "--grid", "seed=1", "--grid", "seed=2"], "given twice for 'seed'"),
    "value twice": (["sweep", "1", "--grid", "noise=1,1.0"], "must give distinct values"),
    "empty range": (["sweep", "1", "--grid", "seed=3:3"], "non-empty range"),
    "endless range": (["sweep", "1", "--grid", "seed=0:3:0"], "positive step"),
    "unknown name": (["sweep", "1", "--grid", "sed=1,2"], "did you mean 'seed'?"),
    "wrong type": (["sweep", "1", "--grid", "replicas=2,many"], "'replicas' must be an integer, got 'many'"),
    "not a number": (["sweep", "1", "--grid", "noise=1,nan"], "'noise' must be finite, got 'nan'"),
    "negative": (["sweep", "1", "--grid", "noise=1,-1"], "'noise' must be 0 or more, got '-1'"),
    "refused by the chapter": (
        ["sweep", "1", "-p", "replicas=2", "--grid", "noise=1,200", "--grid", "seed=0:2"],
        "mvnb: noise=200.0, seed=0: noise must be at most 100, got 200.0 (2 of 4 points refused, none run: also noise=200.0, s",
    ),
    "fixed and in the grid": (["sweep", "1", "--grid", "seed=0:2", "-p", "seed=1"], "both in the grid and fixed"),
    "over the book": (["sweep", "1", "--grid", "seed=0:2", "-o", "notebooks"], "must differ from the chapter's folder"),
    "into a file": (["sweep", "1", "--grid", "seed=0:2", "-o", "presets.yml"], "not a folder"),
    "no time": (["sweep", "1", "--grid", "seed=0:2", "--timeout", "0"], "--timeout"),
    "too many": (["sweep", "1", "--grid", "seed=0:50000000", "-o", "out"], "--grid must give at most 100,000 values"),
    "status and more": (["sweep", "--status", "out", "--resume", "out"], "--status cannot be combined with"),
    "nothing to resume": (["sweep", "--resume", "out"], "no sweep in out"),
    "no status": (["sweep", "--status", "out"], "no sweep in out"),
    "resume with more": (["sweep", "1", "--resume", "out"], "cannot be combined with a chapter"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_a_bad_request_is_one_line_and_writes_nothing(mvnb, book, arguments, message):
    before = sorted(book.rglob("*"))
    status, out, err = mvnb(*arguments)
    assert status == 2 and out == "" and err.count("\n") == 1 and message in err
    assert sorted(book.rglob("*")) == before and not traced(book)


def test_a_run_refused_by_the_chapter_leaves_nothing(mvnb, book):
    before = sorted(book.rglob("*"))
    status, out, err = mvnb("run", "1", "-p", "noise=200", "-o", "deep/er")
    assert (status, out, err) == (2, "", "mvnb: noise must be at most 100, got 200.0\n")
    assert sorted(book.rglob("*")) == before


USERS = """\
distributed:
  comm: {require-encryption: true, timeouts: {connect: 1ms, tcp: 1ms}}
  worker: {preload: [absent_module], lifetime: {duration: 1 s}}
  scheduler: {idle-timeout: 1 s, preload: [absent_module]}
  nanny: {preload: [absent_module]}
"""


@pytest.mark.parametrize("text, status", [(USERS, 0), ("distributed: {", 2), ("- 1", 2)], ids=["cluster", "no YAML", "a list"])
def test_a_sweep_on_this_machine_does_not_depend_on_the_configuration_of_clusters(book, tmp_path, text, status):
    folder = tmp_path / "dask"
    folder.mkdir()
    (folder / "dask.yaml").write_text(text)
    environment = os.environ | {"DASK_CONFIG": str(folder), "DASK_DISTRIBUTED__COMM__RETRY__COUNT": "many"}
    command = [sys.executable, "-m", "mvnb", "sweep", "1", "--grid", "seed=0:1", "-p", "pause=2", "-o", "out"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    if status:
        assert done.stderr.startswith("mvnb: ") and done.stderr.count("\n") == 1 and "configuration" in done.stderr
    else:
        assert "1 succeeded and 0 failed" in done.stdout and traced(book) == ["0 0.5"]


# -- what is run, and what is not run again ------------------------------------------------------------------------


def test_a_second_call_does_what_is_missing_and_a_changed_chapter_is_run_again(mvnb, book):
    asked = ["sweep", "1", "-p", "replicas=4", "--grid", "seed=0:2", "-j", "1", "-o", "out"]
    status, out, _ = mvnb(*asked)
    assert status == 0 and "2 succeeded" in out and counted(out) == "2 0 0"
    assert traced(book) == ["0 0.5", "1 0.5"]
    status, out, _ = mvnb(*asked, "--grid", "noise=0.5,2")
    assert status == 0 and "2 runs reused, 2 succeeded" in out and counted(out) == "2 2 0"
    assert traced(book) == ["0 0.5", "0 2.0", "1 0.5", "1 2.0"]
    assert mvnb("sweep", "--status", "out")[0] == 0

    table = pd.read_csv(book / "out" / "table.csv")
    assert table["part"].tolist() == ["value", "noise"] * 4 and set(table["claim"]) == {"small-mean"}
    noises = table[table["part"] == "noise"]
    assert noises["measured"].tolist() == noises["low"].tolist() == noises["noise"].tolist()
    assert set(table["says"]) == {"The mean is small"} and set(table["criterion"]) == {"value < 100 and noise < 1"}
    table = table[table["part"] == "value"].reset_index(drop=True)
    assert table["seed"].tolist() == [0, 0, 1, 1] and table["noise"].tolist() == [0.5, 2, 0.5, 2]
    assert table["verdict"].tolist() == ["holds", "fails"] * 2
    assert set(table["replicas"]) == {4} and set(table["widths"]) == {"[8, 16]"} and (table["seconds"] > 0).all()
    assert table[["torch", "python", "host", "finished"]].notna().all().all()
    rows = [json.loads((path / "run.json").read_text())["claims"][0] for path in sorted((book / "out" / "cells").iterdir())]
    assert sorted(next(iter(row["measured"].values()))[0] for row in rows) == sorted(table["measured"])
    same = ["seed", "noise", "measured"]
    pd.testing.assert_frame_equal(
        pd.read_parquet(book / "out" / "table.parquet")[::2][same].reset_index(drop=True), table[same]
    )
    assert (book / "out" / "held.png").stat().st_size > 5000

    assert mvnb("sweep", "--resume", "out", "--keep")[0] == 0
    kept = json.loads((book / "results" / "sweeps" / "01.json").read_text())
    assert kept["grid"] == {"seed": [0, 1], "noise": [0.5, 2.0]}
    assert kept["claims"] == {
        "small-mean": {
            "terms": "value < 100 and noise < 1 (origin: paper)",
            "holds": 2,
            "fails": 2,
            "undecided": 0,
            "values": 4,
        }
    }

    source = book / "notebooks" / "01_tiny.py"
    source.write_text(source.read_text().replace("Three sentences", "Four sentences"))  # prose is not what a run depends on
    assert "4 runs reused" in mvnb("sweep", "--resume", "out")[1]
    source.write_text(source.read_text().replace("draws = random", "draws = 0\ndraws = random"))
    assert "0 of 4 runs done" in mvnb("sweep", "--status", "out")[1]
    assert "0 runs reused, 4 succeeded" in mvnb("sweep", "--resume", "out", "-j", "1")[1]


def test_what_is_no_plan_is_one_line(mvnb, book):
    (book / "out").mkdir()
    good = {"chapter": "01_tiny", "grid": {"seed": [1]}, "fixed": {}}
    for change in ({"grid": []}, {"chapter": 6}, {"fixed": None}, {"grid": {"seed": 5}}, {"grid": {"seed": []}}):
        (book / "out" / "sweep.json").write_text(json.dumps(good | change))
        status, out, err = mvnb("sweep", "--status", "out")
        assert (status, out) == (2, "") and err.count("\n") == 1 and "sweep.json is not a valid sweep: expected" in err
    (book / "out" / "sweep.json").write_text("[" * 100_000)
    assert mvnb("sweep", "--status", "out")[0] == 2


def test_seeds_beyond_64_bits_and_pilots_that_are_not_kept(mvnb, book):
    asked = ["sweep", "1", "--preset", "smoke", "--grid", f"seed={10**23}", "-o", "out", "--keep"]
    status, _, err = mvnb(*asked)
    assert status == 2 and "cannot keep a sweep with other parameters than the defaults, got replicas=2" in err
    assert pd.read_parquet(book / "out" / "table.parquet")["seed"].tolist() == 2 * [str(10**23)]
    assert (book / "out" / "held.png").exists() and not (book / "results").exists()


def test_a_scheduler_that_does_not_answer_leaves_the_folder_as_it_was(mvnb, book):
    assert mvnb("sweep", "1", "--grid", "seed=0:1", "-o", "out")[0] == 0
    before = {path: path.read_bytes() for path in (book / "out").iterdir() if path.is_file()}
    for address in ("foo", "ucx://127.0.0.1:9"):
        status, _, err = mvnb("sweep", "1", "--grid", "seed=5:9", "-o", "out", "--dask", address)
        assert status == 2 and err.count("\n") == 1 and f"no Dask scheduler answers at {address}" in err
    assert {path: path.read_bytes() for path in (book / "out").iterdir() if path.is_file()} == before
    assert not (book / "out" / ".code").exists()


def test_a_damaged_record_is_a_run_that_is_missing(mvnb, book):
    asked = ["sweep", "1", "--grid", "seed=0:2", "-j", "1", "-o", "out"]
    assert mvnb(*asked)[0] == 0
    record = min((book / "out" / "cells").iterdir()) / "run.json"
    record.write_text(record.read_text()[:100])
    status, out, _ = mvnb(*asked)
    assert status == 0 and "1 runs reused, 1 succeeded" in out and "2 of 2 runs done" in out
    (book / "out" / "sweep.json").unlink()
    (book / "out" / "sweep.json").mkdir()  # a plan that cannot be read is not a plan that is missing
    status, out, err = mvnb("sweep", "--status", "out")
    assert (status, out) == (1, "") and err.count("\n") == 1 and "Is a directory" in err


@pytest.mark.parametrize(("n_claims", "noises"), [(1, [0.5]), (30, [0.5]), (3, [0.5, 1.0, 2.0])])
def test_the_figure_shows_what_claims_say_their_values_and_limits_and_fits(recwarn, n_claims, noises):
    grid = {"seed": [0, 1, 2]} | ({"noise": noises} if len(noises) > 1 else {})
    sweep = SimpleNamespace(grid=grid, chapter=SimpleNamespace(name="07_landscape_aware_growing"))
    of = {
        "says": "The mean over $k$ classes is small " + "or " * 80,
        "unit": "of $k$ classes",
        "criterion": "0.1 <= value < 0.9",
    }
    rows = [
        {"claim": f"claim-{n}", "part": "value", "noise": noise, "seed": seed, "verdict": verdict, "measured": end} | of
        for n, noise in itertools.product(range(n_claims), noises)
        for seed, verdict, end in zip(grid["seed"], ["holds", "undecided", "undecided"], [0.2, noise, None])
    ]
    judged = pd.DataFrame(rows).assign(low=lambda table: table["measured"] - 0.05, high=lambda table: table["measured"] + 0.1)
    judged.loc[judged["claim"] == f"claim-{n_claims - 1}", "verdict"] = "fails"
    fig = sweeps._draw(sweep, judged)
    fig.draw_without_rendering()
    assert len(fig.axes) == n_claims
    for n, ax in enumerate(fig.axes):
        told = "3 ✗" if n == n_claims - 1 else "1 ✓  2 ?"
        points = [f"{noise}\n{told}" for noise in noises] if "noise" in grid else [told]
        assert [label.get_text() for label in ax.get_xticklabels()] == points and ax.get_ylabel() == "of k classes"
        title = ax.get_title(loc="left").replace("\n", " ")
        assert title.startswith("The mean over k classes is small or") and title.endswith(f"… [claim-{n}]")
        limits = [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() == ":" and len(line.get_ydata())]
        assert sorted(limits) == [0.1, 0.9]
        marks = np.concatenate([bars[0].get_xydata() for bars in ax.containers])
        marks = marks[np.isfinite(marks[:, 1])]
        assert sorted(marks[:, 1]) == sorted([*noises, *[0.2] * len(noises)])
        assert {*np.round(marks[:, 0])} == {*range(len(noises))} and len({*marks[:, 0]}) == 2 * len(noises)
        ends = [path.vertices[:, 1] for bars in ax.containers for path in bars[2][0].get_paths()]
        ends = [one for one in ends if np.isfinite(one).all()]
        assert np.allclose(sorted(high - low for low, high in ends), 0.15) and len(ends) == 2 * len(noises)
    page = fig.bbox
    titles = [ax._left_title for ax in fig.axes]
    for box in (text.get_window_extent() for text in [fig._suptitle, *fig.legends, *titles]):
        assert page.x0 <= box.x0 < box.x1 <= page.x1 and page.y0 <= box.y0 < box.y1 <= page.y1
    assert not recwarn.list


def test_a_failed_cell_is_told_and_the_rest_goes_on(mvnb, book):
    status, out, err = mvnb("sweep", "1", "--grid", "seed=1:4", "-p", "fail=2", "-j", "1", "-o", "out")
    assert status == 1 and "2 succeeded and 1 failed" in out and counted(out) == "2 0 0"
    assert err.startswith("mvnb: seed=2: cell [") and "RuntimeError: seed 2 fails" in err and err.count("\n") == 1
    kept = Path(err.rpartition("kept the partial notebook ")[2].strip())
    assert kept.is_file() and "seed 2 fails" in kept.read_text() and kept.parent.parent == book / "out" / "failed"
    assert pd.read_csv(book / "out" / "table.csv")["error"].notna().sum() == 1
    status, _, err = mvnb("sweep", "--resume", "out", "--keep")
    assert status == 2 and "1 of 3 runs are missing or failed" in err and not (book / "results").exists()
    status, out, err = mvnb("sweep", "--resume", "out", "-j", "1")
    assert status == 1 and "2 runs reused, 0 succeeded and 1 failed" in out and "RuntimeError: seed 2 fails" in err
    assert traced(book) == ["1 0.5", "3 0.5"]


def test_two_sweeps_do_not_share_a_folder(mvnb, book):
    first = start(book, "sweep", "1", "--grid", "seed=0:1", "-p", "pause=4", "-o", "out")
    until(lambda: (book / "out" / "sweep.json").is_file())
    status, _, err = mvnb("sweep", "1", "--grid", "seed=0:1", "-o", "out")
    assert status == 2 and "another sweep is running in" in err and err.count("\n") == 1
    assert first.wait(60) == 0 and traced(book) == ["0 0.5"]


INTERRUPTED = "mvnb: interrupted; continue with: mvnb sweep --resume out\n"


@pytest.mark.weekly
def test_an_interrupt_while_workers_start_is_one_line(book):
    process = start(book, "sweep", "1", "--grid", "seed=0:4", "-p", "pause=600", "-j", "2", "-o", "out")
    until(lambda: any("spawn_main" in command_line(child) for child in psutil.Process(process.pid).children()))
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[1] == INTERRUPTED and process.returncode == 130


def test_an_interrupt_says_so_and_leaves_no_kernel(mvnb, book):
    process = start(book, "sweep", "1", "--grid", "seed=0:4", "-p", "pause=600", "-j", "2", "-o", "out")
    until(lambda: len(kernels(process.pid)) == 2 and list((book / "out").glob(".running/*/*.ipynb")))
    running = kernels(process.pid)
    status, out, _ = mvnb("sweep", "--status", "out")
    assert status == 1 and "0 of 4 runs done, 0 failed, 2 running, in" in out
    assert "running: seed=0\nrunning: seed=1\n" in out and "seed=2" not in out
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[1] == INTERRUPTED and process.returncode == 130
    assert not psutil.wait_procs(running, timeout=10)[1] and not (book / "out" / "cells").exists()
    assert "0 of 4 runs done, 0 failed, 0 running, in" in mvnb("sweep", "--status", "out")[1]


# -- Dask ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def scheduler(book):
    """A Dask scheduler and two workers, as on a cluster: processes that this one does not know."""
    from distributed.utils import open_port

    address = f"tcp://127.0.0.1:{(port := open_port())}"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": book.parent}
    processes = [subprocess.Popen([*dask, "--no-dashboard"], **quiet)]
    processes += [subprocess.Popen([*worker, "--memory-limit", "0"], **quiet) for _ in range(2)]
    yield address, processes
    for process in processes[::-1]:
        process.terminate()
    for process in processes:
        process.wait(20)


def test_workers_that_end_late_are_killed_without_an_error():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def close():
        raise TimeoutError

    workers._close(SimpleNamespace(workers={0: process}, close=close))
    assert process.wait(10) == -signal.SIGKILL


def test_a_cluster_gives_the_table_of_processes(mvnb, book, scheduler):
    asked = ["sweep", "1", "--grid", "noise=0.5,2"]
    assert mvnb(*asked, "-o", "here")[0] == 0
    status, out, err = mvnb(*asked, "-o", "there", "--dask", scheduler[0])
    assert status == 0 and "2 succeeded" in out, err
    here, there = (pd.read_parquet(book / name / "table.parquet") for name in ("here", "there"))
    varies = ["seconds", "finished"]
    pd.testing.assert_frame_equal(here.drop(columns=varies), there.drop(columns=varies))


def test_a_killed_worker_is_replaced_within_the_sweep(book):
    process = start(book, "sweep", "1", "--grid", "seed=0:4", "-p", "pause=2", "-j", "2", "-o", "out")
    until(lambda: len(kernels(process.pid)) == 2)
    kernels(process.pid)[0].parent().kill()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "4 succeeded and 0 failed" in out and not err, err
    assert sorted(set(traced(book))) == [f"{n} 0.5" for n in range(4)] and len(traced(book)) <= 5


@pytest.mark.weekly
def test_killed_workers_and_a_killed_client_lose_nothing_and_repeat_nothing(mvnb, book, scheduler):
    address, (_, worker, _) = scheduler
    asked = ["sweep", "1", "--grid", "seed=0:8", "-p", "pause=1", "-o", "out", "--dask", address]
    client = start(book, *asked)
    until(lambda: len(traced(book)) >= 1)
    for process in psutil.Process(worker.pid).children():  # the worker proper; its nanny starts another one
        if "spawn_main" in command_line(process):
            process.kill()
    until(lambda: len(traced(book)) >= 3)
    client.kill()
    client.wait()
    status, out, err = mvnb("sweep", "--resume", "out", "--dask", address)
    assert status == 0 and "8 of 8 runs done" in out, err
    done = [json.loads(path.read_text())["parameters"]["seed"] for path in (book / "out" / "cells").glob("*/run.json")]
    assert sorted(done) == list(range(8)) and not (book / "out" / "failed").exists()
    # A run that was killed between its trace and its end has left its line; no finished one was repeated.
    assert sorted(set(traced(book))) == [f"{n} 0.5" for n in range(8)] and len(traced(book)) <= 9


@pytest.mark.weekly
def test_what_a_killed_client_left_running_is_waited_for_and_not_run_beside_it(mvnb, book, scheduler):
    client = start(book, "sweep", "1", "--grid", "seed=0:2", "-p", "pause=5", "-o", "out", "--dask", scheduler[0])
    until(lambda: len(list((book / "out").glob(".running/*/*.ipynb"))) == 2)
    client.kill()
    client.wait()
    status, out, err = mvnb("sweep", "--resume", "out")
    assert status == 0 and "0 runs reused" in out and "2 of 2 runs done" in out, err
    assert traced(book) == ["0 0.5", "1 0.5"]


@pytest.mark.weekly
def test_a_killed_scheduler_ends_the_sweep_with_one_line(mvnb, book, scheduler):
    asked = ["sweep", "1", "--grid", "seed=0:4", "-o", "out"]
    client = start(book, *asked, "-p", "pause=2", "--dask", scheduler[0])
    until(lambda: len(list((book / "out").glob("cells/*/run.json"))) >= 1)
    scheduler[1][0].kill()
    _, err = client.communicate(timeout=120)
    assert client.returncode == 1 and err.count("\n") == 1 and "lost the connection to the Dask scheduler" in err
    status, out, _ = mvnb("sweep", "--resume", "out")
    assert status == 0 and "4 of 4 runs done" in out and "0 runs reused" not in out


def test_a_scheduler_that_is_not_there_is_one_line(mvnb, book):
    status, _, err = mvnb("sweep", "1", "--grid", "seed=0:1", "-o", "out", "--dask", "tcp://127.0.0.1:9")
    assert status == 2 and "no Dask scheduler answers at tcp://127.0.0.1:9" in err and err.count("\n") == 1
    status, _, err = mvnb("sweep", "1", "--grid", "seed=0:1", "-o", "out", "--dask", "nonsense://x")
    assert status == 2 and "no Dask scheduler answers at nonsense://x" in err and err.count("\n") == 1


def test_claims_that_were_not_run_are_not_counted():
    row = {"criterion": "value > 0", "origin": "paper", "runs": 4, "measured": {}}
    sweep = SimpleNamespace(claims=lambda: {"one": [row | {"verdict": "not run"}] * 2})
    assert sweeps.verdicts_of(sweep) == {}
