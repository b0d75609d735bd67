"""Style of the book's figures, and plots that are used in several chapters."""

from __future__ import annotations

import inspect
import io
import textwrap
from collections.abc import Callable
from contextlib import contextmanager
from types import ModuleType

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

# Okabe and Ito's palette, safe for colour-blind readers, plus brown; the explorers use the same names.
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
METHOD, BASELINE = HUES["orange"], HUES["blue"]
"""Colours of the method that a chapter's paper proposes, and of the baseline that it is compared with."""
# Colours of methods throughout the book; only a proposed method and a baseline have the same colour in several chapters.
COLORS = {
    "ERM": BASELINE,
    "Midpoint Mixup": METHOD,
    "Uniform Mixup": HUES["green"],
    "Beta Mixup": HUES["pink"],
    "coarse labels": BASELINE,
    "fine labels": METHOD,
    "random labels": "#AA4499",
    "cluster labels": "#999933",
    "unique labels": "#882255",
    "MAE": METHOD,
    "Teacher-student": "#009988",
    "Random features": HUES["grey"],
    "Tangent kernel": HUES["brown"],
    "theory": HUES["ink"],
}
_OPENING = "opening"  # display id of a chapter's first figure
LINES = {
    "theory": {"color": HUES["ink"], "ls": "-", "lw": 1.2},
    "paper": {"color": HUES["ink"], "ls": "--", "lw": 1.2},
    "chance": {"color": HUES["ink"], "ls": ":", "lw": 1.2},
}
"""Styles of lines for theory, for the paper's numbers and bounds, and for chance and other baselines."""


def use_style() -> None:
    """Set Matplotlib's ``rcParams`` to the style of the book, for figures with a width of 7.5 inches.

    All other settings are reset to Matplotlib's defaults, so a ``matplotlibrc`` or earlier settings do not affect figures.
    """
    mpl.style.use(["default", "seaborn-v0_8-whitegrid"])  # Matplotlib's copy: importing seaborn takes a second or two
    mpl.rcParams.update(
        {
            "axes.prop_cycle": mpl.cycler(color=dict.fromkeys(COLORS.values())),
            "figure.figsize": (7.5, 3.4),
            "figure.constrained_layout.use": True,
            "font.size": 12,
            "font.sans-serif": ["DejaVu Sans"],  # included in Matplotlib; also the font of the pages
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
    """Return RGBA colours of shape ``(n, 4)`` for ``n`` ordered curves, from dark to light.

    Even the lightest colour is visible on a white background.

    >>> shades(2).round(2).tolist()
    [[0.27, 0.0, 0.33, 1.0], [0.27, 0.75, 0.44, 1.0]]
    """
    return mpl.colormaps["viridis"](np.linspace(0, 0.7, n))


def show(fig: Figure, alt: str, title: str | None = None, opening: bool = False) -> None:
    """Display a figure as a PNG with twice its resolution, and close it.

    ``alt`` is the alternative text, which describes the figure in a sentence or two. ``title`` is a heading above all panels.
    With ``opening``, the figure also replaces the output of the cell that called :func:`opening`.

    Raises ``ValueError`` if ``alt`` is empty.
    """
    from IPython.display import display
    from matplotlib import pyplot as plt

    if not alt.strip():
        raise ValueError(f"expected non-empty alternative text, got {alt!r}")
    if title:
        fig.suptitle(title, x=0.02, ha="left", fontsize=12)
    _remove_minor_ticks(fig)
    _outline_text(fig)
    width, height = (round(side * fig.dpi) for side in fig.get_size_inches())
    data = {"image/png": _png(fig), "text/plain": f"Figure: {alt}"}
    plt.close(fig)
    metadata = {"image/png": {"alt": alt, "width": width, "height": height}}
    display(data, metadata=metadata, raw=True)
    if opening:
        display(data, metadata=metadata, raw=True, display_id=_OPENING, update=True)


def opening() -> None:
    """Reserve an output for the figure that opens a chapter, which a later cell draws with ``show(..., opening=True)``."""
    from IPython.display import display

    waiting = "The figure appears here when the cell that draws it, further down, has run."
    display({"text/plain": waiting}, display_id=_OPENING, raw=True)


def show_code(of: Callable | type | ModuleType) -> None:
    """Display the source of a function, class or module as Python code."""
    from IPython.display import display

    source = textwrap.dedent(inspect.getsource(of)).strip()
    display({"text/markdown": f"```python\n{source}\n```", "text/plain": source}, raw=True)


def _remove_minor_ticks(fig: Figure) -> None:
    """Remove minor ticks from logarithmic axes that span more than a decade.

    They are invisible in this style but take half of the drawing time.
    """
    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            if axis.get_scale() == "log" and np.ptp(np.log10(axis.get_view_interval())) > 1:
                axis.set_minor_locator(NullLocator())


def _outline_text(fig: Figure) -> None:
    """Add a white outline to dark text in plots, so that it is legible on top of lines."""
    edge = [withStroke(linewidth=3, foreground="white")]
    for ax in fig.axes:
        if not ax.images and not any(isinstance(one, QuadMesh) for one in ax.collections):
            for text in ax.texts:
                if text.get_text() and not text.get_bbox_patch() and max(mpl.colors.to_rgb(text.get_color())) < 0.9:
                    text.set_path_effects(edge)


def _png(fig: Figure) -> bytes:
    """Encode a figure as a PNG with at most 256 colours, which looks the same and takes a third of the space."""
    fig.set_dpi(2 * fig.dpi)
    canvas = FigureCanvasAgg(fig)
    canvas.draw()  # savefig would lay out and draw twice, and encode a large PNG that Pillow decodes again
    reduced = io.BytesIO()
    # Palette images carry no software or date stamp, so equal figures give equal bytes.
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(reduced, "png")
    return reduced.getvalue()


@contextmanager
def _without_drawing(ax):
    """Prevent seaborn from drawing the whole figure to arrange markers and labels, which takes most of its time.

    Markers are arranged again whenever the figure is drawn, so the displayed figure is correct.
    """
    fig = ax.figure.canvas.figure
    fig.draw = lambda renderer: None
    try:
        yield
    finally:
        del fig.draw


def runs(ax, groups, colors=None, *, horizontal=False, summary="interval", marker="o", shift=0.0, size=4.0, label=None) -> None:
    """Plot one marker per run on the Matplotlib axes ``ax``, in groups along the horizontal or vertical axis.

    ``groups`` maps the label of each group to the values ``(n,)`` of its runs. Markers of equal values are drawn side by side.
    ``colors`` is one colour for all groups or a sequence with one colour per group. If ``horizontal`` is true, values lie on
    the horizontal axis, with the first group on top; otherwise they lie on the vertical axis, with the first group at the left.
    ``summary="interval"`` adds the mean of each group and its 95 % Student t interval (a single run has no interval),
    ``"median"`` adds a bar at the median, and None adds no summary. ``marker`` is a filled Matplotlib marker and ``size`` its
    size in points. ``shift`` moves the markers along the axis of the groups, so that several series can be drawn; ``label`` is
    the legend entry of the series.

    Raises ``ValueError`` if ``summary`` is unknown, the marker is unfilled, the number of colours is wrong, there is no group,
    a group is empty, not one-dimensional or not finite, or the value axis is not linear (seaborn would average logarithms);
    set the scale afterwards.

    >>> ax = Figure().subplots()
    >>> runs(ax, {"ERM": [0.2, 0.3, 0.4], "MAE": [0.5, 0.7]})
    >>> [tick.get_text() for tick in ax.get_xticklabels()]
    ['ERM', 'MAE']
    """
    import seaborn as sns  # imported here, since it takes a second and only some figures need it

    from mvnb.stats import mean_interval

    values = [np.asarray(one, dtype=float) for one in groups.values()]
    if any(one.ndim != 1 or not len(one) for one in values):
        raise ValueError(f"expected groups of shape (n,) with n >= 1, got shapes {[one.shape for one in values]}")
    _check_finite(dict(zip(groups, values)))
    if summary not in ("interval", "median", None):
        raise ValueError(f"summary must be 'interval', 'median' or None, got {summary!r}")
    if not MarkerStyle(marker).is_filled():
        raise ValueError(f"expected a filled marker, got {marker!r}")
    if (scale := (ax.xaxis if horizontal else ax.yaxis).get_scale()) != "linear":
        raise ValueError(f"expected a linear value axis, got scale {scale!r}; set the scale after drawing the runs")
    if colors is None or mpl.colors.is_color_like(colors):
        colors = [colors or COLORS["theory"]] * len(values)
    elif len(colors) != len(values):
        raise ValueError(f"expected one colour or {len(values)}, one per group, got {len(colors)}")
    names = "yx" if horizontal else "xy"  # label axis, value axis
    style = {"ax": ax, "orient": names[0], "native_scale": True, "marker": marker, "legend": False}
    apart = 0.1 if summary == "interval" else 0.0
    place = np.arange(len(values)) + shift
    at = np.repeat(place - apart, [len(one) for one in values])
    marks = dict(zip(names, (at, np.concatenate(values)))) | {"hue": at, "palette": list(colors)}
    dots = {"size": size, "alpha": 0.9 if summary is None else 0.5, "warn_thresh": 1.0}
    first = len(ax.collections)
    with _without_drawing(ax):
        sns.swarmplot(**marks, **dots, **style)  # stripplot would draw its jitter from NumPy's global random state
    ax.collections[first].set_label(label)
    for one, where, color in zip(values, place, colors):
        here = dict(zip(names, (np.full(len(one), where + apart), one))) | style | {"linestyle": "none"}
        if summary == "interval":
            ends = {"errorbar": lambda one: mean_interval(one)[1:]}
            sns.pointplot(**here, **ends, color=color, markersize=6, linewidth=1.8, capsize=0.08)
        elif summary == "median":
            bar = {"marker": "|" if horizontal else "_", "markersize": 22, "markeredgewidth": 1.5}
            sns.pointplot(**here | bar, estimator="median", errorbar=None, color=COLORS["theory"], zorder=4)
    set_ticks, set_limits = (ax.set_yticks, ax.set_ylim) if horizontal else (ax.set_xticks, ax.set_xlim)
    set_ticks(range(len(values)), list(groups))
    set_limits(*(-0.5, len(values) - 0.5)[:: -1 if horizontal else 1])


def _check_finite(groups: dict[str, np.ndarray]) -> None:
    """Raise ``ValueError`` if there is no group or a value is not finite."""
    if not groups:
        raise ValueError("expected at least one group, got none")
    for name, values in groups.items():
        if not np.isfinite(values).all():
            raise ValueError(f"values of group {name!r} must be finite, got {values[~np.isfinite(values)][0]}")


def distributions(ax, groups, colors=None, *, bins=None, filled=True) -> None:
    """Draw overlaid histograms of groups on the axes ``ax``, or box plots side by side if ``bins`` is None.

    ``groups`` maps the label of each group, for the legend or the axis, to values of any shape. ``colors`` contains one colour
    per histogram; the default is Matplotlib's colour cycle. ``bins`` are the bin edges. Histograms are drawn as bars if
    ``filled`` is true, otherwise as step lines. The whiskers of a box plot end at the last value within 1.5 interquartile
    ranges of the box.

    Raises ``ValueError`` if there is no group or a value is not finite.
    """
    import seaborn as sns

    values = {name: np.ravel(np.asarray(one, dtype=float)) for name, one in groups.items()}
    _check_finite(values)
    if bins is None:
        look = {"color": COLORS["theory"], "linewidth": 1.0, "medianprops": {"color": HUES["orange"]}}
        sns.boxplot(values, ax=ax, width=0.5, fliersize=2, fill=False, **look)
        return
    look = {"alpha": 0.8} if filled else {"element": "step", "fill": False, "linewidth": 1.8}
    for i, (name, one) in enumerate(values.items()):
        sns.histplot(one, bins=np.asarray(bins), ax=ax, color=colors[i] if colors else f"C{i}", label=name, **look)
    ax.set(xlabel="", ylabel="")


def heatmap(ax, values, rows=None, columns=None, *, limits=None, cmap=None, words=None, label=None, square=False):
    """Draw an array ``values`` ``(n, m)`` as coloured cells on the axes ``ax`` and return the cells, for a shared colour bar.

    The first row is on top, and cells with NaN are white. ``rows`` and ``columns`` are the names of all rows and columns, or
    None for no tick labels. ``words`` is a format of the values, such as ``".2f"``, or an array ``(n, m)`` of texts to write
    into the cells. ``limits`` are the values at the two ends of the colour map, by default the extremes of ``values``, and
    ``cmap`` is the colour map, by default that of the style. If ``label`` is given, a colour bar with this label is drawn
    beside the axes. If ``square`` is true, cells are square. In data coordinates, cell ``(i, j)`` extends from ``(j, i)`` to
    ``(j + 1, i + 1)``.

    Raises ``ValueError`` if ``values`` is empty or not two-dimensional, ``words`` has another shape, or the number of names is
    wrong.

    >>> cells = heatmap(Figure().subplots(), [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], rows=["a", "b"], words=".1f")
    >>> cells.get_array().shape
    (2, 3)
    """
    import seaborn as sns

    values = np.asarray(values, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"expected a non-empty array of shape (n, m), got shape {values.shape}")
    style = {"fmt": words, "annot": True} if isinstance(words, str) else {"fmt": "", "annot": words}
    if words is not None and not isinstance(words, str) and np.shape(words) != values.shape:
        raise ValueError(f"expected words of shape {values.shape}, got {np.shape(words)}")
    style["vmin"], style["vmax"] = limits or (None, None)
    style |= {"cmap": cmap or mpl.rcParams["image.cmap"], "square": square, "annot_kws": {"fontsize": 9}}
    with _without_drawing(ax):
        sns.heatmap(values, ax=ax, cbar=False, xticklabels=False, yticklabels=False, **style)
    sides = (("rows", ax.set_yticks, rows, len(values)), ("columns", ax.set_xticks, columns, len(values.T)))
    for side, set_ticks, names, n in sides:
        if names is not None:
            if len(names) != n:
                raise ValueError(f"expected {n} names of {side}, got {len(names)}")
            set_ticks(np.arange(n) + 0.5, names, rotation=0)
    ax.grid(False)
    cells = ax.collections[-1]
    if label:
        ax.figure.colorbar(cells, ax=ax, label=label).outline.set_visible(False)
    return cells
