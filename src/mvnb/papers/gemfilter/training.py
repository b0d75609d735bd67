"""What is run: a small Llama that is trained to look up values behind keys, and what is answered from selected tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mvnb import training
from mvnb.models.language import LanguageModel
from mvnb.papers.gemfilter import token_selection as ts
from mvnb.papers.gemfilter.data import NeedlePrompt, training_batch
from mvnb.papers.gemfilter.model import small_llama

SELECTIONS = {"GemFilter": {"softmax": False, "keep_last": 0}, "softmax variant": {"softmax": True, "keep_last": 2}}
"""Algorithm 2 with the averages of its code, and our variant, which sums softmax weights over heads and keeps the question.

Both are options of :func:`~mvnb.papers.gemfilter.token_selection.gem_filter`.
"""
ABLATIONS = {f"{name}, {row} row": {"row": row} for name in SELECTIONS for row in ("middle", "largest")}
ABLATIONS |= {"softmax variant, no pooling": {"pool": 1}, "softmax variant, question not kept": {"keep_last": 0}}
ABLATIONS["softmax variant, no softmax"] = {"softmax": False}
"""What is changed in the selection that a name begins with."""


def retrieval_loss(model: Any, tokens: Tensor) -> Tensor:
    """Return the cross-entropy of the values of the four answered questions at the end."""
    length = tokens.shape[1]
    asked = torch.arange(length - 16, length).view(4, 4)[:, 2:].flatten()
    logits = model(tokens[:, :-1]).logits[:, asked - 1]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, asked].flatten())


def untrained(seed: int, n: int, device) -> list[Any]:
    """Return ``n`` models as they are built, that of ``seed`` first."""
    return [small_llama(training.generators(seed + r, 1)[0]).to(device) for r in range(n)]


def train(models: list[Any], sources, *, steps: int, batch: int, step_size: float, length: int):
    """Train the models, each on batches from its generator of ``sources``; return them and the run.

    For two thirds of the steps the haystack has 16 tokens, all of them needles, then up to ``length``.
    """

    def schedule(step):
        return step_size * min(1.0, (step + 1) / 25, max(0.02, (steps - step) / (0.3 * steps)))

    def batches(step):
        late = [16, length // 2, 3 * length // 4, length]
        n = 16 if step < 0.65 * steps else late[step % 4] // 4 * 4
        rows = [training_batch(n, batch if n <= 32 else batch // 2, g) for g in sources]
        return (torch.stack(rows).to(models[0].device),)

    run = training.fit(
        training.ModuleObjective(models[0], retrieval_loss),
        training.stack(models),
        batches,
        steps=steps,
        optimizer=training.AdamW(schedule, betas=(0.9, 0.98), weight_decay=0.01),
        log_at=training.log_steps(steps, 9),
    )
    for r, model in enumerate(models):
        model.load_state_dict({k: v[r] for k, v in run.params.items()}, strict=False)
    return models, run


def n_kept(tokens: Tensor) -> int:
    """Return the number of tokens that are kept of the prompts of a small model: an eighth of the haystack, 16 or more."""
    return max(16, (tokens.shape[1] - 2) // 8)


def replies(model: Any, tokens: Tensor, ablate: bool = False) -> dict[str, ts.Answer]:
    """Return the two tokens that each method gives, and what it kept, :func:`n_kept` tokens.

    Each of :data:`SELECTIONS` is also made by layer 0, read again at the old places, and used for One-Run; with ``ablate`` they
    are changed as in :data:`ABLATIONS`.
    """
    k, found = n_kept(tokens), {}

    def again(**options):
        return ts.read(model, tokens, **options)  # the model remembers its last key, so it reads before each answer

    for name, options in SELECTIONS.items():
        found[name] = ts.gem_filter(model, tokens, 2, k, 1, **options)
        kept = found[name].kept
        found[f"{name}, layer 0"] = ts.gem_filter(model, tokens, 2, k, 0, **options)
        found[f"{name}, old places"] = ts.all_kv(model, ts.read_again(model, tokens, kept, old_places=True), 2)
        found[f"{name}, One-Run"] = ts.one_run(model, again(), 2, kept)
    for name, change in ABLATIONS.items() if ablate else ():
        found[name] = ts.gem_filter(model, tokens, 2, k, 1, **SELECTIONS[name.split(", ")[0]] | change)
    found["whole cache"] = ts.all_kv(model, again(), 2)
    found["SnapKV"] = ts.snap_kv(model, again(window=4), 2, k, 4)
    found["H2O"] = ts.h2o(model, again(sums=True), 2, k, 4)
    return found


def end_tokens(lm: LanguageModel) -> list[int]:
    """Return the tokens that end an answer: those of the generation configuration, of the model and of the tokenizer."""
    named = [lm.model.generation_config.eos_token_id, lm.model.config.eos_token_id, lm.tokenizer.eos_token_id]
    return sorted({token for one in named for token in (one if isinstance(one, list) else [one]) if token is not None})


def answer_text(lm: LanguageModel, tokens: Tensor) -> str:
    """Return the text of an answer ``(n_new,)`` up to its first end token, without special tokens."""
    row, ends = tokens.tolist(), set(end_tokens(lm))
    stop = next((i for i, token in enumerate(row) if token in ends), len(row))
    return lm.tokenizer.decode(row[:stop], skip_special_tokens=True).strip()


def places_by_layer(lm: LanguageModel, prompts: Sequence[NeedlePrompt], k: int) -> Tensor:
    """Return the places ``(prompt, layer, k)`` that GemFilter selects from prompts of one length with each filter layer."""
    tokens = torch.stack([one.tokens for one in prompts]).to(lm.model.device)
    scores = ts.filter_scores(lm.model, tokens, range(lm.model.config.get_text_config().num_hidden_layers))
    return ts.select_tokens(scores, k).transpose(0, 1).cpu()


def answer_each_way(
    lm: LanguageModel, prompts: Sequence[NeedlePrompt], layers: Mapping[str, int], k: int, n_new: int,
    controls: torch.Generator | None = None, h2o: bool = False,
) -> tuple[Tensor, dict[str, list[str]]]:  # fmt: skip
    """Return the places ``(prompt, layer, k)`` that each layer selects from prompts of one length, and answers by method.

    GemFilter answers with each of the filter ``layers``, by the names that they are given; then whole cache and SnapKV. With
    ``controls``, so do the layer named ``"GemFilter"`` with other rows, with its tokens read again at their old places, and in
    One-Run; and a random selection, drawn from ``controls``, that contains the question. ``h2o`` adds H2O. No method keeps the
    question by force, save the random selection. Raises ``ValueError`` if prompt and answer are longer than the model's
    positions.
    """
    model, ends, rows = lm.model, end_tokens(lm), {}
    config, at = model.config.get_text_config(), layers["GemFilter"]
    for layer in layers.values():
        ts.check_size("filter_layer", layer, 0, config.num_hidden_layers - 1)
    ts.check_size("the length of prompt and answer", len(prompts[0].tokens) + n_new, 1, config.max_position_embeddings)

    def look(layer, queries, keys, scaling):
        if controls and layer == at:
            rows.update({f"{row} row": ts.row_scores(queries, keys, row) for row in ("middle", "largest")})

    tokens = torch.stack([one.tokens for one in prompts]).to(model.device)
    read = ts.read(model, tokens, window=32, sums=h2o, look=look)
    places = ts.select_tokens(read.rows, k)  # (layer, prompt, k)
    selected = {name: places[layer] for name, layer in layers.items()}
    stand = {name: torch.arange(kept.shape[1], device=kept.device).expand_as(kept) for name, kept in selected.items()}
    if controls:
        selected |= {name: ts.select_tokens(scores, k) for name, scores in rows.items()}
        chance = torch.rand(tokens.shape, generator=controls).to(tokens.device)
        selected["random"] = ts.select_tokens(chance, k, 1, keep_last=max(one.tail for one in prompts))
        selected["old places"] = stand["old places"] = places[at]
    stand = torch.cat([stand.get(name, stand["GemFilter"]) for name in selected])
    kept = tokens.repeat(len(selected), 1).gather(1, torch.cat([*selected.values()]))
    again = ts.read(model, kept, places=stand)
    said = dict(zip(selected, ts.all_kv(model, again, n_new, ends).tokens.split(len(prompts))))
    said["whole cache"] = ts.all_kv(model, read, n_new, ends).tokens
    said["SnapKV"] = ts.snap_kv(model, read, n_new, k, ends=ends).tokens
    if h2o:
        said["H2O"] = ts.h2o(model, read, n_new, k, ends=ends).tokens
    if controls:
        said["One-Run"] = ts.one_run(model, read, n_new, places[at], ends).tokens
    return places.transpose(0, 1).cpu(), {name: [answer_text(lm, row) for row in tokens] for name, tokens in said.items()}
