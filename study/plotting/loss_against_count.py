"""Final validation loss against training FLOPs or parameters, in any convention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from study.base.quantities import plural
from study.evidence.cells import CellResult, by_budget
from study.evidence.evidence import Evidence
from study.evidence.gains import SPENT, pareto_front, spending_fronts
from study.evidence.ledgers import COUNTS
from study.plotting.hover import explain
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import (
    axis_name,
    draw_intervals,
    finish_cells,
    in_unit,
    incomparable,
    legend_below,
    loss_axis,
    panels,
    side_by_side,
    theme,
)


@dataclass(frozen=True)
class LossAgainstFlops:
    """The figure of one count of training FLOPs: one line per shape and variant over its budgets.

    Encoders that need other runs have a Pareto front with those of their shape from scratch.
    """

    count: str = "train_flops"

    def frame(self, evidence: Evidence) -> pd.DataFrame:
        """One row per trained cell with a usable run: its mean loss over seeds, and its FLOPs.

        `half_nats` is half the 95% interval of that mean (study.evidence.seed_scatter), missing if unknown. `place` is the x,
        shifted if others are near. There is a panel for each group of losses that compare. `needs_runs` says which cells need
        other runs, and `front` numbers the Pareto front that a cell is on (study.evidence.gains.spending_fronts). All FLOPs
        spent are shown only if some cell needs other runs; else they are those of training.
        """
        cells = [cell for cell in evidence.cells if cell.usable and cell.tokens]
        needs_runs = [cell.flops_before > 0 for cell in cells]
        if not cells or (self.count == SPENT and not any(needs_runs)):
            return pd.DataFrame()
        data = _counted(evidence, self.count, cells)
        fronts = [one.get(self.count, ()) for one in spending_fronts(cells)]
        numbers = {cell.name: str(number) for number, front in enumerate(fronts, 1) for cell in front}
        data = data.assign(panel=data["scale"], needs_runs=needs_runs, front=[numbers.get(cell.name, "") for cell in cells])
        return _placed(data, self.count, inches=6.4)

    def draw(self, data: pd.DataFrame) -> Figure:
        """One line per shape and variant, and a panel for each group of losses that compare."""
        data = in_unit(data)
        with theme():
            figure, axes = _panels(data, self.count, height=3.4 if data["panel"].nunique() < 2 else 2.7)
            styles = line_styles(data)
            for (panel, line), cells in data.sort_values("place").groupby(["panel", "line"], sort=False):
                _draw_cells(axes[str(panel)], cells, styles[str(line)])
            fronts = data[data["front"] != ""].groupby(["panel", "front"])
            for (panel, _), front in fronts:
                _draw_front(axes[str(panel)], front, self.count)
            flops = "all FLOPs spent" if self.count == SPENT else "training FLOPs"
            finish_cells(figure, [*axes.values()], data, f"final loss against {flops}", _needing(data, flops))
            legend_below(figure, [*line_key(styles), *_front_key(fronts[self.count].nunique(), "Pareto front of a shape")])
        return figure


@dataclass(frozen=True)
class LossAgainstParameters:
    """The figure of one count of parameters: one panel per budget, with its Pareto front."""

    count: str = "parameters"

    def frame(self, evidence: Evidence) -> pd.DataFrame:
        """One row per cell with a usable run: its mean loss over seeds, its size, and whether it is on the front of its panel.

        `half_nats` and `place` are as in LossAgainstFlops.
        """
        cells = [cell for cells in by_budget(evidence.cells).values() for cell in cells if cell.usable]
        data, counted = _counted(evidence, self.count, cells), evidence.counted(self.count)
        if data.empty:
            return data
        front = {cell.name for cell in pareto_front(evidence.cells, lambda cell: counted[cell.name])}
        data = data.assign(panel=[*map(evidence.panel_of, cells)], on_front=[cell.name in front for cell in cells])
        return _placed(data, self.count, inches=3.2)

    def draw(self, data: pd.DataFrame) -> Figure:
        """One panel per budget and group of losses that compare, one point per cell, and a stepped Pareto front."""
        data = in_unit(data)
        with theme():
            figure, axes = _panels(data, self.count, height=2.7)
            styles = line_styles(data)
            for name, cells in data.groupby("panel", sort=False):
                panel = axes[str(name)]
                _draw_front(panel, cells[cells["on_front"]], self.count)
                for line, cell in cells.groupby("line"):
                    _draw_cells(panel, cell, styles[str(line)])
            counted = "all parameters" if self.count == "parameters" else self.count
            finish_cells(figure, [*axes.values()], data, f"final loss against {counted}")
            if len(sizes := data[self.count].unique().tolist()) == 1:
                next(iter(axes.values())).xaxis.set_major_locator(FixedLocator(sizes))
            front = _front_key(data[data["on_front"]].groupby("panel")[self.count].nunique(), "Pareto front at equal budget")
            legend_below(figure, [*line_key(styles, linestyle="none"), *front])
        return figure


def _counted(evidence: Evidence, count: str, cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return the cells with a count and their losses, one a row."""
    counted = evidence.counted(count)
    return pd.DataFrame([{count: counted[cell.name], **of_cell(cell), **evidence.losses(cell)} for cell in cells])


def _placed(data: pd.DataFrame, count: str, inches: float) -> pd.DataFrame:
    """Return the data with lines and places, in panels of this width."""
    return data.assign(line=lines(data, among=()), place=side_by_side(data[count], data["panel"], inches))


def _panels(data: pd.DataFrame, count: str, height: float) -> tuple[Figure, dict[str, Axes]]:
    """Return a figure with its panels by name."""
    names = [str(name) for name in data["panel"].unique()]
    axis = axis_name(COUNTS[count], data["place"], data[count])
    figure, axes = panels(names, axis, loss_axis(data), height=height, one_y=not incomparable(data))
    return figure, dict(zip(names, axes, strict=True))


def _needing(data: pd.DataFrame, flops: str) -> str:
    """How many of the cells that need other runs are on the Pareto front of their shape; empty without fronts."""
    if data["front"].eq("").all():
        return ""
    of_needing = data.loc[data["needs_runs"], "front"]
    on_front, cells = int(of_needing.ne("").sum()), plural(len(of_needing), "cell")
    verb = "are" if on_front > 1 else "is"
    return f"{on_front or 'None'} of {cells} with a donor or a teacher {verb} on the shape's Pareto front by {flops}"


def _draw_front(panel: Axes, cells: pd.DataFrame, count: str) -> None:
    """Draw the steps between the cells of a Pareto front."""
    front = cells.sort_values(count)
    panel.plot(front["place"], front["loss_nats"], color="grey", drawstyle="steps-post", linewidth=1.4, zorder=1)


def _front_key(sizes: pd.Series[int], label: str) -> list[Line2D]:
    """Return the legend entry of fronts, if any has two sizes or more."""
    return [Line2D([], [], color="grey", label=label)] if sizes.gt(1).any() else []


def _draw_cells(panel: Axes, cells: pd.DataFrame, style: dict[str, Any]) -> None:
    """Draw the cells of a line with their intervals."""
    panel.plot(cells["place"], cells["loss_nats"], **style)
    explain(panel, cells, "place", "loss_nats")
    draw_intervals(panel, cells["place"], cells["loss_nats"], cells["half_nats"], style["color"])
