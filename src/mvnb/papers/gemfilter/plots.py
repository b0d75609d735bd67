"""Figures of chapter 15."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import HTML
from matplotlib.figure import Figure
from torch import Tensor

from mvnb import figures, stats
from mvnb.models.language import LanguageModel
from mvnb.papers.gemfilter.measure import Kept

_HUES = {"random": "grey", "SnapKV": "green", "H2O": "pink", "One-Run": "brown", "softmax variant": "yellow"}
_HUES |= {"softmax variant, old places": "sky", "softmax variant, One-Run": "brown"}
COLORS = {"whole cache": figures.BASELINE, "GemFilter": figures.METHOD}
COLORS |= {name: figures.HUES[hue] for name, hue in _HUES.items()}
MARKS = dict(zip(COLORS, "oDxs^vPdv"))


def needle_by_layer(kept: Kept) -> Figure:
    """Draw the share of the needle that each layer selects from the longest prompts, by depth and haystack."""
    depths, filter_layer, length = kept.setting["depths"], kept.setting["filter_layer"], kept.setting["lengths"][-1]
    titles = {"repeated": "five sentences, repeated", "prose": "newspaper prose"}
    fig, axes = plt.subplots(kept.share.shape[1], 1, figsize=(6.5, 4.6), sharex=True)
    for ax, haystack, values in zip(axes, kept.setting["haystacks"], kept.share[:, :, -1].mean(0)):
        columns = ["" if layer % 5 else layer for layer in range(values.shape[1])]
        rows = [f"{100 * depth:.0f}" for depth in depths]
        cells = figures.heatmap(ax, values, rows, columns, limits=(0, 1), cmap="cividis")
        ax.set(title=f"{titles.get(haystack, haystack)}, {length:,} tokens", ylabel="needle at (%)")
        box = {"edgecolor": figures.METHOD, "facecolor": "none", "lw": 2.5}
        ax.add_patch(plt.Rectangle((filter_layer, 0), 1, len(depths), **box))
    axes[-1].set(xlabel=f"layer, from 0 (framed: filter layer {filter_layer})")
    fig.colorbar(cells, ax=axes, label="share of the needle selected")
    return fig


def _lines_by_length(ax, lengths: Sequence[int], values: dict[str, np.ndarray]) -> None:
    """Draw means and 95 % intervals of runs ``(run, length)`` against the length of the prompt, by method."""
    for i, (name, one) in enumerate(values.items()):
        mean, half = np.array([stats.mean_interval(column).plus_minus for column in one.T]).T
        style = {"color": COLORS[name], "fmt": MARKS[name] + "-", "capsize": 3, "ms": 6}
        beside = np.array(lengths) * 1.03 ** (i - len(values) / 2)
        ax.errorbar(beside, mean, half, label=name, **style)
    ax.set(xscale="log", xlabel="tokens in the prompt", ylim=(-0.05, 1.08))
    ax.set_xticks(lengths, [f"{n:,}" for n in lengths])
    ax.minorticks_off()


def answers_by_length(kept: Kept) -> Figure:
    """Draw words found by method against the length of the prompt, a panel for each haystack."""
    fig, axes = plt.subplots(1, kept.share.shape[1], figsize=(6.5, 3.9), sharey=True)
    shown = {name: kept.words[name].mean(3) for name in COLORS if name in kept.words and name != "One-Run"}
    for i, (ax, haystack) in enumerate(zip(axes, kept.setting["haystacks"])):
        _lines_by_length(ax, kept.setting["lengths"], {name: one[:, i] for name, one in shown.items()})
        ax.set_title({"repeated": "repeated sentences"}.get(haystack, haystack))
    axes[0].set_ylabel("words of the answer found")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=11)
    return fig


def right_by_length(right: Mapping[int, Mapping[str, np.ndarray]]) -> Figure:
    """Draw the values right of small models, ``(run, prompt)`` by length, that of training first, and by method."""
    fig, ax = plt.subplots(figsize=(6.5, 3.9))
    names = [name for name in COLORS if name in right[min(right)]]
    _lines_by_length(ax, [*right], {name: np.stack([one[name].mean(1) for one in right.values()], 1) for name in names})
    ax.axvline(min(right), **figures.LINES["chance"])
    ax.set(ylabel="values right", title="GemFilter fails here, its softmax variant gains")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=11)
    return fig


def highlighted(lm: LanguageModel, tokens: Tensor, kept: Tensor) -> Any:
    """Return a prompt as text, with selected tokens bold and the others faint."""
    chosen = torch.zeros(len(tokens), dtype=torch.bool)
    chosen[kept] = True
    spans = []
    for on, run in groupby(range(len(tokens)), key=lambda i: bool(chosen[i])):
        text = escape(lm.decode([int(tokens[i]) for i in run]))
        spans.append(("<mark><b>{}</b></mark>" if on else '<span style="opacity:.6">{}</span>').format(text))
    return HTML(f'<pre style="white-space:pre-wrap;font-size:.8em;line-height:1.4">{"".join(spans)}</pre>')
