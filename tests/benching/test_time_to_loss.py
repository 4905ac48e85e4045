"""Time to a loss: ours trains at growing budgets until it is where transformers' run_mlm ended, on the same masks."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM

from study.base.errors import InputError
from study.benching import time_to_loss as racing
from study.benching.cases import Case, RaceCases
from study.benching.command import BenchOptions
from study.benching.own_processes import ContenderError
from study.benching.peers import BertWithSparseHead, model_of
from study.benching.results import Results, Row, as_line, as_text, failure, read_sections
from study.benching.time_to_loss import (
    RUN_MLM,
    Finished,
    LossPoint,
    RaceEntry,
    best_rate,
    budgets,
    finished,
    race,
    step_seconds,
    time_to_loss_row,
    validation_loss,
)
from study.config.run_config import DataConfig
from study.counting.architecture import Architecture
from study.data.masking import IGNORED
from study.data.prepared import prepare
from study.data.tokenizing import SpecialTokens
from study.model.in_transformers import their_weights
from study.model.parametrization import fresh_model
from study.plotting.speed import curves_frame
from study.store.run_folder import RunFolder
from study.training.execution import Execution
from study.training.trainer import Training
from tests.small import write_corpus

TINY = Architecture(depth=1, width=64, heads=1, ffn=256, vocabulary=200, positions=64)
CASE = Case(TINY, "fp32", batch=8, sequence_length=16)
DATA = DataConfig.parse({"tokenizer": {"vocabulary": 200}, "sequence_length": 16})
THEIRS = Finished(RaceEntry(RUN_MLM, CASE, DATA, 16, 2e-3, seed=3), [LossPoint(512, 6.0), LossPoint(2048, 5.0)])


def ours(rate: float, *curve: LossPoint, case: Case = CASE) -> Finished:
    """Return a finished training of ours."""
    return Finished(RaceEntry("modern", case, DATA, curve[-1].tokens // case.batch_tokens, rate, seed=3), [*curve])


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of trainings that have ended."""
    return tmp_path / "kept.jsonl"


@pytest.fixture
def small_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """A drawn corpus in place of the docstrings."""
    write_corpus(tmp_path / "text.txt")
    values = {"corpus": str(tmp_path / "text.txt"), "tokenizer": {"vocabulary": 200}, "sequence_length": 16}
    data = DataConfig.parse(values | {"validation_sequences": 16})
    monkeypatch.setattr(racing, "data_of", lambda _: data)
    return data


def test_budgets_grow_by_one_factor_up_to_theirs() -> None:
    steps = list(budgets(2000))
    assert (steps[0], steps[-1]) == (31, 2000)
    assert all(1.38 < later / earlier < 1.45 for earlier, later in pairwise(steps))
    assert list(budgets(3)) == [1, 2, 3]


def test_a_row_compares_the_first_budget_that_reaches_their_loss() -> None:
    """Theirs takes 16 steps of 0.2 s, or 0.1 and 0.4 s in other rounds, and ours two of 0.1 s, in the last round 0.2 s."""
    larger = ours(8e-3, LossPoint(128, 5.6), LossPoint(256, 4.9), case=replace(CASE, dtype="bf16"))
    row = time_to_loss_row(THEIRS, [ours(4e-3, LossPoint(128, 5.5)), larger], [0.2, 0.1, 0.4], [0.1, 0.1, 0.2])
    assert (row["shape"], row["vocabulary"], row["tokens"], row["seed"]) == ("1x64", 200, 2048, 3)
    assert (row["their_dtype"], row["dtype"]) == ("fp32", "bf16")
    assert (row["their_loss"], row["our_tokens"]) == (5.0, 256)
    assert (row["their_seconds"], row["our_seconds"]) == pytest.approx((3.2, 0.2))
    assert row["fewer_tokens"] == 8.0
    assert (row["faster"], row["faster_interval"], row["rounds"]) == (16.0, [8.0, 16.0], 3)
    assert row["their_curve"] == [pytest.approx([0.8, 512, 6.0]), pytest.approx([3.2, 2048, 5.0])]
    assert row["our_budgets"] == [[128, 5.5], [256, 4.9]]
    assert row["our_rate"] == row["changes"]["recipe"]["learning_rate"] == 8e-3
    assert json.loads(json.dumps(row)) == row
    assert "fewer tokens x 8.0, faster x 16.0 (8.0–16.0)" in as_line("time-to-loss", row)
    again = dict(row) | {"variant": "another", "their_curve": [[0.9, 512, 6.0], [3.6, 2048, 5.0]]}
    of_theirs = curves_frame([dict(row), again]).query("series.str.contains('run_mlm')")
    assert [*of_theirs["seconds"]] == pytest.approx([0.8, 3.2]), "one training, measured twice, is one line"
    (case,) = set(curves_frame([dict(row)])["case"])
    assert case == "1x64, 200 pieces, fp32 against bf16"


def test_a_loss_that_ours_does_not_reach_is_said_and_not_counted() -> None:
    row = time_to_loss_row(THEIRS, [ours(4e-3, LossPoint(2048, 5.1))], [0.2], [0.1])
    missing = ("our_tokens", "our_seconds", "fewer_tokens", "faster", "faster_interval")
    assert [row[name] for name in missing] == [None] * len(missing)
    assert "not reached (5.100)" in as_text("time-to-loss", [row])
    assert "no memory" in as_text("time-to-loss", [row, failure("1x64, seed 0", "no memory")])


def test_rows_of_before_precisions_and_intervals_are_shown() -> None:
    row = dict(time_to_loss_row(THEIRS, [ours(4e-3, LossPoint(256, 4.9))], [0.2], [0.1]))
    del row["their_dtype"], row["faster_interval"], row["rounds"]
    assert "faster x 16.0" in as_line("time-to-loss", row)
    assert set(curves_frame([row])["case"]) == {"1x64, 200 pieces, fp32"}


@pytest.mark.parametrize(("native", "expected"), [(True, ["fp32", "bf16"]), (False, ["fp32"])])
def test_on_a_cpu_theirs_trains_in_fp32_and_ours_also_as_runs_do(
    monkeypatch: pytest.MonkeyPatch, native: bool, expected: list[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    races = BenchOptions("cpu", shapes="1x64,2x64").races()
    assert [(theirs.dtype, ours.dtype) for theirs, ours in races] == [("fp32", dtype) for dtype in expected] * 2
    assert all(replace(ours, dtype="fp32") == theirs for theirs, ours in races)
    (given,) = BenchOptions("cpu", shapes="1x64", dtypes=("bf16",)).races()
    assert (given.theirs.dtype, given.ours.dtype) == ("bf16", "bf16")


def test_a_training_that_has_ended_is_read_and_not_repeated(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[RaceEntry] = []

    def in_own_process(function: Any, entry: RaceEntry) -> list[LossPoint]:
        assert function is racing.train
        trained.append(entry)
        if entry.seed == 2:
            raise MemoryError
        return [LossPoint(256, 5.0 + entry.seed)]

    monkeypatch.setattr(racing, "in_own_process", in_own_process)
    first = RaceEntry("modern", CASE, DATA, 2, 4e-3, seed=0)
    others = [
        replace(first, side=RUN_MLM),
        replace(first, side="modern recipe, BERT's architecture"),
        replace(first, case=replace(CASE, dtype="bf16")),
        replace(first, steps=3),
        replace(first, rate=8e-3),
        replace(first, seed=1),
    ]
    for _ in range(2):
        ended = [finished(entry, kept) for entry in (first, *others)]
        assert [each.loss for each in ended] == [*[5.0] * 6, 6.0]
        assert trained == [first, *others]
    for _ in range(2):
        with pytest.raises(MemoryError):
            finished(replace(first, seed=2), kept)
    assert len(trained) == 9, "a training that failed is repeated"
    lines = [json.loads(line) for line in kept.read_bytes().splitlines()]
    assert len(lines) == 7
    assert {each["side"] for each in lines} == {each.side for each in (first, *others)}
    assert all(each["config"]["recipe"]["learning_rate"] in (4e-3, 8e-3) for each in lines)


def test_a_damaged_line_of_trainings_is_named(kept: Path) -> None:
    kept.write_text('{"side": "modern", "curve": []}\n{"side": \n')
    with pytest.raises(InputError, match=re.escape(f"{kept}:2: is damaged")):
        finished(RaceEntry("modern", CASE, DATA, 2, 4e-3, seed=0), kept)


def test_both_sides_are_validated_on_the_same_masks(small_text: DataConfig, tmp_path: Path) -> None:
    """The weights of one of our encoders have the same loss in BertForMaskedLM by their measure and by ours."""
    config = RaceEntry("modern recipe, BERT's architecture", CASE, small_text, 1, 4e-3, seed=0).config
    prepared = prepare(small_text)
    ours = fresh_model(config.architecture, config.recipe, seed=0)
    with torch.no_grad():
        for weight in ours.parameters():
            weight.mul_(4)
    theirs: Any = model_of(CASE)
    assert isinstance(theirs, BertForMaskedLM)
    theirs.load_state_dict(their_weights(ours.state_dict(), TINY), strict=False)
    theirs.tie_weights()
    trained = Training(config, prepared, RunFolder(tmp_path / "run"), Execution(device="cpu")).validated(ours.state_dict())
    assert trained.validation is not None
    assert validation_loss(theirs, CASE, prepared) == pytest.approx(trained.validation.loss, rel=1e-5)
    assert trained.validation.loss > 1.01 * math.log(200), "the loss is of these weights, not of any"
    assert isinstance(prepared.special, SpecialTokens)


def test_the_head_that_skips_unlabelled_positions_has_the_same_loss_and_gradients() -> None:
    dense, sparse = model_of(CASE), model_of(CASE, BertWithSparseHead)
    sparse.load_state_dict(dense.state_dict())
    tokens = torch.randint(0, 200, (8, 16), generator=torch.Generator().manual_seed(0))
    labels = tokens.where(torch.rand(8, 16, generator=torch.Generator().manual_seed(1)) < 0.15, IGNORED)
    assert 0 < (labels != IGNORED).sum() < labels.numel() / 2
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "token_type_ids": torch.zeros_like(tokens)}
    losses = [model(**inputs, labels=labels).loss for model in (dense, sparse)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    theirs, ours = (dict(model.named_parameters()) for model in (dense, sparse))
    assert theirs.keys() == ours.keys()
    for name, weight in theirs.items():
        assert torch.allclose(ours[name].grad, weight.grad, rtol=1e-4, atol=1e-6), name


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[RaceEntry]:
    """The entries that train, whose loss is 6 − log(tokens ÷ 128), and more far from 8e-3; at 32e-3 they diverge."""
    entries: list[RaceEntry] = []

    def train(_: Any, entry: RaceEntry) -> list[LossPoint]:
        entries.append(entry)
        loss = abs(math.log(entry.config.recipe.learning_rate / 8e-3)) + 6 - math.log(entry.tokens / 128)
        return [] if entry.rate > 31e-3 else [LossPoint(entry.tokens, loss)]

    monkeypatch.setattr(racing, "in_own_process", train)
    return entries


LONG = Finished(replace(THEIRS.entry, steps=64), [LossPoint(8192, 4.0)])


def test_the_first_budget_wins_at_which_any_rate_is_at_their_loss(kept: Path, trained: list[RaceEntry]) -> None:
    """By the law it is at step 7.4 at the middle rate; seven steps are tried between six and eight."""
    best = race(LONG, replace(CASE, dtype="bf16"), "modern", 8e-3, best_rate, kept)
    assert {(each.entry.side, each.entry.case.dtype, each.entry.rate) for each in best} == {("modern", "bf16", 8e-3)}
    assert [each.entry.steps for each in best] == [1, 2, 3, 4, 6, 7, 8]
    assert len(trained) == 3 * 6 + 1


def test_the_gap_between_two_budgets_is_halved_twice(kept: Path, trained: list[RaceEntry]) -> None:
    """The law is at their loss at step 738, between budgets of 707 and 1,000: at 841, and then at 771, it is below."""
    theirs = Finished(replace(THEIRS.entry, steps=8000), [LossPoint(8192, 6 - math.log(738))])
    best = race(theirs, CASE, "modern", 8e-3, finished, kept)
    assert [each.entry.steps for each in best][-2:] == [707, 771]
    assert [each.loss <= theirs.loss for each in best] == [False] * (len(best) - 1) + [True]


@pytest.mark.parametrize(
    ("start", "tried"),
    [
        (8e-3, [8e-3, 4e-3, 16e-3]),
        (2e-3, [2e-3, 1e-3, 4e-3, 8e-3, 16e-3]),
        (16e-3, [16e-3, 8e-3, 4e-3]),
        (128e-3, [128e-3, 64e-3, 32e-3, 16e-3, 8e-3, 4e-3]),
    ],
)
def test_rates_are_halved_or_doubled_until_the_best_lies_between_two(
    start: float, tried: list[float], kept: Path, trained: list[RaceEntry]
) -> None:
    """Lower ones are tried where a training diverges."""
    best = best_rate(replace(LONG.entry, rate=start), kept)
    assert [entry.rate for entry in trained] == pytest.approx(tried)
    assert best.entry.rate == pytest.approx(8e-3)


def test_a_search_among_rates_that_diverge_ends(kept: Path, trained: list[RaceEntry]) -> None:
    assert not best_rate(replace(LONG.entry, rate=1000.0), kept).curve
    assert len(trained) == 1 + racing.MOST_STEPS


def test_a_budget_begins_at_the_best_rate_of_the_one_before(kept: Path, trained: list[RaceEntry]) -> None:
    """The first climbs from 1e-3 to 8e-3 in six trainings; each of the others tries it and its two neighbours."""
    race(LONG, CASE, "modern", 1e-3, best_rate, kept)
    by_budget = Counter(entry.steps for entry in trained)
    assert (by_budget[1], by_budget[2], by_budget[3]) == (6, 3, 3)


def test_a_training_that_diverges_is_kept_and_loses(kept: Path, trained: list[RaceEntry]) -> None:
    diverged = replace(LONG.entry, rate=64e-3)
    assert [finished(diverged, kept).loss for _ in range(2)] == [math.inf] * 2
    assert trained == [diverged]
    row = time_to_loss_row(LONG, [finished(diverged, kept)], [0.2], [0.1])
    assert row["our_tokens"] is None
    assert (row["our_curve"], row["our_budgets"]) == ([], [])
    assert "not reached (diverged)" in as_text("time-to-loss", [row])


def test_the_variant_in_small_batches_is_compared_in_tokens(
    kept: Path, trained: list[RaceEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 32 and 16 sequences of 16 tokens; every step takes 0.1 s."""
    monkeypatch.setattr(racing, "data_of", lambda _: DATA)
    monkeypatch.setattr(racing, "prepare", lambda _: None)
    monkeypatch.setattr(racing, "step_seconds", lambda entries, rounds: [[0.1] * rounds for _ in entries])
    rows: list[Row] = []
    large = replace(CASE, batch=32)
    racing.measure_time_to_loss([RaceCases(large, large)], 64 * 512, 2, 3, kept, rows.append)
    assert [row["error"] for row in rows] == [None] * 2 * len(racing.VARIANTS)
    small = [row for row in rows if row["variant"] == "modern2, 16 sequences a step"]
    assert [(row["seed"], row["their_batch"], row["batch"], row["tokens"]) for row in small] == [
        (0, 32, 16, 64 * 512),
        (1, 32, 16, 64 * 512),
    ]
    for row in small:
        assert row["fewer_tokens"] == row["tokens"] / row["our_tokens"]
        assert row["faster"] == pytest.approx(row["fewer_tokens"] / 2), "twice the steps a token"
        assert "16 x 16" in as_line("time-to-loss", row)
    assert {row["their_rate"] for row in rows} == {row["our_rate"] for row in rows} == {8e-3}
    rows.clear()
    racing.measure_time_to_loss([RaceCases(CASE, CASE)], 8192, 1, 1, kept, rows.append)
    assert [row["variant"] for row in rows] == ["modern2", "modern", "modern recipe, BERT's architecture"]
    rows.clear()
    racing.measure_time_to_loss([RaceCases(large, replace(large, dtype="bf16"))], 64 * 512, 1, 1, kept, rows.append)
    assert [(row["variant"], row["dtype"]) for row in rows] == [("modern2", "bf16")], "parts are told apart in one precision"
    rows.clear()
    racing.measure_time_to_loss([RaceCases(large, large)], 64 * 512, 1, 1, kept, rows.append, preset_alone=True)
    assert [row["variant"] for row in rows] == ["modern2"]


@pytest.mark.slow
def test_both_sides_take_turns_and_one_that_fails_is_named(small_text: DataConfig) -> None:
    entries = [RaceEntry(side, CASE, small_text, 2, 4e-3, seed=0) for side in (RUN_MLM, "modern")]
    theirs, ours = step_seconds(entries, rounds=2)
    assert len(theirs) == len(ours) == 2
    with pytest.raises(ContenderError, match="modern: "):
        step_seconds([entries[0], replace(entries[1], data=small_text.model_copy(update={"corpus": "missing.txt"}))], rounds=1)


@pytest.mark.slow
def test_the_command_races_every_variant_and_draws_the_curves(
    study: Any, small_text: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "in_own_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(racing, "THEIR_RATE", 1e-3)
    monkeypatch.setattr(racing, "OUR_RATE", 4e-3)
    size = ("--shapes", "1x64", "--vocabulary", "200", "--batch", 8, "--sequence-length", 16, "--dtype", "fp32")
    options = (*size, "--tokens", 8 * 16 * 24, "--threads", 1, "--device", "cpu", "--into", tmp_path / "bench", "--json")
    status, out, err = study("bench", "--only", "time-to-loss", *options)
    assert status == 0, err
    rows = json.loads(out[out.index("[\n") :])
    assert [row["variant"] for row in rows] == ["modern2", "modern", "modern recipe, BERT's architecture"]
    for row in rows:
        assert row["error"] is None
        assert row["tokens"] == row["their_curve"][-1][1] == 8 * 16 * 24
        assert all(math.log2(row[rate] / 1e-3).is_integer() for rate in ("their_rate", "our_rate"))
        assert row["our_budgets"][-1][1] <= row["their_loss"] or row["our_tokens"] is None
        assert all(loss > row["their_loss"] for _, loss in row["our_budgets"][:-1])
        seconds = [point[0] for point in row["our_curve"]]
        assert seconds == sorted(seconds)
    (results,) = (tmp_path / "bench").glob("*.json")
    trainings = (tmp_path / "bench" / f"{results.stem}-time-to-loss.jsonl").read_bytes().splitlines()
    described = [json.loads(line) for line in trainings]
    kept = Counter((each["side"], each["config"]["recipe"]["budget"]["steps"]) for each in described)
    assert {side for side, _ in kept} == {RUN_MLM, "modern2", "modern", "modern recipe, BERT's architecture"}
    assert all(kept[row["variant"], tokens // 128] for row in rows for tokens, _ in row["our_budgets"])
    assert min(kept[side, steps] for side, steps in kept if side == RUN_MLM) >= 2
    assert results.with_name(f"{results.stem}-time-to-loss.svg").is_file()
    data = curves_frame(read_sections(results)["time-to-loss"]["rows"])
    assert len(data["series"].unique()) == 4
    assert Results(tmp_path / "bench", "cpu", 1).sections.keys() == {"time-to-loss"}
