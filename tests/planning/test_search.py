"""Free search: decided by Optuna, rebuilt from records, no run twice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from optuna.trial import TrialState

from study.config.run_config import RunConfig
from study.config.sweep import SearchSweep
from study.planning.plan import Plan
from study.planning.search import OptunaSearch
from study.store.records import RunRecord
from tests.sweeps import record
from tests.sweeps import search_sweep as sweep_of

SPACE = {
    "architecture.depth": {"low": 1, "high": 4},
    "architecture.width": {"choices": [16, 32, 48]},
    "recipe.learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
}
SMALL = {"architecture.depth": {"low": 1, "high": 2}, "architecture.width": {"choices": [16, 32]}}


def search_sweep(space: dict[str, Any] = SPACE, trials: int = 12, **search: Any) -> SearchSweep:
    return sweep_of(search={"trials": trials, "space": space, "head_width": 16} | search)


def ended(config: RunConfig, number: int = 0, **changes: Any) -> RunRecord:
    """A record whose loss falls with depth; `number` makes later ones end later."""
    times = {"finished_at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}+00:00", "run_id": f"{number:016x}"}
    return record(config, 5 / config.architecture.depth + config.recipe.learning_rate, **times | changes)


def run_to_the_end(search: OptunaSearch, records: dict[str, RunRecord], slots: int = 3) -> list[RunConfig]:
    """Every run that a search asks for with some slots, ended in a random order."""
    draw, running, asked = random.Random(0), dict[str, RunConfig](), list[RunConfig]()
    while True:
        new = search.wanted(records, running, slots - len(running))
        assert len(new) <= slots - len(running)
        asked += new
        running |= {config.key: config for config in new}
        if not running:
            return asked
        key = draw.choice(sorted(running))
        records[key] = ended(running.pop(key), len(records))
        search.tell(key, records[key])


def trials_of(search: OptunaSearch) -> set[tuple[Any, ...]]:
    done = search.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
    return {(tuple(sorted(trial.params.items())), tuple(trial.values or ()), trial.state) for trial in done}


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
@pytest.mark.parametrize("objectives", [["loss_nats"], ["loss_nats", "parameters", "train_flops"]])
def test_a_search_asks_for_its_trials_and_is_rebuilt_from_its_records(sampler: str, objectives: list[str]) -> None:
    spec = search_sweep(sampler=sampler, objectives=objectives)
    search, records = OptunaSearch(spec), dict[str, RunRecord]()
    asked = run_to_the_end(search, records)
    assert len(asked) == len({config.key for config in asked}) == len(records) == 12
    again = OptunaSearch(spec)
    again.restore(records.values(), started=[])
    assert trials_of(again) == trials_of(search)
    assert again.wanted(records, {}, 3) == []
    best = max(record.config.architecture.depth for record in records.values())
    assert {trial.params["architecture.depth"] for trial in again.study.best_trials} >= {best}


def test_after_a_restart_only_what_is_missing_is_asked_and_begun_runs_first() -> None:
    spec, records = search_sweep(), dict[str, RunRecord]()
    before = OptunaSearch(spec)
    first = before.wanted(records, {}, 6)
    for number, config in enumerate(first[:4]):
        records[config.key] = ended(config, number)
        before.tell(config.key, records[config.key])
    after = OptunaSearch(spec)
    after.restore(records.values(), started=first[4:])
    wanted = after.wanted(records, {}, 3)
    assert wanted[:2] == first[4:]
    assert wanted[2].key not in {config.key for config in first}
    rest = run_to_the_end(after, records, slots=20)
    assert len(records) == 12
    assert wanted == rest[:3]


def test_a_restart_knows_the_trials_at_values_that_configurations_leave_out() -> None:
    space = SMALL | {"architecture.position_encoding": {"choices": ["learned", "rotary"]}}
    spec, records = search_sweep(space, trials=30), dict[str, RunRecord]()
    search = OptunaSearch(spec)
    run_to_the_end(search, records)
    assert {record.config.architecture.position_encoding for record in records.values()} == {"learned", "rotary"}
    again = OptunaSearch(spec)
    again.restore([record for record in records.values() if Plan(spec).holds(record.config)], started=[])
    assert trials_of(again) >= {trial for trial in trials_of(search) if trial[-1] == TrialState.COMPLETE}
    assert len(again.study.trials) == len(records)


def test_a_genetic_search_goes_on_with_its_generations_after_a_restart() -> None:
    def generations(search: OptunaSearch) -> list[int]:
        trials = search.study.get_trials(deepcopy=False)
        return [value for trial in trials for key, value in trial.system_attrs.items() if key.endswith(":generation")]

    spec, records = search_sweep(trials=70, sampler="nsga2"), dict[str, RunRecord]()
    run_to_the_end(OptunaSearch(spec), records, slots=1)
    again = OptunaSearch(search_sweep(trials=71, sampler="nsga2"))
    again.restore(records.values(), started=[])
    assert generations(again) == [0] * 50 + [1] * (len(records) - 50)
    again.wanted(records, {}, 1)
    assert generations(again)[len(records)] == 1


def test_a_run_that_stopped_without_a_record_is_asked_again() -> None:
    search = OptunaSearch(search_sweep())
    first = search.wanted({}, {}, 2)
    running = {first[0].key: first[0]}
    assert search.wanted({}, running, 1) == [first[1]]
    assert search.wanted({}, {config.key: config for config in first}, 0) == []


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_a_finite_space_is_tried_as_often_as_the_trials_say(sampler: str) -> None:
    """Repeated points take no trial: 12 points are all tried in 12 trials, and 9 different ones in 9."""
    space = {"architecture.depth": {"low": 1, "high": 4}, "architecture.width": {"choices": [16, 32, 48]}}
    for trials in (9, 12):
        search, records = OptunaSearch(search_sweep(space, trials=trials, sampler=sampler)), dict[str, RunRecord]()
        assert len(run_to_the_end(search, records)) == len(records) == trials
        assert search.exhausted is None
    wider = OptunaSearch(search_sweep(space, trials=14, sampler=sampler))
    wider.restore(records.values(), started=[])
    assert wider.wanted(records, {}, 3) == []
    assert wider.exhausted == "The search ends after 12 runs of 14 trials: all 12 points of its space are tried"


def test_a_search_whose_points_all_train_the_same_ends_and_says_so() -> None:
    """A dimension without effect makes endless points of two runs."""
    space = {"architecture.depth": {"low": 1, "high": 2}, "recipe.decay_fraction": {"low": 0.1, "high": 0.5}}
    spec = search_sweep(space).model_copy(update={"base": {"architecture": {"width": 16}, "recipe": {"schedule": "linear"}}})
    search, records = OptunaSearch(spec), dict[str, RunRecord]()
    assert len(run_to_the_end(search, records)) == 2
    assert search.exhausted == "The search ends after 2 runs of 12 trials: 100 points in a row train the same as earlier ones"


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_small_space_is_not_run_twice_and_the_search_ends(sampler: str) -> None:
    search, records = OptunaSearch(search_sweep(SMALL, trials=30, sampler=sampler)), dict[str, RunRecord]()
    asked = run_to_the_end(search, records)
    assert len(asked) == len({config.key for config in asked}) == len(records) == 4
    assert search.exhausted == "The search ends after 4 runs of 30 trials: all 4 points of its space are tried"
    assert {trial.state for trial in search.study.trials} <= {TrialState.COMPLETE, TrialState.FAIL}
    assert len([trial for trial in trials_of(search) if trial[-1] == TrialState.COMPLETE]) == len(asked), "one outcome a point"


def test_failed_runs_and_on_a_front_those_that_read_no_order_are_reported_as_failed() -> None:
    search = OptunaSearch(search_sweep(objectives=["loss_nats", "parameters"]))
    diverged, unread, good = search.wanted({}, {}, 3)
    search.tell(diverged.key, record(diverged, None, "DIVERGED", reason="training loss is nan"))
    search.tell(unread.key, record(unread, 4.1, order_gain_nats=0.001))
    search.tell(good.key, ended(good))
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE]
    assert search.study.trials[2].values == [ended(good).loss_nats, ended(good).parameters]


def test_a_search_for_the_lowest_loss_learns_where_runs_are_left_on_the_plateau() -> None:
    search = OptunaSearch(search_sweep())
    diverged, unread, by_hand = search.wanted({}, {}, 3)
    search.tell(diverged.key, record(diverged, None, "DIVERGED", reason="training loss is nan"))
    search.tell(unread.key, record(unread, 4.1, order_gain_nats=0.001))
    search.tell(by_hand.key, record(by_hand, 4.1, order_gain_nats=0.001, excluded="a bad disk"))
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.FAIL]
    assert search.study.trials[1].values == [4.1]


def test_a_point_that_is_no_valid_run_fails_as_a_trial_and_stops_nothing() -> None:
    space = {"architecture.width": {"low": 16, "high": 64, "step": 16}, "architecture.heads": {"low": 1, "high": 16}}
    search = OptunaSearch(search_sweep(space, trials=20).model_copy(update={"base": {"architecture": {"depth": 1}}}))
    records: dict[str, RunRecord] = {}
    run_to_the_end(search, records)
    states = [trial.state for trial in search.study.trials]
    assert len(states) == 20
    assert TrialState.FAIL in states
    assert all(record.config.architecture.width % record.config.architecture.heads == 0 for record in records.values())
