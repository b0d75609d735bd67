"""Answers from a part of a long prompt: GemFilter, and methods that evict what a model has cached.

They work on causal language models of ``transformers`` that compute the softmax of scaled inner products through the attention
interface of ``transformers``, with grouped queries or without, in evaluation mode; other models are refused before they run.
Prompts of a batch have one length and no padding. What a function cannot do raises ``ValueError``. Source: Shi thesis 2024,
chapter 9 (Shi et al. 2024, GemFilter); SnapKV, Li et al. 2024; H2O, Zhang et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

Visit = Callable[[int, Tensor, Tensor, float], "Tensor | None"]
"""Takes a layer, queries ``(B, h, T, d)``, keys ``(B, h_kv, n, d)`` and their scaling; may return a mask ``(B, h, T, n)``."""

_KNOWN = "scaling dropout is_causal sliding_window position_ids cache_position output_attentions use_cache".split()


class Answer(NamedTuple):
    """Greedy continuation ``tokens`` ``(B, n_new)``, and the prompt's places that it was made from.

    ``kept`` is ``(B, k)``, ascending, where all layers keep the same; ``(n_layers, B, h, k)`` for the methods that choose by
    layer and query head.
    """

    tokens: Tensor
    kept: Tensor


class Prompt(NamedTuple):
    """A prompt ``tokens`` ``(B, n)`` after all layers have read it, see :func:`read`.

    ``cache`` holds its keys and values and ``next`` ``(B, 1)`` the first token of the answer. ``rows`` ``(n_layers, B, n)`` are
    GemFilter's scores; ``window`` and ``sums`` ``(n_layers, B, h, n)`` add up the attention of the last ``n_window`` queries
    and of all. The tokens stand at ``places`` ``(B, n)``.
    """

    tokens: Tensor
    cache: Any
    next: Tensor
    rows: Tensor | None
    window: Tensor | None
    sums: Tensor | None
    places: Tensor
    n_window: int


class _Enough(Exception):
    """No later layer is needed."""


def counted_flops(call: Callable[[], Any]) -> int:
    """Return the floating-point operations of the matrix products in ``call()``, two for a multiplication and a sum.

    The angles of rotary positions are left out: some versions of ``transformers`` compute them by a product, some do not.
    """
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # PyTorch has no count of its own for it
    mapping = {fused: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter, torch.inference_mode():
        call()
    angles = [counts for name, counts in counter.get_flop_counts().items() if name.endswith(".rotary_emb")]
    return counter.get_total_flops() - sum(sum(counts.values()) for counts in angles)


# --- which models ---


@contextmanager
def _watch_attention(model: Any, visit: Visit) -> Iterator[None]:
    """Call ``visit`` with the queries and keys of every layer, after positions have turned them."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(module, query, key, value, attention_mask, **options):
        if unknown := sorted(name for name, value in options.items() if value is not None and name not in _KNOWN):
            raise ValueError(f"its attention takes {', '.join(unknown)}")
        mask = visit(module.layer_idx, query, key, options.get("scaling") or query.shape[-1] ** -0.5)
        return sdpa_attention_forward(module, query, key, value, attention_mask if mask is None else mask, **options)

    AttentionInterface.register("mvnb_watched", attend)
    AttentionMaskInterface.register("mvnb_watched", sdpa_mask)
    usual = model.config._attn_implementation
    model.set_attn_implementation("mvnb_watched")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


@torch.inference_mode()
def _check_attention(model: Any) -> None:
    """Raise ``ValueError`` if watching the attention of ``model`` changes its logits, or misses a layer.

    It runs eight tokens, once for each model: a model that no rule foresees is refused too.
    """
    if getattr(model, "_mvnb_watched", False):
        return
    tokens, seen = torch.arange(8, device=model.device)[None] % model.get_input_embeddings().num_embeddings, []
    plain = model(tokens, use_cache=False).logits.float()
    try:
        with _watch_attention(model, lambda layer, *_: seen.append(layer)):
            watched = model(tokens, use_cache=False).logits.float()
        if sorted(seen) != [*range(model.config.get_text_config().num_hidden_layers)]:
            raise ValueError(f"its layers use the attention interface of transformers {len(seen)} times")
        off = float((watched - plain).abs().max() / plain.abs().max())
        if off > (1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1):
            raise ValueError(f"scaled inner products change its logits by {off:.0%}")
    except (ValueError, RuntimeError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
        got = f"{type(model).__name__}: {str(error).strip().splitlines()[0]}"
        raise ValueError(f"expected plain softmax attention by the interface of transformers, got {got}") from error
    model._mvnb_watched = True


def check_size(name: str, value: Any, least: int, most: float = torch.inf) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer from ``least`` to ``most``."""
    if not isinstance(value, Integral) or not least <= value <= most:
        wanted = f"{least} or more" if most == torch.inf else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer, {wanted}, got {value!r}")


def _check(model: Any, length: int, layers: Sequence[int] | None = None, **sizes: int) -> None:
    """Raise ``ValueError`` for an unsupported model, layers that cannot see ``length`` tokens, or one of ``sizes`` below 1.

    All layers are checked unless they are named.
    """
    config = model.config.get_text_config()
    layers = range(config.num_hidden_layers) if layers is None else layers
    for name, value in sizes.items():
        check_size(name, value, 1)
    for layer in layers:
        check_size("layer", layer, 0, config.num_hidden_layers - 1)
    if model.training:
        raise ValueError("expected a model in evaluation mode, got one in training mode; call model.eval()")
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    windows = [getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)]
    window = min((one for one in windows if one), default=length)
    if length > window and any(kinds[layer] != "full_attention" for layer in layers):
        raise ValueError(f"expected at most {window} tokens, which is the sliding window of the model, got {length}")
    _check_attention(model)


def _check_prompts(model: Any, tokens: Any) -> None:
    """Raise ``ValueError`` unless ``tokens`` are prompts ``(B, n)`` whose ends show no padding.

    Padding is the model's pad token or, if it has none, its end token; a prompt may begin or end with one such token.
    """
    if (
        not isinstance(tokens, Tensor)
        or tokens.dim() != 2
        or not tokens.numel()
        or tokens.dtype not in (torch.int32, torch.int64)
    ):
        got = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(f"expected a tensor of token ids (B, n), with B and n 1 or more, got {got}")
    config = model.config.get_text_config()
    pad = config.eos_token_id if config.pad_token_id is None else config.pad_token_id
    is_pad = torch.isin(tokens, torch.tensor([] if pad is None else pad, dtype=tokens.dtype, device=tokens.device))
    for side, ends in (("begin", is_pad), ("end", is_pad.flip(1))):
        counts = ends.long().cumprod(1).sum(1).tolist()
        if max(counts) > min(1, min(counts)):
            raise ValueError(f"expected prompts of one length without padding, got rows that {side} with {counts} pad tokens")


# --- scores ---


def row_scores(queries: Tensor, keys: Tensor, row: str = "last", scaling: float | None = None) -> Tensor:
    """Return the scores ``(B, n)`` of one query with all keys, summed over heads: ``(B, h, n, d)``, ``(B, h_kv, n, d)``.

    They are raw inner products, as in GemFilter; with ``scaling``, the softmax of the scaled ones over the keys that the query
    sees (later keys get 0). ``row`` is ``"last"``, ``"middle"`` or ``"largest"``, the query whose row of products is longest.
    """
    keys, n = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1).float(), queries.shape[2]
    places = {"last": n - 1, "middle": n // 2}
    if row == "largest":
        norms = [torch.einsum("bhid,bhjd->bij", some.float(), keys).norm(dim=2) for some in queries.split(256, 2)]
        chosen = torch.cat(norms, 1).argmax(1)
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
    """Return :func:`row_scores` of ``layers`` (from 0) on ``tokens`` ``(B, n)``: ``(len(layers), B, n)``.

    Layers after the last one that is named are not run. Source: Shi thesis 2024, Algorithm 2.
    """
    _check_prompts(model, tokens)
    _check(model, tokens.shape[1], layers)
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

    Scores are first averaged over ``pool`` neighbours (odd; zeros beyond the ends, as published); the last ``keep_last`` places
    are kept whatever their score, at most ``k``.
    """
    n = scores.shape[-1]
    check_size("k", k, 1)
    check_size("keep_last", keep_last, 0, k)
    if not isinstance(pool, Integral) or pool < 1 or pool % 2 == 0:
        raise ValueError(f"pool must be an odd integer, 1 or more, got {pool!r}")
    smooth = functional.avg_pool1d(scores.reshape(-1, 1, n), pool, 1, pool // 2).view(scores.shape).clone()
    smooth[..., n - min(keep_last, n) :] = torch.inf
    return smooth.topk(min(k, n), -1).indices.sort(-1).values


def _attention_sums(queries: Tensor, keys: Tensor, scaling: float, start: int) -> Tensor:
    """Return the attention ``(B, h, n)`` of the queries at places ``start`` and after, summed over them."""
    stop = start + queries.shape[2]
    per_head = keys[:, :, :stop].repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    scores = (queries @ per_head.mT).float().mul_(scaling)
    places = torch.arange(start, stop, device=keys.device)
    scores[..., start:].masked_fill_(places > places[:, None], -torch.inf)
    return functional.pad(scores.softmax(-1).sum(2), (0, keys.shape[2] - stop))


# --- answers ---


@torch.inference_mode()
def read(
    model: Any, tokens: Tensor, window: int = 0, sums: bool = False, look: Visit | None = None, places: Tensor | None = None
) -> Prompt:
    """Run all layers on a prompt ``(B, n)`` once, for :func:`all_kv` and all methods that drop a part of its cache.

    With ``window`` it returns GemFilter's scores of all layers and the attention of the last ``window`` queries, for
    :func:`snap_kv`; with ``sums`` the attention of all queries, for :func:`h2o`, which takes about as long again. ``look`` is
    called with every layer, its queries, keys and scaling. Tokens that were selected from a prompt, which may begin or end with
    any token, have ``places`` ``(B, n)``, ascending.
    """
    if places is None:
        _check_prompts(model, tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    n = tokens.shape[1]
    check_size("window", window, 0)
    _check(model, n)
    rows, last, total = [], [], []
    start = max(n - window, 0)

    def visit(layer: int, queries: Tensor, keys: Tensor, scaling: float) -> None:
        if look:
            look(layer, queries, keys, scaling)
        if window:
            rows.append(row_scores(queries, keys))
            last.append(_attention_sums(queries[:, :, start:], keys, scaling, start))
        if sums:
            chunks = zip(queries.split(128, 2), range(0, n, 128))
            total.append(sum(_attention_sums(some, keys, scaling, at) for some, at in chunks))

    with _watch_attention(model, visit):
        out = model(tokens, position_ids=places, use_cache=True, logits_to_keep=1)
    found = [torch.stack(one) if one else None for one in (rows, last, total)]
    return Prompt(tokens, out.past_key_values, out.logits[:, -1:].argmax(-1), *found, places, window)


@torch.inference_mode()
def _go_on(model: Any, prompt: Prompt, n_new: int, ends: Sequence[int], visit: Visit | None = None, after=None) -> Tensor:
    """Return the greedy continuation ``(B, at most n_new)``, until each has one of the tokens ``ends``.

    ``visit`` masks keys; ``after`` is called after each new token. The cache is left as it was.
    """
    n, tokens = prompt.tokens.shape[1], [prompt.next]
    _check(model, n + n_new, n_new=n_new)
    marks = torch.tensor(list(ends), device=prompt.next.device)
    ended = torch.isin(prompt.next, marks)
    with _watch_attention(model, visit or (lambda *_: None)):
        while len(tokens) < n_new and not ended.all():
            at = prompt.places[:, -1:] + len(tokens)
            out = model(tokens[-1], past_key_values=prompt.cache, position_ids=at, use_cache=True)
            tokens.append(out.logits[:, -1:].argmax(-1))
            ended |= torch.isin(tokens[-1], marks)
            if after:
                after()
    prompt.cache.crop(-(len(tokens) - 1))
    return torch.cat(tokens, 1)


def _with_places(model: Any, prompt: Prompt, n_new: int, kept: Tensor, ends: Sequence[int]) -> Tensor:
    """Return the continuation that sees, from its second token on, only ``kept`` ``(n_layers, B, h, k)`` of the prompt.

    Dropped keys are masked: this gives the same answers as evicting them, and leaves the cache to other methods.
    """
    allowed = torch.zeros(*kept.shape[:3], prompt.tokens.shape[1], dtype=torch.bool, device=kept.device).scatter(3, kept, True)

    def visit(layer: int, queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        return functional.pad(allowed[layer], (0, keys.shape[2] - allowed.shape[3]), value=True)[:, :, None]

    return _go_on(model, prompt, n_new, ends, visit)


def read_again(model: Any, tokens: Tensor, kept: Tensor, old_places: bool = False) -> Prompt:
    """Read only the tokens at ``kept`` ``(B, k)``, ascending, of ``(B, n)``: at the places 0 to k - 1, or at their old ones."""
    new_places = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    return read(model, tokens.gather(1, kept), places=kept if old_places else new_places)


def all_kv(model: Any, prompt: Prompt, n_new: int, ends: Sequence[int] = ()) -> Answer:
    """Answer from the whole cache. Tokens ``ends`` end an answer; it stops when every prompt of the batch has one."""
    return Answer(_go_on(model, prompt, n_new, ends), prompt.places)


def gem_filter(
    model: Any, tokens: Tensor, n_new: int, k: int, layer: int, ends: Sequence[int] = (), row: str = "last",
    softmax: bool = False, pool: int = 5, keep_last: int = 0,
) -> Answer:  # fmt: skip
    """Run the layers up to ``layer``, select ``k`` tokens, and run the model on these alone.

    ``row`` and ``softmax`` are those of :func:`filter_scores`, ``pool`` and ``keep_last`` those of :func:`select_tokens`.
    Source: Shi thesis 2024, Algorithm 2.
    """
    _check(model, 1, [layer], k=k, n_new=n_new)
    kept = select_tokens(filter_scores(model, tokens, [layer], row, softmax)[0], k, pool, keep_last)
    return Answer(all_kv(model, read_again(model, tokens, kept), n_new, ends).tokens, kept)


def one_run(model: Any, prompt: Prompt, n_new: int, kept: Tensor, ends: Sequence[int] = ()) -> Answer:
    """Answer from the cache of the places ``kept`` ``(B, k)`` in all layers, where they stand. Source: Shi thesis 2024, G.4."""
    config = model.config.get_text_config()
    alike = kept[None, :, None].expand(config.num_hidden_layers, -1, config.num_attention_heads, -1)
    return Answer(_with_places(model, prompt, n_new, alike, ends), kept)


def snap_kv(model: Any, prompt: Prompt, n_new: int, k: int, window: int = 32, ends: Sequence[int] = ()) -> Answer:
    """Keep, per layer and query head, the last ``window`` places and those that they attend to most, ``k`` in all.

    The prompt must have been read with this ``window``. Attention is averaged over neighbours by :func:`select_tokens`. With
    grouped queries, the heads of a group keep different places, as in the published code. Source: Li et al. 2024.
    """
    _check(model, 1, [0], k=k, window=window)
    if prompt.n_window != window:
        raise ValueError(f"expected a prompt that was read with window={window}, got one read with window={prompt.n_window}")
    n, window = prompt.tokens.shape[1], min(window, k, prompt.tokens.shape[1])
    scores = prompt.window.clone()
    scores[..., n - window :] = 0  # the window is kept whatever it attends to, and is not a neighbour
    kept = select_tokens(scores, k, keep_last=window)
    return Answer(_with_places(model, prompt, n_new, kept, ends), kept)


def h2o(model: Any, prompt: Prompt, n_new: int, k: int, recent: int = 32, ends: Sequence[int] = ()) -> Answer:
    """Keep, per layer and query head, the last places and those that all queries so far have attended to most, ``k`` in all.

    The choice goes on while answering: each new token adds to the sums and the least place goes. ``kept`` tells what was kept
    after the prompt, which :func:`read` must have read with ``sums``. Source: Zhang et al. 2023.
    """
    _check(model, 1, [0], k=k)
    if prompt.sums is None:
        raise ValueError("expected a prompt that was read with sums=True")
    check_size("recent", recent, 0)
    recent = min(recent, k, prompt.tokens.shape[1])
    state = {"sums": prompt.sums, "allowed": torch.ones_like(prompt.sums, dtype=torch.bool)}
    fresh: dict[int, Tensor] = {}

    def visit(layer: int, queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
        mask = functional.pad(state["allowed"][layer], (0, 1), value=True)[:, :, None]
        per_head = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
        scores = (queries @ per_head.mT).float() * scaling
        fresh[layer] = scores.masked_fill(~mask, -torch.inf).softmax(-1)[:, :, 0]
        return mask

    def shrink() -> Tensor:
        if fresh:
            state["sums"] = functional.pad(state["sums"], (0, 1)) + torch.stack([fresh[i] for i in range(len(fresh))])
            state["allowed"] = functional.pad(state["allowed"], (0, 1), value=True)
        kept = select_tokens(state["sums"].masked_fill(~state["allowed"], -torch.inf), k, 1, recent)
        state["allowed"] = torch.zeros_like(state["allowed"]).scatter(3, kept, True)
        return kept

    kept = shrink()
    return Answer(_go_on(model, prompt, n_new, ends, visit, shrink), kept)
