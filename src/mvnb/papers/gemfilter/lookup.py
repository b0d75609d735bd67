"""A small Llama that is trained to look up values behind keys, on prompts that may be longer than those of its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mvnb import training
from mvnb.papers.gemfilter import token_selection as ts

NOISE, KEYS, VALUES, NEEDLES = 8, 16, 16, 4
MARK = NOISE + KEYS + VALUES
QUERY, VOCABULARY = MARK + 1, MARK + 2
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


def haystack(n: int, size: int, g: torch.Generator, depth: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens ``(size, n)``, needles ``(size, 4, 4)`` and their places; the first needle is at ``depth``, if given.

    Noise fills the places between the needles ``MARK key v1 v2``, which stand in slots of four. Keys differ, and so do values.
    """
    tokens = torch.randint(NOISE, (size, n), generator=g)
    slots = torch.rand(size, n // 4, generator=g).argsort(1)[:, :NEEDLES]
    if depth is not None:
        wanted = round(depth * (n // 4 - 1))
        slots = torch.where(slots == wanted, slots[:, :1], slots)
        slots[:, 0] = wanted
    keys = torch.rand(size, KEYS, generator=g).argsort(1)[:, :NEEDLES] + NOISE
    values = torch.rand(size, VALUES, generator=g).argsort(1) + NOISE + KEYS
    values = values[:, : 2 * NEEDLES].view(size, NEEDLES, 2)
    needles = torch.cat([torch.full((size, NEEDLES, 1), MARK), keys[..., None], values], 2)
    places = 4 * slots[..., None] + torch.arange(4)
    return tokens.scatter(1, places.flatten(1), needles.flatten(1)), needles, places


def training_batch(n: int, size: int, g: torch.Generator) -> Tensor:
    """Return haystacks, each followed by an answered question for every needle."""
    tokens, needles, _ = haystack(n, size, g)
    order = torch.rand(size, NEEDLES, 1, generator=g).argsort(1).expand(-1, -1, 4)
    asked = torch.cat([torch.full_like(needles[..., :1], QUERY), needles[..., 1:]], 2)
    return torch.cat([tokens, asked.gather(1, order).flatten(1)], 1)


def prompts_at(n: int, size: int, depth: float, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return prompts ``(size, n + 2)``, answers ``(size, 2)`` and the places of the needle ``(size, 4)``."""
    tokens, needles, places = haystack(n, size, g, depth)
    asked = torch.stack([torch.full((size,), QUERY), needles[:, 0, 1]], 1)
    return torch.cat([tokens, asked], 1), needles[:, 0, 2:], places[:, 0]


def spell(tokens: Tensor) -> str:
    """Return the names of tokens ``(n,)``: noise n0, keys k0, values v0, MARK and QUERY."""
    names = [f"{kind}{i}" for kind, size in (("n", NOISE), ("k", KEYS), ("v", VALUES)) for i in range(size)]
    return " ".join([*names, "MARK", "QUERY"][t] for t in tokens.tolist())


def hand_made_scores(tokens: Tensor) -> Tensor:
    """Return the scores ``(layer, n)`` of the last query in two layers by hand, which attend to the predecessor and to matches.

    The second layer's query is the last token's identity and its keys are those of the predecessors: an induction head.
    """
    n = tokens.shape[-1]
    identity, place = F.one_hot(tokens, VOCABULARY).double(), torch.eye(n, dtype=torch.double)
    before = torch.cat([torch.zeros(1, VOCABULARY).double(), identity[:-1]])
    to_previous = ts.row_scores(place.roll(-1, 1)[None, None], place[None, None])
    induction = ts.row_scores(identity[None, None], before[None, None])
    return torch.cat([to_previous, induction]) - 1e-6 * torch.arange(n)  # of equal scores, the earlier place


def small_llama(g: torch.Generator) -> Any:
    """Return an untrained Llama of two layers; in layer 1 a token has the key of its predecessor."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    sizes |= dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, **sizes)).eval()
    for name, weight in model.named_parameters():  # branches start small beside tokens
        if weight.dim() > 1:
            scale = 0.1 if "o_proj" in name or "down_proj" in name else 1.0
            std = 1.0 if "embed" in name else scale * weight.shape[-1] ** -0.5
            weight.data = std * torch.randn(weight.shape, generator=g)
    attention, last = model.model.layers[1].self_attn, {}
    attention.k_proj.weight.data = attention.q_proj.weight.data.clone()

    def of_predecessor(layer, args, keys):
        one_more = keys.shape[1] == 1  # (batch, place, width)
        before = last["key"] if one_more else torch.zeros_like(keys[:, :1])
        last["key"] = keys[:, -1:].detach()
        return torch.cat([before, keys[:, :-1]], 1)

    attention.k_proj.register_forward_hook(of_predecessor)
    return model


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


def prompts_by_depth(n: int, depths: Sequence[float], size: int, g: torch.Generator, device) -> tuple[Tensor, ...]:
    """Return ``size`` prompts for each depth, those of one depth together, with answers and places of the needle."""
    return tuple(torch.cat(part).to(device) for part in zip(*(prompts_at(n, size, depth, g) for depth in depths)))


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
        old = ts.all_kv(model, ts.read(model, tokens.gather(1, kept), places=kept), 2)
        found[f"{name}, old places"] = old._replace(kept=kept)
        found[f"{name}, One-Run"] = ts.one_run(model, again(), 2, kept)
    for name, change in ABLATIONS.items() if ablate else ():
        found[name] = ts.gem_filter(model, tokens, 2, k, 1, **SELECTIONS[name.split(", ")[0]] | change)
    found["whole cache"] = ts.all_kv(model, again(), 2)
    found["SnapKV"] = ts.snap_kv(model, again(window=4), 2, k, 4)
    found["H2O"] = ts.h2o(model, again(sums=True), 2, k, 4)
    return found


def answers(model: Any, tokens: Tensor, values: Tensor, ablate: bool = False) -> dict[str, Tensor]:
    """Return the share of the two values that each of :func:`replies` gives, by prompt."""
    found = replies(model, tokens, ablate)
    return {name: (answer.tokens == values).double().mean(1).cpu() for name, answer in found.items()}


def layer_view(model: Any, tokens: Tensor, places: Tensor, selection: str) -> dict[str, Tensor]:
    """Return what each layer gives by the named one of :data:`SELECTIONS`, as numbers ``(layer, prompt)``.

    ``distance`` is that of the nearest selected token to the needle, ``whole`` whether its four tokens are all selected,
    ``question`` the share of the question's two tokens that are, and ``weight`` the softmax weight on the needle. The score of
    the needle's first value lies ``peak`` standard deviations above the mean, its average over five places ``averaged`` ones.
    """
    options, n = SELECTIONS[selection], tokens.shape[1]
    scores = ts.filter_scores(model, tokens, range(2), softmax=options["softmax"])
    kept = ts.select_tokens(scores, max(16, (n - 2) // 8), keep_last=options["keep_last"])
    gap = (kept[..., None] - places[:, None]).abs()  # (layer, prompt, k, 4)
    maps = scores if options["softmax"] else ts.filter_scores(model, tokens, range(2), softmax=True)
    weight = maps.gather(2, places.expand(2, -1, -1)).sum(2) / model.config.num_attention_heads
    found = {"distance": gap.amin((2, 3)), "whole": (gap.amin(2) == 0).all(2), "question": (kept >= n - 2).sum(2) / 2}
    found["weight"] = weight
    for name, one in (("peak", scores), ("averaged", F.avg_pool1d(scores, 5, 1, 2))):
        above = one.gather(2, places[:, 2:3].expand(2, -1, -1))[..., 0] - one.mean(2)
        found[name] = above / one.std(2)
    return {name: one.cpu() for name, one in found.items()}
