"""Inference latency, measured: the forward pass of many encoders timed side by side."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from study.base.errors import InputError, Problem
from study.base.quantities import listed, read_shape
from study.counting.architecture import Architecture, not_of_berts_kind
from study.counting.memory import Device, Precision
from study.counting.parameters import parameters

if TYPE_CHECKING:
    import pandas as pd

WARM_UP_CALLS, WARM_UP_SECONDS = 3, 1.0
"""Forward passes before the first that counts, and the seconds after which no more are made."""

FEWEST, MOST = 5, 200
"""How often a case is timed at least and at most."""

Progress = Callable[[float], None]
"""Told the share of the measuring that is done."""


@dataclass(frozen=True)
class Setting:
    """How latency is measured: device, precision, CPU threads, and about how many seconds each case is timed for."""

    device: Device = "cpu"
    precision: Precision = "fp32"
    threads: int = 1
    seconds: float = 10.0


@dataclass(frozen=True)
class Case:
    """One measurement: an encoder at a batch and a sequence length."""

    model: str
    architecture: Architecture
    batch: int
    sequence_length: int

    @property
    def name(self) -> str:
        """What the case is called while it is measured."""
        return f"{self.model} at {self.batch}·{self.sequence_length}"


def cases(models: Mapping[str, Architecture], batches: tuple[int, ...], lengths: tuple[int, ...]) -> list[Case]:
    """Every model at every batch and length; raises InputError where a length exceeds the positions of a model."""
    problems = [
        Problem("--sequence-length", f"{length} exceeds the {a.positions} positions of {model}; leave it or the model out")
        for model, a in models.items()
        for length in lengths
        if length > a.positions
    ]
    if problems:
        raise InputError(problems)
    return [
        Case(model, architecture, batch, length)
        for model, architecture in models.items()
        for batch in batches
        for length in lengths
    ]


def measure(measured: list[Case], setting: Setting, progress: Progress = lambda _: None) -> pd.DataFrame:
    """Time the forward pass of the encoder (hidden states of every token, no head, no padding), one row a case.

    Weights and tokens are random; bf16 casts the whole encoder. After warm-up each case is timed n times, as often as fits
    into `setting.seconds` but between 5 and 200 times. The cases take turns over all rounds, so that a machine that drifts
    slows them all alike. Seconds a call, for the whole batch: `median_seconds`, `p95_seconds` (the longest where n < 20),
    and `fastest_seconds`, which other programs on the machine disturb the least.
    """
    import pandas as pd
    import torch

    threads_before = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        with torch.inference_mode():
            calls = _calls(measured, setting)
            times = _timed_in_turns(calls, setting.seconds, progress)
    finally:
        torch.set_num_threads(threads_before)
    return pd.DataFrame([_row(case, setting, taken) for case, taken in zip(measured, times, strict=True)])


def _calls(measured: list[Case], setting: Setting) -> list[Callable[[], object]]:
    """For each case a call that runs its forward pass to the end; cases of one architecture share its encoder."""
    import torch

    from study.model.encoder import Encoder

    dtype = torch.bfloat16 if setting.precision == "bf16" else torch.float32
    encoders: dict[Architecture, torch.nn.Module] = {}

    def call_of(case: Case) -> Callable[[], object]:
        if case.architecture not in encoders:
            encoders[case.architecture] = Encoder(case.architecture).to(setting.device, dtype).eval()
        encoder, size = encoders[case.architecture], (case.batch, case.sequence_length)
        tokens = torch.randint(0, case.architecture.vocabulary, size, device=setting.device)

        def call() -> None:
            encoder(tokens)
            if setting.device == "cuda":
                torch.cuda.synchronize()

        return call

    return [call_of(case) for case in measured]


def _timed_in_turns(calls: list[Callable[[], object]], seconds: float, progress: Progress) -> list[list[float]]:
    """Seconds of each call, each timed n times: n of the rounds, evenly spread from the first to the last."""
    expected = [_warmed_up(call) for call in calls]
    counts = [min(MOST, max(FEWEST, math.ceil(seconds / one))) for one in expected]
    rounds, whole = max(counts), sum(n * one for n, one in zip(counts, expected, strict=True))
    times: list[list[float]] = [[] for _ in calls]
    spent = 0.0
    for turn in range(rounds):
        for index, call in enumerate(calls):
            if len(times[index]) * rounds <= turn * counts[index]:
                times[index].append(_timed(call))
                spent += expected[index]
                progress(spent / whole)
    return times


def _warmed_up(call: Callable[[], object]) -> float:
    """About how many seconds a call takes, from a few that do not count; a device may load its kernels in the first."""
    times = [_timed(call), _timed(call)]
    while len(times) < WARM_UP_CALLS and sum(times[1:]) < WARM_UP_SECONDS:
        times.append(_timed(call))
    return min(times[1:])


def _timed(call: Callable[[], object]) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started


def _row(case: Case, setting: Setting, seconds: list[float]) -> dict[str, Any]:
    """One row of the table: the architecture, the case, the setting and what was measured."""
    a, ordered = case.architecture, sorted(seconds)
    return {
        "model": case.model,
        "shape": a.shape_name,
        **a.model_dump(include={"depth", "width", "heads", "ffn", "vocabulary", "positions", "segments", "norm"}),
        **{name: total for name, total in parameters(a).totals().items() if name != "parameters"},
        "batch": case.batch,
        "sequence_length": case.sequence_length,
        "precision": setting.precision,
        "device": setting.device,
        "threads": setting.threads,
        "n": len(ordered),
        "median_seconds": median(ordered),
        "p95_seconds": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "fastest_seconds": ordered[0],
    }


def hardware_environment(device: Device) -> dict[str, Any]:
    """What the latencies of a table hold for: processor or GPU, its instruction set, and versions."""
    from study.training.execution import Execution, environment

    here = environment(Execution(device, kernels="eager"), "fp32").model_dump()
    return {name: here[name] for name in ("device", "processor", "python", "torch", "study")} | {"system": platform.platform()}


def measured_models(shapes: str, names: str, vocabulary: int, positions: int) -> dict[str, Architecture]:
    """What `--shapes 2x128,4x256` (depth x width) and `--models bert-tiny,…` name, each once.

    Raises InputError with every name and shape that cannot be.
    """
    from study.counting.named_models import architecture_of

    found: dict[str, Architecture] = {}
    problems: list[Problem] = []
    for name in listed(names):
        try:
            architecture = architecture_of(name, {})
        except InputError as error:
            problems += [Problem(f"--models {problem.place}", problem.message) for problem in error.problems]
            continue
        if unlike := not_of_berts_kind(architecture):
            told = ", ".join(f"{field} {value}" for field, value in unlike.items())
            problems.append(Problem(f"--models {name}", f"has {told}; what is timed is of BERT's kind, of any shape"))
        found[name.lower()] = architecture
    for shape in listed(shapes):
        try:
            depth, width = read_shape("--shapes", shape)
        except InputError as error:
            problems += error.problems
            continue
        rest = {"depth": depth, "width": width, "vocabulary": vocabulary, "positions": positions}
        architecture = architecture_of(None, rest)
        found[architecture.shape_name] = architecture
    if not found and not problems:
        problems.append(Problem("--models", "nothing to measure; give --models bert-tiny,… or --shapes 2x128,…"))
    if problems:
        raise InputError(problems)
    return found
