"""A map of the loss over depth and width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, ScalarFormatter
from numpy.typing import NDArray

from study.base.quantities import compact
from study.counting.architecture import Architecture
from study.counting.parameters import COUNT_WORDS, SizeCount, parameters
from study.evidence.evidence import MOST_PANELS, Evidence
from study.laws.law_fits import LawFit
from study.plotting.hover import explain
from study.plotting.style import (
    by_scale,
    in_lines,
    incomparable,
    letters_between,
    letters_in,
    log_ticks,
    loss_axis,
    panels,
    readable_on_lines,
    style,
    theme,
    title_above,
)

Count = Callable[[int, int], float]
"""Parameters at a depth and a width."""

CONTOURS = 3

MOST_LABELS = 40
"""The most cells of a panel that are labelled with their losses; others have smaller discs."""

_WIDTHS = 48
_HEIGHT = 2.5
"""Inches of a panel on a page."""

_EM = 0.833
"""The type of losses beside that of the style."""


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per usable cell (`kind` cell: depth, width, mean loss over seeds), and the points of each contour.

    Cells of one depth and width show their lowest loss, and the label says among what. Contours are of equal parameters, by the
    count in which the sweep compares shapes (`counted`), at the FFN ratio of the median cell; fewer than two depths or widths
    have none. Each panel is a budget, the smallest first.
    """
    usable = [cell for cell in evidence.cells if cell.usable]
    budgets = list(dict.fromkeys(cell.budget for cell in sorted(usable, key=lambda cell: cell.tokens)))[-MOST_PANELS:]
    rows = [
        {
            "panel": evidence.panel_of(cell),
            "scale": evidence.scales[cell.name],
            "unit": cell.unit,
            "depth": cell.architecture.depth,
            "width": cell.architecture.width,
            "loss": cell.loss_in_unit,
        }
        for cell in usable
        if cell.budget in budgets
    ]
    if not rows:
        return pd.DataFrame()
    cells = pd.DataFrame(rows)
    lowest = _lowest(cells)
    others = "variants, heads and FFN" if any(cell.setting for cell in usable) else "heads and FFN"
    axis = loss_axis(cells)
    label = axis if len(lowest) == len(cells) else f"{axis}, lowest over {others}"
    example = usable[0].architecture
    ratio = float(np.median([cell.architecture.ffn / cell.architecture.width for cell in usable]))
    by = evidence.sweep.size_count
    return _with_contours(lowest, lambda depth, width: _size(example, ratio, depth, width, by), label, COUNT_WORDS[by])


def frame_of_law(fitted: LawFit) -> pd.DataFrame:
    """Return the same for a table, with contours of 12·depth·width²; empty if the law has no depth and width."""
    columns = fitted.fit.observations.columns
    if not {"depth", "width"} <= columns.keys() or fitted.fit.law.predicts != "loss":
        return pd.DataFrame()
    loss = fitted.fit.observations.response
    rows = pd.DataFrame({"panel": "", "scale": "", "depth": columns["depth"], "width": columns["width"], "loss": loss})
    by = COUNT_WORDS["non_embedding"]
    return _with_contours(_lowest(rows), lambda depth, width: 12.0 * depth * width**2, "lowest loss of a shape", by)


def _lowest(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cell of the lowest loss at each depth and width of a panel."""
    return cells.loc[cells.groupby(["panel", "depth", "width"], sort=False)["loss"].idxmin()]


def _size(example: Architecture, ratio: float, depth: int, width: int, by: SizeCount) -> float:
    sizes = {"depth": depth, "width": width, "heads": 1, "ffn": max(1, round(ratio * width))}
    return float(parameters(example.model_copy(update=sizes)).size(by))


def _with_contours(cells: pd.DataFrame, count: Count, label: str, counted: str) -> pd.DataFrame:
    if cells["depth"].nunique() < 2 or cells["width"].nunique() < 2:
        return pd.DataFrame()
    lines = list(_contours(cells, count))
    return pd.concat([cells.assign(kind="cell", label=label, counted=counted), *lines], ignore_index=True)


def _contours(cells: pd.DataFrame, count: Count) -> Sequence[pd.DataFrame]:
    """Return the width at each depth for a level's parameters; levels run evenly from the smallest to the largest cell."""
    sizes = [count(int(depth), int(width)) for depth, width in zip(cells["depth"], cells["width"], strict=True)]
    levels = np.geomspace(min(sizes), max(sizes), CONTOURS)
    if max(sizes) < 1.3 * min(sizes):
        levels = np.array([np.sqrt(min(sizes) * max(sizes))])
    low, high = int(cells["width"].min() * 0.7), int(cells["width"].max() * 1.4) + 1
    widths = np.unique(np.geomspace(max(1, low), high, _WIDTHS).astype(int))
    depths = np.unique(np.geomspace(cells["depth"].min(), cells["depth"].max(), 32).astype(int))
    counted = {depth: np.log([count(depth, width) for width in widths.tolist()]) for depth in depths.tolist()}
    lines = []
    for level in levels.tolist():
        at = {depth: np.interp(np.log(level), known, np.log(widths), np.nan, np.nan) for depth, known in counted.items()}
        points = {"kind": "contour", "parameters": level, "depth": list(at), "width": np.exp(list(at.values()))}
        lines.append(pd.DataFrame(points).dropna())
    return lines


def draw(data: pd.DataFrame) -> Figure:
    """One panel per budget, one disc per shape, coloured and labelled by loss."""
    cells, lines = data[data["kind"] == "cell"], data[data["kind"] == "contour"]
    names = list(dict.fromkeys(cells["panel"]))
    with theme():
        figure, axes = panels(names, "width", "depth (layers)", height=_HEIGHT)
        drawn: dict[Axes, tuple[pd.DataFrame, PathCollection]] = {}
        for same, rows in by_scale(axes, cells):
            shade = ScalarMappable(
                Normalize(rows["loss"].min(), rows["loss"].max()), sns.color_palette("viridis_r", as_cmap=True)
            )
            for panel, (_, shown) in zip(same, rows.groupby("panel", sort=False), strict=True):
                colours = shade.to_rgba(shown["loss"].to_numpy(dtype=float))
                discs = panel.scatter(shown["width"], shown["depth"], c=colours, zorder=3, edgecolor="white")
                drawn[panel] = shown, discs
            label = in_lines(str(cells["label"].iloc[0]), letters_in(2.0 * -(-len(same) // 2)))
            figure.colorbar(shade, ax=same, label=label)
        for panel, name in zip(axes, names, strict=True):
            explain(panel, cells[cells["panel"] == name], "width", "depth")
            panel.set_yscale("log", base=2)
            panel.yaxis.set_major_locator(FixedLocator(sorted(cells["depth"].unique())))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter(ScalarFormatter())
            panel.set_xlim(0.8 * cells["width"].min(), 1.25 * cells["width"].max())
            log_ticks(panel)
            _tick_widths(panel, cells["width"])
            panel.margins(y=0.25)
            _draw_contours(panel, lines)
        size = min(_disc_size(_in_points(panel, shown)) for panel, (shown, _) in drawn.items())
        for panel, (shown, discs) in drawn.items():
            discs.set_sizes([size**2])
            _write_losses(panel, shown, size)
        best = cells.nsmallest(1, "loss").iloc[0]
        at = f", {best['panel']}" if len(names) > 1 else ""
        finding = f"Lowest loss: {best['loss']:.3f} at depth {best['depth']:g}, width {best['width']:g}{at}"
        title_above(figure, incomparable(cells) or finding, f"grey lines: equal {best['counted']}")
    return figure


def _tick_widths(axes: Axes, widths: pd.Series) -> None:
    """Put ticks at the widths, except those too close to a smaller one."""
    ticks: list[float] = []
    for width in sorted(widths.unique().tolist()):
        if not ticks or letters_between(axes, ticks[-1], width) > (len(f"{ticks[-1]:g}") + len(f"{width:g}")) / 2 + 2:
            ticks.append(width)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda width, _: f"{width:g}"))


def _draw_contours(axes: Axes, lines: pd.DataFrame) -> None:
    """Draw contours, labelled with their parameters at a visible end, alternately the lower and the upper one."""
    low, high = axes.get_xlim()
    for number, (level, line) in enumerate(lines.groupby("parameters")):
        axes.plot(line["width"], line["depth"], color="grey", linewidth=1, linestyle="--", zorder=1)
        seen = line[line["width"].between(low, high)].sort_values("depth")
        if seen.empty:
            continue
        end = seen.iloc[-1 if number % 2 else 0]
        text, at = compact(float(str(level))), (end["width"], end["depth"])
        if end["depth"] in (lines["depth"].min(), lines["depth"].max()):
            _annotate(axes, text, at, 9 if number % 2 else -23, "grey")
        else:
            _annotate(axes, text, at, -10, "grey", aside=-6 if end["width"] > np.sqrt(low * high) else 6)


def _write_losses(axes: Axes, cells: pd.DataFrame, size: float) -> None:
    """Write losses below discs of a diameter in points, the lowest first, where they hide neither a disc nor a loss."""
    if len(cells) > MOST_LABELS:
        return
    em, places = _EM * style().points, _in_points(axes, cells)
    below = round(size / 2 + 1.23 * em)
    half, bottom, top = 1.5 * em, -below - 0.25 * em, -below + 0.8 * em
    written: list[int] = []
    for number in np.argsort(cells["loss"].to_numpy(dtype=float), kind="stable").tolist():
        across, up = (np.delete(places, number, axis=0) - places[number]).T
        discs = (np.abs(across) < half + size / 2) & (up > bottom - size / 2) & (up < top + size / 2)
        across, up = (places[written] - places[number]).T
        losses = (np.abs(across) < 2 * half) & (np.abs(up) < top - bottom)
        if not discs.any() and not losses.any():
            written.append(number)
    for width, depth, loss in cells.iloc[sorted(written)][["width", "depth", "loss"]].itertuples(index=False):
        _annotate(axes, f"{loss:.3f}", (width, depth), -below, "black")


def _disc_size(places: NDArray[np.float64]) -> float:
    """Return the diameter of discs at places in a panel, all in points, at which no two of a few touch."""
    if len(places) > MOST_LABELS:
        return 5.0
    nearest = min((float(np.hypot(*(one - other))) for one, other in combinations(places, 2)), default=np.inf)
    return max(3.0, min(math.sqrt(90), 0.85 * nearest))


def _in_points(axes: Axes, cells: pd.DataFrame) -> NDArray[np.float64]:
    """Return about where cells stand in a panel, in points; ticks, names and colour bar take the rest of the figure."""
    columns = place.get_gridspec().ncols if (place := axes.get_subplotspec()) is not None else 1
    width = (72 * style().width - 13 * style().points) / columns
    height = 72 * _HEIGHT * style().tall - 3.3 * style().points
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    across = np.log(cells["width"].to_numpy(dtype=float) / left) / np.log(right / left)
    up = np.log(cells["depth"].to_numpy(dtype=float) / low) / np.log(high / low)
    return np.column_stack([width * across, height * up])


def _annotate(axes: Axes, text: str, at: tuple[float, float], above: int, colour: str, aside: int = 0) -> None:
    """Write text above and beside a point: centred, or with its near end there."""
    align = "center" if aside == 0 else "left" if aside > 0 else "right"
    above_lines = 5 if colour == "black" else 2
    looks: dict[str, Any] = {"ha": align, "color": colour, "fontsize": "small", "zorder": above_lines, **readable_on_lines()}
    axes.annotate(text, at, (aside, above), textcoords="offset points", **looks)
