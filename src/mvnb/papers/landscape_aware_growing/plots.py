"""Figures of chapter 07; each function returns a figure.

Operators with random layers are blue, solid and round, those with copies orange, dashed and square.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from mvnb import figures, stats

RANDOM, COPY = figures.BASELINE, figures.METHOD
THEORY, GREEN, PINK = figures.COLORS["theory"], figures.HUES["green"], figures.HUES["pink"]


def _operators(ax, looks, values, random) -> None:
    for is_random, curve in zip(random, values.T):
        ax.plot(looks, curve, color=RANDOM if is_random else COPY, ls="-" if is_random else "--", lw=1.2)
    ax.set(xlabel="steps after growing", xlim=(looks[0] - 0.1 * (looks[0] == 0), looks[-1]))


def curves(looks: np.ndarray, change: np.ndarray, random: np.ndarray, after: int) -> Figure:
    """Draw changes of loss since growing ``(look, operator)``, and from step ``after`` on what sets operators apart."""
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2))
    _operators(axes[0], looks, change, random)
    axes[0].axhline(0, **figures.LINES["chance"])
    axes[0].set_xscale("symlog", linthresh=1)
    ticks = [t for t in (0, 1, 10, 100, 1000, 10_000) if t <= looks[-1]]
    axes[0].set_xticks(ticks, map(str, ticks))
    top = change[0].max()
    axes[0].set(ylabel="change of loss (nats)", ylim=(-0.25 * top, 1.06 * top))
    axes[0].annotate("copied layers", (6, 0.8 * top), color=COPY)
    axes[0].annotate("random layers", (0.05, -0.12 * top), color=RANDOM)
    late = looks >= after
    apart = 1000 * (change[late] - change[late].mean(1, keepdims=True))
    _operators(axes[1], looks[late], apart, random)
    axes[1].set(ylabel="loss minus mean (0.001 nats)")
    return fig


def end_against(seen: Mapping[int, np.ndarray], final: np.ndarray, random: np.ndarray) -> Figure:
    """Draw final losses ``(run, operator)``, minus the run's mean, against those seen after some steps."""
    fig, axes = plt.subplots(1, len(seen), figsize=(7.5, 3.2), sharey=True)
    rest = 1000 * (final - final.mean(1, keepdims=True))
    for ax, (step, losses) in zip(axes, seen.items()):
        above = losses - losses.min(1, keepdims=True)
        for chosen, color, mark, name in ((~random, COPY, "s", "copies"), (random, RANDOM, "o", "random layers")):
            ax.plot(above[:, chosen].ravel(), rest[:, chosen].ravel(), mark, color=color, ms=4, alpha=0.6, label=name)
        ax.set(title=f"after {step} steps", xlabel="loss above the lowest then (nats)")
    axes[0].set_ylabel("end, minus mean (0.001 nats)")
    axes[-1].legend(loc="lower right", handletextpad=0.1)
    return fig


def ranking(arms: Mapping[str, Sequence[np.ndarray]], lag: int) -> Figure:
    """Draw Spearman's correlation with the end and relative regret, means over replicas with 95 % intervals.

    An arm has the steps of its looks and both measures, ``(replica, look)``.
    """
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2))
    for (name, (looks, *measures)), color, style in zip(arms.items(), (GREEN, PINK), ("-", "--")):
        for ax, values in zip(axes, measures):
            mean, half = np.transpose([stats.mean_interval(one).plus_minus for one in values.T])
            ax.plot(looks, mean, style, color=color, label=name)
            ax.fill_between(looks, mean - half, mean + half, color=color, alpha=0.15, lw=0)
    for ax, title in zip(axes, ("Spearman with the end", "relative regret")):
        ax.axvline(lag, **figures.LINES["chance"])
        ax.set_xscale("symlog", linthresh=1)
        ticks = [t for t in (0, 1, 10, 100, 1000) if t <= looks[-1]]
        ax.set_xticks(ticks, map(str, ticks))
        ax.set(title=title, xlabel="steps after growing", xlim=(-0.2, looks[-1]))
    axes[0].axhline(0, **figures.LINES["chance"])
    axes[1].legend()
    return fig


def heat(looks: np.ndarray, between: np.ndarray) -> Figure:
    """Draw Spearman's correlations between looks ``(look, look)``."""
    fig, ax = plt.subplots(figsize=(4.6, 3.6))
    figures.heatmap(ax, between, looks, looks, limits=(-1, 1), cmap="RdBu_r", label="Spearman", square=True)
    ax.set(xlabel="step", ylabel="step")
    ax.invert_yaxis()
    return fig


def first_changes(changes: Mapping[str, np.ndarray], names: Sequence[str], random: np.ndarray) -> Figure:
    """Draw changes of the loss by growing ``(run, operator)``, for each kind of network."""
    fig, axes = plt.subplots(1, len(changes), figsize=(7.5, 3.6), sharey=True)
    for ax, (title, change) in zip(axes, changes.items()):
        for place, (is_random, values) in enumerate(zip(random, change.T)):
            color, mark = (RANDOM, "o") if is_random else (COPY, "s")
            ax.plot(values, np.full(len(values), place), mark, color=color, ms=4, alpha=0.6)
        ax.axvline(0, **figures.LINES["chance"])
        ax.set(title=title, xlabel="change of loss (nats)", yticks=range(len(names)))
        ax.set_yticklabels(names, fontsize=9)
    return fig
