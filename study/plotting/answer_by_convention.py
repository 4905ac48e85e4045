"""Every universe of a multiverse, in order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from study.base.durable_files import write_atomically
from study.base.quantities import DIGITS, rounded_all
from study.laws.multiverse import Multiverse
from study.plotting.style import Format, drawable, legend_below, panels, save_in, series_styles, theme, title_above


def frame(multiverse: Multiverse) -> pd.DataFrame:
    """One row per universe with an answer, in ascending order."""
    rows, threshold = [], multiverse.question.threshold
    for universe, answer in zip(multiverse.answered, multiverse.answers, strict=True):
        low, high = universe.interval or (None, None)
        question = {"quantity": multiverse.question.quantity, "threshold": threshold, "question": multiverse.question.text}
        verdict = {"answer": answer, "decided": universe.decided(threshold), "verdict": multiverse.verdict}
        verdict["first"] = multiverse.first
        rows.append(
            {**universe.choices, "value": rounded_all(universe.value, DIGITS), "low": low, "high": high, **verdict, **question}
        )
    return pd.DataFrame(rows).sort_values("value", kind="stable", ignore_index=True) if rows else pd.DataFrame()


def draw(data: pd.DataFrame) -> Figure:
    """One point with an interval per universe, coloured by approach, and a line at the threshold."""
    with theme():
        figure, (axes,) = panels([""], "universe, by value", str(data["quantity"].iloc[0]), height=3.2)
        floor = data["floor"].map(lambda floor: f", {floor}" if isinstance(floor, str) else "") if "floor" in data else ""
        kinds = data["approach"] + floor
        for kind, (colour, marker) in series_styles(kinds).items():
            rows = data[kinds == kind]
            order = rows.index + 1
            axes.vlines(order, rows["low"].astype(float), rows["high"].astype(float), color=colour, alpha=0.35)
            axes.scatter(order, rows["value"], color=colour, marker=marker, s=14, label=kind, zorder=3)
        axes.axhline(float(data["threshold"].iloc[0]), color="black", linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axes.get_legend_handles_labels()[0])
        shares = data["answer"].value_counts(normalize=True)
        verdict = ", ".join(f"{answer} {share:.0%}" for answer, share in shares.items())
        decided = f"decided in {data['decided'].sum()} by the 95% interval"
        usual = str(data["verdict"].iloc[0])
        finding = f"{data['question'].iloc[0]} {usual[0].upper()}{usual[1:]} by {data['first'].iloc[0]}"
        title_above(figure, finding, f"{verdict} of {len(data)} universes, {decided}")
    return figure


def save_multiverse(multiverse: Multiverse, into: Path, formats: Sequence[Format] = ()) -> None:
    """Write `multiverse.json`, and the figure if any universe has an answer."""
    text = json.dumps(rounded_all(multiverse.to_dict()), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(into / "multiverse.json", text.encode() + b"\n")
    if not (data := frame(multiverse)).empty:
        save_in(draw(shown := drawable(data)), into, "answer_by_convention", formats, shown)
