"""What `study latency` does: from the words of the command line to a table on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.errors import InputError
from study.latency.table import check_environment, write_table
from study.machine import cores
from study.quantities import read_whole_numbers, seconds_text
from study.timing.measuring import Progress, Setting, cases, hardware_environment, measure, measured_models

DISTURBED = 0.5
"""By how much, as a share, a median may exceed the fastest call on an idle machine."""

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


def measure_into(
    out: Path,
    progress: Progress,
    *,
    models: str,
    shapes: str,
    batch: str,
    sequence_length: str,
    vocabulary: int,
    positions: int,
    threads: int | None,
    precision: Any,
    device: Any,
    seconds: float,
) -> tuple[pd.DataFrame, Path]:
    """Measure what the options name and put it into the table under `out`; returns the rows and its path.

    Raises InputError for bad options before anything is measured.
    """
    import torch

    named = measured_models(shapes, models, vocabulary, positions)
    batches = read_whole_numbers("--batch", batch)
    lengths = read_whole_numbers("--sequence-length", sequence_length)
    wanted = cases(named, batches, lengths)
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError.at("--device cuda", "torch sees no CUDA device here; use --device cpu")
    environment = hardware_environment(device)
    check_environment(environment, out)
    setting = Setting(device, precision, threads or cores(), seconds)
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
