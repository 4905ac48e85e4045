"""The cost of coordination: a sweep of runs that end at once, with real folders and records."""

from __future__ import annotations

import tempfile
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
from study.benching.processes import failures_reported, in_own_process
from study.benching.results import Report, measurement
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
"""The size of the sweep."""

PACKED_SECONDS = 2.0
"""The target for reading the packed sweep's ledger."""

DATA = "simulated"
RUNS_PER_CELL = 4
DEPTHS = 20
LINGER_SECONDS = 0.02
"""How long the last runs wait for others."""


class InstantExecutor:
    """Keeps its slots full: ends the oldest run, with a record, once no slot is free or no run arrives."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._running: deque[tuple[Future[int], RunJob]] = deque()
        self._stopped = threading.Event()
        threading.Thread(target=self._end_runs, daemon=True).start()

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self.slots - len(self._running)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Start a run that trains nothing."""
        (job,) = jobs
        assert isinstance(job, RunJob)
        future: Future[int] = Future()
        self._running.append((future, job))
        return future

    def interrupt(self) -> None:
        """Stop ending runs."""
        self._stopped.set()

    def kill(self) -> None:
        """Stop ending runs."""
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
class Costs:
    """Wall and CPU time of a simulated sweep, including the writing of records."""

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
    """Return a sweep of about `runs` runs: cells that need three of four learning rates and a second seed."""
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
    """Return the record of an untrained run; the second of four rates is the best."""
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


def simulate(folder: SweepFolder, runs: int, slots: int) -> Costs:
    """Coordinate a sweep with a launch's display, restart its coordinator, and pack it."""
    values = simulated_values(runs)
    began = time.perf_counter()
    spec = CellSweep.parse(values)
    coordinator = Coordinator(folder, RunProposer(Plan(spec), values, folder, {spec.data.tokenizer.variant: DATA}))
    planned, cpu = time.perf_counter(), time.process_time()
    display = Display(Console(quiet=True), coordinator.proposer)
    executor = InstantExecutor(slots)
    with display.bars:
        coordinator.run(executor, display.refresh)
    executor.kill()
    ended, cpu, cpu_again = time.perf_counter(), time.process_time() - cpu, time.process_time()
    again = Coordinator(folder, RunProposer(Plan(spec), values, folder, {spec.data.tokenizer.variant: DATA}))
    wanted = again.proposer.wanted((), slots)
    restarted, cpu_again = time.perf_counter(), time.process_time() - cpu_again
    done = len(coordinator.progress.ended)
    assert done == len(again.progress.ended)
    assert not wanted
    memory = peak_resident_bytes()
    pack(folder)
    packed = SweepFolder(folder.path.rename(f"{folder.path}-packed"))  # the new path has no cached rows
    opened = time.perf_counter()
    assert len(packed.ledger()) == done
    return Costs(
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


def lower(one: Costs, other: Costs) -> Costs:
    """Return the lower of each cost, since other programs only add to it."""
    return Costs(**{each.name: min(getattr(one, each.name), getattr(other, each.name)) for each in fields(Costs)})


def rows_of(costs: Costs) -> list[dict[str, Any]]:
    """Return the costs as rows."""
    each, restart = f"each of {costs.runs:,} runs on {costs.slots:,} slots", "a restart with their records"
    return [
        measurement("planning", costs.plan_seconds, "s"),
        measurement(each, costs.seconds_per_run, "s"),
        measurement(f"{each}, CPU time", costs.cpu_seconds_per_run, "s"),
        measurement(restart, costs.restart_seconds, "s"),
        measurement(f"{restart}, CPU time", costs.cpu_restart_seconds, "s"),
        measurement(f"the ledger of {costs.runs:,} packed runs", costs.packed_ledger_seconds, "s", at_most=PACKED_SECONDS),
        measurement("the most memory of all this", costs.peak_memory_bytes, "bytes"),
    ]


def measure_coordinating(report: Report) -> None:
    """Report the lower costs of two simulations, and the peak memory of their own process."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder, failures_reported("coordinating", report):
        for row in rows_of(in_own_process(simulate_twice, Path(folder))):
            report(row)


def simulate_twice(folder: Path) -> Costs:
    """Return the lower costs of two simulations in `folder`."""
    first, second = (simulate(SweepFolder(folder / name / "simulated"), RUNS, SLOTS) for name in ("first", "second"))
    return lower(first, second)
