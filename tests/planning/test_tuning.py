"""The search for a cell's best rate: three around the neighbour's best, outwards while it falls, once beyond an end."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from study.config.run_config import RunConfig
from study.config.sweep_files import read_sweep
from study.evidence.learning_rates import CellSearch, searches
from study.executing.slots import Slot
from study.planning.cell import Cell
from study.planning.cost_estimate import estimate_cost
from study.planning.plan import Plan, cells
from study.planning.proposing import CellProposer
from study.planning.tuning import Bracketing, Line, next_indices, start_near
from study.scoring.targets import _at_best_knobs
from study.store.records import RunRecord, ledger
from study.store.sweep_folder import SweepFolder
from tests.sweeps import record, sweep

SEVEN = {"recipe.learning_rate": {"low": 0.001, "high": 0.064, "trials": 7}}
TWO_KNOBS = {
    "recipe.learning_rate": {"low": 0.02, "high": 0.08, "trials": 3},
    "recipe.weight_decay": {"low": 0.01, "high": 0.1, "trials": 2},
}
Loss = Callable[[float], float | None]


def line(values: int = 7, start: int = 4, low: float | None = 1.0, high: float | None = 1.0) -> Line:
    return Line((low, *([1.0] * values), high), start)


def searched(
    on: Line, loss: Callable[[int], float | None], known: Mapping[int, float | None] | None = None
) -> list[tuple[int, ...]]:
    """What a search asks for, round by round."""
    losses, rounds = dict(known or {}), []
    while missing := next_indices(on, tuple(sorted(losses.items()))):
        rounds.append(missing)
        losses |= {place: loss(place) for place in missing}
        assert len(losses) < 20
    return rounds


def valley(at: float) -> Callable[[int], float]:
    return lambda place: abs(place - at)


@pytest.mark.parametrize(
    ("best", "rounds"),
    [
        (4, [(3, 4, 5)]),
        (3, [(3, 4, 5), (2,)]),
        (2, [(3, 4, 5), (2,), (1,)]),
        (1, [(3, 4, 5), (2,), (1,), (0,)]),
        (-5, [(3, 4, 5), (2,), (1,), (0,)]),
        (99, [(3, 4, 5), (6,), (7,), (8,)]),
    ],
)
def test_a_search_goes_downhill_until_worse_values_are_on_both_sides(best: float, rounds: list[tuple[int, ...]]) -> None:
    assert searched(line(), valley(best)) == rounds


def test_a_start_at_the_best_of_a_neighbour_needs_three_trials_of_seven() -> None:
    values = [0.001 * 2**power for power in range(7)]
    assert [start_near(values[:count], None) for count in (1, 2, 3, 4, 7)] == [1, 1, 2, 2, 4]
    assert [start_near(values, best) for best in (0.0001, 0.001, 0.0029, 0.9)] == [1, 1, 3, 7]
    for best in range(2, 7):
        assert len(searched(line(start=best), valley(best))[0]) == 3
        assert len(searched(line(start=best), valley(best))) == 1
    assert searched(line(start=1), valley(1)) == [(1, 2, 3), (0,)]


def test_values_that_no_run_can_have_are_not_tried() -> None:
    assert searched(line(3, 2, low=None), valley(0)) == [(1, 2, 3)]
    assert searched(line(2, 1), valley(0)) == [(1, 2), (0,)]
    assert searched(line(1, 1), valley(1)) == [(1,), (0,)], "beyond one end only"


def test_runs_that_learned_nothing_are_worse_than_any_and_the_search_looks_lower_first() -> None:
    assert searched(line(), lambda place: None if place > 1 else 3.0) == [(3, 4, 5), (2,), (6,), (1,), (0,)]
    assert searched(line(), lambda _: None) == [(3, 4, 5), (2,), (6,), (1,), (7,)]
    assert searched(line(), lambda place: None if place > 4 else float(place == 3)) == [(3, 4, 5)]


def test_a_grid_that_is_there_already_is_used_whole() -> None:
    known = {place: valley(4)(place) for place in range(1, 8)} | {7: -1.0}
    assert searched(line(), valley(0), known) == [(8,)]
    assert searched(line(), valley(4), {place: valley(4)(place) for place in range(1, 8)}) == []
    assert searched(line(), lambda _: 9.0, {3: 1.0, 4: 0.5, 5: 1.0, 7: 0.1}) == [(6,), (8,)], "the lower side first"
    assert searched(line(), lambda _: 9.0, {1: 0.4, 3: 1.0, 4: 0.5, 5: 1.0, 7: 0.1}) == [(6,), (8,)]


@given(st.integers(1, 7), st.lists(st.one_of(st.none(), st.floats(0, 9)), min_size=9, max_size=9))
def test_whatever_the_losses_a_search_ends_with_its_best_bracketed_or_at_an_end(start: int, losses: list[float | None]) -> None:
    on = line(start=start)
    tried = list(itertools.chain(*searched(on, lambda place: losses[place])))
    assert len(tried) == len(set(tried)) <= 8
    usable = {place: loss for place in tried if (loss := losses[place]) is not None}
    if not usable:
        return
    best = min(usable, key=lambda place: (usable[place], place))
    outside = [place for place in tried if place in (0, 8)]
    for neighbour in (best - 1, best + 1):
        assert neighbour in tried or neighbour < 0 or neighbour > 8 or (neighbour in (0, 8) and outside)


@given(st.permutations(range(9)), st.integers(0, 2**9 - 1))
def test_a_restart_from_any_part_of_a_search_ends_with_the_same_runs(order: list[int], kept: int) -> None:
    losses = dict(enumerate(map(float, order)))
    tried = list(itertools.chain(*searched(line(), losses.__getitem__)))
    part: dict[int, float | None] = {place: losses[place] for place in tried if kept >> place & 1}
    rest = list(itertools.chain(*searched(line(), losses.__getitem__, part)))
    assert sorted({*part, *rest}) == sorted(tried)


def test_the_trials_are_optunas() -> None:
    import optuna

    sampler = Bracketing(line())
    study = optuna.create_study(sampler=sampler)
    distribution = optuna.distributions.FloatDistribution(0, 8)
    for place in (3, 4, 5):
        study.add_trial(optuna.trial.create_trial(params={"index": float(place)}, distributions={"index": distribution},
                                                  value=float(place), state=TrialState.COMPLETE))  # fmt: skip
    study.optimize(lambda trial: trial.suggest_float("index", 0, 8), n_trials=2)
    assert [trial.value for trial in study.trials] == [3, 4, 5, 2, 1]
    assert sampler.next_index(study) == 0


def test_the_committed_reference_needs_no_further_run() -> None:
    root = Path(__file__).resolve().parents[2]
    plan = Plan(read_sweep(root / "sweeps" / "depth_or_width.yaml")[0])
    records = {ended.config.key: ended for ended in SweepFolder(root / "results/reference/depth_or_width").records()}
    assert len(records) == 43
    for cell in plan.cells:
        assert cell.tuned(records)
        assert cell.wanted(records) == []


def loss_of(config: RunConfig, best: Callable[[RunConfig], float]) -> float:
    """A valley in the logarithm of the rate, its best falling with depth."""
    return 3 + math.log2(config.recipe.learning_rate / best(config)) ** 2


def falling(config: RunConfig) -> float:
    return 0.016 / config.architecture.depth


def deep(**changes: Any) -> list[Cell]:
    return cells(
        sweep(Path("corpus.txt"), **{"tune": SEVEN, "shapes": {"grid": {"depth": [1, 2, 4, 8]}}, "seeds": 2} | changes)
    )


def test_a_cell_begins_at_the_best_of_the_nearest_cheaper_one() -> None:
    planned = deep(shapes={"grid": {"depth": [4, 1, 2]}}, budgets={"steps": [100, 400]})
    size = {id(cell): (cell.config.architecture.depth, cell.config.steps) for cell in planned}
    neighbours = {size[id(cell)]: cell.neighbour and (cell.neighbour.config.architecture.depth, cell.neighbour.config.steps)
                  for cell in planned}  # fmt: skip
    assert neighbours == {(1, 100): None, (2, 100): (1, 100), (4, 100): (2, 100), (1, 400): (1, 100), (2, 400): (1, 400),
                          (4, 400): (2, 400)}  # fmt: skip
    three = {"recipe.learning_rate": {"low": 0.02, "high": 0.08, "trials": 3}}
    assert {cell.neighbour for cell in deep(tune=three)} == {None}


def test_cells_that_share_a_trunk_begin_at_one_rate() -> None:
    base = {"recipe": {"schedule": "wsd"}}
    planned = deep(base=base, budgets={"steps": [20, 40, 80]}, shapes={"grid": {"depth": [1, 8]}})
    begins = {
        (cell.config.architecture.depth, cell.config.steps): cell.neighbour and cell.neighbour.config.steps for cell in planned
    }
    assert begins == {(1, 20): None, (1, 40): None, (1, 80): None, (8, 20): 80, (8, 40): 80, (8, 80): 80}


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_a_sweep_finds_the_bracketed_best_of_every_cell_with_three_or_four_trials_each(slots: int) -> None:
    planned = deep()
    proposer, records = CellProposer(planned), dict[str, RunRecord]()
    running: dict[str, RunConfig] = {}
    draw = random.Random(slots)
    while True:
        running |= {config.key: config for config in proposer.wanted(records, running, slots - len(running))}
        if not running:
            break
        config = running.pop(draw.choice(sorted(running)))
        records[config.key] = record(config, loss_of(config, falling))
        proposer.tell(config.key, records[config.key])
    for cell in planned:
        (best,) = [tuning.best for tuning in [cell.tuning(records)] if tuning.best is not None]
        assert best[0].recipe.learning_rate == pytest.approx(falling(cell.config))
    trials = [ended for ended in records.values() if ended.config.seed == 0]
    assert len(trials) == 4 * 4
    assert len(records) == len(trials) + 4


SMALLEST = {"recipe.learning_rate": SEVEN["recipe.learning_rate"] | {"at": "smallest"}}


def ended(planned: list[Cell], best: Callable[[RunConfig], float]) -> dict[str, RunRecord]:
    """The records of a sweep that ended, whose losses are those of `loss_of`."""
    proposer, records = CellProposer(planned), dict[str, RunRecord]()
    while asked := proposer.wanted(records, (), 100):
        for config in asked:
            records[config.key] = record(config, loss_of(config, best))
            proposer.tell(config.key, records[config.key])
    return records


def rates_by_depth(records: Mapping[str, RunRecord], seed: int) -> dict[int, list[float]]:
    actual: dict[int, list[float]] = {}
    for config in sorted((one.config for one in records.values()), key=lambda config: config.recipe.learning_rate):
        if config.seed == seed:
            actual.setdefault(config.architecture.depth, []).append(config.recipe.learning_rate)
    return actual


def test_the_smallest_cell_alone_is_tuned_the_largest_checks_and_the_others_take_its_best() -> None:
    planned = deep(tune=SMALLEST)
    records = ended(planned, lambda _: 0.016)
    tried = rates_by_depth(records, seed=0)
    assert {depth: tried[depth] for depth in (2, 4, 8)} == {2: [0.016], 4: [0.016], 8: [0.008, 0.016, 0.032]}
    assert {0.008, 0.016, 0.032} <= set(tried[1])
    assert rates_by_depth(records, seed=1) == {depth: [0.016] for depth in (1, 2, 4, 8)}
    assert all(cell.wanted(records) == [] for cell in planned)
    assert [cell.runs_left(records) for cell in planned] == [0, 0, 0, 0]
    assert [cell.planned_runs() for cell in planned] == [8, 2, 2, 4]


def test_a_check_that_fails_leaves_the_largest_its_own_best() -> None:
    """It is repeated there, beside the best of the smallest."""
    records = ended(deep(tune=SMALLEST), lambda config: 0.008 if config.architecture.depth == 8 else 0.016)
    assert rates_by_depth(records, seed=1) == {1: [0.016], 2: [0.016], 4: [0.016], 8: [0.008]}


def test_each_budget_and_setting_has_a_smallest_cell_of_its_own() -> None:
    vary = {"architecture.norm": ["post", "pre"]}
    planned = deep(tune=SMALLEST, budgets={"steps": [100, 400]}, vary=vary)
    conditions = [(cell.config.architecture.norm, cell.config.architecture.depth, cell.config.steps) for cell in planned]
    sources = [None if cell.neighbour is None else cell.neighbour.config for cell in planned]
    for (norm, depth, steps), source, cell in zip(conditions, sources, planned, strict=True):
        expected = None if depth == 1 else (norm, 1, steps)
        assert (source and (source.architecture.norm, source.architecture.depth, source.steps)) == expected
        assert cell.checks == ((depth, steps) == (8, 400))


def test_where_the_smallest_cell_learned_nothing_the_others_train_nothing() -> None:
    planned = deep(tune=SMALLEST, shapes={"grid": {"depth": [1, 2, 4]}})
    records: dict[str, RunRecord] = {}
    while wanted := [config for cell in planned for config in cell.wanted(records)]:
        records |= {config.key: record(config, None, "DIVERGED", reason="nan") for config in wanted}
    assert {one.config.architecture.depth for one in records.values()} == {1}


def test_tuning_at_the_smallest_saves_a_quarter_of_tuning_everywhere_and_more_of_what_is_planned() -> None:
    """The quarter where every cell begins beside its best; a plan counts all values that each may try."""
    flops = {}
    for tune in (SEVEN, SMALLEST):
        records = ended(deep(tune=tune, seeds=1, shapes={"grid": {"depth": [1, 2, 4, 8, 16]}}), lambda _: 0.008)
        flops[tune["recipe.learning_rate"].get("at")] = sum(one.train_flops for one in records.values())
    assert flops["smallest"] < 0.75 * flops[None]
    specs = [sweep(tune=tune, shapes={"grid": {"depth": [1, 2, 4, 8, 16]}}) for tune in (SEVEN, SMALLEST)]
    planned = [estimate_cost(Plan(spec), [Slot("cpu", (0,), threads=1)]) for spec in specs]
    assert planned[1].train_flops < 0.4 * planned[0].train_flops


def test_a_cell_whose_neighbour_learned_nothing_begins_where_that_one_began() -> None:
    shallow, deeper = deep(shapes={"grid": {"depth": [1, 2]}})
    records: dict[str, RunRecord] = {}
    assert deeper.wanted(records) == []
    while wanted := shallow.wanted(records):
        records |= {config.key: record(config, None, "DIVERGED", reason="nan") for config in wanted}
    assert len(records) == 7
    assert [config.recipe.learning_rate for config in deeper.wanted(records)] == [0.004, 0.008, 0.016]


@pytest.mark.parametrize(("seeds", "rounds"), [
    (1, [{0: 3}]),
    (3, [{0: 3}, {1: 1, 2: 1}]),
    (4, [{0: 3, 1: 3}, {2: 1, 3: 1}]),
    (7, [{0: 3, 1: 3, 2: 3}, {3: 1, 4: 1, 5: 1, 6: 1}]),
])  # fmt: skip
def test_a_third_of_the_seeds_try_the_values_and_the_best_of_their_means_is_repeated(
    seeds: int, rounds: list[dict[int, int]]
) -> None:
    cell = cells(sweep(tune=SEVEN, seeds=seeds))[0]
    records: dict[str, RunRecord] = {}
    asked = []
    while wanted := cell.wanted(records):
        asked.append(dict(Counter(config.seed for config in wanted)))
        records |= {config.key: record(config, loss_of(config, lambda _: 0.008)) for config in wanted}
    assert asked == rounds
    assert (
        len(records)
        == sum(sum(counts.values()) for counts in rounds)
        < cell.planned_runs()
        == 7 * -(-seeds // 3) + (seeds - -(-seeds // 3))
    )


def test_what_one_seed_likes_best_is_not_chosen_where_another_likes_it_least() -> None:
    losses = {0.004: (3.0, 3.4), 0.008: (3.1, 3.1), 0.016: (3.3, 3.2)}
    cell = cells(sweep(tune=SEVEN, seeds=4))[0]
    records = {c.key: record(c, losses[c.recipe.learning_rate][c.seed]) for c in cell.wanted({})}
    assert {(c.recipe.learning_rate, c.seed) for c in cell.wanted(records)} == {(0.008, 2), (0.008, 3)}
    assert search_of(cell, records).rates.chosen == 0.008


def search_of(cell: Cell, records: Mapping[str, RunRecord]) -> CellSearch:
    """What an answer says of the search of the one cell that has records."""
    (actual,) = searches(ledger([*records.values()], tuple(cell.spec.tune)), cell.spec.trial_seeds).values()
    return actual


LAUNCH = st.tuples(
    st.sampled_from(
        [
            {"recipe.learning_rate": {"low": low, "high": high, "trials": trials}}
            for low, high, trials in [(0.001, 0.064, 7), (0.004, 0.016, 3), (0.032, 0.064, 2), (0.003, 0.027, 3)]
        ]
    ),
    st.sampled_from(
        [{"recipe.weight_decay": {"low": low, "high": high, "trials": 2}} for low, high in [(0.01, 0.1), (0.1, 1), (0.02, 0.2)]]
    ),
    st.integers(1, 9),
    st.sampled_from([0, 0, 2]),
)
"""The ranges of a rate and of a weight decay, how many seeds, and the first."""

ENDS = st.one_of(st.floats(1, 5), st.sampled_from(["DIVERGED", "FAILED"]))


@pytest.mark.parametrize("knobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@settings(max_examples=12)
@given(st.lists(LAUNCH, min_size=1, max_size=4), st.lists(ENDS, min_size=31, max_size=31))
def test_launch_answer_and_scoring_choose_the_same_values_whatever_was_launched_before(
    knobs: int, launches: list[tuple[dict[str, Any], dict[str, Any], int, int]], ends: list[float | str]
) -> None:
    """Whatever became of the runs, and however often seeds were added or taken away, and ranges moved or narrowed."""

    def ended(config: RunConfig) -> RunRecord:
        rate = round(8 * math.log2(config.recipe.learning_rate / 0.0001))
        decay = round(8 * math.log10(config.recipe.weight_decay / 0.0001))
        end, run_id = ends[(rate * 3 + decay * 7 + config.seed) % len(ends)], config.fingerprint("data")
        if isinstance(end, float):
            return record(config, end + (100 * rate + decay) * 1e-7, run_id=run_id)  # no two are equal
        return record(config, None, "DIVERGED" if end == "DIVERGED" else "FAILED", run_id, reason="whatever")

    records: dict[str, RunRecord] = {}
    for *ranges, seeds, first_seed in launches:
        tune = {knob: ends for of_knob in ranges[:knobs] for knob, ends in of_knob.items()}
        cell = cells(sweep(tune=tune, seeds=seeds, first_seed=first_seed), records.values())[0]
        while wanted := cell.wanted(records):
            records |= {config.key: ended(config) for config in wanted}
        repeated, actual = cell.tuning(records).best, search_of(cell, records)
        chosen = {"recipe.learning_rate": actual.rates.chosen, **{knob.name: knob.chosen for knob in actual.knobs}}
        assert chosen == (repeated[0].values_of(chosen) if repeated else {"recipe.learning_rate": None})
        assert actual.rates.seeds == len(cell.spec.trial_seeds)
        scored = _at_best_knobs([*records.values()], tuple(tune), cell.spec.trial_seeds)
        assert all(one.config.values_of(chosen) == chosen for one in scored)
        assert bool(scored) == bool(repeated)


def test_the_best_so_far_is_that_of_the_answer_also_before_a_seed_has_tried_enough() -> None:
    """The first seed has tried five rates, three of an earlier range, when the second has two, and neither has learned."""
    records: dict[str, RunRecord] = {}
    narrow = {"recipe.learning_rate": {"low": 0.032, "high": 0.064, "trials": 2}}
    for tune, seeds in ((SEVEN, 1), (narrow, 4)):
        cell = cells(sweep(tune=tune, seeds=seeds), records.values())[0]
        for run in cell.wanted(records):
            run_id, loss = run.fingerprint("data"), None if run.seed else loss_of(run, lambda _: 0.004)
            records[run.key] = record(run, loss, "DIVERGED" if run.seed else "COMPLETED", run_id, reason="whatever")
    assert Counter(one.config.seed for one in records.values()) == {0: 5, 1: 2}
    assert not cell.tuned(records)
    best = cell.tuning(records).best
    assert best is not None
    assert best[0].recipe.learning_rate == search_of(cell, records).rates.chosen == 0.004


def test_the_best_of_an_earlier_range_is_repeated_and_not_that_of_the_range_alone() -> None:
    """Seeds are added and the range is narrowed to rates above the best that is known; the bill counts what it lacks."""
    records: dict[str, RunRecord] = {}
    narrow = {"recipe.learning_rate": {"low": 0.016, "high": 0.032, "trials": 2}}
    grid = {"grid": {"depth": [1], "width": [16]}}
    for seeds, tune in ((1, SEVEN), (3, narrow)):
        plan = Plan(sweep(tune=tune, seeds=seeds, shapes=grid), [*records.values()])
        (cell,) = plan.cells
        while wanted := cell.wanted(records):
            repeated = {(run.recipe.learning_rate, run.seed) for run in wanted}
            ended = (record(run, loss_of(run, lambda _: 0.002), run_id=run.fingerprint("data")) for run in wanted)
            records |= {one.config.key: one for one in ended}
    assert repeated == {(0.002, 1), (0.002, 2)}
    assert search_of(cell, records).rates.chosen == 0.002
    left = {key: one for key, one in records.items() if not one.config.seed}
    assert estimate_cost(Plan(plan.spec, [*left.values()]), [Slot("cpu", (0,), threads=1)]).runs_left == 2


def rounds_of(cell: Cell, loss: Callable[[float, float], float]) -> list[list[tuple[float, float, int]]]:
    """The rates, weight decays and seeds that a cell wants after its grid, round by round, until it wants none."""
    rounds: list[list[tuple[float, float, int]]] = []
    records: dict[str, Any] = {}
    while wanted := cell.wanted(records):
        assert len(rounds) < 9
        rounds.append([(c.recipe.learning_rate, c.recipe.weight_decay, c.seed) for c in wanted])
        records |= {c.key: record(c, loss(c.recipe.learning_rate, c.recipe.weight_decay)) for c in wanted}
    assert cell.tuned(records)
    return rounds[1:]


def test_the_best_of_two_knobs_is_repeated_where_an_extension_was_lower() -> None:
    rounds = rounds_of(cells(sweep(tune=TWO_KNOBS, seeds=2))[0], lambda rate, decay: rate + decay)
    assert rounds == [[(0.01, 0.01, 0), (0.02, 0.001, 0)], [(0.01, 0.001, 0), (0.01, 0.1, 0)], [(0.01, 0.001, 1)]]


def test_rates_on_either_side_are_tried_where_another_knob_was_best_beyond_its_range() -> None:
    """Else the best rate would be the only one tried at that knob's best, and no comparison could use the cell."""
    rounds = rounds_of(cells(sweep(tune=TWO_KNOBS, seeds=2))[0], lambda rate, decay: 1 + abs(rate - 0.04) + decay)
    assert rounds == [[(0.04, 0.001, 0)], [(0.02, 0.001, 0), (0.08, 0.001, 0)], [(0.04, 0.001, 1)]]


def test_a_search_of_two_knobs_without_a_usable_trial_is_over() -> None:
    cell = cells(sweep(tune=TWO_KNOBS, seeds=2))[0]
    records = {c.key: record(c, None, "DIVERGED") for c in cell.wanted({})}
    assert (cell.wanted(records), cell.tuned(records), cell.runs_left(records)) == ([], True, 0)


def test_a_search_begins_at_the_best_of_its_neighbour() -> None:
    wide = {"recipe.learning_rate": {"low": 0.001, "high": 0.064, "trials": 7}}
    first = cells(sweep(tune=wide, shapes={"grid": {"depth": [1]}}))[0]
    second = replace(cells(sweep(tune=wide, shapes={"grid": {"depth": [2]}}))[0], neighbour=first)
    records: dict[str, Any] = {}
    while wanted := first.wanted(records):
        records |= {c.key: record(c, abs(math.log(c.recipe.learning_rate / 0.002))) for c in wanted}
    assert [c.recipe.learning_rate for c in second.wanted(records)] == pytest.approx([0.001, 0.002, 0.004])
