"""Figures of chapter 15."""

from __future__ import annotations

from collections.abc import Mapping
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
_HUES |= {"softmax variant, old places": "sky", "softmax variant, One-Run": "brown", "old places": "sky"}
COLORS = {"whole cache": figures.BASELINE, "GemFilter": figures.METHOD}
COLORS |= {name: figures.HUES[hue] for name, hue in _HUES.items()}
MARKS = dict(zip(COLORS, "oDxs^vPdvd"))


TITLES = {"repeated": "five sentences, repeated", "prose": "newspaper prose"}


def needle_by_layer(kept: Kept) -> Figure:
    """Draw the share of the needle that each layer selects from 4,000 tokens, by depth and haystack."""
    layer, places = kept.setting["layers"]["GemFilter"], {haystack: kept.at(haystack) for haystack in TITLES}
    ratios = [len(some) for some in places.values()]
    fig, axes = plt.subplots(2, 1, figsize=(6.5, 4.4), sharex=True, height_ratios=ratios)
    for ax, (haystack, some) in zip(axes, places.items()):
        columns = ["" if i % 5 else i for i in range(kept.share.shape[2])]
        rows = [f"{100 * kept.cases[i][2]:.0f}" for i in some]
        cells = figures.heatmap(ax, kept.share[:, some].mean(0), rows, columns, limits=(0, 1), cmap="cividis")
        ax.set(title=f"{TITLES[haystack]}, 4,000 tokens", ylabel="needle at (%)")
        box = {"edgecolor": figures.METHOD, "facecolor": "none", "lw": 2.5}
        ax.add_patch(plt.Rectangle((layer, 0), 1, len(some), **box))
    axes[-1].set(xlabel=f"layer, from 0 (framed: filter layer {layer})")
    fig.colorbar(cells, ax=axes, label="share of the needle selected")
    return fig


def answers_by_method(kept: Kept) -> Figure:
    """Draw the words found by method at 4,000 tokens, means and 95 % intervals of runs, a panel for each haystack."""
    names = sorted(kept.words, key=lambda name: -np.nanmean(kept.words[name][:, kept.at("repeated")]))
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 4.2), sharey=True)
    for ax, (haystack, title) in zip(axes, TITLES.items()):
        for row, name in enumerate(names):
            depths = [0.5] if name == "H2O" else None
            mean, half = stats.mean_interval(kept.by_run(name, haystack, depths=depths)).plus_minus
            style = {"fmt": MARKS.get(name, "D"), "color": COLORS.get(name, figures.METHOD), "mfc": COLORS.get(name, "none")}
            ax.errorbar(mean, row, xerr=half, capsize=3, ms=6, **style)
        ax.set(title=title, xlabel="words found", xlim=(-0.05, 1.05))
    axes[0].set_yticks(range(len(names)), [{"H2O": "H2O (depth 50 %)"}.get(name, name) for name in names])
    axes[0].invert_yaxis()
    return fig


def right_by_length(right: Mapping[int, Mapping[str, np.ndarray]]) -> Figure:
    """Draw the values right of small models, ``(run, prompt)`` by length, that of training first, and by method."""
    fig, ax = plt.subplots(figsize=(6.5, 3.9))
    names = [name for name in COLORS if name in right[min(right)]]
    for i, name in enumerate(names):
        intervals = [stats.mean_interval(one[name].mean(1)).plus_minus for one in right.values()]
        beside = np.array([*right]) * 1.03 ** (i - len(names) / 2)
        ax.errorbar(beside, *np.array(intervals).T, color=COLORS[name], fmt=MARKS[name] + "-", capsize=3, ms=6, label=name)
    ax.axvline(min(right), **figures.LINES["chance"])
    ax.set(xscale="log", xlabel="tokens in the prompt", ylim=(-0.05, 1.08), ylabel="values right")
    ax.set(title="GemFilter fails here, its softmax variant gains")
    ax.set_xticks([*right], [f"{n:,}" for n in right])
    ax.minorticks_off()
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
