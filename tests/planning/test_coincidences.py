"""One run, one name: what a sweep asks for twice is planned once and said; what trains nothing of its own is refused."""

from __future__ import annotations

from typing import Any

import pytest

from study.base.errors import InputError
from study.config.knobs import training_key
from study.config.run_config import RunConfig
from study.executing.slots import Slot
from study.planning.cost_estimate import cost_lines, estimate_cost
from study.planning.plan import Plan, searched_config
from study.planning.search import OptunaSearch
from study.store.records import RunRecord
from tests.sweeps import RATES, parsed, record, search_sweep, sweep

CORE = Slot("cpu", (0,), threads=1)
FIXED = {"architecture": {"depth": 1, "width": 16, "heads": 2}}
DECAYS = {"recipe.schedule": ["linear", "wsd"], "recipe.decay_fraction": [0.1, 0.2]}
DECAY = {"low": 0.1, "high": 0.4}
WSD_ALONE = "only schedule wsd uses it; linear and cosine decay from the end of the warmup"


def refused(**changes: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        Plan(parsed(**changes)).check()
    return {problem.place: problem.message for problem in caught.value.problems}


def settings(**changes: Any) -> list[str]:
    """What distinguishes the cells of the first shape."""
    spec = sweep(**{"shapes": {"grid": {"depth": [1]}}} | changes)
    return [cell.config.variant(spec.varied) for cell in Plan(spec).cells]


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"vary": {"recipe.decay_fraction": [0.1, 0.2]}}, "vary.recipe.decay_fraction",
         f"0.1 and 0.2 train the same runs: {WSD_ALONE}; keep one of them"),
        ({"vary": {"recipe.initialisation": ["bert", "unit_stream"]}}, "vary.recipe.initialisation",
         "it changes the projection of narrower tables, and the tables are as wide as the layers"),
        ({"vary": {"architecture.positions": [16, 32]}, "base": {"architecture": {"position_encoding": "rotary"}}},
         "vary.architecture.positions", "16 and 32 train the same runs: no parameter depends on positions"),
        ({"vary": {"recipe.warmup_fraction": [0.1, 0.101]}}, "vary.recipe.warmup_fraction",
         "every step has the same learning rate at both"),
        ({"vary": {"recipe.muon_rate_ratio": [2, 4]}}, "vary.recipe.muon_rate_ratio", "only optimizer muon uses it"),
        ({"vary": {"recipe.masking.rate": [0.18, 0.2]}}, "vary.recipe.masking.rate", "both mask 3 positions of a sequence"),
        ({"budgets": {"tokens": [25_600]}}, "budgets", "25,600 tokens and 100 steps train the same runs: both are 100 steps"),
        ({"budgets": {"steps": [100, 101], "tokens": [25_900]}}, "budgets", "25,900 tokens and 101 steps train the same runs"),
        ({"tune": {"recipe.decay_fraction": DECAY | {"trials": 3}}}, "tune.recipe.decay_fraction",
         f"has no effect in L1-H16-A2-F32: {WSD_ALONE}; leave it out"),
        ({"tune": {"recipe.warmup_fraction": {"low": 0.1, "high": 0.12, "trials": 5}}}, "tune.recipe.warmup_fraction",
         "train the same run of L1-H16-A2-F32, of 100 steps; ask for fewer trials, or a wider range"),
        ({"vary": {"recipe.schedule": ["linear", "wsd"]}, "tune": {"recipe.decay_fraction": DECAY | {"trials": 2}}},
         "tune.recipe.decay_fraction", "has no effect in L1-H16-A2-F32"),
        ({"shapes": None, "base": FIXED, "search": {"trials": 2, "space": {"recipe.decay_fraction": DECAY}}},
         "search.space.recipe.decay_fraction", f"has no effect: {WSD_ALONE}; leave it out"),
    ],
)  # fmt: skip
def test_what_trains_nothing_of_its_own_is_refused(changes: dict[str, Any], place: str, message: str) -> None:
    problems = refused(**changes)
    assert list(problems) == [place]
    assert message in problems[place]


def test_values_that_matter_in_other_settings_alone_are_one_cell_where_they_do_not() -> None:
    assert settings(vary=DECAYS) == [
        "schedule=linear, decay_fraction=0.1",
        "schedule=wsd, decay_fraction=0.1",
        "schedule=wsd, decay_fraction=0.2",
    ]
    assert settings(vary={"recipe.initialisation": ["bert", "unit_stream"], "architecture.embedding_width": ["none", 8]}) == [
        "initialisation=bert, embedding_width=none",
        "initialisation=bert, embedding_width=8",
        "initialisation=unit_stream, embedding_width=8",
    ]


DEEP: dict[str, Any] = {
    "cells": {"deep": {"depth": 4, "steps": 50}},
    "shapes": {"grid": {"depth": [2], "width": [16], "heads": [2]}},
}


@pytest.mark.parametrize(
    ("knob", "values", "why"),
    [
        ("start", [{"keep": "last"}, {"keep": [2, 3]}], "both keep the same layers in the same order"),
        ("start", [{"keep": "spread"}, {"keep": [0, 3]}], "both keep the same layers in the same order"),
        ("start", [{}, {"keep": [0, 1]}], None),
        ("teacher", [{"layers": "last"}, {"layers": {2: 4}}], "both match the same layers"),
        ("teacher", [{"layers": "uniform"}, {"layers": {0: 0, 1: 2, 2: 4}}], "both match the same layers"),
        ("teacher", [{"layers": {1: 2, 2: 4}}, {"layers": {2: 4, 1: 2}}], "both match the same layers"),
    ],
)
def test_layers_under_two_names_are_refused(knob: str, values: list[dict[str, Any]], why: str | None) -> None:
    losses = {"hidden_mse": 0.1} if knob == "teacher" else {}
    vary = {f"recipe.{knob}": [{"cell": "deep"} | losses | value for value in values]}
    assert (why or "two names of one run") in " ".join(refused(**DEEP, vary=vary).values())


def test_layers_under_two_names_at_one_depth_alone_are_one_cell_there() -> None:
    """Of its own depth, the last layers of an encoder are the first."""
    vary = {"recipe.start": [{"cell": "deep"}, {"cell": "deep", "keep": "last"}]}
    shapes = {"grid": {"depth": [2, 4], "width": [16], "heads": [2]}}
    cells = Plan(sweep(**DEEP | {"shapes": shapes, "vary": vary})).cells
    started = [cell for cell in cells if cell.config.recipe.init_from]
    assert [cell.config.architecture.depth for cell in started] == [2, 4, 2]
    assert [len(cell.other_names) for cell in started] == [0, 1, 0]


def test_a_plateau_of_no_steps_is_no_schedule_of_its_own() -> None:
    """With a tenth of warmup, nine tenths of decay leave none: wsd is then linear."""
    vary = {"recipe.schedule": ["linear", "wsd"], "recipe.decay_fraction": [0.2, 0.9]}
    assert settings(vary=vary) == ["schedule=linear, decay_fraction=0.2", "schedule=wsd, decay_fraction=0.2"]


def test_budgets_that_meet_at_one_shape_alone_are_one_cell_there() -> None:
    of_one = Plan(sweep(budgets={"steps": [], "tokens_per_parameter": [8]})).cells
    steps = [cell.config.steps for cell in of_one]
    assert steps[0] != steps[1]
    both = Plan(sweep(budgets={"steps": [steps[0]], "tokens_per_parameter": [8]})).cells
    named = [(cell.config.architecture.depth, cell.config.recipe.budget.unit) for cell in both]
    assert named == [(1, "steps"), (2, "steps"), (2, "tokens per parameter")]
    assert both[0].other_names == (f"8 tokens per parameter is {steps[0]} steps: both are {steps[0]} steps",)


def test_named_cells_of_the_same_steps_are_refused() -> None:
    """Of 100 and 120 steps, in batches of 256 tokens: a little more than a budget is that budget, and one trunk serves both."""
    wsd = {"recipe": {"schedule": "wsd", "warmup_tokens": 2_560, "batch_tokens": 256}}
    more = {"near": {"tokens": 25_700}, "longer": {"tokens": 30_720}, "same": {"tokens": 30_800}}
    changes: dict[str, Any] = {"base": wsd, "shapes": {"grid": {"depth": [1]}}, "budgets": {"steps": [], "tokens": [25_600]}}
    with pytest.raises(InputError) as caught:
        Plan(sweep(**changes, cells=more)).check()
    assert [problem.place for problem in caught.value.problems] == ["cells.near", "cells.same"]
    plan = Plan(sweep(**changes, cells={"longer": more["longer"]}))
    assert sorted(cell.config.steps for cell in plan.cells) == [100, 120]


def test_a_cell_that_others_start_from_may_have_the_steps_of_a_budget() -> None:
    """It is trained beside that budget's, which has a name of its own, and neither is a branch of the other."""
    wsd = {"recipe": {"schedule": "wsd", "warmup_tokens": 2_560, "batch_tokens": 256}}
    shapes, budgets = {"grid": {"depth": [1]}}, {"steps": [], "tokens": [25_600]}
    started: dict[str, Any] = {"cells": {"near": {"tokens": 25_700}}, "vary": {"recipe.start": ["fresh", {"cell": "near"}]}}
    estimate = estimate_cost(Plan(sweep(base=wsd, shapes=shapes, budgets=budgets, **started)), [CORE])
    assert [row.runs for row in estimate.rows] == [1, 1, 1]
    assert estimate.sharing is None


def test_the_ids_of_what_is_planned_are_those_of_the_first_names() -> None:
    """What was trained before of a sweep that had two names for a run is found again."""
    alone = {cell.config.key for cell in Plan(sweep(vary=DECAYS | {"recipe.decay_fraction": [0.1]})).cells}
    assert alone < {cell.config.key for cell in Plan(sweep(vary=DECAYS)).cells}


def test_every_planned_run_trains_something_of_its_own() -> None:
    fractions = {"final_learning_rate_fraction": [0, 0.1], "warmup_fraction": [0.1, 1.0]}
    vary = {"recipe.schedule": ["linear", "cosine"]} | {f"recipe.{knob}": values for knob, values in fractions.items()}
    planned = Plan(sweep(shapes={"grid": {"depth": [1]}}, vary=vary, tune=RATES, seeds=3)).cells
    assert len(planned) == 5, "where the warmup takes all steps, nothing falls"
    runs = [run for cell in planned for run in cell.trials()]
    assert len({training_key(run) for run in runs}) == len({run.key for run in runs}) == len(runs)


def test_what_is_trained_once_is_said_and_so_is_a_base_without_effect() -> None:
    lines = cost_lines(estimate_cost(Plan(sweep(vary=DECAYS)), [CORE]))
    coincidence = "schedule=linear, decay_fraction=0.2 is schedule=linear, decay_fraction=0.1"
    assert f"Trained once: {coincidence}: {WSD_ALONE}." in lines
    estimate = estimate_cost(Plan(sweep(base={"recipe": {"decay_fraction": 0.1}})), [CORE])
    assert estimate.to_dict()["without_effect"] == {"recipe.decay_fraction": WSD_ALONE}
    assert any(line.startswith(f"base.recipe.decay_fraction has no effect: {WSD_ALONE}.") for line in cost_lines(estimate))
    wsd = estimate_cost(Plan(sweep(base={"recipe": {"decay_fraction": 0.1, "schedule": "wsd"}})), [CORE])
    assert wsd.to_dict()["without_effect"] == {}


def test_beyond_its_range_a_cell_tries_no_value_that_trains_what_an_end_of_it_does() -> None:
    """Warmups of 1, 2 and 4 of 100 steps; half a step below is none, which is another run, and 0.03 to 0.032 both are 3."""
    (cell,) = Plan(
        sweep(
            shapes={"grid": {"depth": [1]}},
            tune={"recipe.warmup_fraction": {"low": 0.03, "high": 0.035, "trials": 2}},
        )
    ).cells
    tried = {training_key(run) for trial in cell._reach.values() for run in trial}
    assert len(tried) == len(cell._reach) == 2
    assert len(cell.trials()) == 2


def search(**dimensions: Any) -> OptunaSearch:
    space = {f"recipe.{knob}": dimension for knob, dimension in dimensions.items()}
    return OptunaSearch(search_sweep(base=FIXED, search={"trials": 12, "sampler": "random", "space": space}))


def run_to_the_end(requested: OptunaSearch) -> list[RunConfig]:
    """Every run that a search asks for, one at a time."""
    records: dict[str, RunRecord] = {}
    runs: list[RunConfig] = []
    while wanted := requested.wanted(records, (), 1):
        (run,) = wanted
        runs.append(run)
        records[run.key] = record(run, 3.0, run_id=f"{len(runs):016x}")
        requested.tell(run.key, records[run.key])
    return runs


def test_a_search_trains_points_once_that_differ_in_knobs_without_effect() -> None:
    requested = search(schedule={"choices": ["linear", "wsd"]}, decay_fraction={"low": 0.1, "high": 0.5})
    runs = run_to_the_end(requested)
    linear = [run for run in runs if run.recipe.schedule == "linear"]
    assert len(linear) == 1
    assert len({training_key(run) for run in runs}) == len(runs) == 12
    assert len(requested.study.get_trials()) > 12, "points of a run that was trained take no trial"


def test_a_search_that_is_taken_up_knows_what_was_trained_under_another_name() -> None:
    dimensions: dict[str, Any] = {"schedule": {"choices": ["linear"]}, "decay_fraction": {"low": 0.1, "high": 0.5}}
    requested = search(**dimensions)
    before = searched_config(requested.spec, {"recipe.schedule": "linear", "recipe.decay_fraction": 0.33})
    ended = record(before, 3.0)
    requested.restore([ended], [])
    assert requested.wanted({before.key: ended}, (), 3) == []
