"""Prompts with a needle: of the length asked for, with the needle whole and where it belongs; and the published score."""

import pytest

from mvnb.papers.gemfilter import needle as nd

SENTENCES = [f"Line {i} is about nothing at all." for i in range(60)]


def encode(text):
    """A token a character, so that places can be read."""
    return [ord(c) for c in text]


def decode(tokens):
    return "".join(chr(t) for t in tokens.tolist())


def test_the_exact_answer_scores_eleven_twelfths_and_nothing_scores_more():
    assert nd.needle_score(nd.EXPECTED) == nd.BEST_SCORE == pytest.approx(11 / 12)
    assert nd.needle_score(nd.NEEDLE) == nd.needle_score(f"{nd.EXPECTED} {nd.EXPECTED}") == nd.BEST_SCORE
    assert nd.needle_score("") == nd.needle_score("Nothing") == 0
    assert nd.needle_score("EAT a sandwich.") == pytest.approx(2 / 12)  # "sandwich." is another word
    assert nd.needle_score("eat a sandwich") == pytest.approx(3 / 12)


@pytest.mark.parametrize("depth", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("start", ["", "<|im_start|> "])
def test_the_needle_is_whole_and_after_the_sentence_before_its_depth(depth, start):
    prompt = nd.needle_prompt(encode, SENTENCES, 900, depth, start)
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
            nd.needle_prompt(encode, SENTENCES, **options)
    chat = nd.needle_prompt(encode, SENTENCES, 900, 0.5, "<user>", "<assistant>")
    assert decode(chat.tokens).startswith("<user>This") and decode(chat.tokens).endswith("Francisco?<assistant>")
    frame = len("\nAnswer:") + len(nd._BEFORE) + len(nd._AFTER) + len(" " + nd.NEEDLE)
    assert len(nd.needle_prompt(encode, [], frame, 0.5).tokens) == frame
