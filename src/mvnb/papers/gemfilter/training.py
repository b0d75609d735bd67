"""What is run: a small Llama that is trained to look up values behind keys, and what is answered from selected tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mvnb import training
from mvnb.models.language import LanguageModel
from mvnb.papers.gemfilter import token_selection as ts
from mvnb.papers.gemfilter.data import training_batch
from mvnb.papers.gemfilter.model import small_llama

SELECTIONS = {"GemFilter": {"softmax": False, "keep_last": 0}, "softmax variant": {"softmax": True, "keep_last": 2}}
"""Algorithm 2 with the averages of its code, and our variant, which sums softmax weights over heads and keeps the question.

Both are options of :func:`~mvnb.papers.gemfilter.token_selection.gem_filter`.
"""
ABLATIONS = {
    "GemFilter, middle row": {"row": "middle"},
    "GemFilter, largest row": {"row": "largest"},
    "softmax variant, middle row": {"row": "middle"},
    "softmax variant, largest row": {"row": "largest"},
    "softmax variant, no pooling": {"pool": 1},
    "softmax variant, question not kept": {"keep_last": 0},
    "softmax variant, no softmax": {"softmax": False},
}
"""What is changed in the selection that a name begins with."""


def retrieval_loss(model: Any, tokens: Tensor) -> Tensor:
    """Return the cross-entropy of the values of the four answered questions at the end."""
    length = tokens.shape[1]
    asked = torch.arange(length - 16, length).view(4, 4)[:, 2:].flatten()
    logits = model(tokens[:, :-1]).logits[:, asked - 1]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, asked].flatten())


def train(starts, sources, device, *, steps: int, batch: int, step_size: float, length: int):
    """Train one model for each generator of ``starts`` on batches from ``sources``; return the models and the run.

    For two thirds of the steps the haystack has 16 tokens, all of them needles, then up to ``length``.
    """

    def schedule(step):
        return step_size * min(1.0, (step + 1) / 25, max(0.02, (steps - step) / (0.3 * steps)))

    def batches(step):
        late = [16, length // 2, 3 * length // 4, length]
        n = 16 if step < 0.65 * steps else late[step % 4] // 4 * 4
        rows = [training_batch(n, batch if n <= 32 else batch // 2, g) for g in sources]
        return (torch.stack(rows).to(device),)

    models = [small_llama(g).to(device) for g in starts]
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


def replies(model: Any, tokens: Tensor, ablate: bool = False) -> dict[str, ts.Answer]:
    """Return the two tokens that each method gives, and what it kept: an eighth of the prompt, 16 or more tokens.

    Each of :data:`SELECTIONS` is also made by layer 0, read again at the old places, and used for One-Run; with ``ablate`` they
    are changed as in :data:`ABLATIONS`.
    """
    k, found = max(16, (tokens.shape[1] - 2) // 8), {}

    def again(**options):
        return ts.read(model, tokens, **options)  # the model remembers its last key, so it reads before each answer

    for name, options in SELECTIONS.items():
        found[name] = ts.gem_filter(model, tokens, 2, k, 1, **options)
        kept = found[name].kept
        found[f"{name}, layer 0"] = ts.gem_filter(model, tokens, 2, k, 0, **options)
        old = ts.all_kv(model, ts.read_again(model, tokens, kept, old_places=True), 2)
        found[f"{name}, old places"] = old._replace(kept=kept)
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
