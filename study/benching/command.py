"""The `study bench` command: it measures sections in order and saves each row at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from study.base.errors import InputError
from study.base.machine import busy_share, cores
from study.benching.cases import (
    BATCH,
    PRESET_MODEL,
    RACED_SHAPES,
    RACED_VOCABULARY,
    SEQUENCE_LENGTH,
    SHAPES,
    VOCABULARIES,
    Case,
    RaceCases,
    cases_of_models,
    cases_of_shapes,
    read_shapes,
)
from study.benching.dashboard_opening import measure_dashboard
from study.benching.fine_tuning_speed import measure_fine_tuning
from study.benching.gpu_sharing import measure_sharing
from study.benching.overheads import measure_coordinating, measure_overhead, measure_starting, measure_tokenising
from study.benching.own_processes import failures_reported, in_own_process
from study.benching.preset_speed import measure_presets
from study.benching.results import Report, Results, Row
from study.benching.training_comparison import measure_training
from study.counting.memory import Device, Precision
from study.training.execution import resolve_precision

BY_DEVICE: dict[Device, tuple[str, ...]] = {
    "cpu": ("train", "presets", "finetune", "overhead", "start", "coordination", "data", "laws", "dashboard", "time-to-loss"),
    "cuda": ("train", "presets", "sharing", "time-to-loss"),
}
"""The default sections."""


@dataclass(frozen=True)
class BenchOptions:
    """The command-line options; None means the default of the device or section."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    rounds: int | None = None
    shapes: str | None = None
    vocabularies: tuple[int, ...] | None = None
    dtypes: tuple[Precision, ...] | None = None
    batch: int | None = None
    sequence_length: int | None = None
    dropout: float = 0.0
    tokens: int = 1_000_000
    seeds: int = 1
    preset_alone: bool = False

    def resolved_device(self) -> Device:
        """Resolve the device; raises InputError if CUDA is requested but missing."""
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError.at("--device cuda", "torch sees no CUDA device here; use --device cpu")
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def resolved_threads(self) -> int:
        """Return CPU threads per contender, by default one per core."""
        return self.threads or cores()

    def resolved_rounds(self) -> int:
        """Return the number of rounds: 5, or 3 on CUDA, whose times are steadier."""
        return self.rounds or (3 if self.resolved_device() == "cuda" else 5)

    def cases(self) -> list[Case]:
        """Return the cases of the training table; raises InputError for impossible shapes."""
        device = self.resolved_device()
        if device == "cuda" and self.shapes is None:
            given = {
                "--vocabulary": self.vocabularies,
                "--dtype": self.dtypes,
                "--batch": self.batch,
                "--sequence-length": self.sequence_length,
            }
            if unused := [option for option, value in given.items() if value is not None]:
                raise InputError.at(", ".join(unused), "needs --shapes; without it, bench trains the models of the GPU table")
            return cases_of_models(self.resolved_threads(), self.dropout)
        dtypes: tuple[Precision, ...] = self.dtypes or (("bf16",) if device == "cuda" else ("fp32", "bf16"))
        return self._cases_of_shapes(SHAPES, VOCABULARIES, dtypes)

    def races(self) -> list[RaceCases]:
        """Return the races of time-to-loss, both sides in the same precision if `dtypes` are given.

        By default run_mlm trains on a CPU as Trainer does, in fp32, and ours in fp32 and as `recipe.precision` does.
        """
        device = self.resolved_device()
        own = resolve_precision("auto", device)
        dtypes = self.dtypes or (("fp32",) if device == "cpu" else (own,))
        cases = self._cases_of_shapes(RACED_SHAPES, (RACED_VOCABULARY,), dtypes)
        our_dtypes = () if self.dtypes else (own,)
        return [
            RaceCases(case, replace(case, dtype=dtype)) for case in cases for dtype in dict.fromkeys((case.dtype, *our_dtypes))
        ]

    def preset_cases(self) -> list[Case]:
        """Return the cases of presets: on CUDA PRESET_MODEL, else the raced shapes, in fp32 and as `recipe.precision` does."""
        device = self.resolved_device()
        if device == "cuda" and self.shapes is None:
            return [case for case in self.cases() if (case.model, case.batch, case.sequence_length) == PRESET_MODEL]
        own = resolve_precision("auto", device)
        dtypes = self.dtypes or ((own,) if device == "cuda" else tuple(dict.fromkeys(("fp32", own))))
        return self._cases_of_shapes(RACED_SHAPES, (RACED_VOCABULARY,), dtypes)

    def _cases_of_shapes(self, shapes: str, vocabularies: tuple[int, ...], dtypes: tuple[Precision, ...]) -> list[Case]:
        size = (self.batch or BATCH, self.sequence_length or SEQUENCE_LENGTH)
        rest = {"device": self.resolved_device(), "threads": self.resolved_threads(), "dropout": self.dropout}
        return cases_of_shapes(read_shapes(self.shapes or shapes), self.vocabularies or vocabularies, dtypes, size, **rest)


def run(
    options: BenchOptions,
    only: Sequence[str],
    output: Path,
    show: Callable[[str, Row], None],
    others: Mapping[str, Callable[[Report], None]],
) -> tuple[Results, dict[str, list[Row]]]:
    """Measure the sections of `only`, by default the device's, and return the saved results and their rows.

    `show` takes each section and row; `others` are sections of rooms that train nothing.
    """
    device, threads, rounds = options.resolved_device(), options.resolved_threads(), options.resolved_rounds()
    if "kernels" in only and device == "cpu":
        raise InputError.at("--only kernels", "times the kernels of a CUDA GPU; use --device cuda on a machine with one")
    requested = only or [name for name in BY_DEVICE[device] if name != "laws" or name in others]
    cases = options.cases() if "train" in requested else []
    races = options.races() if "time-to-loss" in requested else []
    of_presets = options.preset_cases() if "presets" in requested else []
    results = Results(output, device, threads)
    sections: dict[str, Callable[[Report], None]] = {
        "train": lambda report: measure_training(cases, rounds, report),
        "presets": lambda report: measure_presets(of_presets, rounds, report),
        "finetune": lambda report: measure_fine_tuning(device, threads, rounds, report),
        "sharing": lambda report: measure_sharing(device, report),
        "kernels": _measure_kernels,
        "overhead": lambda report: measure_overhead(threads, rounds, report),
        "start": measure_starting,
        "coordination": measure_coordinating,
        "data": measure_tokenising,
        "dashboard": measure_dashboard,
        "time-to-loss": lambda report: _race(races, options, results.file, report),
        **others,
    }
    rows: dict[str, list[Row]] = {}
    for name in requested:
        measured, busy = rows.setdefault(name, []), [busy_share()]

        def report(row: Row, name: str = name, measured: list[Row] = measured, busy: list[float | None] = busy) -> None:
            measured.append(row)
            results.put(name, measured, busy)
            show(name, row)

        sections[name](report)
        busy.append(busy_share())
        results.put(name, measured, busy)
    return results, rows


def _measure_kernels(report: Report) -> None:
    from study.benching.kernels import kernel_rows  # Triton is installed for GPUs only

    with failures_reported("kernels", report):
        for row in in_own_process(kernel_rows):
            report(row)


def _race(races: list[RaceCases], options: BenchOptions, results: Path, report: Report) -> None:
    with failures_reported("time to loss", report):
        from study.benching.time_to_loss import measure_time_to_loss  # transformers is installed for benchmarks only

        trainings, rounds = results.with_name(f"{results.stem}-time-to-loss.jsonl"), options.resolved_rounds()
        measure_time_to_loss(races, options.tokens, options.seeds, rounds, trainings, report, options.preset_alone)
