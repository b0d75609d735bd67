"""House style, and the few plots that recur."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

# One colour a method in the whole book (Okabe & Ito's palette, safe for colour-blind readers).
COLORS = {
    "ERM": "#0072B2",
    "Midpoint Mixup": "#D55E00",
    "Uniform Mixup": "#009E73",
    "Beta Mixup": "#CC79A7",
    "coarse labels": "#332288",
    "fine labels": "#117733",
    "random labels": "#AA4499",
    "cluster labels": "#999933",
    "unique labels": "#882255",
    "MAE": "#CC3311",
    "Teacher-student": "#009988",
    "Random features": "#888888",
    "Tangent kernel": "#8C510A",
    "theory": "#333333",
}
VIEW_COLORS = ("#56B4E9", "#E69F00")
"""First and second feature of a class."""


def use_style() -> None:
    """House style for every figure that follows: no top and right spines, light grid, sizes for a page 7.5 inches wide."""
    mpl.style.use("seaborn-v0_8-whitegrid")  # Matplotlib's own copy: importing seaborn takes a second or two
    mpl.rcParams.update(
        {
            "axes.prop_cycle": mpl.cycler(color=COLORS.values()),
            "figure.figsize": (7.5, 3.4),
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
            "font.size": 12,
            "font.sans-serif": ["Arial", "DejaVu Sans"],
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 1.25,
            "axes.titlesize": 12,
            "axes.titlelocation": "left",
            "axes.labelsize": 11,
            "xtick.labelsize": 11,
            "xtick.major.pad": 6,
            "ytick.labelsize": 11,
            "ytick.major.pad": 6,
            "legend.frameon": False,
            "legend.fontsize": 10,
            "legend.title_fontsize": 12,
            "lines.linewidth": 1.8,
            "patch.edgecolor": "white",
            "patch.force_edgecolor": True,
            "image.cmap": "magma",
            "grid.color": "#e6e6e6",
            "grid.linewidth": 1,
            "svg.hashsalt": "mvnb",
            "mathtext.fontset": "cm",
        }
    )


def show(fig: Figure, alt: str, title: str | None = None, glue: str | None = None) -> None:
    """Display a figure as a PNG at twice the resolution, with its alternative text, and close it.

    ``alt`` says in a sentence or two what the picture shows; ``ValueError`` when it is empty. ``title`` states the message
    above a figure of several panels. With a name in ``glue`` the page
    can show the picture elsewhere, too (MyST-NB's ``glue:figure``).
    """
    from IPython.display import display
    from matplotlib import pyplot as plt

    if not alt.strip():
        raise ValueError("a figure needs an alternative text")
    if title:
        fig.suptitle(title, x=0.02, ha="left", fontsize=12)
    _drop_idle_ticks(fig)
    width, height = (round(side * fig.dpi) for side in fig.get_size_inches())
    data = {"image/png": _png(fig), "text/plain": f"Figure: {alt}"}
    plt.close(fig)
    metadata: dict[str, dict] = {"image/png": {"alt": alt, "width": width, "height": height}}
    if glue:
        metadata["scrapbook"] = {"name": glue, "mime_prefix": ""}
    display(data, metadata=metadata, raw=True)


def _drop_idle_ticks(fig: Figure) -> None:
    """Minor ticks of logarithmic axes of more than a decade: no label, no mark in this style, half of the time of drawing."""
    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            if axis.get_scale() == "log" and np.ptp(np.log10(axis.get_view_interval())) > 1:
                axis.set_minor_locator(NullLocator())


def _png(fig: Figure) -> bytes:
    """The figure in at most 256 colours, which no eye tells from all of them and which take a third of the space."""
    fig.set_dpi(2 * fig.dpi)
    canvas = FigureCanvasAgg(fig)
    canvas.draw()  # savefig would lay out and draw twice, and write a large PNG for Pillow to read
    reduced = io.BytesIO()
    # A palette picture carries no software or date stamp: the same figure is the same bytes.
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(reduced, "png")
    return reduced.getvalue()


def intervals(ax, labels, estimates, halves, colors=None, horizontal: bool = False) -> None:
    """Points with error bars, one a category, labelled on the axis."""
    position = np.arange(len(labels))
    for i, (value, half) in enumerate(zip(estimates, halves)):
        style = {"color": colors[i] if colors else COLORS["theory"], "fmt": "o", "capsize": 4}
        half = np.reshape(half, (-1, 1)) if np.ndim(half) else half
        if horizontal:
            ax.errorbar(value, position[i], xerr=half, **style)
        else:
            ax.errorbar(position[i], value, yerr=half, **style)
    (ax.set_yticks if horizontal else ax.set_xticks)(position, labels)
