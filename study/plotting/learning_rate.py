"""Loss against learning rate of every cell that tried two rates or more: was the optimum found?"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from study.fitting.evidence import Evidence
from study.plotting.style import LOSS, depth_key, depth_styles, legend_below, panels, theme


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a rate tried at the first seed; `chosen` marks its cell's best, `exclusion` says why it is none."""
    rows = [
        {
            "panel": panel,
            "cell": cell.name,
            "depth": cell.architecture.depth,
            "width": cell.architecture.width,
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
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame) -> Figure:
    """A panel a family, a line a cell; a ring is a bracketed choice, a square one at the edge, a cross a run left out."""
    with theme():
        names = data["panel"].unique()
        figure, axes = panels(names.tolist(), "peak learning rate", LOSS)
        styles = depth_styles(data["depth"])
        for panel, name in zip(axes, names, strict=True):
            for _, cell in data[data["panel"] == name].groupby("cell", sort=False):
                _draw_cell(panel, cell, styles)
            panel.set_xscale("log")
        axes[0].margins(y=0.12)
        _tick_rates(axes[0], data["learning_rate"])
        n = data["cell"].nunique()
        figure.suptitle(f"Loss by learning rate at the first seed ({n} cells, {len(data)} runs)")
        legend_below(figure, depth_key(styles) + _key(), columns=3)
    return figure


def _draw_cell(axes: Axes, cell: pd.DataFrame, styles: dict[int, tuple[str, str]]) -> None:
    depth = int(cell["depth"].iloc[0])
    colour, marker = styles[depth]
    learned = cell[cell["exclusion"].isna()]
    axes.plot(learned["learning_rate"], learned["loss_nats"], color=colour, marker=marker, markersize=5, linewidth=1.4)
    chosen = learned[learned["chosen"]]
    edge, shape = ("black", "o") if chosen["bracketed"].all() else ("#d55e00", "s")
    axes.plot(chosen["learning_rate"], chosen["loss_nats"], shape, markersize=12, mfc="none", mec=edge, mew=1.6)
    out = cell[cell["exclusion"].notna()]
    top = [0.96 - 0.05 * list(styles).index(depth)] * len(out)
    axes.plot(out["learning_rate"], top, "x", color=colour, markersize=8, mew=2, transform=axes.get_xaxis_transform())


def _key() -> list[Line2D]:
    ring = {"linestyle": "none", "markersize": 11, "mfc": "none", "mew": 1.6}
    return [
        Line2D([], [], marker="o", mec="black", label="chosen, bracketed", **ring),  # type: ignore[arg-type]
        Line2D([], [], marker="s", mec="#d55e00", label="chosen, at the edge", **ring),  # type: ignore[arg-type]
        Line2D([], [], marker="x", color="grey", linestyle="none", mew=2, label="diverged or stuck"),
    ]


def _tick_rates(axes: Axes, rates: pd.Series) -> None:
    tried = sorted(rates.unique())
    axes.xaxis.set_major_locator(FixedLocator(tried[:: -(-len(tried) // 6)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
