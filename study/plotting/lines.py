"""How cells drawn as lines are told apart: by depth, and by the other sizes and the setting where several have one depth."""

from __future__ import annotations

from typing import Any

import pandas as pd

from study.plotting.style import depth_styles

STROKES = ("-", "--", ":", "-.")
"""Of the lines of one depth, in order of width, heads and FFN, settings as they come."""


def lines(data: pd.DataFrame) -> pd.Series[str]:
    """The name of each row's line: its depth, and of the rest what tells cells of one depth in a panel apart."""
    names, shared = "depth " + data["depth"].astype(str), ["panel", "depth"]
    for column, word in (("width", "width "), ("heads", "heads "), ("ffn", "ffn "), ("setting", "")):
        several = data.groupby(shared)[column].transform("nunique") > 1
        names = names.where(~several, names + f", {word}" + data[column].astype(str))
        shared.append(column)
    return names


def line_styles(data: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """How each `line` looks: colour and marker by its depth, strokes by its rank among the lines of that depth."""
    found = {}
    shown = data.drop_duplicates("line").sort_values(["depth", "width", "heads", "ffn"], kind="stable")
    for depth, (colour, marker) in depth_styles(data["depth"]).items():
        for rank, line in enumerate(shown.loc[shown["depth"] == depth, "line"]):
            face = {"markerfacecolor": "white"} if rank % 2 else {}
            stroke = STROKES[rank % len(STROKES)]
            found[line] = {"color": colour, "marker": marker, "linestyle": stroke, "markersize": 5, "linewidth": 1.4, **face}
    return found
