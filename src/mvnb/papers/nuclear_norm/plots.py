"""Figures of chapter 12; each function returns a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from mvnb import figures
from mvnb.papers.nuclear_norm import theory

NU, DECAY = figures.METHOD, figures.BASELINE
GREY, GREEN, PINK = (figures.HUES[hue] for hue in ("grey", "green", "pink"))


def plane(drawn: Mapping[str, tuple[Tensor, Tensor, float]], ratios: Mapping[str, float]) -> Figure:
    """Draw points of two environments, each with the share in which both features agree, and rules by name."""
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.8), sharey=True)
    span = np.array([-1.05, 1.05])
    for ax, (title, (x, y, share)) in zip(axes, drawn.items()):
        for label, marker, color in ((1, "o", GREEN), (-1, "s", PINK)):
            ax.scatter(*x[y == label].T, s=9, marker=marker, color=color, alpha=0.6, lw=0)
        for (name, ratio), color, style in zip(ratios.items(), (DECAY, NU), ("--", "-")):
            right = 100 * theory.plane_accuracy(ratio, share)
            ax.plot(-ratio * span, span, color=color, ls=style, label=f"{name}: {right:.0f} %")
        ax.set(xlabel="$x_1$", title=title, xlim=span, ylim=(-1.65, 1.05), yticks=[-1, 0, 1])
        ax.legend(loc="lower right", fontsize=9)
    axes[0].set_ylabel("$x_2$")
    return fig


def transition(curves: Mapping[float, np.ndarray], star: float) -> Figure:
    """Draw the accuracy elsewhere over the number of features by decay, exact and normal, and that of the nuclear norm."""
    fig, ax = plt.subplots(figsize=(6, 3.4))
    for (decay, (sizes, exact, normal)), style in zip(curves.items(), ("-", "--", ":", "-.")):
        ax.plot(sizes, exact, style, color=DECAY, label=f"weight decay {decay:g}")
        ax.plot(sizes, normal, ".", color=figures.COLORS["theory"], ms=4)
    ax.axhline(1, color=NU, label="nuclear norm")
    ax.axvline(star, **figures.LINES["paper"])
    ax.text(star - 1, 0.03, "$d^\\star$", ha="right")
    ax.set(xlabel="number of features $d$", ylabel="accuracy elsewhere", ylim=(-0.02, 1.05))
    ax.legend(loc=(0.58, 0.3))
    return fig


def weights(arms: Mapping[str, np.ndarray], shared: int) -> Figure:
    """Draw the weights ``(run, d)`` of each arm by feature, shared ones first."""
    fig, ax = plt.subplots(figsize=(6, 3.2))
    for (name, w), color, mark in zip(arms.items(), (NU, DECAY, GREY), "os^"):
        place = np.broadcast_to(np.arange(w.shape[1]), w.shape)
        ax.plot(place.T, w.T, mark, color=color, ms=3, alpha=0.5)
        ax.text(w.shape[1], w[:, shared:].mean(), name, color=color, fontsize=10, va="center")
    ax.axvline(shared - 0.5, **figures.LINES["paper"])
    ax.set(xlabel=f"feature ({shared} shared ones first)", ylabel="weight", xlim=(-1, 1.45 * w.shape[1]))
    return fig


def free_head(runs: Mapping, arms: Sequence[str]) -> Figure:
    """Draw the nuclear norm of the features and the length of the head over steps, one line per run."""
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2))
    panels = {"nuclear norm of the features": runs["norm"], "length of the head": runs["head"]}
    for ax, (title, log) in zip(axes, panels.items()):
        for name, color, style in zip(arms, (NU, GREEN), ("-", "--")):
            ax.loglog(runs["steps"], log[name], style, color=color, lw=1.2)
            ax.plot([], style, color=color, label=name)
        ax.set(xlabel="step", title=title)
    axes[1].legend(fontsize=9)
    return fig


def over_weight(panels: Mapping[str, Mapping[str, np.ndarray]], weights: Sequence[float]) -> Figure:
    """Draw lines ``(weight, run)`` by panel and name over the weight of the penalty, means and single runs."""
    fig, axes = plt.subplots(1, len(panels), figsize=(7.5, 3.0))
    place = np.arange(len(weights))
    for ax, (title, lines) in zip(axes, panels.items()):
        for (name, values), color, mark in zip(lines.items(), (NU, GREEN), "os"):
            ax.plot(place, values.mean(1), f"{mark}-", color=color, label=name)
            ax.plot(place, values, color=color, lw=0.5, alpha=0.5)
        ax.set_xticks(place, [f"{weight:g}" for weight in weights], rotation=60, fontsize=9)
        ax.set(xlabel="weight $\\lambda$", title=title)
        if len(lines) > 1:
            ax.legend(fontsize=9)
    return fig


def domains(images: Tensor) -> Figure:
    """Draw one image ``(channel, height, width)`` per domain."""
    fig, axes = plt.subplots(1, len(images), figsize=(7.5, 2.2))
    for e, (ax, image) in enumerate(zip(axes, images)):
        ax.imshow(image.permute(1, 2, 0).squeeze(-1), cmap="gray", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[], title=f"domain {e}")
    return fig


METHODS = ("ERM", "Mixup", "weight decay", "IRM", "VREx", "GroupDRO", "CORAL")
METHODS += ("ERM-NU", "Mixup-NU", "CORAL-NU", "SWAD", "SWAD-CORAL", "SWAD-NU")


def methods(found: Mapping[str, np.ndarray]) -> Figure:
    """Draw accuracies ``(seed,)`` by method in the left-out domain."""
    fig, ax = plt.subplots(figsize=(7.5, 4.2))
    each = {name: found[name] for name in METHODS if name in found}
    figures.runs(ax, each, [NU if "NU" in name else DECAY for name in each], horizontal=True, size=2)
    ax.set(xlabel="% right in the domain left out")
    ax.tick_params(axis="y", labelsize=9)
    return fig
