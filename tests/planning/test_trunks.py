"""A sweep of several budgets under wsd trains one trunk a rate and seed; runs here are faked but for one sweep."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.config.sweep import GoalSweep
from study.data.prepared import data_fingerprint
from study.executing.processes import Job
from study.executing.slots import Slot
from study.planning.cost_estimate import estimate_cost
from study.planning.goal_design import GoalDesign
from study.planning.law_goal import LawGoal
from study.planning.plan import Plan, cells
from study.planning.proposing import GoalTrunks, Trunks, adopt, families
from study.running.status import status
from study.store.ownership import Attempt, sweep_lock, work_lock
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution
from study.training.run import train
from tests.sweeps import RATES, coordinator_of, parsed, record, run_in, sweep, sweep_values, write_topics

CORPUS = Path("corpus.txt")
WSD: dict[str, Any] = {
    "base": {"recipe": {"schedule": "wsd"}},
    "budgets": {"steps": [20, 40, 80]},
    "shapes": {"grid": {"depth": [1]}},
}


def at_the_middle(config: RunConfig) -> float:
    return 3 + abs(config.recipe.learning_rate - 0.04)


class OneAfterAnother:
    """An executor with one slot whose runs are over when they are submitted, really trained or not."""

    def __init__(self, real: bool, loss: Callable[[RunConfig], float] = at_the_middle) -> None:
        self.free, self.real, self.loss = 1, real, loss
        self.submitted: list[RunConfig] = []
        self.adopted: Counter[int] = Counter()

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        job, future = run_in(jobs), Future[int]()
        config, run = job.config, job.folder
        self.submitted.append(config)
        self.adopted[config.steps] += any(run.checkpoints.glob("*.ckpt"))
        if self.real:
            train(config, run, "toy", Execution(), StopSignal())
        else:
            for step in run.orders().branch_steps:
                run.branch(step).mkdir(parents=True)
                (run.branch(step) / f"step-{step:010d}-0.ckpt").write_bytes(b"state")
            run.file_record(record(config, self.loss(config), run_id=run.run_id, **run.spent(config.tokens, 256)))
        future.set_result(0)
        return future

    def interrupt(self) -> None:
        raise AssertionError

    kill = interrupt


def launched(
    root: Path, executor: OneAfterAnother, fingerprint: str = "data", corpus: Path = CORPUS, **changes: Any
) -> SweepFolder:
    folder = SweepFolder(root / "toy")
    coordinator_of(folder, corpus, fingerprint, **WSD | changes).run(executor, lambda _: None, refresh_seconds=0.01)
    return folder


def test_several_budgets_under_wsd_share_the_warmup_of_the_smallest() -> None:
    planned = cells(sweep(**WSD))
    assert [cell.config.recipe.warmup_tokens for cell in planned] == [2 * 256] * 3
    assert [cell.config.branch_step for cell in planned] == [16, 32, 64]
    assert [[cell.config.steps for cell in family] for family in families(planned)] == [[80, 40, 20]]
    for alone in (WSD | {"budgets": {"steps": [80]}}, WSD | {"base": {"recipe": {"schedule": "linear"}}}):
        assert {cell.config.recipe.warmup_tokens for cell in cells(sweep(**alone))} == {None}
    given = WSD | {"base": {"recipe": {"schedule": "wsd", "warmup_tokens": 1024}}}
    assert {cell.config.recipe.warmup_tokens for cell in cells(sweep(**given))} == {1024}
    assert families(cells(sweep(**WSD | {"tune": {"recipe.warmup_fraction": {"low": 0.1, "high": 0.2, "trials": 2}}}))) == []


def test_a_named_cell_shares_the_warmup_of_its_shape_and_the_run_that_others_start_from_keeps_its_own() -> None:
    """Depth 1 has 20, 40 and 80 steps and the named 10 and 160, depth 2 the named 30 and 60: the smallest of each count."""
    named = {"short": {"steps": 10}, "long": {"steps": 160}, "rate": {"steps": 80, "learning_rate": 0.01}}
    deeper = {"two": {"depth": 2, "steps": 30}, "more": {"depth": 2, "steps": 60}, "deep": {"depth": 3, "steps": 90}}
    starts = {"recipe.start": ["fresh", {"cell": "deep"}]}
    planned = cells(sweep(**WSD | {"cells": named | deeper, "vary": starts}))
    warmups = {(cell.config.architecture.depth, cell.config.steps, cell.config.recipe.init_from is None):
               cell.config.recipe.warmup_tokens for cell in planned}  # fmt: skip
    of_grid = {(1, steps, fresh): 256 for steps in (20, 40, 80) for fresh in (True, False)}
    assert warmups == of_grid | {(1, 10, True): 256, (1, 160, True): 256} | {
        (2, 30, True): 768,
        (2, 60, True): 768,
        (3, 90, True): None,
    }


def test_a_named_cell_that_repeats_a_budget_under_wsd_is_refused_as_another_is() -> None:
    with pytest.raises(InputError, match=r"cells\.same: trains nothing new: shapes and budgets, or another named cell, have"):
        cells(sweep(**WSD | {"cells": {"same": {"steps": 80}}}))


def test_a_warmup_leaves_room_for_the_longest_decay_that_is_tried() -> None:
    """At 0.9 of 15 steps the decay takes 14 of them, and a tenth for the warmup 2."""
    decay = {"recipe.decay_fraction": {"low": 0.1, "high": 0.9, "trials": 3}}
    planned = cells(sweep(base={"recipe": {"schedule": "wsd"}}, budgets={"steps": [15, 30]}, tune=decay))
    assert {run.recipe.warmup_steps(run.steps) for cell in planned for run in cell.trials()} == {1}


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("decay", [0.2, 0.7])
@pytest.mark.parametrize("smallest", [1, 5, 15])
def test_every_budget_that_a_warmup_in_tokens_is_made_for_is_a_run(fraction: float, decay: float, smallest: int) -> None:
    recipe = {"schedule": "wsd", "warmup_fraction": fraction, "decay_fraction": decay}
    planned = cells(sweep(**WSD | {"base": {"recipe": recipe}, "budgets": {"steps": [smallest, 3 * smallest]}}))
    assert [cell.config.steps for cell in planned] == [smallest, 3 * smallest]


def test_budgets_wait_for_their_trunk_and_branch_from_it(tmp_path: Path) -> None:
    executor = OneAfterAnother(real=False)
    folder = launched(tmp_path, executor, tune=RATES, seeds=2)
    longest_first = [config.steps for config in executor.submitted]
    assert Counter(longest_first) == {20: 4, 40: 4, 80: 4}
    assert longest_first[0] == 80
    assert executor.adopted == {20: 4, 40: 4, 80: 0}
    for ended in folder.records():
        trunk = None if ended.trunk is None else folder.run(ended.trunk).config()
        assert (trunk is None) == (ended.steps == 80)
        if trunk is not None:
            assert (trunk.steps, trunk.recipe.learning_rate, trunk.seed) == (
                80, ended.config.recipe.learning_rate, ended.config.seed
            )  # fmt: skip
            assert ended.trunk_step == ended.config.branch_step
    assert not list(folder.path.glob("runs/*/branch-*"))


def test_what_is_spent_and_left_holds_a_trunk_once(tmp_path: Path) -> None:
    """A trunk with its record, and its branch a quarter through what it trains itself: steps 32 to 40."""
    folder, changes = SweepFolder(tmp_path / "toy"), WSD | {"budgets": {"steps": [40, 80]}}
    short, long = (cell.config for cell in cells(sweep(**changes)))
    folder.path.mkdir()
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(CORPUS, **changes)))
    trunk, branch = (folder.run(config.fingerprint("data")) for config in (long, short))
    per_step = short.flops_per_token["train_flops"] * 256
    rows = [
        {"trainer/step": step, "trainer/tokens": step * 256, "trainer/flops": step * per_step, "perf/tokens_per_second": 64.0}
        for step in (16, 32, 34)
    ]
    trunk.write_config(long)
    trunk.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    state = trunk.branch(32) / "step-0000000032-0.ckpt"
    state.parent.mkdir()
    state.write_bytes(b"state")
    trunk.file_record(record(long, run_id=trunk.run_id))
    branch.write_config(short)
    adopt(trunk, state, branch)
    with work_lock(branch):
        (begun,) = status(folder).running
        assert (begun.tokens, begun.spent_tokens, begun.train_flops) == (32 * 256, 0, 0)
        with branch.metrics_file.open("a") as file:
            file.write(json.dumps(rows[2]) + "\n")
        sweep_status = status(folder)
    (running,) = sweep_status.running
    assert (running.tokens, running.spent_tokens) == (34 * 256, 2 * 256)
    assert sweep_status.spent_flops == pytest.approx((80 + 2) * per_step)
    assert sweep_status.remaining_flops == pytest.approx(6 * per_step)
    assert (sweep_status.seconds_left, running.seconds_left) == pytest.approx((24, 24))
    branch.file_record(record(short, run_id=branch.run_id, **branch.spent(short.tokens, 256)))
    assert status(folder).spent_flops == pytest.approx((80 + 8) * per_step)


@pytest.mark.slow
def test_long_budgets_of_one_seed_leave_the_others_a_shorter_trunk(tmp_path: Path) -> None:
    tokens = [256 * steps for steps in (20, 40, 80)]
    seeds: dict[str, Any] = {"budgets": {"steps": [], "tokens": tokens}, "seeds": 3, "one_seed_above": tokens[1]}
    folder = launched(tmp_path, executor := OneAfterAnother(real=False), **seeds)
    assert Counter((run.seed, run.steps) for run in executor.submitted) == {
        (0, 20): 1, (1, 20): 1, (2, 20): 1, (0, 40): 1, (1, 40): 1, (2, 40): 1, (0, 80): 1,
    }  # fmt: skip
    assert executor.adopted == {20: 3, 40: 1, 80: 0}, "the trunk of seeds 1 and 2 is their run of 40 steps"
    estimate = estimate_cost(Plan(sweep(**WSD | seeds)), [Slot("cpu", (0,), 1)])
    assert [(row.tokens // 256, row.runs) for row in estimate.rows] == [(20, 3), (40, 3), (80, 1)]
    spent = sum(record.spent_tokens or 0 for record in folder.records())
    assert sum(row.spent_tokens * row.runs for row in estimate.rows) == pytest.approx(spent, abs=3 * 256)
    assert spent == 256 * (80 + (40 - 32) + 2 * 40 + 3 * (20 - 16))


@pytest.mark.parametrize("budgets", [{"tokens": [5_120, 20_480]}, {"steps": [20, 80]}])
def test_one_seed_above_needs_a_budget_above_it(budgets: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"budgets": {"steps": []} | budgets, "seeds": 3}
    assert [len(cell.spec.seed_values) for cell in Plan(sweep(**WSD | asked, one_seed_above=5_120)).cells] == [3, 1]
    with pytest.raises(InputError, match=r"one_seed_above: is 20,480, and no budget has more tokens; leave it out"):
        _ = Plan(sweep(**WSD | asked, one_seed_above=20_480)).cells


def test_budgets_with_other_best_rates_train_what_they_do_not_share(tmp_path: Path) -> None:
    """The shortest is best at the lowest rate, which it extends alone; its second seed is at a rate that no other wants."""
    best = {20: 0.01, 40: 0.04, 80: 0.04}

    def loss(config: RunConfig) -> float:
        return 3 + abs(config.recipe.learning_rate - best[config.steps])

    executor = OneAfterAnother(real=False, loss=loss)
    folder = launched(tmp_path, executor, tune=RATES, seeds=2)
    assert executor.adopted == {20: 3, 40: 4, 80: 0}
    alone = [(ended.config.recipe.learning_rate, ended.config.seed) for ended in folder.records()
             if ended.steps == 20 and ended.trunk is None]  # fmt: skip
    assert sorted(alone) == [(0.01, 0), (0.01, 1)]
    assert not list(folder.path.glob("runs/*/branch-*")), "a state that nobody came for is left"


def test_a_run_starts_as_soon_as_its_state_is_there_and_alone_when_its_trunk_failed(tmp_path: Path) -> None:
    short, middle, long = (cell.config for cell in cells(sweep(**WSD)))
    folder = SweepFolder(tmp_path / "toy")
    trunks = Trunks(cells(sweep(**WSD)), lambda config: folder.run(config.fingerprint("data")))
    everything, records = {config.key for config in (short, middle, long)}, dict[str, RunRecord]()
    assert [trunks.blocked(config, everything, records) for config in (short, middle, long)] == [True, True, False]
    state = folder.run(long.fingerprint("data")).branch(16) / "step-0000000016-0.ckpt"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"state")
    assert [trunks.blocked(config, everything, records) for config in (short, middle)] == [False, True]
    records[long.key] = record(long, None, "FAILED", reason="no luck")
    rest = everything - {long.key}
    assert [trunks.blocked(config, rest, records) for config in (short, middle)] == [False, False]


def test_a_run_waits_for_a_longer_cell_that_may_still_come_to_want_its_rate() -> None:
    short, long = planned = cells(sweep(**WSD | {"budgets": {"steps": [40, 80]}}, tune=RATES))
    trunks, records = Trunks(planned, lambda config: RunFolder(Path("nowhere") / config.key)), dict[str, RunRecord]()
    (config, *_) = short.trials()
    assert trunks.blocked(config, (), records)
    while wanted := long.wanted(records):
        records |= {one.key: record(one, at_the_middle(one)) for one in wanted}
    assert not trunks.blocked(config, (), records)


def test_a_state_stays_until_every_budget_that_begins_to_decay_there_has_its_record(tmp_path: Path) -> None:
    planned, folder = cells(sweep(**WSD | {"budgets": {"steps": [17, 18, 80]}})), SweepFolder(tmp_path / "toy")
    trunks = Trunks(planned, lambda config: folder.run(config.fingerprint("data")))
    one, other, long = (cell.config for cell in planned)
    assert one.branch_step == other.branch_step == 14
    state, records = folder.run(long.fingerprint("data")).branch(14), dict[str, RunRecord]()
    state.mkdir(parents=True)
    for config, there in ((one, True), (other, False)):
        records[config.key] = record(config)
        trunks.ended(config, records)
        assert state.exists() is there


@pytest.mark.parametrize("running", [False, True])
def test_states_of_runs_that_another_running_sweep_shares_are_left_to_it(running: bool, tmp_path: Path) -> None:
    planned, folder, other = cells(sweep(**WSD)), SweepFolder(tmp_path / "toy"), SweepFolder(tmp_path / "other")
    trunks = Trunks(planned, lambda config: folder.run(config.fingerprint("data")))
    shared, own = (folder.run(cell.config.fingerprint("data")) for cell in planned[:2])
    for run, cell in zip((shared, own), planned, strict=False):
        run.branch(14).mkdir(parents=True)
        run.write_config(cell.config)
        run.file_record(record(cell.config, run_id=run.run_id))
    other.run(shared.run_id).write_config(planned[0].config)
    with sweep_lock(other.launching) if running else nullcontext():
        trunks.tidy(folder)
    assert not own.branch(14).exists()
    assert shared.branch(14).exists() is running


def test_the_bill_of_shared_trunks_counts_every_rate_and_seed() -> None:
    paid = estimate_cost(Plan(sweep(**WSD, tune=RATES, seeds=2)), [Slot("cpu", (0,), threads=1)])
    assert paid.sharing is not None
    assert paid.sharing.train_flops == pytest.approx(paid.train_flops)
    assert paid.sharing.train_flops_alone == pytest.approx(paid.train_flops / 1.15 * 1.75)
    assert paid.sharing.train_flops_largest == pytest.approx(paid.train_flops / 1.15)
    spared = paid.plan.cells[0].config.spared_flops_per_token_with(None)  # the last layer's, alike at both depths
    that_run = paid.train_flops - spared * paid.spent_tokens
    assert paid.expected_seconds == pytest.approx(that_run / 4e10 + 0.005 * paid.spent_tokens / 256)


def test_a_branch_that_was_stopped_keeps_its_rows(tmp_path: Path) -> None:
    planned, folder = cells(sweep(**WSD | {"budgets": {"steps": [40, 80]}})), SweepFolder(tmp_path / "toy")
    trunks = Trunks(planned, lambda config: folder.run(config.fingerprint("data")))
    short, long = (cell.config for cell in planned)
    branch, trunk = (folder.run(config.fingerprint("data")) for config in (short, long))
    state = trunk.branch(32) / "step-0000000032-0.ckpt"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"state")
    trunk.metrics_file.write_text('{"trainer/step": 32}\n')
    branch.write_config(short)
    trunks.begin(short, {})
    Attempt.begin(branch)
    with branch.metrics_file.open("a") as file:
        file.write('{"trainer/step": 34}\n')
    trunks.begin(short, {})
    assert [row["trainer/step"] for row in branch.metrics()] == [32, 34]


@pytest.mark.slow
def test_one_trunk_costs_little_more_than_the_largest_budget_and_its_records_say_so(tmp_path: Path) -> None:
    """Real runs, in one sweep and one by one: the same losses to the bit, for 1.15 times the largest instead of 1.75."""
    corpus = write_topics(tmp_path / "topics.txt")
    spec = sweep(corpus, **WSD)
    fingerprint = data_fingerprint(spec.data)
    executor = OneAfterAnother(real=True)
    shared = launched(tmp_path / "shared", executor, fingerprint, corpus)
    assert sorted(config.steps for config in executor.submitted) == [20, 40, 80]
    for cell in cells(spec):
        alone = SweepFolder(tmp_path / "alone").run(cell.config.fingerprint(fingerprint))
        train(cell.config, alone, "toy", Execution(), StopSignal())
        ours, theirs = shared.run(alone.run_id).record(), alone.record()
        assert ours is not None
        assert theirs is not None
        assert ours.loss_nats == theirs.loss_nats
        assert np.array_equal(shared.run(alone.run_id).validation_losses(), alone.validation_losses())
    records = shared.records()
    spent = sum(ended.spent_tokens or 0 for ended in records)
    assert spent == 80 * 256 + (40 - 32) * 256 + (20 - 16) * 256
    assert spent == pytest.approx(1.15 * 80 * 256)
    assert sum(ended.tokens for ended in records) == 140 * 256
    table = shared.write_ledger()
    assert table["spent_tokens"].sum() == spent
    assert set(table["trunk"].dropna()) == {ended.run_id for ended in records if ended.steps == 80}
    paid = estimate_cost(Plan(spec, records), [Slot("cpu", (0,), threads=1)])
    assert paid.spent_tokens == spent
    assert paid.tokens == 140 * 256
    assert paid.sharing is not None
    assert paid.sharing.train_flops == paid.train_flops
    assert paid.sharing.train_flops / paid.sharing.train_flops_largest == pytest.approx(1.15)
    assert paid.sharing.train_flops_alone / paid.sharing.train_flops_largest == pytest.approx(1.75)


GOAL: dict[str, Any] = {
    "shapes": None,
    "budgets": None,
    "goal": {"forecast": {"parameters_non_embedding": 2e5, "tokens": 2e5}, "within": 1e-3},
    "pool": {"depth": [1, 2], "width": [16, 32], "tokens": [5120, 40960], "head_width": 8},
    "base": {"recipe": {"schedule": "wsd", "warmup_tokens": 512}},
    "seeds": 1,
    "spend": {"flops": 6e10},
}


@pytest.mark.slow
def test_a_longer_budget_of_a_goal_extends_the_trunk_of_an_ended_run_and_costs_the_rest(tmp_path: Path) -> None:
    executor = OneAfterAnother(real=False, loss=lambda config: 3 + 30 * config.tokens**-0.3)
    folder = launched(tmp_path, executor, **GOAL)
    records, spec = folder.records(), parsed(CORPUS, **WSD | GOAL)
    assert isinstance(spec, GoalSweep)
    design = LawGoal(spec)
    by_id = {ended.run_id: ended for ended in records}
    extended = [ended for ended in records if ended.trunk is not None and by_id[ended.trunk].tokens < ended.tokens]
    assert extended, "no longer budget was chosen after a shorter one of its shape"
    for ended in extended:
        assert ended.trunk is not None
        assert ended.trunk_step == by_id[ended.trunk].config.branch_step
    prices, path = design.prices, design.path(records)
    for ended in sorted(records, key=lambda one: executor.submitted.index(one.config)):
        place = design.place(ended.config)
        assert place is not None
        assert ended.own_flops == pytest.approx(prices.now[place[0]])
        prices = prices.after(place[0])
    assert sum(run.spent_flops for run in path.runs) < 0.9 * sum(ended.train_flops for ended in records)
    assert sum(run.spent_flops for run in path.runs) <= 6e10
    assert not list(folder.path.glob("runs/*/branch-*")), "the goal is over"
    first = "".join([*design.lines({}), *design.lines(design.ended(records[:1]))])
    assert "a longer budget from its trunk, for " in first


@pytest.mark.slow
def test_an_extended_run_equals_one_trained_alone(tmp_path: Path) -> None:
    """A run of 80 steps that goes on from where one of 40 began to decay."""
    corpus = write_topics(tmp_path / "topics.txt")
    short, long = (cell.config for cell in cells(sweep(corpus, **WSD | {"budgets": {"steps": [40, 80]}})))
    fingerprint = data_fingerprint(sweep(corpus, **WSD).data)

    class BothBudgets:
        def of_one_trunk(self, _: RunConfig) -> list[RunConfig]:
            return [short, long]

    actual = {}
    for name, runs in (("extended", (short, long)), ("alone", (long,))):
        folder = SweepFolder(tmp_path / name)

        def folder_of(run: RunConfig, folder: SweepFolder = folder) -> RunFolder:
            return folder.run(run.fingerprint(fingerprint))

        trunks = GoalTrunks(cast("GoalDesign", BothBudgets()), folder_of)
        records: dict[str, RunRecord] = {}
        for config in runs:
            run = folder.run(config.fingerprint(fingerprint))
            run.write_config(config)
            trunks.begin(config, records)
            train(config, run, "toy", Execution(), StopSignal())
            records[config.key] = cast("RunRecord", run.record())
        actual[name] = run
    extended, alone = (cast("RunRecord", actual[name].record()) for name in ("extended", "alone"))
    assert (extended.trunk_step, alone.trunk_step) == (32, None)
    assert extended.spent_tokens == (80 - 32) * 256
    assert extended.loss_nats == alone.loss_nats
    assert np.array_equal(actual["extended"].validation_losses(), actual["alone"].validation_losses())
