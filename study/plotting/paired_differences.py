"""A forest plot of paired differences between shapes or variants."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from study.base.quantities import plural
from study.evidence.averages import Average
from study.evidence.cells import run_ids_in, shorten_run_ids
from study.evidence.comparisons import Comparison
from study.evidence.evidence import Evidence
from study.plotting.style import legend_below, theme, title_above

AVERAGES = "averages over conditions"
"""The heading of the averages over families."""

_SIDES = {
    "depth": ("deeper", "shallower"),
    "width": ("wider", "narrower"),
    "ffn": ("larger FFN", "smaller FFN"),
    "heads": ("more heads", "fewer heads"),
}
_LETTER = 0.085
"""Approximate inches per letter of a row's name; the figure is as wide as the names and six inches for the differences."""

_ROOMY, _TIGHT = 0.33, 0.17
"""Inches per row: with few rows, and the least with many."""

_FEW = 24
_PAGE = 8.5
"""Inches of the rows of a page."""

_ONE_LINE = 60
"""Letters of the two sides below which they share a line under the axis."""

_LOOK = {
    "decided": ("#0173b2", "o"),
    "undecided": ("#de8f05", "s"),
    "no_seed_replicates": ("#777777", "D"),
    "reads_no_order": ("#777777", "X"),
}


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per pair: the first minus the second (see METHOD), its 95% interval, n and status; `sides` names both.

    Averages over several conditions come first. Run ids are shortened.
    """
    averages = [
        _row(average) | {"family": AVERAGES, "pair": f"{average.sides}, {len(average.places)} conditions"}
        for average in evidence.averages
    ]
    pairs = [_row(pair) | {"family": pair.family, "pair": pair.sides} for pair in evidence.comparisons.pairs]
    ids = run_ids_in(row["pair"] for row in pairs)
    for row in (*averages, *pairs):
        row |= {"pair": shorten_run_ids(row["pair"], ids), "sides": tuple(shorten_run_ids(side, ids) for side in row["sides"])}
    return pd.DataFrame([*averages, *pairs])


def _row(pair: Comparison | Average) -> dict[str, Any]:
    difference = pair.difference
    return {
        "estimate_nats": difference.estimate_nats,
        "low_nats": difference.low_nats,
        "high_nats": difference.high_nats,
        "n_sequences": difference.n_sequences,
        "n_seeds": "+".join(map(str, difference.n_seeds)),
        "status": pair.status,
        "sides": _SIDES.get(pair.weighs, (pair.first, pair.second)),
        "equal": "shape" if pair.equal == "shape" else "parameters",
    }


def draw(data: pd.DataFrame) -> Figure:
    """One row per pair under its family's name; left of zero the first side is better.

    If every family compares the same two, its name stands for the pair. Thirty pairs fit a page.
    """
    first, second = data["sides"].iloc[0] if data["sides"].nunique() == 1 else ("first", "second")
    pairs = int((data["family"] != AVERAGES).sum())
    counts = data["n_sequences"].astype(str) + " sequences, " + data["n_seeds"] + " seeds"
    with theme():
        rows = _rows(data)
        height, size = (_ROOMY, "medium") if len(rows) <= _FEW else (max(_TIGHT, _PAGE / len(rows)), "x-small")
        longest = max(len(label) for label, _ in rows)
        figure = Figure(figsize=(max(10.0, 6.0 + _LETTER * longest), 1.7 + height * len(rows)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="black", linewidth=1.2)
        for line, (_, row) in enumerate(rows):
            if row is not None:
                _draw_row(axes, line, row, None if counts.nunique() == 1 else counts[row["index"]])
        axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=size)
        for (_, row), tick in zip(rows, axes.get_yticklabels(), strict=True):
            tick.set_fontweight("bold" if row is None else "normal")
        axes.set_ylim(len(rows) - 0.3, -0.7)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        sides = f"← {first} better", f"{second} better →"
        short = len("".join(sides)) < _ONE_LINE
        below = ("        " if short else "\n").join(sides)
        axes.set_xlabel(f"difference of validation loss (nats per masked token)\n{below}", loc="center" if short else "right")
        equal = " or ".join(data["equal"].unique())
        title = f"{first if '=' in first else first.capitalize()} minus {second} at equal {equal}"
        common = f"; {counts.iloc[0]}" if counts.nunique() == 1 else ""
        title_above(figure, f"{title} ({plural(pairs, 'pair')}, 95% intervals{common})")
        seen = [status for status in _LOOK if status in set(data["status"])]
        legend_below(figure, [_key(status) for status in seen])
    return figure


def _rows(data: pd.DataFrame) -> list[tuple[str, dict[Hashable, Any] | None]]:
    """The lines from the top: a label with its pair, or a family's heading without one."""
    of_families = data[data["family"] != AVERAGES]
    one_each = of_families["pair"].nunique() == 1 and of_families["family"].is_unique
    lines: list[tuple[str, dict[Hashable, Any] | None]] = []
    for name, family in data.reset_index().groupby("family", sort=False):
        named_by_family = one_each and name != AVERAGES
        lines += [] if named_by_family else [(str(name), None)]
        lines += [(str(name if named_by_family else row["pair"]), row) for row in family.to_dict("records")]
    return lines


def _draw_row(axes: Axes, line: int, row: dict[Hashable, Any], note: str | None) -> None:
    colour, marker = _LOOK[str(row["status"])]
    if pd.notna(row["low_nats"]):
        axes.hlines(line, row["low_nats"], row["high_nats"], color=colour, linewidth=2.2)
    axes.plot([row["estimate_nats"]], [line], marker=marker, color=colour, markersize=7)
    if note is not None:
        where: dict[str, Any] = {
            "xycoords": axes.get_yaxis_transform(),
            "va": "center",
            "fontsize": "x-small",
            "annotation_clip": False,
        }
        axes.annotate(f" {note}", (1.0, line), **where)


def _key(status: str) -> Line2D:
    meaning = {
        "decided": "decided (Holm, 5%)",
        "no_seed_replicates": "no seed replicates: no interval",
        "reads_no_order": "reads no word order: no verdict",
    }
    colour, marker = _LOOK[status]
    return Line2D([], [], color=colour, marker=marker, label=meaning.get(status, status))
