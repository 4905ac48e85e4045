"""How cells drawn as lines are told apart: by depth, and by the other sizes where several have one depth."""

from __future__ import annotations

from typing import Any

import pandas as pd

from study.plotting.style import depth_styles

STROKES = ("-", "--", ":", "-.")
"""Of the lines of one depth, in order of width, heads and FFN."""


def lines(data: pd.DataFrame) -> pd.Series[str]:
    """The name of each row's line: its depth, and of the other sizes those that tell cells of one depth in a panel apart."""
    names, shared = "depth " + data["depth"].astype(str), ["panel", "depth"]
    for size in ("width", "heads", "ffn"):
        several = data.groupby(shared)[size].transform("nunique") > 1
        names = names.where(~several, names + f", {size} " + data[size].astype(str))
        shared.append(size)
    return names


def line_styles(data: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """How each `line` looks: colour and marker by its depth, strokes by its rank among the lines of that depth."""
    found = {}
    shown = data.drop_duplicates("line").sort_values(["depth", "width", "heads", "ffn"])
    for depth, (colour, marker) in depth_styles(data["depth"]).items():
        for rank, line in enumerate(shown.loc[shown["depth"] == depth, "line"]):
            face = {"markerfacecolor": "white"} if rank % 2 else {}
            stroke = STROKES[rank % len(STROKES)]
            found[line] = {"color": colour, "marker": marker, "linestyle": stroke, "markersize": 5, "linewidth": 1.4, **face}
    return found
