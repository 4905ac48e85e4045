"""The named models' parameters, by group of components."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from study.base.quantities import compact
from study.counting.named_models import NamedModel
from study.counting.parameters import Component, parameters
from study.plotting.style import legend_below, style, theme, title_above, wide_figure

GROUPS = ("token embeddings", "other tables", "attention", "FFN", "projections and norms", "MLM head")
"""The groups of components in stacking order, from the input to the output."""

GAP = 0.5
"""Space between two families, in bars."""

SHOWN_OF_MINIATURES = ("bert-tiny", "bert-mini", "bert-small", "bert-medium")
"""The miniatures with names of their own; the other shapes of that grid would fill a third of the figure."""


def shown(models: Sequence[NamedModel]) -> list[NamedModel]:
    """One model per architecture, and of BERT's miniatures only the named ones."""
    wanted = [model for model in models if model.family != "BERT miniature" or model.short_name in SHOWN_OF_MINIATURES]
    first = {model.architecture: model for model in reversed(wanted)}
    return [model for model in wanted if first[model.architecture] is model]


def frame(models: Sequence[NamedModel]) -> pd.DataFrame:
    """One row per model and group: its parameters, and their share of `parameters` (the MLM model)."""
    rows = []
    for model in models:
        count = parameters(model.architecture)
        counts = dict.fromkeys(GROUPS, 0)
        for component in count.components:
            counts[group_of(component)] += component.count
        same = {"model": model.short_name, "family": model.family, "parameters": count.parameters}
        rows += [same | {"group": group, "count": n, "share": n / count.parameters} for group, n in counts.items()]
    return pd.DataFrame(rows)


def group_of(component: Component) -> str:
    """Return the group of a component."""
    if component.part == "head":
        return "MLM head"
    if component.name == "token embeddings":
        return "token embeddings"
    if component.part == "tables":
        return "other tables"
    return {"attention": "attention", "ffn": "FFN"}.get(component.name, "projections and norms")


def draw(data: pd.DataFrame) -> Figure:
    """One bar per model in the table's order, families kept together; totals behind the names."""
    columns = min(2, style().columns)
    sizes = data.groupby("family", sort=False)["model"].nunique() + GAP
    start = sizes.cumsum() - sizes
    column_of = (start * columns / sizes.sum()).astype(int)
    room = float(sizes.groupby(column_of).sum().max())
    with theme():
        figure = wide_figure(0.16 * room + 0.9)
        axes: list[Axes] = figure.subplots(1, columns, squeeze=False).ravel().tolist()
        colours = dict(zip(GROUPS, sns.color_palette("colorblind", len(GROUPS)).as_hex(), strict=True))
        for column, panel in enumerate(axes):
            _bars(panel, data[data["family"].map(column_of) == column], colours, room)
        key = [Patch(color=colour, label=group) for group, colour in colours.items()]
        legend_below(figure, key, len(GROUPS))
        title_above(figure, "Where the parameters are", "shares of the MLM model, tied unless its authors untie it")
    return figure


def _bars(panel: Axes, data: pd.DataFrame, colours: dict[str, str], room: float) -> None:
    """Draw bars from the top down, half a bar of space between families; all columns have height `room`."""
    models = data.drop_duplicates("model").reset_index(drop=True)
    y = models.index + GAP * ((models["family"] != models["family"].shift()).cumsum() - 1)
    left = pd.Series(0.0, index=models.index)
    for group, colour in colours.items():
        share = data[data["group"] == group]["share"].reset_index(drop=True)
        panel.barh(y, share, left=left, color=colour, height=0.84, linewidth=0)
        left += share
    labels = [f"{name}  {compact(size)}" for name, size in zip(models["model"], models["parameters"], strict=True)]
    panel.set_yticks(y, labels, fontsize="x-small")
    panel.set_ylim(room - GAP, -0.5)
    panel.set_xlim(0, 1)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panel.grid(visible=False, axis="y")
    for spine in panel.spines.values():
        spine.set_visible(False)
