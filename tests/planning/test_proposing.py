"""What runs next in a sweep of cells, and that a record asks no cell but its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from study.config.run_config import RunConfig
from study.executing.slots import Slot
from study.planning.cell import Cell, Tuning
from study.planning.cost_estimate import estimate_cost
from study.planning.plan import Plan, cells
from study.planning.proposing import CellProposer
from study.store.records import RunRecord
from tests.sweeps import RATES, record, sweep

SPEC = sweep(shapes={"grid": {"depth": list(range(1, 11))}}, tune=RATES, seeds=2)
CHAIN = sweep(shapes={"grid": {"depth": [1, 2, 4]}}, tune={"recipe.learning_rate": {"low": 0.01, "high": 0.16, "trials": 5}})
"""Each cell begins its search at the best of the one before."""


def test_a_record_asks_only_the_cell_that_asked_for_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    answer = Cell.wanted

    def counted(cell: Cell, records: Mapping[str, RunRecord], tuning: Tuning | None = None) -> list[RunConfig]:
        asked[cell.config.architecture.shape_name] += 1
        return answer(cell, records, tuning)

    monkeypatch.setattr(Cell, "wanted", counted)
    proposer, records = CellProposer(cells(SPEC)), dict[str, RunRecord]()
    (first,) = proposer.wanted(records, (), 1)
    assert set(asked.values()) == {1}
    records[first.key] = record(first)
    proposer.tell(first.key, records[first.key])
    proposer.wanted(records, (), 1)
    assert {shape: count for shape, count in asked.items() if count > 1} == {first.architecture.shape_name: 2}


def test_a_run_is_not_asked_for_again_whatever_its_record_says_of_it() -> None:
    proposer = CellProposer(cells(sweep()))
    first, second = proposer.wanted({}, (), 2)
    ended = {first.key: record(second)}
    proposer.tell(first.key, ended[first.key])
    assert proposer.wanted(ended, (), 2) == [second]


def test_a_restart_and_a_bill_look_at_each_search_once_however_many_cells_are_in_front_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned, records = cells(CHAIN), dict[str, RunRecord]()
    while wanted := [config for cell in planned for config in cell.wanted(records)]:
        for config in wanted:
            loss, run_id = 2 + abs(config.recipe.learning_rate - 0.04), config.fingerprint("data")
            records[config.key] = record(config, loss, run_id=run_id)
    looked: Counter[str] = Counter()
    look = Cell.tuning

    def counted(cell: Cell, records: Mapping[str, RunRecord], before: Tuning | None = None) -> Tuning:
        looked[cell.config.architecture.shape_name] += 1
        return look(cell, records, before)

    monkeypatch.setattr(Cell, "tuning", counted)
    assert CellProposer(planned).wanted(records, (), 1) == []
    assert looked == {cell.config.architecture.shape_name: 1 for cell in planned}
    assert estimate_cost(Plan(CHAIN, [*records.values()]), [Slot("cpu", (0,), threads=1)]).runs_left == 0
    assert looked == {cell.config.architecture.shape_name: 2 for cell in planned}


def test_runs_are_given_once_longest_first_and_again_where_they_ended_without_a_record() -> None:
    proposer, records = CellProposer(cells(SPEC)), dict[str, RunRecord]()
    given = proposer.wanted(records, (), 7)
    assert [config.architecture.depth for config in given] == [10, 10, 10, 9, 9, 9, 8]
    running = [config.key for config in given]
    assert proposer.waiting == 23
    assert proposer.wanted(records, running, 0) == []
    lost = running.pop(2)
    again = proposer.wanted(records, running, 2)
    assert again[0].key == lost
    assert again[1].architecture.depth == 8
    assert proposer.waiting == 22


def test_a_sweep_of_cells_ends_with_what_each_cell_asked_for() -> None:
    proposer, records = CellProposer(cells(SPEC)), dict[str, RunRecord]()
    while given := proposer.wanted(records, (), 4):
        for config in given:
            assert config.key not in records
            records[config.key] = record(config, 2 + abs(config.recipe.learning_rate - 0.04))
            proposer.tell(config.key, records[config.key])
    assert len(records) == 10 * 4
    assert proposer.waiting == 0
    assert not any(cell.wanted(records) for cell in cells(SPEC))


def test_cells_further_along_are_asked_where_a_record_in_front_of_them_comes_back() -> None:
    """Of three cells, each of which begins at the best of the one before, the first lacks a run and the last all of them."""
    planned = cells(CHAIN)
    assert [cell.neighbour and cell.neighbour.config.architecture.depth for cell in planned] == [None, 1, 2]

    def ended(records: dict[str, RunRecord]) -> dict[str, RunRecord]:
        proposer = CellProposer(planned)
        while given := proposer.wanted(records, (), 1):
            records[given[0].key] = record(given[0], 2 + abs(given[0].recipe.learning_rate - 0.04))
            proposer.tell(given[0].key, records[given[0].key])
        return records

    whole = ended({})
    first = next(key for key, one in whole.items() if one.config.architecture.depth == 1)
    left = {key: one for key, one in whole.items() if one.config.architecture.depth < 4 and key != first}
    assert ended(left).keys() == whole.keys()
