"""Inference latency: forward passes of many encoders, timed side by side."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

from study.base.errors import InputError, Problem, map_all, shown
from study.base.grouping import grouped
from study.base.machine import cores
from study.base.quantities import bytes_text, listed, plural, read_shape, read_whole_numbers, seconds_text
from study.config.presets import kind
from study.counting.architecture import Architecture, changed, unbuildable
from study.counting.latency import UNLIKE_BERT, check_environment, kind_words, write_table
from study.counting.memory import Device, WeightFormat, inference_memory
from study.counting.parameters import parameters
from study.counting.solving import ShapeRules

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

WARM_UP_CALLS, WARM_UP_SECONDS = 3, 1.0
"""The most warm-up passes, and the seconds that end the warm-up."""

FEWEST, MOST = 5, 200
"""The fewest and most timings of a case."""

DISTURBED = 0.5
"""The share by which a median may exceed the fastest call on an idle machine."""

Progress = Callable[[float], None]
"""Takes the finished share of the work."""


@dataclass(frozen=True)
class Timing:
    """Device, CPU threads, and approximate seconds of timing per case."""

    device: Device = "cpu"
    threads: int = 1
    seconds: float = 10.0


@dataclass(frozen=True)
class LatencyCase:
    """An encoder at one batch size, sequence length and precision."""

    model: str
    architecture: Architecture
    batch: int
    sequence_length: int
    precision: WeightFormat = "fp32"


@dataclass(frozen=True)
class LatencyOptions:
    """The command-line options: encoders, batches and lengths as text, and the timing."""

    models: str
    shapes: str
    batch: str
    sequence_length: str
    vocabulary: int
    positions: int
    threads: int | None
    precision: str
    device: Device
    seconds: float
    kind: str = "bert"

    @property
    def precisions(self) -> tuple[WeightFormat, ...]:
        """The distinct precisions; raises InputError for other words or none."""
        known: dict[str, WeightFormat] = {form: form for form in get_args(WeightFormat)}
        named = list(dict.fromkeys(listed(self.precision)))
        if unknown := [name for name in named if name not in known] or ([] if named else [self.precision]):
            raise InputError.at("--precision", f"{shown(unknown[0])} is none of {', '.join(known)}; write it as fp32,int8")
        return tuple(known[name] for name in named)

    def cases(self) -> list[LatencyCase]:
        """Return the cases; raises InputError for inconsistent options."""
        models = measured_models(self.shapes, self.models, self.vocabulary, self.positions, self.kind)
        batches = read_whole_numbers("--batch", self.batch)
        lengths = read_whole_numbers("--sequence-length", self.sequence_length)
        return [case for form in self.precisions for case in latency_cases(models, batches, lengths, form)]

    def timing(self) -> Timing:
        """Return the timing; raises InputError if CUDA is requested but missing, or has no products of int8."""
        import torch

        from study.model.stored_weights import ON_A_CPU

        if self.device == "cuda" and "int8" in self.precisions:
            raise InputError.at("--precision", f"int8 {ON_A_CPU}")

        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError.at("--device cuda", "torch sees no CUDA device here; use --device cpu")
        return Timing(self.device, self.threads or cores(), self.seconds)


def measure_into(out: Path, options: LatencyOptions, begin: Callable[[str], Progress]) -> tuple[pd.DataFrame, Path]:
    """Measure one batch size and length after another, adding each to the table under `out` once done; returns rows and path.

    `begin` takes the name of each and returns what takes its progress. Raises InputError for bad options before measuring.
    """
    import pandas as pd

    cases, timing = options.cases(), options.timing()
    environment = hardware_environment(options.device)
    check_environment(environment, out)
    settings = grouped(cases, lambda case: (case.batch, case.sequence_length))
    _check_memory(settings.values(), options.device)
    measured: list[pd.DataFrame] = []
    path = out
    for (batch, length), at in sorted(settings.items(), key=lambda each: math.prod(each[0])):
        name = f"{batch} x {length} tokens ({len(measured) + 1} of {len(settings)}), {plural(len(at), 'case')}, alternating"
        measured.append(measure(at, timing, begin(name)))
        path = write_table(measured[-1], environment, out)
    return pd.concat(measured), path


def _check_memory(settings: Iterable[Sequence[LatencyCase]], device: Device) -> None:
    """Raise InputError where the encoders that are timed in turn need more memory together than is free."""
    from study.planning.memory_check import available_memory_bytes, free_gpu_bytes

    free = available_memory_bytes() if device == "cpu" else free_gpu_bytes([(0,)])[0]

    def needed(cases: Sequence[LatencyCase]) -> int:
        each = [inference_memory(case.architecture, case.batch, case.sequence_length, case.precision) for case in cases]
        return sum(memory.weights for memory in each) + max(memory.total - memory.weights for memory in each)

    if (most := max(map(needed, settings))) > free:
        message = f"need {bytes_text(most)} of memory, but {bytes_text(free)} are free"
        raise InputError.at("--models and --shapes", f"{message}; give fewer or smaller ones, batches or lengths")


def latency_cases(
    models: Mapping[str, Architecture],
    batches: tuple[int, ...],
    lengths: tuple[int, ...],
    precision: WeightFormat = "fp32",
) -> list[LatencyCase]:
    """Return all combinations; raises InputError if a length exceeds a model's positions."""
    problems = [
        Problem("--sequence-length", f"{length} exceeds the {a.positions} positions of {model}; remove one of them")
        for model, a in models.items()
        for length in lengths
        if length > a.positions
    ]
    if problems:
        raise InputError(problems)
    return [
        LatencyCase(*model, batch, length, precision) for model in models.items() for batch in batches for length in lengths
    ]


def measure(cases: list[LatencyCase], timing: Timing, progress: Progress = lambda _: None) -> pd.DataFrame:
    """Time each encoder's forward pass (hidden states of every token, no head, no padding), one row per case.

    Weights and tokens are random; bf16 casts the whole encoder, int8 rounds its products (study.model.stored_weights). After a
    warm-up each case is timed n times, 5 to 200, to fill `timing.seconds`. Cases alternate, so drift slows all equally. Seconds
    per call (whole batch): `median_seconds`, `p95_seconds` (the longest if n < 20), and `fastest_seconds`, which other programs
    disturb least.
    """
    import pandas as pd
    import torch

    threads_before = torch.get_num_threads()
    torch.set_num_threads(timing.threads)
    try:
        with torch.inference_mode():
            times = _timed_in_rounds(_calls(cases, timing), timing.seconds, progress)
    finally:
        torch.set_num_threads(threads_before)
    return pd.DataFrame([_row(case, timing, seconds) for case, seconds in zip(cases, times, strict=True)])


def _calls(cases: list[LatencyCase], timing: Timing) -> list[Callable[[], object]]:
    """Return a synchronous forward pass per case; cases of one architecture and precision share an encoder."""
    import torch

    from study.model.encoder import Encoder
    from study.model.stored_weights import multiply_in_int8

    encoders: dict[tuple[Architecture, WeightFormat], torch.nn.Module] = {}

    def encoder_of(case: LatencyCase) -> torch.nn.Module:
        dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
        encoder = Encoder(case.architecture).to(timing.device, dtype).eval()
        if case.precision == "int8":
            multiply_in_int8(encoder)
        return encoder

    def call_of(case: LatencyCase) -> Callable[[], object]:
        key = case.architecture, case.precision
        if key not in encoders:
            encoders[key] = encoder_of(case)
        encoder, size = encoders[key], (case.batch, case.sequence_length)
        tokens = torch.randint(0, case.architecture.vocabulary, size, device=timing.device)

        def call() -> None:
            encoder(tokens)
            if timing.device == "cuda":
                torch.cuda.synchronize()

        return call

    return [call_of(case) for case in cases]


def _timed_in_rounds(calls: list[Callable[[], object]], seconds: float, progress: Progress) -> list[list[float]]:
    """Time each call n times, in n evenly spread rounds."""
    expected = [_warmed_up(call) for call in calls]
    counts = [min(MOST, max(FEWEST, math.ceil(seconds / one))) for one in expected]
    rounds, whole = max(counts), sum(n * one for n, one in zip(counts, expected, strict=True))
    times: list[list[float]] = [[] for _ in calls]
    done = 0.0
    for number in range(rounds):
        for index, call in enumerate(calls):
            if len(times[index]) * rounds <= number * counts[index]:
                times[index].append(seconds_of(call))
                done += expected[index]
                progress(done / whole)
    return times


def _warmed_up(call: Callable[[], object]) -> float:
    """Warm up and estimate the seconds of a call, without the first, which may load kernels."""
    times = [seconds_of(call), seconds_of(call)]
    while len(times) < WARM_UP_CALLS and sum(times[1:]) < WARM_UP_SECONDS:
        times.append(seconds_of(call))
    return min(times[1:])


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    started = perf_counter()
    call()
    return perf_counter() - started


def _row(case: LatencyCase, timing: Timing, seconds: list[float]) -> dict[str, Any]:
    a, ordered = case.architecture, sorted(seconds)
    return {
        "model": case.model,
        "shape": a.shape_name,
        **a.model_dump(include={"depth", "width", "heads", "ffn", "vocabulary", "positions", "segments", "norm"}),
        **{name: total for name, total in parameters(a).totals().items() if name != "parameters"},
        UNLIKE_BERT: kind_words(a),
        "batch": case.batch,
        "sequence_length": case.sequence_length,
        "precision": case.precision,
        "device": timing.device,
        "threads": timing.threads,
        "n": len(ordered),
        "median_seconds": median(ordered),
        "p95_seconds": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "fastest_seconds": ordered[0],
    }


def hardware_environment(device: Device) -> dict[str, Any]:
    """Return the conditions of a latency table: processor or GPU, instruction set, and versions."""
    from study.training.execution import Execution, environment

    here = environment(Execution(device=device, kernels="eager"), "fp32").model_dump()
    return {name: here[name] for name in ("device", "processor", "python", "torch", "study")} | {"system": platform.platform()}


def measured_models(shapes: str, names: str, vocabulary: int, positions: int, of_kind: str = "bert") -> dict[str, Architecture]:
    """Return the distinct architectures of `--shapes 2x128,4x256` (depth x width) of a kind, and of `--models bert-tiny,…`.

    Raises InputError with every bad name and shape.
    """
    template = kind(of_kind, "--kind")
    rules = ShapeRules.like(template)

    def model(name: str) -> tuple[str, Architecture]:
        return name.lower(), _built(kind(name, "--models"), f"--models {name}")

    def shape(text: str) -> tuple[str, Architecture]:
        depth, width = read_shape("--shapes", text)
        place, own = f"--shapes {depth}x{width}", {"vocabulary": vocabulary, "positions": positions}
        architecture = _built(changed(rules.shape(depth, width, template), own, place), place)
        return f"{of_kind} {architecture.shape_name}" if kind_words(template) else architecture.shape_name, architecture

    requested = [*(partial(model, name) for name in listed(names)), *(partial(shape, text) for text in listed(shapes))]
    if not requested:
        raise InputError.at("--models", "nothing to measure; give --models bert-tiny,… or --shapes 2x128,…")
    return dict(map_all(lambda make: make(), requested))


def _built(architecture: Architecture, place: str) -> Architecture:
    """Return an architecture that can be built; raises InputError at a place for others."""
    if problem := unbuildable(architecture):
        raise InputError.at(place, f"has {problem}")
    return architecture


def disturbance(rows: pd.DataFrame) -> str | None:
    """Return a warning if most medians exceed the fastest call by more than half: the machine was busy."""
    slowed = rows["median_seconds"] / rows["fastest_seconds"]
    if (slowed > 1 + DISTURBED).mean() < 0.5:
        return None
    return (
        f"The median call took {slowed.median():.1f} times as long as the fastest: other programs used this machine. Measure "
        "again when it is idle, or predict the fastest calls (study shapes --latency-statistic fastest)."
    )


def latency_summary(rows: pd.DataFrame) -> Table:
    """Format the rows for a terminal."""
    from rich.table import Table

    first = rows.iloc[0]
    title = f"Encoder forward pass, {first['device']}, {plural(int(first['threads']), 'thread')}; seconds a call"
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    table.add_column("precision")
    for column in ("batch", "length", "n", "fastest", "median", "p95"):
        table.add_column(column, justify="right")
    for row in rows.to_dict("records"):
        times = (seconds_text(row[f"{which}_seconds"]) for which in ("fastest", "median", "p95"))
        table.add_row(row["model"], row["precision"], str(row["batch"]), str(row["sequence_length"]), str(row["n"]), *times)
    return table
