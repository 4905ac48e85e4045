"""From a sweep to its cells, runs and bill: what a cell wants is a function of the records alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from study.base.errors import InputError
from study.config.resources import Resources
from study.config.run_config import RunConfig
from study.config.sweep import parse_sweep
from study.counting.parameters import parameters
from study.executing.slots import Slot
from study.planning.cell import Cell
from study.planning.cost_estimate import cost_summary, cost_table, estimate_cost
from study.planning.plan import Plan, cells, check_space, point_of, search_example, searched_config
from study.planning.step_times import step_times
from study.running.launch import plan
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder
from tests.small import write_corpus
from tests.sweeps import RATES, parsed, record, search_sweep, sweep, sweep_values, texts_of
from tests.synthetic import environment

Loss = Callable[[RunConfig], float | None]

CORE = Slot("cpu", (0,), threads=1)
LARGE: dict[str, Any] = {"base": {"recipe": {"batch_tokens": 2**36, "precision": "fp32", "learning_rate": 0.04}}}
"""Steps of so many FLOPs that the overhead assumed of each is nothing."""

ASSUMED = "in the assumed proportion"
"""How the basis of a cost estimate says that the overhead and rate of steps were not told apart."""


def assumed_seconds(config: RunConfig) -> float:
    """Those of a step on one core without earlier runs."""
    return 0.005 + flops_that_run(config) * config.recipe.batch_tokens / 4e10


def rate(config: RunConfig) -> float:
    return config.recipe.learning_rate


def problems_of(**changes: Any) -> dict[str, str]:
    spec = parsed(**changes)
    with pytest.raises(InputError) as caught:
        Plan(spec).check()
    return {problem.place: problem.message for problem in caught.value.problems}


def test_the_cells_of_a_plan_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(side_effect=cells)
    monkeypatch.setattr("study.planning.plan.cells", made)
    plan(sweep(write_corpus(tmp_path / "corpus.txt")), tmp_path, Resources(device="cpu"))
    made.assert_called_once()


def run_all(cell: Cell, loss: Loss) -> list[list[tuple[float, int]]]:
    """The rates and seeds that a cell wants, round by round, until it wants none."""
    records: dict[str, RunRecord] = {}
    rounds: list[list[tuple[float, int]]] = []
    while wanted := cell.wanted(records):
        assert len(rounds) < 10
        rounds.append([(rate(config), config.seed) for config in wanted])
        records |= {config.key: outcome(config, loss) for config in wanted}
    return rounds


def outcome(config: RunConfig, loss: Loss) -> RunRecord:
    nats = loss(config)
    return record(config, nats) if nats is not None else record(config, None, "DIVERGED", reason="training loss is nan")


def test_a_grid_and_a_list_give_each_shape_at_each_budget() -> None:
    grid = cells(sweep(budgets={"steps": [10, 20]}))
    sizes = [(cell.config.architecture.shape_name, cell.config.steps) for cell in grid]
    assert sizes == [(f"L{depth}-H16-A2-F32", steps) for depth in (1, 2) for steps in (10, 20)]
    (listed,) = cells(sweep(shapes={"grid": None, "list": [{"depth": 3, "width": 128}]}))
    assert listed.config.architecture.shape_name == "L3-H128-A2-F512"
    assert (listed.config.architecture.vocabulary, listed.config.architecture.positions) == (100, 16)


def test_each_setting_has_every_shape_and_a_search_of_its_own() -> None:
    vary = {"architecture.norm": ["post", "pre"], "recipe.dropout": ["1e-1", 0]}
    tune = {"recipe.learning_rate": {"low": 0.01, "high": 0.16, "trials": 5}}
    planned = cells(sweep(vary=vary, tune=tune))
    settings = [cell.config.variant(tuple(vary)) for cell in planned]
    assert settings == [f"norm={norm}, dropout={dropout}" for norm in ("post", "pre") for dropout in (0.1, 0) for _ in (1, 2)]
    assert [cell.config.architecture.depth for cell in planned] == [1, 2] * 4
    for one, two in zip(planned[::2], planned[1::2], strict=True):
        assert (one.neighbour, two.neighbour) == (None, one)
    table = cost_table("?", estimate_cost(Plan(sweep(vary=vary, tune=tune)), [CORE]))
    lines = list(map(str, table.columns[0].cells))
    assert lines[::3] == list(dict.fromkeys(settings)), "each setting is named once, above its shapes"
    assert all(line.startswith(("L1-", "L2-")) for place, line in enumerate(lines) if place % 3)


def test_a_value_that_no_run_can_have_is_reported_by_its_knob() -> None:
    assert problems_of(vary={"architecture.norm": ["post", "rms"]}).keys() == {"vary.architecture.norm"}
    assert "warmup_fraction" in str(
        problems_of(vary={"recipe.warmup_fraction": [0.1, 0.9]}, base={"recipe": {"schedule": "wsd"}})
    )


def test_schedules_that_are_compared_keep_one_warmup() -> None:
    planned = cells(sweep(vary={"recipe.schedule": ["linear", "wsd"]}, budgets={"steps": [100, 200]}))
    assert {(cell.config.recipe.warmup_fraction, cell.config.recipe.warmup_tokens) for cell in planned} == {(0.1, None)}


def test_equal_parameters_are_met_within_the_tolerance() -> None:
    shapes = {"grid": None, "iso_parameters": [2e5, 4e5], "depth": [1, 2, 4], "head_width": 32, "width_multiple": 4}
    planned = cells(sweep(shapes=shapes | {"tolerance": 0.05}, base={"architecture": {"norm": "pre"}}))
    counts = [parameters(cell.config.architecture).parameters_non_embedding for cell in planned]
    assert [cell.config.architecture.depth for cell in planned] == [1, 2, 4, 1, 2, 4]
    assert counts == [pytest.approx(target, rel=0.05) for target in (2e5, 2e5, 2e5, 4e5, 4e5, 4e5)]
    assert {cell.config.architecture.norm for cell in planned} == {"pre"}


def test_equal_total_parameters_are_met_with_the_vocabulary_and_the_positions_of_the_text() -> None:
    shapes = {"grid": None, "iso_parameters": [5e5], "depth": [1, 2, 4], "head_width": 8}
    text = {"tokenizer": {"vocabulary": 2048}, "sequence_length": 64}
    architectures = [cell.config.architecture for cell in cells(sweep(shapes=shapes | {"count": "total"}, data=text))]
    assert [parameters(shape).parameters for shape in architectures] == [pytest.approx(5e5, rel=0.05)] * 3
    deeper = [parameters(shape).parameters_non_embedding for shape in architectures]
    assert deeper == sorted(deeper), "the wider has larger tables, and less in its layers"
    assert deeper[2] > 1.4 * deeper[0]
    usual = [cell.config.key for cell in cells(sweep(shapes=shapes, data=text))]
    assert [cell.config.key for cell in cells(sweep(shapes=shapes | {"count": "non_embedding"}, data=text))] == usual


def test_equal_total_parameters_are_solved_for_each_vocabulary_that_is_compared() -> None:
    shapes = {"grid": None, "iso_parameters": [5e5], "count": "total", "depth": [2], "head_width": 8}
    vary = {"data.tokenizer.vocabulary": [512, 2048]}
    small, large = (cell.config.architecture for cell in cells(sweep(shapes=shapes, vary=vary)))
    assert small.width > large.width
    assert parameters(small).parameters == pytest.approx(parameters(large).parameters, rel=0.1)


def test_a_target_of_total_parameters_is_refused_by_the_count_that_missed_it() -> None:
    shapes = {"grid": None, "iso_parameters": [5e5], "count": "total", "depth": [1], "width_multiple": 200}
    (problem,) = problems_of(shapes=shapes).values()
    (shape,) = (cell.config.architecture for cell in cells(sweep(shapes=shapes | {"tolerance": 0.99})))
    assert f"the nearest width, 200, has {parameters(shape).parameters:,} parameters" in problem


def test_a_target_is_met_exactly_by_a_shape_of_its_size_with_the_norm_of_the_base() -> None:
    base = {"architecture": {"norm": "pre"}}
    (grid,) = cells(sweep(base=base, shapes={"grid": {"depth": [2], "width": [64], "heads": [1], "ffn": [256]}}))
    size = parameters(grid.config.architecture).parameters_non_embedding
    shapes = {"grid": None, "iso_parameters": [size], "depth": [2], "tolerance": 1e-9}
    assert [cell.config.architecture for cell in cells(sweep(base=base, shapes=shapes))] == [grid.config.architecture]


@pytest.mark.parametrize("target", [4e5, 2.5e5])
def test_a_target_is_refused_where_the_nearest_width_has_too_few_or_too_many(target: float) -> None:
    place = f"shapes.iso_parameters {target:,.0f} at depth 1"
    problems = problems_of(shapes={"grid": None, "iso_parameters": [target], "depth": [1], "width_multiple": 160})
    assert problems[place].startswith("the nearest width, 160, has 309,")


def test_widths_are_solved_for_in_multiples_of_a_head_width_that_is_asked_for() -> None:
    shapes = {"grid": None, "iso_parameters": [2e5], "depth": [1, 2], "tolerance": 0.3}
    for head_width in (32, 48):
        solved = [cell.config.architecture for cell in cells(sweep(shapes=shapes | {"head_width": head_width}))]
        assert [shape.head_width for shape in solved] == [head_width] * 2
        assert all(shape.width % 8 == 0 for shape in solved)
    free, usual = {"head_width": 32, "width_multiple": 4}, {"width_multiple": 4}
    summaries = [
        cost_summary(estimate_cost(Plan(sweep(shapes=shapes | given)), [CORE])) for given in ({"head_width": 32}, free, usual)
    ]
    assert ["The head width is " in lines for lines in summaries] == [False, True, False]
    assert "The head width is 23 in L2-H92-A4-F368, the nearest possible to head_width" in summaries[1]


def test_a_search_is_refused_widths_that_its_head_width_does_not_divide() -> None:
    space = {"architecture.depth": {"low": 1, "high": 2}, "architecture.width": {"low": 16, "high": 64, "step": 8}}
    search = {"trials": 2, "space": space}
    problems = problems_of(shapes=None, search=search | {"head_width": 16})
    assert problems == {
        "search": "head_width 16 does not divide width 24, 40, 56; give one that does, or heads, or other widths"
    }
    Plan(search_sweep(search=search)).check()
    Plan(search_sweep(search=search | {"head_width": 8})).check()
    of_heads = search | {"head_width": 16, "space": space | {"architecture.heads": {"choices": [1, 2]}}}
    Plan(search_sweep(search=of_heads)).check()
    check_space(search_sweep(search=search | {"head_width": 16}))  # what an older launch asked for can still be read


def test_of_several_head_widths_and_ffn_ratios_each_makes_shapes_at_equal_parameters() -> None:
    shapes = {"grid": None, "iso_parameters": [4e5], "depth": [2], "head_width": [16, 64], "ffn_ratio": [1, 4]}
    planned = cells(sweep(shapes=shapes | {"width_multiple": 4}))
    actual = [cell.config.architecture for cell in planned]
    assert [shape.ffn / shape.width for shape in actual] == [1, 4, 1, 4]
    assert [round(shape.width / shape.heads / 8) for shape in actual] == [2, 2, 8, 8]
    assert [parameters(shape).parameters_non_embedding for shape in actual] == [pytest.approx(4e5, rel=0.05)] * 4
    with pytest.raises(InputError, match=r"at depth 2 and FFN ratio 4: the nearest width, 160, has"):
        cells(sweep(shapes=shapes | {"width_multiple": 160, "tolerance": 0.5}))


def test_budgets_of_every_unit_become_whole_steps() -> None:
    budgets = {"steps": [7], "tokens": [1000], "flops": [1e8], "tokens_per_parameter": [0.5]}
    planned = cells(sweep(budgets=budgets, shapes={"grid": {"depth": [1]}}))
    configs = {next(iter(cell.config.recipe.budget.model_dump(exclude_none=True))): cell.config for cell in planned}
    assert configs["steps"].steps == 7
    assert configs["tokens"].steps == 3
    assert configs["flops"].steps == int(1e8 // (configs["flops"].flops_per_token["train_flops"] * 256))
    assert configs["tokens_per_parameter"].steps == parameters(configs["steps"].architecture).parameters // 2 // 256
    assert all(config.tokens == config.steps * 256 for config in configs.values())


RUN = "results/a/runs/0123456789abcdef"


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"budgets": {"steps": [10, 10]}}, "budgets.steps", "[10, 10] holds 10 twice"),
        ({"shapes": {"grid": {"depth": [1, 2, 1]}}}, "shapes.grid.depth", "holds 1 twice"),
        ({"shapes": {"grid": {"heads": [2, 2]}}}, "shapes.grid.heads", "holds 2 twice"),
        ({"shapes": {"grid": None, "list": [{"depth": 1, "width": 8}] * 2}}, "shapes.list",
         "holds {'depth': 1, 'width': 8} twice"),
        ({"shapes": {"grid": None, "list": [{"depth": 1, "width": 8}, {"depth": 1, "width": 8, "heads": 1}]}},
         "shapes (1-8-1-32)", "occurs twice"),
        ({"shapes": {"grid": None, "iso_parameters": [2e5, 2.01e5], "depth": [1]}},
         "shapes (1-128-2-512)", "occurs twice"),
        ({"shapes": {"grid": {"ffn": None}, "ffn_ratio": [2, 2.0]}}, "shapes.ffn_ratio", "holds 2 twice"),
        ({"vary": {"recipe.dropout": ["1e-1", 0.1]}}, "vary.recipe.dropout", "holds 0.1 twice"),
        ({"vary": {"recipe.dropout": [0, 0]}}, "vary.recipe.dropout", "holds 0 twice"),
        ({"vary": {"recipe.start": ["fresh", RUN, f"{RUN}:first"]}}, "vary", "start=0123456789abcdef:first occurs twice"),
        ({"tags": ["a", "a"]}, "tags", "holds 'a' twice"),
        ({"shapes": None, "search": {"trials": 2, "space": {"recipe.beta1": {"choices": ["9e-1", 0.9]}}}},
         "search.space.recipe.beta1.choices", "holds 0.9 twice"),
    ],
)  # fmt: skip
def test_what_stands_twice_is_no_two_cells_and_refused(changes: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        cells(sweep(**changes))
    actual = {problem.place: problem.message for problem in caught.value.problems}
    assert list(actual) == [place]
    assert message in actual[place]


@pytest.mark.parametrize(
    ("best", "rounds"),
    [
        (0.04, [[(0.02, 0), (0.04, 0), (0.08, 0)], [(0.04, 1), (0.04, 2)]]),
        (0.02, [[(0.02, 0), (0.04, 0), (0.08, 0)], [(0.01, 0)], [(0.02, 1), (0.02, 2)]]),
        (0.001, [[(0.02, 0), (0.04, 0), (0.08, 0)], [(0.01, 0)], [(0.01, 1), (0.01, 2)]]),
        (1.0, [[(0.02, 0), (0.04, 0), (0.08, 0)], [(0.16, 0)], [(0.16, 1), (0.16, 2)]]),
    ],
)
def test_a_cell_tries_its_rates_looks_once_beyond_an_end_and_repeats_the_best(
    best: float, rounds: list[list[tuple[float, int]]]
) -> None:
    cell = cells(sweep(tune=RATES, seeds=3))[0]
    assert run_all(cell, lambda config: abs(rate(config) - best)) == rounds


def test_two_knobs_are_tried_in_all_combinations_and_each_is_extended() -> None:
    tune = {
        "recipe.learning_rate": {"low": 0.02, "high": 0.08, "trials": 3},
        "recipe.weight_decay": {"low": 0.01, "high": 0.1, "trials": 2},
    }
    cell = cells(sweep(tune=tune))[0]
    records = {config.key: record(config, rate(config) + config.recipe.weight_decay) for config in cell.wanted({})}
    assert len(records) == cell.planned_runs() == 6
    beyond = [(rate(config), config.recipe.weight_decay) for config in cell.wanted(records)]
    assert beyond == [(0.01, 0.01), (0.02, 0.001)]


def test_runs_that_failed_or_diverged_are_never_the_best_and_those_that_read_no_order_rank_by_their_loss() -> None:
    def loss(config: RunConfig) -> float | None:
        return None if rate(config) == 0.08 else 3 - rate(config)

    cell = cells(sweep(tune=RATES, seeds=2))[0]
    assert run_all(cell, loss) == [[(0.02, 0), (0.04, 0), (0.08, 0)], [(0.04, 1)]]
    trials = {config.key: record(config, 3.0 - rate(config) % 0.08, order_gain_nats=0.0) for config in cell.wanted({})}
    assert [(rate(config), config.seed) for config in cell.wanted(trials)] == [(0.04, 1)]


def test_a_cell_without_a_usable_trial_stops() -> None:
    cell = cells(sweep(tune=RATES, seeds=3))[0]
    assert run_all(cell, lambda _: None) == [[(0.02, 0), (0.04, 0), (0.08, 0)]]


def test_an_extension_that_no_run_can_have_is_left_out() -> None:
    cell = cells(sweep(tune={"recipe.dropout": {"low": 0.1, "high": 0.9, "trials": 2}}, seeds=2))[0]
    dropouts: list[list[float]] = []
    records: dict[str, RunRecord] = {}
    while wanted := cell.wanted(records):
        dropouts.append([config.recipe.dropout for config in wanted])
        records |= {config.key: record(config, 2 - config.recipe.dropout) for config in wanted}
    assert dropouts == [[0.1, 0.9], [0.9]]


def test_where_nothing_is_tuned_the_seeds_do_not_wait_for_each_other() -> None:
    cell = cells(sweep(seeds=3, first_seed=4))[0]
    assert run_all(cell, lambda _: None) == [[(0.04, 4), (0.04, 5), (0.04, 6)]]


def test_what_is_wanted_follows_from_any_subset_of_the_records() -> None:
    """Whatever a killed coordinator left, going on from it ends with the same runs."""
    cell = cells(sweep(tune=RATES, seeds=3))[0]

    def loss(config: RunConfig) -> float:
        return rate(config) + config.seed

    def finished(records: dict[str, RunRecord]) -> set[str]:
        while wanted := cell.wanted(records):
            records = records | {config.key: outcome(config, loss) for config in wanted}
        return set(records)

    complete: dict[str, RunRecord] = {}
    while wanted := cell.wanted(complete):
        complete |= {config.key: outcome(config, loss) for config in wanted}
    assert len(complete) == 6
    for size in range(len(complete) + 1):
        for kept in itertools.combinations(complete, size):
            assert finished({key: complete[key] for key in kept}) == set(complete)


def test_records_of_other_runs_change_nothing() -> None:
    one, two = cells(sweep(tune=RATES))
    foreign: Mapping[str, RunRecord] = {config.key: record(config, 0.1) for config in two.wanted({})}
    assert one.wanted(foreign) == one.wanted({})


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"base": {"recipe": {"batch_tokens": 100}}}, "", "batch_tokens 100 is not a multiple of data.sequence_length 16"),
        ({"base": {"architecture": {"positions": 8}}}, "", "architecture.positions 8 is below data.sequence_length 16"),
        ({"base": {"architecture": {"vocabulary": 99}}}, "", "architecture.vocabulary 99 differs from the tokenizer's, 100"),
        ({"budgets": {"flops": [10]}}, "", "less than one batch of 256"),
        ({"tune": {"recipe.beta1": {"low": 0.5, "high": 2, "trials": 3}}}, "tune.recipe.beta1", "2.0 must be below 1"),
        ({"tune": {"recipe.batch_tokens": {"low": 64, "high": 256, "trials": 4}}}, "tune.recipe.batch_tokens",
         "101.6 is not a whole number"),
        ({"shapes": {"grid": None, "iso_parameters": [100], "depth": [1]}}, "shapes.iso_parameters 100 at depth 1",
         "the nearest width, 8, has 888 parameters; move the target, or allow it with tolerance"),
    ],
)  # fmt: skip
def test_runs_that_cannot_be_are_reported_before_anything_starts(changes: dict[str, Any], place: str, message: str) -> None:
    problems = problems_of(**changes)
    assert list(problems) == [place]
    assert message in problems[place]


def test_every_target_that_no_width_meets_is_reported() -> None:
    assert set(problems_of(shapes={"grid": None, "iso_parameters": [100, 1e6, 200], "depth": [1]})) == {
        "shapes.iso_parameters 100 at depth 1",
        "shapes.iso_parameters 200 at depth 1",
    }


def test_a_space_is_checked_before_it_is_searched() -> None:
    space = {
        "architecture.depth": {"low": 1, "high": 4},
        "architecture.width": {"choices": [16, 20, 32]},
        "architecture.heads": {"choices": [1, 8]},
        "recipe.schedule": {"choices": ["linear", "sudden"]},
        "recipe.beta1": {"low": 0.9, "high": 1.0},
    }
    problems = problems_of(shapes=None, search={"trials": 2, "space": space})
    assert set(problems) == {f"search.space.{key}" for key in ("architecture.heads", "recipe.schedule", "recipe.beta1")}
    assert "do not divide width 20" in problems["search.space.architecture.heads"]


def test_a_huge_space_is_checked_in_bounded_time() -> None:
    space = {"architecture.depth": {"low": 1, "high": 10_000}, "recipe.batch_tokens": {"low": 16, "high": 1e15, "step": 16}}
    check_space(search_sweep(search={"trials": 2, "space": space, "head_width": 8},
                      base={"architecture": {"width": 16}}, budgets={"steps": [1]}))  # fmt: skip


def test_a_bill_adds_up_before_anything_is_spent() -> None:
    spec = sweep(tune=RATES, seeds=2, budgets={"steps": [100]})
    paid = estimate_cost(Plan(spec), [CORE] * 2)
    assert [row.shape for row in paid.rows] == ["L1-H16-A2-F32", "L2-H16-A2-F32"]
    assert [row.runs for row in paid.rows] == [4, 4]
    assert paid.tokens == 8 * 100 * 256
    assert paid.train_flops == pytest.approx(
        sum(4 * cell.config.flops_per_token["train_flops"] * 25600 for cell in cells(spec))
    )
    that_run = sum(4 * flops_that_run(cell.config) * 25600 for cell in cells(spec))
    assert paid.expected_seconds == pytest.approx((that_run / 4e10 + 8 * 100 * 0.005) / 2)
    assert paid.basis == "4e+10 FLOP/s a slot and 5 ms a step, assumed, without earlier runs"
    plain = json.loads(json.dumps(paid.to_dict()))
    assert (plain["runs"], plain["tokens"], len(plain["cells"])) == (8, paid.tokens, 2)


def test_a_bill_says_what_is_left_of_a_sweep() -> None:
    """Two of a cell's three rates are tried and its other seed is not; then all of it has ended, and nothing of the other."""
    spec = sweep(tune=RATES, seeds=2, budgets={"steps": [100]})
    first = cells(spec)[0]
    losses = dict(zip([run.key for run in first.trials()], (5.0, 4.0, 5.0), strict=True))
    tried = [ended(run, loss_nats=losses[run.key]) for run in first.trials()]
    some = estimate_cost(Plan(spec, tried[:2]), [CORE] * 2)
    assert ([row.runs_left for row in some.rows], some.runs) == ([2, 4], 8)
    assert some.train_flops_left == pytest.approx(2 * some.rows[0].train_flops + 4 * some.rows[1].train_flops)
    assert some.expected_seconds_left == pytest.approx(
        (2 * some.rows[0].expected_seconds + 4 * some.rows[1].expected_seconds) / 2
    )
    assert "Left to do, without the runs that have ended: 6 runs, " in cost_summary(some)
    assert some.to_dict()["runs_left"] == 6
    best = [first.variant({"recipe.learning_rate": first.trials()[1].recipe.learning_rate}, seed=1)]
    done_with = [*tried, *map(ended, best)]
    assert [row.runs_left for row in estimate_cost(Plan(spec, done_with), [CORE]).rows] == [0, 4]
    stale = [old.model_copy(update={"run_id": "0" * 16}) for old in done_with]
    assert estimate_cost(Plan(spec, stale), [CORE]).runs_left == 8, "of the text or the numerics of another day"
    pruned = [old.model_copy(update={"state": "PRUNED"}) for old in done_with]
    assert estimate_cost(Plan(spec, pruned), [CORE]).runs_left == 8, "stopped early by a search"
    full = [old.model_copy(update={"state": "FAILED", "reason": "disk full: [Errno 28]"}) for old in done_with]
    assert estimate_cost(Plan(spec, full), [CORE]).runs_left == 8, "resumed by the next launch"
    otherwise = [old.model_copy(update={"loss_nats": 9 - (old.loss_nats or 0)}) for old in tried]
    assert estimate_cost(Plan(spec, done_with, texts_of(spec)), [CORE], others=otherwise).rows[0].runs_left == 0, (
        "its own records come first"
    )
    untuned = sweep(seeds=2, budgets={"steps": [100]})
    done = estimate_cost(Plan(untuned, [ended(run) for cell in cells(untuned) for run in cell.trials()]), [CORE])
    assert (done.runs_left, done.expected_seconds_left) == (0, 0)
    assert "Nothing is left to do" in cost_summary(done)
    assert "left" not in cost_summary(estimate_cost(Plan(untuned), [CORE]))


def ended(config: RunConfig, **changes: Any) -> RunRecord:
    """The record of a run under its own id."""
    return record(config, run_id=config.fingerprint("data"), **changes)


def flops_that_run(config: RunConfig) -> float:
    """Those of a token: all but what the last layer spares."""
    return config.flops_per_token["train_flops"] - config.spared_flops_per_token_with(None)


def timed(config: RunConfig, flops_per_second: float, **machine: Any) -> RunRecord:
    """The record of a run that went at a rate somewhere."""
    seconds = config.tokens * flops_that_run(config) / flops_per_second
    return record(config, environment=environment(**machine).model_dump(), wall_seconds=seconds)


def test_a_bill_is_timed_by_earlier_runs_on_the_same_kind_of_device() -> None:
    spec = sweep(**LARGE)
    one, two = (cell.config for cell in cells(spec))
    records = [timed(one, 1e6), timed(one, 2e6), timed(one, 9e6), timed(one, 1e12, device="NVIDIA H200"), record(two)]
    paid = estimate_cost(Plan(spec, records), [CORE])
    assert paid.expected_seconds == pytest.approx(sum(run.tokens * flops_that_run(run) for run in (one, two)) / 2e6, rel=1e-3)
    assert paid.basis == f"2e+06 FLOP/s a slot and 1e+05 ms a step, {ASSUMED}, by 3 earlier runs of this sweep"


def test_a_model_is_billed_by_its_own_runs_and_another_by_what_a_step_costs_beside_its_flops() -> None:
    """Steps of 10 ms beside 1e9 FLOP/s at two widths predict those of a third; a model that was timed keeps its own time."""
    spec = sweep(shapes={"grid": {"depth": [1], "width": [16, 32, 64], "ffn": [64]}})
    small, middle, large = (cell.config for cell in cells(spec))

    def after(config: RunConfig, seconds_per_step: float) -> RunRecord:
        return record(config, environment=environment().model_dump(), wall_seconds=config.steps * seconds_per_step)

    def seconds(config: RunConfig) -> float:
        return 0.01 + flops_that_run(config) * config.recipe.batch_tokens / 1e9

    paid = estimate_cost(Plan(spec, [after(small, seconds(small)), after(large, seconds(large))]), [CORE])
    assert [row.expected_seconds for row in paid.rows] == pytest.approx(
        [run.steps * seconds(run) for run in (small, middle, large)]
    )
    assert paid.basis == "1e+09 FLOP/s a slot and 10 ms a step, by 2 earlier runs of this sweep"
    slow = estimate_cost(Plan(spec, [after(small, seconds(small)), after(large, seconds(large)), after(middle, 7.0)]), [CORE])
    assert slow.rows[1].expected_seconds == pytest.approx(7.0 * middle.steps)


def test_a_sweep_whose_smallest_runs_alone_have_ended_is_billed_with_those_of_others() -> None:
    """Steps of 10 ms beside 1e9 FLOP/s: by the rate of the smallest alone, the largest would take far longer than it does."""
    spec = sweep(shapes={"grid": {"depth": [1], "width": [16, 256], "ffn": [64]}})
    small, large = (cell.config for cell in cells(spec))
    elsewhere = [cell.config for cell in cells(sweep(shapes={"grid": {"depth": [1], "width": [32, 128], "ffn": [64]}}))]

    def seconds(config: RunConfig) -> float:
        return config.steps * (0.01 + flops_that_run(config) * config.recipe.batch_tokens / 1e9)

    def after(config: RunConfig) -> RunRecord:
        return ended(config, environment=environment().model_dump(), wall_seconds=seconds(config))

    paid = estimate_cost(Plan(spec, [after(small)]), [CORE], others=map(after, elsewhere))
    assert [row.expected_seconds for row in paid.rows] == pytest.approx([seconds(small), seconds(large)])
    assert paid.basis == "1e+09 FLOP/s a slot and 10 ms a step, by 3 earlier runs of this sweep and others here"


def test_a_toy_run_of_mostly_overhead_does_not_make_a_large_one_take_a_hundred_times_too_long() -> None:
    """A step of 2e6 FLOPs took 7.5 ms on a core: half as long again as the 5 ms and 4e10 FLOP/s that are assumed."""
    toy = cells(sweep())[0].config
    seconds = 1.5 * toy.steps * assumed_seconds(toy)
    ran = ended(toy, environment=environment().model_dump(), wall_seconds=seconds)
    spec = sweep(shapes={"grid": {"depth": [12], "width": [768], "ffn": [3072], "heads": [12]}})
    (base,) = (cell.config for cell in cells(spec))
    paid = estimate_cost(Plan(spec), [CORE], others=[ran])
    assert paid.expected_seconds == pytest.approx(1.5 * estimate_cost(Plan(spec), [CORE]).expected_seconds)
    assert paid.expected_seconds == pytest.approx(1.5 * base.steps * assumed_seconds(base))
    words = f"2.7e+10 FLOP/s a slot and 7.5 ms a step, {ASSUMED}, by 1 earlier run of other sweeps here"
    assert paid.basis == words


@pytest.mark.parametrize("starts", [None, 1, 4])
def test_building_kernels_is_billed_once_a_run_and_not_every_step(starts: int | None) -> None:
    spec = sweep()
    (small, large) = (cell.config for cell in cells(spec))
    times = starts or 1
    seconds = times * 20 + (small.steps - times) * 0.01
    of_starts: dict[str, Any] = {"start_seconds": times * 20.0, "starts": starts}
    earlier = record(small, environment=environment().model_dump(), wall_seconds=seconds, **of_starts)
    paid = estimate_cost(Plan(spec, [earlier]), [CORE])
    assert paid.rows[0].expected_seconds == pytest.approx(20 + small.steps * 0.01)
    slower = 0.01 / assumed_seconds(small)
    assert paid.rows[1].expected_seconds == pytest.approx(20 + large.steps * slower * assumed_seconds(large))


def test_a_bill_knows_what_other_sweeps_of_the_folder_have_trained() -> None:
    spec = sweep(seeds=2, **LARGE)
    first, second = cells(spec)
    others = [ended(run, environment=environment().model_dump(), wall_seconds=30.0) for run in first.trials()]
    paid = estimate_cost(Plan(spec, texts=texts_of(spec)), [CORE], others=others)
    assert [row.runs_left for row in paid.rows] == [0, 2]
    another = estimate_cost(Plan(spec, texts=texts_of(spec, "another")), [CORE], others=others)
    assert [row.runs_left for row in another.rows] == [2, 2]
    assert estimate_cost(Plan(spec), [CORE], others=others).runs_left == 4, "of text that nobody looked at"
    assert paid.rows[0].expected_seconds == pytest.approx(30.0)
    assert "by 2 earlier runs of other sweeps here" in paid.basis
    own = timed(second.config, 1e6)
    by_own = estimate_cost(Plan(spec, [own]), [CORE], others=others).basis
    assert by_own == f"1e+06 FLOP/s a slot and 2e+05 ms a step, {ASSUMED}, by 1 earlier run of this sweep"


def test_a_branch_times_a_bill_by_what_it_trained_itself() -> None:
    config = cells(sweep(**LARGE))[0].config
    whole = timed(config, 8e6)
    branch = whole.model_copy(update={"spent_tokens": config.tokens // 4})
    basis = estimate_cost(Plan(sweep(**LARGE), [branch]), [CORE]).basis
    assert basis == f"2e+06 FLOP/s a slot and 1e+05 ms a step, {ASSUMED}, by 1 earlier run of this sweep"


def test_runs_that_shared_a_gpu_do_not_time_those_that_have_one_alone() -> None:
    spec = sweep(**LARGE)
    config = cells(spec)[0].config
    alone, shared = timed(config, 8e12, device="H200"), timed(config, 3e12, device="H200", sharing=4)
    parallel = timed(config, 16e12, device="H200", devices=2)
    scaled = "scaled from 3 earlier runs of this sweep with another share of a device"
    by_slot = {
        Slot("cuda", (0,), 1): f"8e+12 FLOP/s a slot and 50 ms a step, {ASSUMED}, by 1 earlier run of this sweep",
        Slot("cuda", (0,), 1, sharing=4): f"3e+12 FLOP/s a slot and 33 ms a step, {ASSUMED}, by 1 earlier run of this sweep",
        Slot("cuda", (0, 1), 1): f"1.6e+13 FLOP/s a slot and 50 ms a step, {ASSUMED}, by 1 earlier run of this sweep",
        Slot("cuda", (0,), 1, sharing=2): f"4e+12 FLOP/s a slot and 50 ms a step, {ASSUMED}, {scaled} (now 2 runs per device)",
        Slot("cuda", (0, 1, 2, 3), 1): f"3.2e+13 FLOP/s a slot and 50 ms a step, {ASSUMED}, {scaled} (now 4 devices per run)",
    }
    assert {slot: estimate_cost(Plan(spec, [alone, shared, parallel]), [slot]).basis for slot in by_slot} == by_slot


def test_a_bill_says_which_runs_it_does_not_count() -> None:
    slots = [Slot("cpu", (0,), 1)]
    note = "Not counted: {} for each cell whose best tuned value is at an end of its range."
    for seeds, runs in ((1, "1 more run"), (3, "1 more run"), (4, "2 more runs"), (7, "3 more runs")):
        assert note.format(runs) in cost_summary(estimate_cost(Plan(sweep(tune=RATES, seeds=seeds)), slots)).splitlines()
    assert "Not counted" not in cost_summary(estimate_cost(Plan(sweep()), slots))


def test_a_bill_says_which_knob_compares_nothing() -> None:
    knobs = {"architecture.norm": ["post"], "recipe.dropout": [0, 0.1]}
    lines = cost_summary(estimate_cost(Plan(sweep(vary=knobs)), [CORE])).splitlines()
    said = [line for line in lines if "compared by it" in line]
    assert said == ["vary.architecture.norm has one value, post, so nothing is compared by it."]


def test_a_bill_says_what_keeps_the_answer_from_deciding() -> None:
    seeds, rate = "One seed: the variation between seeds is unknown", "One learning rate for all"
    two = "Two seeds may hide that one cell varies more"
    alone = {"shapes": {"grid": {"depth": [1], "width": [8], "heads": [2], "ffn": [16]}}}
    for changes, lines in (
        ({}, {seeds, rate}),
        ({"seeds": 3}, {rate}),
        ({"tune": RATES}, {seeds}),
        ({"tune": RATES, "seeds": 2}, {two}),
        ({"tune": RATES, "seeds": 3}, set()),
        (alone, set()),
    ):
        text = cost_summary(estimate_cost(Plan(sweep(**changes)), [CORE]))
        assert {line for line in (seeds, two, rate) if line in text} == lines, changes
    compared = sweep_values(Path("corpus.txt"), vary={"recipe.learning_rate": [1e-3, 2e-3]}, seeds=2)
    del compared["base"]["recipe"]["learning_rate"]
    assert rate not in cost_summary(estimate_cost(Plan(parse_sweep(compared)), [CORE]))


def test_runs_with_other_threads_time_a_cpu_by_the_thread() -> None:
    spec = sweep(**LARGE)
    config = cells(spec)[0].config
    one, many = timed(config, 4e10), timed(config, 48e10, threads=16)
    scaled = "scaled from 2 earlier runs of this sweep with another share of a device"
    by_slot = {
        Slot("cpu", (0,), 1): f"4e+10 FLOP/s a slot and 5 ms a step, {ASSUMED}, by 1 earlier run of this sweep",
        Slot("cpu", (0,), 16): f"4.8e+11 FLOP/s a slot and 6.7 ms a step, {ASSUMED}, by 1 earlier run of this sweep",
        Slot("cpu", (0,), 4): f"1.4e+11 FLOP/s a slot and 5.8 ms a step, {ASSUMED}, {scaled} (now 4 threads per run)",
        Slot(
            "cpu", (0, 1), 2
        ): f"1.4e+11 FLOP/s a slot and 5.8 ms a step, {ASSUMED}, {scaled} (now 2 devices of 2 threads per run)",
        Slot(
            "cpu", (0,), 1, sharing=4
        ): f"8.6e+09 FLOP/s a slot and 5.8 ms a step, {ASSUMED}, {scaled} (now 4 runs per device)",
    }
    assert {slot: estimate_cost(Plan(spec, [one, many]), [slot]).basis for slot in by_slot} == by_slot
    assert (
        estimate_cost(Plan(spec), [Slot("cpu", (0,), 8)]).basis
        == "3.2e+11 FLOP/s a slot and 5 ms a step, assumed, without earlier runs"
    )
    gpu = timed(config, 8e12, device="H200", threads=4)
    assert "by 1 earlier run" in estimate_cost(Plan(spec, [gpu]), [Slot("cuda", (0,), 2)]).basis


def test_runs_in_the_precision_that_comes_time_a_bill_before_others_and_others_are_reported() -> None:
    spec = sweep(**LARGE)
    config = cells(spec)[0].config
    fp32, bf16 = timed(config, 1e10, threads=4), timed(config, 9e10, precision="bf16")
    basis = [estimate_cost(Plan(spec, records), [CORE], "fp32").basis for records in ([fp32, bf16], [bf16])]
    scaled = "scaled from 1 earlier run of this sweep with another share of a device (now 1 thread per run)"
    assert basis == [
        f"2.5e+09 FLOP/s a slot and 80 ms a step, {ASSUMED}, {scaled}",
        f"9e+10 FLOP/s a slot and 2.2 ms a step, {ASSUMED}, by 1 earlier run of this sweep, in bf16, without any in fp32",
    ]
    scaled = f"{scaled.replace('1 thread', '2 threads')}, in fp32, without any in bf16"
    two = estimate_cost(Plan(spec, [fp32]), [Slot("cpu", (0,), 2)], "bf16").basis
    assert two == f"5e+09 FLOP/s a slot and 80 ms a step, {ASSUMED}, {scaled}"


def test_a_plan_is_timed_in_the_precision_that_its_runs_will_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.training.execution.multiplies_in_bf16", lambda _: True)
    base = {"recipe": {"precision": "auto"}}
    spec, folder = sweep(write_corpus(tmp_path / "corpus.txt"), base=base), SweepFolder(tmp_path / "toy")
    for cell, precision in zip(cells(spec), ("bf16", "fp32"), strict=True):
        run = folder.run(cell.config.fingerprint("data"))
        run.write_config(cell.config)
        slower = 4e10 / {"bf16": 9e10, "fp32": 3e10}[precision]
        machine = environment(precision=precision).model_dump()
        seconds = cell.config.steps * assumed_seconds(cell.config) * slower
        run.file_record(record(cell.config, run_id=run.run_id, environment=machine, wall_seconds=seconds))
    bases = {on: plan(spec, tmp_path, Resources(device="cpu", on=on)).basis for on in ("local", "slurm")}
    assert bases == {
        "local": f"9e+10 FLOP/s a slot and 2.2 ms a step, {ASSUMED}, by 1 earlier run of this sweep",
        "slurm": f"4.5e+10 FLOP/s a slot and 4.4 ms a step, {ASSUMED}, by 2 earlier runs of this sweep, in bf16 and fp32",
    }


def test_another_question_in_the_same_folder_is_reported(tmp_path: Path) -> None:
    spec, folder, here = sweep(write_corpus(tmp_path / "corpus.txt")), SweepFolder(tmp_path / "toy"), Resources(device="cpu")
    folder.path.mkdir()
    for question, earlier in ((spec.question, None), ("Does width help?", "Does width help?")):
        folder.sweep_file.write_text(yaml.safe_dump(sweep_values(tmp_path / "corpus.txt", question=question)))
        cost = plan(spec, tmp_path, here)
        assert cost.to_dict()["earlier_question"] == earlier
        assert ("toy was launched with another question, 'Does width help?'" in cost_summary(cost)) == (earlier is not None)
    folder.sweep_file.write_text("question: [")
    assert plan(spec, tmp_path, here).earlier_question is None, "a launch replaces what cannot be read"


def test_without_earlier_runs_those_that_share_a_gpu_are_billed_a_share_of_it() -> None:
    spec = sweep()
    alone, shared = (estimate_cost(Plan(spec), [Slot("cuda", (0,), 1, sharing)] * sharing).rows[0] for sharing in (1, 8))
    beyond_overhead = shared.expected_seconds - alone.expected_seconds
    config = cells(spec)[0].config
    assert beyond_overhead == pytest.approx(7 * config.tokens * flops_that_run(config) / 1e14)


def test_more_slots_than_runs_do_not_make_the_longest_run_shorter() -> None:
    paid = estimate_cost(Plan(sweep(seeds=2)), [CORE] * 64)
    assert paid.expected_seconds == max(row.expected_seconds for row in paid.rows)


def test_a_bill_says_where_it_is_the_most_that_may_be_spent() -> None:
    def tuned(trials: int) -> bool:
        return estimate_cost(
            Plan(sweep(tune={"recipe.learning_rate": {"low": 1e-3, "high": 1e-2, "trials": trials}})), [CORE]
        ).at_most

    assert [tuned(3), tuned(4)] == [False, True]
    decay = {"recipe.weight_decay": {"low": 0.01, "high": 0.1, "trials": 2}}
    rates = {"recipe.learning_rate": {"low": 1e-3, "high": 1e-2, "trials": 4}}
    assert not estimate_cost(Plan(sweep(tune=rates | decay)), [CORE]).at_most, "of two knobs all combinations are tried"


def test_a_search_is_billed_by_its_largest_run() -> None:
    space = {"architecture.depth": {"low": 1, "high": 4}, "architecture.width": {"choices": [16, 32]}}
    spec = search_sweep(search={"trials": 7, "space": space, "head_width": 16})
    paid = estimate_cost(Plan(spec), [CORE])
    assert [(row.shape, row.runs, row.runs_left) for row in paid.rows] == [("L4-H32-A2-F128", 7, 7)]
    outside = searched_config(spec, {"architecture.depth": 6, "architecture.width": 16})
    assert estimate_cost(Plan(spec, [ended(search_example(spec)), ended(outside)]), [CORE]).runs_left == 6


def test_a_search_that_has_tried_its_space_has_nothing_left(tmp_path: Path) -> None:
    """Four points and six trials make four runs; a dimension of fractions has no end of them."""
    choices = {"architecture.depth": {"choices": [2, 1]}, "recipe.dropout": {"choices": [0.0, 0.1]}}
    base = {"architecture": {"width": 16, "heads": 2, "ffn": 32}}
    spec = search_sweep(base=base, search={"trials": 6, "space": choices})
    assert (estimate_cost(Plan(spec), [CORE]).runs, estimate_cost(Plan(spec), [CORE]).rows[0].shape) == (4, "L2-H16-A2-F32"), (
        "the largest, not the last"
    )
    tried = [
        searched_config(spec, {"architecture.depth": depth, "recipe.dropout": drop}) for depth in (1, 2) for drop in (0.0, 0.1)
    ]
    assert estimate_cost(Plan(spec, [ended(run) for run in tried]), [CORE]).runs_left == 0
    endless = search_sweep(base=base, search={"trials": 6, "space": choices | {"recipe.dropout": {"low": 0.0, "high": 0.1}}})
    assert estimate_cost(Plan(endless), [CORE]).runs == 6


def test_tuned_batches_are_priced_at_the_dearest() -> None:
    spec = sweep(tune={"recipe.batch_tokens": {"low": 256, "high": 1024, "trials": 3}}, budgets={"steps": [100]})
    paid = estimate_cost(Plan(spec), [CORE])
    assert [row.tokens for row in paid.rows] == [102_400, 102_400]
    assert paid.at_most
    assert not estimate_cost(Plan(sweep(tune=RATES, budgets={"steps": [100]})), [CORE]).at_most
    wsd = {"recipe": {"schedule": "wsd", "learning_rate": 1e-3}}
    knob = {"recipe.batch_tokens": {"low": 832, "high": 2048, "trials": 2}}
    branched = estimate_cost(Plan(sweep(base=wsd, tune=knob, budgets={"tokens": [1e6, 2e6]})), [CORE])
    assert branched.sharing is not None
    assert all(0 < row.spent_tokens <= row.tokens for row in branched.rows)
    assert branched.sharing.train_flops == pytest.approx(branched.train_flops)


def test_tuned_masks_are_priced_at_the_dearest() -> None:
    spec = sweep(tune={"recipe.masking.rate": {"low": 0.15, "high": 0.6, "trials": 3}}, budgets={"steps": [100]})
    flops = [row.train_flops for row in estimate_cost(Plan(spec), [CORE]).rows]
    assert flops == [max(run.flops_per_token["train_flops"] for run in cell.trials()) * 25600 for cell in cells(spec)]


def test_tuned_sizes_are_priced_at_the_dearest_where_budgets_go_with_the_parameters() -> None:
    """48 positions of width 16 more are 384 tokens more at half a token a parameter, one step and a half."""
    tune = {"architecture.positions": {"low": 16, "high": 64, "trials": 2}}
    spec = sweep(tune=tune, budgets={"tokens_per_parameter": [0.5]})
    paid = estimate_cost(Plan(spec), [CORE])
    assert [row.tokens for row in paid.rows] == [max(run.tokens for run in cell.trials()) for cell in cells(spec)]
    assert paid.at_most


@pytest.mark.parametrize(
    "runs",
    [
        {},
        {
            "shapes": None,
            "search": {"trials": 2, "space": {"architecture.depth": {"low": 1, "high": 4}}},
            "base": {"architecture": {"width": 16, "heads": 2, "ffn": 32}},
        },
    ],
)
def test_a_bill_names_the_scores_that_it_does_not_count(runs: dict[str, Any]) -> None:
    text = cost_summary(estimate_cost(Plan(parsed(downstream=["docstring-package", "docstring-pairs"], **runs)), [CORE]))
    assert "Not counted: the scores on 2 tasks, made once the runs have ended." in text.splitlines()


def test_a_search_that_tried_more_than_its_file_now_asks_for_has_nothing_left() -> None:
    space = {"architecture.depth": {"low": 1, "high": 4}}
    base = {"architecture": {"width": 16, "heads": 2, "ffn": 32}}
    spec = search_sweep(base=base, search={"trials": 2, "space": space})
    tried = [searched_config(spec, {"architecture.depth": depth}) for depth in (1, 2, 3, 4)]
    paid = estimate_cost(Plan(spec, [record(c, run_id=c.fingerprint("data")) for c in tried]), [CORE])
    assert (paid.runs_left, paid.train_flops_left) == (0, 0)


@pytest.mark.parametrize("rates", [(1e6, 3e7, 1e9), (4e9, 2e9, 1e9)])
def test_steps_through_which_no_line_of_overhead_and_rate_goes_are_timed_in_the_assumed_proportion(
    rates: tuple[float, ...],
) -> None:
    """Such a line would let large steps take no time at all, or small ones less than none."""
    spec = sweep(shapes={"grid": {"depth": [1, 8, 64, 128]}})
    *some, deepest = (cell.config for cell in cells(spec))
    records = [timed(config, each) for config, each in zip(some, rates, strict=True)]
    expected = estimate_cost(Plan(spec, records), [CORE])
    slower = median((flops_that_run(run) * 256 / each) / assumed_seconds(run) for run, each in zip(some, rates, strict=True))
    assert f"a step, {ASSUMED}, by 3 earlier runs" in expected.basis
    assert expected.rows[-1].expected_seconds == pytest.approx(deepest.steps * slower * assumed_seconds(deepest))


@pytest.mark.parametrize(
    ("times", "expected"), [(0.9, f" ms a step, {ASSUMED}, by"), (1.1, "1e+10 FLOP/s a slot and 1 ms a step, by")]
)
def test_only_steps_of_fourfold_flops_tell_what_a_step_costs_beside_them(times: float, expected: str) -> None:
    spec = sweep(shapes={"grid": {"depth": [4]}})
    config = cells(spec)[0].config
    least = flops_that_run(config) * config.recipe.batch_tokens
    spared = config.spared_flops_per_token_with(None) * config.recipe.batch_tokens

    def took(flops: float) -> RunRecord:
        total, machine = (flops + spared) * config.steps, environment().model_dump()
        return record(config, environment=machine, train_flops=total, wall_seconds=config.steps * (1e-3 + flops / 1e10))

    actual = step_times(CORE, [took(least), took(4 * least * times)])
    assert expected in actual.basis


def test_runs_without_steps_or_a_time_or_a_machine_time_nothing() -> None:
    """An encoder from elsewhere took no steps."""
    c = cells(sweep())[0].config
    machine = environment().model_dump()
    useless = [
        record(c, environment=machine, steps=0, tokens=0, spent_tokens=0, wall_seconds=9.0),
        record(c, environment=machine, wall_seconds=0.0),
        record(c, environment=None, wall_seconds=9.0),
    ]
    assert estimate_cost(Plan(sweep(), useless), [CORE]).basis.endswith("assumed, without earlier runs")


def test_a_bill_does_not_time_runs_by_those_of_another_dropout() -> None:
    spec = sweep(shapes={"grid": {"depth": [1]}}, vary={"recipe.dropout": [0.0, 0.1]})
    plain, dropped = (cell.config for cell in cells(spec))
    timings = [record(c, environment=environment().model_dump(), wall_seconds=s) for c, s in ((plain, 10.0), (dropped, 30.0))]
    assert [row.expected_seconds for row in estimate_cost(Plan(spec, timings), [CORE]).rows] == pytest.approx([10.0, 30.0])


def test_a_run_that_failed_at_its_first_step_has_spent_all_of_nothing() -> None:
    c = cells(sweep())[0].config
    assert record(c, None, "FAILED", steps=0, tokens=0, spent_tokens=0).spent_share == 1.0


def test_widths_are_solved_for_in_each_setting() -> None:
    """A gated FFN has a third matrix and a shared layer counts once, so that equal parameters take other widths."""
    settings: dict[str, list[Any]] = {"architecture.activation": ["gelu", "geglu"], "architecture.layer_groups": ["none", 1]}
    shapes = {"iso_parameters": [2e5], "depth": [4], "head_width": 8, "grid": None}
    actual = [cell.config.architecture for cell in cells(sweep(vary=settings, shapes=shapes))]
    assert len(actual) == 4
    assert all(parameters(each).parameters_non_embedding == pytest.approx(2e5, rel=0.05) for each in actual)
    widths = {(each.activation, each.layer_groups): each.width for each in actual}
    assert widths["geglu", None] < widths["gelu", None] < widths["geglu", 1] < widths["gelu", 1]


def test_a_setting_that_is_wrong_is_reported_where_it_stands() -> None:
    shapes = {"iso_parameters": [2e5], "depth": [2], "grid": None}
    with pytest.raises(InputError) as error:
        cells(
            sweep(vary={"architecture.layer_groups": ["none", 3], "architecture.activation": ["gelu", "swish"]}, shapes=shapes)
        )
    messages = {problem.place: problem.message for problem in error.value.problems}
    assert "groups of layers exceed depth 2" in messages["vary.architecture.layer_groups"]
    assert "swiglu" in messages["vary.architecture.activation"]


def test_a_search_knows_tables_as_wide_as_the_blocks_for_its_own() -> None:
    space = {
        "architecture.embedding_width": {"low": 4, "high": 16, "step": 4},
        "architecture.layer_groups": {"choices": ["none", 1]},
    }
    spec = search_sweep(search={"trials": 4, "space": space}, base={"architecture": {"depth": 2, "width": 16}})
    for width, groups in itertools.product((4, 16), ("none", 1)):
        point = {"architecture.embedding_width": width, "architecture.layer_groups": groups}
        assert point_of(spec, searched_config(spec, point)) == point
