"""Figure of the page "What it costs", drawn from the summary of ``report.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from mvnb import figures

CONTENDERS = {
    "loop": ("loop over seeds", figures.HUES["orange"], "s"),
    "authors": ("the authors' way", figures.HUES["green"], "^"),
    "autograd": ("stack, automatic gradient", figures.HUES["yellow"], "D"),
    "jax": ("JAX", figures.HUES["blue"], "o"),
}


def _rows(ax, rows: list[dict]) -> None:
    """Plot the time of every contender on every row, relative to ``mvnb``."""
    ax.axvline(1, color=figures.COLORS["theory"], lw=1.5)
    for name, (label, color, marker) in CONTENDERS.items():
        found = [(row["ratios"][name], i) for i, row in enumerate(rows) if name in row["ratios"]]
        if found:
            ax.plot(*zip(*found), marker, color=color, label=label, ms=6)
    ax.set_yticks(range(len(rows)), [row["name"] for row in rows])
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="time relative to mvnb")
    ax.xaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    ax.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=3, fontsize=8.5, handletextpad=0.2, columnspacing=1)


def _sweep(ax, sweep: list[dict]) -> None:
    """Plot the time per replica against the size of the stack."""
    for name, label, color, marker in (("mvnb", "mvnb", figures.HUES["ink"], "o"), ("jax", *CONTENDERS["jax"])):
        found = [(point["replicas"], 1e6 * point["seconds"][name]) for point in sweep if name in point["seconds"]]
        if found:
            ax.plot(*zip(*found), marker=marker, color=color, ms=4)
            ax.annotate(label, found[-1], xytext=(4, 4), textcoords="offset points", color=color, ha="right", va="bottom")
    ax.set(xscale="log", ylim=(0, None), xlabel="replicas in a stack", ylabel="microseconds per replica and step")
    ax.xaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
    ax.set_title("ERM, small", fontsize=11)


def draw(found: dict, path: Path) -> None:
    """Draw the setting with the fewest cores to ``path``; the same summary gives the same bytes."""
    setting = found["settings"][min(found["settings"])]
    figures.use_style()
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.8), width_ratios=(1.35, 1))
    _rows(left, setting["rows"])
    _sweep(right, setting["sweep"])
    fig.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(fig)
