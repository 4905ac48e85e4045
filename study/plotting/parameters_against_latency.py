"""Encoder parameters against measured latency."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from study.base.errors import InputError
from study.base.quantities import seconds_text
from study.counting.latency import TIMES, UNLIKE_BERT, common_kind, read_table
from study.plotting.style import (
    drawable,
    halo,
    legend_below,
    log_ticks,
    panels,
    save_in,
    size_styles,
    style_key,
    theme,
    title_above,
)

PARAMETERS = "parameters_encoder"
LATENCY = "seconds a call (median)"


def frame(table: pd.DataFrame, precision: str = "fp32", threads: int | None = None) -> pd.DataFrame:
    """One row per case of one kind, precision and number of threads (default: the table's largest), panel by panel.

    The kind is BERT's if the table has any of it, else the most frequent; encoders of others are not drawn. Raises InputError
    if the table has no such case.
    """
    chosen = table[table["precision"] == precision]
    kinds = chosen[UNLIKE_BERT].map(common_kind)
    if len(kinds):
        chosen = chosen[kinds == ("" if (kinds == "").any() else kinds.mode()[0])]
    if not chosen.empty:
        chosen = chosen[chosen["threads"] == (chosen["threads"].max() if threads is None else threads)]
    if chosen.empty:
        wanted = precision if threads is None else f"{precision} at {threads} threads"
        raise InputError.at("latency table", f"has no times in {wanted}; measure them with study latency")
    columns = ["model", "depth", "width", PARAMETERS, "batch", "sequence_length", "device", "precision", "threads", UNLIKE_BERT]
    data = chosen[[*columns, "n", *TIMES]].sort_values(["sequence_length", "batch", PARAMETERS])
    names = [f"{batch} x {length} tokens" for batch, length in zip(data["batch"], data["sequence_length"], strict=True)]
    return data.assign(panel=names, tokens_per_second=data["batch"] * data["sequence_length"] / data["median_seconds"])


def draw(data: pd.DataFrame) -> Figure:
    """One panel per batch and length, one point per model coloured by depth.

    Bars reach from the fastest call to the 95th percentile.
    """
    with theme():
        names = data["panel"].unique()
        figure, axes = panels(names.tolist(), f"{PARAMETERS} (no pooler, no head)", LATENCY, 2, 2.6)
        styles = size_styles(data["depth"])
        for panel, name in zip(axes, names, strict=True):
            for row in data[data["panel"] == name].to_dict("records"):
                colour, marker = styles[row["depth"]]
                size, median = row[PARAMETERS], row["median_seconds"]
                panel.vlines(size, row["fastest_seconds"], row["p95_seconds"], color=colour, linewidth=1.6)
                panel.plot([size], [median], color=colour, marker=marker, linestyle="none", zorder=6)
                label, side = _label(row["model"], row["depth"], row["width"])
                offset = {"left": (6, -9), "right": (-6, 3)}[side]
                panel.annotate(
                    label,
                    (size, median),
                    offset,
                    textcoords="offset points",
                    ha=side,
                    fontsize="x-small",
                    color=colour,
                    path_effects=halo(),
                    zorder=5,
                )
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_locator(LogLocator(numticks=12))
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(seconds)))
        axes[0].yaxis.set_minor_formatter(NullFormatter())
        log_ticks(axes[0])
        low, high = axes[0].get_xlim()
        axes[0].set_xlim(low / 1.4, high * 1.9)
        title_above(figure, _finding(data), _note(data))
        legend_below(figure, style_key(styles, "depth "), columns=6)
    return figure


def _label(model: str, depth: int, width: int) -> tuple[str, str]:
    """Return a point's label and alignment: a named model's name to the right, other shapes' sizes to the left."""
    return (f"{depth}x{width}", "right") if model.startswith(f"L{depth}-H{width}-") else (model, "left")


def write(table: Path) -> None:
    """Draw a latency table's figure beside it, for its most frequent precision."""
    measured = read_table(table)
    save_in(draw(drawable(frame(measured, str(measured["precision"].mode()[0])))), table.parent, "parameters_against_latency")


def _finding(data: pd.DataFrame) -> str:
    """How much longer the largest encoder's forward pass takes than the smallest's."""
    ends = data.sort_values(PARAMETERS).groupby("panel", sort=False)[[PARAMETERS, "median_seconds"]].agg(["first", "last"])
    times = {name: ends[name, "last"] / ends[name, "first"] for name in (PARAMETERS, "median_seconds")}
    if (more := times[PARAMETERS].max()) == 1:
        return "Latency of the forward pass of encoders of one size"
    least, most = (f"{end:.2g}" for end in (times["median_seconds"].min(), times["median_seconds"].max()))
    return f"{more:.2g} times the parameters take {least if least == most else f'{least} to {most}'} times as long"


def _note(data: pd.DataFrame) -> str:
    first, n = data.iloc[0], data["n"]
    calls = f"{n.min()} to {n.max()} calls each" if n.min() < n.max() else f"{n.min()} calls each"
    kind = f"with {common_kind(first[UNLIKE_BERT])}" if first[UNLIKE_BERT] else "encoders of BERT's kind"
    where = f"{kind}, {first['device']}, {first['precision']}, {first['threads']} CPU threads"
    return f"{where}; {calls}; bars: fastest to 95th percentile"
