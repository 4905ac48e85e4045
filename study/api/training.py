"""One run as a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from study.base.machine import cores
from study.config.run_config import RunConfig
from study.data.prepared import data_fingerprint
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from study.training.run import train as train_run
from study.training.stopping import StopSignal


def train(config: RunConfig, folder: Path | str = "results/python", **execution: Any) -> RunRecord:
    """Train a run in this process, or resume it, and return its record; a run that has its record is not trained again.

    The run is kept in `folder` as that of a sweep. `execution` are fields of study.training.execution.Execution; by default a
    run trains on CUDA if it is available, else on all cores. Raises InputError for bad input, and KeyboardInterrupt if the run
    was stopped, after it has saved.
    """
    sweep = SweepFolder(Path(folder))
    run = sweep.run(config.fingerprint(data_fingerprint(config.data)))
    usual: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu", "threads": cores()}
    train_run(config, run, sweep.name, Execution(**(usual | execution)), StopSignal())
    record = run.record()
    if record is None:
        raise KeyboardInterrupt(f"{run.path} was stopped, or another process trains it")
    return record
