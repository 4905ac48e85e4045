"""A forest plot of paired differences between shapes or variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from study.base.quantities import plural
from study.evidence.cells import run_ids_in, shorten_run_ids
from study.evidence.comparisons import Average, Comparison
from study.evidence.evidence import Evidence
from study.plotting.hover import explain
from study.plotting.style import (
    in_lines,
    in_unit,
    legend_below,
    letters_in,
    style,
    theme,
    title_above,
    unit_axis,
    wide_figure,
    worded,
)

AVERAGES = "averages over conditions"
"""The heading of the averages over families."""

MOST_PAIRS = 30
"""The most pairs that a page shows at a glance; of more, the figure shows the averages alone, if there are any."""

_SIDES = {
    "depth": ("deeper", "shallower"),
    "width": ("wider", "narrower"),
    "ffn": ("larger FFN", "smaller FFN"),
    "heads": ("more heads", "fewer heads"),
}
_NAMES = 0.48
"""The most of a figure's width that the names of rows take; longer ones are wrapped."""

_GAP = "\N{NO-BREAK SPACE}" * 8
"""Between the two sides below the axis; SVG shows common spaces as one."""

_ROOMY, _TIGHT = 0.24, 0.11
"""Inches per line of names: with few rows, and the least with many."""

_SHORTEST = 2.1
"""Inches that title, axis and legend need with the fewest rows."""

_FEW = 24
_PAGE = 7.0
"""Inches of the rows of a page."""

_MOST_SIDES = 3
"""The most sides that a title counts by name."""

_FAR = 3.0
"""Intervals that reach this many times as far as three quarters of them do are cut, so that they do not hide the others."""

_LOOK = {
    "decided": ("#0173b2", "o", "significant (Holm, 5%)"),
    "undecided": ("#de8f05", "s", "not significant"),
    "no_seed_replicates": ("#777777", "D", "no seed replicates: no interval"),
    "reads_no_order": ("#777777", "X", "reads no word order: no verdict"),
    "order_not_measured": ("#777777", "P", "word order not measured: no verdict"),
}
"""The colour, marker and words of each status."""


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per pair: the first minus the second (see METHOD), its 95% interval, n and status; `sides` names both.

    Averages over several conditions come first. Run ids become words.
    """
    units = {cell.name: cell.unit for cell in evidence.cells}
    shared = next(iter(units.values())) if len({*units.values()}) == 1 else None
    averages = [
        _row(average, shared or average.difference.unit)
        | {"family": AVERAGES, "pair": f"{average.sides}, {len(average.places)} conditions"}
        for average in evidence.averages
    ]
    pairs = [
        _row(pair, units[pair.first_cell]) | {"family": pair.family, "pair": pair.sides} for pair in evidence.comparisons.pairs
    ]
    ids = run_ids_in(row[name] for row in pairs for name in ("pair", "family"))
    for row in (*averages, *pairs):
        row |= {name: shorten_run_ids(row[name], ids) for name in ("pair", "family")}
        row["sides"] = tuple(shorten_run_ids(side, ids) for side in row["sides"])
    return pd.DataFrame([*averages, *pairs])


def _row(pair: Comparison | Average, unit: str) -> dict[str, Any]:
    difference = pair.difference
    return {
        "estimate_nats": difference.estimate_nats,
        "low_nats": difference.low_nats,
        "high_nats": difference.high_nats,
        "unit": unit,
        "n_sequences": difference.n_sequences,
        "n_seeds": "+".join(map(str, difference.n_seeds)),
        "status": pair.status,
        "sides": _SIDES.get(pair.weighs, (pair.first, pair.second)),
        "equal": "shape" if pair.equal == "shape" else "parameters",
    }


def draw(data: pd.DataFrame) -> Figure:
    """One row per pair under its family's name; left of zero the first side is better.

    If every family compares the same two, its name stands for the pair. Of more than MOST_PAIRS the averages are shown alone,
    or without averages the largest differences, as many as fit a page. An interval that reaches much farther than most ends in
    an arrow at the edge.
    """
    every = _worded(in_unit(data).reset_index(drop=True))
    data = _shown(every)
    first, second = data["sides"].iloc[0] if data["sides"].nunique() == 1 else ("first", "second")
    counts = data["n_sequences"].astype(str) + " sequences, " + data["n_seeds"] + " seeds"
    with theme():
        rows = _rows(data)
        few, names = _names(rows)
        deep = [1 + name.count("\n") for name in names]
        places = (pd.Series(deep).cumsum() - pd.Series(deep) / 2).tolist()
        figure = wide_figure(max(_SHORTEST, 1.1 + (_ROOMY * sum(deep) if few else max(_tight() * sum(deep), _ROOMY * _FEW))))
        axes = figure.subplots()
        axes.axvline(0, color="black", linewidth=1)
        edges = _edges(data)
        if edges is not None:
            axes.set_xlim(edges)
        for place, (_, row) in zip(places, rows, strict=True):
            if row is not None:
                _draw_row(axes, place, row, None if counts.nunique() == 1 else counts[row["index"]])
                _draw_arrows(axes, place, row, edges)
        axes.set_yticks(places, names, fontsize="medium" if few else "x-small")
        for (_, row), tick in zip(rows, axes.get_yticklabels(), strict=True):
            tick.set_fontweight("bold" if row is None else "normal")
        explained = pd.DataFrame([row | {"place": place} for place, (_, row) in zip(places, rows, strict=True) if row])
        explain(axes, explained, "estimate_nats", "place")
        axes.set_ylim(sum(deep) + 0.2, -0.2)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        sides = f"← {first} better", f"{second} better →"
        room = letters_in(0.8 * style().width * (1 - _NAMES))
        between = _GAP if len("".join(sides)) + len(_GAP) < room else "\n"
        below = between.join(in_lines(side, room) for side in sides)
        axes.set_xlabel(f"{in_lines(f'difference of {unit_axis(data)}', room)}\n{below}")
        equal = " or ".join(data["equal"].unique())
        common = f"; {counts.iloc[0]}" if counts.nunique() == 1 else ""
        note = f"{first} minus {second} at equal {equal}; 95% intervals{common}"
        title_above(figure, _finding(every, data), note + _left_out(data, every))
        seen = [status for status in _LOOK if status in set(data["status"])]
        cut = [] if edges is None else [Line2D([], [], color="#777777", marker=">", label="interval goes on beyond the edge")]
        legend_below(figure, [*map(_key, seen), *cut])
    return figure


def _worded(data: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs with their names in the wording of the figure."""
    sides = data["sides"].map(lambda sides: tuple(map(worded, sides)))
    return data.assign(pair=data["pair"].map(worded), family=data["family"].map(worded), sides=sides)


def _edges(data: pd.DataFrame) -> tuple[float, float] | None:
    """Where the axis ends if some intervals are cut, None if none is."""
    intervals = data[["low_nats", "high_nats"]].astype(float)  # none where no seed replicates
    ends = intervals.abs().max(axis=1).fillna(data["estimate_nats"].abs())
    usual = _FAR * ends.quantile(0.75)
    if intervals.isna().all(axis=None) or ends.max() <= usual:
        return None
    edge = 1.08 * max(ends[ends <= usual].max(), data["estimate_nats"].abs().max())
    return max(-edge, intervals["low_nats"].min()), min(edge, intervals["high_nats"].max())


def _finding(data: pd.DataFrame, shown: pd.DataFrame) -> str:
    """How many differ significantly, and which sides are lower, of pairs and of averages, first what is shown."""
    tested = data[data["status"].isin(["decided", "undecided"])]
    averages = tested["family"] == AVERAGES
    if tested[~averages].empty:
        pairs = data[data["family"] != AVERAGES]
        return f"No test of {plural(len(pairs), 'pair')}: {_LOOK[str(pairs['status'].iloc[0])][2].partition(':')[0]}"
    kinds = [("pair", tested[~averages]), ("average", tested[averages])]
    if shown["family"].eq(AVERAGES).all():
        kinds.reverse()
    (counted, words), *others = [(plural(len(rows), kind), _in_words(rows)) for kind, rows in kinds if len(rows)]
    differing, colon, winners = words.partition(": ")
    verb = "differs" if differing == "1" else "differ"
    further = "".join(f"; of {counted} {words}" for counted, words in others)
    return f"{differing} of {counted} {verb} significantly{colon}{winners}{further}"


def _in_words(tested: pd.DataFrame) -> str:
    """How many of the tested differ, and how often each side is lower, the most frequent first."""
    decided = tested[tested["status"] == "decided"]
    lower = Counter(sides[estimate > 0] for sides, estimate in zip(decided["sides"], decided["estimate_nats"], strict=True))
    winners = [f"{side} better in {count}" for side, count in lower.most_common(_MOST_SIDES)]
    others = sum(lower.values()) - sum(count for _, count in lower.most_common(_MOST_SIDES))
    return ": ".join(filter(None, (str(len(decided)), ", ".join([*winners, *([f"others in {others}"] if others else [])]))))


def _tight() -> float:
    """Inches per line of names with many rows, in the style's type."""
    return _TIGHT * style().points / 9


def _names(rows: Sequence[tuple[str, object]]) -> tuple[bool, list[str]]:
    """Whether rows are few enough to be roomy, and their labels in lines."""
    for few in (True, False):
        letters = int(letters_in(style().width * _NAMES) * (1 if few else 1.2))
        names = [_in_lines(label, letters) for label, _ in rows]
        if few and sum(1 + name.count("\n") for name in names) <= _FEW:
            break
    return few, names


_in_lines = cache(in_lines)


def _left_out(shown: pd.DataFrame, every: pd.DataFrame) -> str:
    """Return the title's note on pairs that a figure leaves out, else nothing."""
    pairs, of = ((rows["family"] != AVERAGES).sum() for rows in (shown, every))
    if pairs == of:
        return ""
    return f"; the {pairs} largest of {of} pairs are shown" if pairs else f"; the tables list all {of} pairs"


def _shown(data: pd.DataFrame) -> pd.DataFrame:
    """Return the averages alone of more than MOST_PAIRS pairs, else the averages and the largest pairs that fit a page."""
    averages = data["family"] == AVERAGES
    if averages.any() and (~averages).sum() > MOST_PAIRS:
        return data[averages]
    largest = data.loc[~averages, "estimate_nats"].abs().sort_values(ascending=False, kind="stable").index
    for count in range(len(largest), 0, -1):
        shown = data[averages | data.index.isin(largest[:count])]
        _, names = _names(_rows(shown))
        if sum(1 + name.count("\n") for name in names) * _tight() <= _PAGE:
            break
    return shown


def _rows(data: pd.DataFrame) -> list[tuple[str, dict[Hashable, Any] | None]]:
    """Return the lines from the top: a label with its pair, or a family's heading without one."""
    of_families = data[data["family"] != AVERAGES]
    one_each = of_families["pair"].nunique() == 1 and of_families["family"].is_unique
    lines: list[tuple[str, dict[Hashable, Any] | None]] = []
    for name, family in data.reset_index().groupby("family", sort=False):
        named_by_family = one_each and name != AVERAGES
        lines += [] if named_by_family else [(str(name), None)]
        lines += [(str(name if named_by_family else row["pair"]), row) for row in family.to_dict("records")]
    return lines


def _draw_row(axes: Axes, place: float, row: dict[Hashable, Any], note: str | None) -> None:
    colour, marker, _ = _LOOK[str(row["status"])]
    if pd.notna(row["low_nats"]):
        axes.hlines(place, row["low_nats"], row["high_nats"], color=colour, linewidth=1.8)
    axes.plot([row["estimate_nats"]], [place], marker=marker, color=colour, markersize=5)
    if note is not None:
        where: dict[str, Any] = {
            "xycoords": axes.get_yaxis_transform(),
            "va": "center",
            "fontsize": "x-small",
            "annotation_clip": False,
        }
        axes.annotate(f" {note}", (1.0, place), **where)


def _draw_arrows(axes: Axes, place: float, row: dict[Hashable, Any], edges: tuple[float, float] | None) -> None:
    """Arrows at the edges that the row's interval crosses."""
    if edges is None:
        return
    colour, (left, right) = _LOOK[str(row["status"])][0], edges
    crossed = [] if pd.isna(row["low_nats"]) else [(left, "<", row["low_nats"] < left), (right, ">", row["high_nats"] > right)]
    for edge, marker, beyond in crossed:
        if beyond:
            axes.plot([edge], [place], marker=marker, color=colour, markersize=5, clip_on=False)


def _key(status: str) -> Line2D:
    colour, marker, meaning = _LOOK[status]
    return Line2D([], [], color=colour, marker=marker, markersize=5, label=meaning)
