"""Sweeps side by side, and the runs of one, as tables for whoever looks at them elsewhere than on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pandas as pd

from study.base.errors import UNREADABLE
from study.running.status import RunStatus, SweepStatus, status
from study.running.status_tables import note_on
from study.store.records import State
from study.store.sweep_folder import SweepFolder

STATES = tuple(state.lower() for state in (*get_args(State), "running", "waiting", "stopped"))
"""Where a run may be, each a column of how many runs of a sweep are there."""


def overview(folders: Mapping[str, SweepFolder]) -> pd.DataFrame:
    """One row a sweep by the name that it has in `folders`: what it asks, how many runs are where, and what they spent.

    `left` is in seconds. States that no run of a sweep is in are missing, but for `completed`. `problem` says why a sweep
    cannot be read, and is empty where it can.
    """
    rows = [{"sweep": name, **_row(folder)} for name, folder in folders.items()]
    return pd.DataFrame(rows, columns=["sweep", "question", *STATES, "launched", "left", "spent (train_flops)", "problem"])


def _row(folder: SweepFolder) -> dict[str, Any]:
    try:
        return {"question": folder.sweep().question, **_told(status(folder)), "problem": ""}
    except UNREADABLE as error:
        return {"problem": str(error)}


def _told(state: SweepStatus) -> dict[str, Any]:
    return {
        "completed": 0,
        **{name.lower(): count for name, count in state.counts.items()},
        "launched": "now" if state.coordinator else None,
        "left": state.seconds_left,
        "spent (train_flops)": state.spent_flops,
    }


def runs_table(state: SweepStatus) -> pd.DataFrame:
    """One row a run of a sweep as `study status` tells it, in its order; columns that are empty for all are left out."""
    table = pd.DataFrame([_run(run) for run in state.runs]) if state.runs else pd.DataFrame({"run": []})
    return table[[name for name in table if name == "run" or table[name].replace("", None).notna().any()]]


def _run(run: RunStatus) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "shape": run.shape,
        "setting": run.setting,
        "state": run.state,
        "learning rate": run.learning_rate,
        "seed": run.seed,
        "tokens": run.target_tokens,
        "done": run.done,
        "loss (nats)": run.loss_nats,
        "order gain (nats)": run.order_gain_nats,
        "tokens/s": run.tokens_per_second,
        "MFU": run.mfu,
        "seconds left": run.seconds_left,
        "note": note_on(run),
    }
