"""Figures of chapter 01."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from mvnb import figures, stats
from mvnb.data import Patches
from mvnb.papers.midpoint_mixup import theory
from mvnb.papers.midpoint_mixup.images import midpoint_lead
from mvnb.training import Run


def landscape(n_classes: int, starts: Sequence[tuple[float, float]], time: float) -> Figure:
    """Draw both population losses over the two correlations of a linear model, with paths of gradient flow."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.5), sharey=True)
    grid = np.linspace(-1, 30, 78)
    surfaces = theory.population_losses(*np.meshgrid(grid, grid), n_classes)
    for ax, values, objective, name in zip(axes, surfaces, ("erm", "midpoint"), ("ERM", "Midpoint Mixup")):
        ax.contourf(grid, grid, np.log10(values - values.min() + 1e-3), 14, cmap="Greys_r")
        for start in starts:
            path = theory.gradient_flow(objective, start, n_classes, time)
            ax.plot(*path, color=figures.COLORS[name])
            ax.plot(*path[:, 0], "o", ms=4, color="white", mec=figures.COLORS[name])
            ax.plot(*path[:, -1], "s", ms=5, color=figures.COLORS[name])
        ax.set(title=name, xlabel="correlation $c_1$", xlim=(-1, 30), ylim=(-1, 30))
        ax.set_aspect("equal")
    axes[0].set_ylabel("correlation $c_2$")
    return fig


def points_and_midpoint(pair: Patches, n_patches: int) -> Figure:
    """Draw two points of different classes and their midpoint, patches against features."""
    fig, axes = plt.subplots(3, 1, figsize=(5, 4.6), sharex=True)
    slots, dim = pair.x.shape[1:]
    columns = [f"$v_{{{y},{view}}}$" for y in range(dim // 2) for view in (1, 2)]
    rows = [*range(1, slots), f"{slots}–{n_patches}"]
    titles = (*(f"a point of class {y}" for y in pair.y.tolist()), "their midpoint")
    for ax, x, title in zip(axes, (*pair.x, pair.x.mean(0)), titles):
        cells = figures.heatmap(ax, x, rows, columns, limits=(0, 1.4), cmap="Blues")
        ax.vlines(range(2, dim, 2), 0, slots, color="#bbbbbb", lw=0.8)
        ax.set_title(title, fontsize=11)
    axes[1].set_ylabel("patch")
    axes[2].set_xlabel("feature")
    fig.colorbar(cells, ax=axes, label="coefficient")
    return fig


def paths(runs: Mapping[str, Run], shown: int) -> Figure:
    """Draw the paths of the classes of ``shown`` networks in the plane of their best correlations, one panel per method."""
    fig, axes = plt.subplots(1, len(runs), figsize=(6.5, 3.5), sharex=True, sharey=True)
    for ax, (name, run) in zip(axes, runs.items()):
        path = run.log["best"][:, :shown].flatten(1, 2).numpy()  # (logged step, class of a run, feature)
        ax.plot([0, 11], [0, 11], color="#bbbbbb", lw=1, ls="--")
        ax.plot(path[..., 0], path[..., 1], color=figures.COLORS[name], lw=0.9, alpha=0.7)
        ax.plot(path[-1, :, 0], path[-1, :, 1], "s", ms=4, color=figures.COLORS[name])
        ax.set(title=name, xlabel="response to feature 1", xticks=range(0, 13, 4), yticks=range(0, 13, 4))
        ax.set_aspect("equal")
    axes[0].set_ylabel("response to feature 2")
    return fig


MARKERS = {"ERM": "o", "Midpoint Mixup": "s", "Uniform Mixup": "^"}


def error_by_epoch(groups: Mapping[str, Mapping], epochs: np.ndarray) -> Figure:
    """Draw test errors by epoch of the first group, and Midpoint Mixup's lead over ERM in both, paired by seed."""
    fig, axes = plt.subplots(2, 1, figsize=(5, 5.6), sharex=True)
    for name, arm in next(iter(groups.values())).items():
        look = {"color": figures.COLORS[name], "marker": MARKERS[name], "markevery": 7, "ms": 4.5}
        axes[0].plot(epochs, arm["error"].mean(0), label=name, **look)
    axes[0].set_ylabel("test error, %")
    axes[0].legend(loc="upper right", fontsize=11)
    _draw_leads(axes[1], groups, epochs, (("s", "-", "ink"), ("o", "--", "grey")), 1, lw=1.4)
    return fig


def lead_by_width(widths: Mapping[int, Mapping], epochs: np.ndarray) -> Figure:
    """Draw Midpoint Mixup's lead over ERM by epoch, one line per width of the network."""
    fig, ax = plt.subplots(figsize=(7.5, 3.3))
    groups = {f"{width} channels": arms for width, arms in widths.items()}
    _draw_leads(ax, groups, epochs, (("v", ":", "grey"), ("s", "-", "ink"), ("^", "--", "brown")), 1.2)
    return fig


def _draw_leads(ax, groups: Mapping[str, Mapping], epochs: np.ndarray, looks: Sequence, apart: float, lw=None) -> None:
    """Draw ERM minus Midpoint Mixup, means of ten epochs with intervals, paired by seed, one line per group."""
    tens = (epochs - 1) // 10
    shifts = np.linspace(-apart, apart, len(groups))
    for shift, (label, arms), (marker, style, hue) in zip(shifts, groups.items(), looks):
        lead = midpoint_lead(arms)
        rows = [
            (epochs[tens == ten].mean(), *stats.mean_interval(lead[:, tens == ten].mean(1)).plus_minus)
            for ten in np.unique(tens)
        ]
        places, mean, half = np.transpose(rows)
        look = {"ls": style, "marker": marker, "ms": 4, "lw": lw, "capsize": 3, "color": figures.HUES[hue]}
        ax.errorbar(places + shift, mean, yerr=half, label=label, **look)
    ax.axhline(0, **figures.LINES["chance"])
    ax.set(xlabel="epoch", ylabel="ERM minus Midpoint,\npercentage points")
    ax.legend(loc="lower right", title="ten epochs each, 95 % intervals", title_fontsize=11)


def risk_by_epoch(groups: Mapping[str, Mapping], epochs: np.ndarray) -> Figure:
    """Draw test errors and cross-entropies on training views by epoch, seeds and their means, one column per group."""
    fig, axes = plt.subplots(2, len(groups), figsize=(7.5, 5.0), sharex=True, sharey="row")
    for column, (title, arms) in zip(axes.T, groups.items()):
        for ax, key in zip(column, ("error", "risk")):
            for name, arm in arms.items():
                look = {"color": figures.COLORS[name]}
                ax.plot(epochs, arm[key].T, lw=0.6, alpha=0.3, **look)
                ax.plot(epochs, arm[key].mean(0), marker=MARKERS[name], markevery=7, ms=4.5, lw=1.6, label=name, **look)
        column[0].set_title(title)
        column[1].set(xlabel="epoch", yscale="log")
    axes[0, 0].set_ylabel("test error, %")
    axes[1, 0].set_ylabel("cross-entropy on training views")
    axes[0, 0].legend(loc="upper right")
    return fig


def excess_of_laws(shapes: np.ndarray, excess: Mapping[int, Sequence[float]]) -> Figure:
    """Draw the smallest excess loss of equal correlations against ``a`` of Beta(a, a), one line per number of classes."""
    fig, ax = plt.subplots(figsize=(7.5, 3.3))
    for (k, gap), style in zip(excess.items(), (":", "-", "--")):
        ax.plot(shapes, gap, style, color=figures.COLORS["Beta Mixup"])
        ax.annotate(f"$k={k}$", (shapes[22], gap[22]), xytext=(0, 5), textcoords="offset points")
        ax.plot(1, theory.minimal_mixup_gap(k, 1.0)[1], "o", color=figures.COLORS["Uniform Mixup"])
    ax.annotate("uniform", (1, 0.02), color=figures.COLORS["Uniform Mixup"], ha="center")
    ax.annotate("midpoint ($a\\to\\infty$)", (3000, 0.09), color=figures.COLORS["Midpoint Mixup"], ha="right")
    ax.set(
        xscale="log", xlabel="$a$ of the mixing law Beta$(a,a)$", ylabel="excess per cross-class pair (nats)", ylim=(0, None)
    )
    return fig


def gaps(gap: Mapping[str, np.ndarray], steps: np.ndarray) -> Figure:
    """Draw the gap ``(look, sample)`` between two correlations over training, one line per sample."""
    fig, ax = plt.subplots(figsize=(7.5, 3.1))
    for name, values in gap.items():
        ax.plot(steps, values, color=figures.COLORS[name], alpha=0.5, lw=1)
        end = (steps[-1], values[-1].mean())
        ax.annotate(name, end, xytext=(6, -3), textcoords="offset points", color=figures.COLORS[name])
    ax.set(xlabel="gradient step", ylabel="gap $\\Delta_y$, mean over classes", xlim=(0, 1.19 * steps[-1]), ylim=(0, None))
    return fig


def escape_times(expected: np.ndarray, measured: np.ndarray) -> Figure:
    """Draw measured against predicted escape times, both axes logarithmic."""
    fig, ax = plt.subplots(figsize=(7.5, 3.5))
    finite = expected[np.isfinite(expected)]
    line = np.array([finite.min(), finite.max()]) if len(finite) else np.ones(2)
    ax.plot(line, line, color=figures.COLORS["theory"], lw=1.2)
    ax.plot(expected, measured, "o", ms=3.5, alpha=0.6, color=figures.COLORS["ERM"])
    ax.annotate("theory", line[[1, 1]], xytext=(2, -24), textcoords="offset points", ha="right")
    ax.set(xscale="log", yscale="log", xlabel="predicted escape time of the winner (flow time)", ylabel="measured")
    return fig


def one_feature_shares(powers: Sequence, by_power: Sequence, scales: Sequence, by_scale: Sequence) -> Figure:
    """Draw the share of classes with one feature, means over runs, by exponent and by the size of initial weights."""
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.1), sharey=True)
    by_dim = [f"{1 / s**2:,.0f}" for s in scales]
    panels = (
        (powers, by_power, "exponent $\\alpha$ of the activation"),
        (by_dim, by_scale, "ambient dimension $d=1/\\sigma^2$"),
    )
    for ax, (labels, rows, xlabel) in zip(axes, panels):
        mean, half = np.transpose([stats.mean_interval(row).plus_minus for row in rows])
        ax.errorbar([str(x) for x in labels], mean, yerr=half, fmt="o", capsize=4, color=figures.COLORS["ERM"])
        ax.set(xlabel=xlabel, ylim=(0, 1.02))
    axes[0].set_ylabel("share with exactly one feature")
    return fig


def own_dimension(runs: Mapping[str, Run], unit: float, threshold: float) -> Figure:
    """Draw the best correlations of the first network's classes over flow time; the weaker feature is dashed."""
    fig, axes = plt.subplots(1, len(runs), figsize=(7.5, 3.2), sharex=True, sharey=True)
    for ax, (name, run) in zip(axes, runs.items()):
        time, best = run.log["time"][:, 0].numpy() / unit, run.log["best"][:, 0].numpy()  # (look,), (look, class, feature)
        order = best[-1].argsort(-1)
        for rank, style in ((1, "-"), (0, "--")):
            lines = np.take_along_axis(best, order[None, :, rank, None], -1)[..., 0]
            ax.plot(time, lines, style, color=figures.COLORS[name.split(",")[0]], lw=1)
        ax.axhline(threshold, color="#999999", lw=0.8)
        ax.set(xscale="log", yscale="log", xlim=(1e2, 1e8))
        ax.set_title(name.replace(", ", "\n"), fontsize=10.5)
    axes[1].set_xlabel(r"flow time, in units of $(0.011/\sigma)^6$")
    axes[0].set_ylabel("best correlation with a feature")
    return fig


def standin(errors: Mapping[tuple[str, str], np.ndarray], cases: Sequence[str]) -> Figure:
    """Draw the test errors of all runs by method, one panel per case."""
    fig, axes = plt.subplots(1, len(cases), figsize=(7.5, 3.1), sharey=True)
    for ax, case in zip(axes, cases):
        names = [name for c, name in errors if c == case]
        groups = {name.split()[0]: errors[case, name] for name in names}
        figures.runs(ax, groups, [figures.COLORS[name] for name in names])
        ax.set(title=case, xlim=(-0.5, 2.5), ylim=(0, None))
    axes[0].set_ylabel("test error, %")
    return fig
