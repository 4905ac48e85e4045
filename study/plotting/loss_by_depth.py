"""Final validation loss against depth: one line a family of equal parameters, or a width where there are none."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from study.fitting.cells import Cell, Family
from study.fitting.evidence import Evidence
from study.plotting.style import LOSS, legend_below, mark_plateau, panels, series_styles, theme

_APART = ("heads", "ffn")


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a usable run at its cell's chosen rate, on the lines that hold two depths or more.

    A line whose shapes differ in heads or FFN at equal depth and width is one for each of these, and says so. `low_nats` and
    `high_nats` are the 95% interval of the cell's mean over seeds (pooled variance, fixed validation set).
    """
    rows = []
    for family in evidence.families:
        for cell in (cell for cell in family.cells if cell.usable):
            half = evidence.half_width(cell)
            mean = cell.losses.mean()
            shared = {
                "panel": family.budget,
                "line": family.size or f"width {cell.architecture.width} {cell.setting}".strip(),
                "label": _label(cell, family),
                "cell": cell.name,
                **{size: getattr(cell.architecture, size) for size in ("depth", "width", *_APART)},
                "mean_nats": mean,
                "low_nats": None if half is None else mean - half,
                "high_nats": None if half is None else mean + half,
                "top_nats": max(mean + (half or 0.0), cell.losses.mean(axis=1).max()),
                "bracketed": cell.rates.bracketed,
                "unigram_entropy_nats": cell.unigram_entropy_nats,
            }
            losses = zip(cell.runs, cell.losses.mean(axis=1), strict=True)
            rows += [{**shared, "run_id": run, "loss_nats": loss} for run, loss in losses]
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    table["line"] += _apart(table)
    return table[table.groupby(["panel", "line"])["depth"].transform("nunique") > 1]


def _apart(table: pd.DataFrame) -> pd.Series[str]:
    """Heads and FFN of each row in words, where its line has several at one depth and width."""
    words = pd.Series("", index=table.index)
    for size in _APART:
        several = table.groupby(["panel", "line", "depth", "width"])[size].transform("nunique") > 1
        words[several.groupby(table["line"]).transform("any")] += f", {size} " + table[size].astype(str)
    return words


def _label(cell: Cell, family: Family) -> str:
    """What stands at a point: the width where the line does not say it, a question mark where the rate is not bracketed."""
    return (f"H{cell.architecture.width}" if family.equal_parameters else "") + ("" if cell.rates.bracketed else "?")


def draw(data: pd.DataFrame) -> Figure:
    """A panel a budget; points are runs, lines join the means over seeds, and each mean has its width and interval."""
    with theme():
        names = data["panel"].unique()
        figure, axes = panels(names.tolist(), "depth (layers)", LOSS, size=(5.0, 4.2))
        styles = series_styles(data["line"])
        for panel, name in zip(axes, names, strict=True):
            for line, runs in data[data["panel"] == name].groupby("line", sort=False):
                _draw_line(panel, runs, styles[str(line)])
            panel.margins(x=0.12, y=0.18)
        axes[0].set_xscale("log", base=2)
        axes[0].xaxis.set_major_locator(FixedLocator(sorted(data["depth"].unique())))
        axes[0].xaxis.set_minor_locator(NullLocator())
        axes[0].xaxis.set_major_formatter(ScalarFormatter())
        for panel in axes:
            mark_plateau(panel, data["unigram_entropy_nats"])
        figure.suptitle(_title(data))
        entries = [Line2D([], [], color=c, marker=m, label=line) for line, (c, m) in styles.items()]
        legend_below(figure, entries, columns=2)
    return figure


def _draw_line(axes: Axes, runs: pd.DataFrame, style: tuple[str, str]) -> None:
    colour, marker = style
    axes.scatter(runs["depth"], runs["loss_nats"], color=colour, marker=marker, s=30, alpha=0.5, linewidths=0)
    means = runs.drop_duplicates("cell").sort_values(["depth", "width"])
    axes.plot(means["depth"], means["mean_nats"], color=colour, linewidth=1.8)
    if means["low_nats"].notna().all():
        reach = [means["mean_nats"] - means["low_nats"], means["high_nats"] - means["mean_nats"]]
        axes.errorbar(means["depth"], means["mean_nats"], reach, color=colour, capsize=4, linestyle="none")
    halo = [withStroke(linewidth=3, foreground="white")]
    for depth, name, top in means[["depth", "label", "top_nats"]].itertuples(index=False):
        axes.annotate(name, (depth, top), (0, 5), textcoords="offset points", ha="center", color=colour, path_effects=halo)


def _title(data: pd.DataFrame) -> str:
    interval = "bars: 95% over seeds" if data["low_nats"].notna().any() else "no seed replicates, so no intervals"
    unbracketed = "" if data["bracketed"].all() else "; ? = learning rate not bracketed"
    return f"Final validation loss by depth\n({len(data)} runs; {interval}{unbracketed})"
