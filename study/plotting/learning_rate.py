"""Loss against learning rate of every cell that tried two rates or more: was the optimum found?"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from study.fitting.evidence import Evidence
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import LOSS, legend_below, panels, theme
from study.quantities import plural

LEFT_OUT = "diverged or stuck"
_BAND = 0.24
"""The share of a panel's height that runs without a comparable loss have for themselves, at its top, where they are few."""
_ALONE = 0.85
"""That share where no run has a comparable loss."""
_HIGH, _LINE = 2.4, 0.2
"""Inches of a panel within its frame, and of the band for each line that has a run there; the panel grows by what lacks."""

_EDGE = "#d55e00"


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a rate tried at the first seed; `chosen` marks its cell's best, `exclusion` says why it is none.

    `line` names the cell's line (study.plotting.lines).
    """
    rows = [
        {
            "panel": panel,
            "cell": cell.name,
            **of_cell(cell),
            "learning_rate": rate.learning_rate,
            "loss_nats": rate.loss_nats,
            "exclusion": rate.exclusion,
            "chosen": rate.learning_rate == cell.rates.chosen,
            "bracketed": cell.rates.bracketed,
        }
        for panel, cells in evidence.panels().items()
        for cell in cells
        if len(cell.rates.tried) > 1
        for rate in cell.rates.tried
    ]
    data = pd.DataFrame(rows)
    return data if data.empty else data.assign(line=lines(data))


def draw(data: pd.DataFrame) -> Figure:
    """A panel a family, a line a cell; a ring is a bracketed choice, a square one at the edge.

    A cross is a run left out: it stands in a band above all losses, at a height that says nothing. The first cross of a line
    is labelled by what tells it from others of its depth.
    """
    with theme():
        names = data["panel"].unique()
        more = max(0.0, _LINE * data.loc[data["exclusion"].notna(), "line"].nunique() - _BAND * _HIGH)
        figure, axes = panels(names.tolist(), "peak learning rate", LOSS, size=(4.6, 3.4 + more))
        styles = line_styles(data)
        for panel, name in zip(axes, names, strict=True):
            for _, cell in data[data["panel"] == name].groupby("cell", sort=False):
                _draw_cell(panel, cell, styles[cell["line"].iloc[0]])
            panel.set_xscale("log")
        axes[0].margins(y=0.12)
        _tick_rates(axes[0], data["learning_rate"])
        if data["exclusion"].notna().any():
            band = (_BAND * _HIGH + more) / (_HIGH + more) if data["exclusion"].isna().any() else _ALONE
            _draw_left_out(axes, data, styles, band)
        cells, runs = plural(data["cell"].nunique(), "cell"), plural(len(data), "run")
        figure.suptitle(f"Loss by learning rate at the first seed ({cells}, {runs})")
        legend_below(figure, [*line_key(styles), *_key(data)], columns=3)
    return figure


def _draw_cell(axes: Axes, cell: pd.DataFrame, style: dict[str, Any]) -> None:
    learned = cell[cell["exclusion"].isna()]
    axes.plot(learned["learning_rate"], learned["loss_nats"], **style)
    chosen = learned[learned["chosen"]]
    edge, shape = ("black", "o") if chosen["bracketed"].all() else (_EDGE, "s")
    axes.plot(chosen["learning_rate"], chosen["loss_nats"], shape, markersize=12, mfc="none", mec=edge, mew=1.6)


def _draw_left_out(axes: list[Axes], data: pd.DataFrame, styles: dict[str, dict[str, Any]], band: float) -> None:
    """A cross a run left out, in a band above a line that lies above all losses; the axis has no ticks there."""
    low, high = axes[0].get_ylim()
    ticks = [tick for tick in axes[0].get_yticks() if low <= tick <= high and data["exclusion"].isna().any()]
    axes[0].set_ylim(low, high + (high - low) * band / (1 - band))
    axes[0].yaxis.set_major_locator(FixedLocator(ticks))
    out = data[data["exclusion"].notna()]
    there = [line for line in styles if line in set(out["line"])]
    for panel, name in zip(axes, data["panel"].unique(), strict=True):
        panel.axhline(high, color="grey", linewidth=1)
        across = panel.get_yaxis_transform()
        text = f"{LEFT_OUT}: above this line, not to scale"
        panel.annotate(text, (0.01, high), (0, 3), xycoords=across, textcoords="offset points", fontsize="small", color="grey")
        for rate, line in out.loc[out["panel"] == name, ["learning_rate", "line"]].itertuples(index=False):
            height = 1 - band * (0.08 + 0.6 * (there.index(line) + 0.5) / len(there))
            up = panel.get_xaxis_transform()
            panel.plot(rate, height, "x", color=styles[line]["color"], markersize=7, mew=2, transform=up)
            told = line.partition(", ")[2]
            if told and rate == out.loc[(out["panel"] == name) & (out["line"] == line), "learning_rate"].min():
                side, away = ("right", -6) if rate == data["learning_rate"].max() else ("left", 6)
                style: dict[str, Any] = {"ha": side, "va": "center", "fontsize": "x-small", "color": styles[line]["color"]}
                panel.annotate(told, (rate, height), (away, 0), xycoords=up, textcoords="offset points", **style)


def _key(data: pd.DataFrame) -> list[Line2D]:
    """What the marks say, of those that there are."""
    ring: dict[str, Any] = {"linestyle": "none", "markersize": 11, "mfc": "none", "mew": 1.6}
    bracketed = data.loc[data["chosen"], "bracketed"].astype(bool)
    entries = {
        "chosen, bracketed": (bracketed.any(), {"marker": "o", "mec": "black", **ring}),
        "chosen, at the edge": ((~bracketed).any(), {"marker": "s", "mec": _EDGE, **ring}),
        LEFT_OUT: (data["exclusion"].notna().any(), {"marker": "x", "color": "grey", "linestyle": "none", "mew": 2}),
    }
    return [Line2D([], [], label=label, **style) for label, (there, style) in entries.items() if there]


def _tick_rates(axes: Axes, rates: pd.Series) -> None:
    tried = sorted(rates.unique())
    told = tried[:1]
    for rate in tried[1:]:  # with room for its label beside the one before
        if rate / told[-1] >= (tried[-1] / tried[0]) ** (1 / 6):
            told.append(rate)
    axes.xaxis.set_major_locator(FixedLocator(told))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
