"""Loss against seconds of training, ours and transformers' run_mlm."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.evidence.ledgers import LOSS
from study.plotting.style import legend_below, panels, save_in, series_styles, theme, title_above
from study.plotting.training_speed import read_section

THEIRS = "transformers' run_mlm"
COLUMNS = ["case", "series", "seed", "seconds", "loss"]


def frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    """One row per validation: the case, series, seed, seconds of training before it, and loss."""
    points: dict[tuple[object, ...], None] = {}
    for row in rows:
        if row["error"] is not None:
            continue
        case = f"{row['shape']}, {row['vocabulary']:,} pieces, {row['dtype']}"
        for series, name in ((THEIRS, "their_curve"), (f"ours, {row['variant']}", "our_curve")):
            curve = row[name]
            assert isinstance(curve, list)
            points |= {(case, series, row["seed"], seconds, loss): None for seconds, _, loss in curve}
    return pd.DataFrame(list(points), columns=COLUMNS)


def draw(data: pd.DataFrame, title: str) -> Figure:
    """One panel per case; one line per training, coloured by series."""
    with theme():
        cases = list(data["case"].unique())
        figure, axes_of_cases = panels(cases, "seconds of training", LOSS, height=3.0)
        styles = series_styles(list(data["series"].unique()))
        for axes, case in zip(axes_of_cases, cases, strict=True):
            for (series, _), curve in data[data["case"] == case].groupby(["series", "seed"], sort=False):
                axes.plot(curve["seconds"], curve["loss"], color=styles[str(series)][0], marker=".")
            axes.set_xscale("log")
        legend_below(figure, [Line2D([], [], color=colour, marker=".", label=name) for name, (colour, _) in styles.items()])
        title_above(figure, title)
    return figure


def draw_file(results: Path) -> list[Path]:
    """Draw the time-to-loss section of `study bench` results, if any, beside them, as `<hardware>-time-to-loss`."""
    rows, where = read_section(results, "time-to-loss")
    data = frame(rows)
    if data.empty:
        return []
    return save_in(draw(data, f"Loss against training time on {where}"), results.parent, f"{results.stem}-time-to-loss")
