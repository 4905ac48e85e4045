"""The path of a sweep to its goal: half the interval against what is spent, and the chosen runs on the plane of sizes."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from study.base.quantities import compact_flops, in_billions, plural, tick
from study.evidence.evidence import Evidence
from study.plotting.hover import explain
from study.plotting.style import log_locators, log_ticks, style, theme, ticks_in_words, title_above, wide_figure

_STATES = {
    "open": "Goal not yet met",
    "met": "Goal met",
    "spent": "Goal missed within the budget",
    "unreachable": "Goal given up",
}


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a look with an interval, then one a run, in order; empty without a goal.

    `order` counts runs in the order of their end, so that a look at 12 runs has order 12.
    """
    path = evidence.goal
    if path is None:
        return pd.DataFrame()
    looks: list[dict[str, Any]] = [
        {"kind": "look", "order": look.runs, "spent_flops": look.spent_flops, "half": look.half_width}
        for look in path.looks
        if look.half_width is not None
    ]
    runs: list[dict[str, Any]] = [
        {
            "kind": "run" if run.used else "unused run",
            "order": order,
            "spent_flops": run.spent_flops,
            "label": f"run {order}: {run.shape}",
            "run_id": run.run_id,
            "parameters_non_embedding": run.parameters_non_embedding,
            "tokens": run.tokens,
        }
        for order, run in enumerate(path.runs, 1)
    ]
    shared: dict[str, Any] = {
        "of": path.of,
        "wanted": path.wanted,
        "limit": path.spend_flops,
        "state": path.state,
        "target_parameters": path.target_parameters,
        "target_tokens": path.target_tokens,
    }
    return pd.DataFrame([row | shared for row in (*looks, *runs)])


def draw(data: pd.DataFrame) -> Figure:
    """Draw the interval on the left, with the goal, and on the right the runs, darkest first.

    A star marks where the loss is wanted. Without any interval, as if too few runs read word order, the left panel says so.
    """
    first = data.iloc[0]
    with theme():
        side_by_side = style().columns > 1
        figure = wide_figure(3.4 if side_by_side else 6.2)
        left, right = figure.subplots(*((1, 2) if side_by_side else (2, 1)))
        looks = data[data["kind"] == "look"]
        if looks.empty:
            left.set_axis_off()
            left.text(0.5, 0.5, "No look at the runs gave an interval", ha="center", va="center", transform=left.transAxes)
        else:
            _draw_looks(left, looks)
        _draw_runs(right, data[data["kind"] != "look"])
        spent = data.loc[data["kind"] != "look", "spent_flops"].sum()
        runs = plural(int((data["kind"] != "look").sum()), "run")
        note = f"{runs} for {compact_flops(spent)} of {compact_flops(first['limit'])} FLOPs; later runs are lighter"
        reached = "" if looks.empty else f"± {_half(looks['half'].iloc[-1], looks)} reached, "
        title_above(figure, f"{_STATES[first['state']]}: {reached}± {_half(first['wanted'], data)} wanted", note)
    return figure


def _half(half: float, data: pd.DataFrame) -> str:
    """Half an interval in words, in percent if it is relative."""
    return f"{half:.2%}".replace(".00%", "%") if "relative" in data["of"].iloc[0] else f"{half:.3g}"


def _draw_looks(axes: Axes, looks: pd.DataFrame) -> None:
    axes.plot(looks["spent_flops"], looks["half"], marker="o", markersize=4, linewidth=1.4)
    explain(axes, looks, "spent_flops", "half")
    axes.axhline(looks["wanted"].iloc[0], color="black", linewidth=1, linestyle="--")
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate("goal", (0.99, looks["wanted"].iloc[0]), (0, 2), ha="right", va="bottom", **place)
    of = looks["of"].iloc[0]
    axes.set(yscale="log", xlabel="spent (train_flops)", ylabel=f"half the 95% interval of\n{of}", xlim=(0, None))
    ticks_in_words(axes.yaxis, log_locators(*axes.get_ylim())[0], lambda half: _half(half, looks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact_flops(value) if value else "0"))


def _draw_runs(axes: Axes, runs: pd.DataFrame) -> None:
    for kind, marker in (("run", "o"), ("unused run", "x")):
        some = runs[runs["kind"] == kind]
        colours = mpl.colormaps["viridis"](0.9 * (some["order"] - 1) / max(1, len(runs)))
        edges: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.5} if kind == "run" else {}
        axes.scatter(some["parameters_non_embedding"], some["tokens"], c=colours, marker=marker, s=36, **edges)
        explain(axes, some, "parameters_non_embedding", "tokens")
    if pd.notna(runs["target_parameters"].iloc[0]):
        axes.plot(runs["target_parameters"].iloc[0], runs["target_tokens"].iloc[0], "*", color="C3", markersize=12)
    axes.set(xscale="log", yscale="log", xlabel="parameters_non_embedding", ylabel="tokens")
    log_ticks(axes)
    ticks_in_words(axes.yaxis, log_locators(*axes.get_ylim())[0], lambda value: in_billions(tick(value, axes.get_ylim()[1])))
