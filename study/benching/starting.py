"""How soon things start: commands as whole processes, and runs of a sweep from submission to their first step.

Runs are started in a process of its own (study.benching.apart), as `study launch` would.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import yaml

from study.base import machine
from study.base.durable_files import is_there
from study.benching.apart import measure_apart
from study.benching.figures import Tell, figure

CALLS, RUNS, SWEPT = 7, 8, 100
"""How often a command is called; runs that are started one after the other; runs of the sweep."""

COMMANDS = ((("--help",), 0.3), (("params", "bert-base"), 0.5))
"""Commands and the seconds that they may take."""

START_SECONDS, RUN_SECONDS = 1.0, 0.3
"""What a start, and a run of the sweep, may take."""

CODE = "import sys; from study.cli import main; sys.argv[0] = 'study'; main()"


def measure_starting(tell: Tell) -> None:
    """Time the commands, a start of a run, and a sweep of 100 runs of one step each."""
    for arguments, limit in COMMANDS:
        seconds = median(_process_seconds(arguments) for _ in range(CALLS))
        tell(figure(f"study {' '.join(arguments)}, a whole process", seconds, "s", at_most=limit))
    measure_apart("study.benching.starting", "starting runs", tell)


def _process_seconds(arguments: tuple[str, ...]) -> float:
    started = perf_counter()
    subprocess.run([sys.executable, "-c", CODE, *arguments], check=True, capture_output=True)
    return perf_counter() - started


def write_sweep(folder: Path, seeds: int) -> Path:
    """A sweep of runs of one step on a corpus of 600 drawn documents, both in `folder`."""
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
    """Seconds from submission to the first step, and those that a run of one step adds to a sweep."""
    from rich.console import Console

    from study.config.resources import Resources
    from study.config.sweep_files import read_sweep
    from study.planning.plan import Plan
    from study.running.launch import launched

    spec, values = read_sweep(write_sweep(folder, SWEPT))
    config = Plan(spec).first_runs[0]
    first, *later = _starts(config, folder / "single")
    started = perf_counter()
    with launched(spec, values, folder / "results", Resources(device="cpu"), Console(file=io.StringIO()), track=False):
        pass
    swept = (perf_counter() - started) / SWEPT
    return [
        figure("the first run of a sweep, submission to first step", first, "s"),
        figure("each later run, submission to first step", median(later), "s", at_most=START_SECONDS),
        figure(f"a run of one step among {SWEPT} in a sweep", swept, "s", at_most=RUN_SECONDS),
    ]


def _starts(config: Any, folder: Path) -> list[float]:
    """Seconds from submission until the first row of metrics is there, for runs one after the other."""
    from study.data.prepared import prepare
    from study.executing.executors import LocalExecutor
    from study.executing.slots import Slot
    from study.running.run_proposer import RunJob
    from study.store.run_folder import RunFolder

    run_id = config.fingerprint(prepare(config.data).fingerprint)
    cores = machine.cores()
    executor, seconds = LocalExecutor([Slot("cpu", (0,), cores)]), []
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


if __name__ == "__main__":
    told = run_rows(Path(sys.argv[1]))
    sys.stdout.write(json.dumps(told))
