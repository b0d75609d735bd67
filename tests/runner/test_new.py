"""`mvnb new`: a chapter that passes the checks; what the book writes of its chapters itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import chapter_checks
import checkout
import pytest

from mvnb.runner import catalogue, derived, new

ROOT = Path(__file__).resolve().parents[2]


def files_of(root):
    names = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(name) for name in names if "__pycache__" not in name.parts and name.parts[0] != "_build"}


def test_a_new_chapter_passes_the_checks(tmp_path):
    root = checkout.copy_to(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "MVNB_ROOT"}
    environment |= {"PYTHONPATH": str(root / "src")}

    def python(*arguments):
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    before = files_of(root)
    python("mvnb", "new", "16", "toy_chapter")
    by_hand = {f"src/mvnb/papers/toy_chapter/{name}" for name in ("__init__.py", "claims.toml")}
    by_hand |= {"notebooks/16_toy_chapter.py", "tests/papers/test_toy_chapter.py"}
    assert files_of(root) - before == by_hand | {"notebooks/16_toy_chapter.ipynb"}
    chapter = catalogue.resolve("16", root)
    wrong = {check.__name__: check(chapter) for check in chapter_checks.CHECKS}
    assert not any(wrong.values()), wrong
    last = list(catalogue.parts(root, catalogue.discover(root)).values())[-1]
    assert [one.number for one in last] == ["12", "13", "14", "15", "16"]
    python("ruff", "check", ".")
    python("ruff", "format", "--check", ".")
    tests = ["papers/test_toy_chapter.py", "papers/test_lessons.py", "core/test_claims.py", "core/test_house.py"]
    python("pytest", "-n0", "-k", "toy_chapter or 16 or house", *(f"tests/{name}" for name in tests))
    assert ", 0 fail" in python("mvnb", "run", "16", "--preset", "smoke")  # a few runs may leave it undecided


@pytest.mark.parametrize("name", ["0 toy", "007 toy", "٣ toy", "16 Toy", "16 ../toy", "1 toy", "16 tiny"])
def test_what_cannot_be_a_chapter_is_one_line_and_writes_nothing(mvnb, book, name):
    before = files_of(book)
    status, out, err = mvnb("new", *name.split())
    message = "01_tiny already exists" if name in ("1 toy", "16 tiny") else "expected a number from 1 to 99 and"
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err
    assert files_of(book) == before


def test_files_that_exist_are_not_replaced_and_keywords_are_no_slugs(mvnb, book):
    (book / "_toc.yml").write_text("parts:\n  - caption: All\n    chapters:\n      - file: notebooks/01_tiny")
    (book / "presets.yml").write_text("01_tiny:\n  smoke:\n    replicas: 2")  # neither ends with a line break
    own = book / "tests" / "papers" / "test_toy.py"
    own.parent.mkdir(parents=True)
    own.write_text("mine = 1\n")
    before = files_of(book)
    for slug, message in (("toy", f"{own} already exists; choose another slug"), ("class", "got Python's keyword 'class'")):
        status, out, err = mvnb("new", "16", slug)
        assert (status, out) == (2, "") and err.count("\n") == 1 and message in err and files_of(book) == before
    own.unlink()
    new.create(book, "16", "toy")
    assert list(catalogue.presets(book)) == ["01_tiny", "16_toy"]
    assert [one.number for one in catalogue.parts(book, catalogue.discover(book))["All"]] == ["01", "16"]


def test_the_readme_lists_the_chapters_and_the_score():
    assert (ROOT / "README.md").read_text(encoding="utf-8") == derived.updated_readme(ROOT, catalogue.discover(ROOT))


def test_seconds_are_those_of_the_last_run_of_the_whole_book(tmp_path):
    def kept():
        return json.loads((tmp_path / derived.SECONDS).read_text(encoding="utf-8"))

    derived.record_seconds(tmp_path, {"02": 2.4, "01": 1.6}, 2, 2)
    assert kept()["seconds"] == {"01": 2, "02": 2} and "2 chapters at a time" in kept()["machine"]
    derived.record_seconds(tmp_path, {"01": 9.0, "03": 5.0}, 3, 1)  # beside others, chapters take longer than alone
    assert kept()["seconds"] == {"01": 2, "02": 2, "03": 5}
