"""Small runs that share one GPU: k processes train at once, with and without CUDA's multi-process service (MPS)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from study.benching.cases import Case
from study.benching.figures import Tell
from study.benching.gate import Contender, ContenderError, Order, RoundTime, load
from study.benching.training import WARM_UP
from study.machine import cores
from study.memory import Device, Precision
from study.named_models import named

RUNS = {False: (1, 2, 4, 8, 16), True: (4, 16)}
"""How many runs share the device, without MPS and with it."""

MODELS = ("bert-tiny", "bert-mini")
SECONDS = 2.0

PATIENCE = 30.0
"""Seconds that MPS may take to start or to end."""


def measure_sharing(device: Device, tell: Tell) -> None:
    """Throughput of k runs together, for each model and, where its daemon is installed, once more under MPS."""
    load()
    for model in MODELS:
        dtype: Precision = "bf16" if device == "cuda" else "fp32"
        case = Case(named(model), dtype, 32, 128, device, threads=1, model=model)
        alone: float | None = None
        for mps in (False, True) if device == "cuda" and shutil.which("nvidia-cuda-mps-control") else (False,):
            for row in _throughputs(case, RUNS[mps], mps):
                alone = alone or row["tokens_per_second"]
                relative = row["tokens_per_second"] / alone if alone and row["tokens_per_second"] else None
                tell({"model": model, "dtype": dtype, "mps": mps, **row, "relative": relative})


def _throughputs(case: Case, runs: tuple[int, ...], mps: bool) -> Iterator[dict[str, Any]]:
    """Tokens/s of the first k of a crowd of processes, for each k; the others wait meanwhile."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as name:
        folder = Path(name)
        try:
            with _service(mps, folder) as environment, ExitStack() as running:
                crowd: list[Contender] = []
                for number in range(max(runs)):
                    target, log = "study.benching.contenders.ours", folder / f"{number}.log"
                    builders = {} if crowd else {"TORCHINDUCTOR_COMPILE_THREADS": str(cores())}
                    crowd.append(running.enter_context(Contender(target, (case, folder), log, environment | builders)))
                    if number == 0:
                        crowd[0].ready()  # it compiles what the others then find on the disk
                for contender in crowd[1:]:
                    contender.ready()
                for contender in crowd:
                    contender.begin(WARM_UP[case.device])
                for contender in crowd:
                    contender.end()
                for count in runs:
                    yield {"runs": count, "tokens_per_second": _together(crowd[:count], case), "errors": {}}
        except ContenderError as error:
            yield {"runs": max(runs), "tokens_per_second": None, "errors": {"MPS" if mps else "sharing": str(error)}}


def _together(contenders: list[Contender], case: Case) -> float:
    """Tokens/s of all while all of them run."""
    for contender in contenders:
        contender.begin(Order(SECONDS, lead_in=3))
    times = [contender.end() for contender in contenders]
    return sum(case.batch_tokens / time.step_seconds for time in times if isinstance(time, RoundTime))


@contextmanager
def _service(wanted: bool, folder: Path) -> Iterator[dict[str, str]]:
    """The variables of processes that train under an MPS daemon of our own, which ends with the block, or under none."""
    names = {"CUDA_MPS_PIPE_DIRECTORY": folder / "mps", "CUDA_MPS_LOG_DIRECTORY": folder / "mps-log"}
    for place in names.values():
        place.mkdir()
    variables = {name: str(place) for name, place in names.items()}
    if not wanted:
        yield variables  # a pipe directory without a daemon keeps them away from one that the machine has
        return
    _control(["-d"], variables)
    try:
        yield variables
    finally:
        _control([], variables, "quit -t 5\n")


def _control(arguments: list[str], variables: dict[str, str], order: str | None = None) -> None:
    """Call MPS's control program; raises ContenderError where it fails or does not come back."""
    command = ["nvidia-cuda-mps-control", *arguments]
    with tempfile.TemporaryFile("w+") as said:  # a pipe would stay open for as long as the daemon lives
        try:
            environment = {**os.environ, **variables}
            environment.pop("CUDA_VISIBLE_DEVICES", None)  # else the daemon numbers what it sees anew
            done = subprocess.run(command, input=order, env=environment, stdout=said, stderr=said, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise ContenderError(f"{command[0]} has not come back in {PATIENCE:.0f} s") from None
        if done.returncode:
            said.seek(0)
            raise ContenderError(f"{command[0]}: {said.read().strip() or f'exit status {done.returncode}'}")
