"""Encoder parameters added by doubling the depth, width, FFN or heads."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from study.base.grouping import grouped
from study.base.quantities import compact
from study.config.run_config import describe_knobs
from study.counting.architecture import Architecture, not_of_berts_kind
from study.counting.named_models import named
from study.counting.parameters import parameters, what_doubling_adds
from study.evidence.evidence import Evidence
from study.plotting.style import panels, theme, title_above


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per doubled size, for the `shapes_shown`, counted as `parameters_encoder`."""
    rows = []
    for name, architecture in shapes_shown(evidence).items():
        before = parameters(architecture).parameters_encoder
        for size, added in what_doubling_adds(architecture).items():
            rows.append({"shape": name, "size": size, "added": added, "before": before, "share": added / before})
    return pd.DataFrame(rows)


def shapes_shown(evidence: Evidence) -> dict[str, Architecture]:
    """BERT-Base and the sweep's smallest and largest shapes, by name; one that is both comes once.

    The name gives differences from BERT, such as shared layers, whose doubling costs nothing. Of shapes of one size, such as
    those that differ in heads alone, the first is shown.
    """
    shown = {"BERT-Base": named("BERT-Base")}
    if evidence.cells:
        smallest, largest = (end(evidence.cells, key=lambda cell: cell.parameters_encoder) for end in (min, max))
        shown |= {"smallest": smallest.architecture, "largest": largest.architecture}
    return {_name(names, one): one for one, names in grouped(shown, shown.__getitem__).items()}


def _name(ends: Sequence[str], architecture: Architecture) -> str:
    unlike = describe_knobs({f"architecture.{field}": value for field, value in not_of_berts_kind(architecture).items()})
    return ", ".join(filter(None, (" and ".join(ends), architecture.shape_name, unlike)))


def draw(data: pd.DataFrame) -> Figure:
    """One panel per shape, bars as shares of its encoder, labelled with counts."""
    with theme():
        names = data["shape"].unique()
        before = data.groupby("shape")["before"].first()
        titles = [f"{name}\n({compact(before[name])} parameters_encoder)" for name in names]
        figure, axes = panels(titles, "parameters added, share of parameters_encoder", "size doubled", 3, 2.0)
        colours = sns.color_palette("colorblind", data["size"].nunique()).as_hex()
        for panel, name in zip(axes, names, strict=True):
            rows = data[data["shape"] == name]
            bars = panel.barh(rows["size"], rows["share"], color=colours)
            panel.bar_label(bars, [f"+{compact(added)}" if added else "0" for added in rows["added"]], padding=4)
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            panel.grid(visible=False, axis="y")
        axes[0].invert_yaxis()
        axes[0].set_xlim(0, data["share"].max() * 1.5)
        most = data.loc[data.groupby("shape")["added"].idxmax(), "size"].unique()
        finding = f"Doubling the {most[0]} adds most to every encoder" if len(most) == 1 else "What doubling one size adds"
        title_above(figure, finding, "width takes the FFN along; exact counts")
    return figure
