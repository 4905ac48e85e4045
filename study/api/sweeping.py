"""A run, or a sweep, as a call."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from study.base.machine import cores, rest_at_barriers
from study.config.run_config import RunConfig
from study.config.sweep import CellSweep, GoalSweep, SearchSweep, parse_sweep
from study.config.sweep_files import read_sweep
from study.data.prepared import data_fingerprint
from study.report.answer import IMAGES, Answer, report
from study.running.launch import folder_of, launched
from study.running.score_launch import score_sweep
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder


@dataclass(frozen=True)
class Sweep:
    """A sweep: its checked form, and the plain values that its sweep.yaml keeps."""

    spec: CellSweep | SearchSweep | GoalSweep
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path | str, *overrides: str) -> Self:
        """Return the sweep of a file, with overrides such as "data.corpus=my_text.txt".

        Raises InputError with every mistake.
        """
        return cls(*read_sweep(Path(path), overrides))

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Return the sweep of plain values, as a file holds them; raises InputError with every mistake."""
        return cls(parse_sweep(values), copy.deepcopy(dict(values)))


def launch(sweep: Sweep, results: Path | str = "results", *, wandb: bool = False, **resources: Any) -> Answer:
    """Train and score what a sweep still needs, and return its answer, as `study launch` does.

    `resources` are the options of the command: on, device, devices, slots_per_device and others. Raises InputError for bad
    input before anything is trained, and KeyboardInterrupt when stopped, after the runs have saved.
    """
    spec, console = sweep.spec, Console(stderr=True)
    on, folder = spec.resources.overridden(**resources), folder_of(spec, Path(results))
    with launched(spec, dict(sweep.values), Path(results), on, console, wandb):
        if spec.downstream is not None:
            score_sweep(folder, spec.downstream, on, console)
        return report(folder, formats=IMAGES if wandb else ())


def train(config: RunConfig, folder: Path | str = "results/python", **execution: Any) -> RunRecord:
    """Train a run in this process, or resume it, and return its record; a run with a record is not trained again.

    `execution` are fields of study.training.execution.Execution; the default is CUDA if available, else all cores. Raises
    InputError for bad input, and KeyboardInterrupt if the run was stopped, after it has saved.
    """
    rest_at_barriers()
    import torch

    from study.training.attempts import StopSignal
    from study.training.execution import Execution
    from study.training.run import train as train_run

    sweep = SweepFolder(Path(folder))
    run = sweep.run(config.fingerprint(data_fingerprint(config.data)))
    usual: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu", "threads": cores()}
    train_run(config, run, sweep.name, Execution(**(usual | execution)), StopSignal())
    record = run.record()
    if record is None:
        raise KeyboardInterrupt(f"{run.path} was stopped, or another process trains it")
    return record
