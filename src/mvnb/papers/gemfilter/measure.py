"""Measures of chapter 15, which its claims judge: from runs, kept values and printed tables to numbers.

A function that returns a mapping gives the numbers of its claims by id and by the names of the claim's rule: an array with one
number per run, or one number if nothing is random.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mvnb.papers.gemfilter import data, model, tables, theory, training
from mvnb.papers.gemfilter import token_selection as ts

# --- Scores of answers ---


def needle_score(response: str) -> float:
    """Return the published score: the share of the first needle's expected words that the response has, in [0, 11/12].

    Words are separated by blanks, in lower case, and counted once in the response; the divisor counts them as often as they are
    expected, so the exact answer gets 11/12.
    """
    expected = data.ANSWER.lower().split()
    return len(set(expected) & set(response.lower().split())) / len(expected)


def words_found(response: str, needle: data.Needle) -> float:
    """Return the share of ``needle.words`` that the response has, in [0, 1], whatever their case and the marks around them."""
    wanted = set(needle.words.split())
    return len(wanted & set(re.findall(r"\w+", response.lower()))) / len(wanted)


def best_score() -> float:
    """Return the published score of a text that has every expected word three times."""
    needle = data.NEEDLES[0]
    return needle_score(" ".join([data.ANSWER, needle.sentence, needle.question] * 3))


# --- Small models: run r is one model, with prompts of its own ---


def _by_name(runs: list[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    return {name: torch.stack([one[name] for one in runs]).double().cpu().numpy() for name in runs[0]}


def values_right(models: Sequence[Any], prompts: Sequence[tuple[Tensor, ...]], ablate: bool = False) -> dict[str, np.ndarray]:
    """Return the shares ``(run, prompt)`` of the two values that :func:`~mvnb.papers.gemfilter.training.replies` give.

    ``prompts`` has tokens, values and places for each model, see :func:`~mvnb.papers.gemfilter.data.prompts_by_depth`.
    """
    found = []
    for one, (tokens, values, _) in zip(models, prompts):
        replies = training.replies(one, tokens, ablate)
        found.append({name: (reply.tokens == values).double().mean(1) for name, reply in replies.items()})
    return _by_name(found)


def layer_views(models: Sequence[Any], prompts: Sequence[tuple[Tensor, ...]], selection: str) -> dict[str, np.ndarray]:
    """Return what each layer gives by the named one of ``training.SELECTIONS``, as numbers ``(run, layer, prompt)``.

    ``distance`` is that of the nearest selected token to the needle, ``whole`` whether its four tokens are all selected,
    ``question`` the share of the question's two tokens that are, and ``weight`` the softmax weight on the needle. The score of
    the needle's first value lies ``peak`` standard deviations above the mean, its average over five places ``averaged`` ones.
    """
    options, found = training.SELECTIONS[selection], []
    for one, (tokens, _, places) in zip(models, prompts):
        scores = ts.filter_scores(one, tokens, range(2), softmax=options["softmax"])
        kept = ts.select_tokens(scores, training.n_kept(tokens), keep_last=options["keep_last"])
        gap = (kept[..., None] - places[:, None]).abs()  # (layer, prompt, k, 4)
        maps = scores if options["softmax"] else ts.filter_scores(one, tokens, range(2), softmax=True)
        weight = maps.gather(2, places.expand(2, -1, -1)).sum(2) / one.config.num_attention_heads
        view = {"distance": gap.amin((2, 3)), "whole": (gap.amin(2) == 0).all(2), "weight": weight}
        view["question"] = (kept >= tokens.shape[1] - 2).sum(2) / 2
        for name, values in (("peak", scores), ("averaged", F.avg_pool1d(scores, 5, 1, 2))):
            above = values.gather(2, places[:, 2:3].expand(2, -1, -1))[..., 0] - values.mean(2)
            view[name] = above / values.std(2)
        found.append(view)
    return _by_name(found)


class Tested(NamedTuple):
    """Small models on prompts of several lengths, ascending from that of training.

    ``right`` has :func:`values_right` by length; ``views`` and ``built`` have :func:`layer_views`, the former by selection and
    length, the latter by length, of the models as they are built and the softmax variant.
    """

    right: dict[int, dict[str, np.ndarray]]
    views: dict[str, dict[int, dict[str, np.ndarray]]]
    built: dict[int, dict[str, np.ndarray]]


def tested(models: Sequence[Any], untrained: Sequence[Any], prompts: Mapping[int, Sequence[tuple[Tensor, ...]]]) -> Tested:
    """Test models on ``prompts`` by length, see :func:`values_right`; selections are ablated at the second length only."""
    (_, second, *_), variant = prompts, "softmax variant"
    views = {name: {n: layer_views(models, some, name) for n, some in prompts.items()} for name in training.SELECTIONS}
    right = {n: values_right(models, some, ablate=n == second) for n, some in prompts.items()}
    return Tested(right, views, {n: layer_views(untrained, some, variant) for n, some in prompts.items()})


def first_quarter(depths: Sequence[float], size: int) -> np.ndarray:
    """Return which of the prompts, ``size`` for each of ``depths``, have the needle in the first quarter."""
    return np.repeat(np.array(depths) <= 0.25, size)


def small_models(found: Tested, depths: Sequence[float]) -> dict[str, dict[str, np.ndarray]]:
    """Return the numbers of the claims on small models, whose prompts have needles at ``depths``."""
    right, views, built = found
    (first, second, *_), last = right, max(right)

    def gap(n, name, other, where=slice(None)):
        return (right[n][name] - right[n][other])[:, where].mean(1)

    def seen(view, n, what, layer=1):
        return view[n][what][:, layer].mean(1)

    judged, far = {}, first_quarter(depths, right[last]["whole cache"].shape[1] // len(depths))
    for name, as_good, better, evicting, one_run, rows, layers in (
        ("GemFilter", "as-good-at-known-lengths", "better-beyond-known-lengths", "better-than-eviction",
         "one-run-loses-far-needles", "last-row-is-needed", "layer-finds-the-needle"),
        ("softmax variant", "variant-as-good-at-known-lengths", "variant-better-beyond-known-lengths",
         "variant-better-than-eviction", "variant-one-run-loses-far-needles", "variant-last-row-is-needed",
         "variant-layer-finds-the-needle"),
    ):  # fmt: skip
        judged[as_good] = {"value": gap(first, name, "whole cache")}
        judged[better] = {"value": gap(last, name, "whole cache")}
        judged[evicting] = {other: gap(last, name, other) for other in ("SnapKV", "H2O")}
        judged[one_run] = {"value": gap(last, name, f"{name}, One-Run", far)}
        judged[rows] = {row: gap(second, name, f"{name}, {row} row") for row in ("middle", "largest")}
        distances = {key: seen(views[name], first, "distance", i) for i, key in enumerate(("distance_before", "distance"))}
        judged[layers] = {"gain": gap(first, name, f"{name}, layer 0")} | distances
    variant, old, trained = "softmax variant", "softmax variant, old places", views["softmax variant"]
    weight, whole = (seen(trained, last, what) / seen(trained, first, what) for what in ("weight", "whole"))
    values = {
        "variant-gains-from-reading-again": gap(last, old, "whole cache"),
        "variant-gains-from-new-places": gap(last, variant, old),
        "pooling-is-needed": gap(second, variant, f"{variant}, no pooling"),
        "variant-keeps-the-question-itself": gap(second, variant, f"{variant}, question not kept"),
        "raw-scores-suffice": gap(second, variant, f"{variant}, no softmax"),
        "question-keeps-itself": seen(views["GemFilter"], second, "question"),
        "training-makes-the-filter-surer": np.mean([seen(trained, n, "whole") - seen(built, n, "whole") for n in right], 0),
        "found-where-it-is-read-less": whole - weight,
    }
    return judged | {id: {"value": one} for id, one in values.items()}


# --- The language model ---


HIT = 0.9
"""Share of a needle from which on it counts as hit by a selection."""


class Kept(NamedTuple):
    """The kept run: of every prompt, shares of needle and question selected by each layer, and words found by method.

    ``cases`` are haystack, length and depth of each prompt, alike in all runs; ``share`` and ``question`` are ``(run, prompt,
    layer)``, each array of ``words`` ``(run, prompt)``, NaN where the method did not answer. The run that chooses a layer has
    no words.
    """

    setting: dict[str, Any]
    cases: list[tuple[str, int, float]]
    share: np.ndarray
    question: np.ndarray
    words: dict[str, np.ndarray]

    def at(self, haystack: str, length: int = 4000, depths: Sequence[float] | None = None) -> list[int]:
        """Return the prompts of this haystack and length, at all depths or those named."""
        alike = [i for i, case in enumerate(self.cases) if case[:2] == (haystack, length)]
        return [i for i in alike if depths is None or self.cases[i][2] in depths]

    def by_run(self, method: str, haystack: str, length: int = 4000, depths: Sequence[float] | None = None) -> np.ndarray:
        """Return the words found by a method, ``(run,)``, in the mean over the prompts :meth:`at`."""
        return self.words[method][:, self.at(haystack, length, depths)].mean(1)


def kept_values(record: Mapping[str, Any]) -> Kept:
    """Return the results of a kept run as arrays."""
    runs, words = [run["values"] for run in record["runs"]], {}
    cases = [(one["haystack"], one["length"], one["depth"]) for one in runs[0]]
    share, question = (np.array([[one[key] for one in run] for run in runs]) for key in ("needle", "question"))
    for method in {name: None for one in runs[0] for name in one["answers"]}:
        told = [[(one["answers"].get(method), data.JUDGED[one["index"]]) for one in run] for run in runs]
        words[method] = np.array([[np.nan if text is None else words_found(text, one) for text, one in run] for run in told])
    return Kept(record["parameters"], cases, share, question, words)


def first_hit(share: np.ndarray) -> np.ndarray:
    """Return the first layer that selects :data:`HIT` of the needle or more, from ``(..., layer)``; their number if none does.

    It is the filter layer by the paper's rule, if ``share`` is the mean over prompts with a needle at depth 50 %.
    """
    return (np.concatenate([share, np.ones_like(share[..., :1])], -1) >= HIT).argmax(-1)


def above_chance(share: np.ndarray, k: int, n: int) -> np.ndarray:
    """Return by how much ``share`` of a needle exceeds that of ``k`` tokens drawn from ``n`` at random."""
    return share - min(k, n) / n


def language_model(kept: Kept) -> dict[str, dict[str, np.ndarray]]:
    """Return the numbers of the claims that the kept run decides, all at 4,000 tokens."""
    haystacks, layer, middle = ("repeated", "prose"), kept.setting["layers"]["GemFilter"], [0.5]

    def gap(other, haystack="repeated", depths=None, ours="GemFilter"):
        return kept.by_run(ours, haystack, depths=depths) - kept.by_run(other, haystack, depths=depths)

    def selected(values, depths=None):
        return {one: values[:, kept.at(one, depths=depths)].mean(1) for one in haystacks}

    above, n_layers = above_chance(kept.share[..., layer], kept.setting["k"], 4000), kept.share.shape[-1]
    common = [depth for haystack, _, depth in kept.cases if haystack == "prose"]
    return {
        "real-model-beats-snapkv": {"value": gap("SnapKV")},
        "real-model-beats-snapkv-in-prose": {"value": gap("SnapKV", "prose")},
        "real-model-beats-snapkv-with-layer-24": {"value": gap("SnapKV", ours="layer 24")},
        "real-model-beats-the-whole-cache": {"value": gap("whole cache")},
        "real-model-keeps-up-with-the-whole-cache": {one: gap("whole cache", one) for one in haystacks},
        "real-model-beats-h2o": {one: gap("H2O", one, middle) for one in haystacks},
        "real-model-beats-a-random-selection": {one: gap("random", one) for one in haystacks},
        "real-model-one-run-is-comparable": {"value": gap("One-Run")},
        "real-model-gains-from-new-places": {"value": gap("old places")},
        "real-middle-row-fails": {"value": gap("middle row")},
        "real-largest-row-fails": {"value": gap("largest row")},
        "first-layer-suffices": {"value": gap("layer 24")},
        "filter-layer-decides-the-answer": {"value": gap("half as deep")},
        "last-layer-filters-worse": {"value": gap("last layer")},
        "repeated-haystack-is-easier": {
            "value": kept.by_run("GemFilter", "repeated", depths=common) - kept.by_run("GemFilter", "prose")
        },
        "real-model-has-a-filter-layer": selected(above),
        "real-model-finds-in-the-middle": selected(above, middle),
        "real-model-keeps-the-question-itself": selected(kept.question[..., layer]),
        "filter-layer-is-early": {one: (first_hit(value) + 1) / n_layers for one, value in selected(kept.share).items()},
    }


# --- Formulas and printed numbers ---


def filter_by_hand(tokens: Tensor, places: Tensor) -> dict[str, float]:
    """Return the share of needles at ``places`` whose key and values are among 8 tokens, by the two layers made by hand."""
    scores = torch.stack([model.hand_made_scores(row) for row in tokens])
    chosen = ts.select_tokens(scores, 8, keep_last=2)  # (prompt, layer, k)
    inside = chosen[..., None] == places[:, None, None, 1:]  # key and values
    return dict(zip(("before", "induction"), inside.any(2).all(2).double().mean(0).tolist()))


def deviations(scores: np.ndarray) -> dict[str, float]:
    """Return how far simulated scores ``(draws, n)``, standard normal, are from the formulas of :mod:`theory`.

    ``finding``: in standard errors, the most of three; ``reading`` and ``surviving``: absolute and relative.
    """
    draws, n = scores.shape
    margins, k = np.array([2.3, 2.0, 1.0]), np.array([n // 100, 9 * n // 400, 4 * n // 25])
    stated = theory.finding_probability(margins, 1.0, n, k)
    seen = [(np.sum(scores > margin, 1) < most).mean() for margin, most in zip(margins, k)]
    errors = np.sqrt(np.maximum(stated * (1 - stated), 1 / draws) / draws)
    weights = np.exp(scores)
    share = 1 / (1 + weights.sum(1) * np.exp(-8.0))
    loud = np.sort(weights, 1)[:, -(n // 10) :].sum(1) / weights.sum(1)
    return {
        "finding": (np.abs(seen - stated) / errors).max(),
        "reading": share.mean() - theory.reading_share(8.0, 1.0, n),
        "surviving": loud.mean() / theory.surviving_noise(1.0, n, n // 10) - 1,
    }


def counted(shape: theory.Shape, n: int, longer: int, k: int, layer: int) -> dict[str, tuple[float, float]]:
    """Return pairs of what PyTorch counts of a Llama with random weights and what :mod:`theory` states.

    They are the operations and the numbers in the cache of all layers on ``n`` tokens, and the operations of GemFilter on
    ``longer`` tokens over those of all layers.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": shape.width, "intermediate_size": shape.inner, "num_hidden_layers": shape.n_layers}
    sizes |= {"num_attention_heads": shape.n_heads, "num_key_value_heads": shape.n_kv_heads, "head_dim": shape.head_dim}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=data.VOCABULARY, **sizes)).eval()
    prompt, long = (torch.zeros(1, one, dtype=torch.long) for one in (n, longer))
    operations = ts.counted_flops(lambda: network.model(prompt))
    cache = ts.read(network, prompt).cache
    held = sum(one.keys.numel() + one.values.numel() for one in cache.layers)
    whole = ts.counted_flops(lambda: ts.read(network, long))
    gem = ts.counted_flops(lambda: ts.gem_filter(network, long, 1, k, layer))
    return {
        "operations": (operations, theory.prefill_flops(shape, n)),
        "cache": (held, theory.cached_numbers(shape, n)),
        "GemFilter": (gem / whole, 1 / theory.speed_up(shape, longer, k, layer)),
    }


def printed_tables(longbench=tables.LONGBENCH, by_layer=tables.BY_LAYER, chat=tables.CHAT_TEMPLATE) -> dict[str, float]:
    """Return the numbers of the claims on printed tables: scores by model and method, by filter layer, and by method."""
    rows = [row for table in (*longbench.values(), by_layer, chat) for row in table.values()]
    pairs = [(table, k) for table in longbench.values() for k in (1024, 2048, 4096)] + [(chat, 1024)]
    return {
        "printed-averages-are-averages": max(abs(fmean(row[:-1]) - row[-1]) for row in rows),
        "comparable-on-longbench": min(table[f"GemFilter-{k}"][-1] - table[f"SnapKV-{k}"][-1] for table, k in pairs),
        "drop-with-1024-is-negligible": min(one["GemFilter-1024"][-1] - one["All KV"][-1] for one in longbench.values()),
    }
