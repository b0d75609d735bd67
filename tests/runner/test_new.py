"""`mvnb new`: a chapter that keeps every rule and is on the site at once; what the book writes of its chapters itself."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import chapter_checks
import checkout
import pytest

from mvnb import cli
from mvnb.runner import catalogue, derived

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path):
    """The whole book in another folder, and a way to run Python there on its own package."""
    checkout.copy_to(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "MVNB_ROOT"}
    environment |= {"PYTHONPATH": str(tmp_path / "src")}

    def python(*arguments):
        return subprocess.run([sys.executable, "-m", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return tmp_path, python


def files_of(root):
    names = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(name) for name in names if "__pycache__" not in name.parts and name.parts[0] != "_build"}


ABSENT = "(?i)unknown (source )?document|undefined label|no label|not found"  # links to what a site of few chapters lacks


def build_with_few_chapters(root, python):
    """Build the site with one chapter a part beside the new one, in a third of the time; returns what Sphinx complains of."""
    contents = (root / "_toc.yml").read_text(encoding="utf-8").splitlines(keepends=True)
    few = [line for line in contents if not re.search(r"notebooks/(?!01|07|08|14|16)", line)]
    (root / "_toc.yml").write_text("".join(few), encoding="utf-8")
    done = python("mvnb.cli", "book", "16")
    assert done.returncode == 1 and "16_toy_chapter  unchanged" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
    return re.findall(".*(?:WARNING|ERROR|CRITICAL).*", done.stdout + done.stderr)


BIBLIOGRAPHY = "\n@misc{toy2026, title = {Means}, author = {Toy, Ann}, year = {2026}}\n"


def test_a_new_chapter_keeps_every_rule_and_is_on_the_site(copy):
    """As CONTRIBUTING.md says: ``mvnb new``, the files, ``mvnb book``; here only the bibliography is changed."""
    root, python = copy
    before = files_of(root)
    done = python("mvnb.cli", "new", "16", "toy_chapter", "--part", "Structure")
    assert done.returncode == 0, done.stderr
    room = "src/mvnb/papers/toy_chapter"
    by_hand = {f"{room}/{name}" for name in ("__init__.py", "claims.toml", "recipe.py")}
    by_hand |= {"notebooks/16_toy_chapter.py", "tests/papers/test_toy_chapter.py"}
    assert files_of(root) - before == by_hand | {"notebooks/16_toy_chapter.ipynb"}

    with (root / "book" / "references.bib").open("a", encoding="utf-8") as references:
        references.write(BIBLIOGRAPHY)
    chapter = catalogue.resolve("16", root)
    source = chapter.source.read_text(encoding="utf-8")
    chapter.source.write_text(
        source.replace("*, its authors.", "*, [Toy (2026)](../book/references.bib#toy2026)."), encoding="utf-8"
    )
    done = python("mvnb.cli", "book", "16", "--no-site")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    complaints = build_with_few_chapters(root, python)
    assert complaints and not [line for line in complaints if "toy" in line or not re.search(ABSENT, line)]
    chapter = catalogue.resolve("16", root)
    wrong = {check.__name__: check(chapter) for check in chapter_checks.CHECKS}
    assert not any(wrong.values()), wrong
    tests = ["papers/test_toy_chapter.py", "papers/test_lessons.py", "core/test_claims.py", "core/test_house.py"]
    tested = ["pytest", "-n0", "-k", "toy_chapter or 16 or house", *(f"tests/{name}" for name in tests)]
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], tested):
        done = python(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    smoke = python("mvnb.cli", "run", "16", "--preset", "smoke")
    assert smoke.returncode == 0 and ", 0 fail" in smoke.stdout, smoke.stderr  # a few runs may leave it undecided

    site, page = root / "_build" / "html", "notebooks/16_toy_chapter"
    assert f"{page}.html" in (site / "book" / "intro.html").read_text(encoding="utf-8")
    text = (site / f"{page}.html").read_text(encoding="utf-8")
    assert "The chapter runs in about" in text and "The headline claim holds here." in text
    assert (site / "_static" / "gallery" / "16.webp").stat().st_size > 1000
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert readme.index(" 7 [") < readme.index(f", 16 [The title of chapter 16]({page}.ipynb)") < readme.index(": 8 [")


@pytest.fixture
def small_checkout(book):
    """The tiny book with the files that ``mvnb new`` asks for."""
    (book / "_toc.yml").write_text("parts:\n  - caption: Views\n    chapters:\n      - file: notebooks/01_tiny\n")
    (book / "src" / "mvnb" / "papers").mkdir(parents=True)
    return book


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *[([number, "toy"], f"one or two digits, from 1 to 99, got {number!r}") for number in ("0", "00", "007", "x", "٣")],
        (["1", "toy"], "01_tiny already exists"),
        (["16", "Toy"], "lower-case words"),
        (["16", "../toy"], "lower-case words"),
        (["01", "toy"], "01_tiny already exists"),
        (["16", "tiny"], "01_tiny already exists"),
        (["16", "toy", "--part", "Nothing"], "no part 'Nothing' in _toc.yml; it has Views"),
    ],
)
def test_what_cannot_be_a_chapter_is_one_line_and_writes_nothing(mvnb, small_checkout, arguments, message):
    before = files_of(small_checkout)
    status, out, err = mvnb("new", *arguments)
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err
    assert files_of(small_checkout) == before


@pytest.mark.parametrize("number", ["6", "06"])
def test_a_number_may_have_one_digit(mvnb, small_checkout, monkeypatch, number):
    ran = []
    monkeypatch.setattr(cli, "_book", lambda chapters, site: ran.extend(chapters) or 0)
    before = files_of(small_checkout)
    status, out, _ = mvnb("new", number, "toy")
    assert status == 0 and ran == ["06"] and out.splitlines()[0] == str(small_checkout / "notebooks" / "06_toy.py")
    made = {"notebooks/06_toy.py", "tests/papers/test_toy.py"}
    made |= {f"src/mvnb/papers/toy/{name}" for name in ("__init__.py", "claims.toml", "recipe.py")}
    assert files_of(small_checkout) - before == made
    assert "- file: notebooks/06_toy\n" in (small_checkout / "_toc.yml").read_text()
    assert "06_toy:" in (small_checkout / "presets.yml").read_text()


def test_a_chapter_needs_a_checkout(mvnb, book):
    status, out, err = mvnb("new", "16", "toy")
    assert (status, out) == (2, "") and err.count("\n") == 1 and "is not a checkout of the project" in err


def test_the_readme_lists_the_chapters():
    assert (ROOT / "README.md").read_text(encoding="utf-8") == derived.readme_with_chapters(ROOT)


def test_seconds_are_those_of_the_last_run_of_the_whole_book(tmp_path):
    def kept():
        return json.loads((tmp_path / derived.SECONDS).read_text(encoding="utf-8"))

    derived.record_seconds(tmp_path, {"02": 2.4, "01": 1.6}, 2, 2)
    assert kept()["seconds"] == {"01": 2, "02": 2} and "2 chapters at a time" in kept()["machine"]
    derived.record_seconds(tmp_path, {"01": 9.0, "03": 5.0}, 3, 1)  # beside others, chapters take longer than alone
    assert kept()["seconds"] == {"01": 2, "02": 2, "03": 5}
