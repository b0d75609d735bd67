"""Needles in long prompts of two haystacks: what each layer of a language model would select, and what each method answers."""

from __future__ import annotations

import json

import torch

from mvnb import files
from mvnb.data import load_sentiment
from mvnb.models.language import load_language_model
from mvnb.papers.gemfilter import data, training


def run(seed, device, scratch, *, language_model, k, layers, n_new, **setting) -> list[dict]:
    """Return, for each prompt, what each layer would select, and the answers if there are filter ``layers``.

    ``needle`` and ``question`` are the shares of them among the ``k`` tokens that each layer selects with none forced. H2O
    answers where the needle is in the middle. Finished prompts are saved in ``scratch``.
    """
    lm, saved = load_language_model(language_model, torch.float32, device), scratch / "finished.json"
    found, prose = files.read_json(saved) or [], load_sentiment("editorials").texts
    for i, (case, prompt) in enumerate(data.needle_prompts(lm, prose, seed, **setting)):
        if i < len(found):
            continue
        answers, g = {}, torch.Generator().manual_seed(10**6 * (seed + 1) + i)
        if layers:
            places, answers = training.answer_each_way(lm, [prompt], layers, k, n_new, g, h2o=case["depth"] == 0.5)
        else:
            places = training.places_by_layer(lm, [prompt], k)
        shares = {name: [round(x, 3) for x in one[0].tolist()] for name, one in prompt.shares(places).items()}
        found.append(case | shares | {"answers": {name: text for name, (text,) in answers.items()}})
        files.write(saved, json.dumps(found))
    return found


def beginning(seed, device, *, language_model, k, layers, n_new, **setting) -> list[float]:
    """Return the losses of the first 50 tokens of the first prompt; nothing is trained."""
    lm = load_language_model(language_model, torch.float32, device)
    _, prompt = next(data.needle_prompts(lm, load_sentiment("editorials").texts, seed, **setting))
    tokens = prompt.tokens[:51].to(lm.model.device)
    with torch.inference_mode():
        logits = lm.model(tokens[None, :-1]).logits[0].float()
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none").tolist()
