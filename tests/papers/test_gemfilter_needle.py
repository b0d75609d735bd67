"""Prompts with a needle: of the length asked for, with the needle whole and where it belongs; and the scores of answers."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from mvnb import kept_runs
from mvnb.papers.gemfilter import data, measure, training
from mvnb.papers.gemfilter import token_selection as ts

SENTENCES = [f"Line {i} is about nothing at all." for i in range(60)]
BEST_SCORE = 11 / 12
BOS, EOS, TURN = 1, 2, 3  # marks of the beginning, of the end and of the end of a turn


class Characters:
    """A tokenizer with a token per character, so that places can be read."""

    eos_token_id = EOS

    def __init__(self, begins=False):
        self.begins = begins

    def encode(self, text, add_special_tokens=True):
        return [BOS] * (self.begins and add_special_tokens) + [ord(c) for c in text]

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(t) for t in tokens if not (skip_special_tokens and t < 9))


def language_model(begins=False, **config):
    """A network of three layers with random weights, which reads characters."""
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 2, "num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 16}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None} | config
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, initializer_range=0.5, **sizes, **ends)).double().eval()
    tokenizer = Characters(begins)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    return SimpleNamespace(model=model, tokenizer=tokenizer, encode=encode, decode=tokenizer.decode)


@pytest.fixture(scope="module")
def lm():
    return language_model()


def text_of(tokens):
    return "".join(chr(t) for t in tokens.tolist())


def test_the_exact_answer_has_the_published_score_eleven_twelfths_and_nothing_scores_more():
    sentence, question, answer, _ = data.NEEDLES[0]
    assert measure.needle_score(answer) == BEST_SCORE
    assert measure.needle_score(sentence) == measure.needle_score(f"{answer} {answer} {question}") == BEST_SCORE
    assert measure.needle_score("") == measure.needle_score("Nothing") == 0
    assert measure.needle_score("EAT a sandwich.") == pytest.approx(2 / 12)  # "sandwich." is another word
    assert measure.needle_score("eat a sandwich") == pytest.approx(3 / 12)


@pytest.mark.parametrize("needle", data.NEEDLES)
def test_the_four_words_of_a_needle_are_in_its_answer_and_nowhere_else(needle):
    assert measure.words_found(needle.sentence, needle) == measure.words_found(needle.answer.upper(), needle) == 1
    assert needle.answer.rstrip(".") in needle.sentence and len(needle.words.split()) == 4
    beside = " ".join([needle.question, *data.REPEATED, *(one.sentence for one in data.NEEDLES if one != needle)])
    assert measure.words_found(needle.question, needle) == 0 and measure.words_found(beside, needle) <= 0.25
    first, *_ = needle.words.split()
    assert measure.words_found(f"A ({first.title()})!", needle) == 0.25


@pytest.mark.parametrize("depth", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("frame", [(), ("<|im_start|> ", "\nAnswer:")])
def test_the_needle_is_whole_and_after_the_sentence_before_its_depth(lm, depth, frame):
    needle = data.NEEDLES[2]
    prompt = data.needle_prompt(lm, SENTENCES, 900, depth, needle, frame)
    text, start = text_of(prompt.tokens), frame[0] if frame else ""
    assert len(text) == 900 and text.startswith(start + "This is") and text.endswith(f"{needle.question}\nAnswer:")
    assert text[prompt.start : prompt.stop] == " " + needle.sentence
    assert text[-prompt.tail :].startswith(" </book>.")
    hay = text[len(start) + len("This is a very long story book: <book>") : text.index(" </book>")]
    without = hay.replace(" " + needle.sentence, "")
    assert "".join(" " + s for s in SENTENCES).startswith(without)
    reached = hay.index(" " + needle.sentence)
    assert depth * len(without) - len(" " + SENTENCES[-1]) < reached <= depth * len(without)
    assert reached == 0 or hay[reached - 1] == "."


def test_a_tokenizers_mark_of_the_beginning_comes_first():
    plain, marked = (data.needle_prompt(language_model(begins), SENTENCES, 900, 0.5) for begins in (False, True))
    assert marked.tokens[0] == BOS and not (marked.tokens[1:] == BOS).any() and len(marked.tokens) == 900
    assert torch.equal(marked.tokens[1:300], plain.tokens[:299])
    assert text_of(marked.tokens[marked.start : marked.stop]) == " " + data.NEEDLES[0].sentence


def test_what_does_not_fit_is_refused(lm):
    for options, message in (
        ({"length": 900, "depth": 1.2}, "depth must lie"),
        ({"length": 150, "depth": 0.5}, "at least"),
        ({"length": 9000, "depth": 0.5}, "expected sentences with"),
    ):
        with pytest.raises(ValueError, match=message):
            data.needle_prompt(lm, SENTENCES, **options)


def test_a_share_is_what_is_selected():
    places = torch.tensor([[8, 9, 20], [10, 13, 20], [16, 17, 18]])
    assert measure.share_in(places, 10, 14).tolist() == [0, 0.5, 0]


def test_answers_end_at_any_end_mark_and_have_no_special_tokens():
    """Llama 3.1 has a list of them in its configuration; chat models end a turn with a token of their own."""
    lm = language_model(eos_token_id=[EOS, 5])
    lm.model.generation_config = GenerationConfig(eos_token_id=[EOS, TURN])
    assert training.end_tokens(lm) == [EOS, TURN, 5]
    sentence = [ord(c) for c in data.NEEDLES[0].answer]
    for mark in (EOS, TURN, 5):
        tokens = torch.tensor([BOS, *sentence, mark, *sentence[:4], mark])
        assert training.answer_text(lm, tokens) == data.NEEDLES[0].answer
        assert measure.needle_score(training.answer_text(lm, tokens)) == BEST_SCORE
    assert training.answer_text(lm, torch.tensor(sentence)) == data.NEEDLES[0].answer  # it did not end


def test_a_look_is_what_each_method_gives_alone(lm, monkeypatch):
    prompts = [data.needle_prompt(lm, SENTENCES[i:] * 9, 500, depth) for i, depth in enumerate((0.0, 0.5))]
    monkeypatch.setattr(measure, "answer_text", lambda lm, row: row.tolist())
    found = measure.look(lm, prompts, 150, 1, 6)
    tokens = torch.stack([one.tokens for one in prompts])
    gem = ts.gem_filter(lm.model, tokens, 6, 150, 1, ends=[EOS])
    prompt = ts.read(lm.model, tokens, 32)
    expected = {"GemFilter": gem, "whole cache": ts.all_kv(lm.model, prompt, 6, [EOS])}
    expected["SnapKV"] = ts.snap_kv(lm.model, prompt, 6, 150, ends=[EOS])
    assert found.answers == {name: answer.tokens.tolist() for name, answer in expected.items()}
    assert torch.equal(found.places[1], gem.kept) and found.share.shape == (3, 2)
    assert len({str(one) for one in found.answers.values()}) > 1
    with pytest.raises(ValueError, match="layer must be an integer, from 0 to 2, got 3"):
        measure.look(lm, prompts, 150, 3, 6)
    with pytest.raises(ValueError, match="at most 2048 tokens, got 500 and 1549"):
        measure.look(lm, prompts, 150, 1, 1549)


@pytest.fixture(scope="module")
def script():
    """The functions of the kept run, with numbered sentences as prose."""
    space = {"__name__": "long"}
    exec(kept_runs.declared("gemfilter")["long"].code, space)
    space["load_sentiment"] = lambda name: SimpleNamespace(texts=[f"Word{i:05d} is here." for i in range(1000)])
    return space


SETTING = {"haystacks": ["repeated", "prose"], "lengths": [700, 800], "depths": [0.0, 0.25, 0.5, 0.75, 1.0], "frame": ()}


def test_prompts_of_the_kept_run_have_every_needle_once_per_length_and_prose_of_their_own(lm, script):
    books = []
    for seed in (0, 1):
        found = list(script["prompts"](lm, seed, prose_parts=2, **SETTING))
        assert len(found) == 20 and {len(prompt.tokens) for *_, prompt in found} == {700, 800}
        orders = [tuple(index for _, _, _, index, _ in found[at : at + 5]) for at in range(0, 20, 5)]
        assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders) and orders[:2] == orders[2:]
        texts = [text_of(prompt.tokens) for *_, prompt in found]
        assert all(data.REPEATED[0] in text for text in texts[:10]) and not any("grass" in text for text in texts[10:])
        assert all(data.NEEDLES[index].sentence in text for (_, _, _, index, _), text in zip(found, texts))
        words = [set(re.findall(r"Word\d{5}", text)) for text in texts[10:]]
        books.append(set.union(*words))
        assert len({tuple(sorted(one)) for one in words}) > 5
    assert not books[0] & books[1]


def test_answers_of_the_kept_run_are_those_of_the_methods(lm, script):
    *_, prompt = next(script["prompts"](lm, 0, prose_parts=2, **SETTING))
    tokens = prompt.tokens[None]
    read, rows = script["read_prompt"](lm, prompt, 1)
    places = ts.select_tokens(read.rows, 200)
    said = script["answers"](lm, prompt, read, rows, places, torch.Generator(), k=200, layers=[0, 2], filter_layer=1, n_new=6)
    fresh = {f"layer {r}": ts.gem_filter(lm.model, tokens, 6, 200, r, [EOS]) for r in (0, 2)}
    fresh |= {f"{row} row": ts.gem_filter(lm.model, tokens, 6, 200, 1, [EOS], row=row) for row in ("middle", "largest")}
    again = ts.read(lm.model, tokens, 32, sums=True)
    fresh |= {"whole cache": ts.all_kv(lm.model, again, 6, [EOS]), "H2O": ts.h2o(lm.model, again, 6, 200, ends=[EOS])}
    fresh |= {"SnapKV": ts.snap_kv(lm.model, again, 6, 200, ends=[EOS])}
    fresh |= {"One-Run": ts.one_run(lm.model, again, 6, places[1], [EOS])}
    assert said.keys() - fresh.keys() == {"random"}
    assert {name: said[name] for name in fresh} == {
        name: training.answer_text(lm, one.tokens[0]) for name, one in fresh.items()
    }
