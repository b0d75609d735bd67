"""Texts as tokens, and the objectives made of them."""

import pytest
import torch

from mvnb.papers.landscape_aware_growing import data
from mvnb.papers.landscape_aware_growing.data import (
    LANGUAGE_OBJECTIVES,
    MASK,
    N_SPECIAL,
    OTHER,
    Text,
    _encode,
    _prefix_lm,
    _span_corruption,
    load_text,
)

causal_lm, masked_lm, ul2_mixture = LANGUAGE_OBJECTIVES.values()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def sympy_text():
    return load_text()


def test_characters_without_a_token_and_special_tokens():
    text = Text("x", "ab", _encode("abba", "ab"), _encode("aé\x00b", "ab"))
    assert text.decode(text.train) == "abba" and text.valid.tolist() == [N_SPECIAL, OTHER, OTHER, N_SPECIAL + 1]
    assert text.decode(torch.tensor([OTHER, MASK, N_SPECIAL])) == "?_a"


def test_the_source_of_sympy_and_files(sympy_text, tmp_path):
    assert sympy_text.name == "sympy" and sympy_text.n_tokens == N_SPECIAL + len(sympy_text.alphabet)
    assert len(sympy_text.train) > 1_000_000 and "def " in sympy_text.decode(sympy_text.train[:100_000])
    path = tmp_path / "text.txt"
    path.write_text("hello world\n" * 200)
    text = load_text(str(path))
    assert (len(text.train), len(text.valid)) == (2160, 240) and text.alphabet == "\n dehlorw"


def test_no_file_for_validation_is_read_in_training(monkeypatch):
    """Of 20 files of one letter each, the tenth and the last are for validation, with letters that training has not."""
    letters = "abcdefghijklmnopqrst"
    monkeypatch.setattr(data, "_sympy_files", lambda: [3 * letter for letter in letters])
    text = load_text.__wrapped__()
    assert text.decode(text.train) == "".join(3 * letter for letter in letters if letter not in "jt")
    assert text.valid.tolist() == 6 * [OTHER]


def test_wrong_sources_are_refused_in_one_line(tmp_path):
    short, binary = tmp_path / "short", tmp_path / "binary"
    short.write_text("abc")
    binary.write_bytes(b"\xff\xfe\xfa" * 1000)
    for source, message in (
        ("no-such-file", "'sympy' or the path"),
        (str(short), "at least 1,000"),
        (str(binary), "not UTF-8"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            load_text(source)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="a window needs"):
        Text("x", "a", _encode("a" * 900, "a"), _encode("a" * 100, "a")).windows(1, 300, generator(), valid=True)


def test_another_version_of_sympy_is_refused(monkeypatch):
    monkeypatch.setattr(data, "PACKAGES", data.PACKAGES[1:])  # stands for files that differ
    with pytest.raises(ValueError, match=r"text must be .* unless SymPy 1\.14\.0 is installed, got 'sympy' with 1\.14\.0"):
        data.load_text.__wrapped__()
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="got 'sympy' with none"):
        data.load_text.__wrapped__()


def test_windows_are_windows_and_depend_on_the_generator_only(sympy_text):
    one, two = (sympy_text.windows(5, 12, generator(3)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, sympy_text.windows(5, 12, generator(4)))
    whole = sympy_text.decode(sympy_text.train)
    assert all(sympy_text.decode(w) in whole for w in one)


@pytest.mark.parametrize("make", [causal_lm, masked_lm, ul2_mixture, _prefix_lm, _span_corruption])
def test_objectives_have_one_shape_and_ask_for_something(sympy_text, make):
    windows = sympy_text.windows(50, 33, generator())
    batch = make(windows, generator(1))
    again = make(windows, generator(1))
    assert all(torch.equal(a, b) for a, b in zip(batch, again))
    assert batch.inputs.shape == batch.targets.shape == batch.weights.shape == (50, 32) and batch.prefix.shape == (50,)
    assert (batch.weights.sum(1) >= 1).all() and (batch.prefix <= 32).all()
    # Nothing that is asked for is visible: a causal position may not lie within the prefix before its answer.
    if make is not masked_lm:
        place = torch.arange(32)
        assert not (batch.weights.bool() & (place + 1 < batch.prefix[:, None])).any()


def test_all_that_follows_a_prefix_is_asked_for_and_nothing_else(sympy_text):
    windows = sympy_text.windows(50, 33, generator())
    inputs, targets, weights, prefix = _prefix_lm(windows, generator(1))
    for row, start in enumerate(prefix.tolist()):
        assert torch.equal(inputs[row], windows[row, :-1])
        assert torch.equal(targets[row][weights[row].bool()], windows[row, start:])


def test_masked_positions_follow_bert(sympy_text):
    windows = sympy_text.windows(4000, 33, generator())
    inputs, targets, weights, prefix = masked_lm(windows, generator(1))
    chosen = weights.bool()
    assert torch.equal(targets, windows[:, :-1]) and (prefix == 32).all() and torch.equal(inputs[~chosen], targets[~chosen])
    assert weights.mean().item() == pytest.approx(0.15, abs=0.01)
    assert (inputs[chosen] == MASK).float().mean().item() == pytest.approx(0.8, abs=0.02)
    same = (inputs[chosen] == targets[chosen]).float().mean().item()
    assert 0.1 < same < 0.13  # 10 % are left, and a random character may be the same one


def test_cut_spans_are_asked_for_and_put_the_text_together_again(sympy_text):
    windows = sympy_text.windows(20, 33, generator())
    inputs, targets, weights, prefix = _span_corruption(windows, generator(1))
    for row in range(20):
        whole = [*inputs[row].tolist(), targets[row, -1].item()]
        kept, answers = whole[: prefix[row]], whole[prefix[row] :]
        assert kept.count(MASK) == kept.count(MASK + 1) == 1 and answers[0] == MASK
        second = answers.index(MASK + 1)
        spans = {MASK: answers[1:second], MASK + 1: answers[second + 1 :]}
        text = [t for token in kept for t in spans.get(token, [token])]
        assert text == windows[row, :29].tolist()
        assert weights[row].sum() == len(answers) - 1
    with pytest.raises(ValueError, match="at least 12"):
        _span_corruption(windows[:, :8], generator())


def test_the_mixture_has_its_shares(sympy_text):
    windows = sympy_text.windows(3000, 33, generator())
    batch = ul2_mixture(windows, generator(1))
    spans = ((batch.inputs == MASK).sum(1) > 0).float().mean().item()
    causal = (batch.prefix == 0).float().mean().item()
    assert spans == pytest.approx(0.2, abs=0.03) and causal == pytest.approx(0.6, abs=0.03)
