"""Which cells count as shapes of one size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from study.base.errors import InputError
from study.base.quantities import EQUAL_WITHIN
from study.base.schema import deep_merge
from study.config.presets import PRESETS
from study.config.recipe import Budget
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.evidence.cells import CellResult, cells_of, difference_between, scatter_of_cells
from study.evidence.families import families_of
from study.evidence.learning_rates import RateSearch
from tests.synthetic import SEQUENCES, SWEEP, Law, add_run, depth_or_width, run_config, sweep_folder


def cell(depth: int, size: int) -> CellResult:
    """A cell without runs; its architecture does not have that size."""
    return CellResult(
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
    actual = families_of(tuple(cell(depth, size) for depth, size in enumerate(sizes, start=1)))
    assert [len(family.cells) for family in actual] == families
    assert all(family.equal_parameters for family in actual)


def test_cells_of_as_many_tokens_to_the_nearest_doubling_are_one_pool() -> None:
    tokens = [2**20, int(1.41 * 2**20), int(1.42 * 2**20), 2**21]
    pools = [replace(cell(1, 950_000), tokens=count).pool for count in tokens]
    assert [pool.doublings for pool in pools] == [20, 20, 21, 21]
    assert len(set(pools)) == 2


def test_cells_of_no_two_equal_sizes_are_one_family_a_budget() -> None:
    (family,) = families_of((cell(1, 950_000), cell(2, 1_050_001)))
    assert (len(family.cells), family.equal_parameters) == (2, False)


@pytest.mark.parametrize(
    ("largest", "statuses"),
    [
        (2e-3, ["bracketed", "transferred", "bracketed"]),
        (1e-3, ["bracketed", "only_tried", "lowest_tried"]),
        (None, ["bracketed", "only_tried", "only_tried"]),
    ],
)
def test_a_rate_of_the_smallest_cell_is_transferred_where_the_largest_bears_it_out(
    largest: float | None, statuses: list[str], tmp_path: Path
) -> None:
    """Two seeds at two budgets, of which the first budget has no check of its own; without one nothing is transferred."""
    tune = {"recipe.learning_rate": {"low": 1e-3, "high": 8e-3, "trials": 4, "at": "smallest"}}
    folder = sweep_folder(tmp_path / "sweep", SWEEP | {"tune": tune})
    around = {2e-3: (1e-3, 2e-3, 4e-3), 1e-3: (1e-3, 2e-3, 4e-3), None: (2e-3,)}[largest]
    for tokens in (1e6, 2e6):
        for width, rates in ((64, (1e-3, 2e-3, 4e-3)), (96, (2e-3,)), (128, around if tokens == 2e6 else (2e-3,))):
            best = largest if largest and (width, tokens) == (128, 2e6) else 2e-3
            for rate in rates:
                add_run(folder, run_config(1, width, rate, tokens=tokens), Law(best_rate=best))
            add_run(folder, run_config(1, width, best, 1, tokens), Law(best_rate=best))
    cells = cells_of(folder, folder.write_ledger())
    at_largest = [cell.rates.status for cell in cells if cell.tokens > 1.5e6]
    assert at_largest == statuses
    assert [cell.rates.bracketed for cell in cells] == [cell.rates.status in ("bracketed", "transferred") for cell in cells]
    assert [cell.rates.status for cell in cells if cell.tokens < 1.5e6] == ["bracketed", statuses[1], statuses[1]]


def test_seeds_share_a_variance_only_where_their_losses_compare() -> None:
    """Losses of detecting replaced tokens scatter in another unit than those of masked words."""
    drawn = np.random.default_rng(0).normal(size=(4, 3, 50))
    kinds = ("words", "words", "replaced", "replaced")
    cells = [
        replace(cell(1, 10**6), name=str(number), validation=kind, runs=("a", "b", "c"), seeds=(0, 1, 2), losses=losses)
        for number, (kind, losses) in enumerate(zip(kinds, drawn, strict=True))
    ]
    pools = [{*scatter.variances} for scatter in scatter_of_cells(cells)]
    assert pools == [{"0", "1"}, {"2", "3"}]


def test_errors_cluster_by_the_documents_that_any_run_keeps(tmp_path: Path) -> None:
    """Runs of an earlier version keep none."""
    folder = depth_or_width(tmp_path / "sweep", seeds=2, shapes=[(1, 64), (2, 64)], rates=[1e-3], budgets=[1e6])
    alone = cells_of(folder, folder.write_ledger())
    documents = np.arange(SEQUENCES) // 4
    (first, *_) = [folder.run(run_id) for run_id in alone[0].runs]
    first.write_validation_documents(documents)
    one, other = cells_of(folder, folder.write_ledger())
    assert np.array_equal(np.array(one.documents), documents)
    assert other.documents is None
    sums = (one.losses.mean(axis=0) - one.losses.mean()).reshape(-1, 4).sum(axis=1)
    assert one.standard_error_nats == pytest.approx(np.sqrt((sums**2).sum() * 50 / 49) / SEQUENCES)
    assert one.standard_error_nats != alone[0].standard_error_nats
    assert other.standard_error_nats == alone[1].standard_error_nats
    assert difference_between(one, other, {}).n_documents == difference_between(other, one, {}).n_documents == 50
    assert difference_between(alone[0], alone[1], {}).n_documents is None
    first.write_validation_documents(np.zeros(SEQUENCES, np.int64))
    assert cells_of(folder, folder.write_ledger())[0].standard_error_nats is None, "one document says nothing of others"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x93NUMPY", "is damaged"), (None, "lists the documents of 3 sequences, but the run has losses for 200")],
)
def test_documents_that_are_not_of_the_sequences_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    folder = depth_or_width(tmp_path / "sweep", seeds=1, shapes=[(1, 64)], rates=[1e-3], budgets=[1e6])
    (run,) = folder.runs()
    run.write_validation_documents(np.arange(3))
    if content is not None:
        run.validation_documents_file.write_bytes(content)
    with pytest.raises(InputError, match=rf"validation_documents\.npy: {message}"):
        cells_of(folder, folder.ledger())
    assert folder.write_ledger()["exclusion"].tolist() == ["validation_documents.npy is gone or damaged"]


@pytest.mark.parametrize("changes", [{"loss_nats": 9.0}, {"validation_masked_tokens": 0}])
def test_losses_of_sequences_that_are_not_those_of_the_record_are_refused(tmp_path: Path, changes: dict[str, float]) -> None:
    folder = depth_or_width(tmp_path / "sweep", seeds=1, shapes=[(1, 64)], rates=[1e-3], budgets=[1e6])
    assert len(cells_of(folder, folder.write_ledger())) == 1
    (run,) = folder.runs()
    record = json.loads(run.record_file.read_text())
    run.record_file.write_text(json.dumps(record | changes))
    with pytest.raises(InputError, match=r"validation_losses\.npy: sums to .* nats, but its record .*; fetch both"):
        cells_of(folder, folder.ledger())
    assert folder.write_ledger()["exclusion"].tolist() == ["validation_losses.npy is gone or damaged"]


def test_compared_presets_are_one_knob_of_a_variant(tmp_path: Path) -> None:
    """They stand for all that they set, also for the rate where none is tuned; what else is varied stands beside them."""
    sweep = {key: value for key, value in SWEEP.items() if key != "tune"}
    folder = sweep_folder(tmp_path / "sweep", sweep | {"vary": {"preset": [*PRESETS], "recipe.dropout": [0.0, 0.1]}})
    for preset in PRESETS:
        for dropout in (0.0, 0.1):
            plain = run_config(1, 64, dropout=dropout).to_dict()
            add_run(folder, RunConfig.parse(deep_merge(plain, PRESETS[preset])))
    cells = cells_of(folder, folder.ledger())
    assert [cell.settings for cell in cells] == [
        {"preset": preset, "recipe.dropout": dropout} for preset in PRESETS for dropout in (0.0, 0.1)
    ]
