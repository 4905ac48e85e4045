"""Loss against learning rate of every cell with two rates or more."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from study.base.quantities import plural
from study.evidence.cells import scales_of
from study.evidence.evidence import Evidence
from study.plotting.hover import explain
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import (
    by_scale,
    incomparable,
    legend_below,
    loss_axis,
    panels,
    theme,
    ticks_in_words,
    title_above,
    worded,
)

LEFT_OUT = "diverged"
_BAND = 0.24
"""The share of a panel's height, at the top, for runs without a comparable loss, if they are few."""
_ALONE = 0.85
"""That share if no run has a comparable loss."""
_HIGH, _LINE = 1.9, 0.16
"""Inches of a panel within its frame, and of the band per line with a run there; the panel grows by any shortage."""

_EDGE = "#d55e00"


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per rate, with the mean loss of its `runs` that learned; `chosen` marks the cell's best.

    `unlearned` counts runs that did not learn, `seeds` the seeds at which the cell's rates are compared, and `of_one_rate` the
    cells with a single rate.
    """
    scales = scales_of(evidence.cells, per_token=True)
    panels = evidence.panels(scales)
    rows = [
        {
            "panel": panel,
            "cell": cell.name,
            **of_cell(cell),
            "learning_rate": rate.learning_rate,
            "runs": len(rate.trials),
            "seeds": cell.rates.seeds,
            "loss_nats": rate.loss_nats,
            "unit": cell.token_unit,
            "scale": scales[cell.name],
            "unlearned": rate.unlearned,
            "chosen": rate.learning_rate == cell.rates.chosen,
            "bracketed": cell.rates.bracketed,
        }
        for panel, cells in panels.items()
        for cell in cells
        if len(cell.rates.tried) > 1
        for rate in cell.rates.tried
    ]
    data = pd.DataFrame(rows)
    of_one_rate = sum(len(cell.rates.tried) == 1 for cells in panels.values() for cell in cells)
    return data if data.empty else data.assign(line=lines(data), of_one_rate=of_one_rate)


def draw(data: pd.DataFrame) -> Figure:
    """One panel per family and group of losses that compare, one line per cell.

    A ring is a bracketed choice, a square one at the edge.

    A cross marks a rate with runs left out, which ranks it below the others. It stands above all losses, at no particular
    height, labelled by the part of the line's name that not all lines share.
    """
    with theme():
        names, together = data["panel"].unique(), not incomparable(data)
        more = max(0.0, _LINE * data.loc[data["unlearned"] > 0, "line"].nunique() - _BAND * _HIGH)
        figure, axes = panels(names.tolist(), "peak learning rate", loss_axis(data), height=2.5 + more, one_y=together)
        styles = line_styles(data)
        for panel, name in zip(axes, names, strict=True):
            for _, cell in data[data["panel"] == name].groupby("cell", sort=False):
                _draw_cell(panel, cell, styles[cell["line"].iloc[0]])
            panel.set_xscale("log")
        _tick_rates(axes[0], data["learning_rate"])
        for same, rows in by_scale(axes, data):
            same[0].margins(y=0.12)
            if rows["unlearned"].any():
                band = (_BAND * _HIGH + more) / (_HIGH + more) if rows["loss_nats"].notna().any() else _ALONE
                _draw_left_out(same, rows, styles, band)
        legend_below(figure, [*line_key(styles), *_key(data)], columns=3)
        chosen = data[data["chosen"]]
        bracketed = f"{int(chosen['bracketed'].sum())} of {plural(len(chosen), 'cell')}"
        finding = f"The best learning rate is bracketed in {bracketed}" if len(chosen) else "No learning rate is chosen"
        title_above(figure, finding, f"loss by learning rate {_seeds(data)}; {_counts(data)}")
    return figure


def _seeds(data: pd.DataFrame) -> str:
    few, many = data["seeds"].min(), data["seeds"].max()
    return "at the first seed" if many == 1 else f"averaged over {few if few == many else f'{few} to {many}'} seeds"


def _counts(data: pd.DataFrame) -> str:
    shown = f"{plural(data['cell'].nunique(), 'cell')}, {plural(int(data['runs'].sum()), 'run')}"
    hidden = data["of_one_rate"].iloc[0]
    return f"{shown}; not shown: {plural(hidden, 'cell')} of one rate" if hidden else shown


def _draw_cell(axes: Axes, cell: pd.DataFrame, style: dict[str, Any]) -> None:
    learned = cell[cell["loss_nats"].notna()]
    axes.plot(learned["learning_rate"], learned["loss_nats"], **style)
    explain(axes, learned, "learning_rate", "loss_nats")
    chosen = learned[learned["chosen"]]
    edge, shape = ("black", "o") if chosen["bracketed"].all() else (_EDGE, "s")
    axes.plot(chosen["learning_rate"], chosen["loss_nats"], shape, markersize=9, mfc="none", mec=edge, mew=1.2)


def _draw_left_out(axes: list[Axes], data: pd.DataFrame, styles: dict[str, dict[str, Any]], band: float) -> None:
    """Draw a cross per run left out, in a band above all losses; the axis has no ticks there."""
    low, high = axes[0].get_ylim()
    ticks = [tick for tick in axes[0].get_yticks() if low <= tick <= high and data["loss_nats"].notna().any()]
    axes[0].set_ylim(low, high + (high - low) * band / (1 - band))
    axes[0].yaxis.set_major_locator(FixedLocator(ticks))
    out = data[data["unlearned"] > 0]
    there = [line for line in styles if line in set(out["line"])]
    names = _distinct_parts(list(styles))
    for panel, name in zip(axes, data["panel"].unique(), strict=True):
        panel.axhline(high, color="grey", linewidth=1)
        across = panel.get_yaxis_transform()
        text = f"{LEFT_OUT}: above this line, not to scale"
        panel.annotate(text, (0.01, high), (0, 3), xycoords=across, textcoords="offset points", fontsize="small", color="grey")
        for line, crosses in out[out["panel"] == name].groupby("line"):
            height = 1 - band * (0.08 + 0.6 * (there.index(str(line)) + 0.5) / len(there))
            up, colour = panel.get_xaxis_transform(), styles[str(line)]["color"]
            rates = sorted(crosses["learning_rate"])
            panel.plot(rates, [height] * len(rates), "x", color=colour, markersize=6, mew=1.6, transform=up)
            beside, side = _widest_gap(rates, data["learning_rate"])
            style: dict[str, Any] = {"ha": side, "va": "center", "fontsize": "x-small", "color": colour}
            away = (6 if side == "left" else -6, 0)
            panel.annotate(worded(names[str(line)]), (beside, height), away, xycoords=up, textcoords="offset points", **style)


def _distinct_parts(names: list[str]) -> dict[str, str]:
    """Each name without the parts that all share."""
    parts = {name: name.split(", ") for name in names}
    shared = set.intersection(*map(set, parts.values()))
    return {name: ", ".join(part for part in own if part not in shared) for name, own in parts.items()}


def _widest_gap(crosses: list[float], rates: pd.Series[float]) -> tuple[float, Literal["left", "right"]]:
    """Return the cross with the widest space beside it, and the side of that space."""
    edges = np.log([rates.min(), *crosses, rates.max()])
    widest = int(np.diff(edges).argmax())
    return (crosses[0], "right") if widest == 0 else (crosses[widest - 1], "left")


def _key(data: pd.DataFrame) -> list[Line2D]:
    ring: dict[str, Any] = {"linestyle": "none", "markersize": 9, "mfc": "none", "mew": 1.2}
    bracketed = data.loc[data["chosen"], "bracketed"].astype(bool)
    entries = {
        "chosen, bracketed": (bracketed.any(), {"marker": "o", "mec": "black", **ring}),
        "chosen, at the edge": ((~bracketed).any(), {"marker": "s", "mec": _EDGE, **ring}),
        LEFT_OUT: (data["unlearned"].any(), {"marker": "x", "color": "grey", "linestyle": "none", "mew": 2}),
    }
    return [Line2D([], [], label=label, **style) for label, (there, style) in entries.items() if there]


def _tick_rates(axes: Axes, rates: pd.Series) -> None:
    tried = sorted(rates.unique())
    ticks = tried[:1]
    for rate in tried[1:]:  # with space for its label
        if rate / ticks[-1] >= (tried[-1] / tried[0]) ** (1 / 6):
            ticks.append(rate)
    ticks_in_words(axes.xaxis, FixedLocator(ticks), lambda rate: f"{rate:.2g}")
