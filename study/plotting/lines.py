"""How cells drawn as lines are told apart: by the first size in which they differ, then by the others and the setting."""

from __future__ import annotations

from typing import Any

import pandas as pd

from study.plotting.style import size_styles

STROKES = ("-", "--", ":", "-.")
"""Of the lines of one colour, in order of width, heads and FFN, settings as they come."""

_SIZES = ["depth", "width", "heads", "ffn"]


def lines(data: pd.DataFrame) -> pd.Series[str]:
    """The name of each row's line: its depth, and of the rest what tells cells of one depth in a panel apart."""
    names, shared = "depth " + data["depth"].astype(str), ["panel", "depth"]
    for column, word in (("width", "width "), ("heads", "heads "), ("ffn", "ffn "), ("setting", "")):
        several = data.groupby(shared)[column].transform("nunique") > 1
        names = names.where(~several, names + f", {word}" + data[column].astype(str))
        shared.append(column)
    return names


def line_styles(data: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """How each `line` looks: colour and marker by the first size in which lines differ, strokes by its rank among the alike."""
    found = {}
    shown = data.drop_duplicates("line").sort_values(_SIZES, kind="stable")
    coloured = next((size for size in _SIZES if data[size].nunique() > 1), "depth")
    for size, (colour, marker) in size_styles(data[coloured]).items():
        for rank, line in enumerate(shown.loc[shown[coloured] == size, "line"]):
            face = {"markerfacecolor": "white"} if rank % 2 else {}
            stroke = STROKES[rank % len(STROKES)]
            found[line] = {"color": colour, "marker": marker, "linestyle": stroke, "markersize": 5, "linewidth": 1.4, **face}
    return found
