"""House style, and the few plots that recur."""

from __future__ import annotations

import io

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator
from PIL import Image

# Okabe & Ito's palette, safe for colour-blind readers, and a brown; the explorers call them by the same names.
HUES = {
    "blue": "#0072B2",
    "orange": "#D55E00",
    "green": "#009E73",
    "pink": "#CC79A7",
    "grey": "#888888",
    "brown": "#8C510A",
    "sky": "#56B4E9",
    "yellow": "#E69F00",
    "ink": "#333333",
}
# One colour a method in the whole book.
COLORS = {
    "ERM": HUES["blue"],
    "Midpoint Mixup": HUES["orange"],
    "Uniform Mixup": HUES["green"],
    "Beta Mixup": HUES["pink"],
    "coarse labels": "#332288",
    "fine labels": "#117733",
    "random labels": "#AA4499",
    "cluster labels": "#999933",
    "unique labels": "#882255",
    "MAE": "#CC3311",
    "Teacher-student": "#009988",
    "Random features": HUES["grey"],
    "Tangent kernel": HUES["brown"],
    "theory": HUES["ink"],
}
VIEW_COLORS = (HUES["sky"], HUES["yellow"])
"""First and second feature of a class."""
LINES = {
    "theory": {"color": HUES["ink"], "ls": "-", "lw": 1.2},
    "paper": {"color": HUES["ink"], "ls": "--", "lw": 1.2},
    "chance": {"color": HUES["ink"], "ls": ":", "lw": 1.2},
}
"""Lines that nobody measured: what theory says, what the paper prints or bounds, chance and other marks to compare with."""


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
            "legend.edgecolor": "none",
            "legend.facecolor": "white",
            "legend.frameon": True,
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


def shades(n: int) -> np.ndarray:
    """Colours of ``n`` curves in the order of a size or a level, the darkest first; the lightest is still seen on white."""
    return mpl.colormaps["viridis"](np.linspace(0, 0.7, n))


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
    _set_off_labels(fig)
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


def _set_off_labels(fig: Figure) -> None:
    """Dark words in a plot get a white edge, so that lines behind do not touch their letters."""
    edge = [withStroke(linewidth=3, foreground="white")]
    for ax in fig.axes:
        if not ax.images:
            for text in ax.texts:
                if text.get_text() and not text.get_bbox_patch() and max(mpl.colors.to_rgb(text.get_color())) < 0.9:
                    text.set_path_effects(edge)


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
