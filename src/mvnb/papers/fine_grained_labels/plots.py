"""Plots of chapter 02; each function returns a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from mvnb import figures
from mvnb.papers.fine_grained_labels import measure, theory
from mvnb.papers.fine_grained_labels.data import HierarchicalPatches, Labels
from mvnb.training import Run

COARSE, FINE = "coarse labels", "fine labels"
STYLES = {COARSE: ("o", "-"), FINE: ("s", "--")}
HUES = figures.COLORS | {kind: figures.COLORS[FINE] for kind in ("true", "fine", "pairs", "ten")}
HUES |= {kind: figures.COLORS[COARSE] for kind in ("coarse", "two")} | {"none": figures.COLORS["theory"]}
HUES |= {kind: figures.COLORS[f"{kind.split()[0].removesuffix('s')} labels"] for kind in ("random", "clusters", "unique")}
HUES["random IDs"] = HUES["random"]


def growth_plane(unit: Sequence[float], slope: float, marked: Sequence[float]) -> Figure:
    """Draw both paths of the growth of the common and of the fine feature, and the line below which hard points flip.

    ``unit`` has the step, s*, the mean coefficient, 1/lambda and k. ``slope`` is that of the line. The times ``marked`` have
    symbols.
    """
    fig, ax = plt.subplots(figsize=(5, 3.7))
    *_, bias_rate, k = unit
    times = np.concatenate([[0.0], np.geomspace(0.02, max(marked), 300)])
    fine_part = theory.coarse_response(theory.coarse_clock(*unit) * times) / (unit[1] * (unit[2] - bias_rate) * (k + 1))
    paths = {COARSE: np.stack([k * fine_part, fine_part]), FINE: theory.fine_trajectory(times, *unit)}
    across = np.array([0, 1.95])
    ax.plot(across, slope * across, **figures.LINES["chance"])
    ax.annotate("below: hard photographs\nare misjudged", (0.9, 0.45))
    for name, path in paths.items():
        marker, line = STYLES[name]
        ax.plot(*path, line, color=HUES[name])
        for t in marked:
            at = path[:, np.searchsorted(times, t)]
            ax.plot(*at, marker, ms=5, color=HUES[name])
            if t > marked[0]:
                offset = (7, -4) if name == FINE else (-8, -17)
                ax.annotate(f"$t={t}$", at, xytext=offset, textcoords="offset points", color=HUES[name])
    ax.annotate("label: dog", (0.75, 0.2), color=HUES[COARSE])
    ax.annotate("label:\npoodle", (0.45, 0.85), color=HUES[FINE])
    ax.set(xlabel="growth $A_c$ of the face (common)", ylabel="growth $A_f$ of the coat (fine)")
    ax.set(xlim=(0, 2), ylim=(0, None))
    return fig


def easy_and_hard(easy: HierarchicalPatches, hard: HierarchicalPatches) -> Figure:
    """Draw the first easy and the first hard point of a world with k = 2, coordinates against patches by content."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.3), sharey=True)
    names = ["$v_+$", "$v_-$", *(f"$v_{{{sign},{c}}}$" for sign in "+-" for c in (1, 2)), "noise", "only"]
    for ax, sample, title in zip(axes, (easy, hard), ("an easy point", "a hard point, same subclass")):
        order = (sample.kind[0] - 1).remainder(6).argsort()
        cells = figures.heatmap(ax, sample.x[0][order].T, names, limits=(-1.1, 1.1), cmap="RdBu_r")
        ax.axhline(len(names) - 2, color="#777777", lw=0.8)
        ax.set(title=title, xlabel="patch, by content")
        ax.set_xticks(np.arange(1.5, len(order), 2), range(2, len(order) + 1, 2))
    axes[0].set_ylabel("coordinate")
    fig.colorbar(cells, ax=axes, label="coefficient")
    return fig


def margins_over_training(trained: Mapping[str, Run]) -> Figure:
    """Draw mean margins on easy and on hard points over training, one line per run."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.5), sharey=True)
    for ax, kind, places in zip(axes, ("easy", "hard"), (((0.06, 0.8), (0.56, 0.4)), ((0.35, 0.06), (0.1, 0.45)))):
        for (name, run), place in zip(trained.items(), places):
            marker, line = STYLES[name]
            ax.plot(run.steps[1:], run.log[kind][1:].mean(-1), line, marker=marker, ms=4, lw=1.2, color=HUES[name])
            ax.annotate(name, place, xycoords="axes fraction", color=HUES[name])
        ax.axhline(0, **figures.LINES["chance"])
        ax.set(title=f"{kind} test points", xscale="log", xlabel="training step", ylim=(-1.5, None))
    axes[0].set_ylabel("mean margin")
    axes[0].annotate("below zero: wrong", (1, -0.7))
    return fig


def ratio_and_law(unit: Sequence[float], trained: Mapping[str, Run], fine_step: float, ideal: Mapping[str, Run]) -> Figure:
    """Draw the ratio of common to fine growth and the output of the right class; lines are theory, symbols are runs.

    ``unit`` is as for :func:`growth_plane`. ``fine_step`` is the step of the networks trained on fine labels, times detectors.
    """
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.5))
    k = unit[-1]
    axes[0].axhline(k, **figures.LINES["theory"])
    times = np.geomspace(0.7, trained[FINE].steps[-1], 100)
    axes[0].plot(times, np.divide(*theory.fine_trajectory(times, fine_step, *unit[1:])), **figures.LINES["theory"])
    for name, run in trained.items():
        axes[0].plot(run.steps[1:], measure.growth_ratio(run)[1:], STYLES[name][0], ms=5, alpha=0.7, color=HUES[name])
    axes[0].annotate(f"{COARSE}:\n$k={k}$", (1, 0.6 * k), va="top", color=HUES[COARSE])
    axes[0].annotate(f"{FINE}:\nfrom $k/(2k-1)$", (1, 0.75), color=HUES[FINE])
    axes[0].set(yscale="log", title="common growth / fine growth,\nrandom networks", ylim=(0.25, 1.5 * k))
    axes[0].set_yticks([0.5, 1, 2, 4, 8], ["½", 1, 2, 4, 8])
    axes[0].minorticks_off()
    steps = ideal[COARSE].steps
    times = np.geomspace(1, steps[-1], 200)
    axes[1].plot(times, theory.coarse_response(theory.coarse_clock(*unit) * times), **figures.LINES["theory"])
    axes[1].plot(steps, ideal[COARSE].log["easy"].mean(-1), "o", ms=4, alpha=0.7, color=HUES[COARSE])
    axes[1].set(title="output $F$, coarse labels,\nidealised network")
    axes[1].annotate("$F+e^F=1+\\kappa t$", (0.5, 0.16), xycoords="axes fraction")
    for ax in axes:
        ax.set(xscale="log", xlabel="training step")
    return fig


def by_label(runs: Mapping[str, Run], kinds: Mapping[str, Labels]) -> Figure:
    """Draw the first ratio of growth and the error on hard points for each kind of label, one symbol per run."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 4.1), sharey=True)
    hues = [HUES[name.split(",")[0]] for name in runs]
    ratios = {name: run.log["read-out"][0].numpy() for name, run in runs.items()}
    for ax, values in zip(axes, (ratios, {name: 100 * measure.last_error(run) for name, run in runs.items()})):
        figures.runs(ax, values, hues, horizontal=True, summary=None, size=5)
    expected = [kinds[name].ratio for name in runs]
    axes[0].plot(expected, range(len(expected)), "|", ms=16, color=figures.COLORS["theory"], zorder=4)
    axes[0].set(xscale="log", title="common / fine growth,\nfirst step (bars: theory)")
    axes[0].set_xticks([0.5, 1, 2, 4, 8], ["½", 1, 2, 4, 8])
    axes[0].minorticks_off()
    axes[1].set(title="hard points\nmisjudged, %", xlim=(-4, 104))
    return fig


def errors_by_arm(kept: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Draw test errors in percent by pretraining labels, and their paired differences from two labels, one symbol per seed."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.9), sharey=True)
    for ax, less, title in zip(axes, (0.0, kept["two"]["test"]), ("test error, %", "minus two labels, points")):
        values = {arm: found["test"] - less for arm, found in kept.items()}
        figures.runs(ax, values, [HUES[arm] for arm in kept], horizontal=True)
        ax.set(title=title)
    axes[1].axvline(0, **figures.LINES["chance"])
    return fig


def by_size(sizes: Sequence[int], ratios, clean, noisy, curve: np.ndarray, k_star: float) -> Figure:
    """Draw the ratio of growth and the error on hard points without and with strong noise, ``(size, run)``, against subclasses.

    ``curve`` ``(2, n)`` has numbers of subclasses and the theory's error.
    """
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.4))
    axes[0].plot(curve[0], curve[0], **figures.LINES["theory"])
    axes[0].plot(sizes, ratios, "o", ms=5, alpha=0.7, color=HUES[COARSE])
    axes[0].set(yscale="log", title="common / fine growth")
    axes[0].set_yticks(sizes, sizes)
    axes[1].plot(*curve, **figures.LINES["theory"])
    axes[1].axvline(k_star, **figures.LINES["chance"])
    for values, marker, face in ((clean, "o", HUES[COARSE]), (noisy, "^", "none")):
        axes[1].plot(sizes, values, marker, ms=5, alpha=0.7, color=HUES[COARSE], mfc=face)
    axes[1].annotate("$k^*$", (1.05 * k_star, 0.02))
    axes[1].set(title="hard points misjudged", ylim=(-0.03, 1.03))
    for ax in axes:
        ax.set(xscale="log", xlabel="subclasses $k$")
        ax.set_xticks(sizes, sizes)
        ax.minorticks_off()
    return fig


def with_and_without_bias(counts: Sequence[int], found: Mapping[str, np.ndarray]) -> Figure:
    """Draw firing on noise and error on easy points, ``(2, count, run)``, in percent against the number of patches."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.2), sharey=True)
    for (name, values), marker, hue in zip(found.items(), "so", (figures.HUES["grey"], HUES[COARSE])):
        for ax, one in zip(axes, values):
            ax.plot(counts, 100 * one, marker=marker, ms=4, lw=1.2, color=hue)
        axes[0].annotate(name, (counts[1], 100 * values[0][1].mean() + 2), color=hue)
    for ax, title in zip(axes, ("neurons firing on noise, %", "easy points misjudged, %")):
        ax.set(xscale="log", xlabel="patches $P$", title=title, ylim=(-4, 62))
        ax.set_xticks(counts, counts)
        ax.minorticks_off()
    return fig
