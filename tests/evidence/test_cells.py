"""Which cells count as shapes of one size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from study.base.errors import InputError
from study.base.quantities import EQUAL_WITHIN
from study.config.recipe import Budget
from study.counting.architecture import Architecture
from study.evidence.cells import Cell, cells_of
from study.evidence.families import families_of
from study.evidence.learning_rates import RateSearch
from tests.synthetic import depth_or_width


def cell(depth: int, size: int) -> Cell:
    """A cell without runs; its architecture does not have that size."""
    return Cell(
        name=f"{depth}",
        settings={},
        budget=Budget(tokens=1e6),
        architecture=Architecture.parse({"depth": depth, "width": 64, "heads": 2, "ffn": 256, "vocabulary": 9, "positions": 8}),
        parameters=size,
        parameters_encoder=size,
        parameters_non_embedding=size,
        tokens=10**6,
        budget_share=1.0,
        train_flops=1e12,
        validation="same",
        unigram_entropy_nats=None,
        rates=RateSearch((), "none_usable"),
        runs=(),
        seeds=(),
        losses=np.empty((0, 0)),
    )


@pytest.mark.parametrize(("largest", "families"), [(1_049_999, [3, 1]), (1_050_001, [2, 2])])
def test_cells_within_five_percent_of_one_size_have_equal_parameters(largest: int, families: list[int]) -> None:
    assert EQUAL_WITHIN == 0.05
    sizes = [950_000, 1_000_000, largest, 1_100_000]
    found = families_of(tuple(cell(depth, size) for depth, size in enumerate(sizes, start=1)))
    assert [len(family.cells) for family in found] == families
    assert all(family.equal_parameters for family in found)


def test_cells_of_as_many_tokens_to_the_nearest_doubling_are_one_pool() -> None:
    tokens = [2**20, int(1.41 * 2**20), int(1.42 * 2**20), 2**21]
    pools = [replace(cell(1, 950_000), tokens=count).pool for count in tokens]
    assert [pool.doublings for pool in pools] == [20, 20, 21, 21]
    assert len(set(pools)) == 2


def test_cells_of_no_two_equal_sizes_are_one_family_a_budget() -> None:
    (family,) = families_of((cell(1, 950_000), cell(2, 1_050_001)))
    assert (len(family.cells), family.equal_parameters) == (2, False)


@pytest.mark.parametrize("changes", [{"loss_nats": 9.0}, {"validation_masked_tokens": 0}])
def test_losses_of_sequences_that_are_not_those_of_the_record_are_refused(tmp_path: Path, changes: dict[str, float]) -> None:
    folder = depth_or_width(tmp_path / "sweep", seeds=1, shapes=[(1, 64)], rates=[1e-3], budgets=[1e6])
    assert len(cells_of(folder, folder.write_ledger())) == 1
    (run,) = folder.runs()
    record = json.loads(run.record_file.read_text())
    run.record_file.write_text(json.dumps(record | changes))
    with pytest.raises(InputError, match=r"validation_losses\.npy: sums to .* nats where its record tells .*; fetch both"):
        cells_of(folder, folder.write_ledger())
