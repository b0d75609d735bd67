"""Every chapter of the book follows the rules for chapters, and a chapter that breaks a rule is noticed."""

import json
from pathlib import Path

import chapter_checks
import nbformat
import pytest
import tiny_book

from mvnb import kept_runs
from mvnb.claims import MIME
from mvnb.files import write_record
from mvnb.runner import catalogue, errors
from mvnb.runner.hosts import TAG
from mvnb.runner.parameters import _numbers

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = catalogue.discover(ROOT)


def named(things):
    return pytest.mark.parametrize("check", things, ids=lambda check: check.__name__)


every_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)


@every_chapter
@named(chapter_checks.CHECKS)
def test_chapter(chapter, check):
    assert not check(chapter)


@every_chapter
def test_numbers_that_make_no_sense_are_refused(chapter):
    with pytest.raises(errors.ChapterError, match="'replicas' must be"):
        chapter.parse(["replicas=0"])
    numeric = {name: one.default for name, one in chapter.parameters.items() if _numbers(one.default)}
    for name, default in numeric.items():
        for text in ("nan", "1e999", "-7"):
            with pytest.raises(errors.ChapterError, match=f"parameter '{name}' "):
                chapter.parse([f"{name}=[{text}]" if isinstance(default, list | tuple) else f"{name}={text}"])


def test_presets_are_of_chapters():
    assert set(catalogue.presets(ROOT)) <= {chapter.name for chapter in CHAPTERS}


@named(chapter_checks.CHECKS)
def test_the_tiny_chapter_keeps_every_rule(executed, check):
    assert check(executed) == []


BROKEN_SOURCES = [
    (chapter_checks.pair, "Count.", "Count again.", "out of step"),
    (chapter_checks.parameters, "  # independent runs (1 or more)", "", "no comment"),
    (chapter_checks.parameters, "# independent runs", "# R = independent runs", "papermill passes over 'replicas'"),
    (chapter_checks.parameters, "seed = 0", "sead = 0", "'seed' is not an integer"),
    (chapter_checks.parameters, '"auto"  #', '"cpu"  #', "'device' is not"),
    (chapter_checks.folded, "training.fold_seed(seed)", "seed", "seed is not folded"),
    (chapter_checks.folded, "seed = training", "print(seed)\nseed = training", "used before it is folded"),
    (chapter_checks.ranges, "(0 or more)", "of any size", "no range for 'noise'"),
    (chapter_checks.ranges, "hidden units (1 or more)", "hidden units", "no range for 'widths'"),
    (chapter_checks.ranges, "runs (1 or more)", "runs (5 or more)", "'replicas' is 4 by default, and may be 5 or more"),
    (chapter_checks.ranges, "units (1 or more)", "units (above 8)", "'widths' is 8 by default, and may be above 8"),
    (chapter_checks.ranges, "runs (1 or more)", "runs (3 to 9)", "'replicas' is 2 in preset 'smoke', and may be 3 to 9"),
    (chapter_checks.anatomy, "# A tiny chapter", "A tiny chapter", "does not begin with the title"),
    (chapter_checks.anatomy, "# ## What is drawn", "# # What is drawn", "exactly one heading"),
    (chapter_checks.anatomy, '<a id="01-world"></a>', '<a id="01-wordl"></a>', "sections are"),
    (chapter_checks.mathematics, "$$ (eq-tiny)", "$$", "numbered equation"),
    (chapter_checks.mathematics, "{prf:proof}", "{note}", "prf:proof"),
    (chapter_checks.plain, ":::{prf:proof}\n# Count.\n# :::", "```{prf:proof}\n# $1$\n# ```", "mathematics between backticks"),
    (chapter_checks.plain, '<a id="01-world"></a>', "(01-world)=", "other readers show as text: (01-world)="),
    (chapter_checks.citations, "Zhang et al., 2018", "Zhang, 2018", "the entry is 'Zhang et al., 2018'"),
    (chapter_checks.citations, "#zhang2018mixup", "#zhang", "the entry is None"),
    (chapter_checks.exercises, ":class: dropdown", "", "no solution"),
    (chapter_checks.exercises, "ex-tiny-3\n# Do", "\n# Do", "there are 2"),
    (chapter_checks.ledger, '"small-mean"', '"small-" + "mean"', "not recorded in the source"),
    (chapter_checks.strings, "Count.", "See /tmp/x.", "an absolute path: '/tmp/'"),
    (chapter_checks.strings, "Count.", "See `../../data/x`.", "outside the book"),
    (chapter_checks.presets, "replicas = 4", "copies = 4", "no parameter 'replicas'"),
]


@pytest.mark.parametrize(("check", "old", "new", "message"), BROKEN_SOURCES)
def test_a_broken_source_is_noticed(executed, tmp_path, check, old, new, message):
    assert old in tiny_book.CHAPTER
    (chapter,) = catalogue.discover(tiny_book.make(tmp_path / "book", tiny_book.CHAPTER.replace(old, new)))
    chapter.notebook.write_bytes(executed.notebook.read_bytes())
    assert message in "\n".join(check(chapter))


def _no_alt(cells):
    cells[2].outputs[0].metadata = {}


def _error(cells):
    cells[1].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])]


def _stderr(cells):
    cells[1].outputs = [nbformat.v4.new_output("stream", name="stderr", text="warning")]


def _timing(cells):
    cells[1].outputs[0].text = "10.2it/s"


def _address(cells):
    cells[1].outputs[0].text = "<object at 0x7f0011223344>"


def _not_run(cells):
    cells[1].execution_count = None


def _large(cells):
    cells[1].outputs[0].text = "x" * chapter_checks.LARGEST_NOTEBOOK


def _no_ledger(cells):
    cells[3].outputs = []


def _not_compared(cells):
    cells[3].source = cells[3].source.replace("NBVAL", "NVBAL")


def _no_figure(cells):
    cells[2].outputs = []


BROKEN_OUTPUTS = [
    (chapter_checks.figures, _no_alt, "cell [4] has no alternative text"),
    (chapter_checks.figures, _no_figure, "no figure"),
    (chapter_checks.outputs, _error, "ValueError"),
    (chapter_checks.outputs, _stderr, "stderr"),
    (chapter_checks.outputs, _not_run, "in the order [1, 2, None"),
    (chapter_checks.outputs, _large, "bytes"),
    (chapter_checks.strings, _timing, "a timing"),
    (chapter_checks.strings, _address, "a memory address"),
    (chapter_checks.ledger, _no_ledger, "no ledger"),
    (chapter_checks.ledger, _not_compared, "no cell with # NBVAL_CHECK_OUTPUT"),
]


@pytest.mark.parametrize(("check", "breakage", "message"), BROKEN_OUTPUTS)
def test_broken_outputs_are_noticed(executed, tmp_path, check, breakage, message):
    (chapter,) = catalogue.discover(tiny_book.make(tmp_path / "book"))
    notebook = nbformat.read(executed.notebook, as_version=4)
    breakage([cell for cell in notebook.cells if cell.cell_type == "code" and TAG not in cell.metadata.get("tags", [])])
    nbformat.write(notebook, chapter.notebook)
    assert message in "\n".join(check(chapter))


NEW = "\n[large-mean]" + tiny_book.CLAIMS.removeprefix("[small-mean]").replace("headline = true\n", "")
RUN = "differ in claims.toml and the notebook; run: mvnb book 01 --no-site"


@pytest.mark.parametrize(
    ("declared", "messages"),
    [
        (tiny_book.CLAIMS + NEW, ["claim large-mean is not recorded in the source", f"claims large-mean {RUN}"]),
        (tiny_book.CLAIMS.replace("100", "99"), [f"claims small-mean {RUN}"]),
        (tiny_book.CLAIMS.replace('"paper"', '"ours"'), [f"claims small-mean {RUN}"]),
        (NEW, ["claim large-mean is not recorded in the source", f"claims large-mean, small-mean {RUN}"]),
    ],
    ids=["added", "another rule", "another origin", "renamed"],
)
def test_a_claim_that_the_notebook_lacks_is_noticed_and_the_command_is_named(executed, tmp_path, declared, messages):
    (chapter,) = catalogue.discover(tiny_book.make(tmp_path / "book"))
    chapter.notebook.write_bytes(executed.notebook.read_bytes())
    (chapter.root / "papers" / "tiny" / "claims.toml").write_text(declared)
    assert chapter_checks.ledger(chapter) == messages


TERMS = "value < 100 and noise < 1 (origin: paper)"
AGAIN = "run: mvnb sweep 01 --grid seed=1000:21000:1000 --keep"


def _swept(executed, folder, id, terms, **counts):
    """Return a chapter whose kept sweep judged a claim on these terms."""
    (chapter,) = catalogue.discover(tiny_book.make(folder / "book"))
    chapter.notebook.write_bytes(executed.notebook.read_bytes())
    path = chapter.root / "results" / "sweeps" / "01.json"
    path.parent.mkdir(parents=True)
    write_record(path, {"claims": {id: {"terms": terms, **counts}}})
    return chapter


@pytest.mark.parametrize(
    ("id", "counts", "message"),
    [
        ("small-mean", (14, 1, 5), ""),
        ("small-mean", (13, 2, 5), "'fails': 2"),
        ("small-mean", (0, 3, 17), "holds in the notebook"),
        ("small-mean", (19, 0, 0), "'holds': 19"),
        ("large-mean", (20, 0, 0), f"claim small-mean is not in both the notebook and the sweep; {AGAIN}"),
    ],
)
def test_a_verdict_that_hangs_on_the_seed_is_noticed(executed, tmp_path, id, counts, message):
    chapter = _swept(executed, tmp_path, id, TERMS, **dict(zip(("holds", "fails", "undecided"), counts)))
    said = "\n".join(chapter_checks.seeds(chapter))
    assert message in said if message else not said


@pytest.mark.parametrize(
    "weaker",
    [
        {"criterion": "value < 200 and noise < 1"},
        {"criterion": "value > 100 and noise < 1"},
        {"criterion": "value < 100"},
        {"runs": 2},
        {"origin": "ours"},
    ],
    ids=["limit", "direction", "part", "runs", "origin"],
)
@pytest.mark.parametrize("kept", ["", "longer"], ids=["live", "kept"])
def test_a_weakened_rule_is_noticed(executed, tmp_path, monkeypatch, weaker, kept):
    chapter = _swept(executed, tmp_path, "small-mean", TERMS, holds=20, fails=0, undecided=0)
    monkeypatch.setattr(kept_runs, "PAPERS", tmp_path / "papers")
    (tmp_path / "papers" / "tiny" / "kept").mkdir(parents=True)
    write_record(kept_runs.folder("tiny") / "longer.json", {"parameters": {"seeds": 4}, "terms": {"small-mean": TERMS}})
    notebook = json.loads(chapter.notebook.read_text())
    (rows,) = (
        out["data"][MIME] for cell in notebook["cells"] for out in cell.get("outputs", []) if MIME in out.get("data", {})
    )
    check, end = (chapter_checks.kept, "in longer.json") if kept else (chapter_checks.seeds, AGAIN)
    for changes, found in (({}, 0), (weaker, 1)):
        rows[0].update(changes | {"kept": kept})
        chapter.notebook.write_text(json.dumps(notebook))
        said = check(chapter)
        assert len(said) == found
    assert said[0].startswith("claim small-mean is judged by") and said[0].endswith(end)
    assert ("2 runs, of [4]" if kept and "runs" in weaker else TERMS) in said[0]
