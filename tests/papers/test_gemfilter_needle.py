"""Prompts with a needle: of the length asked for, with the needle whole and where it belongs; and the scores of answers."""

import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import mvnb.data
from mvnb import kept_runs
from mvnb.models import language
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
    sizes |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None} | config
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, initializer_range=0.5, **sizes)).double().eval()
    tokenizer = Characters(begins)
    encode = partial(tokenizer.encode, add_special_tokens=False)
    return SimpleNamespace(model=model, tokenizer=tokenizer, encode=encode, decode=tokenizer.decode)


@pytest.fixture(scope="module")
def lm():
    return language_model()


def text_of(tokens):
    return "".join(chr(t) for t in tokens.tolist())


def test_the_exact_answer_has_the_published_score_eleven_twelfths_and_nothing_scores_more():
    sentence, question, _ = data.NEEDLES[0]
    assert measure.needle_score(data.ANSWER) == measure.best_score() == BEST_SCORE
    assert measure.needle_score(sentence) == measure.needle_score(f"{data.ANSWER} {data.ANSWER} {question}") == BEST_SCORE
    assert measure.needle_score("") == measure.needle_score("Nothing") == 0
    assert measure.needle_score("EAT a sandwich.") == pytest.approx(2 / 12)  # "sandwich." is another word
    assert measure.needle_score("eat a sandwich") == pytest.approx(3 / 12)


@pytest.mark.parametrize("needle", (*data.NEEDLES, *data.JUDGED))
def test_the_four_words_of_a_needle_are_in_its_answer_and_nowhere_else(needle):
    assert measure.words_found(needle.sentence, needle) == measure.words_found(needle.words.upper(), needle) == 1
    assert len(needle.words.split()) == 4 and (needle != data.NEEDLES[0] or data.ANSWER in needle.sentence)
    others = [f"{one.sentence} {one.question}" for one in (*data.NEEDLES, *data.JUDGED) if one != needle]
    suggested = measure.words_found(" ".join([needle.question, *others, *data.REPEATED]), needle)
    assert suggested == 0 or (needle in data.NEEDLES and suggested == 0.25)  # colours of the repeated sentences
    assert measure.words_found(" ".join([needle.question, *others]), needle) == 0
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


def test_shares_are_those_of_the_needle_and_of_what_follows_the_book():
    prompt = data.NeedlePrompt(torch.arange(30), 10, 14, 5)
    places = torch.tensor([[8, 9, 20], [10, 13, 24], [14, 25, 29]])
    assert {name: one.tolist() for name, one in prompt.shares(places).items()} == {
        "needle": [0, 0.5, 0],
        "question": pytest.approx([0, 0, 0.4]),
    }


def test_answers_end_at_any_end_mark_and_have_no_special_tokens():
    """Llama 3.1 has a list of them in its configuration; chat models end a turn with a token of their own."""
    lm = language_model(eos_token_id=[EOS, 5])
    lm.model.generation_config = GenerationConfig(eos_token_id=[EOS, TURN])
    assert training.end_tokens(lm) == [EOS, TURN, 5]
    sentence = [ord(c) for c in data.ANSWER]
    for mark in (EOS, TURN, 5):
        tokens = torch.tensor([BOS, *sentence, mark, *sentence[:4], mark])
        assert training.answer_text(lm, tokens) == data.ANSWER
        assert measure.needle_score(training.answer_text(lm, tokens)) == BEST_SCORE
    assert training.answer_text(lm, torch.tensor(sentence)) == data.ANSWER  # it did not end


@pytest.fixture
def tokens_as_text(monkeypatch):
    monkeypatch.setattr(training, "answer_text", lambda lm, row: row.tolist())


def test_answers_are_those_that_each_method_gives_alone(lm, tokens_as_text):
    prompts = [data.needle_prompt(lm, SENTENCES[i:] * 9, 500, depth) for i, depth in enumerate((0.0, 0.5))]
    layers = {"first": 0, "GemFilter": 1, "last": 2}
    places, found = training.answer_each_way(lm, prompts, layers, 150, 6)
    tokens, one = torch.stack([prompt.tokens for prompt in prompts]), lm.model
    prompt = ts.read(one, tokens, 32, sums=True)
    expected = {name: ts.gem_filter(one, tokens, 6, 150, layer, [EOS]) for name, layer in layers.items()}
    expected |= {"whole cache": ts.all_kv(one, prompt, 6, [EOS]), "SnapKV": ts.snap_kv(one, prompt, 6, 150, ends=[EOS])}
    assert found == {name: answer.tokens.tolist() for name, answer in expected.items()}
    for layer in range(3):
        assert torch.equal(places[:, layer], ts.gem_filter(one, tokens, 1, 150, layer).kept)
    assert torch.equal(places, training.places_by_layer(lm, prompts, 150))
    controls = torch.Generator().manual_seed(5)
    again, found = training.answer_each_way(lm, prompts, layers, 150, 6, controls, h2o=True)
    assert training.answer_each_way(lm, prompts, layers, 150, 6, controls)[1].keys() == found.keys() - {"H2O"}
    chance = ts.select_tokens(torch.rand(2, 500, generator=controls.manual_seed(5)), 150, 1, keep_last=prompts[0].tail)
    expected |= {f"{row} row": ts.gem_filter(one, tokens, 6, 150, 1, [EOS], row=row) for row in ("middle", "largest")}
    expected["random"] = ts.all_kv(one, ts.read_again(one, tokens, chance), 6, [EOS])
    expected["old places"] = ts.all_kv(one, ts.read_again(one, tokens, places[:, 1], old_places=True), 6, [EOS])
    expected["H2O"] = ts.h2o(one, prompt, 6, 150, ends=[EOS])
    expected["One-Run"] = ts.one_run(one, prompt, 6, places[:, 1], [EOS])
    expected = {name: answer.tokens.tolist() for name, answer in expected.items()}
    assert torch.equal(again, places) and found == expected
    apart = [*expected.values(), ts.one_run(one, prompt, 6, places[:, 0], [EOS]).tokens.tolist()]
    apart.append(ts.all_kv(one, ts.read_again(one, tokens, places[:, 0], old_places=True), 6, [EOS]).tokens.tolist())
    assert len({str(answer) for answer in apart}) == len(apart)  # no method or layer can stand for another


def test_layers_and_lengths_that_the_model_does_not_have_are_refused(lm):
    prompts = [data.needle_prompt(lm, SENTENCES, 500, 0.5)]
    for layers, got in (({"GemFilter": 3}, 3), ({"GemFilter": 1, "early": -1}, -1)):
        with pytest.raises(ValueError, match=f"filter_layer must be an integer, from 0 to 2, got {got}"):
            training.answer_each_way(lm, prompts, layers, 150, 6)
    with pytest.raises(ValueError, match="the length of prompt and answer must be an integer, from 1 to 2048, got 2049"):
        training.answer_each_way(lm, prompts, {"GemFilter": 1}, 150, 1549)


CASES = [["repeated", 700, [0.0, 0.25, 0.5, 0.75, 1.0]], ["prose", 800, [0.0, 0.5, 1.0]], ["repeated", 800, [0.5]]]
PROSE = [f"Word{i:05d} is here." for i in range(1000)]


def test_prompts_of_the_kept_run_have_needles_and_prose_of_their_own(lm):
    books, drawn, met = [], set(), []
    for seed in (0, 1, 5):
        found = list(data.needle_prompts(lm, PROSE, seed, cases=CASES, parts=5, frame=(), calibrate=False))
        cases = [(case["haystack"], case["length"], case["depth"]) for case, _ in found]
        assert cases == [(haystack, length, depth) for haystack, length, depths in CASES for depth in depths]
        assert all(len(prompt.tokens) == case["length"] for case, prompt in found)
        order = tuple(case["index"] for case, _ in found)
        own = 2 * (seed % 5)
        assert {*order} <= {own, own + 1}
        assert all(abs(sum(i == own for i in some) - len(some) / 2) <= 0.5 for some in (order[:5], order[5:8]))
        drawn.add(tuple(i - own for i in order))
        texts = [text_of(prompt.tokens) for _, prompt in found]
        for (case, prompt), text in zip(found, texts):
            assert text[prompt.start : prompt.stop] == " " + data.JUDGED[case["index"]].sentence
            assert (data.REPEATED[0] in text) == (case["haystack"] == "repeated")
        assert len({tuple(sorted(data.REPEATED, key=text.index)) for text in texts[:5]}) > 2  # in many orders
        starts = [prompt.start for _, prompt in found]
        assert starts[:5] == sorted(starts[:5]) and starts[0] < starts[1] and starts[5] < starts[6] < starts[7]
        words = [set(re.findall(r"Word\d{5}", text)) for text in texts[5:8]]
        books.append(set.union(*words))
        met.append({*order})
        assert len({tuple(sorted(one)) for one in words}) == 3
    assert not books[0] & books[1] and not met[0] & met[1] and len(drawn) == 3
    assert met[0] == met[2] and max(books[0]) < "Word00200" > max(books[2]) and min(books[1]) >= "Word00200"


def test_a_layer_is_chosen_on_needles_that_are_not_judged(lm):
    """And ten runs with two needles each is all there is."""
    how = {"cases": [["repeated", 700, [0.5, 0.5]]], "frame": ()}
    found = list(data.needle_prompts(lm, PROSE, 3, parts=10, calibrate=True, **how))
    assert [case["index"] for case, _ in found] == 2 * [0, 1, 2, 3, 4]
    for case, prompt in found:
        assert text_of(prompt.tokens)[prompt.start : prompt.stop] == " " + data.NEEDLES[case["index"]].sentence
    assert not {*data.NEEDLES} & {*data.JUDGED} and len({*data.JUDGED}) == 20
    with pytest.raises(ValueError, match="parts must be at most 10, two needles for each, got 11"):
        next(data.needle_prompts(lm, PROSE, 3, parts=11, calibrate=False, **how))


def test_the_filter_layer_of_the_kept_run_is_the_one_that_the_rule_chooses():
    declared = kept_runs.declared("gemfilter")
    chosen = measure.kept_values(kept_runs.load("gemfilter", "long-tuning"))
    share = chosen.share[0, chosen.at("repeated", depths=[0.5])].mean(0)
    layers = declared["long"].parameters["layers"]
    assert len(chosen.at("repeated")) == 10 and layers["GemFilter"] == measure.first_hit(share)
    assert layers["half as deep"] == layers["GemFilter"] // 2 and layers["last layer"] == len(share) - 1
    tuned, judged = (declared[name].parameters for name in ("long-tuning", "long"))
    assert tuned["calibrate"] and not judged["calibrate"] and tuned["k"] == judged["k"]
    assert tuned["seed"] not in range(judged["seed"], judged["seed"] + judged["seeds"]) and judged["seeds"] < judged["parts"]


SMALL = {"cases": [["repeated", 400, [0.5, 1.0]], ["prose", 400, [0.0]]], "frame": [], "parts": 2, "calibrate": False}
LAYERS = {"GemFilter": 15, "layer 24": 24, "last layer": 29}


def test_the_script_of_the_kept_run_returns_what_the_claims_are_measured_on(tmp_path, monkeypatch):
    """A model of 30 layers that reads characters; and a run that was interrupted goes on where it stopped."""
    lm, asked = language_model(num_hidden_layers=30), set()
    monkeypatch.setattr(language, "load_language_model", lambda name, dtype, device: asked.add((name, dtype)) or lm)
    monkeypatch.setattr(mvnb.data, "load_sentiment", lambda name: asked.add(name) or SimpleNamespace(texts=PROSE))
    parameters = SMALL | {"language_model": "tiny", "k": 200, "layers": LAYERS, "n_new": 4}
    one = replace(kept_runs.declared("gemfilter")["long"], parameters=parameters)
    runs = [one.call("run", seed, torch.device("cpu"), tmp_path / str(seed)) for seed in (0, 1)]
    for seed, found in enumerate(runs):
        for i, (case, prompt) in enumerate(data.needle_prompts(lm, PROSE, seed, **SMALL)):
            controls, h2o = torch.Generator().manual_seed(10**6 * (seed + 1) + i), case["depth"] == 0.5
            places, answers = training.answer_each_way(lm, [prompt], LAYERS, 200, 4, controls, h2o)
            assert case.items() <= found[i].items() and ("H2O" in answers) == h2o
            assert found[i]["answers"] == {name: text for name, (text,) in answers.items()}
            for name, share in prompt.shares(places).items():
                assert found[i][name] == pytest.approx(share[0].tolist(), abs=0.00051)
        assert len(found) == 3
    kept = measure.kept_values({"parameters": parameters, "runs": [{"values": found} for found in runs]})
    assert kept.share.shape == kept.question.shape == (2, 3, 30) and kept.question[..., 15].min() >= 0
    assert kept.cases == [("repeated", 400, 0.5), ("repeated", 400, 1.0), ("prose", 400, 0.0)]
    assert {name: values.shape for name, values in kept.words.items()} == dict.fromkeys(runs[0][0]["answers"], (2, 3))
    saved = tmp_path / "0" / "finished.json"
    saved.write_text(json.dumps(runs[0][:2]))
    assert one.call("run", 0, torch.device("cpu"), tmp_path / "0") == runs[0] == json.loads(saved.read_text())
    chosen = replace(one, parameters=parameters | {"layers": {}, "calibrate": True})
    found = chosen.call("run", 1, torch.device("cpu"), tmp_path / "chosen")
    assert len(found) == 15 and all(case["answers"] == {} for case in found)
    prompts = [prompt for _, prompt in data.needle_prompts(lm, PROSE, 1, **SMALL | {"calibrate": True})]
    shares = prompts[3].shares(training.places_by_layer(lm, prompts[3:4], 200))
    assert found[3]["needle"] == pytest.approx(shares["needle"][0].tolist(), abs=0.00051)
    losses = one.call("beginning", 0, torch.device("cpu"))
    assert len(losses) == 50 and all(loss > 0 for loss in losses)
    assert asked == {("tiny", torch.float32), "editorials"}
