"""Compressed encoders in a sweep's ledger, beside their sources and the smaller shape nearest in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from study.base.grouping import grouped
from study.base.quantities import bytes_text
from study.counting.architecture import Architecture
from study.counting.memory import model_bytes
from study.evidence.cells import CellResult, documents_of, per_masked_token
from study.evidence.paired import Difference, difference_over_runs, paired_difference
from study.evidence.seed_scatter import SeedVariances
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder


@dataclass(frozen=True)
class Compression:
    """Runs of no steps in one format, made alike from the runs of one cell, and their loss minus that of these.

    They have the source's shape, or fewer layers, neurons or narrower tables; `rounds` says that only their numbers differ.
    `beside` is the cell of a smaller shape, trained alike, that is nearest in bytes, and `against` the loss minus its; both are
    None without one. Bytes are those of the MLM model's weights.
    """

    name: str
    rounds: bool
    bytes: int
    against_source: Difference
    beside: str | None = None
    against: Difference | None = None


def compressions_of(
    folder: SweepFolder, ledger: pd.DataFrame, cells: Sequence[CellResult], seeds: SeedVariances
) -> tuple[Compression, ...]:
    """Return a sweep's compressions of its own runs (`study compress --beside`), smallest first."""
    if "recipe.weights" not in ledger:
        return ()
    weights = ledger["recipe.weights"]
    made = ledger[weights.notna() & (weights != "fp32") & (ledger["steps"] == 0)]
    records = [record for run in made["run_id"] if (record := folder.run(str(run)).record()) is not None]
    of_run = {run: cell for cell in cells for run in cell.runs}
    alike_by = grouped(
        [record for record in records if _source(record) in of_run and not of_run[_source(record)].per_byte],
        lambda record: (record.config.recipe.weights, record.config.architecture, _kept(record), of_run[_source(record)].name),
    )
    compressions = [_compression(folder, ledger, alike, of_run[_source(alike[0])], cells, seeds) for alike in alike_by.values()]
    return tuple(sorted(compressions, key=lambda compression: compression.bytes))


def _source(record: RunRecord) -> str:
    start = record.config.recipe.init_from
    return "" if start is None else start.folder.name


def _kept(record: RunRecord) -> object:
    start = record.config.recipe.init_from
    return None if start is None else start.keep


def _compression(
    folder: SweepFolder,
    ledger: pd.DataFrame,
    made: Sequence[RunRecord],
    source: CellResult,
    cells: Sequence[CellResult],
    seeds: SeedVariances,
) -> Compression:
    form, architecture = made[0].config.recipe.weights, made[0].config.architecture
    rows = ledger.set_index("run_id").loc[[record.run_id for record in made]]
    losses = np.array([per_masked_token(folder.run(str(run)), row) for run, row in rows.iterrows()])
    before = source.losses[[source.runs.index(_source(record)) for record in made]]
    keep = _kept(made[0]) if architecture.depth < source.architecture.depth else None
    name, size = f"{form} {architecture.shape_name}{f' ({keep} layers)' if keep else ''}", model_bytes(architecture, form)
    rounds = architecture == source.architecture
    of_source = difference_over_runs(losses - before, source.documents)
    beside = min(_rivals(source, cells), key=lambda cell: abs(model_bytes(cell.architecture) - size), default=None)
    if beside is None:
        return Compression(name, rounds, size, of_source)
    variances = [seeds[cell.name] for cell in (source, beside) if cell.name in seeds]
    documents = documents_of((source, beside))
    against = paired_difference(losses, beside.losses, variances if len(variances) == 2 else None, documents)
    return Compression(name, rounds, size, of_source, _in_bytes(beside.architecture), against)


def _rivals(source: CellResult, cells: Sequence[CellResult]) -> list[CellResult]:
    """Return the usable cells of smaller shapes, otherwise like the source."""
    return [
        cell
        for cell in cells
        if cell.usable
        and cell.parameters < source.parameters
        and (cell.settings, cell.budget, cell.validation) == (source.settings, source.budget, source.validation)
    ]


def _in_bytes(architecture: Architecture) -> str:
    return f"{architecture.shape_name} in fp32 ({bytes_text(model_bytes(architecture, 'fp32'))})"
