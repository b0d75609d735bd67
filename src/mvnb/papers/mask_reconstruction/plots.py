"""Pictures of chapter 03; each function returns a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from mvnb import figures, stats
from mvnb.papers.mask_reconstruction.data import SparsePatches

Log = Mapping[str, Tensor]
LABELS, MASKED = figures.BASELINE, figures.METHOD


def _feature_names(n_features: int) -> list[str]:
    return [f"$v_{{{f // 2 + 1},{f % 2 + 1}}}$" for f in range(n_features)]


def pushes(found: np.ndarray, labels: np.ndarray, masked: np.ndarray) -> Figure:
    """The push on the second kernel against what the first kernel has found, relative to the start."""
    fig, ax = plt.subplots(figsize=(5, 2.9))
    for push, color, name, place in (
        (masked, MASKED, "reconstruction", (2.5, 0.93)),
        (labels, LABELS, "labels", (2.1, 0.4)),
    ):
        ax.plot(found, push / push[0], color=color, lw=2.5)
        ax.annotate(name, place, color=color, va="top", fontsize=12)
    ax.set(xlabel="$u_1$: correlation of kernel 1 with feature 1", ylim=(0, 1.08))
    ax.set_ylabel("push on kernel 2,\nrelative to start")
    return fig


def points(samples: Mapping[str, SparsePatches], n_features: int) -> Figure:
    """Inner products of the patches of two points with the features."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.4), sharey=True)
    for ax, (title, sample) in zip(axes, samples.items()):
        n_patches = sample.x.shape[1]
        style = {"limits": (-1.3, 1.3), "cmap": "RdBu_r"}
        cells = figures.heatmap(ax, sample.x[0].T, _feature_names(n_features), range(1, n_patches + 1), **style)
        ax.hlines(range(2, n_features, 2), 0, n_patches, color="#bbbbbb", lw=0.8)
        ax.set(title=title, xlabel="patch")
    fig.colorbar(cells, ax=axes, label="inner product")
    return fig


def opening(labels: Log, masked: Log, run: int, threshold: float, stopped: Tensor) -> Figure:
    """Best responses to each feature over time, relative to the threshold, in one run of each method.

    ``stopped`` ``(runs,)`` is the time at which the loss of the labels is 0.01.
    """
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.6), sharey=True)
    times = [log["time"][:, run].cpu().numpy() for log in (labels, masked)]
    grid = np.geomspace(100, 1.2 * times[1][-1], 160)
    for ax, log, clock, title, cmap in zip(axes, (labels, masked), times, ("labels", "reconstruction"), ("Blues", "Oranges")):
        look = np.searchsorted(clock, grid, side="right") - 1
        shade = log["best"][:, run].cpu().numpy()[look].T / threshold  # (feature, time)
        ax.pcolormesh(grid, np.arange(len(shade) + 1), shade[:, 1:], cmap=cmap, vmin=0, vmax=1)
        ax.hlines(range(2, len(shade), 2), *grid[[0, -1]], color="#999999", lw=0.8)
        ax.set(xscale="log", xlabel="time", title=title, ylim=(len(shade), 0), xlim=grid[[0, -1]])
        ax.grid(False)
    at = float(stopped[run])
    for color, width in (("white", 3.5), (figures.HUES["ink"], 1.5)):
        axes[0].axvline(at, color=color, lw=width)
    axes[0].annotate("loss 0.01", (at, 0), xytext=(0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=12)
    axes[0].set_yticks(np.arange(len(shade)) + 0.5, _feature_names(len(shade)))
    axes[0].set_ylabel("feature $\\ell$ of class $i$, $v_{i,\\ell}$")
    return fig


def staircase(log: Log, stairs: np.ndarray, predicted: np.ndarray, captured: np.ndarray) -> Figure:
    """The loss of the first run with stairs of predicted heights; predicted and measured times of capture of all features."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.1))
    clock, loss = (log[key][:, 0].cpu().numpy() for key in ("time", "loss"))
    axes[0].plot(clock, loss, color=MASKED, lw=2.5)
    axes[0].plot(clock, stairs[:, 0], drawstyle="steps-post", color=figures.HUES["ink"], lw=1.2)
    axes[0].set(xlim=(0, 1.2 * np.nanmax(captured[0], initial=clock[1])), xlabel="time", ylabel="loss", title="loss of one run")
    there = np.isfinite(captured)
    axes[1].plot(predicted[there], captured[there], "o", ms=4, alpha=0.7, color=MASKED)
    line = np.array([predicted.min(), predicted.max()])
    axes[1].plot(line, line, color=figures.HUES["ink"], lw=1.2)
    axes[1].set(xlabel="predicted time", ylabel="measured time", title=f"capture of {there.sum()} features")
    return fig


def accuracies(table: Mapping[str, Mapping[str, np.ndarray]], expected: float, colors: Sequence[str]) -> Figure:
    """Accuracies on single-view points, a row for each way to train; ``expected`` belongs to the row "from scratch"."""
    fig, ax = plt.subplots(figsize=(6.5, 3.6))
    groups = {f"{name} ({result['multi-view'].mean():.2f})": result["single-view"] for name, result in table.items()}
    figures.runs(ax, groups, colors, horizontal=True, size=5)
    row = list(table).index("from scratch")
    ax.plot([expected] * 2, [row - 0.4, row + 0.4], color=figures.HUES["ink"], lw=1.5)
    ax.annotate(" expected", (expected, row - 0.3), va="center", fontsize=11)
    ax.set(xlabel="accuracy on single-view points\n(in parentheses: on multi-view points)", xlim=(0.4, 1.05))
    return fig


def gains(errors: Mapping[str, np.ndarray], gain: np.ndarray, labels: Sequence[int]) -> Figure:
    """Test errors on MNIST ``(label count, seed)`` by arm, and what pretraining gains, ``(label count, seed)``."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.6))
    for arm, found in errors.items():
        frozen, mine = arm.endswith("features"), arm.startswith("pretrained")
        how = {"ls": "--" if frozen else "-", "marker": "s" if mine else "o", "color": MASKED if mine else LABELS}
        name = {"scratch": "from scratch", "random features": "frozen, random", "pretrained features": "frozen, pretrained"}
        axes[0].plot(labels, found.mean(1), **how, label=name.get(arm, arm))
    mean, half = np.transpose([stats.mean_interval(one).plus_minus for one in gain])
    axes[1].errorbar(labels, mean, half, marker="D", ms=5, capsize=3, color=figures.HUES["ink"])
    for ax in axes:
        ax.set(xscale="log", xlabel="labels", xlim=(0.8 * labels[0], 1.3 * labels[-1]))
        ax.set_xticks(labels, [f"{n:,}" for n in labels])
    axes[0].set(yscale="log", title="test error, %")
    axes[0].set_yticks([2, 5, 10, 20], ["2", "5", "10", "20"])
    axes[1].axhline(0, **figures.LINES["chance"])
    axes[1].set_title("gain of pretraining, points")
    for ax in axes:
        ax.minorticks_off()
    axes[0].legend(loc="center right", frameon=False, bbox_to_anchor=(1.04, 0.5), handlelength=2.2, fontsize="small")
    return fig


def lottery(first: np.ndarray, last: np.ndarray, threshold: float) -> Figure:
    """Pairs of a kernel and a feature in one run, ``(kernels, features)``: correlation at the capture of the last feature."""
    fig, ax = plt.subplots(figsize=(5, 3.1))
    held, bar = last >= threshold, first.max(0).min()
    ax.plot(first, last, ".", ms=3, color="#bbbbbb")
    ax.plot(first[held], last[held], "o", ms=5, color=figures.COLORS["Teacher-student"])
    ax.axvline(bar, color=figures.HUES["ink"], lw=1)
    ax.axhline(threshold, **figures.LINES["chance"])
    at = {"xycoords": ("data", "axes fraction"), "xytext": (4, 0), "textcoords": "offset points"}
    ax.annotate("last winner's start", (bar, 0.97), va="top", **at)
    ax.set(xlabel="initial correlation", ylabel="correlation at $T_0$", xlim=(0, None), ylim=(0, None))
    return fig


def runaway(log: Log, allowed: float) -> Figure:
    """Best correlations of the first run after all features have been captured, and the time of which the theorem speaks."""
    fig, ax = plt.subplots(figsize=(5, 2.9))
    ax.plot(log["time"][:, 0].numpy(), log["best"][:, 0].cpu(), color=figures.COLORS["Teacher-student"], lw=1.2)
    ax.axvline(allowed, color=figures.HUES["ink"], lw=1)
    ax.annotate("$kT_0^{1/q}$", (allowed, 0.3), xytext=(-4, 0), textcoords="offset points", ha="right")
    ax.set(yscale="log", xlabel="time after $T_0$", ylabel="best correlations")
    return fig


def levels(keep: Sequence[float], found: Sequence[np.ndarray], curve: tuple[np.ndarray, np.ndarray]) -> Figure:
    """The correlations at rest, a column for each probability that a patch is kept, with the predicted curve."""
    fig, ax = plt.subplots(figsize=(5, 3.1))
    ax.plot(*curve, color=figures.HUES["ink"], lw=1.2)
    for theta, values in zip(keep, found):
        ax.plot(np.full(values.size, theta), values.ravel(), "o", ms=4, alpha=0.6, color=MASKED)
    ax.annotate("predicted $u_*(\\theta)$", (0.58, 0.75), va="top")
    ax.set(xlabel="probability $\\theta$ that a patch is kept", ylabel="best correlation\nwith each feature", ylim=(0, None))
    return fig


def maps(shown: Tensor, own: Tensor, cams: Mapping[str, np.ndarray]) -> Figure:
    """Pictures ``(n, 32, 32)`` and the maps ``(n, 8, 8)`` of two networks, with frames around the own tiles ``(n, 16)``."""
    rows = {"picture": (shown, 8, {"cmap": "gray", "vmin": -1.5, "vmax": 1.5})}
    rows |= {name: (cam, 2, {"cmap": "magma", "vmin": 0, "vmax": 1}) for name, cam in cams.items()}
    fig, axes = plt.subplots(3, len(shown), figsize=(6.5, 3.4))
    for line, (label, (values, side, style)) in zip(axes, rows.items()):
        line[0].set_ylabel(label, fontsize=11)
        for ax, value, tiles in zip(line, values, own):
            ax.imshow(value, **style)
            for tile in tiles.nonzero()[:, 0].tolist():
                corner = (tile % 4 * side - 0.5, tile // 4 * side - 0.5)
                ax.add_patch(plt.Rectangle(corner, side, side, fill=False, ec=figures.HUES["sky"], lw=1.6))
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
    return fig
