"""The curves of a sweep's runs: any logged metric over steps, tokens, FLOPs or time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from study.base.errors import UNREADABLE
from study.dashboard.library import Library

AXES = {
    "trainer/tokens": "training tokens",
    "trainer/step": "optimiser steps",
    "trainer/flops": "training FLOPs (train_flops)",
}
"""The metrics that serve as horizontal axes."""

WORDS = {
    "train/loss": "training loss (nats per masked token; with a teacher, what is learnt)",
    "val/loss": "validation loss (nats per masked token)",
    "val/loss_standard_error": "standard error of the validation loss (nats)",
    "val/order_gain": "order gain (nats)",
    "val/order_gain_standard_error": "standard error of the order gain (nats)",
    "val/accuracy": "validation accuracy (share of masked tokens)",
    "train/gradient_norm": "gradient norm, before clipping",
    "recipe/learning_rate": "learning rate",
    "perf/tokens_per_second": "speed (tokens/s)",
    "perf/mfu": "MFU (share of the device's peak)",
}
"""Axis labels of the metrics that the workbench logs; others are named as logged."""

MOST_POINTS, FEWEST_POINTS, POINTS_OF_ALL = 400, 40, 32_000
"""The most points of a run, spread evenly and including the last: fewer where many runs share a figure."""

MOST_CURVES = 3000
"""The most runs whose curves are sent."""


def several(words: str) -> list[str]:
    """Parts that commas divide; a doubled comma is one of a part."""
    return [part.replace("\0", ",") for part in words.replace(",,", "\0").split(",") if part]


def curves(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """The curve of each run of a sweep that logged a `metric`, of `runs` or of all, and the metrics that there are.

    Without a metric it is the validation loss, or the training loss if the sweep is live or no run was validated twice, or else
    the first. The last row of a step counts.
    """
    shot, ids = library.snapshot(asked.get("sweep", "")), frozenset(several(asked.get("runs", "")))
    metric, x = asked.get("metric", ""), asked.get("x", "")
    runs = [run for name, run in shot.runs.items() if not ids or name in ids][:MOST_CURVES]
    logged: dict[str, dict[str, NDArray[np.float64]]] = {}
    problems: list[str] = []
    for run in runs:
        try:
            logged[run.run_id] = library.curves(run)
        except UNREADABLE as error:
            problems.append(str(error))
    metrics = sorted({name for columns in logged.values() for name in columns if name not in AXES}, key=_usual)
    x = x if x in AXES else next(iter(AXES))
    most = min(MOST_POINTS, max(FEWEST_POINTS, POINTS_OF_ALL // max(1, len(runs))))
    if metric not in metrics:
        validated = (_curve(columns, x, "val/loss", most) for columns in logged.values())
        several_times = any(curve is not None and len(curve["x"]) > 1 for curve in validated)
        usual = "val/loss" if several_times and not shot.live else "train/loss"
        metric = usual if usual in metrics else next(iter(metrics), "")
    return {
        "metrics": {name: WORDS.get(name, name) for name in metrics},
        "axes": AXES,
        "metric": metric,
        "x": x,
        "curves": {name: curve for name, columns in logged.items() if (curve := _curve(columns, x, metric, most)) is not None},
        "problems": problems,
        "left_out": max(0, len(ids or shot.runs) - MOST_CURVES),
    }


def _usual(metric: str) -> tuple[int, str]:
    """The known metrics first, in their order."""
    known = list(WORDS)
    return known.index(metric) if metric in known else len(known), metric


def _curve(columns: dict[str, NDArray[np.float64]], x: str, metric: str, most: int) -> dict[str, list[float]] | None:
    if metric not in columns or x not in columns:
        return None
    there = np.isfinite(columns[metric]) & np.isfinite(columns[x])
    at, values = columns[x][there], columns[metric][there]
    if not len(at):
        return None
    last = np.append(np.diff(at) != 0, True)
    at, values = at[last], values[last]
    kept = np.unique(np.linspace(0, len(at) - 1, min(len(at), most)).round().astype(int))
    return {"x": at[kept].tolist(), "y": values[kept].tolist()}
