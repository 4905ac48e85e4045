"""One trunk, many budgets: a run that goes on from another's state is, bit for bit, the run that trained alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from study.config.run_config import RunConfig
from study.planning.proposing import adopt
from study.store.run_folder import Orders, RunFolder
from study.store.work_folder import checkpoints_in
from study.training.callbacks import Clock
from tests.ranks import ranks_said
from tests.small import config, overflow_at, run_folder, stop_after, trained, write_corpus

TIMINGS = ("perf/tokens_per_second",)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


def with_budget(corpus: Path, steps: int, **recipe: Any) -> RunConfig:
    shared = {"schedule": "wsd", "warmup_tokens": 10 * 128, "budget": {"steps": steps}}
    return config(corpus, recipe=shared | recipe)


def folders(root: Path, long: RunConfig, short: RunConfig) -> tuple[RunFolder, RunFolder]:
    """The folders of a long run, which is to leave its state where the short one branches, and of the short one."""
    assert short.branch_step is not None
    trunk, branch = run_folder(root, long), run_folder(root, short)
    trunk.write_config(long)
    trunk.write_orders(Orders(branch_steps=(short.branch_step,)))
    return trunk, branch


def adopted(root: Path, long: RunConfig, short: RunConfig, **execution: Any) -> tuple[RunFolder, RunFolder, Path]:
    """Train a long run, and give its state to the short one."""
    assert short.branch_step is not None
    trunk, branch = folders(root, long, short)
    trained(root, long, **execution)
    branch.write_config(short)
    (state,) = trunk.branch(short.branch_step).glob("*.ckpt")
    adopt(trunk, state, branch)
    return trunk, branch, state


def trunk_and_branch(root: Path, long: RunConfig, short: RunConfig, **execution: Any) -> tuple[RunFolder, RunFolder]:
    """Train a long run and a short one that branches from it."""
    trunk, branch, _ = adopted(root, long, short, **execution)
    trained(root, short, **execution)
    return trunk, branch


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    """The logged rows of training, without timings."""
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in folder.metrics() if "train/loss" in row]


def assert_same(branch: RunFolder, alone: RunFolder) -> None:
    assert rows(branch) == rows(alone)
    ours, theirs = (safetensors.torch.load_file(folder.weights_file) for folder in (branch, alone))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert np.array_equal(branch.validation_losses(), alone.validation_losses())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [
    {},
    {"dropout": 0.1, "precision": "bf16", "final_learning_rate_fraction": 0.1},
    {"masking": {"rate": 0.3, "whole_words": True, "static_copies": 3}, "packing": "doc_sentences"},
    {"optimizer": "muon", "parametrization": "completep", "objective": "mlm_nsp"},
    {"objective": "rtd", "dropout": 0.1},
])  # fmt: skip
def test_a_branch_equals_a_run_trained_alone(recipe: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    short, long = with_budget(corpus, 35, **recipe), with_budget(corpus, 70, **recipe)
    assert short.branch_step == 28
    trunk, branch = trunk_and_branch(tmp_path, long, short)
    alone = trained(tmp_path / "alone", short)
    assert_same(branch, alone)
    record, lone = branch.record(), alone.record()
    assert record is not None
    assert lone is not None
    assert (record.trunk, record.trunk_step, record.spent_tokens) == (trunk.run_id, 28, 7 * 128)
    assert (lone.trunk, lone.trunk_step, lone.spent_tokens) == (None, None, 35 * 128)
    same = ("run_id", "state", "config", "steps", "tokens", "train_flops", "loss_nats", "accuracy", "train_loss_nats")
    assert [getattr(record, name) for name in same] == [getattr(lone, name) for name in same]
    assert record.spent_share == pytest.approx(0.2)
    for ended, spent in ((record, 7 * 128), (lone, 35 * 128)):
        assert ended.wall_seconds is not None
        assert ended.start_seconds is not None
        assert 0 < ended.start_seconds < ended.wall_seconds
        assert ended.tokens_per_second == pytest.approx((spent - 128) / (ended.wall_seconds - ended.start_seconds))
    assert "trunk" not in json.loads((alone.record_file).read_text())
    longest = trained(tmp_path / "alone", long)
    assert_same(trunk, longest)


@pytest.mark.parametrize(
    "step", [pytest.param(27, marks=pytest.mark.slow), 28, *(pytest.param(step, marks=pytest.mark.slow) for step in (31, 55))]
)
def test_stopping_trunk_and_branch_changes_nothing(
    step: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, at and after the step where the ways part; what was spent before a stop is spent once."""
    short, long = with_budget(corpus, 35), with_budget(corpus, 70)
    trunk, branch = folders(tmp_path, long, short)
    with monkeypatch.context() as patch:
        trained(tmp_path, long, stop_after(step, patch))
    assert trunk.record() is None
    trained(tmp_path, long)
    branch.write_config(short)
    adopt(trunk, sorted(trunk.branch(28).glob("*.ckpt"))[-1], branch)
    if step == 31:
        with monkeypatch.context() as patch:
            trained(tmp_path, short, stop_after(step, patch))
        assert branch.record() is None
    trained(tmp_path, short)
    assert_same(branch, trained(tmp_path / "alone", short))
    record = branch.record()
    assert record is not None
    assert (record.trunk, record.trunk_step, record.spent_tokens) == (trunk.run_id, 28, 7 * 128)


@pytest.mark.slow
def test_a_branch_has_the_rows_of_its_way_though_its_trunk_goes_it_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trunk that was killed resumes from a checkpoint before the step where the branch leaves it, and is stopped there."""
    short, long = with_budget(corpus, 35), with_budget(corpus, 70)
    trunk, branch = folders(tmp_path, long, short)
    for step in (11, 40):
        with monkeypatch.context() as patch:
            trained(tmp_path, long, stop_after(step, patch))
    checkpoints_in(trunk.checkpoints)[-1].unlink()
    with monkeypatch.context() as patch:
        trained(tmp_path, long, stop_after(13, patch))
    assert rows(trunk)[-1]["trainer/step"] < 28
    adopt(trunk, next(trunk.branch(28).glob("*.ckpt")), branch)
    trained(tmp_path, short)
    assert_same(branch, trained(tmp_path / "alone", short))


@pytest.mark.slow
def test_a_branch_from_a_damaged_state_trains_alone_and_says_so(corpus: Path, tmp_path: Path) -> None:
    short, long = with_budget(corpus, 35), with_budget(corpus, 70)
    _, branch, state = adopted(tmp_path, long, short)
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        trained(tmp_path, short)
    assert_same(branch, trained(tmp_path / "alone", short))
    record = branch.record()
    assert record is not None
    assert (record.trunk, record.trunk_step, record.spent_tokens) == (None, None, record.tokens)
    assert branch.trunk() is None


@pytest.mark.slow
def test_a_branch_outlives_its_trunk(corpus: Path, tmp_path: Path) -> None:
    short, long = with_budget(corpus, 35), with_budget(corpus, 70)
    trunk, branch, state = adopted(tmp_path, long, short)
    shutil.rmtree(trunk.path)
    assert [path.name for path in checkpoints_in(branch.checkpoints)] == [state.name]
    trained(tmp_path, short)
    record = branch.record()
    assert record is not None
    assert (record.state, record.trunk, record.spent_tokens) == ("COMPLETED", trunk.run_id, 7 * 128)
    adopt(trunk, state, run_folder(tmp_path / "later", short))
    assert list(run_folder(tmp_path / "later", short).checkpoints.iterdir()) == []


def test_a_trunk_that_diverges_where_it_is_left_leaves_no_state(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = with_budget(corpus, 70)
    trunk = run_folder(tmp_path, long)
    trunk.write_config(long)
    trunk.write_orders(Orders(branch_steps=(28,)))
    overflow_at(28, monkeypatch)
    record = trained(tmp_path, long).record()
    assert record is not None
    assert (record.state, record.reason) == ("DIVERGED", "a weight is not finite after step 28")
    assert not list(trunk.branch(28).glob("*"))


def test_the_seconds_of_a_trunk_are_not_those_of_its_branch() -> None:
    saved = Clock("trunk").state_dict() | {"seconds": 1e6, "start_seconds": 1e3, "starts": 3}
    spent, of_starts = {}, {}
    for run_id in ("trunk", "branch"):
        clock = Clock(run_id)
        clock.load_state_dict(saved)
        clock.on_train_batch_end()
        spent[run_id], of_starts[run_id] = clock.seconds, clock.start_seconds
        clock.on_train_batch_end()
        assert clock.start_seconds == of_starts[run_id], "only the first step is of the start"
        assert clock.starts == {"trunk": 4, "branch": 1}[run_id]
    assert spent["branch"] < 1e6 < spent["trunk"]
    assert of_starts["branch"] < 1e3 < of_starts["trunk"]


@pytest.mark.slow
def test_a_branch_on_two_ranks_equals_a_run_alone_on_two(corpus: Path, tmp_path: Path) -> None:
    short, long = with_budget(corpus, 35, dropout=0.1), with_budget(corpus, 70, dropout=0.1)
    trunk, branch = run_folder(tmp_path, long), run_folder(tmp_path, short)
    alone = run_folder(tmp_path / "alone", short)
    for folder, wanted in ((trunk, long), (branch, short), (alone, short)):
        folder.write_config(wanted)
    trunk.write_orders(Orders(branch_steps=(28,)))
    assert ranks_said(trunk) == ["COMPLETED", "COMPLETED"]
    adopt(trunk, next(iter(trunk.branch(28).glob("*.ckpt"))), branch)
    for folder in (branch, alone):
        assert ranks_said(folder) == ["COMPLETED", "COMPLETED"]
    assert_same(branch, alone)
    record = branch.record()
    assert record is not None
    assert (record.trunk, record.trunk_step, record.spent_tokens) == (trunk.run_id, 28, 7 * 128)
