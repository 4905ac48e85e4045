"""What coordinating costs: a sweep of runs that end at once, on as many slots as asked for, with real folders and records."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from study.base.machine import peak_resident_bytes
from study.benching.apart import measure_apart
from study.benching.figures import Tell, figure
from study.config.run_config import RunConfig
from study.config.sweep import CellSweep
from study.executing.job import Job
from study.planning.plan import Plan
from study.running.coordinator import Coordinator
from study.running.display import Display
from study.running.run_proposer import RunJob, RunProposer
from study.store.packing import pack
from study.store.records import RunRecord, counts_of
from study.store.sweep_folder import SweepFolder

RUNS, SLOTS = 10_000, 1_000
"""The sweep whose figures are told."""

PACKED_SECONDS = 2.0
"""What the ledger of the sweep may take, once it is packed."""

DATA = "simulated"
RUNS_PER_CELL = 4
DEPTHS = 20
LINGER_SECONDS = 0.02
"""How long the last runs wait for others before they end."""


class InstantExecutor:
    """Slots that are kept full: the oldest run ends, with a record, as soon as no slot is free or no other run comes."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._running: deque[tuple[Future[int], RunJob]] = deque()
        self._stopped = threading.Event()
        threading.Thread(target=self._end_runs, daemon=True).start()

    @property
    def free(self) -> int:
        """How many more runs can be submitted now."""
        return self.slots - len(self._running)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Start a run, which trains nothing."""
        (job,) = jobs
        assert isinstance(job, RunJob)
        future: Future[int] = Future()
        self._running.append((future, job))
        return future

    def interrupt(self) -> None:
        """End no run any more."""
        self._stopped.set()

    def kill(self) -> None:
        """End no run any more."""
        self._stopped.set()

    def _end_runs(self) -> None:
        quiet_since = time.monotonic()
        while not self._stopped.is_set():
            if self._running and (not self.free or time.monotonic() - quiet_since > LINGER_SECONDS):
                future, job = self._running.popleft()
                job.folder.file_record(simulated_record(job.config, job.key))
                future.set_result(0)
                if not self.free:
                    quiet_since = time.monotonic()
            else:
                time.sleep(0.0005)


@dataclass(frozen=True)
class Figures:
    """What a simulated sweep took, wall and CPU time; the simulated runs' own records are in it."""

    runs: int
    slots: int
    plan_seconds: float
    seconds_per_run: float
    cpu_seconds_per_run: float
    restart_seconds: float
    cpu_restart_seconds: float
    packed_ledger_seconds: float
    peak_memory_bytes: int


def simulated_values(runs: int) -> dict[str, Any]:
    """A sweep of about so many runs: cells that need three learning rates of four and a second seed, over depths and widths."""
    cells = -(-runs // RUNS_PER_CELL)
    depths = min(DEPTHS, cells)
    widths = [64 * (i + 1) for i in range(-(-cells // depths))]
    return {
        "name": "simulated",
        "question": "What does coordinating cost?",
        "base": {"recipe": {"batch_tokens": 1024}},
        "shapes": {"grid": {"depth": list(range(1, depths + 1)), "width": widths}},
        "budgets": {"steps": [1000]},
        "tune": {"recipe.learning_rate": {"low": 1e-3, "high": 8e-3, "trials": 4}},
        "seeds": 2,
    }


def simulated_record(config: RunConfig, run_id: str) -> RunRecord:
    """The record of a run that nobody trained; the second of four rates is the best."""
    return RunRecord(
        run_id=run_id,
        sweep="simulated",
        state="COMPLETED",
        config=config,
        data_fingerprint=DATA,
        steps=config.steps,
        tokens=config.tokens,
        loss_nats=5 + abs(config.recipe.learning_rate - 2e-3),
        order_gain_nats=1.0,
        order_gain_standard_error_nats=0.01,
        attempts=1,
        started_at="2026-01-01T00:00:00+00:00",
        finished_at="2026-01-01T00:01:00+00:00",
        **counts_of(config, config.steps),
    )


def simulate(folder: SweepFolder, runs: int, slots: int) -> Figures:
    """Coordinate a sweep from first run to last with the display of a launch, start its coordinator anew, and pack it."""
    values = simulated_values(runs)
    began = time.perf_counter()
    spec = CellSweep.parse(values)
    coordinator = Coordinator(folder, RunProposer(Plan(spec), values, folder, DATA))
    planned, cpu = time.perf_counter(), time.process_time()
    display = Display(Console(quiet=True), coordinator.proposer)
    executor = InstantExecutor(slots)
    with display.bars:
        coordinator.run(executor, display.refresh)
    executor.kill()
    ended, cpu, cpu_again = time.perf_counter(), time.process_time() - cpu, time.process_time()
    again = Coordinator(folder, RunProposer(Plan(spec), values, folder, DATA))
    wanted = again.proposer.wanted((), slots)
    restarted, cpu_again = time.perf_counter(), time.process_time() - cpu_again
    done = len(coordinator.progress.ended)
    assert done == len(again.progress.ended)
    assert not wanted
    memory = peak_resident_bytes()
    pack(folder)
    packed = SweepFolder(folder.path.rename(f"{folder.path}-packed"))  # where nothing of it is in memory yet
    opened = time.perf_counter()
    assert len(packed.ledger()) == done
    return Figures(
        runs=done,
        slots=slots,
        plan_seconds=planned - began,
        seconds_per_run=(ended - planned) / done,
        cpu_seconds_per_run=cpu / done,
        restart_seconds=restarted - ended,
        cpu_restart_seconds=cpu_again,
        packed_ledger_seconds=time.perf_counter() - opened,
        peak_memory_bytes=memory,
    )


def lower(one: Figures, other: Figures) -> Figures:
    """The lower of two measurements of one sweep, figure by figure: what else the machine does only ever adds to one."""
    return Figures(**{each.name: min(getattr(one, each.name), getattr(other, each.name)) for each in fields(Figures)})


def rows_of(found: Figures) -> list[dict[str, Any]]:
    """The figures of a simulated sweep as rows."""
    each, restart = f"each of {found.runs:,} runs on {found.slots:,} slots", "a restart with their records"
    return [
        figure("planning", found.plan_seconds, "s"),
        figure(each, found.seconds_per_run, "s"),
        figure(f"{each}, CPU time", found.cpu_seconds_per_run, "s"),
        figure(restart, found.restart_seconds, "s"),
        figure(f"{restart}, CPU time", found.cpu_restart_seconds, "s"),
        figure(f"the ledger of {found.runs:,} packed runs", found.packed_ledger_seconds, "s", at_most=PACKED_SECONDS),
        figure("the most memory of all this", found.peak_memory_bytes, "bytes"),
    ]


def measure_coordinating(tell: Tell) -> None:
    """Time a simulated sweep twice, in a process of its own, whose memory is in the figures."""
    measure_apart("study.benching.coordinating", "coordinating", tell)


if __name__ == "__main__":
    places = (SweepFolder(Path(sys.argv[1]) / name / "simulated") for name in ("first", "second"))
    first, second = (simulate(place, RUNS, SLOTS) for place in places)
    sys.stdout.write(json.dumps(rows_of(lower(first, second))))
