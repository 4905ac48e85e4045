"""What `study latency` does: from the words of the command line to a table on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from study.base.errors import InputError
from study.base.machine import cores
from study.base.quantities import read_whole_numbers, seconds_text
from study.benching.latency_measuring import Case, Progress, Setting, cases, hardware_environment, measure, measured_models
from study.counting.latency_table import check_environment, write_table
from study.counting.memory import Device, Precision

DISTURBED = 0.5
"""By how much, as a share, a median may exceed the fastest call on an idle machine."""

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


@dataclass(frozen=True)
class Choice:
    """What the command line chose: encoders, batches and lengths as it writes them, and how each is timed."""

    models: str
    shapes: str
    batch: str
    sequence_length: str
    vocabulary: int
    positions: int
    threads: int | None
    precision: Precision
    device: Device
    seconds: float

    def cases(self) -> list[Case]:
        """What is measured; raises InputError for options that cannot be."""
        models = measured_models(self.shapes, self.models, self.vocabulary, self.positions)
        batches = read_whole_numbers("--batch", self.batch)
        return cases(models, batches, read_whole_numbers("--sequence-length", self.sequence_length))

    def setting(self) -> Setting:
        """How it is measured; raises InputError where CUDA was asked for and is not there."""
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError.at("--device cuda", "torch sees no CUDA device here; use --device cpu")
        return Setting(self.device, self.precision, self.threads or cores(), self.seconds)


def measure_into(out: Path, choice: Choice, progress: Progress) -> tuple[pd.DataFrame, Path]:
    """Measure what was chosen and put it into the table under `out`; returns the rows and its path.

    Raises InputError for bad options before anything is measured.
    """
    wanted, setting = choice.cases(), choice.setting()
    environment = hardware_environment(choice.device)
    check_environment(environment, out)
    rows = measure(wanted, setting, progress)
    return rows, write_table(rows, environment, out)


def disturbed(rows: pd.DataFrame) -> str | None:
    """A warning where the median call took half as long again as the fastest in most cases: the machine was not idle."""
    slowed = rows["median_seconds"] / rows["fastest_seconds"]
    if (slowed > 1 + DISTURBED).mean() < 0.5:
        return None
    return (
        f"The median call took {slowed.median():.1f} times as long as the fastest: other programs used this machine. Measure "
        "again when it is idle, or predict the fastest calls (study shapes --latency-statistic fastest)."
    )


def table_of(rows: pd.DataFrame) -> Table:
    """The rows as a table for a terminal."""
    from rich.table import Table

    first = rows.iloc[0]
    title = f"Encoder forward pass, {first['precision']}, {first['device']}, {first['threads']} threads; seconds a call"
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for column in ("batch", "length", "n", "fastest", "median", "p95"):
        table.add_column(column, justify="right")
    for row in rows.to_dict("records"):
        times = (seconds_text(row[f"{which}_seconds"]) for which in ("fastest", "median", "p95"))
        table.add_row(row["model"], str(row["batch"]), str(row["sequence_length"]), str(row["n"]), *times)
    return table
