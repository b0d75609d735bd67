"""Pictures of chapter 06 that take more than a few lines; each returns a figure."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mvnb import figures
from mvnb.papers.decision_lists import theory
from mvnb.papers.decision_lists.data import DecisionLists, Sequences
from mvnb.training import Run

GREY, INK = figures.HUES["grey"], figures.COLORS["theory"]


def landscape(side: np.ndarray, loss: Tensor, arrows: np.ndarray, path: np.ndarray) -> Figure:
    """Draw the loss over two score differences ``(side^2,)``, descent directions ``(side^2, 2)`` and a path ``(steps, 2)``."""
    fig, ax = plt.subplots(figsize=(5.0, 3.8))
    shape = (len(side), len(side))
    ax.contourf(side, side, loss.view(shape), 5, cmap="Greys_r")
    ax.grid(False)
    quiver = arrows.reshape(*shape, 2)[1::5, 1::5]
    size = np.linalg.norm(quiver, axis=-1, keepdims=True) ** 0.5 + 1e-9
    ax.quiver(side[1::5], side[1::5], *(quiver / size).transpose(2, 0, 1), color="white", edgecolor="#555555", linewidth=0.4)
    ax.plot([3, 0, 3], [3, 0, 0], color=figures.HUES["yellow"], lw=1.6, ls="--")
    ax.plot(*path.T, color=figures.METHOD, lw=2.4)
    ax.plot(*path[0], "o", color="white", mec=figures.METHOD, ms=7)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    ax.text(-0.9, -0.8, "between the dashed lines\nall answers are right", bbox=box, fontsize=11)
    ax.set(xlabel="$w_b-w_{\\mathrm{rest}}$", ylabel="$w_a-w_{\\mathrm{rest}}$", xlim=(-1, 3), ylim=(-1, 3))
    ax.set_title("Descent follows the edge, then enters the wedge")
    return fig


def lists_and_deciders(world: DecisionLists, sample: Sequences) -> Figure:
    """Draw the lists of a small world, and the deciding token of every query in the first sequence of a sample."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.3), width_ratios=(1.25, 1))
    rank = theory.list_ranks(world.lists[None])[0].double()
    words = np.array(["1", "2", "3", ""])[rank.clamp(max=3).long()]
    colors = mpl.colors.ListedColormap(plt.cm.viridis([0.2, 0.4, 0.6]))
    style = {"words": words, "cmap": colors, "square": True}
    figures.heatmap(axes[0], torch.where(rank < 3, rank, torch.nan), range(len(rank)), range(len(rank)), **style)
    axes[0].set(xlabel="token", ylabel="query $a$", title="place in the list of $a$")
    tokens, decides = sample.tokens[0], sample.decides[0]
    chosen = tokens[None, :] == decides[:, None]
    labels = np.array([[f"label {label}"] for label in world.permutation[decides].tolist()])
    style |= {"words": np.where(chosen, labels, ""), "cmap": "Greys", "limits": (0, 3)}
    figures.heatmap(axes[1], chosen, tokens.tolist(), tokens.tolist(), **style)
    axes[1].set(xlabel="token in the sequence", ylabel="query in the sequence", title="which token decides")
    for text in (*axes[0].texts, *axes[1].texts):
        text.set_fontsize(11)
    return fig


def derivatives(alone: Tensor, along: Tensor, inside: Tensor, outside: Tensor) -> Figure:
    """Draw derivatives of single sequences' losses, by the score of k* and along v; zeros are left out."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.0), sharey=True)
    reach = [-1.4, 0.5]
    for ax, one, name in ((axes[0], alone, "by the score of $k^*$ alone"), (axes[1], along, "along $v$")):
        drawn = {
            f"{word} $\\mathcal{{S}}$": one[mask & (one != 0)].clamp(*reach)
            for word, mask in (("outside", outside), ("in", inside))
        }
        figures.distributions(ax, drawn, (GREY, figures.METHOD), bins=np.linspace(*reach, 39))
        ax.axvline(0, color=INK, lw=1)
        ax.set(yscale="log", xlabel="derivative of a sequence's loss", title=name, ylim=(0.7, 2e4))
    axes[0].set_ylabel("sequences and queries")
    axes[1].legend(loc="upper left", fontsize=11)
    axes[0].annotate("loss\nrises →", (0.04, 0.8), xycoords=("data", "axes fraction"), fontsize=11)
    return fig


def value_step(stepped: np.ndarray, rows: np.ndarray, expected: np.ndarray, offsets: Sequence[int]) -> Figure:
    """Draw V after one step, ``(run, L, L)``: the first run, and all entries by offset.

    ``rows`` ``(L, L)`` are the offsets of the entries, and ``expected`` ``(L,)`` is the expectation by offset.
    """
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 3.4), width_ratios=(1.1, 1))
    image = axes[0].imshow(stepped[0], cmap="RdBu_r", vmin=-3, vmax=3, interpolation="none")
    axes[0].set(xlabel="input token $i$", ylabel="output $l$", title="entries of $V$")
    axes[0].grid(False)
    fig.colorbar(image, ax=axes[0], shrink=0.7)
    x = np.arange(-int(1.6 * offsets[-1]), int(1.6 * offsets[-1]) + 1)
    measured = np.array([stepped[:, rows == o % len(expected)].ravel() for o in x])  # (offset, entry)
    axes[1].fill_between(x, *np.quantile(measured, (0.025, 0.975), axis=1), color=figures.METHOD, alpha=0.35, lw=0)
    axes[1].plot(x, measured.mean(1), "o", color=figures.METHOD, ms=2.5)
    axes[1].plot(x, expected[x], color=INK, lw=1)
    axes[1].text(2, expected[0], f"$L/n-1={expected[0]:.2f}$", va="center", fontsize=11)
    for o, y in ((offsets[1], 0.6), (-offsets[1], -1.1)):
        number = f"{expected[o]:.2f}".replace("-", "−")
        axes[1].text(o, expected[o] + y, number, ha="center", va="center", fontsize=11)
    axes[1].set(xlabel="offset $b-i$ of $V_{\\pi(b),i}$", title="by offset", ylim=(-2.2, expected[0] + 0.8))
    return fig


def scores(run: Run, own_list: Tensor) -> Figure:
    """Draw the scores of one column over training, in all runs."""
    fig, ax = plt.subplots(figsize=(5.0, 3.4))
    path, entry = run.log["w"].cpu(), figures.shades(len(own_list))  # (step, run, token)
    beside = torch.ones(path.shape[-1], dtype=torch.bool).scatter(0, own_list, False)
    ax.plot(run.steps, path[:, :, beside].amax(-1), color=GREY, lw=0.8)
    names = {"first": 5, "second": 0, "third": -4, "own": 0}  # points, to part them
    for (name, apart), token, color in zip(names.items(), own_list, entry):
        ax.plot(run.steps, path[:, :, token], color=color, lw=0.9, alpha=0.8)
        end = (run.steps[-1], path[-1][:, token].mean())
        ax.annotate(f" {name}", end, (0, apart), textcoords="offset points", va="center", color=color)
    ax.annotate(" others", (run.steps[-1], path[-1][:, beside].max()), color=GREY)
    ax.set(xlabel="step on $W$", ylabel="attention score", xlim=(0, 1.2 * run.steps[-1]))
    ax.set_title("The scores end in the order of the list")
    return fig
