"""Figures carry their alternative text, are the same bytes every time, and close behind themselves."""

import struct

import IPython.display
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

from mvnb import figures


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


def test_a_glued_figure_has_a_name(shown):
    figures.show(drawing(), alt="A line.", glue="01-line")
    metadata = shown[0][1]["metadata"]
    assert metadata["scrapbook"] == {"name": "01-line", "mime_prefix": ""}
    assert metadata["image/png"]["alt"] == "A line."


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


@pytest.mark.parametrize("horizontal", [False, True])
def test_intervals_are_where_they_say(horizontal):
    _, ax = plt.subplots()
    figures.intervals(ax, ["a", "b"], [1.0, 3.0], [0.5, (0.25, 1.0)], ["#ff0000", "#00ff00"], horizontal=horizontal)
    bars = [collection.get_segments()[0] for collection in ax.collections]
    value, place = (0, 1) if horizontal else (1, 0)
    assert np.allclose([bar[:, value] for bar in bars], [[0.5, 1.5], [2.75, 4.0]])
    assert np.allclose([bar[:, place] for bar in bars], [[0, 0], [1, 1]])
    axis = ax.yaxis if horizontal else ax.xaxis
    assert [tick.get_text() for tick in axis.get_ticklabels()] == ["a", "b"]
    assert [mpl.colors.to_hex(collection.get_color()[0]) for collection in ax.collections] == ["#ff0000", "#00ff00"]


def test_methods_have_distinct_colours():
    assert len(set(figures.COLORS.values()) | set(figures.VIEW_COLORS)) == len(figures.COLORS) + 2
    assert all(mpl.colors.is_color_like(color) for color in (*figures.COLORS.values(), *figures.VIEW_COLORS))


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
