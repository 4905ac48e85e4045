"""Final validation loss against depth, heads or FFN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from study.base.quantities import plural
from study.base.text import joined
from study.evidence.cells import CellResult, run_ids_in, shorten_run_ids
from study.evidence.evidence import Evidence
from study.evidence.families import Family
from study.evidence.gains import under_every_start
from study.plotting.hover import explain
from study.plotting.lines import of_cell
from study.plotting.style import (
    axis_name,
    by_scale,
    cut_long_bars,
    in_unit,
    incomparable,
    legend_below,
    loss_axis,
    mark_plateau,
    panels,
    readable_on_lines,
    series_styles,
    side_by_side,
    style_key,
    theme,
    title_above,
    what_bars_show,
)

_HELD = {"depth": ("width",), "ffn": ("depth", "width"), "heads": ("depth", "width", "ffn")}
"""The sizes that a line holds fixed beside its variant; if the width is traded at equal parameters, all except the width."""

_SPLITS = {"depth": ("ffn", "heads"), "ffn": ("heads",), "heads": ()}
"""The sizes that follow the width, and split a line that has several at one position."""

_RANGE = {"depth": "depths {}", "ffn": "FFN ratios {}", "heads": "{} heads"}
"""The positions of a line in words."""

_MOST_SPANS = 3
"""The most lines whose spans a title lists; of more it names the least and the greatest."""

_WIDTH = 3.2
"""Inches of a panel."""

_AXIS = {"depth": "depth (layers)", "ffn": "FFN ratio (FFN size ÷ width)", "heads": "number of heads"}


@dataclass(frozen=True)
class LossBySize:
    """The figure of one size."""

    size: Literal["depth", "ffn", "heads"]

    def frame(self, evidence: Evidence) -> pd.DataFrame:
        """One row per usable run at its cell's chosen rate, on lines with two positions or more.

        The lines are of equal parameters or of equal width, whichever hold more runs; heads trade against nothing. A line whose
        shapes differ in heads or FFN at one position is split by these. Among lines of equal width a shape with one position is
        a point if a line of its panel and variant differs in one held size alone; of equal parameters it trades against nothing
        and is left out. `low_nats` and `high_nats` are the 95% interval of the cell's mean over seeds
        (study.evidence.seed_scatter, fixed validation set).
        """
        rows = [
            row
            for family in evidence.families
            for cell in under_every_start(family.cells, evidence.cells)
            if cell.usable
            for row in self._rows(cell, family, evidence)
        ]
        if not rows:
            return pd.DataFrame()
        table = pd.DataFrame(rows)
        table["place"] = _ratio(table, digits=3) if self.size == "ffn" else table[self.size]
        traded, fixed = self._with_lines(table[table["family"] != ""], True), self._with_lines(table, False)
        if self.size == "heads" or _is_long(fixed).sum() > _is_long(traded).sum():
            return _with_positions(fixed[self._is_near_long(fixed)])
        return _with_positions(traded[_is_long(traded)])

    def _rows(self, cell: CellResult, family: Family, evidence: Evidence) -> list[dict[str, object]]:
        mean, half = cell.losses.mean(), evidence.half_width(cell)
        shared = {
            "panel": evidence.panel_of(cell),
            "family": family.size,
            "cell": cell.name,
            **of_cell(cell),
            "mean_nats": mean,
            "low_nats": None if half is None else mean - half,
            "high_nats": None if half is None else mean + half,
            "bottom_nats": min(mean - (half or 0.0), cell.losses.mean(axis=1).min()),
            "top_nats": max(mean + (half or 0.0), cell.losses.mean(axis=1).max()),
            "bracketed": cell.rates.bracketed,
            "tokens": cell.tokens,
            "unigram_entropy_nats": cell.unigram_entropy_nats,
            "unit": cell.unit,
            "scale": evidence.scales[cell.name],
        }
        losses = zip(cell.runs, cell.losses.mean(axis=1), strict=True)
        return [{**shared, "run_id": run, "loss_nats": loss} for run, loss in losses]

    def _with_lines(self, table: pd.DataFrame, traded: bool) -> pd.DataFrame:
        """Return the rows with their `line` and `label`; `traded` lets the width vary along a line of equal parameters."""
        if table.empty:
            return table.assign(line="", label="")
        held = [f"{size} " + table[size].astype(str) for size in _HELD[self.size] if not (traded and size == "width")]
        words = [table["family"], *held] if traded else [*held, table["setting"]]
        table = table.assign(line=[", ".join(filter(None, parts)) for parts in zip(*words, strict=True)])
        for size in _SPLITS[self.size]:
            table["line"] += _split_words(table, size, traded)
        ids = run_ids_in(table["line"])
        table["line"] = [shorten_run_ids(line, ids) for line in table["line"]]
        width = "H" + table["width"].astype(str) if traded else ""
        return table.assign(label=width + table["bracketed"].map({True: "", False: "?"}))

    def _is_near_long(self, table: pd.DataFrame) -> pd.Series[bool]:
        """Whether each row's line has two positions or more, or differs from such a line in one held size alone."""
        is_long, held = _is_long(table), _HELD[self.size]
        near = is_long
        for size in held:
            shared = [table[name] for name in ("panel", "setting", *held) if name != size]
            near = near | is_long.groupby(shared).transform("any")
        return near

    def draw(self, data: pd.DataFrame) -> Figure:
        """One panel per budget and group of losses that compare.

        Points are runs, and lines join means over seeds, drawn with intervals and labels.
        """
        data = in_unit(data)
        with theme():
            names = data["panel"].unique()
            axis = axis_name(_AXIS[self.size], data["x"], data["place"])
            figure, axes = panels(names.tolist(), axis, loss_axis(data), height=2.7, one_y=not incomparable(data))
            styles = series_styles(data["line"])
            for panel, name in zip(axes, names, strict=True):
                for line, runs in data[data["panel"] == name].groupby("line", sort=False):
                    _draw_line(panel, runs, styles[str(line)])
                panel.margins(x=0.12, y=0.18)
            cut = ""
            for same, rows in by_scale(axes, data):
                low, high = (rows[end].astype(float) for end in ("low_nats", "high_nats"))
                cut = cut_long_bars(same, rows["loss_nats"], low, high) or cut
            for panel, name in zip(axes, names, strict=True):
                _write_labels(panel, data[data["panel"] == name], styles)
            axes[0].set_xscale("log", base=2)
            axes[0].xaxis.set_major_locator(FixedLocator(sorted(data["place"].unique())))
            axes[0].xaxis.set_minor_locator(NullLocator())
            axes[0].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            finding = incomparable(data) or _finding(data, self.size)
            title_above(figure, finding, _note(data, cut) + mark_plateau(axes, data))
            legend_below(figure, style_key(styles), columns=2)
        return figure


def _is_long(table: pd.DataFrame) -> pd.Series[bool]:
    """Whether each row's line has two positions or more in its panel."""
    return table.groupby(["panel", "line"])["place"].transform("nunique") > 1


def _with_positions(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with `x`, shifted beside other lines at the same position."""
    keys = ["panel", "line", "place"]
    shown = table.drop_duplicates(keys)[keys]
    return table.merge(shown.assign(x=side_by_side(shown["place"].astype(float), shown["panel"], _WIDTH)), on=keys)


def _split_words(table: pd.DataFrame, size: str, traded: bool) -> pd.Series[str]:
    """Heads or FFN of each row in words, if its line has several at one position.

    If the width varies along a line, the FFN follows by its ratio and the heads by their rank.
    """
    values = _ratio(table, digits=2) if traded and size == "ffn" else table[size]
    at_position = values.groupby([table["panel"], table["line"], table["place"]])
    several = (at_position.transform("nunique") > 1).groupby(table["line"]).transform("any")
    along = values.groupby([table["line"], at_position.rank("dense") if traded and size == "heads" else values])
    low, high = (along.transform(end).map("{:g}".format) for end in ("min", "max"))
    words = f", {'ffn ratio' if traded and size == 'ffn' else size} " + low + (" to " + high).where(low != high, "")
    return words.where(several, "")


def _ratio(table: pd.DataFrame, digits: int) -> pd.Series[float]:
    return (table["ffn"] / table["width"]).map(lambda ratio: float(f"{ratio:.{digits}g}"))


def _draw_line(axes: Axes, runs: pd.DataFrame, style: tuple[str, str]) -> None:
    colour, marker = style
    axes.scatter(runs["x"], runs["loss_nats"], color=colour, marker=marker, s=18, edgecolor="white", linewidths=0.5, zorder=4)
    means = runs.drop_duplicates("cell").sort_values(["place", "width"])
    axes.plot(means["x"], means["mean_nats"], color=colour, linewidth=1.4)
    if means["low_nats"].notna().all():
        reach = [means["mean_nats"] - means["low_nats"], means["high_nats"] - means["mean_nats"]]
        axes.errorbar(
            means["x"], means["mean_nats"], reach, color=colour, capsize=3, linewidth=0.8, linestyle="none", alpha=0.7
        )
    explain(axes, runs, "x", "loss_nats")


def _write_labels(axes: Axes, runs: pd.DataFrame, styles: Mapping[str, tuple[str, str]]) -> None:
    """Label each mean above its bar, or above its runs if the bar leaves the axis; of three or more the lowest is below.

    Of several above one position the first reaches left and the last right.
    """
    lowest, highest = axes.get_ylim()
    of_runs = runs.groupby("cell")["loss_nats"]
    top = runs["top_nats"].where(runs["top_nats"] < highest, of_runs.transform("max"))
    bottom = runs["bottom_nats"].where(runs["bottom_nats"] > lowest, of_runs.transform("min"))
    means = runs.assign(top=top, bottom=bottom)[runs["label"] != ""].drop_duplicates("cell")
    at_place = means.groupby("place")
    below = means.index.isin(at_place["mean_nats"].idxmin()) & (at_place["label"].transform("size") > 2)
    look: dict[str, Any] = {"textcoords": "offset points", **readable_on_lines()}
    for line, x, name, y in means.loc[below, ["line", "x", "label", "bottom"]].itertuples(index=False):
        axes.annotate(name, (x, y), (0, -5), ha="center", va="top", color=styles[line][0], **look)
    above = means[~below]
    ends = above.groupby("place")["x"].agg(["min", "max"])
    for line, x, name, y, position in above[["line", "x", "label", "top", "place"]].itertuples(index=False):
        first, last = ends.loc[position]
        side, aside = ("center", 0) if first == last or first < x < last else ("right", 2) if x == first else ("left", -2)
        axes.annotate(name, (x, y), (aside, 5), ha=side, color=styles[line][0], **look)


def _finding(data: pd.DataFrame, size: str) -> str:
    """How far the mean loss spreads over the positions of each line, or of many lines the least and the greatest."""
    by_line = data[_is_long(data)].groupby(["panel", "line"], sort=False)
    lines = by_line.agg(span=("mean_nats", np.ptp), places=("place", _range)).reset_index()
    lines["where"] = _wheres(lines)
    few = len(lines) <= _MOST_SPANS and lines["panel"].nunique() == 1
    shown = lines if few else lines.loc[[lines["span"].idxmin(), lines["span"].idxmax()]]
    ranges = [_RANGE[size].format(places) for places in shown["places"]]
    one_range = len(set(ranges)) == 1
    parts = {
        "span": shown["span"].map("{:.3f}".format),
        "unit": [data["unit"].iloc[0], *[""] * (len(shown) - 1)],
        "over": "" if one_range else [f"over {words}" for words in ranges],
        "where": _end_once([*shown["where"]]) if few else shown["where"],
    }
    spans = [" ".join(filter(None, words)) for words in pd.DataFrame(parts).itertuples(index=False)]
    listed = joined(spans) if few else f"at least {spans[0]}, and at most {spans[1]}"
    return f"{f'Over {ranges[0]} the' if one_range else 'The'} mean loss spans {listed}"


def _range(places: pd.Series[float]) -> str:
    between = "to" if places.nunique() > 2 else "and"
    return f"{places.min():g} {between} {places.max():g}"


def _wheres(lines: pd.DataFrame) -> list[str]:
    """Return the sizes, panel and variant of each line in words, without what all lines share."""
    names = [str(name).split(", ") for name in lines["line"]]
    shared = set.intersection(*map(set, names)) if lines["line"].nunique() > 1 else set[str]()
    panels = lines["panel"] if lines["panel"].nunique() > 1 else [""] * len(lines)
    wheres = []
    for name, panel in zip(names, panels, strict=True):
        own = [part for part in name if part not in shared]
        sizes = [*(part for part in own if "=" not in part), *filter(None, [panel])]
        variant = [part for part in own if "=" in part]
        words = [f"{word} {joined(those)}" for word, those in (("at", sizes), ("with", variant)) if those]
        wheres.append(" ".join(words))
    return wheres


def _end_once(names: Sequence[str]) -> list[str]:
    """Return the names, of which only the last keeps the words that all end with."""
    words = [name.split() for name in names]
    shared = sum(1 for _ in takewhile(lambda ends: len(set(ends)) == 1, zip(*map(reversed, words), strict=False)))
    return [*(" ".join(each[: len(each) - shared]) for each in words[:-1]), *names[-1:]]


def _note(data: pd.DataFrame, cut: str) -> str:
    """Return what is counted, and what bars and marks mean."""
    unbracketed = "" if data["bracketed"].all() else "; ? = learning rate not bracketed"
    runs = plural(data["run_id"].nunique(), "run")
    return f"{runs}; lines join means over seeds; {what_bars_show(data['low_nats'], data['tokens'])}{cut}{unbracketed}"
