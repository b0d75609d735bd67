"""A needle at three depths of prose of three lengths: what each layer of a language model selects, and what it answers."""

from __future__ import annotations

import torch

from mvnb.data import load_sentiment
from mvnb.models.language import fast_dtype, load_language_model
from mvnb.papers.gemfilter.needle import NeedleTest


def run(seed, device, *, language_model, lengths, **setting) -> dict:
    """One prompt at each length and depth, each from another place of the prose.

    By length: ``share`` ``(layer, depth)`` of the needle among the tokens that a layer would select, and by method the
    ``scores`` ``(depth,)`` of the answers.
    """
    lm, test = load_language_model(language_model, fast_dtype(device), device), NeedleTest(**setting)
    sentences, generator = load_sentiment("editorials").texts, torch.Generator().manual_seed(seed)
    found = {}
    for length in lengths:
        reading = test.read(lm, test.draw(lm.encode, sentences, length, 1, generator))
        found[str(length)] = {"share": [[round(x, 3) for x in row] for row in reading.share.tolist()], "scores": reading.scores}
    return found


def beginning(seed, device, *, language_model, lengths, **setting) -> list[float]:
    """Nothing is trained here: losses of the first 50 tokens of the first prompt."""
    lm, test = load_language_model(language_model, fast_dtype(device), device), NeedleTest(**setting)
    prompts = test.draw(lm.encode, load_sentiment("editorials").texts, lengths[0], 1, torch.Generator().manual_seed(seed))
    tokens = prompts[0].tokens[:51].to(lm.model.device)
    with torch.inference_mode():
        logits = lm.model(tokens[None, :-1]).logits[0].float()
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none").tolist()
