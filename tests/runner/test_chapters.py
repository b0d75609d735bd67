"""Finding chapters, their parameters and presets, running them, and refreshing the committed notebook."""

import json
import logging
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
import tiny_book

from mvnb import claims, kept_runs
from mvnb.runner import catalogue, errors, execution, pairing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(book):
    return catalogue.resolve("1")


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def stdout(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.text for cell in cells for output in cell.get("outputs", []) if "text" in output)


@pytest.mark.parametrize("text", ["1", "01", "tiny", "01_tiny", "notebooks/01_tiny.py", "./notebooks/01_tiny.py"])
def test_a_chapter_answers_to_all_its_names(book, text):
    chapter = catalogue.resolve(text)
    assert (chapter.name, chapter.number, chapter.slug) == ("01_tiny", "01", "tiny")
    assert chapter.title == "A tiny chapter" and chapter.root == book


def test_the_root_is_found_from_below_and_from_the_environment(book, tmp_path, monkeypatch):
    monkeypatch.chdir(book / "notebooks")
    assert catalogue.find_root() == book
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MVNB_ROOT", str(book))
    assert [chapter.name for chapter in catalogue.discover()] == ["01_tiny"]
    monkeypatch.setenv("MVNB_ROOT", str(tmp_path))
    with pytest.raises(errors.ChapterError, match="a folder that contains 'notebooks', got"):
        catalogue.find_root()


def test_a_path_outside_the_book_is_a_chapter_too(book, tmp_path):
    other = tmp_path / "elsewhere.py"
    other.write_text(tiny_book.CHAPTER)
    chapter = catalogue.resolve(str(other))
    assert (chapter.name, chapter.number, chapter.root) == ("elsewhere", "", None)
    with pytest.raises(errors.ChapterError, match="no preset"):
        catalogue.preset(chapter, "smoke")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2", "the book has 01_tiny"),
        ("tinny", r"no chapter 'tinny'; did you mean 'tiny'\? The book has 01_tiny"),
        ("no.py", "no such file"),
        ("a/b", "no such file"),
    ],
)
def test_an_unknown_chapter_is_named_with_the_nearest(book, text, message):
    with pytest.raises(errors.ChapterError, match=message):
        catalogue.resolve(text)


def test_parameters_are_read_with_types_and_comments(tiny):
    read = {name: (parameter.default, parameter.comment) for name, parameter in tiny.parameters.items()}
    assert read["replicas"] == (4, "independent runs (1 or more)")
    assert read["widths"][0] == [8, 16] and read["interval"][0] == [0.1, 2.0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("replicas=12", 12),
        ("noise=2", 2.0),
        ("noise=1e-3", 0.001),
        ("exact=False", False),
        ("device=cuda:1", "cuda:1"),
        ("device=a=b", "a=b"),
        ("widths=[1,2,3]", [1, 2, 3]),
        ("interval=(1, 2.5)", [1.0, 2.5]),
        ("interval=[1, 2]", [1.0, 2.0]),
        pytest.param(f"replicas={10**400}", 10**400, id="an integer that no float holds"),
    ],
)
def test_texts_become_values_of_the_default_type(tiny, text, value):
    (parsed,) = tiny.parse([text]).values()
    assert parsed == value and type(parsed) is type(value)
    if isinstance(value, list):
        assert [type(item) for item in parsed] == [type(item) for item in value]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas", "expected name=value, got"),
        ("=3", "expected name=value, got"),
        ("replica=3", r"no parameter 'replica'; did you mean 'replicas'\? It has seed"),
        ("replicas=3.5", "an integer, got '3.5'"),
        ("replicas=many", "an integer, got 'many'"),
        ("replicas=True", "an integer, got 'True'"),
        ("noise=loud", "a number, got 'loud'"),
        ("exact=1", "true or false, got '1'"),
        ("widths=3", r"a list of integers such as \[8, 16\], got '3'"),
        ("widths=[1.5]", "a list of integers"),
        ("interval=(1,'x')", "a list of numbers"),
        pytest.param(f"interval=[1, {10**400}]", "a list of numbers", id="no float holds an element"),
        pytest.param(f"noise={10**400}", "must be finite", id="no float holds it"),
        ("widths=[1", "a list of integers"),
    ],
)
def test_texts_that_do_not_fit_are_refused(tiny, text, message):
    with pytest.raises(errors.ChapterError, match=message):
        tiny.parse([text])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "tagged 'parameters', got 0"),
        (tiny_book.PARAMETERS * 2, "tagged 'parameters', got 2"),
        ('# %% tags=["parameters"]\nseed = int(3)', "must be a literal"),
        ('# %% tags=["parameters"]\nimport os', "must have the form"),
    ],
)
def test_a_parameters_cell_holds_literals_only(tmp_path, source, message):
    (tmp_path / "a.py").write_text(source)
    with pytest.raises(errors.ChapterError, match=message):
        _ = catalogue.resolve(str(tmp_path / "a.py")).parameters


def test_presets_are_read_and_checked(tiny, book):
    assert catalogue.preset(tiny, "paper") == {"replicas": 1000, "noise": 1.0}
    for name, message in {
        "smok": r"did you mean 'smoke'\? It has smoke, paper",
        "unknown": "no parameter 'replica'",
        "mistyped": "an int",
    }.items():
        with pytest.raises(errors.ChapterError, match=message):
            catalogue.preset(tiny, name)
    for text in (
        "a: [",
        "- a",
        "01_tiny: {smoke: 3}",
        "01_tiny: {on: {seed: 1}}",
        "01_tiny: {smoke: {1: 2}}",
        "6: {smoke: {}}",
    ):
        (book / "presets.yml").write_text(text)
        with pytest.raises(errors.ChapterError, match=r"presets\.yml"):
            catalogue.preset(tiny, "smoke")
    (book / "presets.yml").unlink()
    (book / "presets.yml").symlink_to("elsewhere.yml")
    with pytest.raises(errors.ChapterError, match=r"cannot read .*presets\.yml: No such file"):
        catalogue.presets(book)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pyproject.toml", "a = [", "pyproject.toml is not valid TOML"),
        ("pyproject.toml", "[tool.mvnb]\nrepository = 5", "expected the address of a repository in tool.mvnb"),
        ("pyproject.toml", "[tool.mvnb]\nrepository = 'a\"b'", "expected the address of a repository in tool.mvnb"),
        ("_toc.yml", "a: [", "_toc.yml is not valid YAML"),
        ("_toc.yml", "parts: [5]", "_toc.yml must list parts with chapters"),
        ("results/seconds.json", "<<<<<<< HEAD", "expected results/seconds.json to contain seconds by chapter"),
        ("results/seconds.json", '{"machine": "x"}', "expected results/seconds.json to contain seconds by chapter"),
    ],
)
def test_a_damaged_file_of_the_book_is_one_line_before_anything_runs(mvnb, book, name, text, message):
    (book / name).parent.mkdir(exist_ok=True)
    (book / name).write_text(text)
    status, out, err = mvnb("book", "1", "--no-site")
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err
    assert (book / name).read_text() == text and not (book / "notebooks" / "01_tiny.ipynb").exists()


def test_a_run_writes_notebook_and_claims_and_leaves_the_book_alone(tiny, book, tmp_path):
    before = files(book / "notebooks")
    values = {"replicas": 2, "interval": [1.0, 1e300], "widths": []}
    result = execution.run(tiny, values, tmp_path / "{out}")
    assert files(book / "notebooks") == before
    assert files(tmp_path / "{out}") == ["01_tiny.claims.json", "01_tiny.ipynb"]
    assert "2 values" in stdout(result.notebook)
    assert "interval = [1.0, 1e+300]" in result.notebook.read_text()
    assert result.rows == json.loads(result.claims.read_text()) == claims.read(result.notebook)


def test_a_run_opens_with_its_parameters_and_has_the_form_of_the_download(tiny, book, tmp_path):
    source = tiny.source.read_text()
    tiny.source.write_text(
        source.replace("# Count.", "# {prf:ref}`thm-tiny`.").replace("held up\n", "held up\n#\n# ```{headlines}\n# ```\n")
    )
    os.symlink(ROOT / "book", book / "book")
    folder = book / "out"
    execution.run(catalogue.resolve("1"), {"noise": 2.0, "seed": 0, "widths": [4]}, folder)
    notebook = nbformat.read(folder / "01_tiny.ipynb", as_version=4)
    nbformat.validate(notebook)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert texts[0] == notebook.cells[0].source and "The text describes the run with the defaults" in texts[0]
    assert texts[0].endswith("\n> - `noise = 2.0` (default: `0.5`)\n> - `widths = [4]` (default: `[8, 16]`)")
    assert texts[1].startswith("# A tiny chapter\n\nThree sentences ([Zhang et al., 2018](#ref-zhang2018mixup))")
    text = "\n".join(texts)
    assert "[Theorem 1.1](#thm-tiny)" in text and "y = \\sum_i x_i \\tag{1.1}" in text and "Solution of Exercise 1.2" in text
    assert not re.search(r":::|\{[a-z:]+\}`", text) and texts[-1].startswith("## References\n")
    assert re.search(r"^\| The mean is small \| .*noise 2.*; `value < 100 and noise < 1` \| fails \|$", text, re.MULTILINE)
    assert "jupytext" not in notebook.metadata and execution.finished(tiny, {"noise": 2.0, "widths": [4]}, folder)
    again = catalogue.resolve(str(folder / "01_tiny.ipynb"))  # a run of the run has one note, and no book
    execution.run(again, {}, book / "again")
    notes = [cell.source for cell in nbformat.read(book / "again" / "01_tiny.ipynb", as_version=4).cells]
    assert notes[0].endswith("Changed parameters:\n>\n> - none") and "**A run of this chapter.**" not in "".join(notes[1:])


def test_a_notebook_runs_like_its_source(tiny, book, tmp_path):
    execution.execute(tiny)
    (book / "copies").mkdir()  # beside the notebooks, so that the claims are where they were
    (book / "copies" / "copy.ipynb").write_bytes(tiny.notebook.read_bytes())
    assert catalogue.resolve("notebooks/01_tiny.ipynb").source == tiny.source
    copy = catalogue.resolve(str(book / "copies" / "copy.ipynb"))
    result = execution.run(copy, {"replicas": 3}, tmp_path / "out")
    assert copy.root is None and "3 values" in stdout(result.notebook)


def test_runs_leave_no_log_handlers(tiny, tmp_path):
    log = logging.getLogger("papermill")
    for name in "ab":
        execution.run(tiny, {}, tmp_path / name)
        assert not log.handlers and not log.isEnabledFor(logging.CRITICAL)


def test_a_seed_changes_the_run_and_the_same_seed_does_not(tiny, tmp_path):
    seen = [stdout(execution.run(tiny, {"seed": seed}, tmp_path / str(k)).notebook) for k, seed in enumerate((3, 3, 4))]
    assert seen[0] == seen[1] != seen[2]


def test_bad_requests_leave_nothing_behind(tiny, book, tmp_path):
    (tmp_path / "file").write_text("")
    bad = [({"nois": 1}, "out"), ({"noise": "x"}, "out"), ({}, "file"), ({}, "file/out"), ({}, book / "notebooks")]
    before = files(tmp_path), files(book), files(book / "notebooks")
    for values, folder in bad:
        with pytest.raises(errors.ChapterError):
            execution.run(tiny, values, tmp_path / folder)
    assert (files(tmp_path), files(book), files(book / "notebooks")) == before


def test_a_failing_cell_keeps_the_partial_notebook_and_the_old_result(book, tmp_path):
    (tmp_path / "broken.py").write_text(tiny_book.BROKEN)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "broken.ipynb").write_text("old")
    with pytest.raises(errors.CellFailed) as failure:
        execution.run(catalogue.resolve(str(tmp_path / "broken.py")), {}, tmp_path / "out")
    assert "cell [3] failed at '1 / 0': ZeroDivisionError: division by zero" in str(failure.value)
    assert "\n" not in str(failure.value)
    assert files(tmp_path / "out") == ["broken.ipynb", "broken.partial.ipynb"]
    assert (tmp_path / "out" / "broken.ipynb").read_text() == "old"
    assert "asleep" in stdout(tmp_path / "out" / "broken.partial.ipynb")


def test_the_kernel_is_this_interpreter_in_the_chapters_folder_with_one_thread(book, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    code = "import os, sys\nprint([sys.executable, os.getcwd(), *map(os.getenv, NAMES)])"
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"]
    (tmp_path / "where.py").write_text(f"{tiny_book.PARAMETERS}\n# %%\nNAMES = {names}\n{code}\n")
    chapter = catalogue.resolve(str(tmp_path / "where.py"))
    for options, found in (
        ({}, ["1", "3", str(1 << 40)]),
        ({"threads": 2}, ["2", "2", str(1 << 40)]),
        ({"memory": 8 << 30}, ["1", "3", None]),
    ):
        result = execution.run(chapter, {}, tmp_path / "out", **options)
        assert eval(stdout(result.notebook)) == [sys.executable, str(tmp_path), *found]
    assert os.environ.get("OMP_NUM_THREADS") is None


def test_executing_twice_gives_the_same_bytes_and_a_pair(tiny, book):
    source = tiny.source.read_text()
    noisy = '# %%\nimport sys\nfor n in range(3):\n    print(n, flush=True)\nprint("warning", file=sys.stderr)\n'
    tiny.source.write_text(f"{source}\n{noisy}\n{noisy}")
    tiny = catalogue.resolve("1")
    first, again = (execution.execute(tiny) and tiny.notebook.read_bytes() for _ in range(2))
    assert first == again
    text = first.decode()
    for word in ("papermill", "iopub", "warning\\n", '"version"', "injected", "jupytext_version"):
        assert word not in text.replace('print(\\"warning', "")
    assert pairing.paired(tiny) == ""
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert len({cell["id"] for cell in json.loads(text)["cells"]}) == len(json.loads(text)["cells"])
    assert files(book / "notebooks") == ["01_tiny.ipynb", "01_tiny.py"]

    tiny.source.write_text(tiny.source.read_text().replace("Count.", "Count again."))
    assert "+" in pairing.paired(catalogue.resolve("1")) and "Count again." in pairing.paired(catalogue.resolve("1"))
    tiny.source.write_text(f"{source}\n{noisy}\n{noisy}".replace('tags=["parameters"]', 'tags=["other"]'))
    assert '"other"' in pairing.paired(catalogue.resolve("1"))


def test_a_missing_notebook_is_no_pair(tiny):
    assert pairing.paired(tiny) == "01_tiny.ipynb is missing"


RAISING = {
    "a = 1\nb = 2\n\nint(\n    'x',\n)\n": "int(",
    "def f():\n    return 1 / 0\n\n# a comment\nf()": "return 1 / 0",
    "# a comment\nx = (1,\n": "x = (1,",
    "a = 1\ndefined_before()": "defined_before()",
    "a = 1\nraise ValueError('two\\nlines')": "raise ValueError('two\\nlines')",
}


@pytest.mark.parametrize(("source", "line"), RAISING.items(), ids=RAISING.values())
def test_the_line_that_raised_is_told(book, tmp_path, source, line):
    before = "def defined_before():\n    raise KeyError('x')"
    cells = "".join(f"# %%\n{one}\n\n" for one in (before, source))
    (tmp_path / "fails.py").write_text(tiny_book.HEADER + tiny_book.PARAMETERS + cells)
    with pytest.raises(errors.CellFailed) as found:
        execution.run(catalogue.resolve(str(tmp_path / "fails.py")), output_dir=tmp_path / "out")
    assert f"failed at {line!r}: " in str(found.value) and "\n" not in str(found.value)


def test_one_failed_chapter_does_not_stop_the_others(book):
    (book / "notebooks" / "02_broken.py").write_text(tiny_book.BROKEN)
    (book / "notebooks" / "02_broken.ipynb").write_text("old")
    (book / "notebooks" / "03_noisy.py").write_text(
        f"{tiny_book.BROKEN[: tiny_book.BROKEN.index('# This')]}\nimport sys\nsys.stderr.write('w')"
    )
    broken, noisy, tiny = execution.execute_all([catalogue.resolve(name) for name in "231"], jobs=2)
    assert (broken.chapter, noisy.chapter, tiny.chapter) == ("02_broken", "03_noisy", "01_tiny")
    assert "division by zero" in broken.error and not tiny.error and [row["id"] for row in tiny.rows] == ["small-mean"]
    assert noisy.stderr == "w" and noisy.rows == []
    assert (book / "notebooks" / "02_broken.ipynb").read_text() == "old"
    kept = ["01_tiny.claims.json", "01_tiny.ipynb", "02_broken.partial.ipynb", "03_noisy.claims.json", "03_noisy.ipynb"]
    assert files(book / "_build" / "execute") == kept


def test_a_notebook_is_up_to_date_until_its_code_or_its_outputs_change(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_runs, "PAPERS", tmp_path / "papers")
    assert not execution.up_to_date(tiny)
    execution.execute(tiny)
    assert execution.up_to_date(tiny)
    source, ran = tiny.source.read_text(), tiny.notebook.read_text()

    tiny.source.write_text(
        source.replace("Count.", "Count again.").replace("# %% [markdown]", "# %% [markdown]\n# New.\n\n# %% [markdown]", 1)
    )
    assert execution.up_to_date(catalogue.resolve("1")), "prose is no reason to run"
    assert "Count again." in tiny.notebook.read_text() and pairing.paired(catalogue.resolve("1")) == ""
    assert claims.read(tiny.notebook) and "the first" in stdout(tiny.notebook)

    tiny.source.write_text(source.replace("import random", "import random  # other code"))
    assert not execution.up_to_date(catalogue.resolve("1"))
    tiny.source.write_text(source)
    tiny.notebook.write_text(ran.replace("4 values", "5 values"))
    assert not execution.up_to_date(tiny), "the outputs are not those of the run"
    tiny.notebook.write_text(ran)
    assert execution.up_to_date(tiny)
    path = kept_runs.folder("tiny") / "longer.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert not execution.up_to_date(tiny), "what a chapter reads has changed"


def test_a_relative_data_folder_is_meant_from_where_the_command_runs(book, tmp_path, monkeypatch):
    monkeypatch.setenv("MVNB_DATA", "data")
    source = tmp_path / "where.py"
    source.write_text(
        tiny_book.HEADER
        + "# %% [markdown]\n# # Where\n\n"
        + tiny_book.PARAMETERS
        + "# %%\nimport os\n\nprint(os.environ['MVNB_DATA'])\n"
    )
    result = execution.run(catalogue.resolve(str(source)), output_dir=tmp_path / "out")
    assert stdout(result.notebook).strip() == str(book / "data")
