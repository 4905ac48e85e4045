"""The bill of a sweep before anything is spent: parameters, tokens, FLOPs and expected seconds, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from study.config import RunConfig
from study.counting import parameters
from study.records import RunRecord, counts_of
from study.sweeping.plan import cells, check_space, searched_config
from study.sweeping.spec import SweepSpec

ASSUMED_FLOPS_PER_SECOND = {"cpu": 4e10, "cuda": 1e14}
"""What a slot is taken to achieve (train_flops per second) before any record of it is there: one CPU core, one GPU."""


@dataclass(frozen=True)
class BillRow:
    """What one cell will cost."""

    shape: str
    parameters: int
    parameters_non_embedding: int
    tokens: int
    runs: int
    train_flops: float
    expected_seconds: float


@dataclass(frozen=True)
class Bill:
    """What a sweep will cost, cell by cell; extensions of a learning-rate range are not in it."""

    rows: tuple[BillRow, ...]
    slots: int
    basis: str

    def to_dict(self) -> dict[str, Any]:
        """The bill as plain values."""
        totals = ("runs", "tokens", "train_flops", "expected_seconds")
        return {"cells": [asdict(row) for row in self.rows], "slots": self.slots, "basis": self.basis} | {
            name: getattr(self, name) for name in totals
        }

    @property
    def runs(self) -> int:
        """Runs of all cells."""
        return sum(row.runs for row in self.rows)

    @property
    def tokens(self) -> int:
        """Training tokens of all runs."""
        return sum(row.tokens * row.runs for row in self.rows)

    @property
    def train_flops(self) -> float:
        """FLOPs of all runs, convention train_flops."""
        return sum(row.train_flops * row.runs for row in self.rows)

    @property
    def expected_seconds(self) -> float:
        """Wall time on all slots together."""
        return sum(row.expected_seconds * row.runs for row in self.rows) / self.slots


def bill(spec: SweepSpec, slots: int, device: str, records: Iterable[RunRecord] = ()) -> Bill:
    """The bill of a sweep on `slots` slots of a kind of device, timed by the median rate of earlier `records` if any.

    Raises InputError with every problem of every run that the sweep may want.
    """
    rates = [
        record.train_flops / record.wall_seconds
        for record in records
        if record.wall_seconds and record.environment and (record.environment.device == "cpu") == (device == "cpu")
    ]
    rate = median(rates) if rates else ASSUMED_FLOPS_PER_SECOND[device]
    basis = f"{rate:.2g} FLOP/s a slot, " + (f"the median of {len(rates)} earlier runs" if rates else "assumed: no earlier run")
    if spec.search is not None:
        check_space(spec)
        configs = [(search_example(spec), spec.search.trials)]
    else:
        configs = [(cell.config, cell.planned_runs()) for cell in cells(spec)]
    return Bill(tuple(_row(config, runs, rate) for config, runs in configs), slots, basis)


def first_runs(spec: SweepSpec) -> list[RunConfig]:
    """What a sweep starts with, before there are records: every cell's first runs, or the largest that a search may try."""
    if spec.search is not None:
        return [search_example(spec)]
    return [run for cell in cells(spec) for run in cell.wanted({})]


def search_example(spec: SweepSpec) -> RunConfig:
    """The largest run that a search may try, by which its bill is made: each dimension at its high end or last choice."""
    assert spec.search is not None
    values = {path: dimension.top() for path, dimension in spec.search.space.items()}
    return searched_config(spec, values)


def _row(config: RunConfig, runs: int, rate: float) -> BillRow:
    flops = counts_of(config, config.steps)["train_flops"]
    count = parameters(config.architecture)
    return BillRow(
        shape=config.architecture.shape_name,
        parameters=count.parameters,
        parameters_non_embedding=count.parameters_non_embedding,
        tokens=config.tokens,
        runs=runs,
        train_flops=flops,
        expected_seconds=flops / rate,
    )
