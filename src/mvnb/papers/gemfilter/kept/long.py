"""Needles in long prompts of two haystacks: what each layer of a language model would select, and what eight methods answer."""

from __future__ import annotations

import json

import torch

from mvnb import files
from mvnb.data import load_sentiment
from mvnb.models.language import load_language_model
from mvnb.papers.gemfilter import data, training


def run(seed, device, scratch, *, language_model, k, layers, filter_layer, n_new, **setting) -> list[dict]:
    """Return, for each prompt, what each layer would select, and the answers.

    ``needle`` and ``question`` are the shares of them among the ``k`` tokens that each layer selects with none forced. The
    random selection contains the question. Finished prompts are saved in ``scratch``.
    """
    lm, saved = load_language_model(language_model, torch.float32, device), scratch / "finished.json"
    found, named = files.read_json(saved) or [], {f"layer {layer}": layer for layer in layers}
    for i, (case, prompt) in enumerate(data.needle_prompts(lm, load_sentiment("editorials").texts, seed, **setting)):
        if i < len(found):
            continue
        g = torch.Generator().manual_seed(10**6 * (seed + 1) + i)
        places, answers = training.answer_each_way(lm, [prompt], named, k, n_new, filter_layer, controls=g)
        shares = {name: [round(x, 2) for x in one.tolist()] for name, one in prompt.shares(places[0]).items()}
        found.append(case | shares | {"answers": {name: text for name, (text,) in answers.items()}})
        files.write(saved, json.dumps(found))
    return found


def beginning(seed, device, *, language_model, k, layers, filter_layer, n_new, **setting) -> list[float]:
    """Return the losses of the first 50 tokens of the first prompt; nothing is trained."""
    lm = load_language_model(language_model, torch.float32, device)
    _, prompt = next(data.needle_prompts(lm, load_sentiment("editorials").texts, seed, **setting))
    tokens = prompt.tokens[:51].to(lm.model.device)
    with torch.inference_mode():
        logits = lm.model(tokens[None, :-1]).logits[0].float()
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none").tolist()
