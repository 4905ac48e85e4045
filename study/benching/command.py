"""What `study bench` does: the sections asked for, one after the other, every row written and told as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from study.base.errors import InputError
from study.base.machine import busy_share, cores
from study.benching.apart import measure_apart
from study.benching.cases import (
    BATCH,
    SEQUENCE_LENGTH,
    SHAPES,
    VOCABULARIES,
    Case,
    cases_of_models,
    cases_of_shapes,
    read_shapes,
)
from study.benching.coordinating import measure_coordinating
from study.benching.cost_growth import measure_roofline
from study.benching.figures import Tell
from study.benching.fine_tuning_speed import measure_fine_tuning
from study.benching.gpu_sharing import measure_sharing
from study.benching.results import Results
from study.benching.starting import measure_starting
from study.benching.surroundings import measure_data, measure_overhead, measure_validation
from study.benching.training_rounds import measure_training
from study.counting.memory import Device, Precision

BY_DEVICE: dict[Device, tuple[str, ...]] = {
    "cpu": ("train", "finetune", "overhead", "start", "coordination", "data", "validation", "laws", "roofline"),
    "cuda": ("train", "sharing"),
}
"""What is measured where nothing is chosen."""


@dataclass(frozen=True)
class Choice:
    """What the command line chose; `shapes` None stands for the device's own cases."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    rounds: int | None = None
    shapes: str | None = None
    vocabularies: tuple[int, ...] | None = None
    dtypes: tuple[Precision, ...] | None = None
    batch: int | None = None
    sequence_length: int | None = None
    dropout: float = 0.0

    def resolved_device(self) -> Device:
        """The device; raises InputError where cuda was asked for and is not there."""
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError.at("--device cuda", "torch sees no CUDA device here; use --device cpu")
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def resolved_threads(self) -> int:
        """CPU threads of each contender, by default one a core of this process."""
        return self.threads or cores()

    def resolved_rounds(self) -> int:
        """Rounds in which contenders take turns: 5, or 3 on CUDA, whose times are steadier."""
        return self.rounds or (3 if self.resolved_device() == "cuda" else 5)

    def cases(self) -> list[Case]:
        """What is trained; raises InputError for shapes that cannot be."""
        device, threads = self.resolved_device(), self.resolved_threads()
        if device == "cuda" and self.shapes is None:
            given = {
                "--vocabulary": self.vocabularies,
                "--dtype": self.dtypes,
                "--batch": self.batch,
                "--sequence-length": self.sequence_length,
            }
            if unread := [option for option, value in given.items() if value is not None]:
                raise InputError.at(", ".join(unread), "is of --shapes; without them the models of the GPU's table are trained")
            return cases_of_models(threads, self.dropout)
        dtypes: tuple[Precision, ...] = self.dtypes or (("bf16",) if device == "cuda" else ("fp32", "bf16"))
        rest = {"device": device, "threads": threads, "dropout": self.dropout}
        size, shapes = (self.batch or BATCH, self.sequence_length or SEQUENCE_LENGTH), read_shapes(self.shapes or SHAPES)
        return cases_of_shapes(shapes, self.vocabularies or VOCABULARIES, dtypes, size, **rest)


def run(
    choice: Choice,
    only: Sequence[str],
    output: Path,
    told: Callable[[str, dict[str, Any]], None],
    others: Mapping[str, Callable[[Tell], None]],
) -> tuple[Results, dict[str, list[dict[str, Any]]]]:
    """Measure the sections of `only`, or the device's own, and return where they are kept and their rows.

    `others` are sections that are measured in the half of the workbench that trains nothing.
    """
    cases, device, threads = choice.cases(), choice.resolved_device(), choice.resolved_threads()
    if "kernels" in only and device == "cpu":
        raise InputError.at("--only kernels", "times the kernels of a CUDA GPU; use --device cuda where there is one")
    sections: dict[str, Callable[[Tell], None]] = {
        "train": lambda tell: measure_training(cases, choice.resolved_rounds(), tell),
        "finetune": lambda tell: measure_fine_tuning(device, threads, choice.resolved_rounds(), tell),
        "sharing": lambda tell: measure_sharing(device, tell),
        "kernels": lambda tell: measure_apart("study.benching.kernels", "kernels", tell),
        "overhead": lambda tell: measure_overhead(threads, choice.resolved_rounds(), tell),
        "start": measure_starting,
        "coordination": measure_coordinating,
        "data": lambda tell: measure_data(threads, tell),
        "validation": lambda tell: measure_validation(threads, tell),
        "roofline": lambda tell: measure_roofline(device, threads, tell),
        **others,
    }
    results = Results(output, device, threads)
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in only or [name for name in BY_DEVICE[device] if name in sections]:
        found, busy = rows.setdefault(name, []), [busy_share()]

        def tell(
            row: dict[str, Any], name: str = name, found: list[dict[str, Any]] = found, busy: list[float | None] = busy
        ) -> None:
            found.append(row)
            results.put(name, found, busy)
            told(name, row)

        sections[name](tell)
        busy.append(busy_share())
        results.put(name, found, busy)
    return results, rows
