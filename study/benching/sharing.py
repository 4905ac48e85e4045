"""Small runs that share one GPU: k processes train at once, with and without CUDA's multi-process service (MPS)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from study.benching.cases import Case
from study.benching.gate import Contender, ContenderError, Order, RoundTime, load
from study.benching.training import WARM_UP
from study.memory import Device, Precision
from study.named_models import named

RUNS = {False: (1, 2, 4, 8, 16), True: (4, 16)}
"""How many runs share the device, without MPS and with it."""

MODELS = ("bert-tiny", "bert-mini")
SECONDS = 2.0


def measure_sharing(device: Device, tell: Callable[[dict[str, Any]], None]) -> None:
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
    crowd: list[Contender] = []
    with tempfile.TemporaryDirectory(prefix="study-bench-") as name:
        folder = Path(name)
        try:
            with _service(mps, folder) as environment:
                for number in range(max(runs)):
                    target, log = "study.benching.contenders.ours", folder / f"{number}.log"
                    crowd.append(Contender(target, (case, folder), log, environment))
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
        finally:
            for contender in crowd:
                contender.stop()


def _together(contenders: list[Contender], case: Case) -> float:
    """Tokens/s of all while all of them run."""
    for contender in contenders:
        contender.begin(Order(SECONDS, lead_in=3))
    times = [contender.end() for contender in contenders]
    return sum(case.batch_tokens / time.step_seconds for time in times if isinstance(time, RoundTime))


@contextmanager
def _service(wanted: bool, folder: Path) -> Iterator[dict[str, str]]:
    """The variables of processes that train under an MPS daemon of our own, which ends with the block; none without it."""
    if not wanted:
        yield {}
        return
    names = {"CUDA_MPS_PIPE_DIRECTORY": folder / "mps", "CUDA_MPS_LOG_DIRECTORY": folder / "mps-log"}
    for place in names.values():
        place.mkdir()
    variables = {name: str(place) for name, place in names.items()}
    started = subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **variables}, capture_output=True, text=True)
    if started.returncode:
        raise ContenderError(f"nvidia-cuda-mps-control: {started.stderr.strip() or started.stdout.strip()}")
    try:
        yield variables
    finally:
        subprocess.run(
            ["nvidia-cuda-mps-control"], input="quit\n", env={**os.environ, **variables}, capture_output=True, text=True
        )
