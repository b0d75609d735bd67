"""Needles in long prompts of two haystacks: what each layer of a language model would select, and what eight methods answer."""

from __future__ import annotations

import json

import torch

from mvnb import files
from mvnb.data import load_sentiment
from mvnb.models.language import load_language_model
from mvnb.papers.gemfilter import data, measure, training
from mvnb.papers.gemfilter import token_selection as ts


def prompts(lm, seed, *, haystacks, lengths, depths, frame, prose_parts):
    """Yield haystack, length, depth, index of the needle and prompt, from prose that no other seed of ``prose_parts`` uses.

    At each length, the needles are assigned to the depths at random, alike in all haystacks.
    """
    g = torch.Generator().manual_seed(seed)
    prose = load_sentiment("editorials").texts
    size = len(prose) // prose_parts
    prose = prose[seed % prose_parts * size :][:size]
    orders = {length: torch.randperm(len(data.NEEDLES), generator=g).tolist() for length in lengths}
    for haystack in haystacks:
        for length in lengths:
            for depth, index in zip(depths, orders[length]):
                start = int(torch.randint(size - length // 12, (), generator=g))
                order = torch.randperm(len(data.REPEATED), generator=g).tolist()
                repeated = [data.REPEATED[i] for i in order] * (length // len(order))
                sentences = {"repeated": repeated, "prose": prose[start:]}[haystack]
                yield (
                    haystack,
                    length,
                    depth,
                    index,
                    data.needle_prompt(lm, sentences, length, depth, data.NEEDLES[index], frame),
                )


def read_prompt(lm, prompt, filter_layer):
    """Return the prompt read by all layers, and the scores of the middle and the largest row of the filter layer."""
    rows = {}

    def look(layer, queries, keys, scaling):
        if layer == filter_layer:
            rows.update({f"{row} row": ts.row_scores(queries, keys, row) for row in ("middle", "largest")})

    return ts.read(lm.model, prompt.tokens[None].to(lm.model.device), window=32, sums=True, look=look), rows


def answers(lm, prompt, read, rows, places, g, *, k, layers, filter_layer, n_new):
    """Return the text of each method's answer; a filter layer of GemFilter is named by its number."""
    model, ends = lm.model, training.end_tokens(lm)
    selected = {f"layer {layer}": places[layer] for layer in layers}
    selected |= {name: ts.select_tokens(scores, k) for name, scores in rows.items()}
    chance = torch.rand(1, len(prompt.tokens), generator=g).to(read.tokens.device)
    selected["random"] = ts.select_tokens(chance, k, 1, keep_last=prompt.tail)
    again = ts.read_again(model, read.tokens.expand(len(selected), -1), torch.cat([*selected.values()]))
    said = dict(zip(selected, ts.all_kv(model, again, n_new, ends).tokens))
    said["whole cache"] = ts.all_kv(model, read, n_new, ends).tokens[0]
    said["SnapKV"] = ts.snap_kv(model, read, n_new, k, ends=ends).tokens[0]
    said["H2O"] = ts.h2o(model, read, n_new, k, ends=ends).tokens[0]
    said["One-Run"] = ts.one_run(model, read, n_new, places[filter_layer], ends).tokens[0]
    return {name: training.answer_text(lm, tokens) for name, tokens in said.items()}


def run(seed, device, scratch, *, language_model, k, layers, filter_layer, n_new, **setting) -> list[dict]:
    """Return, for each prompt, what each layer would select, and the answers.

    ``needle`` and ``question`` are the shares of them among the ``k`` tokens that each layer selects with none forced. The
    random selection contains the question. Finished prompts are saved in ``scratch``.
    """
    lm, saved = load_language_model(language_model, torch.float32, device), scratch / "finished.json"
    found = files.read_json(saved) or []
    for i, (haystack, length, depth, index, prompt) in enumerate(prompts(lm, seed, **setting)):
        if i < len(found):
            continue
        g = torch.Generator().manual_seed(10**6 * (seed + 1) + i)
        read, rows = read_prompt(lm, prompt, filter_layer)
        places = ts.select_tokens(read.rows, k)  # (layer, 1, k)
        shares = [
            measure.share_in(places[:, 0], *ends) for ends in ((prompt.start, prompt.stop), (length - prompt.tail, length))
        ]
        found.append({"haystack": haystack, "length": length, "depth": depth, "index": index})
        found[-1] |= {name: [round(x, 2) for x in one.tolist()] for name, one in zip(("needle", "question"), shares)}
        options = {"k": k, "layers": layers, "filter_layer": filter_layer, "n_new": n_new}
        found[-1]["answers"] = answers(lm, prompt, read, rows, places, g, **options)
        files.write(saved, json.dumps(found))
    return found


def beginning(seed, device, *, language_model, k, layers, filter_layer, n_new, **setting) -> list[float]:
    """Return the losses of the first 50 tokens of the first prompt; nothing is trained."""
    lm = load_language_model(language_model, torch.float32, device)
    *_, prompt = next(prompts(lm, seed, **setting))
    tokens = prompt.tokens[:51].to(lm.model.device)
    with torch.inference_mode():
        logits = lm.model(tokens[None, :-1]).logits[0].float()
    return torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none").tolist()
