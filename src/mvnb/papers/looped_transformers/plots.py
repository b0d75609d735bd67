"""Figures of chapter 14; each function returns a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mvnb import figures, stats
from mvnb.papers.looped_transformers import measure, theory
from mvnb.papers.looped_transformers.training import Descent

GREEN, PINK, GREY = (figures.HUES[hue] for hue in ("green", "pink", "grey"))
INK = figures.COLORS["theory"]
SCHEDULES = {
    "1/L": (figures.METHOD, "o", "$1/L$"),
    "2/(L+mu)": (GREY, "s", "$2/(L+\\mu)$"),
    "Chebyshev": (figures.BASELINE, "^", "Chebyshev's"),
    "memory": (PINK, "D", "memory"),
    "best": (GREEN, "v", "best"),
}
"""Colour, mark and name of each kind of steps."""


def example(x: Tensor, theta: Tensor, states: Tensor, descended: Tensor) -> Figure:
    """Draw what a loop holds ``(T + 1, 2)`` on the path of descent in the plane, and its error along each eigenvector."""
    fig, (plane, error) = plt.subplots(1, 2, figsize=(7.2, 3.4), width_ratios=(1.2, 1))
    axis = [torch.linspace(*ends, 80).double() for ends in ((-0.15, 1.3), (-0.3, 0.7))]
    grid = torch.stack(torch.meshgrid(*axis, indexing="xy"), -1)
    height = ((grid - theta) @ x.mT).square().sum(-1)
    plane.contour(*grid.unbind(-1), height, levels=[0.01, 0.05, 0.15, 0.35, 0.7, 1.2], colors="#cccccc", linewidths=0.8)
    plane.plot(*descended.T, color=INK, lw=1.2)
    plane.plot(*states.T, "o", color=figures.METHOD, ms=6)
    plane.plot(*theta, "*", color=INK, ms=13)
    plane.annotate("$\\theta^*$", (1.03, 0.05), color=INK)
    plane.set(xlabel="$q_1$", ylabel="$q_2$", xlim=(-0.15, 1.3), ylim=(-0.3, 0.7), title="loops (dots), descent (line)")
    values, vectors = torch.linalg.eigh(x.mT @ x)
    start, left = theta @ vectors, (theta - states) @ vectors
    t = np.arange(len(states))
    for i, (color, mark) in enumerate(((figures.METHOD, "o"), (GREEN, "s"))):
        error.plot(t, (1 - values[i] / values[-1]).item() ** t, color=INK, lw=1)
        error.plot(t, left[:, i] / start[i], mark, color=color, ms=6)
    error.annotate("along $(1,-1)$: $(3/4)^t$", (4.0, 0.42), color=figures.METHOD, fontsize=11)
    error.annotate("along $(1,1)$: 0 at once", (1.3, 0.07), color=GREEN, fontsize=11)
    error.set(xlabel="loops $t$", ylabel="part of the error left", ylim=(-0.05, 1.08), title="each direction by itself")
    return fig


def figure(found: Mapping[int, Descent], trials: int) -> Figure:
    """Draw Figure 8.1: exact means of logarithms with bands over sets, and medians of iterates in double precision."""
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.7), sharey=True)
    for (n, one), color in zip(found.items(), figures.shades(len(found))):
        t, means = torch.arange(one.exact.shape[1]), measure.in_sets(one.exact, trials).mean(1)
        axes[0].plot(t, means.mean(0), color=color, label=f"$n={n}$")
        axes[0].fill_between(t, *means.quantile(torch.tensor([0.05, 0.95]).double(), 0), color=color, alpha=0.25, lw=0)
        axes[1].plot(t, one.iterates.median(0).values, color=color)
        for ax in axes:
            ax.plot(t, -t * (1 / one.kappa).mean(), color=color, ls="--", lw=1.2)
    axes[0].legend(loc="lower left", fontsize=10)
    axes[0].set(xlabel="loops", ylabel="ln of the squared error", ylim=(-250, 8), title="exact")
    axes[1].set(xlabel="loops", title="iterates in double precision")
    return fig


def loops(kappas: Sequence[float], needed: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the number of loops for an error of 1/1000 over the condition number, by kind of steps, and the printed bound."""
    fig, ax = plt.subplots(figsize=(6.2, 3.6))
    for kind, counts in needed.items():
        color, mark, name = SCHEDULES[kind]
        ax.loglog(kappas, counts, f"{mark}-", color=color, lw=1.2)
        ax.annotate(name, (kappas[-1] * 1.15, counts[-1]), color=color, va="center")
    ax.loglog(kappas, 2 * np.array(kappas) * np.log(1e3), **figures.LINES["paper"])
    ax.annotate("Theorem 8.16", (kappas[-2], 4 * kappas[-2] * np.log(1e3)), color=INK, ha="right")
    ax.set(
        xlabel="condition number $\\kappa$", ylabel="loops for an error of $10^{-3}$", xlim=(0.8 * kappas[0], 6 * kappas[-1])
    )
    return fig


def schedules(squares: Mapping[str, Tensor], ratio: float) -> Figure:
    """Draw mean squared errors ``(T,)`` of kinds of steps for a large d, and the formulas for the best steps and for memory."""
    fig, ax = plt.subplots(figsize=(6.2, 3.6))
    t = np.arange(1, 1 + len(squares["best"]))
    lines = {"best": theory.least_mean_square(ratio, t), "memory": ratio**t}
    for (kind, errors), lift in zip(squares.items(), (0.85, 1.2, 0.7, 0.95)):
        color, mark, name = SCHEDULES[kind]
        ax.semilogy(t, errors, mark if kind in lines else f"{mark}-", color=color, ms=5, lw=1.2)
        ax.semilogy(t, lines.get(kind, errors), color=color, lw=1.2)
        ax.annotate(name, (t[-1] + 0.2, errors[-1] * lift), color=color)
    ax.set(xlabel="loops $T$", ylabel="mean squared error", xlim=(0.7, 1.3 * t[-1]), xticks=t)
    return fig


def softmax(kappas: Sequence[float], counts: Mapping[str, np.ndarray]) -> Figure:
    """Draw the number of loops of the kept run over the condition number, means over seeds with 95 % intervals."""
    fig, ax = plt.subplots(figsize=(6.2, 3.8))
    for arm, rows in counts.items():
        linear, style = arm.startswith("linear"), "o-" if arm.endswith("one step") else "^--"
        mean, half = np.array([stats.mean_interval(column).plus_minus for column in rows.T]).T
        style = {"fmt": style, "color": figures.METHOD if linear else figures.BASELINE, "label": arm}
        ax.errorbar(np.array(kappas) * (0.97 if linear else 1.03), mean, half, ms=5, lw=1.2, capsize=3, **style)
    ax.set(xscale="log", yscale="log", xlabel="condition number $\\kappa$", ylabel="loops for an error of 0.1")
    ax.set_xticks(kappas, [f"{kappa:g}" for kappa in kappas])
    ax.set_yticks([3, 5, 10, 20, 50], ["3", "5", "10", "20", "50"])
    ax.legend(loc="upper left", fontsize=10)
    return fig
