"""The ledger: which files and measurements it refuses, what it finds and shows, and that it is read back as it was shown."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import malformed
import nbformat
import numpy as np
import pytest
import torch
from malformed import CLAIM, toml

from mvnb import claims, verdicts
from mvnb.claims import ClaimsError, Ledger

PAPERS = Path(__file__).resolve().parents[1] / "papers"


@pytest.fixture
def file(tmp_path):
    """Writes a file of claims: its path."""

    def write(text):
        path = tmp_path / "tiny" / "claims.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def ledger(file):
    """A ledger of one claim, ``first``, which is declared with these changes."""
    return lambda **changes: Ledger(file(toml(first=CLAIM | changes)))


@pytest.mark.parametrize(("text", "message"), malformed.FILES.values(), ids=malformed.FILES)
def test_a_malformed_file_is_one_line(file, text, message):
    with pytest.raises(ClaimsError) as error:
        Ledger(file(text))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_paper_without_claims_is_one_line():
    with pytest.raises(ClaimsError, match=r"^nowhere/claims.toml: No such file"):
        Ledger("nowhere")


def test_a_path_may_be_a_text(file):
    path = file(toml(first=CLAIM))
    for where in (path, str(path)):
        one = Ledger(where)
        assert list(one.claims) == ["first"] and one.chapter == path.parent.name


MISTAKEN = {
    "not declared": (lambda one: one.mean("second", [1.0]), "'second' is not declared in tiny"),
    "twice": (lambda one: (one.mean("first", [1.0]), one.mean("first", [1.0])), "'first' was already recorded"),
    "another name": (lambda one: one.mean("first", error=[1.0]), "expected measurements of value for claim 'first', got error"),
    "one name more": (lambda one: one.mean("first", [1.0], error=[1.0]), "for claim 'first', got value, error"),
    "NaN": (lambda one: one.mean("first", [1.0, math.nan]), "must be finite, got nan"),
    "infinite": (lambda one: one.exact("first", math.inf), "must be finite, got inf"),
    "an axis too many": (lambda one: one.mean("first", np.ones((2, 2))), "got an array of shape (2, 2)"),
    "no run": (lambda one: one.mean("first", []), "got an array of shape (0,)"),
    "many exact ones": (lambda one: one.exact("first", [1.0, 2.0]), "got an array of shape (1, 2)"),
    "text": (lambda one: one.mean("first", ["x"]), "'first': expected real numbers in an array, got ['x']"),
    "ragged": (lambda one: one.mean("first", [[1.0], [1.0, 2.0]]), "'first': expected real numbers in an array, got [[1.0], "),
    "complex": (lambda one: one.exact("first", np.complex128(1 + 5j)), "'first': expected real numbers in an array, got ["),
    "complex ones": (lambda one: one.mean("first", torch.ones(2, dtype=torch.complex64)), "expected real numbers"),
    "beyond float64": (lambda one: one.exact("first", 10**400), "'first': expected real numbers in an array, got [1000"),
    "an infinite sum": (lambda one: one.mean("first", [1.7e308] * 3), "'first' must have a finite sum, got up to 1.7e+308"),
    "a share without runs": (lambda one: one.each("first", [True]), "must declare their number in the key 'runs'"),
}


@pytest.mark.parametrize(("act", "message"), MISTAKEN.values(), ids=MISTAKEN)
def test_a_measurement_that_does_not_fit_is_one_line(ledger, act, message):
    with pytest.raises(ClaimsError) as error:
        act(ledger())
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_share_is_of_true_and_false(ledger):
    with pytest.raises(ClaimsError, match=r"expected one boolean per run for claim 'first', got 0\.5"):
        ledger(runs=8).each("first", [0.5, 1.0])


def test_nothing_is_shown_while_a_claim_is_not_measured(ledger):
    with pytest.raises(ClaimsError, match=r"'first' is declared in tiny/claims\.toml but was not measured"):
        ledger().show()


@pytest.mark.parametrize(
    ("values", "found"), [([0.6, 0.61, 0.62], "holds"), ([0.1, 0.11, 0.12], "fails"), ([0.3, 0.5, 0.4], "undecided")]
)
def test_the_verdict_is_the_rules_on_the_interval(ledger, values, found):
    one = ledger()
    one.mean("first", torch.tensor(values, dtype=torch.float64))
    (row,) = rows(one)
    mean, low, high = row["measured"]["value"]
    assert row["verdict"] == found and low < mean < high and row["runs"] == 3
    assert (row["runs_to_decide"] is not None) == (found == "undecided" and abs(mean - 0.4) > 1e-3)


def test_shares_exact_numbers_and_what_is_not_run(ledger):
    one = ledger(runs=8)
    one.each("first", np.arange(8) > 0)
    assert rows(one)[0]["measured"]["value"] == [0.875, 0.5291, 0.9776] and rows(one)[0]["verdict"] == "holds"
    one = ledger(holds="low > 0 and high < 1")
    one.exact("first", low=1 / 3, high=True)
    assert rows(one)[0]["measured"] == {"low": [0.3333] * 3, "high": [1.0] * 3}
    assert (rows(one)[0]["verdict"], rows(one)[0]["runs"]) == ("fails", None)
    one = ledger()
    one.not_run("first", "no weights")
    assert (rows(one)[0]["verdict"], rows(one)[0]["reason"]) == ("not run", "no weights")


@pytest.mark.parametrize(
    ("changes", "found", "how"),
    [
        ({}, [0.5, 0.6, 0.7], "mean"),
        ({"runs": 8}, np.arange(8) > 0, "each"),
        ({}, 0.5, "exact"),
        ({}, torch.tensor(0.5, dtype=torch.float64), "exact"),
        ({"holds": "low > 0 and high < 1"}, {"low": [0.1, 0.2, 0.2], "high": [0.5, 0.6, 0.6]}, "mean"),
        ({"holds": "low > 0 and high < 1"}, {"low": 0.1, "high": 0.5}, "exact"),
        ({"holds": "value > 0 and high < 1"}, {"value": [0.1, 0.2, 0.2], "high": [0.5, 0.6, 0.6]}, "mean"),
        ({"holds": "low > 0.1 and high > 0.1", "runs": 8}, {"low": [True] * 8, "high": [False, True] * 4}, "each"),
    ],
)
def test_several_measurements_are_recorded_by_their_kind(ledger, changes, found, how):
    one, by_hand = ledger(**changes), ledger(**changes)
    one.judge({"first": found})
    named = found if isinstance(found, dict) else {"value": found}
    getattr(by_hand, how)("first", named.get("value"), **{name: x for name, x in named.items() if name != "value"})
    assert rows(one) == rows(by_hand)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"second": [1.0]}, "'second' is not declared in tiny"),
        ({"second": 1.0}, "'second' is not declared in tiny"),
        ({"first": {}}, "expected measurements of value for claim 'first', got none"),
        ({"first": {"error": [1.0]}}, "expected measurements of value for claim 'first', got error"),
        ({"first": [[1.0], [1.0, 2.0]]}, "'first': expected real numbers in an array, got [[1.0], "),
        ({"first": ["x"]}, "'first': expected real numbers in an array, got ['x']"),
    ],
)
def test_several_measurements_that_do_not_fit_are_one_line(ledger, found, message):
    with pytest.raises(ClaimsError) as error:
        ledger().judge(found)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_measurements_may_require_a_gradient(ledger):
    values = torch.tensor([0.5, 0.6, 0.7], dtype=torch.float64, requires_grad=True)
    for given in (values, list(values)):
        one = ledger()
        one.mean("first", given)
        assert rows(one)[0]["measured"]["value"][0] == 0.6
    one = ledger()
    one.exact("first", values[1])
    assert rows(one)[0]["measured"]["value"] == [0.6] * 3


def test_one_run_leaves_everything_open(ledger):
    one = ledger()
    one.mean("first", [5.0])
    assert rows(one)[0]["verdict"] == "undecided" and rows(one)[0]["measured"] == {"value": [5.0, None, None]}
    assert json.loads(json.dumps(rows(one), allow_nan=False)) == rows(one)


def bundle(one: Ledger, headlines=False) -> dict:
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
        one.show(headlines)
    return shown[0]


def rows(one: Ledger) -> list[dict]:
    return bundle(one)[claims.MIME]


def test_the_compared_text_has_ids_kinds_and_rules_and_nothing_measured(ledger):
    def text(value, **changes):
        one = ledger(**changes)
        one.mean("first", [value, value + 0.1])
        return bundle(one)["text/plain"]

    assert text(0.9) == text(0.1) and "value >= 0.4" in text(0.9)
    assert text(0.9) != text(0.9, kind="scaled") and text(0.9) != text(0.9, holds="value >= 0.5")


def test_headlines_are_shown_alone_and_have_ids_of_their_own(file):
    one = Ledger(file(toml(first=CLAIM | {"headline": True}, second=CLAIM)))
    one.exact("first", 1.0)
    shown = bundle(one, headlines=True)
    assert 'id="headline-first"' in shown["text/html"] and "second" not in shown["text/html"]
    one.exact("second", 1.0)
    assert 'id="claim-first"' in bundle(one)["text/html"] and 'id="claim-second"' in bundle(one)["text/html"]


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


def test_the_table_is_accessible_and_says_everything(ledger):
    one = ledger(paper="≥ 0.9", origin="ours", reason="too noisy")
    one.mean("first", [0.2, 0.6, 0.4])
    page = Cells(bundle(one)["text/html"])
    assert "caption" in [tag for tag, _ in page.tags]
    assert [attributes["scope"] for tag, attributes in page.tags if tag == "th"] == ["col"] * 7 + ["row"]
    for piece in ("a < b", "Theorem 1 (not in the paper)", "exact", "≥ 0.9", "0.4 ± 0.5 of classes", "value >= 0.4", "?"):
        assert piece in page.text
    assert "undecided" in page.text and "too noisy" in page.text and "0 hold, 0 fail, 1 undecided of 1 claims" in page.text


def test_formulas_are_mathematics_on_pages_and_characters_in_the_terminal(ledger):
    one = ledger(says="While $k<d$, S' < 3", paper=r"$\ge 1/4$", reason=r"above $\exp(-60)$")
    one.exact("first", 0.1)
    page = bundle(one)["text/html"]
    for tex in ("k&lt;d", r"\ge 1/4", r"\exp(-60)"):
        assert rf'<span class="math notranslate nohighlight">\({tex}\)</span>' in page
    assert "</span>,</span> S&#x27; &lt; 3" in page and "$" not in page
    assert ">=1/4" in verdicts.table(rows(one)) and "$" not in verdicts.table(rows(one))


@pytest.mark.parametrize("slug", sorted(path.parent.name for path in claims.PAPERS.glob("*/claims.toml")))
def test_formulas_of_claims_are_closed_and_can_be_printed(slug):
    for claim in claims.declared(slug).values():
        for text in (claim.source, claim.says, claim.unit, str(claim.paper), claim.reason):
            assert not set("$\\{}") & set(verdicts.plain(text)), text


def test_a_reason_is_shown_only_where_a_claim_does_not_hold(ledger):
    for value, there in ((1.0, False), (0.1, True)):
        one = ledger(reason="too noisy")
        one.exact("first", value)
        assert ("too noisy" in bundle(one)["text/html"]) == there


def test_rows_are_read_back_from_a_notebook_and_the_last_of_one_id_counts(ledger, tmp_path):
    made = [ledger(), ledger()]
    for one, value in zip(made, (1, 2)):
        one.exact("first", value)
    outputs = [nbformat.v4.new_output("display_data", bundle(one)) for one in made]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=outputs)])
    nbformat.write(notebook, tmp_path / "a.ipynb")
    assert claims.read(tmp_path / "a.ipynb") == rows(made[1])


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}'])
def test_what_is_not_a_notebook_is_refused(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    with pytest.raises(ValueError):
        claims.read(tmp_path / "a.ipynb")


def test_a_kept_run_without_a_declaration_is_said_at_the_claim(ledger, tmp_path):
    kept = tmp_path / "tiny" / "kept"
    kept.mkdir(parents=True)
    (kept / "long.json").write_text("{}")
    pages = []
    for _ in range(2):
        one = ledger(kept="long")
        one.exact("first", 1.0)
        pages.append(verdicts.html(rows(one), "claim"))
        (kept / "long.toml").write_text("")
    assert verdicts.UNTRACED in pages[0] and verdicts.UNTRACED not in pages[1]


def test_verdicts_are_counted_compared_and_printed(ledger):
    found = []
    for value in (1.0, 0.1):
        one = ledger()
        one.exact("first", value)
        found += rows(one)
    open_ = found[0] | {"verdict": "undecided", "runs": 4, "runs_to_decide": 1234}
    absent = found[0] | {"verdict": "not run", "measured": {}}
    assert verdicts.tally([*found, open_, absent]) == "1 hold, 1 fail, 1 undecided of 3 claims; 1 not run"
    assert verdicts.tally([]) == "0 hold, 0 fail of 0 claims"
    assert verdicts.opposite(found[:1], found[1:]) == ["first"]
    assert not any(verdicts.opposite(found[:1], [other]) for other in (found[0], open_, absent))
    assert verdicts.note(open_) == "some 1200 runs like these 4 would decide it"
    assert verdicts.note(found[0]) == "" and verdicts.note(found[0] | {"untraced": True}) == verdicts.UNTRACED
    assert verdicts.note(found[1] | {"reason": "A. B.", "untraced": True}) == f"A. B; {verdicts.UNTRACED}"
    table = verdicts.table([*found, absent]).splitlines()
    assert table[0].split() == ["claim", "verdict", "measured", "paper", "rule"]
    assert table[2:8:2] == 3 * [found[0]["says"]]  # each row is below what the claim says
    assert [line.split()[:3] for line in table[3:7:2]] == [["first", "holds", "1"], ["first", "fails", "0.1"]]
    assert all(word in table[7] for word in ("not run", "value >= 0.4"))
    assert verdicts.moved(found[:1], found[1:]) == verdicts.moved(found[:1], []) == verdicts.moved([], found[:1]) == ["first"]
    assert verdicts.moved(found[:1], [found[0] | {"reason": "other"}]) == []
    for first, second in ((found[:1], []), ([found[0] | {"says": "It was $1$"}], [found[0] | {"criterion": "value > 0"}])):
        lines = verdicts.side_by_side(first, second, ("a", "b"), ["first"]).split("\n")[2:]
        assert lines[0] == found[0]["says"] and lines[1].split()[:2] == ["first", "holds"]
        assert lines[2:] == [] if not second else lines[2].split()[:2] == ["judged", "by"]


@pytest.mark.parametrize("width", [None, 24])
def test_a_table_fits_the_width_and_loses_no_word(width):
    lines = [("a-long-name-of-a-claim", "holds", "1 2 3 4 5 6 7 8 9"), ("b", "fails", "1")]
    table = verdicts.aligned(("claim", "verdict", "rule"), lines, width).splitlines()
    assert max(map(len, table)) == (width or 50)
    assert [line.split()[1] for line in (table[0], table[2], table[-1])] == ["verdict", "holds", "fails"]
    assert sorted("".join(table[2:]).replace(" ", "")) == sorted("".join(map("".join, lines)).replace(" ", ""))
    titled = verdicts.aligned(("claim", "verdict", "rule"), lines, width, ["", "A sentence of six short words"]).splitlines()
    said = titled[len(table) - 1 : -1]
    assert titled[: len(table) - 1] + titled[-1:] == table and " ".join(said) == "A sentence of six short words"
    assert len(said) == (2 if width else 1) and max(map(len, said)) <= (width or 29)


DECLARED = sorted(path.parent.name for path in claims.PAPERS.glob("*/claims.toml"))


@pytest.mark.parametrize("slug", DECLARED)
def test_every_headline_is_tried_on_a_broken_variant(slug):
    """That a test evaluates the rule of each; whether it tells right from wrong, the test says itself."""
    tests = "".join(path.read_text(encoding="utf-8") for path in PAPERS.glob(f"test_{slug}*.py"))
    headlines = [claim.id for claim in claims.declared(slug).values() if claim.headline]
    assert headlines and not [id for id in headlines if f'"{id}"' not in tests], f"no test in tests/papers/test_{slug}*.py"
