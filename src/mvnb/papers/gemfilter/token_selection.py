"""Answers from a part of a long prompt: GemFilter, and the methods that evict what a model has cached.

All work on any causal language model of ``transformers`` whose attention takes the package's attention interface, with rotary
positions or without: queries and keys are seen as they meet. Prompts of a batch have one length. Source: Shi thesis 2024,
chapter 9 (Shi et al. 2024, GemFilter); SnapKV, Li et al. 2024; H2O, Zhang et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

Visit = Callable[[int, Tensor, Tensor, float], None]  # layer, queries (B, h, T, d), keys (B, h_kv, T_all, d), scaling


class Answer(NamedTuple):
    """Greedy continuation ``tokens`` ``(B, n_new)``, and the prompt's places that it was made from.

    ``kept`` is ``(B, k)``, ascending, where all layers keep the same; ``(n_layers, B, h_kv, k)`` for the methods that choose by
    layer and head.
    """

    tokens: Tensor
    kept: Tensor


class _Enough(Exception):
    """No later layer is needed."""


def counted_flops(call: Callable[[], Any]) -> int:
    """Floating-point operations that PyTorch counts in the matrix products of ``call()``, two for a multiplication and a sum.

    The angles of rotary positions are left out: some versions of ``transformers`` have them from a product, some do not.
    """
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # of which PyTorch has no count of its own
    mapping = {fused: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter, torch.inference_mode():
        call()
    by_name = counter.get_flop_counts().items()
    angles = [sum(counts.values()) for name, counts in by_name if name.endswith(".rotary_emb")]
    return counter.get_total_flops() - sum(angles)


# --- scores ---


@contextmanager
def _watch_attention(model: Any, visit: Visit) -> Iterator[None]:
    """Within it ``visit`` is called with the queries and keys of every layer, after positions have turned them."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(module, query, key, value, attention_mask, **options):
        visit(module.layer_idx, query, key, options["scaling"])
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    AttentionInterface.register("mvnb_watched", attend)
    AttentionMaskInterface.register("mvnb_watched", sdpa_mask)
    usual = model.config._attn_implementation
    model.set_attn_implementation("mvnb_watched")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def row_scores(queries: Tensor, keys: Tensor, row: str = "last", scaling: float | None = None) -> Tensor:
    """Head-summed scores ``(B, n)`` of one query with all keys: ``(B, h, n, d)``, ``(B, h_kv, n, d)``.

    Raw inner products, as GemFilter takes them; with ``scaling`` the softmax of the scaled ones over what that query sees (keys
    after it get 0). ``row``: the last query, the one in the middle, or the one whose row of head-summed products is longest.
    """
    keys, n = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1).float(), queries.shape[2]
    places = {"last": n - 1, "middle": n // 2}
    if row == "largest":
        products = torch.einsum("bhid,bhjd->bij", queries.float(), keys)
        chosen = products.norm(dim=2).argmax(1)
    elif row in places:
        chosen = torch.full((len(queries),), places[row], device=queries.device)
    else:
        raise ValueError(f"row must be 'last', 'middle' or 'largest', got {row!r}")
    query = queries[torch.arange(len(queries), device=queries.device), :, chosen].float()
    scores = torch.einsum("bhd,bhjd->bhj", query, keys)
    if scaling is None:
        return scores.sum(1)
    later = torch.arange(n, device=queries.device) > chosen[:, None]
    return (scores * scaling).masked_fill(later[:, None], -torch.inf).softmax(-1).sum(1)


@torch.inference_mode()
def filter_scores(model: Any, tokens: Tensor, layers: Sequence[int], row: str = "last", softmax: bool = False) -> Tensor:
    """:func:`row_scores` of the named layers (from 0) on ``tokens`` ``(B, n)``: ``(len(layers), B, n)``.

    Layers after the last one that is named are not run. Source: Shi thesis 2024, Algorithm 2.
    """
    found: dict[int, Tensor] = {}

    def visit(layer: int, queries: Tensor, keys: Tensor, scaling: float) -> None:
        if layer in layers:
            found[layer] = row_scores(queries, keys, row, scaling if softmax else None)
        if layer == max(layers):
            raise _Enough

    with _watch_attention(model, visit), suppress(_Enough):
        model(tokens, use_cache=False, logits_to_keep=1)
    return torch.stack([found[layer] for layer in layers])


def select_tokens(scores: Tensor, k: int, pool: int = 5, keep_last: int = 0) -> Tensor:
    """Return the places of the ``k`` largest scores, ascending: ``(..., n)`` to ``(..., min(k, n))``.

    Scores are averaged over ``pool`` neighbours first (odd; zeros beyond the ends, as published); the ``keep_last`` last places
    are kept whatever their score. ``ValueError`` for an even ``pool`` or more forced places than ``k``.
    """
    n = scores.shape[-1]
    if pool % 2 == 0 or keep_last > k:
        raise ValueError(f"pool must be odd and at most k places be forced, got {pool} and {keep_last} of {k}")
    smooth = functional.avg_pool1d(scores.reshape(-1, 1, n), pool, 1, pool // 2).view(scores.shape).clone()
    smooth[..., n - min(keep_last, n) :] = torch.inf
    return smooth.topk(min(k, n), -1).indices.sort(-1).values


# --- answers ---


@torch.inference_mode()
def _read(model: Any, tokens: Tensor, visit: Visit | None = None) -> tuple[Any, Tensor]:
    """Return the cache after a prompt, and the next token ``(B, 1)``."""
    with _watch_attention(model, visit) if visit else nullcontext():
        out = model(tokens, use_cache=True, logits_to_keep=1)
    return out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)


@torch.inference_mode()
def _go_on(model: Any, cache: Any, token: Tensor, place: int, n_new: int, after: Callable[[], None] | None = None) -> Tensor:
    """Greedy continuation ``(B, n_new)`` that begins with ``token``, whose place is ``place`` whatever the cache has lost."""
    tokens = [token]
    for step in range(n_new - 1):
        at = torch.full_like(token, place + step)
        out = model(tokens[-1], past_key_values=cache, position_ids=at, use_cache=True)
        tokens.append(out.logits[:, -1].argmax(-1, keepdim=True))
        if after:
            after()
    return torch.cat(tokens, 1)


def _evict(cache: Any, kept: Tensor) -> None:
    """Keep those places of every layer's keys and values: ``(n_layers, B, h_kv, k)``."""
    for layer, places in zip(cache.layers, kept):
        index = places[..., None].expand(-1, -1, -1, layer.keys.shape[-1])
        layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)


def all_kv(model: Any, tokens: Tensor, n_new: int) -> Answer:
    """The whole prompt ``(B, n)`` and everything cached."""
    cache, token = _read(model, tokens)
    kept = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return Answer(_go_on(model, cache, token, tokens.shape[1], n_new), kept)


def gem_filter(model: Any, tokens: Tensor, n_new: int, k: int, layer: int, one_run: bool = False, **options: Any) -> Answer:
    """Run ``layer + 1`` layers, select ``k`` tokens, and run the model on these alone. Source: Shi thesis 2024, Algorithm 2.

    ``options`` are those of :func:`filter_scores` (``row``, ``softmax``) and of :func:`select_tokens`. With ``one_run`` the
    selection evicts the cache of a whole run instead, and places stay as they were. Source: Shi 2024, G.4.
    """
    kept = _gems(model, tokens, k, layer, **options)
    if not one_run:
        return Answer(all_kv(model, tokens.gather(1, kept), n_new).tokens, kept)
    cache, token = _read(model, tokens)
    _evict(cache, kept[None, :, None].expand(len(cache.layers), -1, cache.layers[0].keys.shape[1], -1))
    return Answer(_go_on(model, cache, token, tokens.shape[1], n_new), kept)


def _gems(model: Any, tokens: Tensor, k: int, layer: int, row: str = "last", softmax: bool = False, **selection: int) -> Tensor:
    return select_tokens(filter_scores(model, tokens, [layer], row, softmax)[0], k, **selection)


def snap_kv(model: Any, tokens: Tensor, n_new: int, k: int, window: int = 32) -> Answer:
    """Keep, per layer and key head, the window at the end and the places that it attends to most, ``k`` in all.

    Attention is summed over the window's queries and over the query heads that share a key head, and averaged over neighbours
    by :func:`select_tokens`. A cache of at most ``k`` places is kept. Source: Li et al. 2024, as in Shi thesis 2024.
    """
    n, window = tokens.shape[1], min(window, k, tokens.shape[1])
    kept: list[Tensor] = []

    def visit(layer: int, queries: Tensor, keys: Tensor, scaling: float) -> None:
        scores = _attention_sums(queries[:, :, n - window :], keys, scaling, n - window)
        scores[..., n - window :] = 0  # the window is kept whatever it attends to, and is no neighbour
        kept.append(select_tokens(scores, k, keep_last=window))

    cache, token = _read(model, tokens, visit)
    _evict(cache, torch.stack(kept))
    return Answer(_go_on(model, cache, token, n, n_new), torch.stack(kept))


def h2o(model: Any, tokens: Tensor, n_new: int, k: int, recent: int = 32, chunk: int = 256) -> Answer:
    """Per layer and key head, the last places and those that all queries so far have attended to most, ``k`` in all.

    Goes on while answering: each new token adds to the sums and the least one goes. ``kept`` tells what was kept after the
    prompt. Source: Zhang et al. 2023.
    """
    n, recent = tokens.shape[1], min(recent, k, tokens.shape[1])
    sums: dict[int, Tensor] = {}

    def visit(layer: int, queries: Tensor, keys: Tensor, scaling: float) -> None:
        starts = range(keys.shape[2] - queries.shape[2], keys.shape[2], chunk)
        new = sum(_attention_sums(q, keys, scaling, start) for q, start in zip(queries.split(chunk, 2), starts))
        if layer in sums:
            new[..., : sums[layer].shape[-1]] += sums[layer]
        sums[layer] = new

    def shrink() -> Tensor:
        kept = torch.stack([select_tokens(sums[layer], k, 1, keep_last=recent) for layer in range(len(cache.layers))])
        _evict(cache, kept)
        for layer, places in enumerate(kept):
            sums[layer] = sums[layer].gather(-1, places)
        return kept

    cache, token = _read(model, tokens, visit)
    kept = shrink()
    with _watch_attention(model, visit):
        return Answer(_go_on(model, cache, token, n, n_new, shrink), kept)


def _attention_sums(queries: Tensor, keys: Tensor, scaling: float, start: int) -> Tensor:
    """Return the attention ``(B, h_kv, n)`` of queries at places ``start`` and after, summed over them and by key head."""
    per_head = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    scores = (queries @ per_head.mT).float() * scaling
    places = torch.arange(keys.shape[2], device=keys.device)
    later = places > places[start : start + queries.shape[2], None]
    maps = scores.masked_fill(later, -torch.inf).softmax(-1)  # (B, h, T, n)
    return maps.sum(2).unflatten(1, (keys.shape[1], -1)).sum(2)
