"""Where the named models' parameters are, by group of components, and what 1% more depth or width adds over the L×H plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from study.base.quantities import compact
from study.counting.architecture import Architecture
from study.counting.named_models import NamedModel, named
from study.counting.parameters import Component, parameters
from study.plotting.style import legend_below, panels, style, theme, title_above, wide_figure

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
        label = panel.annotate(name, position, (0, 6), textcoords="offset points", ha="center", fontsize="small")
        label.set_bbox({"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1})
