"""Figures of chapter 05; each function returns a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from mvnb import figures
from mvnb.papers.local_signal_adaptivity import measure

NET, KERNEL = figures.COLORS["ERM"], figures.COLORS["Tangent kernel"]
GREY, BIAS, LINE = figures.HUES["grey"], figures.HUES["yellow"], figures.COLORS["theory"]


def note(ax, text: str, xy: tuple, offset: tuple = (5, 4), **style) -> None:
    """Write text beside a point, the offset in points."""
    ax.annotate(text, xy, xytext=offset, textcoords="offset points", **style)


def question(row: np.ndarray, bar: float, k: int, sigma: float) -> Figure:
    """Draw numbers with one signal of size 1 and what a threshold removes; beside it, accuracy over the threshold."""
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), width_ratios=(1.5, 1))
    signal, grid = int(row.argmax()), np.linspace(0, 0.95, 39)
    axes[0].vlines(range(len(row)), 0, row, color=GREY, lw=1)
    axes[0].plot(signal, row[signal], "o", color=NET)
    note(axes[0], "signal", (signal, row[signal]), (6, -2), color=NET)
    axes[0].axhspan(-bar, bar, color=NET, alpha=0.1, lw=0)
    note(axes[0], f"removed by a threshold of {bar:g}", (0, -bar), (2, -12), color=NET)
    axes[0].set(xlabel=f"patch ({len(row)} of them)", ylabel="value", ylim=(-1.05, 1.15))
    axes[1].plot(grid, measure.accuracy(1.0, -grid, k, sigma), color=LINE)
    axes[1].set(xlabel=f"threshold ($k={k}$)", ylabel="accuracy", ylim=(0.5, 1.02))
    return fig


def stages(marks: Sequence[int], log: Mapping[str, np.ndarray], path: np.ndarray, k: int, sigma: float) -> Figure:
    """Draw c, b, their ratio and the accuracy of all runs over steps, and the path ``(2, mark)`` of the population, dotted."""
    c, v, b = (log[name] for name in "cvb")
    fig, axes = plt.subplots(1, 3, figsize=(7.5, 3.0))
    for values, own, color in ((c, path[0], NET), (b, path[1], BIAS)):
        axes[0].plot(marks, values, color=color, lw=1)
        axes[0].plot(marks, own, ":", color=LINE)
    note(axes[0], r"$c=\langle w,w_*\rangle$", (marks[24], c[24].mean()), (-62, 6), color=NET)
    note(axes[0], "$b$", (marks[24], b[24].mean()), (4, 4), color=BIAS)
    axes[1].plot(marks[2:], -b[2:] / c[2:], color=NET, lw=1)
    axes[1].plot(marks[2:], -path[1][2:] / path[0][2:], ":", color=LINE)
    axes[2].plot(marks, measure.accuracy(c, b, k, sigma, v), color=NET, lw=1)
    axes[2].plot(marks, measure.accuracy(*path, k, sigma), ":", color=LINE)
    for ax, label in zip(axes, ("parameter", "ratio $|b|/c$", "test accuracy")):
        ax.set(xlabel="step", ylabel=label, xticks=[0, marks[-1] // 2, marks[-1]])
    axes[2].set_ylim(0.45, 0.85)
    return fig


def frozen(errors: Mapping[int, np.ndarray], trained: np.ndarray) -> Figure:
    """Draw errors ``(2, draw)`` of frozen filters by their number, with common and oracle thresholds, and of a trained one."""
    fig, ax = plt.subplots(figsize=(7.5, 3.0))
    for kind, (marker, shift, label) in enumerate((("o", -0.2, "best common threshold"), ("^", 0.2, "oracle thresholds"))):
        groups = {f"{m}": one[kind] for m, one in errors.items()}
        figures.runs(ax, groups, KERNEL, marker=marker, shift=shift, size=3, label=label)
    ax.axhline(trained.mean(), color=NET)
    note(ax, "one trained filter", (len(errors) - 0.5, trained.mean()), (-104, 4), color=NET)
    ax.set(xlabel="frozen filters", ylabel="error", ylim=(0, 0.53))
    ax.legend(fontsize=9, loc="upper right")
    return fig


def over_noise(ax, found: Mapping[str, Mapping[str, np.ndarray]], names: Mapping[str, str]) -> None:
    """Draw ``(seed,)`` by arm and world, seeds and means, over the worlds; ``names`` are their ticks."""
    for (arm, worlds), color, marker in zip(found.items(), (NET, KERNEL), "os"):
        values = np.array([worlds[name] for name in names])
        ax.plot(values, marker, color=color, ms=3, alpha=0.4)
        levels = sum(name != "texture" for name in names)  # only these are on one scale
        ax.plot(values[:levels].mean(1), "-" if marker == "o" else "--", color=color)
        note(ax, arm, (2, values[2].mean()), (-36, -16) if marker == "s" else (4, 5), color=color)
    ax.set_xticks(range(len(names)), names.values())


def noise(right: Mapping[str, Mapping[str, np.ndarray]], names: Mapping[str, str], chance: float) -> Figure:
    """Draw accuracies ``(seed,)`` by arm and world, and that of always giving one answer."""
    fig, ax = plt.subplots(figsize=(7.5, 3.0))
    over_noise(ax, right, names)
    ax.axhline(chance, **figures.LINES["chance"])
    ax.set(xlabel=r"background: Gaussian noise of $\sigma$, or textures", ylabel="test accuracy")
    return fig


def opening(marks, accurate: np.ndarray, levels: Mapping[str, float], kept: Mapping, names: Mapping[str, str]) -> Figure:
    """Draw accuracies ``(mark, run)`` of the trained filter above ``levels`` by name; beside it the shares of accuracy kept."""
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
    axes[0].plot(marks, accurate, color=NET, lw=1.2)
    note(axes[0], "one trained filter", (marks[-1], accurate[-1].mean()), (-104, 6), color=NET)
    for text, level in levels.items():
        color = KERNEL if "frozen" in text else GREY
        axes[0].axhline(level, color=color, ls="--", lw=1.2)
        note(axes[0], text, (marks[-1], level), (-96, 3), color=color, fontsize=9)
    axes[0].set(xlabel="training step", ylabel="test accuracy", ylim=(0.5, 0.95), xticks=[0, marks[-1] // 2, marks[-1]])
    over_noise(axes[1], kept, names)
    axes[1].set(xlabel=r"noise $\sigma$", ylabel="share of accuracy kept")
    return fig


def pictures(images: Mapping[str, Tensor]) -> Figure:
    """Draw one image ``(channels, side, side)`` per title; values are cut to those that a screen shows."""
    fig, axes = plt.subplots(1, len(images), figsize=(7.5, 2.2))
    for ax, (title, image) in zip(axes, images.items()):
        low = -0.5 if len(image) == 1 else 0.0
        ax.imshow(image.permute(1, 2, 0).clamp(low, 1), cmap="gray", vmin=low, vmax=1.0)
        ax.set(xticks=[], yticks=[], title=title)
    return fig
