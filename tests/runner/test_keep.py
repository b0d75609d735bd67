"""Kept runs: made seed by seed, killed and gone on with, recorded, stale when script, parameters or rules change."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
import tiny_book
from processes import start, until

from mvnb import claims, files, kept_runs
from mvnb.runner import addresses, catalogue, keeping, workers

SCRIPT = """\
import os, time
import torch

def draw(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

def run(seed, device, size, pause, fail):
    with open(os.environ["MVNB_TRACE"], "a") as trace:
        trace.write(f"began {seed}\\n")
    time.sleep(pause)
    if seed == fail:
        raise RuntimeError("this seed fails")
    with open(os.environ["MVNB_TRACE"], "a") as trace:
        trace.write(f"ended {seed}\\n")
    return {"mean": (size * draw(seed, 9)).mean().item()}

def beginning(seed, device, size, pause, fail):
    return (size * draw(seed, 3)).tolist()
"""
DECLARED = """\
script = "means.py"
says = "means"
not_run = ["larger ones"]

[parameters]
seed = 3
seeds = 4
size = 2.0
pause = 0.0
fail = -1

[[setup]]
what = "size"
paper = "10"
ours = "{size} <here>"
why = "cost"
"""
CLAIM = """\
[above]
source = "Table 1"
origin = "paper"
says = "It is above 0"
kind = "scaled"
unit = "mean"
holds = "value > 0"
kept = "means"
"""


@pytest.fixture
def book(tmp_path, monkeypatch):
    root, papers = tiny_book.make(tmp_path / "book"), tmp_path / "papers"
    kept = papers / "tiny" / "kept"
    kept.mkdir(parents=True)
    (kept / "means.py").write_text(SCRIPT)
    (kept / "means.toml").write_text(DECLARED)
    (kept.parent / "claims.toml").write_text(CLAIM)
    for module in (kept_runs, claims):
        monkeypatch.setattr(module, "PAPERS", papers)
    monkeypatch.chdir(root)
    monkeypatch.delenv("MVNB_ROOT", raising=False)
    monkeypatch.setenv("MVNB_TRACE", str(tmp_path / "trace"))
    (tmp_path / "trace").touch()
    return root


@pytest.fixture
def kept(book):
    return book.parent / "papers" / "tiny" / "kept"


def traced(book):
    return (book.parent / "trace").read_text().split("\n")[:-1]


def values(path):
    return [(run["seed"], run["values"]) for run in json.loads(path.read_text())["runs"]]


def state(name="means"):
    return {line[1]: line[3] for line in keeping.status(catalogue.discover())}[name]


def test_a_kill_at_any_point_repeats_no_finished_seed_and_changes_no_value(mvnb, book, kept):
    assert mvnb("keep", "1", "means")[0] == 0
    whole = values(kept / "means.json")
    (kept / "means.json").unlink()
    (book.parent / "trace").write_text("")

    asked = ["keep", "1", "means", "-j", "1", "-p", "pause=0.7", "--force"]
    papers = f"pathlib.Path({str(kept.parents[1])!r})"
    before = f"import pathlib; from mvnb import claims, kept_runs; kept_runs.PAPERS = claims.PAPERS = {papers}"
    process = start(book, *asked, before=before)
    until(lambda: sum(line.startswith("began") for line in traced(book)) == 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    ended = [line for line in traced(book) if line.startswith("ended")]
    assert len(ended) == 2 and not (kept / "means.json").exists()

    status, out, err = mvnb(*asked)
    assert (status, out) == (0, f"{kept / 'means.json'}\n") and "2 of 4 seeds finished, 2 to run" in err
    assert [line for line in traced(book) if line.startswith("ended")] == [f"ended {seed}" for seed in range(3, 7)]
    assert values(kept / "means.json") == whole and [seed for seed, _ in whole] == [3, 4, 5, 6]


def test_the_record_says_how_it_was_made_and_the_page_shows_it(mvnb, book, kept):
    status, _, err = mvnb("keep", "1", "means")
    assert status == 0 and "0 of 4 seeds finished, 4 to run" in err and "3 left, about" in err and "0 left" in err
    record = kept_runs.load("tiny", "means")
    assert record["command"] == "mvnb keep 01 means" and record["rules"] == {"above": "value > 0"}
    assert record["terms"] == {"above": "value > 0 (origin: paper)"}
    assert record["parameters"] == {"seed": 3, "seeds": 4, "size": 2.0, "pause": 0.0, "fail": -1}
    assert all(
        run["hardware"] and run["versions"]["torch"] and run["finished"] and run["seconds"] >= 0 for run in record["runs"]
    )
    assert len(record["runs"][0]["beginning"]) == 3 and not any("beginning" in run for run in record["runs"][1:])

    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("IPython.display.display", shown.append)
        kept_runs.show("tiny", "means")
    page = shown[0].data
    assert "<code>mvnb keep 01 means</code>, seeds 3 to 6" in page and "Not run: larger ones." in page
    assert "2.0 &lt;here&gt;" in page and record["runs"][0]["finished"][:10] in page


@pytest.mark.parametrize("where", ["values", "hardware", "checksum"])
def test_a_value_that_was_changed_after_the_run_is_noticed(mvnb, book, kept, where):
    mvnb("keep", "1", "means")
    path = kept / "means.json"
    record = json.loads(path.read_text())
    if where == "values":
        record["runs"][2]["values"]["mean"] *= 1.01
    elif where == "hardware":
        record["runs"][0]["hardware"] += " (faster)"
    else:
        del record["checksum"]
    path.write_text(json.dumps(record))
    with pytest.raises(files.RecordError, match=r"means\.json was changed after it was made"):
        kept_runs.load("tiny", "means")
    status, out, err = mvnb("keep", "--status")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "was changed after it was made" in err
    path.write_text("{")
    with pytest.raises(files.RecordError, match="is not a record"):
        kept_runs.load("tiny", "means")


def test_every_seed_runs_the_script_as_it_was_at_the_start(book, kept, monkeypatch):
    each = workers.each

    def edited(*given):
        (kept / "means.py").write_text(SCRIPT.replace('{"mean": ', '{"other": '))
        return each(*given)

    monkeypatch.setattr(workers, "each", edited)
    keeping.make(catalogue.resolve("1"), "means", [], device="cpu")
    assert all(list(run["values"]) == ["mean"] for run in kept_runs.load("tiny", "means")["runs"])
    assert state() == "stale: code changed"


def test_line_endings_make_no_run_stale(mvnb, book, kept):
    mvnb("keep", "1", "means")
    for path in (kept / "means.py", kept / "means.toml"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert state() == "4 seeds, as declared"


def test_a_pilot_does_not_replace_the_result(mvnb, book, kept):
    mvnb("keep", "1", "means")
    whole = (kept / "means.json").read_bytes()
    for pilot in (["-p", "seeds=1"], ["-p", "seeds=2", "-p", "size=3"]):
        status, out, _ = mvnb("keep", "1", "means", *pilot)
        (written,) = out.splitlines()
        assert status == 0 and written.startswith(f"{book / 'runs'}/keep-tiny-means/") and written.endswith("/means.json")
        assert len(values(book / written)) == int(pilot[1][-1]) and (kept / "means.json").read_bytes() == whole
    assert state() == "4 seeds, as declared"
    assert mvnb("keep", "1", "means", "-p", "seeds=1", "--force")[:2] == (0, f"{kept / 'means.json'}\n")
    assert len(values(kept / "means.json")) == 1


def test_the_seconds_of_a_resumed_seed_are_those_of_all_its_starts(tmp_path, monkeypatch):
    scratch, now = tmp_path / "seed-3", [0.0]
    for _ in range(2):
        with suppress(RuntimeError), keeping._counted(scratch, lambda: now[0]):
            scratch.mkdir(exist_ok=True)
            now[0] += 5
            raise RuntimeError
        now[0] += 100
    monkeypatch.setattr(keeping, "_SAVE_EVERY", 0.01)
    with keeping._counted(scratch, lambda: now[0]) as seconds:
        now[0] += 2
        assert seconds() == 12
        until(lambda: files.read_json(tmp_path / "seed-3.seconds") == 12)  # a killed process leaves it
    scratch.rmdir()  # nothing to go on from
    with keeping._counted(scratch, lambda: now[0]) as seconds:
        assert seconds() == 0


def test_large_seeds_and_devices_that_are_not_there(mvnb, book, kept):
    assert mvnb("keep", "1", "means", "-p", f"seed={10**30}", "-p", "seeds=1")[0] == 0
    status, out, err = mvnb("keep", "1", "means", "--device", "cuda:99")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "device must be 'auto', 'cpu' or" in err


def test_status_counts_the_seeds_that_are_declared_and_can_be_read(mvnb, book, kept):
    assert mvnb("keep", "1", "means", "-p", "seeds=2")[0] == mvnb("keep", "1", "means", "-p", "seed=9", "-p", "seeds=1")[0] == 0
    assert state() == "not finished: 2 of 4 seeds"
    (seed,) = (book / "runs").rglob("seed-3.json")
    seed.write_text(seed.read_text()[:20])
    assert state() == "not finished: 1 of 4 seeds"


def test_status_names_what_is_stale(mvnb, book, kept):
    assert state() == "not finished: 0 of 4 seeds"
    mvnb("keep", "1", "means")
    assert state() == "4 seeds, as declared"
    status, out, _ = mvnb("keep", "--status")
    assert status == 0 and "4 seeds, as declared" in out
    (kept / "means.py").write_text(SCRIPT + "\n")
    assert state() == "stale: code changed"
    (kept / "means.py").write_text(SCRIPT)
    (kept.parent / "claims.toml").write_text(CLAIM.replace("> 0", "> 0.5"))
    assert state() == "stale: rule or origin of above changed"
    (kept / "means.toml").write_text(DECLARED.replace("size = 2.0", "size = 3.0"))
    assert state() == "stale: parameters and rule or origin of above changed"
    files.write_record(kept / "older.json", {"mean": 1})
    assert state("older") == "legacy, no record"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("claims.toml", "value > 0", "value > -1"),
        ("claims.toml", "value > 0", "value < 0"),
        ("claims.toml", "value > 0", "value > 0 or value < -1"),
        ("claims.toml", '"paper"', '"ours"'),
    ],
    ids=["limit", "direction", "part", "origin"],
)
def test_a_rule_that_is_changed_after_the_run_is_noticed(mvnb, book, kept, file, old, new):
    mvnb("keep", "1", "means")
    path = kept.parent / file
    path.write_text(path.read_text().replace(old, new))
    assert "rule or origin of above changed" in state()


def test_a_record_without_runs_and_origins_is_stale_only_if_its_rules_change(mvnb, book, kept):
    mvnb("keep", "1", "means")
    record = kept_runs.load("tiny", "means")
    files.write_record(kept / "means.json", {key: value for key, value in record.items() if key != "terms"})
    (kept.parent / "claims.toml").write_text(CLAIM.replace('"paper"', '"ours"'))
    assert state() == "4 seeds, as declared"
    (kept.parent / "claims.toml").write_text(CLAIM.replace("> 0", "> 0.5"))
    assert state() == "stale: rule or origin of above changed"


def test_an_installed_copy_of_the_package_is_not_written_to(mvnb, book, kept, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(book.parent))
    status, out, err = mvnb("keep", "1", "means")
    assert (status, out) == (2, "") and err.startswith("mvnb: expected a checkout") and err.count("\n") == 1
    assert not (kept / "means.json").exists() and not (book / "runs").exists()


def test_a_seed_that_fails_leaves_the_others_and_no_result(mvnb, book, kept):
    status, out, err = mvnb("keep", "1", "means", "-p", "fail=4")
    assert (status, out) == (1, "") and err.endswith("mvnb: seed 4: RuntimeError: this seed fails\n")
    assert not (kept / "means.json").exists() and len(list((book / "runs").rglob("seed-*.json"))) == 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["1", "mean"], "01_tiny declares no kept run 'mean'; did you mean 'means'? It has means"),
        (
            ["1", "means", "-p", "sizes=1"],
            "01 means has no parameter 'sizes'; did you mean 'size'? It has seed, seeds, size, pause, fail",
        ),
        (["1", "means", "-p", "size=big"], "parameter 'size' must be a number, got 'big'"),
        (["1", "means", "-p", "seeds=0"], "parameter 'seeds' must be 1 or more, got '0'"),
        (["1"], "keep needs a chapter and the name of a kept run; mvnb keep --status lists them"),
    ],
)
def test_what_cannot_be_kept_is_said_in_one_line(mvnb, book, kept, asked, said):
    assert mvnb("keep", *asked) == (2, "", f"mvnb: {said}\n")
    assert not (book / "runs").exists() and traced(book) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("says = ", "Invalid value"),
        (DECLARED.replace('says = "means"', "says = 1"), "expected the key says of type str, got 1"),
        (DECLARED.replace("seeds = 4", ""), "expected the parameters seed and seeds, got seed, size, pause, fail"),
        (DECLARED.replace('why = "cost"', ""), "expected texts for the keys what, paper, ours, why in every [[setup]]"),
        (DECLARED.replace('paper = "10"', "paper = 10"), "expected texts for the keys what, paper, ours, why in every"),
        (DECLARED.replace("{size}", "{width}"), "expected parameters in the braces of '{width} <here>'"),
        *(
            (DECLARED.replace("seeds = 4", f"seeds = {n}"), f"expected seeds to be an integer of at least 1, got {s}")
            for n, s in {"0": "0", "-3": "-3", "true": "True", "1.5": "1.5", '"two"': "'two'"}.items()
        ),
        (DECLARED.replace("seed = 3", "seed = -1"), "expected seed to be an integer of at least 0, got -1"),
        (DECLARED.replace("size = 2.0", "size = 2026-01-01"), "expected parameters that JSON can represent"),
        (DECLARED.replace("size = 2.0", "size = nan"), "expected parameters that JSON can represent"),
        (DECLARED.replace("means.py", ""), "expected a script beside the declaration, got ''"),
        (DECLARED.replace("means.py", "../kept/means.py"), "expected a script beside the declaration, got '../kept/means.py'"),
        (DECLARED.replace("not_run", "notrun"), "expected the key not_run of type list, got None"),
        ("more = 1\n" + DECLARED, "unknown key 'more'; expected one of script"),
        (f"short = 1\n{DECLARED}", "expected the key short of type dict, got 1"),
    ],
)
def test_a_malformed_declaration_is_said_in_one_line(mvnb, book, kept, text, said):
    (kept / "means.toml").write_text(text)
    status, out, err = mvnb("keep", "1", "means")
    assert (status, out) == (2, "") and err.count("\n") == 1 and f"tiny/kept/means.toml: {said}" in err


def test_malformed_claims_are_said_before_any_training(mvnb, book, kept):
    (kept.parent / "claims.toml").write_text(CLAIM.replace("value > 0", "value >"))
    status, out, err = mvnb("keep", "1", "means")
    assert (status, out) == (2, "") and err.startswith("mvnb: tiny/claims.toml: [above]: ") and err.count("\n") == 1
    assert traced(book) == []


def test_a_finished_seed_that_was_edited_is_made_again(mvnb, book, kept):
    assert mvnb("keep", "1", "means")[0] == 0
    whole = values(kept / "means.json")
    (seed,) = (book / "runs").rglob("seed-4.json")
    edited = json.loads(seed.read_text())
    edited["values"]["mean"] = 7
    for text in (json.dumps(edited), "{}", "0"):
        seed.write_text(text)
        status, _, err = mvnb("keep", "1", "means")
        assert status == 0 and "3 of 4 seeds finished, 1 to run" in err and values(kept / "means.json") == whole


def test_seeds_of_other_data_are_made_again(mvnb, book, kept, tmp_path, monkeypatch):
    monkeypatch.setenv("MVNB_DATA", str(tmp_path))
    (kept / "means.toml").write_text(DECLARED.replace("fail = -1", 'fail = -1\n\n[parameters.data]\nnames = ["tiny"]'))
    (kept / "means.py").write_text(SCRIPT.replace("pause, fail", "pause, fail, data"))
    for content, asked in ((b"1", 4), (b"1", 0), (b"2", 4)):
        (tmp_path / "tiny.npz").write_bytes(content)
        status, _, err = mvnb("keep", "1", "means")
        assert status == 0 and f"{asked} to run" in err


def test_a_script_that_is_missing_is_said(mvnb, book, kept):
    (kept / "means.py").unlink()
    assert mvnb("keep", "1", "means") == (
        2,
        "",
        "mvnb: tiny/kept/means.toml: expected a script beside the declaration, got 'means.py'\n",
    )


SLOW = """\
import os

def run(seed, device, scratch, size, pause, fail):
    saved = scratch / "steps"
    begun = int(saved.read_text()) if saved.exists() else 0
    for step in range(begun + 1, 4):
        saved.write_text(str(step))
        if step == 2 and not begun:
            raise RuntimeError("interrupted")
    began_with = open("/proc/self/environ", "rb").read()
    return {"begun": begun, "keeps memory": b"MALLOC_TRIM_THRESHOLD_=1099511627776" in began_with}

def beginning(seed, device, size, pause, fail):
    return []
"""


def test_a_seed_goes_on_from_what_it_saved_and_its_worker_keeps_memory(mvnb, book, kept):
    (kept / "means.py").write_text(SLOW)
    one = ["keep", "1", "means", "-p", "seeds=1", "--force"]
    status, _, err = mvnb(*one)
    assert status == 1 and "interrupted" in err
    (folder,) = (book / "runs").glob("*/*/seed-3")
    assert (folder / "steps").read_text() == "2"
    assert mvnb(*one)[0] == 0
    assert values(kept / "means.json") == [(3, {"begun": 2, "keeps memory": True})] and not folder.exists()


DRAWS = """\
import torch

def draw(seed, n):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
"""
MEANS = """\
from mvnb.papers.tiny.draws import draw

def run(seed, device, size, n):
    return {"mean": (size * draw(seed, n["points"])).mean().item(), "points": n["points"]}

def beginning(seed, device, size, n):
    return []
"""
SHORTER = """\
script = "means.py"
says = "means"
not_run = []
setup = []

[parameters]
seed = 3
seeds = 2
size = 2.0

[parameters.n]
points = 1000
other = 1

[short]
n = { points = 5 }
"""


@pytest.fixture
def checkout(tmp_path):
    """Return a function that runs mvnb, or git, in a repository with the package, a tiny book and a paper with a kept run."""
    root = tiny_book.make(tmp_path / "book")
    package = root / "src" / "mvnb"
    papers = addresses.PACKAGE / "papers"
    shutil.copytree(
        addresses.PACKAGE, package, ignore=lambda folder, names: names if folder == str(papers) else ["__pycache__"]
    )
    kept = package / "papers" / "tiny" / "kept"
    kept.mkdir(parents=True)
    for path, text in {"kept/means.py": MEANS, "kept/means.toml": SHORTER, "claims.toml": CLAIM, "draws.py": DRAWS}.items():
        (kept.parent / path).write_text(text)
    for folder in (kept.parent, kept.parents[1]):
        (folder / "__init__.py").touch()
    surroundings = {**os.environ, "PYTHONPATH": str(root / "src"), "GIT_AUTHOR_DATE": "2026-01-01T00:00:00"}

    def call(*arguments, program=(sys.executable, "-m", "mvnb")):
        command = [*program, *arguments]
        done = subprocess.run(command, cwd=root, env=surroundings, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def commit():
        for arguments in (["add", "src"], ["commit", "-qm", "More"]):
            assert call(*arguments, program=("git", "-c", "user.name=a", "-c", "user.email=a@b.c"))[0] == 0

    assert call("init", "-q", program=("git",))[0] == 0
    return call, commit, kept


def test_a_change_of_code_alone_renews_a_result_and_a_change_of_values_does_not(checkout):
    call, commit, kept = checkout
    result = kept / "means.json"
    assert call("keep", "1", "means")[0] == 0
    status, out, err = call("keep", "1", "means", "--renew")
    assert (status, out) == (2, "") and err.endswith("valid for the code as it is; there is nothing to renew\n")
    commit()
    made = json.loads(result.read_text())

    # A module of the paper that the script imports is part of the digest. The result was valid two commits ago.
    (kept.parent / "draws.py").write_text(DRAWS.replace("n, generator", "(n,), generator"))
    assert "stale: code changed" in call("keep", "--status")[1]
    commit()
    (kept.parent / "draws.py").write_text(DRAWS.replace("n, generator", "[n], generator"))
    assert call("keep", "1", "means", "--renew") == (0, f"{result}\n", "")
    renewed = json.loads(result.read_text())
    assert "2 seeds, as declared" in call("keep", "--status")[1]
    assert renewed["renewed"]["script"] == made["script"] != renewed["script"] and len(renewed["renewed"]["date"]) == 10
    assert renewed["runs"] == made["runs"] and renewed["rules"] == made["rules"]
    commit()

    whole = result.read_bytes()
    (kept.parent / "draws.py").write_text(DRAWS.replace("dtype=torch.float64", "dtype=torch.float64") + "    # \n")
    (kept / "means.py").write_text(MEANS.replace("(size * draw", "(size * (1 + 1e-15) * draw"))
    status, out, err = call("keep", "1", "means", "--renew")
    assert (status, out) == (1, "") and err.count("\n") == 1 and "gives other values than before" in err
    (kept / "means.py").write_text(MEANS.replace("return {", "return {}[0]; {"))
    status, out, err = call("keep", "1", "means", "--renew")
    assert (status, out) == (1, "") and err == "mvnb: a short run of means failed: KeyError: 0\n"
    (kept / "means.toml").write_text(SHORTER.replace("size = 2.0", "size = 3.0"))
    status, out, err = call("keep", "1", "means", "--renew")
    assert (status, out) == (2, "") and "the parameters of means have changed; make it again: mvnb keep 01 means" in err
    assert result.read_bytes() == whole


def test_a_result_valid_for_no_commit_is_not_renewed_though_older_commits_lack_the_run(checkout):
    call, commit, kept = checkout
    gone = [kept.parents[2] / "kept_runs.py", kept / "means.toml"]
    whole = [path.read_text() for path in gone]
    gone[0].write_text("")
    commit()
    gone[0].write_text(whole[0])
    gone[1].unlink()
    commit()
    gone[1].write_text(whole[1])
    assert call("keep", "1", "means")[0] == 0
    (kept.parent / "draws.py").write_text(DRAWS.replace("n, generator", "(n,), generator"))
    commit()
    status, out, err = call("keep", "1", "means", "--renew")
    assert (status, out) == (2, "") and f"means.json is not valid for any of the last 3 commits of {kept.parent}\n" in err


@pytest.mark.parametrize(
    ("change", "asked", "said"),
    [
        ({}, [], "01_tiny has no result of means to renew; make it: mvnb keep 01 means"),
        ({}, ["-p", "size=1"], "--renew cannot be combined with -p or --force"),
    ],
)
def test_what_cannot_be_renewed_is_said_in_one_line(mvnb, book, kept, change, asked, said):
    assert mvnb("keep", "1", "means", "--renew", *asked) == (2, "", f"mvnb: {said}\n")


def test_the_short_version_replaces_parameters_in_nested_tables_and_refuses_unknown_ones(book, kept):
    (kept / "means.toml").write_text(DECLARED + "[parameters.n]\npoints = 9\nother = 1\n")
    with pytest.raises(files.RecordError, match=r"means\.toml: expected a table \[short\]"):
        kept_runs.declared("tiny")["means"].shortened()
    for short, said in {"points = 5": "", "point = 5": "'point'; expected some of points, other"}.items():
        (kept / "means.toml").write_text(DECLARED + f"[parameters.n]\npoints = 9\nother = 1\n[short.n]\n{short}\n")
        one = kept_runs.declared("tiny")["means"]
        if said:
            with pytest.raises(files.RecordError, match=said):
                one.shortened()
        else:
            assert one.shortened().parameters == one.parameters | {"n": {"points": 5, "other": 1}}
            assert one.shortened().digest() != one.digest() and one.parameters["n"]["points"] == 9


def test_a_module_edited_during_the_run_ends_it(checkout):
    call, _, kept = checkout
    script = MEANS.replace("return {", f"open({str(kept.parent / 'draws.py')!r}, 'a').write('#'); return {{")
    (kept / "means.py").write_text(script)
    status, out, err = call("keep", "1", "means", "-j", "1")
    assert (status, out) == (1, "") and "that means.py imports were edited after the start; start again\n" in err
    assert not (kept / "means.json").exists()
