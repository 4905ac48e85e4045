"""Figures of models without a sweep: where their parameters are, what 1% more depth or width adds, and measured latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from study.base.errors import InputError
from study.base.quantities import compact, rounded, seconds_text
from study.counting.architecture import Architecture
from study.counting.latency import TIMES, UNLIKE_BERT, common_kind, read_table
from study.counting.named_models import NamedModel, named
from study.counting.parameters import Component, parameters
from study.plotting.style import (
    drawable,
    legend_below,
    log_ticks,
    panels,
    readable_on_lines,
    save_in,
    size_styles,
    style,
    style_key,
    theme,
    title_above,
    wide_figure,
)

GROUPS = ("token embeddings", "other tables", "attention", "FFN", "projections and norms", "MLM head")
"""The groups of components in stacking order, from the input to the output."""

GAP = 0.5
"""Space between two families, in bars."""

SHOWN_OF_MINIATURES = ("bert-tiny", "bert-mini", "bert-small", "bert-medium")
"""The miniatures with names of their own; the other shapes of that grid would fill a third of the figure."""


def shown(models: Sequence[NamedModel]) -> list[NamedModel]:
    """One model per architecture, and of BERT's miniatures only the named ones."""
    wanted = [model for model in models if model.family != "BERT miniature" or model.short_name in SHOWN_OF_MINIATURES]
    first = {model.architecture: model for model in reversed(wanted)}
    return [model for model in wanted if first[model.architecture] is model]


def shares_frame(models: Sequence[NamedModel]) -> pd.DataFrame:
    """One row per model and group: its parameters, and their share of `parameters` (the MLM model)."""
    rows = []
    for model in models:
        count = parameters(model.architecture)
        counts = dict.fromkeys(GROUPS, 0)
        for component in count.components:
            counts[group_of(component)] += component.count
        same = {"model": model.short_name, "family": model.family, "parameters": count.parameters}
        rows += [same | {"group": group, "count": n, "share": n / count.parameters} for group, n in counts.items()]
    return pd.DataFrame(rows)


def group_of(component: Component) -> str:
    """Return the group of a component."""
    if component.part == "head":
        return "MLM head"
    if component.name == "token embeddings":
        return "token embeddings"
    if component.part == "tables":
        return "other tables"
    return {"attention": "attention", "ffn": "FFN"}.get(component.name, "projections and norms")


def draw_shares(data: pd.DataFrame) -> Figure:
    """One bar per model in the table's order, families kept together; totals behind the names."""
    columns = min(2, style().columns)
    sizes = data.groupby("family", sort=False)["model"].nunique() + GAP
    start = sizes.cumsum() - sizes
    column_of = (start * columns / sizes.sum()).astype(int)
    room = float(sizes.groupby(column_of).sum().max())
    with theme():
        figure = wide_figure(0.16 * room + 0.9)
        axes: list[Axes] = figure.subplots(1, columns, squeeze=False).ravel().tolist()
        colours = dict(zip(GROUPS, sns.color_palette("colorblind", len(GROUPS)).as_hex(), strict=True))
        for column, panel in enumerate(axes):
            _bars(panel, data[data["family"].map(column_of) == column], colours, room)
        key = [Patch(color=colour, label=group) for group, colour in colours.items()]
        legend_below(figure, key, len(GROUPS))
        title_above(figure, "Where the parameters are", "shares of the MLM model, tied unless its authors untie it")
    return figure


def _bars(panel: Axes, data: pd.DataFrame, colours: dict[str, str], room: float) -> None:
    """Draw bars from the top down, half a bar of space between families; all columns have height `room`."""
    models = data.drop_duplicates("model").reset_index(drop=True)
    y = models.index + GAP * ((models["family"] != models["family"].shift()).cumsum() - 1)
    left = pd.Series(0.0, index=models.index)
    for group, colour in colours.items():
        share = data[data["group"] == group]["share"].reset_index(drop=True)
        panel.barh(y, share, left=left, color=colour, height=0.84, linewidth=0)
        left += share
    labels = [f"{name}  {compact(size)}" for name, size in zip(models["model"], models["parameters"], strict=True)]
    panel.set_yticks(y, labels, fontsize="x-small")
    panel.set_ylim(room - GAP, -0.5)
    panel.set_xlim(0, 1)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.grid(visible=False, axis="y")
    for spine in panel.spines.values():
        spine.set_visible(False)


DEPTHS = tuple(range(1, 49))
WIDTHS = tuple(round(64 * 2 ** (step / 4)) for step in range(25))
DEPTH_TICKS = (1, 2, 4, 8, 12, 24, 48)
WIDTH_TICKS = (64, 128, 256, 512, 768, 1024, 2048, 4096)
MARKED = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large")

Point = tuple[float, float, str]


def elasticities(architecture: Architecture) -> dict[str, float]:
    """Return the slopes d ln N / d ln x at a shape, N = `parameters` and x the depth, or the width at fixed F/H and heads.

    Exact: N is linear in L, with slope N(L + 1) − N(L), and quadratic in H along F = r·H, with slope (N(H + 1) − N(H − 1)) / 2.
    Raises ValueError if F is not a whole multiple of H.
    """
    a, count = architecture, parameters(architecture).parameters
    if a.ffn % a.width:
        raise ValueError(f"ffn {a.ffn} is not a multiple of width {a.width}")
    ratio = a.ffn // a.width

    def at(**sizes: int) -> int:
        return parameters(a.model_copy(update=sizes)).parameters

    deeper = at(depth=a.depth + 1) - count
    wider, narrower = (at(width=width, ffn=ratio * width) for width in (a.width + 1, a.width - 1))
    return {"depth": a.depth * deeper / count, "width": a.width * (wider - narrower) / (2 * count)}


def elasticities_frame(base: Architecture, depths: Sequence[int] = DEPTHS, widths: Sequence[int] = WIDTHS) -> pd.DataFrame:
    """One row per shape, with everything but L, H and F = 4·H from `base`."""
    rows = []
    for depth in depths:
        for width in widths:
            shape = base.model_copy(update={"depth": depth, "width": width, "heads": 1, "ffn": 4 * width})
            of = {f"{size}_elasticity": value for size, value in elasticities(shape).items()}
            rows.append({"depth": depth, "width": width, **of})
    return pd.DataFrame(rows)


def draw_elasticities(data: pd.DataFrame, base: Architecture) -> Figure:
    """Contours of the elasticity by depth and by width, and dots at BERT's named shapes."""
    marked = [(a.depth, a.width, name.removeprefix("bert-")) for name, a in ((name, named(name)) for name in MARKED)]
    with theme():
        titles = [
            "1% more depth L",
            "1% more width H, with F = 4·H",
        ]
        figure, axes = panels(titles, "depth L", "width H", 2, 3.0)
        for panel, size, levels in zip(
            axes, ("depth", "width"), (np.arange(0, 1.01, 0.1), np.arange(1, 2.01, 0.1)), strict=True
        ):
            _contours(panel, data, size, levels, marked)
        rest = f"V = {base.vocabulary:,}, P = {base.positions}"
        title_above(figure, "How many % more parameters of the MLM model?", f"elasticity d ln N / d ln size; {rest}")
    return figure


def _contours(panel: Axes, data: pd.DataFrame, size: str, levels: np.ndarray, marked: Sequence[Point]) -> None:
    """Draw contours over log2 of depth and width, where the elasticity is nearly linear between grid lines."""
    grid = data.pivot(index="width", columns="depth", values=f"{size}_elasticity")
    depths, widths = np.log2(grid.columns.to_numpy(float)), np.log2(grid.index.to_numpy(float))
    panel.contourf(depths, widths, grid.to_numpy(), levels, cmap="YlGnBu", vmax=levels[-1] + 0.5)
    lines = panel.contour(depths, widths, grid.to_numpy(), levels, colors="black", linewidths=0.5)
    panel.clabel(lines, fmt="%.1f", fontsize="small")
    for axis, ticks in ((panel.xaxis, DEPTH_TICKS), (panel.yaxis, WIDTH_TICKS)):
        axis.set_major_locator(FixedLocator([float(np.log2(tick)) for tick in ticks]))
        axis.set_major_formatter(lambda value, _: f"{2**value:,.0f}")
    panel.grid(visible=False)
    for depth, width, name in marked:
        position = (float(np.log2(depth)), float(np.log2(width)))
        panel.plot(*position, "o", color="white", markeredgecolor="black", markersize=5)
        look = {"ha": "center", "fontsize": "small", **readable_on_lines()}
        panel.annotate(name, position, (0, 6), textcoords="offset points", **look)


PARAMETERS = "parameters_encoder"
LATENCY = "seconds a call (median)"


def latency_frame(table: pd.DataFrame, precision: str = "fp32") -> pd.DataFrame:
    """One row per case of one kind and precision, at the most threads of the table, panel by panel.

    The kind is BERT's if the table has any of it, else the most frequent; encoders of others are not drawn. Raises InputError
    if the table has no such case.
    """
    chosen = table[table["precision"] == precision]
    kinds = chosen[UNLIKE_BERT].map(common_kind)
    if len(kinds):
        chosen = chosen[kinds == ("" if (kinds == "").any() else kinds.mode()[0])]
    if not chosen.empty:
        chosen = chosen[chosen["threads"] == chosen["threads"].max()]
    if chosen.empty:
        raise InputError.at("latency table", f"has no times in {precision}; measure them with study latency")
    columns = ["model", "depth", "width", PARAMETERS, "batch", "sequence_length", "device", "precision", "threads", UNLIKE_BERT]
    data = chosen[[*columns, "n", *TIMES]].sort_values(["sequence_length", "batch", PARAMETERS])
    names = [f"{batch} x {length} tokens" for batch, length in zip(data["batch"], data["sequence_length"], strict=True)]
    return data.assign(panel=names, tokens_per_second=data["batch"] * data["sequence_length"] / data["median_seconds"])


def draw_latency(data: pd.DataFrame) -> Figure:
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
                label, side = _latency_label(row["model"], row["depth"], row["width"])
                offset = {"left": (6, -9), "right": (-6, 3)}[side]
                panel.annotate(
                    label,
                    (size, median),
                    offset,
                    textcoords="offset points",
                    ha=side,
                    fontsize="x-small",
                    color=colour,
                    zorder=5,
                    **readable_on_lines(),
                )
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_locator(LogLocator(numticks=12))
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: seconds_text(seconds)))
        axes[0].yaxis.set_minor_formatter(NullFormatter())
        log_ticks(axes[0])
        low, high = axes[0].get_xlim()
        axes[0].set_xlim(low / 1.4, high * 1.9)
        title_above(figure, _latency_finding(data), _latency_note(data))
        legend_below(figure, style_key(styles, "depth "), columns=6)
    return figure


def _latency_label(model: str, depth: int, width: int) -> tuple[str, str]:
    """Return a point's label and alignment: a named model's name to the right, other shapes' sizes to the left."""
    return (f"{depth}x{width}", "right") if model.startswith(f"L{depth}-H{width}-") else (model, "left")


def write_latency(table: Path) -> None:
    """Draw a latency table's figure beside it, for its most frequent precision."""
    measured = read_table(table)
    save_in(
        draw_latency(drawable(latency_frame(measured, str(measured["precision"].mode()[0])))),
        table.parent,
        "parameters_against_latency",
    )


def _latency_finding(data: pd.DataFrame) -> str:
    """How much longer the largest encoder's forward pass takes than the smallest's."""
    ends = data.sort_values(PARAMETERS).groupby("panel", sort=False)[[PARAMETERS, "median_seconds"]].agg(["first", "last"])
    times = {name: ends[name, "last"] / ends[name, "first"] for name in (PARAMETERS, "median_seconds")}
    if (more := times[PARAMETERS].max()) == 1:
        return "Latency of the forward pass of encoders of one size"
    least, most = (f"{rounded(end, digits=2):g}" for end in (times["median_seconds"].min(), times["median_seconds"].max()))
    times_as_long = f"{least if least == most else f'{least} to {most}'} times as long"
    return f"{rounded(more, digits=2):g} times the parameters take {times_as_long}"


def _latency_note(data: pd.DataFrame) -> str:
    first, n = data.iloc[0], data["n"]
    calls = f"{n.min()} to {n.max()} calls each" if n.min() < n.max() else f"{n.min()} calls each"
    kind = f"with {common_kind(first[UNLIKE_BERT])}" if first[UNLIKE_BERT] else "encoders of BERT's kind"
    where = f"{kind}, {first['device']}, {first['precision']}, {first['threads']} CPU threads"
    return f"{where}; {calls}; bars: fastest to 95th percentile"
