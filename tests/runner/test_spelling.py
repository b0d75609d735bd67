"""Prose and code are spelt as codespell's list of known slips has it; words it takes for slips stand in its small list here."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ["README.md", "CONTRIBUTING.md", "book", "notebooks", "src", "tests", "benchmarks"]
# A slice of a name in a test, the plural of thesis, a name in JavaScript, and an axis of NumPy.
KNOWN = "nd,nam,theses,positionof"


def spelt(*places) -> subprocess.CompletedProcess:
    skip = "*.ipynb,*.svg,*.bib,*.json,*.css,_root,test_spelling.py,.ipynb_checkpoints,__pycache__"
    command = [sys.executable, "-m", "codespell_lib", "--skip", skip, "--ignore-words-list", KNOWN, *map(str, places)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_no_known_slip_stands_in_the_book():
    done = spelt(*PLACES)
    assert done.returncode == 0, done.stdout


def test_a_slip_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("The grad" + "eint recieves noise.\n", encoding="utf-8")
    assert "recieves" in spelt(page).stdout
