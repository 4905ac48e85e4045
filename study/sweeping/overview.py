"""Sweeps side by side, and the runs of one, as tables for whoever looks at them elsewhere than on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from study.errors import InputError
from study.folders import SweepFolder
from study.sweeping.status import RunStatus, SweepStatus, status
from study.sweeping.tables import duration, silence


def overview(folders: Mapping[str, SweepFolder]) -> pd.DataFrame:
    """One row a sweep by the name that it has in `folders`: what it asks, where its runs are, and what they spent.

    `problem` says why a sweep cannot be read, and is empty where it can.
    """
    return pd.DataFrame([{"sweep": name, **_row(folder)} for name, folder in folders.items()])


def _row(folder: SweepFolder) -> dict[str, Any]:
    try:
        return {"question": folder.sweep().get("question"), **_told(status(folder)), "problem": ""}
    except InputError as error:
        return {"launched": "", "problem": str(error)}


def _told(state: SweepStatus) -> dict[str, Any]:
    counts = ", ".join(f"{count} {name.lower()}" for name, count in state.counts.items())
    return {
        "runs": counts or "none has begun",
        "launched": "now" if state.coordinator else "",
        "left": "" if state.seconds_left is None else duration(state.seconds_left),
        "spent (train_flops)": f"{state.spent_flops:.3g}",
    }


def runs_table(state: SweepStatus) -> pd.DataFrame:
    """One row a run of a sweep as `study status` tells it, in its order; columns that are empty for all are left out."""
    table = pd.DataFrame([_run(run) for run in state.runs]) if state.runs else pd.DataFrame({"run": []})
    return table[[name for name in table if name == "run" or table[name].ne("").any()]]


def _run(run: RunStatus) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "shape": run.shape,
        "setting": run.setting,
        "state": run.state,
        "learning rate": run.learning_rate,
        "seed": run.seed,
        "tokens": f"{run.target_tokens:,}",
        "done": f"{run.tokens / run.target_tokens:.0%}",
        "loss (nats)": "" if run.loss_nats is None else f"{run.loss_nats:.4f}",
        "tokens/s": "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
        "MFU": "" if run.mfu is None else f"{run.mfu:.1%}",
        "left": "" if run.seconds_left is None else duration(run.seconds_left),
        "note": run.reason or silence(run.signs) or "",
    }
