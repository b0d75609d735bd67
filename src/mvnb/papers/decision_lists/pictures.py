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

OUTSIDE, THEORY = "#999999", figures.COLORS["theory"]
BLUE, ORANGE, GREEN, PINK = (figures.HUES[c] for c in ("blue", "orange", "green", "pink"))
ARMS = {"W": BLUE, "V": PINK, "V, then W": BLUE, "V, then both": ORANGE, "both": GREEN}
"""Colours of what is trained."""


def landscape(side: np.ndarray, loss: Tensor, arrows: np.ndarray, path: np.ndarray) -> Figure:
    """The loss over two score differences ``(side^2,)``, descent's direction ``(side^2, 2)`` and one path ``(steps, 2)``."""
    fig, ax = plt.subplots(figsize=(7.0, 3.7))
    shape = (len(side), len(side))
    ax.contourf(side, side, loss.view(shape), 5, cmap="Greys_r")
    ax.grid(False)
    quiver = arrows.reshape(*shape, 2)[1::5, 1::5]
    size = np.linalg.norm(quiver, axis=-1, keepdims=True) ** 0.5 + 1e-9
    ax.quiver(side[1::5], side[1::5], *(quiver / size).transpose(2, 0, 1), color="white", edgecolor="#555555", linewidth=0.4)
    ax.plot([3, 0, 3], [3, 0, 0], color=figures.HUES["yellow"], lw=1.4)
    ax.plot(*path.T, color=ARMS["W"], lw=2.4)
    ax.plot(*path[0], "o", color="white", mec=ARMS["W"], ms=7)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    ax.text(-0.9, -0.8, "between the orange lines all answers are right", bbox=box)
    names = ("$w_b-w_{\\mathrm{rest}}$: score of the first choice", "$w_a-w_{\\mathrm{rest}}$: of the own token")
    ax.set(xlabel=names[0], ylabel=names[1], xlim=(-1, 3), ylim=(-1, 3))
    ax.set_title("Descent sets out along the edge and then enters the wedge")
    return fig


def lists_and_deciders(world: DecisionLists, sample: Sequences) -> Figure:
    """The lists of a small world, and the deciding token of every query in the first sequence of a sample."""
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.3), width_ratios=(1.25, 1))
    rank = theory.list_ranks(world.lists[None])[0].double()
    words = np.array(["1st", "2nd", "own", ""])[rank.clamp(max=3).long()]
    colors = mpl.colors.ListedColormap(plt.cm.viridis([0.2, 0.4, 0.6]))
    style = {"words": words, "cmap": colors, "square": True}
    figures.heatmap(axes[0], torch.where(rank < 3, rank, torch.nan), range(len(rank)), range(len(rank)), **style)
    axes[0].set(xlabel="token", ylabel="query $a$", title="the lists of a small world")
    tokens, decides = sample.tokens[0], sample.decides[0]
    chosen = tokens[None, :] == decides[:, None]
    labels = np.array([[f"label {label}"] for label in world.permutation[decides].tolist()])
    style |= {"words": np.where(chosen, labels, ""), "cmap": "Greys", "limits": (0, 3)}
    figures.heatmap(axes[1], chosen, tokens.tolist(), tokens.tolist(), **style)
    axes[1].set(xlabel="token in the sequence", ylabel="query in the sequence", title="who decides whose label")
    return fig


def derivatives(alone: Tensor, along: Tensor, inside: Tensor, outside: Tensor) -> Figure:
    """Derivatives of single sequences' losses, by the right answer's score alone and along v; zeros are left out."""
    fig, axes = plt.subplots(1, 2, figsize=(7.0, 2.8), sharey=True)
    reach = [-1.4, 0.5]
    for ax, one, name in ((axes[0], alone, "by the score of $k^*$ alone"), (axes[1], along, "along $v$")):
        drawn = {
            f"sequences {word} $\\mathcal{{S}}$": one[mask & (one != 0)].clamp(*reach)
            for word, mask in (("outside", outside), ("in", inside))
        }
        figures.distributions(ax, drawn, (OUTSIDE, ORANGE), bins=np.linspace(*reach, 39))
        ax.axvline(0, color=THEORY, lw=1)
        ax.set(yscale="log", xlabel="derivative of a sequence's loss", title=name)
    axes[0].set_ylabel("sequences and queries")
    axes[1].legend(loc="upper left")
    axes[0].set_ylim(0.7, 2e4)
    axes[0].annotate("wrong\nway →", (0.03, 0.83), xycoords=("data", "axes fraction"), fontsize=9)
    return fig


def entries_by_offset(stepped: np.ndarray, rows: np.ndarray, expected: np.ndarray, offsets: Sequence[int]) -> Figure:
    """Entries of V after one step ``(run, L, L)`` by offset ``rows`` ``(L, L)``, beside those ``expected`` ``(L,)``."""
    fig, ax = plt.subplots(figsize=(7.5, 3.9))
    n_tokens = len(expected)
    shown = (np.arange(n_tokens) + n_tokens // 2) % n_tokens - n_tokens // 2
    order = np.argsort(shown)
    x, line = shown[order], expected[order]
    measured = np.array([stepped[:, rows == o % n_tokens] for o in x])  # (offset, run, L)
    near = np.abs(x) <= 1.6 * offsets[-1]
    low, high = np.quantile(measured[near].reshape(near.sum(), -1), (0.025, 0.975), axis=1)
    ax.fill_between(x[near], low, high, color=ORANGE, alpha=0.35, lw=0)
    ax.plot(x[near], measured[near].mean((1, 2)), "o", color=ORANGE, ms=2.5)
    ax.plot(x[near], line[near], color=THEORY, lw=1)
    ax.text(1.5, expected[0] - 0.2, f"$L/n-1={expected[0]:.2f}$", va="top")
    for o in offsets:
        ax.annotate(f"+{expected[o]:.2f}", (o, expected[o] + 0.45), ha="center")
        ax.annotate(f"{expected[-o]:.2f}".replace("-", "−"), (-o, expected[-o] - 0.8), ha="center")
    ax.set(xlabel="offset $b-i$ of the entry $V_{\\pi(b),i}$, modulo $L$", ylabel="entry of $V$ after one step")
    ax.set_ylim(-2, expected[0] + 0.8)
    ax.set_title("One step writes the permutation and six faint side lines")
    return fig


def opening(stepped: np.ndarray, run: Run, own_list: Tensor) -> Figure:
    """One run's V after one step ``(L, L)``, and the scores of one column over training in all runs."""
    fig, axes = plt.subplots(1, 2, figsize=(7.0, 3.2), width_ratios=(1.05, 1))
    image = axes[0].imshow(np.round(stepped), cmap="RdBu_r", vmin=-3, vmax=3, interpolation="none")
    axes[0].set(xlabel="input token $i$", ylabel="output $l$", title="$V$ after one step from noise")
    axes[0].grid(False)
    fig.colorbar(image, ax=axes[0], shrink=0.75, label="entry of $V$, clipped")
    path, entry = run.log["w"].cpu(), figures.shades(len(own_list))  # (step, run, token)
    beside = torch.ones(path.shape[-1], dtype=torch.bool).scatter(0, own_list, False)
    axes[1].plot(run.steps, path[:, :, beside].amax(-1), color=OUTSIDE, lw=0.8)
    for token, color in zip(own_list, entry):
        axes[1].plot(run.steps, path[:, :, token], color=color, lw=0.9, alpha=0.8)
    names = {"first": 5, "second": 0, "third": -4, "own": 0}  # points, to part them
    for (name, apart), token, color in zip(names.items(), own_list, entry):
        end = (run.steps[-1], path[-1][:, token].mean())
        axes[1].annotate(f" {name}", end, (0, apart), textcoords="offset points", va="center", color=color)
    axes[1].annotate(" others", (run.steps[-1], path[-1][:, beside].max()), color=OUTSIDE)
    axes[1].set(xlabel="step on $W$", ylabel="attention score", title="one column of $W$, $V=cP$ fixed")
    axes[1].set_xlim(0, 1.25 * run.steps[-1])
    return fig
