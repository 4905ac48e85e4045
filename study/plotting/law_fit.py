"""A table's law and measured rows against every variable, up to the points that it is to forecast, with residuals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from study.base.quantities import compact, compact_flops, count_text
from study.base.text import status_said
from study.laws.estimation import Fit
from study.laws.forecasting import Forecast, forecast_rows
from study.laws.law_fits import LawFit
from study.laws.observations import budget_name, budget_of
from study.plotting.hover import explain
from study.plotting.style import MANY, in_lines, legend_below, letters_in, log_ticks, style, theme, title_above, wide_figure

BUDGET = "budget"

CURVES = 5
"""The most curves per panel, one for each level of the other variable or for levels spread over its range."""

REACH = 4.0
"""How far beyond its largest value a curve extends over parameters, tokens or FLOPs."""

LEGEND_LETTERS = 34
"""The most letters in a line above a panel."""

_SIZES = ("parameters", "tokens", "flops")
_BUDGETS = ("tokens", "flops")
"""What a run's budget is given in. Colours mean the budget on one ramp in every panel that does not have it on its axis."""

_RAMPS = {True: "viridis", False: "flare"}
"""The ramp of a budget, and that of other variables, so that no colour means two things."""

_POINTS = 60
_RING: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 7, "mfc": "none", "mec": "black", "mew": 0.9}
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "columnspacing": 1.0}
_ABOVE |= {"fontsize": "x-small", "title_fontsize": "x-small", "alignment": "left"}
_STAR: dict[str, Any] = {"linestyle": "none", "marker": "*", "markersize": 10, "mec": "black", "mew": 0.8}
_PLAIN = "0.35"


@dataclass(frozen=True)
class LawTarget:
    """A point to forecast: all variables of the law, the `value` with its 95% interval (NaN without), and `by` whom."""

    at: Mapping[str, float]
    value: float
    low: float
    high: float
    by: str = "by the law"

    def words(self, predicts: str) -> str:
        """Return the point and its forecast, as a legend has them."""
        where = ", ".join(f"{_amount(name, value, count_text)} {name}" for name, value in self.at.items())
        return f"{predicts} {self.said} at {where}, {self.by}"

    @property
    def said(self) -> str:
        """The forecast with its interval."""
        interval = f"95% {self.low:.4g} to {self.high:.4g}" if np.isfinite(self.low) else "no interval"
        return f"{self.value:.4g} ({interval})"


def frame(fitted: LawFit, targets: Sequence[LawTarget] = ()) -> pd.DataFrame:
    """One row of kind `measured` per variable and table row (at most MANY), and rows of kind `curve`.

    A measured row holds the size, the measured value, and the law's value with its 95% interval, which for new runs includes
    scatter. `forecast` marks the forecast's rows; the law shown is fitted to all. `residual` is in the fit's space. A curve is
    the law against one variable at a `level` of the variable `by`, with the others fixed as `held` says, and its own 95%
    interval; where it is `beyond` the budgets fitted, the interval is `widening` times as wide. A `target` has a row against
    each variable, and against the budget where the law's variables give it; its curve, of kind `approach`, ends there, and is
    `beyond` where any variable is. Every row repeats `title` and the axes' names. The budget is left out where a variable is
    the budget.
    """
    forecast = fitted.forecast.labels if isinstance(fitted.forecast, Forecast) else ()
    law, roles = fitted.fit.law, fitted.fit.observations.roles
    points = fitted.fit.observations.thinned(MANY)
    predictions = forecast_rows(fitted.fit, points)
    axes = {name: points.columns[name] for name in law.variables}
    if not any(np.array_equal(values, points.budget) for values in axes.values()):
        axes |= {BUDGET: points.budget}
    measured = [
        pd.DataFrame(
            {
                "variable": name,
                "kind": "measured",
                "axis": _axis(name, roles, law.variables),
                "size": values,
                "measured": points.response,
                "law": predictions.predicted,
                "low": predictions.low,
                "high": predictions.high,
                "residual": fitted.fit.residual(predictions.predicted, points.response),
                "forecast": np.isin(points.labels, forecast),
                "beyond": False,
                "row": points.labels,
                "by": (by := _coloured_by(fitted.fit, name)),
                "level": points.columns[by] if by else np.nan,
            }
        )
        for name, values in axes.items()
    ]
    curves = [curve for name in law.variables for curve in _curves(fitted, name)]
    ahead = [part for target in targets for name in axes for part in _to_target(fitted, name, target)]
    rows = pd.concat([*measured, *curves, *ahead], ignore_index=True)
    alike = {"predicts": axis_of(law.predicts, roles), "space": fitted.fit.settings.space, "title": _title(fitted, targets)}
    return rows.assign(widening=fitted.widening, **alike)


def _title(fitted: LawFit, targets: Sequence[LawTarget]) -> str:
    formula = "" if fitted.fit.law.name == fitted.fit.law.formula else f": {fitted.fit.law.formula}"
    law = f"{fitted.name}{formula}, n = {fitted.fit.n}"
    intervals = fitted.fit.intervals if fitted.fit.usable else {}
    exponents = [
        f"{name} {fitted.fit.estimates[name]:.3g} ({low:.3g} to {high:.3g})"
        for name, (low, high) in intervals.items()
        if name in fitted.fit.law.exponents
    ]
    estimated = f", {', '.join(exponents)}" if exponents else ""
    said = status_said(fitted.fit.status)
    unbanded = _why_no_band(fitted.fit)
    if not targets:
        return f"The law's fit {said}{estimated}{unbanded}\n{law}"
    forecasts = "; ".join(target.said for target in targets)
    return f"Forecast at the target: {fitted.fit.law.predicts} {forecasts}{unbanded}\nThe law's fit {said}{estimated}; {law}"


def _why_no_band(fit: Fit) -> str:
    """Return why the law's curves have no band, as the end of a sentence; empty if they have one, or the fit failed."""
    if fit.status == "failed" or (fit.usable and len(fit.resampled)):
        return ""
    of_resamples = (reason for reason in fit.reasons if "resamples" in reason)
    why = next(of_resamples, "its rows are not resampled" if fit.usable else "; ".join(fit.reasons))
    return f"; the law has no band, as {why}"


def _coloured_by(fit: Fit, name: str) -> str:
    """Return the variable that colours the panel of `name`: the budget, else the other one that varies most; empty if none."""
    columns = {other: fit.observations.columns[other] for other in fit.law.variables if other != name}
    ratios = {other: values.max() / values.min() for other, values in columns.items() if values.min() > 0}
    budgets = [other for other in _BUDGETS if ratios.get(other, 1.0) > 1]
    return next(iter(budgets), "" if name == BUDGET else max(ratios, key=ratios.__getitem__, default=""))


def _curves(fitted: LawFit, name: str) -> list[pd.DataFrame]:
    """Return the law over a variable's measured range at each level of another, and beyond it.

    Others at their geometric means, or at their means where some are zero or below.
    """
    fit = fitted.fit
    columns, by = fit.observations.columns, _coloured_by(fit, name)
    middle = {other: _middle(columns[other]) for other in fit.law.variables if other not in (name, by)}
    reach = REACH if fit.usable and name in _SIZES else 1.0
    grid = _steps(columns[name].min(), reach * columns[name].max())
    held, curves = ", ".join(f"{other} {compact(value)}" for other, value in middle.items()), []
    for level in _levels(columns[by]) if by else [np.nan]:
        at = {other: np.full(_POINTS, value) for other, value in middle.items()} | {name: grid}
        at |= {by: np.full(_POINTS, level)} if by else {}
        low, high = fitted.interval_at(at)
        law = {"size": grid, "law": fit.predict(at), "low": low, "high": high, "beyond": fit.observations.beyond(at)}
        of = {"variable": name, "kind": "curve", "by": by, "level": level, "held": held, "forecast": False}
        curves.append(pd.DataFrame(of | law))
    return curves


def _to_target(fitted: LawFit, name: str, target: LawTarget) -> list[pd.DataFrame]:
    """Return a target's row against a variable, and the law's curve from the measured range up to it, at its other values."""
    fit, by = fitted.fit, _coloured_by(fitted.fit, name)
    held = ", ".join(f"{other} {compact(value)}" for other, value in target.at.items() if other not in (name, by))
    of = {"variable": name, "by": by, "level": target.at.get(by, np.nan), "held": held, "forecast": False}
    of |= {"row": target.words(fit.law.predicts)}
    star = pd.DataFrame([of | {"kind": "target", "law": target.value, "low": target.low, "high": target.high, "beyond": False}])
    if name == BUDGET:
        if {BUDGET, "flops"} & {*fit.observations.roles}:  # a column, which a target lacks
            return []
        return [star.assign(size=float(budget_of({one: np.array([value]) for one, value in target.at.items()})[0]))]
    columns, end = fit.observations.columns, target.at[name]
    least, most = float(columns[name].min()), float(columns[name].max())
    grid = _steps(least if end > least else most, end)
    at = {other: np.full(_POINTS, value) for other, value in target.at.items()} | {name: grid}
    outside = [(values < columns[one].min()) | (values > columns[one].max()) for one, values in at.items()]
    low, high = fitted.interval_at(at)
    law = {"size": grid, "law": fit.predict(at), "low": low, "high": high}
    beyond = fit.observations.beyond(at) | np.any(outside, axis=0)
    return [star.assign(size=end), pd.DataFrame(of | {"kind": "approach"} | law | {"beyond": beyond})]


def _middle(values: np.ndarray) -> float:
    return float(np.exp(np.log(values).mean()) if (values > 0).all() else values.mean())


def _steps(start: float, end: float) -> np.ndarray:
    """Return the points of a curve, in equal ratios unless an end is zero or below."""
    return np.geomspace(start, end, _POINTS) if min(start, end) > 0 else np.linspace(start, end, _POINTS)


def _levels(values: np.ndarray) -> np.ndarray:
    """Return the values themselves if few, else CURVES of them, evenly spread in the logarithm."""
    distinct = np.unique(values)
    return distinct if len(distinct) <= CURVES else np.geomspace(distinct[0], distinct[-1], CURVES)


def _axis(name: str, roles: Mapping[str, str], variables: Sequence[str]) -> str:
    """Return a variable with its source; for the budget, what orders the runs."""
    if name == BUDGET and BUDGET not in roles:
        return f"{name} ({roles.get('flops', budget_name(variables))})"
    return axis_of(name, roles)


def axis_of(name: str, roles: Mapping[str, str]) -> str:
    """Return what a law reads or predicts, with its source column or expression if that has another name."""
    column = roles.get(name, name)
    return name if column == name else f"{name} ({column})"


def draw(data: pd.DataFrame) -> Figure:
    """One column per variable: measured values and curves above, residuals below.

    The vertical axis follows the values; longer intervals are cut, as the legend then says.
    """
    measured, targets = (data[data["kind"] == kind] for kind in ("measured", "target"))
    names = list(dict.fromkeys(measured["variable"]))
    bottom, top = limits_of(pd.concat([measured, targets, data.loc[data["beyond"].astype(bool), ["law"]]]))
    with theme():
        figure, axes = _grid(len(names))
        for (above, below), name in zip(axes, names, strict=True):
            rows = measured[measured["variable"] == name]
            by = str(rows["by"].iloc[0])
            colours = _colours(data.loc[data["by"] == by, "level"], by)
            _draw_curves(above, data[data["variable"] == name], colours)
            if name == BUDGET:
                bars = rows.drop_duplicates(["size", "law"])
                low, high = bars["low"].clip(lower=bottom), bars["high"].clip(upper=top)
                above.vlines(bars["size"], low, high, color=_PLAIN, linewidth=3, alpha=0.25)
            shades = [colours(level) for level in rows["level"]]
            above.scatter(rows["size"], rows["measured"], s=10, c=shades, zorder=3)
            below.scatter(rows["size"], rows["residual"], s=10, c=shades)
            for panel, column in ((above, "measured"), (below, "residual")):
                explain(panel, rows, "size", column)
            _draw_targets(above, targets[targets["variable"] == name], colours, (bottom, top))
            held = rows[rows["forecast"].astype(bool)]
            above.plot(held["size"], held["measured"], zorder=4, **_RING)
            below.plot(held["size"], held["residual"], **_RING)
            below.axhline(0, color="black", linewidth=1)
            below.set_xlabel(rows["axis"].iloc[0])
            if (rows["size"] > 0).all():
                log_ticks(below)
        better = "\n(lower is better)" if _is_loss(data) else ""
        for above, below in axes[: 1 if style().columns > 1 else None]:
            above.set_ylabel(f"{data['predicts'].iloc[0]}{better}")
            below.set_ylabel(f"law − measured\n({data['space'].iloc[0]})")
        axes[0][0].set_ylim(bottom, top)
        legend_below(figure, _key(data, measured, (bottom, top)), columns=2)
        title_above(figure, *str(data["title"].iloc[0]).split("\n"))
    return figure


_TALLEST = 8.2
"""Inches of the panels of a column, so that title and legend fit its page, too."""


def _grid(variables: int) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """Return a figure, and the two panels of each variable: side by side on a page, and one below the other in a column."""
    if style().columns > 1:
        figure = wide_figure(5.2)
        upper, lower = figure.subplots(2, variables, sharex="col", sharey="row", squeeze=False, height_ratios=(3, 2))
        return figure, list(zip(upper, lower, strict=True))
    figure = wide_figure(min(3.4 * variables + 0.6, _TALLEST))
    panels = figure.subplots(2 * variables, 1, height_ratios=(3, 2) * variables)
    for above, below in (pairs := list(zip(panels[::2], panels[1::2], strict=True))):
        below.sharex(above)
        if above is not panels[0]:
            above.sharey(panels[0])
            below.sharey(panels[1])
    return figure, pairs


def _is_loss(data: pd.DataFrame) -> bool:
    return str(data["predicts"].iloc[0]).startswith("loss")


def _colours(levels: pd.Series[float], by: str) -> Callable[[float], str]:
    """Return the colour of each level of a variable, from small to large; plain without one."""
    if levels.isna().all():
        return lambda _: _PLAIN
    ramp, scale = sns.color_palette(_RAMPS[by in _BUDGETS], as_cmap=True), LogNorm(levels.min(), levels.max())
    return lambda level: to_hex(ramp(0.9 * float(scale(level))))


_STROKES = {"curve": ":", "approach": "--"}
"""The strokes of the law beyond what was measured."""


def _draw_curves(panel: Axes, rows: pd.DataFrame, colours: Callable[[float], str]) -> None:
    curves = rows[rows["kind"].isin(_STROKES)]
    for (kind, *_), curve in curves.groupby(["kind", "level", "row"], dropna=False, sort=False):
        level = float(curve["level"].iloc[0])
        colour, label = colours(level), None if np.isnan(level) else _amount(curve["by"].iloc[0], level)
        label = f"{label}, to the target" if label and kind == "approach" else label
        within = curve["law"].where(~curve["beyond"].astype(bool))
        panel.plot(curve["size"], curve["law"], color=colour, linewidth=1.4, linestyle=_STROKES[str(kind)])
        panel.plot(curve["size"], within, color=colour, linewidth=1.4, label=label)
        if curve["low"].notna().any():
            panel.fill_between(curve["size"], curve["low"], curve["high"], color=colour, alpha=0.13, linewidth=0)
    if rows["level"].notna().any():
        panel.legend(*panel.get_legend_handles_labels(), title=_legend_title(rows), ncols=2, **_ABOVE)


def _amount(name: str, value: float, words: Callable[[float], str] = compact) -> str:
    return compact_flops(value) if name == "flops" else words(value)


def _legend_title(rows: pd.DataFrame) -> str:
    """Return what the colours of a panel mean, and where its curves hold other variables."""
    name, by = rows[["variable", "by"]].iloc[0]
    held = next(iter(rows.loc[rows["kind"] == "curve", "held"]), "")
    why = f", since {name} lie across" if name in _BUDGETS and by not in _BUDGETS else ""
    lines = [f"colour: {by}{why}", *([f"at {held}"] if held else [])]
    return "\n".join(in_lines(line, LEGEND_LETTERS) for line in lines)


def _draw_targets(panel: Axes, targets: pd.DataFrame, colours: Callable[[float], str], limits: tuple[float, float]) -> None:
    low, high = targets["low"].clip(lower=limits[0]), targets["high"].clip(upper=limits[1])
    panel.vlines(targets["size"], low, high, color="black", linewidth=1.4, zorder=5)
    for size, value, level in targets[["size", "law", "level"]].itertuples(index=False):
        panel.plot(size, value, zorder=6, color=colours(level), **_STAR)
    explain(panel, targets, "size", "law")


def _key(data: pd.DataFrame, measured: pd.DataFrame, limits: tuple[float, float]) -> list[Line2D | Patch]:
    banded = data.loc[data["kind"] == "curve", "low"].notna().any()
    key: list[Line2D | Patch] = [
        Line2D([], [], linestyle="none", marker="o", markersize=4, color=_PLAIN, label="measured"),
        Line2D([], [], color=_PLAIN, label="law" + (", with its 95% interval" if banded else "")),
    ]
    if data.loc[data["kind"] == "curve", "beyond"].astype(bool).any():
        times = float(data["widening"].iloc[0])
        label = "beyond the budgets fitted"
        wide = f", its interval {times:.2g} times as wide, as held-out runs missed" if banded and times > 1 else ""
        key.append(Line2D([], [], color=_PLAIN, linestyle=":", label=label + wide))
    key += [
        Line2D([], [], color="white", label=in_lines(words, letters_in(0.8 * style().width / min(2, style().columns))), **_STAR)
        for words in dict.fromkeys(data.loc[data["kind"] == "target", "row"])
    ]
    if (data["kind"] == "approach").any():
        key.append(Line2D([], [], color=_PLAIN, linestyle="--", label="to the target, beyond what was measured"))
    if measured["forecast"].astype(bool).any():
        key.append(Line2D([], [], label="held out: forecast from smaller runs", **_RING))
    if measured.loc[measured["variable"] == BUDGET, "low"].notna().any():
        is_cut = (measured["low"] < limits[0]).any() or (measured["high"] > limits[1]).any()
        label = f"where 95% of new runs lie by the law{' (cut at the axis)' if is_cut else ''}"
        key.append(Patch(color=_PLAIN, alpha=0.25, label=label))
    return key


def limits_of(data: pd.DataFrame) -> tuple[float, float]:
    """Return a range with all measured and fitted values, extended for intervals by at most the spread of these values."""
    values = data[["measured", "law"]].to_numpy(dtype=float)
    values = values[np.isfinite(values)]
    least, most = float(values.min()), float(values.max())
    spread = max(most - least, 0.02 * abs(most), 1e-9)
    low, high = max(data["low"].min(), least - spread), min(data["high"].max(), most + spread)
    margin = 0.06 * spread
    return float(np.fmin(low, least)) - margin, float(np.fmax(high, most)) + margin
