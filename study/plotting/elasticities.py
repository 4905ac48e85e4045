"""Depth and width elasticities of the parameters over the L×H plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from study.counting.architecture import Architecture
from study.counting.named_models import named
from study.counting.parameters import parameters
from study.plotting.style import panels, theme, title_above

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


def frame(base: Architecture, depths: Sequence[int] = DEPTHS, widths: Sequence[int] = WIDTHS) -> pd.DataFrame:
    """One row per shape, with everything but L, H and F = 4·H from `base`."""
    rows = []
    for depth in depths:
        for width in widths:
            shape = base.model_copy(update={"depth": depth, "width": width, "heads": 1, "ffn": 4 * width})
            of = {f"{size}_elasticity": value for size, value in elasticities(shape).items()}
            rows.append({"depth": depth, "width": width, **of})
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame, base: Architecture) -> Figure:
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
