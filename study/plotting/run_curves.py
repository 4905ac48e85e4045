"""Learning curves of chosen runs, to hover over in a browser."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import altair as alt
import pandas as pd

from study.config import run_words
from study.folders import SweepFolder
from study.plotting.style import FLOPS, LOSS

AXES = {"tokens": "training tokens", "train_flops": FLOPS}

LOSSES = {"val/loss": LOSS, "train/loss": "training loss (nats per masked token, since the row before)"}

MOST_RUNS = 40
"""More lines than these tell nothing."""


def frame(runs: pd.DataFrame, folders: Mapping[str, SweepFolder], loss: str = "val/loss") -> pd.DataFrame:
    """One row a logged `loss`: the `run` in words, `tokens`, `train_flops`, `loss_nats`.

    `runs` tells of each its `sweep`, which `folders` has, `run`, `shape`, `setting`, `learning rate` and `seed`. A step logged
    twice counts as logged last.
    """
    rows = [
        {"run": _name(run), "tokens": row["trainer/tokens"], "train_flops": row["trainer/flops"], "loss_nats": row[loss]}
        for run in runs.to_dict("records")
        for row in folders[run["sweep"]].home(run["run"]).metrics()
        if row.get(loss) is not None and row.get("trainer/tokens")
    ]
    table = pd.DataFrame(rows, columns=["run", *AXES, "loss_nats"])
    return table.drop_duplicates(["run", "tokens"], keep="last", ignore_index=True)


def _name(run: Mapping[Hashable, Any]) -> str:
    words = run_words(run["shape"], run.get("setting", ""), run["learning rate"], run["seed"])
    return f"{words} ({run['run'][:6]})"


def draw(data: pd.DataFrame, x: str = "tokens", loss: str = "val/loss") -> alt.Chart:
    """A line a run over tokens or FLOPs; a click on the legend leaves one alone."""
    chosen = alt.selection_point(fields=["run"], bind="legend")
    few = len(data) < 1000
    chart: alt.Chart = (
        alt.Chart(data, width="container", height=380)
        .mark_line(point=few)
        .encode(
            x=alt.X(f"{x}:Q", title=AXES[x], scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format="~s")),
            y=alt.Y("loss_nats:Q", title=LOSSES[loss], scale=alt.Scale(zero=False)),
            color=alt.Color("run:N", title="run", legend=alt.Legend(labelLimit=420)),
            opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.15)),
            tooltip=["run", alt.Tooltip("tokens:Q", format=",d"), alt.Tooltip("loss_nats:Q", format=".4f")],
        )
        .add_params(chosen)
    )
    return chart
