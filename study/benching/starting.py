"""Start times: commands as whole processes, and runs from submission to first step."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import yaml
from rich.console import Console

from study.base.durable_files import is_there
from study.base.machine import cores
from study.benching.processes import failures_reported, in_own_process
from study.benching.results import Report, measurement
from study.config.resources import Resources
from study.config.run_config import RunConfig
from study.config.sweep_files import read_sweep
from study.data.prepared import prepare
from study.executing.executors import LocalExecutor
from study.executing.slots import Slot
from study.planning.plan import Plan
from study.running.launch import launched
from study.running.run_proposer import RunJob
from study.store.run_folder import RunFolder

CALLS, RUNS, SWEPT = 7, 8, 100
"""Calls per command, sequential runs, and runs of the sweep."""

COMMANDS = ((("--help",), 0.3), (("params", "bert-base"), 0.5))
"""Commands and their targets in seconds."""

START_SECONDS, RUN_SECONDS = 1.0, 0.3
"""The targets for a start, and for a run of the sweep."""

CODE = "import sys; from study.cli import main; sys.argv[0] = 'study'; main()"


def measure_starting(report: Report) -> None:
    """Time the commands, a run's start, and a sweep of 100 one-step runs."""
    for arguments, limit in COMMANDS:
        seconds = median(_process_seconds(arguments) for _ in range(CALLS))
        report(measurement(f"study {' '.join(arguments)}, a whole process", seconds, "s", at_most=limit))
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder, failures_reported("starting runs", report):
        for row in in_own_process(run_rows, Path(folder)):
            report(row)


def _process_seconds(arguments: tuple[str, ...]) -> float:
    started = perf_counter()
    subprocess.run([sys.executable, "-c", CODE, *arguments], check=True, capture_output=True)
    return perf_counter() - started


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
    for number in range(RUNS):
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
