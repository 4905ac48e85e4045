"""Learning curves of chosen runs, in a browser."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from study.base.errors import UNREADABLE
from study.config.run_config import describe_run
from study.plotting.explorer import counted, log_ticks
from study.plotting.style import COUNTS, LOSS, ORDER_GAIN
from study.store.sweep_folder import SweepFolder

AXES = {"tokens": "training tokens", "train_flops": COUNTS["train_flops"]}

LOSSES = {
    "val/loss": LOSS,
    "val/order_gain": ORDER_GAIN,
    "train/loss": "training loss (nats per masked token; with a teacher, what is learnt)",
}

MOST_RUNS = 20
"""The most lines whose colours can be read."""

MOST_POINTS = 300
"""The most points per line, spread evenly and including the last."""


def frame(
    runs: pd.DataFrame, folders: Mapping[str, SweepFolder], loss: str = "val/loss"
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Up to MOST_POINTS rows per run, and why curves are missing.

    A row is a logged `loss`: the `run` in words, `tokens`, `train_flops`, `loss_nats`. `runs` has the `sweep` (a name in
    `folders`), `run`, `shape`, `setting`, `learning rate` and `seed` of each. The last log of a step counts.
    """
    curves, damaged = [], {}
    for run in runs.to_dict("records"):
        try:
            curves.append(_curve(run, folders[run["sweep"]], loss))
        except UNREADABLE as error:
            damaged[run["run"]] = str(error)
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(), damaged


def _curve(run: Mapping[Hashable, Any], folder: SweepFolder, loss: str) -> pd.DataFrame:
    here = folder.run(run["run"])
    trained = here if here.holds(here.metrics_file) else folder.home(run["run"])
    rows = [
        (row["trainer/tokens"], row["trainer/flops"], row[loss])
        for row in trained.metrics()
        if row.get(loss) is not None and row.get("trainer/tokens")
    ]
    curve = pd.DataFrame(rows, columns=[*AXES, "loss_nats"]).drop_duplicates("tokens", keep="last")
    kept = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), MOST_POINTS)).round().astype(int))
    words = describe_run(run["shape"], run.get("setting", ""), run["learning rate"], run["seed"])
    return curve.iloc[kept].assign(run=f"{run['run'][:6]} {words}")


def draw(data: pd.DataFrame, x: str = "tokens", loss: str = "val/loss") -> alt.Chart:
    """One line per run over tokens or FLOPs; a click on the legend isolates one.

    The legend keeps the data's order and cuts the end of long names.
    """
    chosen = alt.selection_point(fields=["run"], bind="legend")
    few = len(data) < 2 * MOST_POINTS
    legend = alt.Legend(orient="bottom", columns=1, labelLimit=420, symbolLimit=0)
    axis = counted(AXES[x], log_ticks(data[x]))
    chart: alt.Chart = (
        alt.Chart(data, width="container", height=380)
        .mark_line(point=few)
        .encode(
            x=alt.X(f"{x}:Q", title=AXES[x], scale=alt.Scale(type="log", nice=False, padding=20), axis=axis),
            y=alt.Y("loss_nats:Q", title=LOSSES[loss], scale=alt.Scale(zero=False)),
            color=alt.Color("run:N", title="run", sort=None, legend=legend, scale=alt.Scale(scheme="tableau20")),
            opacity=alt.condition(chosen, alt.value(1.0), alt.value(0.15)),
            tooltip=["run", alt.Tooltip("tokens:Q", format=",d"), alt.Tooltip("loss_nats:Q", format=".4f")],
        )
        .add_params(chosen)
    )
    return chart
