"""A ledger as a table for laws: its columns, the runs that laws leave out, and those that may not be pooled."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.evidence.learning_rates import searches
from study.evidence.ledgers import (
    open_ledger,
    runs_of,
    shapes_of,
    summarise_exclusions,
    table_of,
    unusable,
    validation_columns,
    variant_columns_of,
)
from study.laws.catalogue import LAWS
from study.laws.reading import TableQuery, differing_columns, read_columns, read_observations
from study.report.notebooks import ledger_in
from tests.synthetic import SWEEP, Law, add_run, depth_or_width, in_setting, run_config, sweep_folder

CHINCHILLA = LAWS["chinchilla"]


def test_branches_of_one_trunk_are_one_run() -> None:
    ledger = pd.DataFrame({"run_id": ["long", "short", "shorter", "other"], "trunk": [None, "long", "short", None]})
    assert runs_of(ledger).tolist() == ["long", "long", "long", "other"]
    assert runs_of(ledger[["run_id"]]).tolist() == ["long", "short", "shorter", "other"]


def test_trunks_in_a_circle_are_read() -> None:
    ledger = pd.DataFrame({"run_id": ["one", "other", "own"], "trunk": ["other", "one", "own"]})
    assert runs_of(ledger).isin(["one", "other"]).tolist() == [True, True, False]


@pytest.mark.slow
def test_a_ledger_s_rows_are_drawn_by_shape_and_held_out_by_run(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6, 2e6))
    folder.write_ledger()
    table = open_ledger(folder.path)
    points = read_observations(TableQuery(table), CHINCHILLA)
    shapes = pd.read_parquet(folder.ledger_file)["shape"].nunique()
    assert (points.n_clusters, points.n_runs, points.cluster) == (shapes, len(points), "shape")
    assert points.counted == f"{len(points)} rows of {len(points)} runs and {shapes} shapes"
    named = read_observations(TableQuery(table, cluster="cell"), CHINCHILLA)
    assert (named.n_clusters, named.n_runs, named.cluster) == (2 * shapes, 2 * shapes, "run")


def test_a_ledger_without_architectures_is_drawn_by_cell() -> None:
    ledger = pd.DataFrame({"cell": ["a", "b", "a"], "architecture.depth": [1, None, None]})
    assert shapes_of(ledger).tolist() == [0, 1, 0]
    assert shapes_of(ledger.assign(**{"architecture.width": [8, 8, 9]})).tolist() == [0, 0, 1]


@pytest.mark.slow
def test_a_ledger_brings_its_columns_and_leaves_out_worse_rates(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", seeds=2)
    folder.write_ledger()
    points = read_observations(TableQuery(open_ledger(folder.path)), CHINCHILLA)
    assert {*points.excluded.values()} == {"not at the best learning rate of its cell"}
    assert len(points) == 6 * 2 * 2


DECAY = {"recipe.weight_decay": {"low": 0.01, "high": 0.1, "trials": 2}}


def left_out(ledger: pd.DataFrame, bracketed_only: bool = False) -> dict[tuple[float, float], str]:
    """Why rows are left out, by weight decay and rate."""
    keys = ledger[["recipe.weight_decay", "recipe.learning_rate"]]
    return {
        tuple(keys.iloc[row]): reason for row, reason in unusable(ledger, searches(ledger).values(), bracketed_only).items()
    }


def decays_and_rates(path: Path, rates: tuple[float, ...]) -> pd.DataFrame:
    """The ledger of a cell that is best at a weight decay of 0.1 and a rate of 4e-3, each rate tried at each decay."""
    folder = sweep_folder(path, SWEEP | {"tune": SWEEP["tune"] | DECAY})
    for rate in rates:
        add_run(folder, run_config(1, 128, rate, weight_decay=0.1), Law(seed_deviation=0))
        add_run(folder, run_config(1, 128, rate, weight_decay=0.01), Law(seed_deviation=0, best_rate=2e-2, curvature=0.5))
    return folder.write_ledger()


def test_a_ledger_leaves_out_runs_at_other_tuned_knobs(tmp_path: Path) -> None:
    ledger = decays_and_rates(tmp_path / "s", rates=(2e-3, 4e-3, 8e-3))
    worse = {(0.01, rate): "not at the best recipe.weight_decay of its cell" for rate in (2e-3, 4e-3, 8e-3)}
    worse |= {(0.1, rate): "not at the best learning rate of its cell" for rate in (2e-3, 8e-3)}
    assert left_out(ledger) == worse
    assert left_out(ledger, bracketed_only=True) == worse


def test_rates_tried_at_other_knobs_bracket_nothing(tmp_path: Path) -> None:
    ledger = decays_and_rates(tmp_path / "s", rates=(4e-3, 8e-3))
    assert set(left_out(ledger, bracketed_only=True).values()) == {"its cell's best learning rate is not bracketed"}
    ledger.loc[ledger["recipe.learning_rate"] == 8e-3, "exclusion"] = "DIVERGED"
    assert left_out(ledger, bracketed_only=True)[0.1, 8e-3] == "DIVERGED", "its own reason comes first"


def test_a_ledger_that_tunes_another_knob_only_leaves_out_its_worse_values(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": DECAY})
    add_run(folder, run_config(1, 128, weight_decay=0.01), Law(seed_deviation=0, curvature=0))
    add_run(folder, run_config(1, 128, weight_decay=0.1), Law(seed_deviation=0, curvature=5, best_rate=1e-3))
    ledger = folder.write_ledger()
    assert left_out(ledger) == {(0.1, 3e-3): "not at the best recipe.weight_decay of its cell"}


def test_a_ledgers_unique_tokens_are_counted_as_trained_ones_are(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", seeds=1)
    ledger = folder.write_ledger().assign(train_tokens=6_300_000)
    assert set(ledger["data.sequence_length"]) == {64}
    read = read_columns(TableQuery(table_of(folder.path, ledger)), ("parameters", "tokens", "unique_tokens"), "loss")
    np.testing.assert_allclose(read.columns["unique_tokens"], 6_400_000)


def test_runs_that_repeat_their_text_are_read_by_the_law_of_repetition_alone() -> None:
    table = open_ledger(Path(__file__).parents[2] / "results" / "reference" / "repeated_text")
    points = read_observations(TableQuery(table), LAWS["data-constrained"])
    points.check(LAWS["data-constrained"])
    passes = points.columns["tokens"] / points.columns["unique_tokens"]
    assert len(points) == 54
    assert {*passes.round(1)} == {0.2, 1.0, 2.0, 8.0, 16.0, 64.0}
    with pytest.raises(InputError, match=r"runs that differ in recipe\.unique_tokens have laws of their own"):
        read_observations(TableQuery(table), CHINCHILLA)


def test_a_sweep_s_ledger_is_that_of_its_records_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was written before: a run ended since, one was excluded, and the record of another is damaged."""
    folder = depth_or_width(tmp_path / "made_up", shapes=((1, 64), (1, 92), (2, 64)), budgets=(1e6,), rates=(4e-3,))
    folder.write_ledger()
    excluded, damaged, *others = folder.runs()
    new = add_run(folder, run_config(4, 64, 4e-3))
    excluded.exclusion_file.write_text('{"reason": "the GPU was broken"}')
    damaged.record_file.write_text("{")
    expected = {excluded.run_id, new, *(run.run_id for run in others)}
    table = open_ledger(folder.path)
    assert {*table.frame["run_id"]} == {*folder.read_ledger()["run_id"]} == expected
    assert [*table.left_out(bracketed_only=False)].count("excluded: the GPU was broken") == 1
    assert str(damaged.record_file) in caplog.text
    with pytest.raises(InputError, match=r"ledger\.parquet: is not of the records as they are now"):
        ledger_in(folder)
    folder.write_ledger()
    assert ledger_in(folder) == folder.path / "ledger.parquet"


def test_losses_of_different_masks_are_not_pooled(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width, rate in itertools.product((32, 48, 64, 96, 128), (0.15, 0.4)):
        plain = run_config(1, width)
        add_run(folder, plain.model_copy(update={"masking": plain.masking.model_copy(update={"rate": rate})}))
    folder.write_ledger()
    message = "loss: the losses of runs that differ in masking.rate are not comparable; keep those of one with --where "
    with pytest.raises(InputError, match=re.escape(message)):
        read_observations(TableQuery(open_ledger(folder.path)), LAWS["power-floor"])
    assert len(read_observations(TableQuery(open_ledger(folder.path), where="masking.rate == 0.4"), LAWS["power-floor"])) == 5
    assert len(read_columns(TableQuery(open_ledger(folder.path)), ("depth",), "parameters")) == 10


def test_text_that_moved_is_the_same_text_and_a_value_that_some_runs_lack_is_another() -> None:
    same = {"data_fingerprint": ["a"] * 2, "data.corpus": ["here", "there"], "data.tokenizer.path": ["here", "there"]}
    apart = {"masking.rate": [0.15, None], "architecture.norm": [None, "pre"]}
    runs = pd.DataFrame(same | apart)
    assert validation_columns(runs[list(same)]) == []
    assert validation_columns(runs) == ["masking.rate"]
    assert differing_columns(runs, ["architecture.norm", "recipe.dropout"]) == ["architecture.norm"]


@pytest.mark.parametrize("kept", [pytest.param("sweep.yaml", marks=pytest.mark.slow), "nothing"])
def test_a_ledger_is_not_pooled_over_settings_by_whichever_name_it_is_read(tmp_path: Path, kept: str) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"architecture.norm": ["post", "pre"]}})
    for width, norm, rate in itertools.product((32, 64, 96, 128), ("post", "pre"), (2e-3, 4e-3)):
        add_run(folder, in_setting(run_config(1, width, rate), norm=norm))
    folder.write_ledger()
    files = [folder.path, folder.ledger_file, folder.ledger_file.with_suffix(".csv")]
    if kept == "nothing":
        folder.sweep_file.unlink()
    for file in files:
        with pytest.raises(InputError, match=r"runs that differ in architecture\.norm have laws of their own; .* == 'p"):
            read_observations(TableQuery(open_ledger(file)), LAWS["power-floor"])
        assert (
            len(read_observations(TableQuery(open_ledger(file), where="architecture.norm == 'pre'"), LAWS["power-floor"])) == 4
        )


def test_runs_of_another_setting_are_not_among_those_that_a_law_lacks(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"architecture.norm": ["post", "pre"]}})
    for width, norm in itertools.product((32, 64), ("post", "pre")):
        add_run(folder, in_setting(run_config(1, width), norm=norm))
    for seed in range(1, 4):
        add_run(folder, in_setting(run_config(1, 64, seed=seed), norm="post"), excluded="a bad disk")
    add_run(folder, in_setting(run_config(1, 64, seed=1), norm="pre"), excluded="a bad disk")
    folder.write_ledger()
    for norm, gone in (("post", 3), ("pre", 1)):
        source = TableQuery(open_ledger(folder.path), where=f"architecture.norm == '{norm}'")
        (note,) = read_observations(source, LAWS["power-floor"]).notes()
        assert re.match(rf"left out: {gone} rows? \(excluded: a bad disk", note), note


def test_sizes_budgets_and_tuned_knobs_of_a_ledger_without_its_sweep_are_no_settings(tmp_path: Path) -> None:
    """Its cells have each a warmup, a best weight decay and a rate of their own."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": SWEEP["tune"] | DECAY})
    for width, tokens, worse in itertools.product((32, 64, 96, 128), (1e6, 2e6), (0.0, 1.0)):
        decay, warmup = 0.01 * (1 + worse) * width, tokens / 16
        config = run_config(1, width, 1e-3 * width, tokens=tokens, weight_decay=decay, warmup_tokens=warmup)
        add_run(folder, config, Law(curvature=worse))
    folder.write_ledger()
    folder.sweep_file.unlink()
    assert len(read_observations(TableQuery(open_ledger(folder.ledger_file)), CHINCHILLA)) == 8
    strangers = folder.read_ledger()
    ours = [
        name for name in map(str, strangers) if name.startswith(("architecture.", "recipe.")) and name != "recipe.learning_rate"
    ]
    strangers = strangers.drop(columns=ours)
    strangers.to_csv(tmp_path / "t.csv", index=False)
    assert variant_columns_of(strangers) == []
    assert len(read_observations(TableQuery(open_ledger(tmp_path / "t.csv")), CHINCHILLA)) == 16


@pytest.mark.slow
def test_a_law_in_size_alone_does_not_take_runs_of_other_budgets_for_repeats(tmp_path: Path) -> None:
    """Nor one in tokens those of other sizes; where the tokens follow from the size, or FLOPs stand for both, each serves."""
    folder = sweep_folder(tmp_path / "s")
    for width, tokens in itertools.product((32, 64, 96, 128), (1e6, 2e6, 4e6, 8e6)):
        add_run(folder, run_config(1, width, tokens=tokens))
    folder.write_ledger()
    largest = folder.read_ledger()["tokens"].max()
    message = f'a law in parameters alone takes runs that differ in tokens for repeats of each other; .* "tokens == {largest}"'
    with pytest.raises(InputError, match=message):
        read_observations(TableQuery(open_ledger(folder.path)), LAWS["power-floor"])
    with pytest.raises(InputError, match=r'"architecture.width > 40 and tokens == \d+"'):
        read_observations(TableQuery(open_ledger(folder.path), where="architecture.width > 40"), LAWS["power-floor"])
    with pytest.raises(InputError, match="a law in tokens alone takes runs that differ in size"):
        read_observations(TableQuery(open_ledger(folder.path)), LAWS["tokens-floor"])
    assert len(read_observations(TableQuery(open_ledger(folder.path), where=f"tokens == {largest}"), LAWS["power-floor"])) == 4
    assert (
        len(read_observations(TableQuery(open_ledger(folder.path), where="architecture.width == 96"), LAWS["tokens-floor"]))
        == 4
    )
    assert len(read_observations(TableQuery(open_ledger(folder.path)), LAWS["chinchilla"])) == 16
    assert len(read_observations(TableQuery(open_ledger(folder.path)), LAWS["flops"])) == 16
    along = " or ".join(
        f"(architecture.width == {32 * step} and tokens < {1.1e6 * 2 ** (step - 1)} and tokens > {0.9e6 * 2 ** (step - 1)})"
        for step in (1, 2, 3, 4)
    )
    assert len(read_observations(TableQuery(open_ledger(folder.path), where=along), LAWS["power-floor"])) == 4


@pytest.mark.parametrize(
    "changes",
    [{"tokens": None}, {"parameters_non_embedding": None}, {"tokens": np.nan}, {"architecture.vocabulary": "many"}],
    ids=lambda changes: f"{changes}",
)
def test_a_ledger_of_other_people_may_lack_what_ours_have(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = depth_or_width(tmp_path / "s", seeds=1, budgets=(1e6,))
    table = folder.write_ledger()
    for name, value in changes.items():
        if value is None:
            table = table.drop(columns=name)
        else:
            table[name] = table[name].astype(object)
            table.loc[0, name] = value
    table.astype({"architecture.vocabulary": str} if "many" in changes.values() else {}).to_parquet(folder.ledger_file)
    observations = read_observations(TableQuery(open_ledger(folder.path)), LAWS["power-floor"])
    assert len(observations) > 3


def test_runs_left_out_are_reported_by_state_whatever_number_each_reason_holds() -> None:
    pruned = [f"PRUNED: median: {loss} nats, where the median of 5 runs is 5.5, after 1,024 tokens" for loss in (5.6, 5.7)]
    edges = [f"not at the best rate of its cell (loss {loss} nats)" for loss in (5.57, 5.58, 5.59)]
    full = ["FAILED: No space left on device"] * 3 + ["FAILED"]
    parts = summarise_exclusions(pd.Series([*pruned, *full, "excluded: broken GPU", *edges])).split(", ", 2)
    assert parts[0] == "4 FAILED: No space left on device"
    assert parts[1] == "3 not at the best rate of its cell"
    assert parts[2] == f"2 PRUNED, the first: {pruned[0].removeprefix('PRUNED: ')}, 1 excluded: broken GPU"


def test_a_folder_without_a_ledger_is_refused_and_a_file_that_is_none_is_a_strangers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder without runs or a ledger.parquet; give a table, or a sweep's folder"):
        open_ledger(tmp_path)
    pd.DataFrame({"N": [1e8, 2e8], "loss": [3.0, 2.9]}).to_csv(tmp_path / "t.csv")
    assert open_ledger(tmp_path / "t.csv").selection is None
