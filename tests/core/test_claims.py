"""The ledger: what it refuses, what it shows, and that it is read back as it was recorded."""

import json
import math
from html.parser import HTMLParser

import nbformat
import pytest

from mvnb import claims

CLAIM = dict(source="Theorem 1", says="a < b", kind="exact", measured=0.123456, holds=True, criterion="at least 0.1")


def ledger(**changes) -> claims.Ledger:
    made = claims.Ledger("01_tiny")
    made.record("first-claim", **(CLAIM | changes))
    return made


def bundle(made: claims.Ledger) -> dict:
    return claims._Shown(made.rows)._repr_mimebundle_()


@pytest.mark.parametrize("kind", ["", "Exact", "approximate"])
def test_unknown_kind_is_refused(kind):
    with pytest.raises(ValueError, match="exact, scaled, stand-in"):
        ledger(kind=kind)


@pytest.mark.parametrize("id", ["", "First", "two words", "a--b", "-a", "a-", "a_b"])
def test_ids_are_kebab_case(id):
    with pytest.raises(ValueError, match="kebab-case"):
        claims.Ledger("01_tiny").record(id, **CLAIM)


def test_an_id_is_recorded_once():
    made = ledger()
    with pytest.raises(ValueError, match="already"):
        made.record("first-claim", **CLAIM)


def test_rows_hold_plain_rounded_numbers():
    row = ledger(measured=1 / 3, uncertainty=1e-5 / 3, paper=2).rows[0]
    assert (row["measured"], row["uncertainty"], row["paper"]) == (0.3333, 3.333e-06, 2.0)
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_still_json(value):
    made = ledger(measured=value, holds=False)
    assert json.loads(json.dumps(bundle(made)[claims.MIME], allow_nan=False))[0]["measured"] is None
    assert "not finite" in claims.table(made.rows)


def test_the_text_form_is_the_same_for_other_measurements_and_differs_for_another_verdict():
    text = bundle(ledger())["text/plain"]
    assert text == bundle(ledger(measured=0.2, uncertainty=3.0))["text/plain"]
    assert text != bundle(ledger(holds=False))["text/plain"]
    assert text != bundle(ledger(kind="scaled"))["text/plain"]
    assert "0.123" not in text and "at least 0.1" in text


class Cells(HTMLParser):
    """Collects the tags of a page with their attributes, and its text."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_the_table_is_accessible_and_says_everything():
    page = Cells(bundle(ledger(paper="≥ 0.9", uncertainty=0.01, unit="of classes"))["text/html"])
    names = [tag for tag, _ in page.tags]
    assert "caption" in names
    assert [attributes["scope"] for tag, attributes in page.tags if tag == "th"] == ["col"] * 7 + ["row"]
    assert ("tr", {"id": "claim-first-claim"}) in page.tags
    for piece in ("a < b", "Theorem 1", "exact", "≥ 0.9", "0.123 ± 0.01 of classes", "at least 0.1", "✓", "holds"):
        assert piece in page.text


def test_a_reason_is_shown_only_where_a_claim_fails():
    assert "too noisy" not in bundle(ledger(reason="too noisy"))["text/html"]
    failing = bundle(ledger(reason="too noisy", holds=False))["text/html"]
    assert "too noisy" in failing and "does not hold" in failing and "✗" in failing


def test_rows_are_read_back_from_a_notebook_and_the_last_of_one_id_counts(tmp_path):
    outputs = [nbformat.v4.new_output("display_data", bundle(ledger(measured=value))) for value in (1, 2)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=outputs)])
    nbformat.write(notebook, tmp_path / "a.ipynb")
    rows = claims.read(tmp_path / "a.ipynb")
    assert rows == ledger(measured=2).rows


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}'])
def test_what_is_not_a_notebook_is_refused(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(ValueError):
        claims.read(tmp_path / "a.ipynb")


def test_the_terminal_table_counts_the_verdicts():
    made = ledger()
    made.record("second-claim", **(CLAIM | {"holds": False}))
    text = claims.table(made.rows)
    assert "1 of 2 claims hold" in text and "does not hold" in text and "0.123 " in text
    assert "0 of 0" in claims.table([])


def test_a_claim_that_was_not_run_counts_neither_way():
    made = ledger()
    made.record("absent-claim", **(CLAIM | {"holds": None, "measured": None, "reason": "no weights"}))
    shown = bundle(made)
    assert "1 of 1 claims hold, 1 not run" in shown["text/plain"] and "not run" in claims.table(made.rows)
    assert 'class="verdict absent"' in shown["text/html"] and "no weights" in shown["text/html"]
    assert json.loads(json.dumps(shown[claims.MIME]))[1]["holds"] is None
