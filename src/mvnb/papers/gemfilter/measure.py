"""What the claims judge: shares of right values, of words and of what is selected, by run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mvnb import kept_runs
from mvnb.models.language import LanguageModel
from mvnb.papers.gemfilter import token_selection as ts
from mvnb.papers.gemfilter.data import NEEDLES, Needle, NeedlePrompt
from mvnb.papers.gemfilter.training import SELECTIONS, answer_text, end_tokens, replies


def needle_score(response: str) -> float:
    """Return the published score: the share of the first needle's expected words that the response has, in [0, 11/12].

    Words are separated by blanks, in lower case, and counted once in the response; the divisor counts them as often as they are
    expected, so the exact answer gets 11/12.
    """
    expected = NEEDLES[0].answer.lower().split()
    return len(set(expected) & set(response.lower().split())) / len(expected)


def words_found(response: str, needle: Needle) -> float:
    """Return the share of ``needle.words`` that the response has, in [0, 1], whatever their case and the marks around them."""
    wanted = set(needle.words.split())
    return len(wanted & set(re.findall(r"\w+", response.lower()))) / len(wanted)


def share_in(places: Tensor, start: int, stop: int) -> Tensor:
    """Return the share ``(...)`` of the places ``start`` to ``stop - 1`` that are among ``places`` ``(..., k)``."""
    return ((places >= start) & (places < stop)).sum(-1) / (stop - start)


class Looked(NamedTuple):
    """``places`` ``(layer, prompt, k)`` that each layer selects, ``share`` ``(layer, prompt)`` of the needle, and ``answers``.

    ``answers`` are texts by method, one for each prompt.
    """

    places: Tensor
    share: Tensor
    answers: dict[str, list[str]]


def look(lm: LanguageModel, prompts: Sequence[NeedlePrompt], k: int, filter_layer: int, n_new: int) -> Looked:
    """Return what every layer selects from prompts of one length, and answers of GemFilter, the whole cache and SnapKV.

    Raises ``ValueError`` if prompt and answer are longer than the model's positions.
    """
    model, ends, limit = lm.model, end_tokens(lm), lm.model.config.get_text_config().max_position_embeddings
    if len(prompts[0].tokens) + n_new > limit:
        raise ValueError(f"prompt and answer must have at most {limit} tokens, got {len(prompts[0].tokens)} and {n_new}")
    tokens = torch.stack([one.tokens for one in prompts]).to(model.device)
    gem = ts.gem_filter(model, tokens, n_new, k, filter_layer, ends)
    prompt = ts.read(model, tokens, window=32)
    found = {"GemFilter": gem, "whole cache": ts.all_kv(model, prompt, n_new, ends)}
    found["SnapKV"] = ts.snap_kv(model, prompt, n_new, k, ends=ends)
    places = ts.select_tokens(prompt.rows, k).cpu()
    share = torch.stack([share_in(places[:, i], one.start, one.stop) for i, one in enumerate(prompts)], 1)
    return Looked(places, share, {name: [answer_text(lm, row) for row in answer.tokens] for name, answer in found.items()})


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


class Kept(NamedTuple):
    """The kept run: shares of needle and question selected by each layer, and words found by method.

    ``share`` and ``question`` are ``(run, haystack, length, depth, layer)``, each array of ``words`` ``(run, haystack, length,
    depth)``; ``GemFilter`` is the method with the filter layer of ``setting``.
    """

    setting: dict[str, Any]
    share: np.ndarray
    question: np.ndarray
    words: dict[str, np.ndarray]


def load_kept(name: str = "long") -> Kept:
    """Return the results of a kept run."""
    record = kept_runs.load("gemfilter", name)
    setting, runs = record["parameters"], [run["values"] for run in record["runs"]]
    shape = (len(runs), *(len(setting[key]) for key in ("haystacks", "lengths", "depths")))
    share, question = (np.array([[one[key] for one in run] for run in runs]) for key in ("needle", "question"))
    words = {}
    for method in runs[0][0]["answers"]:
        found = [[words_found(one["answers"][method], NEEDLES[one["index"]]) for one in run] for run in runs]
        words[method] = np.array(found).reshape(shape)
    words["GemFilter"] = words[f"layer {setting['filter_layer']}"]
    return Kept(setting, share.reshape(*shape, -1), question.reshape(*shape, -1), words)
