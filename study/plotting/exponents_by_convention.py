"""The exponent of N* in every universe of the multiverse, in order, coloured by the approach."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.fitting.multiverse import Multiverse
from study.plotting.style import panels, series_styles, theme


def frame(found: Multiverse) -> pd.DataFrame:
    """One row a universe that has an answer, from the lowest exponent on."""
    rows = []
    for universe in found.answered:
        low, high = universe.interval or (None, None)
        rows.append({**universe.choices, "exponent": universe.exponent, "low": low, "high": high, "status": universe.status})
    return pd.DataFrame(rows).sort_values("exponent", kind="stable", ignore_index=True) if rows else pd.DataFrame()


def draw(data: pd.DataFrame) -> Figure:
    """A point a universe with its interval, and the line at 1/2 where parameters and tokens grow alike."""
    with theme():
        figure, (axes,) = panels([""], "universe, by exponent", "exponent of N* in C", size=(8.5, 4.8))
        kinds = data["approach"] + data["floor"].map(lambda floor: f", {floor}" if isinstance(floor, str) else "")
        for kind, (colour, marker) in series_styles(kinds).items():
            rows = data[kinds == kind]
            axes.vlines(rows.index, rows["low"].astype(float), rows["high"].astype(float), color=colour, alpha=0.35)
            axes.scatter(rows.index, rows["exponent"], color=colour, marker=marker, s=22, label=kind, zorder=3)
        axes.axhline(0.5, color="black", linewidth=1)
        axes.legend()
        figure.suptitle(f"{(data['exponent'] > 0.5).mean():.0%} of {len(data)} universes: parameters faster than tokens")
    return figure
