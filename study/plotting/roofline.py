"""How the cost of training grows with each size, against the roofline of the machine, from the results of `study bench`."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from study.base.quantities import tick
from study.plotting.style import save_in, series_styles, theme
from study.plotting.training_speed import read_section

COLUMNS = ["varied", "value", "flops_per_second", "roof", "product_rate", "share_of_roof", "sentence"]


def frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    """One row a size: what is varied and its value, the rate of the products that ran, and the roof above it."""
    data = pd.DataFrame(rows).reindex(columns=COLUMNS)
    return data[data["flops_per_second"].notna()].reset_index(drop=True)


def draw(data: pd.DataFrame, title: str) -> Figure:
    """A panel a size: the achieved rate, the roof (products or memory, whichever is lower), and a sentence where they part."""
    with theme():
        names = data["varied"].unique()
        figure = Figure(figsize=(12.5, 3.9 + 0.18 * data["sentence"].notna().sum() + 0.9), layout="constrained")
        axes = figure.subplots(1, len(names), sharey=True, squeeze=False).ravel()
        colour = series_styles(["achieved", "roof"])
        for panel, name in zip(axes, names, strict=True):
            _panel(panel, data[data["varied"] == name], {key: style[0] for key, style in colour.items()})
            panel.set_xlabel(str(name))
        axes[0].set_ylabel("FLOP/s of the products that run")
        axes[0].set_ylim(0, 1.15 * float(data["product_rate"].max()))
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, axes[0].get_ylim()[1])))
        axes[0].legend(loc="lower right", fontsize=9)
        figure.suptitle(title)
        sentences = [textwrap.fill(sentence, 170) for sentence in data["sentence"].dropna()]
        if sentences:
            figure.supxlabel("\n".join(sentences), fontsize=9, x=0.01, ha="left")
    return figure


def _panel(axes: Axes, data: pd.DataFrame, colours: dict[str, str]) -> None:
    axes.plot(data["value"], data["roof"], color=colours["roof"], linestyle="--", label="roof")
    axes.plot(data["value"], data["flops_per_second"], color=colours["achieved"], marker="o", label="achieved")
    for row in data.to_dict("records"):
        place = (row["value"], row["flops_per_second"])
        axes.annotate(f"{row['share_of_roof']:.0%}", place, (0, -15), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(data["value"], [f"{value / 1024:.0f}k" if value >= 2048 else str(value) for value in data["value"]])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.12)


def draw_file(results: Path) -> list[Path]:
    """Draw the roofline section of a results file beside it, as `<hardware>-roofline`; nothing where it has none."""
    rows, where = read_section(results, "roofline")
    data = frame(rows)
    if data.empty:
        return []
    title = f"Training against the roofline of {where}, {rows[0]['dtype']}"
    return save_in(draw(data, title), results.parent, f"{results.stem}-roofline")
