"""Runs that read no word order are compared, and no verdict on shapes rests on them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from study.evidence.cells import both_read, either_reads
from study.evidence.evidence import Evidence, gather
from study.evidence.ledgers import open_ledger
from study.evidence.shape_multiverse import explore_shapes
from study.laws.law_fits import fit_table
from study.laws.reading import TableQuery
from study.report.findings import loss_findings
from study.report.verdicts import verdict_of
from study.store.sweep_folder import SweepFolder
from tests.synthetic import SWEEP, add_run, depth_or_width, in_setting, run_config, sweep_folder

SHAPES = ((1, 128), (2, 92), (4, 64))
FIXED: dict[str, Any] = SWEEP | {"tune": {}}


def gathered(folder: SweepFolder) -> Evidence:
    folder.write_ledger()
    return gather(folder, include_unbracketed=True)


def of_shapes(path: Path, gains: dict[int, float | None], seeds: int = 3, budgets: tuple[float, ...] = (1e6,)) -> SweepFolder:
    """A sweep of equal parameters whose runs of each depth have an order gain, 1 nat where none is given."""
    folder = sweep_folder(path, FIXED)
    for depth, width in SHAPES:
        for tokens in budgets:
            for seed in range(seeds):
                add_run(folder, run_config(depth, width, seed=seed, tokens=tokens), order_gain=gains.get(depth, 1.0))
    return folder


def of_variants(path: Path, post: float | None, pre: float | None) -> Evidence:
    folder = sweep_folder(path, FIXED | {"vary": {"architecture.norm": ["post", "pre"]}})
    for norm, gain in (("post", post), ("pre", pre)):
        for seed in range(3):
            add_run(folder, in_setting(run_config(1, 64, seed=seed), norm=norm), order_gain=gain)
    return gathered(folder)


def statuses(evidence: Evidence) -> dict[str, str]:
    return {pair.sides.replace("-A2", ""): pair.status for pair in evidence.comparisons.pairs}


def test_there_is_no_verdict_on_shapes_of_which_one_reads_no_order(tmp_path: Path) -> None:
    evidence = gathered(of_shapes(tmp_path / "s", {4: 0.0003}))
    assert statuses(evidence) == {
        "L2-H92-F368 − L1-H128-F512": "decided",
        "L4-H64-F256 − L1-H128-F512": "reads_no_order",
        "L4-H64-F256 − L2-H92-F368": "reads_no_order",
    }
    assert all(cell.usable for cell in evidence.cells), "it stays among the cells, with its loss"
    assert {cell.architecture.depth: cell.reads_order for cell in evidence.cells} == {1: True, 2: True, 4: False}
    assert evidence.excluded.empty
    (decided,) = (pair for pair in evidence.comparisons.pairs if pair.status == "decided")
    assert decided.p_value_holm == decided.difference.p_value, "what says nothing costs the others nothing"
    assert {pair.p_value_holm for pair in evidence.comparisons.pairs if pair is not decided} == {None}


def test_one_seed_that_reads_no_order_is_enough(tmp_path: Path) -> None:
    folder = of_shapes(tmp_path / "s", {})
    add_run(folder, run_config(4, 64, seed=3), order_gain=0.0)
    evidence = gathered(folder)
    (deep,) = (cell for cell in evidence.cells if cell.architecture.depth == 4)
    assert (deep.reads_order, len(deep.runs)) == (False, 4)
    assert deep.order_gain_nats == pytest.approx(0.75)
    assert list(statuses(evidence).values()).count("reads_no_order") == 2


@pytest.mark.parametrize(
    ("post", "pre", "verdict"),
    [(1.0, 1.0, True), (0.0, 1.0, True), (1.0, 0.0, True), (None, None, True), (0.0, None, True), (0.0, 0.0, False)],
)
def test_there_is_a_verdict_on_settings_of_which_one_reads(
    post: float | None, pre: float | None, verdict: bool, tmp_path: Path
) -> None:
    """What lets an encoder read is a finding; two bags of words say nothing of it."""
    (pair,) = of_variants(tmp_path / "s", post, pre).comparisons.pairs
    assert (pair.status != "reads_no_order") is verdict
    assert (pair.p_value_holm is not None) is verdict


def test_there_is_no_verdict_on_shapes_and_steps_whose_order_was_not_measured_but_on_more_tokens(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", FIXED)
    shapes = ((1, 128), (2, 92), (2, 128))
    for (depth, width), tokens, seed in product(shapes, (1e6, 2e6), range(3)):
        add_run(folder, run_config(depth, width, seed=seed, tokens=tokens), order_gain=None)
    evidence = gathered(folder)
    assert {pair.status for pair in (*evidence.comparisons.pairs, *evidence.gains)} == {"order_not_measured"}
    assert {pair.p_value_holm for pair in (*evidence.comparisons.pairs, *evidence.gains)} == {None}
    assert evidence.averages == ()
    assert {gain.status for gain in evidence.token_gains} == {"decided"}
    assert not any(one.status == "decided" for one in evidence.dominances)
    text = " ".join(loss_findings(evidence))
    assert "No verdict on 4 steps to a larger size" not in text, "pairs of shapes say it"
    assert "word order was not measured, without which losses say little; new runs measure it." in text


def test_a_verdict_on_variants_says_that_their_order_was_not_measured(tmp_path: Path) -> None:
    evidence = of_variants(tmp_path / "s", None, None)
    assert verdict_of(evidence).certainty.startswith("Whether these encoders read word order was not measured")
    known = verdict_of(of_variants(tmp_path / "t", 1.0, 1.0))
    assert "not measured" not in f"{known.sentence} {known.certainty}"


def test_what_is_not_known_of_one_side_is_not_known_of_both(tmp_path: Path) -> None:
    evidence = gathered(of_shapes(tmp_path / "s", {1: 1.0, 2: 0.0, 4: None}))
    yes, no, unknown = sorted(evidence.cells, key=lambda cell: cell.architecture.depth)
    assert [cell.reads_order for cell in (yes, no, unknown)] == [True, False, None]
    assert [both_read(*two) for two in ((yes, yes), (yes, no), (yes, unknown), (no, unknown))] == [True, False, None, False]
    assert [either_reads(*two) for two in ((yes, no), (no, no), (yes, unknown), (no, unknown))] == [True, False, True, None]


def test_steps_to_a_larger_shape_with_one_that_reads_no_order_have_no_verdict_and_those_to_more_tokens_have(
    tmp_path: Path,
) -> None:
    folder = sweep_folder(tmp_path / "s", FIXED)
    for depth in (1, 2, 4):
        for tokens in (1e6, 2e6):
            for seed in range(3):
                add_run(folder, run_config(depth, 64, seed=seed, tokens=tokens), order_gain=0.0 if depth == 4 else 1.0)
    evidence = gathered(folder)
    assert {(gain.smaller[:2], gain.larger[:2], gain.status == "reads_no_order") for gain in evidence.gains} == {
        ("L1", "L2", False),
        ("L2", "L4", True),
    }
    assert "reads_no_order" not in {gain.status for gain in evidence.token_gains}


def test_places_without_word_order_are_in_no_average(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", FIXED)
    for tokens, gain in ((1e6, 0.0), (2e6, 1.0), (4e6, 1.0)):
        for depth, width in SHAPES[:2]:
            for seed in range(3):
                add_run(folder, run_config(depth, width, seed=seed, tokens=tokens), order_gain=gain)
    (average,) = gathered(folder).averages
    assert average.status == "decided"
    assert [place.rpartition(", ")[2] for place in average.places] == ["2M tokens", "4M tokens"]


@pytest.mark.slow
def test_the_multiverse_of_shapes_asks_no_bag_of_words(tmp_path: Path) -> None:
    reading = depth_or_width(tmp_path / "reading", shapes=SHAPES, budgets=(1e6,))
    reading.write_ledger()
    assert any(universe.value is not None for universe in explore_shapes(reading.path).universes)
    folder = of_shapes(tmp_path / "s", {1: 0.0, 2: 0.0, 4: 0.0})
    folder.write_ledger()
    assert all(universe.value is None for universe in explore_shapes(folder.path).universes)


@pytest.mark.slow
@pytest.mark.parametrize(("gains", "status"), [({}, "converged"), ({4: 0.0}, "reads_no_order")])
def test_a_law_over_runs_that_read_no_order_says_so_in_its_status(
    gains: dict[int, float | None], status: str, tmp_path: Path
) -> None:
    folder = sweep_folder(tmp_path / "s", FIXED)
    for width in (32, 48, 64, 96, 128, 192):
        for depth in (1, 2, 4):
            add_run(folder, run_config(depth, width), order_gain=gains.get(depth, 1.0))
    folder.write_ledger()
    for file in (folder.path, folder.ledger_file, folder.ledger_file.with_suffix(".csv")):
        actual = fit_table(TableQuery(open_ledger(file)), "power-floor").fit
        assert (actual.n, actual.status) == (18, status)
        assert actual.reasons == (("6 of 18 rows are of runs that read no word order",) if gains else ())
    without = fit_table(TableQuery(open_ledger(folder.path), where="architecture.depth < 4"), "power-floor").fit
    assert without.status == "converged"
