"""Time outside the steps of one run: starting, coordinating, tokenising and checkpoints."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, NamedTuple

import torch
import yaml
from rich.console import Console

from study.base.durable_files import is_there
from study.base.machine import cores, peak_resident_bytes
from study.benching.cases import Case
from study.benching.forward_passes import seconds_of
from study.benching.own_processes import RoundTime, failures_reported, in_own_process, start_forkserver
from study.benching.results import Report, failure, measurement
from study.benching.training_comparison import TrainingComparison, median_interval
from study.config.resources import Resources
from study.config.run_config import DataConfig, RunConfig, TokenizerConfig
from study.config.sweep import CellSweep
from study.config.sweep_files import read_sweep
from study.counting.architecture import Architecture
from study.counting.parameters import parameters
from study.data.corpora import read_corpus
from study.data.prepared import prepare
from study.data.token_files import write_tokens
from study.data.tokenizer_training import train_tokenizer
from study.data.tokenizing import first_characters
from study.executing.executors import LocalExecutor
from study.executing.processes import Job
from study.executing.slots import Slot
from study.planning.plan import Plan
from study.running.coordinator import Coordinator
from study.running.display import Display
from study.running.launch import launched
from study.running.run_proposer import RunJob, RunProposer
from study.store.packing import pack
from study.store.records import RunRecord, counts_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.checkpoints import DurableCheckpointIO

CALLS, STARTED, SWEPT = 7, 8, 100
"""Calls per command, sequential runs, and runs of the sweep."""

COMMANDS = ((("--help",), 0.3), (("params", "bert-base"), 0.5))
"""Commands and their targets in seconds."""

START_SECONDS, RUN_SECONDS = 1.0, 0.3
"""The targets for a start, and for a run of the sweep."""

CODE = "import sys; from study.cli import main; sys.argv[0] = 'study'; main()"


def measure_starting(report: Report) -> None:
    """Time the commands, a run's start, and a sweep of 100 one-step runs."""
    for arguments, limit in COMMANDS:
        command = [sys.executable, "-c", CODE, *arguments]
        run = partial(subprocess.run, command, check=True, capture_output=True)
        seconds = median(seconds_of(run) for _ in range(CALLS))
        report(measurement(f"study {' '.join(arguments)}, a whole process", seconds, "s", at_most=limit))
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder, failures_reported("starting runs", report):
        for row in in_own_process(run_rows, Path(folder)):
            report(row)


def write_sweep(folder: Path, seeds: int) -> Path:
    """Write a sweep of one-step runs and its corpus of 600 random documents into `folder`."""
    draw = random.Random(0)
    words = [a + b + c for a in "bdgklmnprst" for b in ("ab", "ek", "il", "om", "un") for c in "aei"]
    (folder / "corpus.txt").write_text("\n\n".join(" ".join(draw.choices(words, k=60)) for _ in range(600)))
    sweep = {
        "question": "How long do runs take that hardly train?",
        "expect": "Under 0.3 s each.",
        "data": {
            "corpus": str(folder / "corpus.txt"),
            "tokenizer": {"vocabulary": 200},
            "sequence_length": 32,
            "validation_sequences": 16,
        },
        "base": {"recipe": {"batch_tokens": 128, "precision": "fp32"}},
        "shapes": {"list": [{"depth": 2, "width": 128}]},
        "budgets": {"steps": [1]},
        "seeds": seeds,
    }
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return path


def run_rows(folder: Path) -> list[dict[str, Any]]:
    """Time submission to first step, and a one-step run within a sweep, with a new cache."""
    os.environ["STUDY_CACHE"] = str(folder / "cache")
    spec, values = read_sweep(write_sweep(folder, SWEPT))
    first, *later = _starts(Plan(spec).first_runs[0], folder / "single")
    started = perf_counter()
    with launched(spec, values, folder / "results", Resources(device="cpu"), Console(file=io.StringIO()), track=False):
        pass
    swept = (perf_counter() - started) / SWEPT
    return [
        measurement("the first run of a sweep, submission to first step", first, "s"),
        measurement("each later run, submission to first step", median(later), "s", at_most=START_SECONDS),
        measurement(f"a run of one step among {SWEPT} in a sweep", swept, "s", at_most=RUN_SECONDS),
    ]


def _starts(config: RunConfig, folder: Path) -> list[float]:
    """Time sequential runs from submission to the first row of metrics."""
    run_id = config.fingerprint(prepare(config.data).fingerprint)
    executor, seconds = LocalExecutor([Slot("cpu", (0,), cores())]), []
    for number in range(STARTED):
        run = RunFolder(folder / str(number) / run_id)
        started = perf_counter()
        future = executor.submit([RunJob(run, config, "bench")])
        while not (is_there(run.metrics_file) and run.metrics_file.stat().st_size) and not future.done():
            sleep(0.001)
        seconds.append(perf_counter() - started)
        status, record = future.result(timeout=300), run.record()
        if status or record is None or record.state != "COMPLETED":
            why = f"exit status {status}" if record is None else f"{record.state}, {record.reason}"
            raise RuntimeError(f"a run ended with {why}: {run.log_file.read_text()[-500:]}")
    return seconds


RUNS, SLOTS = 10_000, 1_000
"""The size of the sweep."""

PACKED_SECONDS = 2.0
"""The target for opening the packed sweep, whose ledger is written."""

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

    def end(self, job: RunJob) -> None:
        """File the record of a run."""
        job.folder.file_record(simulated_record(job.config, job.key))

    def _end_runs(self) -> None:
        quiet_since = time.monotonic()
        while not self._stopped.is_set():
            if self._running and (not self.free or time.monotonic() - quiet_since > LINGER_SECONDS):
                future, job = self._running.popleft()
                self.end(job)
                future.set_result(0)
                if not self.free:
                    quiet_since = time.monotonic()
            else:
                time.sleep(0.0005)


class Costs(NamedTuple):
    """Wall and CPU time of a simulated sweep, including the writing of records."""

    runs: int
    slots: int
    plan_seconds: float
    seconds_per_run: float
    cpu_seconds_per_run: float
    restart_seconds: float
    cpu_restart_seconds: float
    packed_ledger_seconds: float
    packed_open_seconds: float
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
    """Return the record of an untrained run; the second of four rates is the best, and the loss falls with the width."""
    return RunRecord(
        run_id=run_id,
        sweep="simulated",
        state="COMPLETED",
        config=config,
        data_fingerprint=DATA,
        steps=config.steps,
        tokens=config.tokens,
        loss_nats=3 + (64 / config.architecture.width) ** 0.5 + abs(config.recipe.learning_rate - 2e-3),
        order_gain_nats=1.0,
        order_gain_standard_error_nats=0.01,
        attempts=1,
        started_at="2026-01-01T00:00:00+00:00",
        finished_at="2026-01-01T00:01:00+00:00",
        **counts_of(config, config.steps),
    )


def coordinator_of(folder: SweepFolder, values: dict[str, Any]) -> Coordinator[RunJob, RunRecord]:
    """Return a coordinator of a simulated sweep, as a launch makes it."""
    spec = CellSweep.parse(values)
    return Coordinator(folder, RunProposer(Plan(spec), values, folder, {spec.data.tokenizer.variant: DATA}))


def simulate(folder: SweepFolder, runs: int, slots: int) -> Costs:
    """Coordinate a sweep with a launch's display, restart its coordinator, and pack it."""
    values = simulated_values(runs)
    began = time.perf_counter()
    coordinator = coordinator_of(folder, values)
    planned, cpu = time.perf_counter(), time.process_time()
    display = Display(Console(quiet=True), coordinator.proposer)
    executor = InstantExecutor(slots)
    with display.bars:
        coordinator.run(executor, display.refresh)
    executor.kill()
    ended, cpu, cpu_again = time.perf_counter(), time.process_time() - cpu, time.process_time()
    again = coordinator_of(folder, values)
    wanted = again.proposer.wanted((), slots)
    restarted, cpu_again = time.perf_counter(), time.process_time() - cpu_again
    done = len(coordinator.progress.ended)
    assert done == len(again.progress.ended)
    assert not wanted
    memory = peak_resident_bytes()
    pack(folder)
    unread = SweepFolder(folder.path.rename(f"{folder.path}-unread"))  # each new path has no cached rows
    opened = time.perf_counter()
    assert len(unread.write_ledger()) == done
    written = time.perf_counter()
    table = SweepFolder(unread.path.rename(f"{folder.path}-packed")).current_ledger()
    assert table is not None
    assert len(table) == done
    return Costs(
        runs=done,
        slots=slots,
        plan_seconds=planned - began,
        seconds_per_run=(ended - planned) / done,
        cpu_seconds_per_run=cpu / done,
        restart_seconds=restarted - ended,
        cpu_restart_seconds=cpu_again,
        packed_ledger_seconds=written - opened,
        packed_open_seconds=time.perf_counter() - written,
        peak_memory_bytes=memory,
    )


def lower(one: Costs, other: Costs) -> Costs:
    """Return the lower of each cost, since other programs only add to it."""
    return Costs._make(map(min, one, other))


def rows_of(costs: Costs) -> list[dict[str, Any]]:
    """Return the costs as rows."""
    each, restart = f"each of {costs.runs:,} runs on {costs.slots:,} slots", "a restart with their records"
    return [
        measurement("planning", costs.plan_seconds, "s"),
        measurement(each, costs.seconds_per_run, "s"),
        measurement(f"{each}, CPU time", costs.cpu_seconds_per_run, "s"),
        measurement(restart, costs.restart_seconds, "s"),
        measurement(f"{restart}, CPU time", costs.cpu_restart_seconds, "s"),
        measurement(f"the ledger of {costs.runs:,} packed runs, written", costs.packed_ledger_seconds, "s"),
        measurement(f"{costs.runs:,} packed runs, opened", costs.packed_open_seconds, "s", at_most=PACKED_SECONDS),
        measurement("the most memory of all this", costs.peak_memory_bytes, "bytes"),
    ]


def measure_coordinating(report: Report) -> None:
    """Report the lower costs of two simulations, and the peak memory of their own process."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder, failures_reported("coordinating", report):
        for row in rows_of(in_own_process(simulate_twice, Path(folder))):
            report(row)


def simulate_twice(folder: Path) -> Costs:
    """Return the lower costs of two simulations in `folder`."""
    return lower(*(simulate(SweepFolder(folder / name / "simulated"), RUNS, SLOTS) for name in ("first", "second")))


SMALL = Architecture(depth=2, width=128, heads=2, ffn=512, vocabulary=2048)
"""A model whose step of 14 x 128 tokens takes 20 to 40 ms on two idle cores."""

STEP_SECONDS = 0.025
"""The reference step for Lightning's share, however long a step is here."""

OVERHEAD_SHARE, TOKENS_PER_SECOND = 0.03, 1.5e6
"""The targets for overhead per step, and for tokenising."""

SHORT_ROUND_SECONDS, SHORT_ROUNDS, BLOCK = 0.1, 30, 15
"""The rounds of the two compared loops: their seconds, short so other programs disturb both equally; their number per round
of the command; and their number per compared block, enough that each block logs rows."""

CHECKPOINT_SECONDS, REPEATS = 60.0, 5
"""Seconds between a run's checkpoints, and timings of a checkpoint."""

CHARACTERS = 8_000_000
"""Characters to tokenise."""


def measure_overhead(threads: int, rounds: int, report: Report) -> None:
    """Compare our training path with a bare loop, and time the checkpoints."""
    start_forkserver()
    case = Case(SMALL, "fp32", 14, 128, "cpu", threads)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        with TrainingComparison(case, Path(folder) / "overhead") as comparison:
            for name in ("ours", "bare"):
                comparison.start(name)
                comparison.warm_up(name)
            comparison.measure(SHORT_ROUNDS * rounds, SHORT_ROUND_SECONDS)
        share = checkpoint_seconds(case.architecture, Path(folder)) / CHECKPOINT_SECONDS
    if errors := comparison.rounds.errors:
        report(failure("what surrounds a step", str(errors)))
        return
    ours, bare = (comparison.rounds.times[name] for name in ("ours", "bare"))
    blocks = [slice(begin, begin + BLOCK) for begin in range(0, len(ours), BLOCK)]
    extras = [(_step_seconds(ours[block]) - _step_seconds(bare[block])) / STEP_SECONDS for block in blocks]
    extra, (low, high) = median(extras), median_interval(extras)
    interval = f"95% interval of the median {low:.1%} to {high:.1%}, of {len(extras)} blocks of {BLOCK} short rounds"
    mirror = "W&B takes no time of a step: a separate process mirrors what runs write."
    report(measurement("a step of ours", median(time.step_seconds for time in ours), "s"))
    what = "Lightning and logging, of a step of 25 ms"
    report(measurement(what, extra, "share", sentence=f"Lightning and logging: {interval}."))
    report(measurement("checkpoints, one a minute", share, "share"))
    what = "Lightning, logging, checkpoints and W&B together"
    report(measurement(what, extra + share, "share", at_most=OVERHEAD_SHARE, sentence=mirror))


def _step_seconds(times: Sequence[RoundTime]) -> float:
    return sum(time.seconds for time in times) / sum(time.steps for time in times)


def checkpoint_seconds(architecture: Architecture, folder: Path) -> float:
    """Time a durable checkpoint of weights and optimiser: written, fsynced, hashed and renamed."""
    names = ("weights", "first moments", "second moments")
    tensors = {name: torch.randn(parameters(architecture).parameters) for name in names}
    saver, file = DurableCheckpointIO(), folder / "checkpoints" / "next.ckpt"
    states = ({"global_step": step, "tensors": tensors} for step in range(REPEATS))
    return median(seconds_of(partial(saver.save_checkpoint, state, file)) for state in states)


def measure_tokenising(report: Report) -> None:
    """Report the tokenising speed in tokens per second."""
    texts = list(first_characters((document.text for document in read_corpus(DataConfig())), CHARACTERS))
    config = TokenizerConfig()
    tokenizer = train_tokenizer(texts, config)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        started = perf_counter()
        written = write_tokens((("train", text) for text in texts), tokenizer, Path(folder), config.vocabulary)
        counts, _ = written["train"]
        speed = int(counts.sum()) / (perf_counter() - started)
    what = f"tokenising {sum(map(len, texts)) / 1e6:.0f} MB of docstrings with {config.vocabulary:,} pieces"
    report(measurement(what, speed, "tokens/s", at_least=TOKENS_PER_SECOND))
