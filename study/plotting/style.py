"""The look and saving of every figure: the same bytes for the same data."""

from __future__ import annotations

import hashlib
import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, NullLocator
from matplotlib.transforms import Bbox
from scipy.optimize import isotonic_regression

from study.base.durable_files import write_atomically
from study.base.quantities import DIGITS, compact, in_billions, of_flops, plural, rounded, rounded_all, tick
from study.base.text import joined, visible
from study.evidence.cells import DETECTED, NATS, PER_BYTE
from study.evidence.ledgers import LOSS, LOSS_OF_DETECTING, LOSS_PER_BYTE, LOSSES

SIDE_BY_SIDE = "; near ones side by side"
"""The end of an axis name if points stand side by side (see `axis_name`)."""

_REACH = 2.0
"""How far beyond its points a figure shows their bars, in spreads of the points; bars of two seeds can be far longer."""

_APART = 0.13
"""Inches between bars of sizes that are equal or nearly so, less if there are many."""

LEGEND_INCHES = 0.3
"""The legend height that figures allow for."""

_TITLE_INCHES = 0.3
"""The title height that they allow for."""

_MOST_NAMED = 4
"""How many groups of losses are counted in a title and not named."""

MANY = 2000
"""The most rows that a figure of points shows, spread evenly."""

Panels = tuple[Figure, list[Axes]]
"""A figure and its panels in reading order."""

MARKERS = "osD^vP*X"

StyleName = Literal["page", "paper"]
Format = Literal["svg", "pdf", "png", "csv"]


@dataclass(frozen=True)
class Style:
    """The size of figures: their `width` in inches, their most `columns` of panels, and the `points` of their type.

    Panels are `tall` times as high as on a page.
    """

    width: float
    columns: int
    points: float
    tall: float


STYLES: dict[StyleName, Style] = {"page": Style(7.2, 3, 9.0, 1.0), "paper": Style(3.3, 1, 7.5, 0.75)}
"""The width of a page between its margins, and that of a column of a paper of two columns."""

_STYLE: ContextVar[Style] = ContextVar("style", default=STYLES["page"])
_WORDING: ContextVar[Callable[[str], str]] = ContextVar("wording", default=str)


@contextmanager
def drawn_as(name: StyleName, wording: Callable[[str], str] = str) -> Iterator[None]:
    """Draw figures in this style inside the block, all their texts in this wording; without one they are as wide as a page."""
    style_before, wording_before = _STYLE.set(STYLES[name]), _WORDING.set(wording)
    try:
        yield
    finally:
        _STYLE.reset(style_before)
        _WORDING.reset(wording_before)


def worded(text: str) -> str:
    """Return a text in the wording that figures are drawn in."""
    return _WORDING.get()(text)


def style() -> Style:
    """Return the style that figures are drawn in."""
    return _STYLE.get()


_CANVASES: dict[Format, type[FigureCanvasBase]] = {"svg": FigureCanvasSVG, "pdf": FigureCanvasPdf, "png": FigureCanvasAgg}
_UNDATED: dict[Format, dict[str, str | None]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}
"""The formats in the order of writing, with the metadata that would differ between days and versions, or says nothing.

SVG comes last: a page takes the positions of points from its layout (study.plotting.hover).
"""

_FIXED = {
    "svg.hashsalt": "scaling-study",
    "svg.fonttype": "none",  # letters, not their outlines: half the size, and found by a search
    # the font that matplotlib ships, so that every machine lays out alike, and one of the same widths for a reader without it
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
    "pdf.fonttype": 42,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    # fixed right above the panel: moving titles above ticks and axis factors would lay out all ticks each time
    "axes.titley": 1.0,
    "axes.formatter.useoffset": False,
    "text.parse_math": False,  # column names may hold dollars
    "text.hinting": "none",  # hinted letters are up to a tenth narrower or wider in one resolution than in another
}


@contextmanager
def theme() -> Iterator[None]:
    """Draw and save within the theme: seaborn's white grid, the style's type, fixed SVG ids."""
    points = style().points
    look = {
        "font.size": points,
        **dict.fromkeys(("axes.labelsize", "axes.titlesize", "legend.title_fontsize"), points),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), points - 0.5),
        "figure.titlesize": points + 0.5,
        "axes.titleweight": "normal",
        "legend.frameon": False,
        "grid.linewidth": 0.6,
        "axes.linewidth": 0.8,
        **dict.fromkeys(("xtick.major.pad", "ytick.major.pad", "axes.labelpad"), 3),
    }
    with mpl.rc_context():
        sns.set_theme(context="paper", style="whitegrid", palette="colorblind", rc={**look, **_FIXED})
        yield


def panels(titles: Sequence[str], x: str, y: str, columns: int = 2, height: float = 2.5, one_y: bool = True) -> Panels:
    """Return a figure as wide as its style and its panels, in rows of at most `columns`, each so many inches high on a page.

    The panels share x and y ranges, and outer axis names; `one_y` False gives each panel its own y range.
    """
    columns = min(columns, len(titles), style().columns)
    rows = -(-len(titles) // columns)
    height *= style().tall
    figure = wide_figure(height * rows + 0.7)
    axes: list[Axes] = figure.subplots(rows, columns, sharex=True, sharey=one_y, squeeze=False).ravel().tolist()
    for spare in axes[len(titles) :]:
        spare.remove()
    axes = axes[: len(titles)]
    letters = letters_in(0.9 * figure.get_figwidth() / columns)
    for panel, title in zip(axes, titles, strict=True):
        panel.set_title("\n".join(in_lines(line, letters) for line in worded(title).splitlines()))
    for lowest in axes[-columns:]:
        lowest.set_xlabel(in_lines(x, letters))
        lowest.xaxis.set_tick_params(labelbottom=True)
    if rows == 1:
        axes[0].set_ylabel(in_lines(y, letters_in(height - 0.4)))
    else:
        figure.supylabel(y, fontsize=axes[0].yaxis.label.get_fontsize())
    return figure, axes


def letters_in(inches: float) -> int:
    """About how many letters of the style's type are so many inches long."""
    return int(130 * inches / style().points)


def wide_figure(height: float) -> Figure:
    """Return an empty figure as wide as its style, so many inches high."""
    return Figure(figsize=(style().width, height), layout="constrained")


def size_styles(sizes: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Colour and marker of each value of a size, on a colour-blind-safe ramp from dark (small) to light (large)."""
    ordered = sorted(set(sizes))
    ramp = sns.color_palette("viridis", len(ordered) + 1).as_hex()
    return {size: (ramp[rank], MARKERS[rank % len(MARKERS)]) for rank, size in enumerate(ordered)}


def series_styles(names: Iterable[object]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each named line, in order of first appearance."""
    ordered = list(dict.fromkeys(str(name) for name in names))
    colours = sns.color_palette("colorblind", max(1, len(ordered))).as_hex()
    return {name: (colours[rank], MARKERS[rank % len(MARKERS)]) for rank, name in enumerate(ordered)}


def style_key(styles: Mapping[Any, tuple[str, str]], of: str = "") -> list[Line2D]:
    """Return the legend entries of sizes or named lines, each prefixed with `of`."""
    return [Line2D([], [], color=colour, marker=mark, label=f"{of}{name}") for name, (colour, mark) in styles.items()]


def mark_plateau(axes: Sequence[Axes], data: pd.DataFrame) -> str:
    """Draw the unigram entropy as a labelled line where it is near the range of panels, else return the title's note on it."""
    return "".join(dict.fromkeys(_mark_plateau(panels, rows) for panels, rows in by_scale(axes, data)))


def _mark_plateau(panels: Sequence[Axes], rows: pd.DataFrame) -> str:
    known = rows["unigram_entropy_nats"].dropna()
    if known.empty:
        return ""
    entropy, note = float(known.max()), ""
    label = f"unigram entropy {entropy:.2f}"
    for axes, (low, high) in [(panel, panel.get_ylim()) for panel in panels]:
        if not low <= entropy <= high + 0.25 * (high - low):
            note = f"; {label}, above the axis"
            continue
        axes.set_ylim(low, max(high, entropy + 0.1 * (high - low)))
        axes.axhline(entropy, color="black", linestyle=":", linewidth=1.2)
        across = axes.get_yaxis_transform()
        beside: dict[str, Any] = {"xycoords": across, "textcoords": "offset points", "fontsize": "small"}
        axes.annotate(label, (0.99, entropy), (0, 3), ha="right", **beside)
    return note


def side_by_side(sizes: pd.Series[float], among: pd.Series[str], inches: float) -> pd.Series[float]:
    """Positions on a logarithmic axis of so many inches that separate the members of each group of `among`.

    Each moves as little as possible, by least squares in the logarithm: an isotonic regression of the sizes less even steps.
    """
    span = np.log(max(2.0, sizes.max() / sizes.min()))
    aside = pd.Series(0.0, sizes.index)
    for _, group in sizes.groupby(among):
        ordered = group.sort_values(kind="stable")
        logarithms = np.log(ordered.to_numpy(dtype=float))
        steps = span * min(_APART / inches, 0.5 / len(ordered)) * np.arange(len(ordered))
        aside[ordered.index] = isotonic_regression(logarithms - steps).x + steps - logarithms
    return sizes * np.exp(aside.round(9))


def axis_name(name: str, positions: pd.Series[float], sizes: pd.Series[float]) -> str:
    """Return an axis name that says whether points are shifted."""
    return name + (SIDE_BY_SIDE if (positions != sizes).any() else "")


def draw_intervals(axes: Axes, x: pd.Series, loss: pd.Series, half: pd.Series, colour: str) -> None:
    """Draw vertical bars of the 95% intervals of losses; none if all are missing (one seed everywhere)."""
    known = half.notna()
    bars = half[known].astype(float)
    axes.errorbar(x[known], loss[known], bars, color=colour, fmt="none", capsize=4, linewidth=1.4, zorder=2)


def cut_long_bars(panels: Sequence[Axes], losses: pd.Series, low: pd.Series, high: pd.Series) -> str:
    """End the y axis of panels where bars reach too far beyond the losses, and return the title's note on it, else nothing."""
    reach = _REACH * float(np.ptp(losses))
    bottom, top = losses.min() - reach, losses.max() + reach
    if not reach or not ((low < bottom) | (high > top)).any():
        return ""
    lowest, highest = panels[0].get_ylim()
    panels[0].set_ylim(max(lowest, bottom), min(highest, top))
    return ", some longer than the axis"


def legend_below(figure: Figure, entries: Sequence[Artist], columns: int = 4) -> None:
    """Put one legend under all panels, in at most `columns` columns; the figure grows with it."""
    if not entries:
        return
    labels = [worded(str(entry.get_label())) for entry in entries]
    for count in range(min(columns, len(entries)), 0, -1):
        legend = figure.legend(entries, labels, loc="outside lower center", ncols=count)
        if count == 1 or _fits(figure, legend):
            more = _extent(figure, legend).height / figure.dpi - LEGEND_INCHES
            figure.set_figheight(figure.get_figheight() + max(0.0, more))
            return
        legend.remove()


def title_above(figure: Figure, finding: str, note: str = "") -> None:
    """Put what the figure shows above it, in bold, and a note below that, each in as few lines as fit; the figure grows."""
    title = figure.suptitle("", x=0.01, ha="left", weight="bold")
    _fill(figure, title, worded(finding))
    if note:
        below = Annotation("", (0, 0), xycoords=title, va="bottom", fontsize=style().points)
        figure.add_artist(below)
        _fill(figure, below, worded(note))
        below.set_in_layout(False)  # it stands in the title's last lines, which are empty
        title.set_text(title.get_text() + "\n" * (1 + below.get_text().count("\n")))
    figure.set_figheight(figure.get_figheight() + max(0.0, _extent(figure, title).height / figure.dpi - _TITLE_INCHES))


def finding_of(figure: Figure) -> str:
    """Return the finding above a figure, on one line."""
    return " ".join(figure.get_suptitle().split())


def _fill(figure: Figure, text: Text, words: str) -> None:
    """Set words in as few lines as fit into the figure's width."""
    text.set_text(words)
    length = len(words)
    while not _fits(figure, text) and length > 20:
        length -= 2
        text.set_text(in_lines(words, length))


def in_lines(text: str, width: int) -> str:
    """Text in the fewest lines of at most `width` letters, of about equal length."""
    fewest = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    lengths = range(1 + len(text) // max(1, len(fewest)), width)
    tried = (textwrap.wrap(text, length, break_long_words=False, break_on_hyphens=False) for length in lengths)
    even = (lines for lines in tried if len(lines) == len(fewest) and max(map(len, lines)) <= width)
    return "\n".join(next(even, fewest))


def _fits(figure: Figure, drawn: Artist) -> bool:
    return _extent(figure, drawn).width <= 0.98 * figure.bbox.width


def _extent(figure: Figure, drawn: Artist) -> Bbox:
    """Return the extent of an artist in dots."""
    return drawn.get_window_extent(RendererAgg(1, 1, figure.dpi))  # type: ignore[no-untyped-call]


def log_ticks(axes: Axes) -> None:
    """Make the x axis logarithmic over at least a factor 2, with ticks such as 200k, 1B, 3T, 1e18; call it after drawing."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(NullLocator())  # a logarithmic axis adds decades around a single value
    axes.autoscale(axis="x")  # again, over all panels that share the axis
    low, high = axes.get_xlim()
    if high < 2 * low:
        middle = np.sqrt(low * high)
        low, high = axes.set_xlim(middle / np.sqrt(2), middle * np.sqrt(2))
    fitting = (one for one in log_locators(low, high) if _has_room(axes, one.tick_values(low, high)))
    ticks_in_words(axes.xaxis, next(fitting, LogLocator()), lambda value: _x_tick(axes, value))


def ticks_in_words(axis: Axis, locator: Locator, words: Callable[[float], str]) -> None:
    """Ticks of an axis where a locator puts them, labelled by words, and none between."""
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))


def log_locators(low: float, high: float) -> list[LogLocator]:
    """Ticks between two values on a logarithmic axis, the most first."""
    decades = np.log10(high / low)
    narrow = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if decades < 0.4 else (1, 1.5, 2, 3, 4, 6, 8)
    most = narrow if decades < 0.8 else (1, 2, 5) if decades < 2.2 else (1,)
    return [LogLocator(subs=subs) for subs in (most, (1, 2, 5), (1, 3)) if len(subs) <= len(most)]


def _has_room(axes: Axes, values: Sequence[float]) -> bool:
    """Whether the labels of ticks fit side by side, two letters apart."""
    low, high = axes.get_xlim()
    ticks = [value for value in values if low <= value <= high]
    return all(
        letters_between(axes, left, right) > (len(_x_tick(axes, left)) + len(_x_tick(axes, right))) / 2 + 2
        for left, right in pairwise(ticks)
    )


def letters_between(axes: Axes, left: float, right: float) -> float:
    """About how many letters fit between two places on a logarithmic x axis."""
    low, high = axes.get_xlim()
    columns = place.get_gridspec().ncols if (place := axes.get_subplotspec()) is not None else 1
    return letters_in(0.8 * style().width / columns) * float(np.log(right / left) / np.log(high / low))


def _x_tick(axes: Axes, value: float) -> str:
    """Return a tick in SI if the axis name mentions FLOPs, else a count in billions."""
    names = [panel.get_xlabel() for panel in axes.get_shared_x_axes().get_siblings(axes)]
    words = tick(value, axes.get_xlim()[1])
    return words if any(map(of_flops, names)) else in_billions(words)


def finish_cells(figure: Figure, axes: Sequence[Axes], data: pd.DataFrame, title: str, finding: str = "") -> None:
    """Finish a figure of cells over a size: log x axis, plateau, and a title with what is counted.

    The title begins with the finding, or else with the lowest loss.
    """
    for panel in axes:
        panel.margins(x=0.08, y=0.15)
    log_ticks(axes[0])
    notes: dict[str, None] = {}
    for same, rows in by_scale(axes, data):
        losses, half = rows["loss_nats"], rows["half_nats"].astype(float)
        notes |= dict.fromkeys((cut_long_bars(same, losses, losses - half, losses + half), mark_plateau(same, rows)))
    counted = f"{plural(len(data), 'cell')}, {plural(int(data['seeds'].sum()), 'run')}"
    bars = what_bars_show(data["half_nats"], data["tokens"])
    title_above(figure, incomparable(data) or finding or _lowest(data), f"{title}; {counted}; {bars}{''.join(notes)}")


_LOSS_IN = {NATS: LOSS, DETECTED: LOSS_OF_DETECTING, PER_BYTE: LOSS_PER_BYTE}
"""The axis of losses in each unit."""


def loss_axis(data: pd.DataFrame) -> str:
    """Return the name of the axis of losses, by their `unit`, if they compare."""
    return LOSSES if incomparable(data) else unit_axis(data)


def unit_axis(data: pd.DataFrame) -> str:
    """Return the name of the axis of losses by their `unit` alone."""
    units = data["unit"].unique()
    return _LOSS_IN[units[0]] if len(units) == 1 else LOSSES


def in_unit(data: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of losses in nats with their numbers in its `unit`."""
    if not data["unit"].eq(PER_BYTE).any():
        return data
    return data.assign(**{name: data[name].astype(float) / np.log(2) for name in map(str, data) if name.endswith("_nats")})


def incomparable(data: pd.DataFrame) -> str:
    """Return the finding of a figure whose losses do not compare, of several `scale`s; empty if they do."""
    scales = data["scale"].unique().tolist()
    named = joined(scales) if len(scales) < _MOST_NAMED else f"{len(scales)} variants"
    return f"Losses of {named} do not compare: each has its own panel and axis" if len(scales) > 1 else ""


def by_scale(axes: Sequence[Axes], data: pd.DataFrame) -> list[tuple[list[Axes], pd.DataFrame]]:
    """Return the panels that share an axis of losses, with their rows: all, or each `panel` alone if losses do not compare."""
    if not incomparable(data):
        return [([*axes], data)]
    return [([panel], rows) for panel, (_, rows) in zip(axes, data.groupby("panel", sort=False), strict=True)]


def _lowest(data: pd.DataFrame) -> str:
    """Return the cell of the lowest mean loss, in words."""
    best = data.nsmallest(1, "loss_nats").iloc[0]
    at = f" at {compact(best['tokens'])} tokens" if data["tokens"].nunique() > 1 else ""
    return f"Lowest loss: {best['loss_nats']:.3f} {best['unit']}, by {best['line']}{at}"


def what_bars_show(intervals: pd.Series, tokens: pd.Series) -> str:
    """Return the title's note on the bars, from the intervals of means over seeds, missing if unknown or zero.

    Untrained models (no tokens) have no scatter between seeds.
    """
    if intervals.notna().any():
        return "bars: 95% over seeds"
    return "no seed replicates, so no intervals" if tokens.any() else "nothing was trained, so seeds do not scatter"


def readable_on_lines() -> dict[str, Any]:
    """Return what an annotation takes to be readable on lines: a white box, on which an SVG keeps its letters."""
    return {"bbox": {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}}


def drawable(data: pd.DataFrame) -> pd.DataFrame:
    """Return a figure's data, rounded so that every processor draws the same, its texts without invisible characters."""
    floats = data.select_dtypes("float")
    rounded_columns = {name: [rounded_all(value, DIGITS) for value in floats[name].tolist()] for name in map(str, floats)}
    texts = data.select_dtypes(exclude=["number", "bool"])
    words = [name for name in texts if data[name].map(lambda value: isinstance(value, str) and value != visible(value)).any()]
    return data.assign(**rounded_columns, **{str(name): data[name].map(_without_hidden) for name in words})


def _without_hidden(value: object) -> object:
    return visible(value) if isinstance(value, str) else value


_COORDINATES = re.compile(rb'( (?:d|x|y)="|translate\(|rotate\()([^")]*)')
_LONG = re.compile(rb"-?\d+\.\d{2,}")
_LEVEL = re.compile(rb' transform="rotate\(-0 [^"]*"')
_INDENTED = re.compile(rb"\n +")
_AROUND_COMMANDS = re.compile(rb"\s*([A-Za-z])\s*")
_STYLED = re.compile(rb' style="([^"]*)"')
_FONT = re.compile(rb"(font-family: [^;\"]+); ")
_NAMED = re.compile(rb'(<\w+) id="([^"]*)"')
_REFERRED = re.compile(rb'(?:href="|url\()#([^")]*)')
_ALIKE = re.compile(rb'(<g clip-path="([^"]*)">\n<use [^>]*/>)((?:\n</g>\n<g clip-path="\2">\n<use [^>]*/>)+)')
"""Places of coordinates in an SVG, numbers with more decimals than they need, turns of text by nothing, names of elements and
what refers to them, and points that are each in a group of their own."""


def save_in(
    figure: Figure, folder: Path, name: str, formats: Iterable[Format] = (), data: pd.DataFrame | None = None
) -> list[Path]:
    """Write `<name>.svg`, and the file of each of `formats`, without dates or versions, and return the files.

    The format csv is the figure's `data`. Earlier files of other formats, now outdated, are removed.
    """
    remove_figure(folder, name, (keep := {"svg", *formats}) | ({"csv"} if data is None else set()))
    for text in figure.findobj(Text):
        text.set_text(visible(text.get_text()))  # names come from tables; XML holds no control characters
    for axes in figure.axes:
        for spine in axes.spines.values():
            spine.axis = None  # else each layout checks every tick for overhang
    begun = {axes: axes.get_position(original=True) for axes in figure.axes if axes.get_in_layout()}
    written = []
    if data is not None and "csv" in keep:
        written.append(folder / f"{name}.csv")
        write_atomically(written[0], data.to_csv(index=False, lineterminator="\n").encode())
    for kind, metadata in _UNDATED.items():
        if kind in keep:
            buffer = io.BytesIO()
            with theme(), _laid_out(figure, kind, begun):
                figure.savefig(buffer, format=kind, metadata=metadata)
            written.append(folder / f"{name}.{kind}")
            write_atomically(written[-1], shortened(buffer.getvalue()) if kind == "svg" else buffer.getvalue())
    return written


def shortened(svg: bytes) -> bytes:
    """Return an SVG with coordinates to a tenth of a point, its font and each style named once, and nothing that nobody sees.

    A tenth of a point is less than a pixel. Unseen are spaces, names that nothing refers to, and a group around each point.
    """
    svg = _COORDINATES.sub(_shortened_attribute, _INDENTED.sub(b"\n", _LEVEL.sub(b"", svg)))
    svg = _ALIKE.sub(lambda match: match[1] + match[3].replace(b'\n</g>\n<g clip-path="%s">' % match[2], b""), svg)
    referred = {*_REFERRED.findall(svg)}
    svg = _NAMED.sub(lambda match: match[0] if match[2] in referred else match[1], svg)
    if (font := _FONT.search(svg)) is not None:
        svg = svg.replace(font[0], b"").replace(b"<svg ", b'<svg style="%s" ' % font[1], 1)
    return _with_classes(svg)


def _with_classes(svg: bytes) -> bytes:
    """Return an SVG whose repeated styles are classes, named by their content, so that figures on one page agree."""
    repeated = [style for style, count in Counter(_STYLED.findall(svg)).items() if count > 1]
    names = {style: b"s" + hashlib.blake2s(style, digest_size=3).hexdigest().encode() for style in repeated}
    rules = b"".join(b".%s{%s}" % (name, style) for style, name in names.items())
    svg = _STYLED.sub(lambda match: b' class="%s"' % names[match[1]] if match[1] in names else match[0], svg)
    return svg.replace(b"</style>", rules + b"</style>", 1)


def _shortened_attribute(match: re.Match[bytes]) -> bytes:
    numbers = _LONG.sub(lambda number: b"%g" % round(float(number[0]), 1), match[2])
    return match[1] + (_AROUND_COMMANDS.sub(rb"\1", numbers) if match[1] == b' d="' else numbers)


def remove_figure(folder: Path, name: str, keep: Iterable[str] = ()) -> None:
    """Remove a figure's files, except those of the formats to `keep`."""
    for kind in {*_UNDATED, "csv"} - set(keep):
        (folder / f"{name}.{kind}").unlink(missing_ok=True)


@contextmanager
def _laid_out(figure: Figure, kind: Format, begun: Mapping[Axes, Bbox]) -> Iterator[None]:
    """Lay out a figure by a format's text measures; savefig would draw it again for that.

    Layout starts from the positions of `begun`, so that it is the same whatever formats are written before.
    """
    for axes, position in begun.items():
        axes.set_position(position)
        axes.set_in_layout(True)
    engine = figure.get_layout_engine()
    assert engine is not None
    figure.set_dpi(mpl.rcParams["savefig.dpi"])
    _CANVASES[kind](figure)
    engine.execute(figure)
    figure.set_layout_engine(None)
    for axes in figure.axes if kind == "svg" else ():
        left, bottom, width, height = map(rounded, axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))  # SVG clip ids use all digits
    yield
    figure.set_layout_engine(engine)
