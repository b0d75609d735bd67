"""Edits of either half of a chapter, before and during runs: none is lost, and no run mixes two versions."""

import json
import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
import tiny_book
from processes import start, until

from mvnb.files import replaced_whole, write
from mvnb.runner import addresses, catalogue, execution, kernel, pairing
from mvnb.runner.errors import CellFailed, ChapterError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(executed_book):
    (chapter,) = catalogue.discover(executed_book)
    return chapter


def edit(notebook, old="Count.", new="Count twice.", **metadata):
    """Replace a text in the cells of a notebook, and give each cell this metadata, as an editor does."""
    cells = nbformat.read(notebook, as_version=4)
    for cell in cells.cells:
        cell.source = cell.source.replace(old, new)
        cell.metadata |= metadata
    nbformat.write(cells, notebook)


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- a notebook that was edited ---


@pytest.mark.parametrize(
    "command",
    [
        ["book", "--no-site"],
        ["book", "1", "--again", "--no-site"],
        ["run", "notebooks/01_tiny.ipynb"],
        ["run", "1"],
        ["sweep", "1", "--grid", "seed=0:2"],
    ],
    ids=" ".join,
)
def test_an_edited_notebook_is_neither_passed_over_nor_overwritten(mvnb, book, tiny, command):
    edit(tiny.notebook)
    before = files(book)
    status, out, err = mvnb(*command)
    assert (status, out) == (2, "") and err.count("\n") == 1 and files(book) == before
    assert "01_tiny.ipynb was edited and differs from 01_tiny.py (01_tiny.ipynb is newer)" in err
    assert "mvnb book 01 --take notebook" in err and "mvnb book 01 --take source" in err


def test_either_half_can_be_taken(mvnb, book, tiny):
    source = tiny.source.read_text()
    edit(tiny.notebook, vscode={"languageId": "python"})
    assert mvnb("book", "1", "--no-site", "--take", "notebook")[0] == 0
    assert tiny.source.read_text() == source.replace("Count.", "Count twice.")
    assert not pairing.paired(catalogue.resolve("1")) and "Count twice." in tiny.notebook.read_text()
    edit(tiny.notebook, "Count twice.", "Count.")
    assert mvnb("book", "1", "--no-site", "--take", "source")[0] == 0
    assert "Count twice." in tiny.notebook.read_text() and mvnb("book", "1", "--no-site")[0] == 0


@pytest.mark.parametrize("change", ["a cell more", "a cell less", "other order", "other tags"])
def test_cells_that_come_go_or_move_are_edits(tiny, change):
    there = nbformat.read(tiny.notebook, as_version=4)
    if change == "a cell more":
        there.cells.append(nbformat.v4.new_markdown_cell("New."))
    elif change == "a cell less":
        there.cells.pop()
    elif change == "other order":
        there.cells.reverse()
    else:
        there.cells[-1].metadata["tags"] = ["remove-cell"]
    nbformat.write(there, tiny.notebook)
    assert pairing.edited(tiny)


def test_outputs_and_the_metadata_of_editors_are_no_edits(mvnb, tiny):
    edit(tiny.notebook, new="Count.", editable=True, vscode={"languageId": "python"}, collapsed=False, id="x")
    assert not pairing.edited(tiny)
    there = nbformat.read(tiny.notebook, as_version=4)
    for cell in there.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(there, tiny.notebook)
    assert not pairing.edited(tiny) and mvnb("book", "1", "--no-site")[0] == 0


def test_a_source_that_was_edited_alone_is_run(mvnb, tiny):
    tiny.source.write_text(tiny.source.read_text().replace("Count.", "Count three times."))
    assert not pairing.edited(catalogue.resolve("1")) and mvnb("book", "1", "--no-site")[0] == 0
    assert "Count three times." in tiny.notebook.read_text()


def test_the_same_edit_in_both_halves_is_none(tiny):
    edit(tiny.notebook)
    tiny.source.write_text(tiny.source.read_text().replace("Count.", "Count twice."))
    assert not pairing.edited(catalogue.resolve("1"))


def test_a_notebook_that_cannot_be_read_is_not_overwritten(mvnb, book, tiny):
    tiny.notebook.write_text("<<<<<<< HEAD\n" + tiny.notebook.read_text())
    before = files(book)
    status, out, err = mvnb("book", "--no-site")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "cannot be read as a notebook" in err and files(book) == before


@pytest.mark.parametrize("chapter", catalogue.discover(ROOT), ids=lambda chapter: chapter.name)
def test_taking_the_notebook_of_a_chapter_gives_its_source(chapter, tmp_path):
    for path in (chapter.source, chapter.notebook):
        shutil.copy(path, tmp_path)
    copy = catalogue.Chapter(tmp_path / chapter.source.name, tmp_path)
    pairing.take_notebook(copy)
    taken, source = (path.read_text(encoding="utf-8") for path in (copy.source, chapter.source))
    assert [line for line in taken.splitlines() if line] == [line for line in source.splitlines() if line]
    cells = ([(one.cell_type, one.source) for one in catalogue.read(path).cells] for path in (copy.source, chapter.source))
    assert next(cells) == next(cells)


# --- edits during a run ---

SLOW = tiny_book.CHAPTER.replace("base64\n", "base64\nimport time\n", 1).replace(
    '# %% [markdown]\n# <a id="01-held-up"></a>',
    "# %%\nimport mvnb\n\ntime.sleep(2)\nprint('first', mvnb.__file__)\n\n# %% [markdown]\n# <a id=\"01-held-up\"></a>",
)


def text_of(notebook):
    cells = nbformat.read(notebook, as_version=4).cells
    return "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", []))


def test_every_cell_of_a_sweep_runs_the_chapter_and_the_package_of_its_start(mvnb, book):
    source = book / "notebooks" / "01_tiny.py"
    source.write_text(SLOW)
    process = start(book, "sweep", "1", "--grid", "seed=0:3", "-j", "1", "-o", "out")
    until(lambda: list((book / "out").glob(".running/*/*.ipynb")))
    source.write_text(SLOW.replace("'first'", "'second'"))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "3 succeeded" in out, err
    texts = [text_of(path) for path in (book / "out" / "cells").glob("*/01_tiny.ipynb")]
    assert len(texts) == 3 and all(f"first {book / 'out' / '.code'}" in text for text in texts)
    assert not (book / "out" / ".code").exists()
    assert "0 of 3 runs done" in mvnb("sweep", "--status", "out")[1]  # of the chapter as it is now


def test_a_package_that_changes_while_a_sweep_is_prepared_is_noticed(mvnb, book, monkeypatch):
    monkeypatch.setattr(shutil, "copytree", lambda *_: monkeypatch.setattr(addresses, "_package", lambda code: "other"))
    status, _, err = mvnb("sweep", "1", "--grid", "seed=0:1", "-o", "out")
    assert (
        status == 2
        and "the package was edited while the sweep was prepared" in err
        and not list((book / "out").glob("cells/*"))
    )


def test_a_kernel_imports_the_package_that_it_is_given(tiny, tmp_path):
    shutil.copytree(addresses.PACKAGE, tmp_path / "copy" / "mvnb")
    with open(tmp_path / "copy" / "mvnb" / "__init__.py", "a", encoding="utf-8") as file:
        file.write("\nMARK = 'of the copy'\n")
    asks = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import mvnb, mvnb.stats\nprint(mvnb.MARK)")])
    ran = kernel.run_notebook(asks, tmp_path / "x.ipynb", {}, tmp_path, package=tmp_path / "copy")
    assert ran.cells[0].outputs[0].text == "of the copy\n"


def test_a_notebook_that_is_edited_while_it_runs_is_left_alone(tiny, monkeypatch):
    run = execution.run_notebook

    def meanwhile(*arguments, **options):
        ran = run(*arguments, **options)
        edit(tiny.notebook)
        return ran

    monkeypatch.setattr(execution, "run_notebook", meanwhile)
    with pytest.raises(CellFailed, match=r"01_tiny.ipynb was edited while it ran; kept the run .*_build/execute/01_tiny.ipynb"):
        execution.execute(tiny)
    assert "Count twice." in tiny.notebook.read_text()


def test_a_run_of_code_that_changed_meanwhile_is_repeated(tiny, monkeypatch):
    run = execution.run_notebook

    def meanwhile(*arguments, **options):
        ran = run(*arguments, **options)
        monkeypatch.setattr(addresses, "_package", lambda code: "of the new code")
        return ran

    monkeypatch.setattr(execution, "run_notebook", meanwhile)
    execution.execute(tiny)
    assert not execution.up_to_date(tiny)


# --- sweeps in one folder ---


def test_a_folder_with_a_sweep_of_another_chapter_is_refused(mvnb, book):
    (book / "notebooks" / "02_other.py").write_text(tiny_book.CHAPTER.replace("small-mean", "small-mean"))
    assert mvnb("sweep", "1", "--grid", "seed=0:1", "-o", "out")[0] == 0
    before = files(book / "out")
    status, out, err = mvnb("sweep", "2", "--grid", "seed=0:1", "-o", "out")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "holds a sweep of 01_tiny" in err
    assert files(book / "out") == before
    assert mvnb("sweep", "1", "--grid", "seed=0:2", "-o", "out")[0] == 0  # the same chapter may go on
    (book / "out" / "sweep.json").write_text("{}")
    status, _, err = mvnb("sweep", "1", "--grid", "seed=0:1", "-o", "out")
    assert status == 2 and "is not a valid sweep" in err


# --- what a file is, and what it holds ---


def test_a_pasted_image_is_not_lost_when_the_notebook_is_taken(mvnb, book, tiny):
    source, notebook = tiny.source.read_bytes(), nbformat.read(tiny.notebook, as_version=4)
    notebook.cells[2].source += " ![here](attachment:pasted.png)"
    notebook.cells[2]["attachments"] = {"pasted.png": {"image/png": "aGVyZQ=="}}
    nbformat.write(notebook, tiny.notebook)
    status, out, err = mvnb("book", "1", "--no-site", "--take", "notebook")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "got pasted.png pasted into cell 3" in err
    assert tiny.source.read_bytes() == source and "pasted.png" in tiny.notebook.read_text()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("markdown", "$$\n%% a comment of TeX\nx\n$$"),
        ("markdown", "text\n%% [raw] more\ntext"),
        ("code", "y = 2\n# %% [markdown]\n# hello"),
        ("code", "# %%\nx = 1"),
        ("markdown", "one\u2028line"),
    ],
)
def test_a_cell_that_a_source_cannot_contain_is_refused(mvnb, book, tiny, kind, source):
    there, before = nbformat.read(tiny.notebook, as_version=4), tiny.source.read_bytes()
    there.cells.append(getattr(nbformat.v4, f"new_{kind}_cell")(source))
    nbformat.write(there, tiny.notebook)
    status, out, err = mvnb("book", "1", "--no-site", "--take", "notebook")
    assert (status, out) == (2, "") and err.count("\n") == 1 and tiny.source.read_bytes() == before
    assert f"01_tiny.py cannot contain cell {len(there.cells) - 1} of 01_tiny.ipynb as it is" in err


def test_metadata_that_the_source_has_are_kept(mvnb, book, tiny):
    titled = tiny.source.read_text().replace(
        "# %%\nimport base64", '# %% A title slideshow={"slide_type": "skip"}\nimport base64'
    )
    tiny.source.write_text(titled)
    assert mvnb("book", "1", "--no-site")[0] == 0
    edit(tiny.notebook, vscode={"languageId": "python"})
    assert mvnb("book", "1", "--no-site", "--take", "notebook")[0] == 0
    assert tiny.source.read_text() == titled.replace("Count.", "Count twice.")


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    meet, path = threading.Barrier(2), tmp_path / "shared.txt"

    def write(text):
        with replaced_whole(path) as partial:
            partial.write_text(text)
            meet.wait(30)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, ["one", "two"])) == [None, None]
    assert path.read_text() in ("one", "two") and list(tmp_path.iterdir()) == [path]


def test_written_files_keep_their_permissions_and_links(book, tmp_path):
    target, link = tmp_path / "elsewhere" / "note.txt", book / "note.txt"
    target.parent.mkdir()
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    write(link, "after")
    assert link.is_symlink() and target.read_text() == "after" and target.stat().st_mode & 0o777 == 0o640
    write(book / "new.txt", "new")
    assert os.listdir(target.parent) == ["note.txt"] and (book / "new.txt").read_text() == "new"


# --- git ---


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def turned(notebook):
    """Give the claim of a notebook the opposite verdict."""
    notebook.write_text(notebook.read_text().replace('"verdict": "holds"', '"verdict": "fails"'))


def test_a_git_that_fails_is_not_a_commit_without_a_notebook(mvnb, book, tiny, tmp_path, monkeypatch):
    git(book, "init", "-q")
    git(book, "config", "uploadpack.allowFilter", "true")
    git(book, "add", "presets.yml")
    git(book, "commit", "-qm", "none")
    git(book, "add", "notebooks")
    git(book, "commit", "-qm", "one")
    turned(tiny.notebook)
    git(book, "commit", "-qam", "two")
    assert mvnb("claims", "1", "--against", "HEAD~2")[0] == 0  # no notebook there: no verdict can have turned
    assert mvnb("claims", "1", "--against", "HEAD~1")[0] == 1
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--filter=blob:none", f"file://{book}", clone], check=True, capture_output=True)
    git(clone, "remote", "remove", "origin")
    shutil.copytree(book / "papers", clone / "papers")
    monkeypatch.chdir(clone)
    status, _, err = mvnb("claims", "1", "--against", "HEAD~1")
    assert status == 2 and err.count("\n") == 1 and "fatal" in err
    assert mvnb("claims", "1", "--against", "HEAD~2")[0] == 0
    status, _, err = mvnb("claims", "1", "--against", "nowhere")
    assert status == 2 and "Not a valid object name nowhere" in err
    shutil.rmtree(clone / ".git")
    status, _, err = mvnb("claims", "1", "--against", "HEAD")
    assert status == 2 and "not a git repository" in err
    monkeypatch.setenv("PATH", "")
    assert mvnb("claims", "1", "--against", "HEAD")[::2] == (2, "mvnb: cannot run git: No such file or directory\n")


def test_the_variables_of_a_git_hook_do_not_hide_a_reversed_verdict(mvnb, book, tiny, tmp_path, monkeypatch):
    git(book, "init", "-q"), git(book, "add", "."), git(book, "commit", "-qm", "one")
    turned(tiny.notebook)
    git(tmp_path, "init", "-q", "other")
    hook = {
        "GIT_DIR": ".git",
        "GIT_WORK_TREE": "src",
        "GIT_INDEX_FILE": "index",
        "GIT_PREFIX": "x/",
        "GIT_CEILING_DIRECTORIES": "/",
    }
    for name, value in hook.items():
        monkeypatch.setenv(name, str(tmp_path / "other" / value))
    status, _, err = mvnb("claims", "1", "--changed")
    assert status == 1 and "the verdict of small-mean was reversed" in err


def test_a_tree_is_not_a_commit(mvnb, book, tiny, tmp_path):
    for arguments in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "One"]):
        subprocess.run(["git", *arguments], cwd=book, check=True)
    assert mvnb("claims", "1", "--against", "HEAD")[0] == 0
    status, out, err = mvnb("claims", "1", "--against", "HEAD:notebooks")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "HEAD:notebooks" in err


def test_a_commit_with_a_notebook_that_is_none_is_told(mvnb, book, tiny):
    whole = tiny.notebook.read_text()
    git(book, "init", "-q")
    tiny.notebook.write_text("<<<<<<< HEAD")
    git(book, "add", "notebooks")
    git(book, "commit", "-qm", "one")
    tiny.notebook.write_text(whole)
    status, _, err = mvnb("claims", "1", "--against", "HEAD")
    assert status == 2 and err.count("\n") == 1 and "expected 01_tiny.ipynb at commit HEAD to be a JSON notebook" in err


def test_commands_read_utf_8_where_the_locale_is_ascii(book, tiny, monkeypatch):
    claims = book / "papers" / "tiny" / "claims.toml"
    claims.write_text(claims.read_text(encoding="utf-8").replace("The mean is small", "Größe ≤ ε"), encoding="utf-8")
    execution.execute(catalogue.resolve("1"))
    git(book, "init", "-q")
    git(book, "add", ".")
    git(book, "commit", "-qm", "one")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    for arguments in (
        ["claims", "1", "--against", "HEAD"],
        ["claims", "--format", "json"],
        ["run", "1", "-o", "out"],
        ["book", "--again", "--no-site"],
    ):
        process = start(book, *arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and "Traceback" not in err, err
        if "json" in arguments:
            assert json.loads(out)[0]["says"].startswith("Größe")


# --- what is given twice ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "1", "--preset", "smoke", "--preset", "paper"], "--preset is given 2 times; it takes one value"),
        (["run", "1", "-o", "a", "-o", "b"], "-o is given 2 times"),
        (["run", "1", "-p", "seed=1", "-p", "seed=2"], "parameter 'seed' is given twice"),
        (["sweep", "1", "--grid", "seed=0:2", "-j", "1", "--jobs", "2"], "is given 2 times"),
        (["book", "--no-site", "--site"], "is given 2 times"),
    ],
)
def test_an_option_given_twice_is_refused(mvnb, book, arguments, message):
    before = files(book)
    status, out, err = mvnb(*arguments)
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err and files(book) == before


def test_keys_and_parameters_written_twice_are_refused(mvnb, book):
    presets = book / "presets.yml"
    presets.write_text(presets.read_text() + "  smoke: {replicas: 3}\n")
    assert mvnb("run", "1", "--preset", "smoke")[::2] == (2, "mvnb: presets.yml has a duplicate key 'smoke'\n")
    source = book / "notebooks" / "01_tiny.py"
    source.write_text(source.read_text().replace("replicas = 4 ", "seed = 1  # again (0 or more)\nreplicas = 4 "))
    with pytest.raises(ChapterError, match="assigns 'seed' twice"):
        catalogue.resolve("1").parameters  # noqa: B018
