"""Texts as tokens, and the objectives made of them."""

import pytest
import torch

from mvnb.papers.landscape_aware_growing.objectives import LANGUAGE_OBJECTIVES, _prefix_lm, _span_corruption
from mvnb.papers.landscape_aware_growing.text import MASK, N_SPECIAL, OTHER, Text, _encode, load_text, structure_targets

causal_lm, masked_lm, ul2_mixture = LANGUAGE_OBJECTIVES.values()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def python():
    return load_text()


def test_characters_without_a_token_and_special_tokens():
    text = Text("x", "ab", _encode("abba", "ab"), _encode("aé\x00b", "ab"))
    assert text.decode(text.train) == "abba" and text.valid.tolist() == [N_SPECIAL, OTHER, OTHER, N_SPECIAL + 1]
    assert text.decode(torch.tensor([OTHER, MASK, N_SPECIAL])) == "?_a"


def test_the_library_and_files(python, tmp_path):
    assert python.name == "python" and python.n_tokens == N_SPECIAL + len(python.alphabet)
    assert len(python.train) > 1_000_000 and "def " in python.decode(python.train[:100_000])
    path = tmp_path / "text.txt"
    path.write_text("hello world\n" * 200)
    text = load_text(str(path))
    assert (len(text.train), len(text.valid)) == (2160, 240) and text.alphabet == "\n dehlorw"


def test_wrong_sources_are_refused_in_one_line(tmp_path):
    short, binary = tmp_path / "short", tmp_path / "binary"
    short.write_text("abc")
    binary.write_bytes(b"\xff\xfe\xfa" * 1000)
    for source, message in (
        ("no-such-file", "'python' or the path"),
        (str(short), "at least 1,000"),
        (str(binary), "not UTF-8"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            load_text(source)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="a window needs"):
        Text("x", "a", _encode("a" * 900, "a"), _encode("a" * 100, "a")).windows(1, 300, generator(), valid=True)


def test_windows_are_windows_and_depend_on_the_generator_only(python):
    one, two = (python.windows(5, 12, generator(3)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, python.windows(5, 12, generator(4)))
    whole = python.decode(python.train)
    assert all(python.decode(w) in whole for w in one)


@pytest.mark.parametrize("make", [causal_lm, masked_lm, ul2_mixture, _prefix_lm, _span_corruption])
def test_objectives_have_one_shape_and_ask_for_something(python, make):
    windows = python.windows(50, 33, generator())
    batch = make(windows, generator(1))
    again = make(windows, generator(1))
    assert all(torch.equal(a, b) for a, b in zip(batch, again))
    assert batch.inputs.shape == batch.targets.shape == batch.weights.shape == (50, 32) and batch.prefix.shape == (50,)
    assert (batch.weights.sum(1) >= 1).all() and (batch.prefix <= 32).all()
    # Nothing that is asked for is visible: a causal position may not lie within the prefix before its answer.
    if make is not masked_lm:
        place = torch.arange(32)
        assert not (batch.weights.bool() & (place + 1 < batch.prefix[:, None])).any()


def test_masked_positions_follow_bert(python):
    windows = python.windows(4000, 33, generator())
    inputs, targets, weights, prefix = masked_lm(windows, generator(1))
    chosen = weights.bool()
    assert torch.equal(targets, windows[:, :-1]) and (prefix == 32).all() and torch.equal(inputs[~chosen], targets[~chosen])
    assert weights.mean().item() == pytest.approx(0.15, abs=0.01)
    assert (inputs[chosen] == MASK).float().mean().item() == pytest.approx(0.8, abs=0.02)
    same = (inputs[chosen] == targets[chosen]).float().mean().item()
    assert 0.1 < same < 0.13  # 10 % are left, and a random character may be the same one


def test_cut_spans_are_asked_for_and_put_the_text_together_again(python):
    windows = python.windows(20, 33, generator())
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


def test_the_mixture_has_its_shares(python):
    windows = python.windows(3000, 33, generator())
    batch = ul2_mixture(windows, generator(1))
    spans = ((batch.inputs == MASK).sum(1) > 0).float().mean().item()
    causal = (batch.prefix == 0).float().mean().item()
    assert spans == pytest.approx(0.2, abs=0.03) and causal == pytest.approx(0.6, abs=0.03)


def test_structure_is_asked_where_it_decides(python):
    text = "\n  name[nam]\n  (name}\n"
    windows = python.encode(text)[None]
    targets = structure_targets(python, windows)
    last = text.rindex("name")
    for kind, places in (
        ("brackets", [i for i in range(len(text) - 1) if text[i + 1] in ")]}"]),
        ("recall", [last + 2]),  # nam, as before, is followed by e; ame is not by what it was
        ("indentation", [text.index("\n", 1), text.index("\n", 1) + 1, text.index("\n", 1) + 2]),
    ):
        mask, candidates = targets[kind]
        assert mask[0].nonzero()[:, 0].tolist() == places
        assert torch.isin(python.encode(text)[1:][mask[0]], candidates).all()
