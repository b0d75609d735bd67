"""Figures of chapter 13; each function returns a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from mvnb import figures, stats
from mvnb.papers.contrastive_tradeoff import theory
from mvnb.papers.contrastive_tradeoff.data import Mixture

MIXED, OWN = figures.METHOD, figures.BASELINE  # pretrained on many tasks or sets, on one
SHARED, AVERAGE, GREY = (figures.HUES[hue] for hue in ("green", "pink", "grey"))


def learned_weights(world: Mixture, grams: Mapping[int, Tensor]) -> Figure:
    """Draw the mean learned weights of each kind of feature by number of tasks, one symbol per run."""
    fig, ax = plt.subplots(figsize=(5, 3.4))
    tasks = list(grams)
    curve = np.geomspace(1, tasks[-1], 100)
    ax.plot(curve, 1 / curve, **figures.LINES["theory"])
    for t, gram in grams.items():
        at = t * np.linspace(0.96, 1.04, len(gram))
        for part, mark, color in zip(world.by_kind(gram), "so^", (SHARED, MIXED, GREY)):
            ax.plot(at, part.mean(1), mark, color=color, ms=5)
    for text, at, color in (("shared", 0.9, SHARED), ("private", 0.55, MIXED), ("spurious", 0.06, GREY)):
        ax.annotate(text, ((tasks[0] * tasks[-1]) ** 0.5, at), color=color, va="center")
    ax.annotate("$1/T$", (1.08 * tasks[-1] ** 0.25, tasks[-1] ** -0.25), ha="left")
    ax.set(xscale="log", xlabel="tasks $T$ in the mixture", ylabel="learned weight", ylim=(-0.05, 1.1))
    ax.set_xticks(tasks, tasks)
    return fig


def errors_by_labels(counts: Sequence[int], errors: Mapping[int, np.ndarray], s: int) -> Figure:
    """Draw mean squared errors ``(m,)`` for three T and their limit for many tasks, with s shared and s private features."""
    fig, ax = plt.subplots(figsize=(5, 3.7))
    colors, places = [OWN, *figures.shades(len(errors) - 1)[::-1]], ((3.5, 0.25), (6, 1.05), (12.6, 2.2))
    for (t, row), color, at in zip(errors.items(), colors, places):
        ax.plot(counts, row, "o-", ms=4, lw=1.2, color=color)
        ax.annotate(f"$T={t}$", at)
    whole = np.arange(1, 2 * s + 1)
    ax.plot(whole, theory.endless_error(whole, s, s, 0.5, 0.5), "_", color=figures.COLORS["theory"], ms=9)
    ax.annotate("bars: limit $T\\to\\infty$", (13.5, 3.2))
    ax.axvline(s, **figures.LINES["chance"])
    ax.set(xlabel="labels $m$", ylabel="mean squared error", ylim=(0, 5))
    return fig


def universality(own: np.ndarray, average: np.ndarray) -> Figure:
    """Draw the error on a task of a mixture of 1 to 10 tasks, and the mean error over ten tasks."""
    fig, ax = plt.subplots(figsize=(5, 3.4))
    tasks = np.arange(1, 11)
    ax.plot(tasks, own, "o-", color=MIXED)
    ax.plot(tasks, average, "s--", color=AVERAGE)
    ax.annotate("on a task of the mixture", (tasks[-1], own[-1] - 0.06), color=MIXED, ha="right", va="top")
    ax.annotate("mean over all ten tasks", (tasks[2], average[2] + 0.02), color=AVERAGE)
    ax.set(xlabel="tasks in pretraining", ylabel="error with 15 labels", ylim=(0, 1.1 * average.max()))
    return fig


def kept_run(kept: Mapping[str, Mapping[str, np.ndarray]], labels: Sequence[str], lost: Mapping[str, np.ndarray]) -> Figure:
    """Draw accuracies on the target by labels, and what was lost on it, means over seeds with 95 % intervals."""
    fig, axes = plt.subplots(2, 1, figsize=(5, 6.6))
    lines = {
        "SimCLR, alone": (OWN, "o-"), "SimCLR, added": (MIXED, "s-"),
        "MoCo, alone": (SHARED, "^--"), "MoCo, added": (AVERAGE, "d--"),
        "pixels": (GREY, "v:"), "untrained": (figures.HUES["brown"], "x:"),
    }  # fmt: skip
    places = np.arange(len(labels))
    for arm, (color, style) in lines.items():
        found = np.array([stats.mean_interval(column).plus_minus for column in kept[arm]["cifar10"].T])
        text = arm.replace("alone", "CIFAR-10 alone").replace("added", "with MNIST")
        axes[0].errorbar(places, found[:, 0], found[:, 1], fmt=style, color=color, ms=5, lw=1.4, capsize=2, label=text)
    axes[0].legend(loc="lower right", ncols=2, fontsize=8.5)
    axes[0].set(ylabel="accuracy on CIFAR-10 (%)", xticks=[], xlim=(-0.3, len(labels) - 0.7), ylim=(0, 60))
    for shift, (text, values), color, mark in zip((-0.07, 0.07), lost.items(), (MIXED, AVERAGE), "sd"):
        found = np.array([stats.mean_interval(column).plus_minus for column in values.T])
        axes[1].errorbar(places + shift, found[:, 0], found[:, 1], fmt=mark, color=color, capsize=3, label=text)
    axes[1].axhline(0, **figures.LINES["chance"])
    axes[1].legend(loc="best")
    axes[1].set(ylabel="lost by adding MNIST (points)", xlabel="labels of CIFAR-10", xlim=axes[0].get_xlim())
    axes[1].set_xticks(places, labels)
    return fig
