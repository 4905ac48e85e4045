"""Throughput of k processes that share one GPU, with and without CUDA's multi-process service (MPS)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from study.base.machine import cores
from study.benching.cases import Case
from study.benching.own_processes import Contender, ContenderError, Order, RoundTime, start_forkserver
from study.benching.results import Report
from study.benching.training_comparison import WARM_UP
from study.counting.memory import Device, Precision
from study.counting.named_models import named
from study.executing.slots import MPS_PORTION, mps_portion


class Way(NamedTuple):
    """How runs share the device: time-sliced, or in parallel under MPS, each on its portion of the multiprocessors."""

    runs: tuple[int, ...]
    mps: bool = False

    @property
    def portion(self) -> int | None:
        """Percent of the multiprocessors per run under MPS."""
        return mps_portion(max(self.runs)) if self.mps else None


WAYS = (Way((1, 4)), Way((4,), mps=True), Way((16,), mps=True))
"""Each number of runs under MPS needs new processes, since a process's portion is fixed at its start."""

MODELS, BATCHES = ("bert-tiny", "bert-mini"), ((32, 128), (8, 128))
"""The models, and (sequences, tokens) per batch; most sweeps use the second batch."""

SECONDS, ROUNDS = 1.0, 3
"""Length and number of timings; the median counts."""

PATIENCE = 30.0
"""The longest start or end of MPS in seconds."""


def measure_sharing(device: Device, report: Report) -> None:
    """Report the throughput of k runs per model and batch, and under MPS if its daemon is installed."""
    start_forkserver()
    dtype: Precision = "bf16" if device == "cuda" else "fp32"
    served = device == "cuda" and shutil.which("nvidia-cuda-mps-control") is not None
    for model, (batch, length) in product(MODELS, BATCHES):
        case = Case(named(model), dtype, batch, length, device, threads=1, model=model)
        about = {"model": model, "dtype": dtype, "batch": batch, "sequence_length": length}
        alone: float | None = None
        for way in (way for way in WAYS if served or not way.mps):
            for row in _throughputs(case, way):
                alone = alone or row["tokens_per_second"]
                relative = row["tokens_per_second"] / alone if alone and row["tokens_per_second"] else None
                report(about | {"mps": way.mps, "portion": way.portion, **row, "relative": relative})


def _throughputs(case: Case, way: Way) -> Iterator[dict[str, Any]]:
    """Yield tokens/s of the first k processes, for each k, while the others wait."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as name:
        folder = Path(name)
        try:
            with _service(way, folder) as environment, ExitStack() as running:
                processes: list[Contender] = []
                for number in range(max(way.runs)):
                    target, log = "study.benching.contenders.ours", folder / f"{number}.log"
                    builders = {} if processes else {"TORCHINDUCTOR_COMPILE_THREADS": str(cores())}
                    processes.append(running.enter_context(Contender(target, (case, folder), log, environment | builders)))
                    if number == 0:
                        processes[0].ready()  # it compiles kernels that the others read from disk
                for contender in processes[1:]:
                    contender.ready()
                for contender in processes:
                    contender.begin(WARM_UP[case.device])
                for contender in processes:
                    contender.end()
                for count in way.runs:
                    rates = [_together(processes[:count], case) for _ in range(ROUNDS)]
                    yield {"runs": count, "tokens_per_second": median(rates), "errors": {}}
        except ContenderError as error:
            errors = {"MPS" if way.mps else "sharing": str(error)}
            yield {"runs": max(way.runs), "tokens_per_second": None, "errors": errors}


def _together(contenders: list[Contender], case: Case) -> float:
    for contender in contenders:
        contender.begin(Order(SECONDS, lead_in=3))
    times = [contender.end() for contender in contenders]
    return sum(case.batch_tokens / time.step_seconds for time in times if isinstance(time, RoundTime))


@contextmanager
def _service(way: Way, folder: Path) -> Iterator[dict[str, str]]:
    """Yield process environment variables, with an MPS daemon for the block if `way` uses MPS."""
    names = {"CUDA_MPS_PIPE_DIRECTORY": folder / "mps", "CUDA_MPS_LOG_DIRECTORY": folder / "mps-log"}
    for path in names.values():
        path.mkdir()
    variables = {name: str(path) for name, path in names.items()}
    if not way.mps:
        yield variables  # a pipe directory without a daemon avoids the machine's own daemon
        return
    _control(["-d"], variables)
    try:
        yield variables | {MPS_PORTION: str(way.portion)}
    finally:
        _control([], variables, "quit -t 5\n")


def _control(arguments: list[str], variables: dict[str, str], command: str | None = None) -> None:
    """Call MPS's control program; raises ContenderError if it fails or hangs."""
    program = ["nvidia-cuda-mps-control", *arguments]
    with tempfile.TemporaryFile("w+") as output:  # a pipe would stay open for as long as the daemon lives
        try:
            environment = {**os.environ, **variables}
            environment.pop("CUDA_VISIBLE_DEVICES", None)  # else the daemon renumbers the devices
            done = subprocess.run(
                program, input=command, env=environment, stdout=output, stderr=output, text=True, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise ContenderError(f"{program[0]} did not return within {PATIENCE:.0f} s") from None
        if done.returncode:
            output.seek(0)
            raise ContenderError(f"{program[0]}: {output.read().strip() or f'exit status {done.returncode}'}")
