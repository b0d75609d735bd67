"""Prompts with a needle: of the length asked for, with the needle whole and where it belongs; and the published score."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mvnb.papers.gemfilter import needle as nd
from mvnb.papers.gemfilter import token_selection as ts

SENTENCES = [f"Line {i} is about nothing at all." for i in range(60)]


def encode(text):
    """A token a character, so that places can be read."""
    return [ord(c) for c in text]


def decode(tokens):
    return "".join(chr(t) for t in tokens.tolist())


@pytest.fixture(scope="module")
def reader():
    """A network of three layers with random weights, which reads characters."""
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_hidden_layers": 3}
    ends = dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])
    config = LlamaConfig(vocab_size=128, hidden_size=16, intermediate_size=16, **heads, **ends)
    model = LlamaForCausalLM(config).double().eval()
    return SimpleNamespace(model=model, encode=encode, decode=lambda tokens: "".join(map(chr, tokens)))


def test_the_exact_answer_scores_eleven_twelfths_and_nothing_scores_more():
    assert nd.needle_score(nd.EXPECTED) == nd.BEST_SCORE == pytest.approx(11 / 12)
    assert nd.needle_score(nd.NEEDLE) == nd.needle_score(f"{nd.EXPECTED} {nd.EXPECTED}") == nd.BEST_SCORE
    assert nd.needle_score("") == nd.needle_score("Nothing") == 0
    assert nd.needle_score("EAT a sandwich.") == pytest.approx(2 / 12)  # "sandwich." is another word
    assert nd.needle_score("eat a sandwich") == pytest.approx(3 / 12)


@pytest.mark.parametrize("depth", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("start", ["", "<|im_start|> "])
def test_the_needle_is_whole_and_after_the_sentence_before_its_depth(depth, start):
    prompt = nd._needle_prompt(encode, SENTENCES, 900, depth, start)
    text = decode(prompt.tokens)
    assert len(text) == 900 and text.startswith(start + "This is") and text.endswith(f"{nd.QUESTION}\nAnswer:")
    assert decode(prompt.tokens[prompt.start : prompt.stop]) == " " + nd.NEEDLE
    assert decode(prompt.tokens[-prompt.tail :]).startswith(" </book>.")
    hay = text[len(start) + len("This is a very long story book: <book>") : text.index(" </book>")]
    without = hay.replace(" " + nd.NEEDLE, "")
    assert "".join(" " + s for s in SENTENCES).startswith(without)
    reached = hay.index(" " + nd.NEEDLE)
    assert depth * len(without) - len(" " + SENTENCES[-1]) < reached <= depth * len(without)
    assert reached == 0 or hay[reached - 1] == "."


def test_what_does_not_fit_is_refused():
    for options, message in (
        ({"length": 900, "depth": 1.2}, "depth must lie"),
        ({"length": 150, "depth": 0.5}, "at least"),
        ({"length": 9000, "depth": 0.5}, "are needed"),
    ):
        with pytest.raises(ValueError, match=message):
            nd._needle_prompt(encode, SENTENCES, **options)
    chat = nd._needle_prompt(encode, SENTENCES, 900, 0.5, "<user>", "<assistant>")
    assert decode(chat.tokens).startswith("<user>This") and decode(chat.tokens).endswith("Francisco?<assistant>")
    frame = len("\nAnswer:") + len(nd._BEFORE) + len(nd._AFTER) + len(" " + nd.NEEDLE)
    assert len(nd._needle_prompt(encode, [], frame, 0.5).tokens) == frame


def test_a_share_of_the_needle_is_what_is_selected_of_it():
    prompt = nd.NeedlePrompt(torch.zeros(30), 10, 14, 5)
    places = torch.tensor([[[8, 9, 20]], [[10, 13, 20]], [[16, 17, 18]]])  # (layer, prompt, k)
    assert nd._selected_share(places, [prompt])[:, 0].tolist() == [0, 0.5, 0]


def test_answers_end_at_their_mark():
    config = SimpleNamespace(eos_token_id=0)
    lm = SimpleNamespace(model=SimpleNamespace(config=config), decode=lambda tokens: "".join(map(chr, tokens)))
    rows = [[ord(c) for c in "eat a sandwich"] + [0] + [ord(c) for c in " and sit in"]]
    assert nd._answer_scores(lm, torch.tensor(rows)) == [pytest.approx(3 / 12)]


def test_prompts_are_drawn_by_depth_each_from_its_own_place(reader):
    test = nd.NeedleTest(k=150, filter_layer=1, depths=[0.0, 1.0], n_new=3)
    prompts = test.draw(encode, SENTENCES * 9, 600, 3, torch.Generator().manual_seed(0))
    assert [one.start for one in prompts[:3]] == [prompts[0].start] * 3 and prompts[3].start > 300
    books = {decode(one.tokens) for one in prompts}
    assert len(books) == 6


def test_a_reading_is_what_each_method_gives_alone(reader, monkeypatch):
    methods = list(nd.METHODS)
    test = nd.NeedleTest(k=150, filter_layer=1, depths=[0.0, 0.5], n_new=6, methods=methods, layers=[0, 2])
    prompts = test.draw(encode, SENTENCES * 9, 500, 2, torch.Generator().manual_seed(0))
    seen = []
    monkeypatch.setattr(nd, "_answer_scores", lambda lm, tokens: seen.append(tokens) or tokens.tolist())
    found = test.read(reader, prompts)
    tokens, tail = torch.stack([one.tokens for one in prompts]), prompts[0].tail
    given = reader.model, tokens, 6
    expected = {str(r): ts.gem_filter(*given, 150, r, keep_last=tail) for r in (0, 1, 2)}
    expected |= {"nothing forced": ts.gem_filter(*given, 150, 1), "All KV": ts.all_kv(*given)}
    expected |= {f"{row} row": ts.gem_filter(*given, 150, 1, row=row, keep_last=tail) for row in ("middle", "largest")}
    expected |= {"SnapKV": ts.snap_kv(*given, 150), "H2O": ts.h2o(*given, 150)}
    expected["One-Run"] = ts.gem_filter(*given, 150, 1, one_run=True, keep_last=tail)
    assert found.scores == {name: expected[name].tokens.tolist() for name in found.scores} and len(found.scores) == 10
    assert all(torch.equal(found.places[r], expected[str(r)].kept) for r in (0, 1, 2))
    assert found.share.shape == (3, 4) and len({str(one) for one in found.scores.values()}) > 3
    few = nd.NeedleTest(k=150, filter_layer=1, depths=[0.0, 0.5], n_new=6).read(reader, prompts)
    assert few.scores == {"1": found.scores["1"]}
