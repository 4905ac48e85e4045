"""A forest plot of the paired differences between shapes of equal parameters, and between settings of one shape."""

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
from study.evidence.comparisons import Comparison
from study.evidence.evidence import Evidence
from study.plotting.style import legend_below, theme, title_above

AVERAGES = "averages over conditions"
"""The heading of what is averaged over families."""

_SIDES = {
    "depth": ("deeper", "shallower"),
    "width": ("wider", "narrower"),
    "ffn": ("larger FFN", "smaller FFN"),
    "heads": ("more heads", "fewer heads"),
}
_LETTER = 0.085
"""Inches of a letter of a row's name, about; the figure is as wide as the names and six inches for the differences."""

_ONE_LINE = 60
"""Letters of the two sides below which they stand beside each other under the axis."""

_LOOK = {
    "decided": ("#0173b2", "o"),
    "undecided": ("#de8f05", "s"),
    "no_seed_replicates": ("#777777", "D"),
    "reads_no_order": ("#777777", "X"),
}


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a pair: the first minus the second (see METHOD), its 95% interval, n and status; `sides` are what they are.

    Above them those that are averaged over several places.
    """
    averages = [
        _row(average) | {"family": AVERAGES, "pair": f"{average.sides}, {len(average.places)} conditions"}
        for average in evidence.averages
    ]
    pairs = [_row(pair) | {"family": pair.family, "pair": pair.sides} for pair in evidence.comparisons.pairs]
    return pd.DataFrame([*averages, *pairs])


def _row(pair: Comparison | Average) -> dict[str, Any]:
    """What is drawn of a difference."""
    found = pair.difference
    return {
        "estimate_nats": found.estimate_nats,
        "low_nats": found.low_nats,
        "high_nats": found.high_nats,
        "n_sequences": found.n_sequences,
        "n_seeds": "+".join(map(str, found.n_seeds)),
        "status": pair.status,
        "sides": _SIDES.get(pair.weighs, (pair.first, pair.second)),
        "equal": "shape" if pair.equal == "shape" else "parameters",
    }


def draw(data: pd.DataFrame) -> Figure:
    """A row a pair under its family's name; left of zero the first is better, of shapes that with more of what is weighed."""
    first, second = data["sides"].iloc[0] if data["sides"].nunique() == 1 else ("first", "second")
    pairs = int((data["family"] != AVERAGES).sum())
    with theme():
        names = data["family"].unique()
        longest = max(map(len, [*names, *data["pair"]]))
        figure = Figure(
            figsize=(max(10.0, 6.0 + _LETTER * longest), 1.7 + 0.33 * (len(data) + len(names))), layout="constrained"
        )
        axes = figure.subplots()
        axes.axvline(0, color="black", linewidth=1.2)
        labels, line = [], 0
        for name in names:
            labels.append((line, str(name)))
            for row in data[data["family"] == name].to_dict("records"):
                line += 1
                labels.append((line, str(row["pair"])))
                _draw_row(axes, line, row)
            line += 1
        axes.set_yticks([at for at, _ in labels], [label for _, label in labels])
        for (_, label), tick in zip(labels, axes.get_yticklabels(), strict=True):
            tick.set_fontweight("bold" if label in names else "normal")
        axes.set_ylim(line - 0.3, -0.7)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        sides = f"← {first} better", f"{second} better →"
        beside = "        " if len("".join(sides)) < _ONE_LINE else "\n"
        axes.set_xlabel(f"difference of validation loss (nats per masked token)\n{beside.join(sides)}")
        equal = " or ".join(data["equal"].unique())
        title = f"{first if '=' in first else first.capitalize()} minus {second} at equal {equal}"
        title_above(figure, f"{title} ({plural(pairs, 'pair')}, 95% intervals)")
        seen = [status for status in _LOOK if status in set(data["status"])]
        legend_below(figure, [_key(status) for status in seen])
    return figure


def _draw_row(axes: Axes, line: int, row: dict[Hashable, Any]) -> None:
    colour, marker = _LOOK[str(row["status"])]
    if pd.notna(row["low_nats"]):
        axes.hlines(line, row["low_nats"], row["high_nats"], color=colour, linewidth=2.2)
    axes.plot([row["estimate_nats"]], [line], marker=marker, color=colour, markersize=7)
    note = f" {row['n_sequences']} seq., {row['n_seeds']} seeds"
    axes.annotate(note, (1.0, line), xycoords=axes.get_yaxis_transform(), va="center", fontsize="small", annotation_clip=False)


def _key(status: str) -> Line2D:
    meaning = {
        "decided": "decided (Holm, 5%)",
        "no_seed_replicates": "no seed replicates: no interval",
        "reads_no_order": "reads no word order: no verdict",
    }
    colour, marker = _LOOK[status]
    return Line2D([], [], color=colour, marker=marker, label=meaning.get(status, status))
