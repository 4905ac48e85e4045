"""Sweeps side by side, and the runs of one, as tables for whoever looks at them elsewhere than on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from study.errors import UNREADABLE
from study.folders import SweepFolder
from study.sweeping.status import RunStatus, SweepStatus, status
from study.sweeping.tables import duration, silence


def overview(folders: Mapping[str, SweepFolder]) -> pd.DataFrame:
    """One row a sweep by the name that it has in `folders`: what it asks, where its runs are, and what they spent.

    `problem` says why a sweep cannot be read, and is empty where it can.
    """
    rows = [{"sweep": name, **_row(folder)} for name, folder in folders.items()]
    return pd.DataFrame(rows, columns=["sweep", "question", "runs", "launched", "left", "spent (train_flops)", "problem"])


def _row(folder: SweepFolder) -> dict[str, Any]:
    try:
        return {"question": folder.sweep().get("question"), **_told(status(folder)), "problem": ""}
    except UNREADABLE as error:
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
        "tokens/s": run.tokens_per_second,
        "MFU": run.mfu,
        "seconds left": run.seconds_left,
        "note": run.reason or silence(run.signs) or "",
    }
