"""Names and colours of cells in every figure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from study.counting.architecture import SIZES
from study.evidence.cells import CellResult, run_ids_in, shorten_run_ids
from study.plotting.style import MARKERS, series_styles, size_styles

STROKES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
"""The strokes of lines of one colour, in order of width, heads, FFN and variant."""


def of_cell(cell: CellResult) -> dict[str, object]:
    """Return a cell's sizes and variant, as columns."""
    return dict(zip(SIZES, cell.architecture.sizes, strict=True)) | {"setting": cell.setting}


def lines(data: pd.DataFrame, among: Sequence[str] = ("panel", "depth"), without: Collection[str] = ()) -> pd.Series[str]:
    """Each row's line name: its depth, and the sizes that differ between rows that agree in the columns `among`.

    The variant follows if there are several: in the panel, if that is in `among`. Run ids become words. `without`: columns that
    no line names.
    """
    names, shared = pd.Series("", data.index), ["every", *among]
    if "depth" not in without:
        names = "depth " + data["depth"].astype(str)
    data = data.assign(every="")
    for column, word in (("width", "width "), ("heads", "heads "), ("ffn", "ffn "), ("setting", "")):
        if column in without:
            continue
        groups = shared if column != "setting" else [name for name in shared if name in ("every", "panel")]
        several = (data.groupby(groups)[column].transform("nunique") > 1).groupby(names).transform("any")
        names = names.where(~several, (names + ", ").where(names != "", "") + word + data[column].astype(str))
        shared.append(column)
    ids = run_ids_in(names)
    return names.map(lambda name: shorten_run_ids(name, ids))


def line_styles(data: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the style of each `line`: coloured by the first size in which lines differ, or by variant if they share a shape.

    Within a colour the first line has its marker, the second the same with a white face, the third the next marker, and so on;
    strokes rotate too.
    """
    shown = data.drop_duplicates("line").sort_values([*SIZES], kind="stable")
    size = next((size for size in SIZES if data[size].nunique() > 1), None)
    shade = "setting" if size is None else size
    colours: Mapping[Any, tuple[str, str]] = series_styles(shown[shade]) if size is None else size_styles(shown[shade])
    styles = {}
    for number, (value, (colour, _)) in enumerate(colours.items()):
        for rank, line in enumerate(shown.loc[shown[shade] == value, "line"]):
            face = {"markerfacecolor": "white"} if rank % 2 else {}
            marker, stroke = MARKERS[(number + rank // 2) % len(MARKERS)], STROKES[rank % len(STROKES)]
            styles[line] = {"color": colour, "marker": marker, "linestyle": stroke, "markersize": 5, "linewidth": 1.4, **face}
    return styles


def line_key(styles: dict[str, dict[str, Any]], **other: Any) -> list[Line2D]:
    """Return the legend entries of the lines; `other` overrides their style."""
    return [Line2D([], [], label=line, **(style | other)) for line, style in styles.items()]
