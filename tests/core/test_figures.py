"""Figures carry their alternative text, are the same bytes every time, and close behind themselves."""

import struct
from pathlib import Path

import IPython.display
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

from mvnb import figures, stats


@pytest.fixture(autouse=True)
def headless():
    """Draw without a screen, and leave matplotlib as it was."""
    backend = mpl.get_backend()
    plt.switch_backend("agg")
    with mpl.rc_context():
        yield
    plt.close("all")
    plt.switch_backend(backend)


@pytest.fixture
def shown(monkeypatch):
    """What is displayed: a list of (data, keyword arguments)."""
    calls = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **kwargs: calls.append((data, kwargs)))
    return calls


def drawing(slope=1.0):
    fig, ax = plt.subplots(figsize=(4.0, 2.5))
    ax.plot([0, 1], [0, slope], label="a line")
    ax.legend()
    return fig


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_a_figure_needs_an_alternative_text(alt, shown):
    with pytest.raises(ValueError, match="alternative text"):
        figures.show(drawing(), alt=alt)
    assert not shown


def test_a_figure_is_a_png_with_its_text_and_size(shown):
    figures.use_style()
    fig = drawing()
    figures.show(fig, alt="A line that rises.")
    ((data, arguments),) = shown
    assert set(data) == {"image/png", "text/plain"}
    assert "A line that rises." in data["text/plain"]
    assert arguments == {
        "metadata": {"image/png": {"alt": "A line that rises.", "width": 400, "height": 250}},
        "raw": True,
    }
    png = data["image/png"]
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", png[16:24]) == (800, 500)  # two pixels for one
    assert not plt.fignum_exists(fig.number)


def test_the_opening_figure_fills_the_output_that_waits_for_it(shown):
    figures.opening()
    figures.show(drawing(), alt="A line.", opening=True)
    (_, waiting), (drawn, _), (filled, update) = shown
    assert filled == drawn and update["update"]
    assert update["display_id"] == waiting["display_id"]


def test_shown_code_is_the_source(shown):
    figures.show_code(figures.show_code)
    figures.show_code(Path.exists)  # a method, indented in its class
    (one, _), (method, _) = shown
    assert one["text/markdown"].startswith("```python\ndef show_code(") and one["text/markdown"].endswith("\n```")
    assert method["text/plain"].startswith("def exists(")


def test_the_same_figure_is_the_same_bytes(shown):
    for slope in (1.0, 1.0, 2.0):
        figures.show(drawing(slope), alt="A line.")
    one, again, other = (data["image/png"] for data, _ in shown)
    assert one == again != other
    for stamp in (b"Software", b"tIME", b"Creation", mpl.__version__.encode()):
        assert stamp not in one


@pytest.mark.parametrize("high", [3.0, 8.0, 12.0, 1e4])
def test_ticks_without_a_mark_are_left_out_and_no_picture_changes(high, shown):
    figures.use_style()
    pictures = []
    for draw in (figures._png, lambda fig: figures.show(fig, alt="A curve.")):
        fig, ax = plt.subplots(figsize=(3, 2))
        ax.loglog([1, high], [1, high**2])
        pictures.append(draw(fig))
    assert pictures[0] == shown[0][0]["image/png"]
    assert (len(ax.get_xticks(minor=True)) == 0) == (high > 10)


GROUPS = {"a": [1.0, 2.0, 4.0], "b": [3.0, 3.0, 3.0, 5.0]}


def dots(ax):
    """Values and places of the marks of each group, as they are drawn."""
    ax.figure.canvas.draw()
    return [np.asarray(marks.get_offsets()) for marks in ax.collections]


@pytest.mark.parametrize("horizontal", [False, True])
def test_runs_and_their_intervals_are_where_they_say(horizontal):
    _, ax = plt.subplots()
    figures.runs(ax, GROUPS, ["#ff0000", "#00ff00"], horizontal=horizontal)
    value, place = (0, 1) if horizontal else (1, 0)
    for i, (marks, values) in enumerate(zip(dots(ax), GROUPS.values())):
        assert np.allclose(sorted(marks[:, value]), values)
        assert (abs(marks[:, place] - i) < 0.5).all()
        assert len({tuple(at.round(6)) for at in marks}) == len(values)  # equal runs are both seen
    means, bars = ax.lines[::2], ax.lines[1::2]
    for i, (mean, bar, values) in enumerate(zip(means, bars, GROUPS.values(), strict=True)):
        centre, half = stats.mean_interval(values).plus_minus
        assert np.allclose(mean.get_xydata()[0, [value, place]], [centre, i + 0.1])
        ends = bar.get_xydata()[:, value]
        assert np.allclose([np.nanmin(ends), np.nanmax(ends)], [centre - half, centre + half])
        assert np.allclose(np.nanmean(bar.get_xydata()[:, place]), i + 0.1)
    assert [mpl.colors.to_hex(line.get_color()) for line in means] == ["#ff0000", "#00ff00"]
    assert [mpl.colors.to_hex(marks.get_facecolor()[0]) for marks in ax.collections] == ["#ff0000", "#00ff00"]
    axis = ax.yaxis if horizontal else ax.xaxis
    assert [tick.get_text() for tick in axis.get_ticklabels()] == ["a", "b"]
    assert axis.get_inverted() == horizontal  # the first at the left, or on top
    assert not ax.get_legend()


def test_runs_with_a_median_or_alone_and_in_series():
    _, (left, right) = plt.subplots(1, 2)
    figures.runs(left, GROUPS, summary="median")
    assert np.allclose([line.get_xydata()[0] for line in left.lines], [[0, 2], [1, 3]])
    left.set_yscale("log")
    assert np.allclose(np.sort(dots(left)[0][:, 1]), GROUPS["a"])
    figures.runs(right, GROUPS, summary=None, shift=-0.2, label="one")
    figures.runs(right, GROUPS, summary=None, shift=0.2, label="other", marker="s")
    assert not right.lines
    assert np.allclose([marks[:, 0].mean() for marks in dots(right)], [-0.2, 0.8, 0.2, 1.2], atol=0.05)
    assert right.get_legend_handles_labels()[1] == ["one", "other"]


@pytest.mark.parametrize(
    "groups, arguments",
    [
        ({}, {}),
        ({"a": []}, {"summary": None}),
        ({"a": [[1.0, 2.0]]}, {}),
        ({"a": [1.0, np.nan]}, {"summary": None}),
        (GROUPS, {"summary": "mode"}),
        (GROUPS, {"marker": "x"}),  # seaborn draws its marks without edges
        (GROUPS, {"colors": ["#ff0000"]}),
    ],
)
def test_runs_that_cannot_be_drawn(groups, arguments):
    with pytest.raises(ValueError):
        figures.runs(plt.subplots()[1], groups, **arguments)


@pytest.mark.parametrize("horizontal", [False, True])
def test_runs_come_before_the_scale_of_their_axis(horizontal):
    _, ax = plt.subplots()
    (ax.set_xscale if horizontal else ax.set_yscale)("log")
    with pytest.raises(ValueError, match="scale"):
        figures.runs(ax, GROUPS, horizontal=horizontal)


def test_histograms_count_and_boxes_span():
    _, (bars, steps, boxes) = plt.subplots(1, 3)
    edges = [0.0, 2.0, 4.0, 6.0]
    figures.distributions(bars, GROUPS, ["#ff0000", "#00ff00"], bins=edges)
    assert [bar.get_height() for bar in bars.patches] == [1, 1, 1, 0, 3, 1]
    assert bars.get_legend_handles_labels()[1] == ["a", "b"]
    assert mpl.colors.to_hex(bars.patches[0].get_facecolor()) == "#ff0000"
    figures.distributions(steps, {"a": np.reshape(GROUPS["a"], (3, 1))}, bins=edges, filled=False)
    assert not steps.patches
    assert max(steps.lines[0].get_ydata()) == 1
    figures.distributions(boxes, GROUPS)
    assert [tick.get_text() for tick in boxes.get_xticklabels()] == ["a", "b"]
    level = [line.get_ydata()[0] for line in boxes.lines if len(set(line.get_ydata())) == 1 and len(line.get_ydata()) == 2]
    assert {2.0, 3.0} <= set(level)  # the medians


@pytest.mark.parametrize("groups", [{}, {"a": [1.0, np.inf]}])
@pytest.mark.parametrize("bins", [None, [0.0, 1.0]])
def test_distributions_that_cannot_be_drawn(groups, bins):
    with pytest.raises(ValueError, match="group"):
        figures.distributions(plt.subplots()[1], groups, bins=bins)


def test_a_heat_map_is_a_table_with_its_words(shown):
    fig, (numbers, words) = plt.subplots(1, 2)
    table = np.array([[0.0, 0.25, 0.5], [0.75, 1.0, np.nan]])
    cells = figures.heatmap(numbers, table, ["r", "s"], [1, 2, 3], words=".2f", limits=(0, 2), label="share")
    assert np.ma.allclose(cells.get_array(), np.ma.masked_invalid(table))
    assert cells.get_clim() == (0, 2)
    assert cells.get_cmap().name == mpl.rcParams["image.cmap"]
    written = {text.get_text(): (text.get_position(), text.get_color()) for text in numbers.texts}
    assert written.keys() == {"0.00", "0.25", "0.50", "0.75", "1.00"}  # nothing where nothing is
    assert written["0.50"][0] == (2.5, 0.5)
    assert written["0.75"][0] == (0.5, 1.5)
    assert written["0.00"][1] == "w"
    assert [tick.get_text() for tick in numbers.get_yticklabels()] == ["r", "s"]
    assert [tick.get_text() for tick in numbers.get_xticklabels()] == ["1", "2", "3"]
    assert numbers.get_ylim() == (2, 0)  # the first row on top
    assert [ax.get_ylabel() for ax in fig.axes] == ["", "", "share"]
    figures.heatmap(words, np.ones((1, 2)), words=[["dark", "pale"]], cmap="Greys", limits=(1, 2), square=True)
    assert [text.get_text() for text in words.texts] == ["dark", "pale"]
    assert not [*words.get_xticks(), *words.get_yticks()]
    assert words.get_aspect() == 1
    figures.show(fig, alt="Two tables.")
    assert not any(text.get_path_effects() for text in words.texts)


@pytest.mark.parametrize(
    "values, arguments",
    [
        ([1.0, 2.0], {}),
        (np.zeros((0, 2)), {}),
        (np.eye(2), {"rows": ["a"]}),
        (np.eye(2), {"columns": ["a", "b", "c"]}),
        (np.eye(2), {"words": [["a", "b"]]}),
    ],
)
def test_heat_maps_that_cannot_be_drawn(values, arguments):
    with pytest.raises(ValueError):
        figures.heatmap(plt.subplots()[1], values, **arguments)


def test_the_style_is_the_same_whatever_was_set_before():
    figures.use_style()
    style = dict(mpl.rcParams)
    mpl.rcParams.update({"text.usetex": True, "lines.marker": "x", "savefig.dpi": 300})
    figures.use_style()
    assert dict(mpl.rcParams) == style


def test_seaborn_draws_the_same_bytes_and_leaves_global_state_alone(shown):
    figures.use_style()
    style = dict(mpl.rcParams)
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002  (nothing depends on it)
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        fig, axes = plt.subplots(1, 4)
        figures.runs(axes[0], GROUPS, figures.COLORS["ERM"])
        figures.distributions(axes[1], GROUPS, bins=[0, 3, 6])
        figures.distributions(axes[2], GROUPS)
        figures.heatmap(axes[3], np.eye(3), words=".1f")
        figures.show(fig, alt="Four panels.")
        assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    one, again = (data["image/png"] for data, _ in shown)
    assert one == again
    assert dict(mpl.rcParams) == style


def test_methods_have_distinct_colours():
    others = [color for color in figures.COLORS.values() if color not in (figures.METHOD, figures.BASELINE)]
    assert len({*others, figures.METHOD, figures.BASELINE}) == len(others) + 2
    assert all(mpl.colors.is_color_like(color) for color in figures.COLORS.values())


def test_shades_go_from_dark_to_light_and_are_seen_on_white():
    for n in (1, 2, 5):
        light = figures.shades(n)[:, :3] @ (0.2126, 0.7152, 0.0722)
        assert len(light) == n
        assert (np.diff(light) > 0).all()
        assert light.max() < 0.65


def test_dark_words_get_a_white_edge_where_there_is_no_picture_or_box(shown):
    fig, (plot, heat) = plt.subplots(1, 2)
    words = [plot.text(0, 0, "dark"), plot.text(0, 1, "pale", color="white"), plot.text(1, 0, "boxed", bbox={})]
    heat.imshow(np.eye(2))
    words.append(heat.text(0, 0, "on a map"))
    figures.show(fig, alt="Words.")
    assert [bool(word.get_path_effects()) for word in words] == [True, False, False, False]
