"""House style, and the few plots that recur."""

from __future__ import annotations

import io
from contextlib import contextmanager

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
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
    """Draw every figure that follows in the house style: no top and right spines, light grid, sizes for a page 7.5 inches wide.

    It starts from Matplotlib's defaults, so that no ``matplotlibrc`` and no earlier setting changes a figure.
    """
    mpl.style.use(["default", "seaborn-v0_8-whitegrid"])  # Matplotlib's own copy: importing seaborn takes a second or two
    mpl.rcParams.update(
        {
            "axes.prop_cycle": mpl.cycler(color=COLORS.values()),
            "figure.figsize": (7.5, 3.4),
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
        if not ax.images and not any(isinstance(one, QuadMesh) for one in ax.collections):
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


@contextmanager
def _undrawn(ax):
    """Without the drawing of the whole figure by which seaborn arranges marks and labels, which takes most of its time.

    Swarms are arranged anew whenever the figure is drawn, so that they fit what is shown.
    """
    fig = ax.figure.canvas.figure
    fig.draw = lambda renderer: None
    try:
        yield
    finally:
        del fig.draw


def runs(ax, groups, colors=None, *, horizontal=False, summary="interval", marker="o", shift=0.0, size=4.0, label=None) -> None:
    """Every run a mark, one group a place on the axis: equal ones side by side, the first group at the left or on top.

    ``groups``: a label to the values of its runs, ``(n,)``; ``colors``: one, or one a group. ``summary``: ``"interval"``
    puts beside the runs their mean and the book's 95 % Student interval (one run has none), ``"median"`` a bar across
    them, None nothing. ``shift`` moves the marks along the axis of the labels, to draw several series; ``label`` is the
    legend's. ``ValueError`` for another summary, an unfilled marker, values of another shape or not finite, and for an axis
    that is not linear yet, as seaborn would average logarithms: scale it afterwards.
    """
    import seaborn as sns  # takes a second: only the figures that need it

    from mvnb.stats import mean_interval

    values = [np.asarray(one, dtype=float) for one in groups.values()]
    if not values or any(one.ndim != 1 or not len(one) or not np.isfinite(one).all() for one in values):
        raise ValueError("a group needs a list of finite values, at least one")
    if summary not in ("interval", "median", None):
        raise ValueError(f"no summary {summary!r}")
    if not MarkerStyle(marker).is_filled():
        raise ValueError(f"marks without an inside, like {marker!r}, would not be seen")
    if (ax.xaxis if horizontal else ax.yaxis).get_scale() != "linear":
        raise ValueError("draw the runs first, then scale their axis")
    if colors is None or mpl.colors.is_color_like(colors):
        colors = [colors or COLORS["theory"]] * len(values)
    elif len(colors) != len(values):
        raise ValueError(f"{len(colors)} colours for {len(values)} groups")
    names = "yx" if horizontal else "xy"  # the axis of the labels, that of the values
    style = {"ax": ax, "orient": names[0], "native_scale": True, "marker": marker, "legend": False}
    apart = 0.1 if summary == "interval" else 0.0
    place = np.arange(len(values)) + shift
    at = np.repeat(place - apart, [len(one) for one in values])
    marks = dict(zip(names, (at, np.concatenate(values)))) | {"hue": at, "palette": list(colors)}
    dots = {"size": size, "alpha": 0.9 if summary is None else 0.5, "warn_thresh": 1.0}
    first = len(ax.collections)
    with _undrawn(ax):
        sns.swarmplot(**marks, **dots, **style)  # stripplot would draw its jitter from numpy's global random state
    ax.collections[first].set_label(label)
    for one, where, color in zip(values, place, colors):
        here = dict(zip(names, (np.full(len(one), where + apart), one))) | style | {"linestyle": "none"}
        if summary == "interval":
            ends = {"errorbar": lambda one: np.add(np.mean(one), np.multiply(mean_interval(one)[1], (-1, 1)))}
            sns.pointplot(**here, **ends, color=color, markersize=6, linewidth=1.8, capsize=0.08)
        elif summary == "median":
            bar = {"marker": "|" if horizontal else "_", "markersize": 22, "markeredgewidth": 1.5}
            sns.pointplot(**here | bar, estimator="median", errorbar=None, color=COLORS["theory"], zorder=4)
    set_ticks, set_limits = (ax.set_yticks, ax.set_ylim) if horizontal else (ax.set_xticks, ax.set_xlim)
    set_ticks(range(len(values)), list(groups))
    set_limits(*(-0.5, len(values) - 0.5)[:: -1 if horizontal else 1])


def distributions(ax, groups, colors=None, *, bins=None, filled=True) -> None:
    """Histograms of groups in the same ``bins`` (their edges), one before the other; without bins a box each, side by side.

    ``groups``: a label, the legend's or the axis's, to values of any shape; ``colors``: one a histogram, or those of the
    cycle; ``filled`` histograms are bars, others steps. Whiskers end at the last value within 1.5 interquartile ranges of
    the box. ``ValueError`` without a group, and for values that are not finite.
    """
    import seaborn as sns

    values = {name: np.ravel(np.asarray(one, dtype=float)) for name, one in groups.items()}
    if not values or not all(np.isfinite(one).all() for one in values.values()):
        raise ValueError("groups need finite values, and there must be one")
    if bins is None:
        look = {"color": COLORS["theory"], "linewidth": 1.0, "medianprops": {"color": HUES["orange"]}}
        sns.boxplot(values, ax=ax, width=0.5, fliersize=2, fill=False, **look)
        return
    look = {"alpha": 0.8} if filled else {"element": "step", "fill": False, "linewidth": 1.8}
    for i, (name, one) in enumerate(values.items()):
        sns.histplot(one, bins=np.asarray(bins), ax=ax, color=colors[i] if colors else f"C{i}", label=name, **look)
    ax.set(xlabel="", ylabel="")


def heatmap(ax, values, rows=None, columns=None, *, limits=None, cmap=None, words=None, label=None, square=False):
    """A table as coloured cells, the first row on top; NaN stays white. Returns the cells, for a colour bar of several panels.

    ``values`` ``(n, m)``; ``rows`` and ``columns`` name them all; None leaves the ticks out.
    ``words``: a format, such as ``".2f"``, or an array of words ``(n, m)``, to write into the cells. ``limits``: the values
    of the two ends of the colour map, the house's unless ``cmap`` says another. ``label``: of a colour bar beside the axes.
    Cell ``(i, j)`` reaches from ``(j, i)`` to ``(j + 1, i + 1)``. ``ValueError`` when a shape or a number of names is wrong.
    """
    import seaborn as sns

    values = np.asarray(values, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a table has rows and columns, not the shape {values.shape}")
    style = {"fmt": words, "annot": True} if isinstance(words, str) else {"fmt": "", "annot": words}
    if words is not None and not isinstance(words, str) and np.shape(words) != values.shape:
        raise ValueError(f"words for {np.shape(words)} cells, not {values.shape}")
    style["vmin"], style["vmax"] = limits or (None, None)
    style |= {"cmap": cmap or mpl.rcParams["image.cmap"], "square": square, "annot_kws": {"fontsize": 9}}
    with _undrawn(ax):
        sns.heatmap(values, ax=ax, cbar=False, xticklabels=False, yticklabels=False, **style)
    for set_ticks, names, n in ((ax.set_yticks, rows, len(values)), (ax.set_xticks, columns, len(values.T))):
        if names is not None:
            if len(names) != n:
                raise ValueError(f"{len(names)} names for {n} rows or columns")
            set_ticks(np.arange(n) + 0.5, names, rotation=0)
    ax.grid(False)
    cells = ax.collections[-1]
    if label:
        ax.figure.colorbar(cells, ax=ax, label=label).outline.set_visible(False)
    return cells
