"""The multiverse asks one question everywhere and says what turns its answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from study.base.errors import InputError
from study.evidence import ledgers, shape_multiverse
from study.evidence.cells import CellResult
from study.evidence.ledgers import open_ledger
from study.evidence.paired import contrast, paired_difference
from study.evidence.seed_scatter import SeedVariance, pooled_seed_variance
from study.evidence.shape_multiverse import asks_about_shape, explore_shapes
from study.laws import approaches as compute_optimal
from study.laws import multiverse, tables
from study.laws.approaches import frontiers
from study.laws.law import Floats
from study.laws.multiverse import QUESTION, Multiverse, Universe, explore
from study.laws.observations import Observations
from study.laws.reading import TableQuery
from study.laws.tables import RunTable, read_table
from study.laws.uncertainty import draw_counts
from study.plotting import answer_by_convention
from study.store.sweep_folder import SweepFolder
from tests import synthetic
from tests.evidence.test_averages import cell, losses
from tests.laws.test_frontiers import EXPONENT, iso_flop_runs
from tests.synthetic import SHAPES, SWEEP, Law, add_run, depth_or_width, in_setting, run_config, sweep_folder

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    parameters, flops, loss = iso_flop_runs(noise=0.0005)
    path = tmp_path / "runs.csv"
    data = {"N": parameters, "C": flops, "loss": loss, "without embeddings": parameters - 3e6 * (parameters / 1e8) ** 0.33}
    pd.DataFrame(data).to_csv(path, index=False)
    return path


def test_every_approach_is_reported_side_by_side(table: Path) -> None:
    actual = frontiers(TableQuery(RunTable.read(table), {"parameters": "N", "flops": "C"}))
    approaches = actual.to_dict()["approaches"]
    for name in ("parabola", "akima", "parametric"):
        assert approaches[name]["exponent"] == pytest.approx(EXPONENT, abs=0.02)
    assert all(name in actual.to_text() for name in approaches)


@pytest.mark.parametrize("spread", [0.0, 0.002])
def test_runs_of_the_same_tokens_have_no_frontier(tmp_path: Path, spread: float) -> None:
    path = one_budget(tmp_path / "runs.csv", spread)
    with pytest.raises(InputError) as caught:
        frontiers(TableQuery(RunTable.read(path)))
    assert str(caught.value) == "compute: the best split is undetermined: all 30 rows have the same tokens (4e+07)"


def test_the_multiverse_of_compute_refuses_runs_of_the_same_tokens(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"all 30 rows have the same tokens \(4e\+07\)"):
        explore(TableQuery(RunTable.read(one_budget(tmp_path / "runs.csv", 0.002))), flops=("flops",))


@pytest.mark.slow
def test_a_multiverse_refuses_the_universes_in_which_each_budget_has_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters, flops, loss = iso_flop_runs()
    own = flops / (6 * parameters) / 20
    path = table_of(tmp_path / "runs.csv", parameters, flops / (6 * parameters), loss, own=own)
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    actual = explore(TableQuery(RunTable.read(path)), parameters=("parameters", "own"), flops=("flops",))
    refused = [universe for universe in actual.universes if universe.status.startswith("refused")]
    assert {universe.choices["parameters"] for universe in refused} == {"own"}
    assert len(refused) == 8 + 1
    assert all("tokens go as parameters^1.00 in all 63 rows, so each budget has one split" in one.status for one in refused)


def one_budget(path: Path, spread: float) -> Path:
    """A table of runs of one number of tokens, up to a spread."""
    parameters = np.geomspace(1e6, 1e8, 30)
    return table_of(path, parameters, 4e7 * (1 + spread * np.arange(30) / 29), 2 + (parameters / 1e6) ** -0.3)


def table_of(path: Path, parameters: Floats, tokens: Floats, loss: Floats, **more: Floats) -> Path:
    """A table of runs."""
    data = {"parameters": parameters, "tokens": tokens, "flops": 6 * parameters * tokens, "loss": loss, **more}
    pd.DataFrame(data).to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_multiverse_of_a_table_counts_agreement(table: Path) -> None:
    source = TableQuery(RunTable.read(table), {"tokens": "C/(6*N)"})
    actual = explore(source, parameters=("N", "without embeddings"), flops=("C",))
    as_dict = actual.to_dict()
    assert as_dict["universes"] == 2 * 3 * (8 + 1)
    assert as_dict["answer"] == "Yes"
    assert 0.5 < as_dict["agreement"] <= 1
    assert {"parameters", "rows", "floor", "loss", "space"} <= as_dict["flips"].keys()
    assert "say the usual conventions" in actual.to_text()


def test_flips_compare_universes_that_differ_in_one_choice() -> None:
    def universe(size: str, loss: str, exponent: float | None) -> Universe:
        return Universe({"parameters": size, "loss": loss}, "converged", exponent)

    actual = Multiverse(
        QUESTION,
        (
            universe("all", "huber", 0.6),
            universe("all", "squares", 0.6),
            universe("without", "huber", 0.4),
            universe("without", "squares", 0.4),
            universe("other", "huber", None),
        ),
    )
    assert actual.agreement == 0.5
    assert actual.flips() == {"parameters": 1.0, "loss": 0.0}
    assert actual.by_choice()["parameters"] == {"all": 1.0, "without": 0.0}
    assert "never flips it alone: loss" in actual.to_text()


def test_universes_of_the_same_choices_flip_none() -> None:
    actual = Multiverse(QUESTION, tuple(Universe({"loss": "huber"}, "converged", value) for value in (0.4, 0.6)))
    assert actual.flips() == {}


@pytest.mark.parametrize(
    ("usual", "verdict", "expected"),
    [
        (
            Universe({}, "converged", 0.6, (0.55, 0.65)),
            "Yes",
            "Yes, say the usual conventions: exponent of N* in C 0.6 (95% interval 0.55 to 0.65).",
        ),
        (
            Universe({}, "converged", 0.51, (0.49, 0.53)),
            "Undecided",
            "exponent of N* in C 0.51 (95% interval 0.49 to 0.53), which rules out neither answer.",
        ),
        (
            Universe({}, "converged", 0.6),
            "Undecided",
            "Undecided, say the usual conventions: exponent of N* in C 0.6, without an interval.",
        ),
        (Universe({}, "on_bound", None), "Undecided", "Undecided: the usual conventions have no answer (on bound)."),
    ],
)
def test_the_headline_is_what_the_usual_conventions_decide(usual: Universe, verdict: str, expected: str) -> None:
    others = [Universe({}, "converged", value, (0.4, value + 0.01)) for value in (0.45, 0.6, 0.7)]
    decided = Universe({}, "converged", 0.8, (0.7, 0.9))
    actual = Multiverse(QUESTION, (usual, *others, decided))
    headline, shares = actual.to_text().splitlines()[1:3]
    assert actual.to_dict()["answer"] == verdict
    assert expected in headline
    assert ("80% of the 5" if usual.value else "75% of the 4") in shares
    assert shares.count(" say Yes; ") == 1
    assert actual.to_dict()["answers"]["No"] == {"universes": 1, "decided": 1}
    assert actual.decided("Yes") == (2 if verdict == "Yes" else 1)


def test_a_multiverse_without_a_usual_answer_reports_the_share_of_the_commonest() -> None:
    values = (None, 0.6, 0.4, 0.4)
    actual = Multiverse(QUESTION, tuple(Universe({}, "converged", value) for value in values))
    assert actual.leaning == "No"
    assert actual.agreement == pytest.approx(2 / 3)


def test_the_agreement_of_approaches_is_reported_though_no_two_universes_differ_in_it_alone() -> None:
    laws = [Universe({"approach": "parametric", "loss": loss}, "converged", 0.6) for loss in ("huber", "squares")]
    valley = Universe({"approach": "parabola", "FLOPs": "C"}, "converged", 0.4)
    actual = Multiverse(QUESTION, (*laws, valley))
    assert "approach" not in actual.flips()
    assert "agreement by approach: parametric 100%, parabola 0%" in actual.to_text()
    assert "agreement by approach" not in Multiverse(QUESTION, tuple(laws)).to_text()


def test_the_figure_counts_universes_in_whole_numbers_and_keeps_its_legend_off_them() -> None:
    universes = [Universe({"approach": name}, "converged", 0.4 + 0.05 * n, (0.3, 0.8)) for n, name in enumerate("abcabc")]
    figure = answer_by_convention.draw(answer_by_convention.frame(Multiverse(QUESTION, tuple(universes))))
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    assert axes.get_legend() is None
    assert legend.get_window_extent().y1 <= axes.get_window_extent().y0


def test_a_table_is_read_from_its_file_once_for_all_universes(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[Path] = []

    def counted(path: Path, fewest: int) -> pd.DataFrame:
        files.append(path)
        return read_table(path, fewest)

    monkeypatch.setattr(tables, "read_table", counted)
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    monkeypatch.setattr(multiverse, "LOSSES", {"huber": 1e-3})
    actual = explore(
        TableQuery(RunTable.read(table), {"tokens": "C/(6*N)"}), parameters=("N", "without embeddings"), flops=("C",)
    )
    assert len({(one.choices["parameters"], one.choices["approach"]) for one in actual.universes}) == 4
    assert files == [table]


@pytest.mark.slow
def test_a_ledger_brings_its_conventions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    monkeypatch.setattr(multiverse, "_SPACES", ("log",))
    monkeypatch.setattr(ledgers, "LEDGER_PARAMETERS", ("parameters", "parameters_encoder"))
    folder = depth_or_width(tmp_path / "made_up", seeds=2, budgets=(1e6, 2e6, 4e6))
    folder.write_ledger()
    as_dict = explore(TableQuery(open_ledger(folder.path))).to_dict()
    assert as_dict["universes"] == 2 * 1 * (4 + 4)
    assert {universe["choices"]["rates"] for universe in as_dict["all"]} == {"all cells"}


@pytest.mark.slow
@pytest.mark.parametrize("unbracketed", [False, True])
def test_universes_of_the_same_rows_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbracketed: bool
) -> None:
    few = {
        multiverse: ("_SPACES",),
        shape_multiverse: ("_SPACES", "HELD_EQUAL"),
        ledgers: ("LEDGER_PARAMETERS", "LEDGER_FLOPS"),
    }
    for module, names in few.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name)[:1])
    for module in (multiverse, shape_multiverse):
        monkeypatch.setattr(module, "LOSSES", {"huber": 1e-3})
    monkeypatch.setattr(multiverse, "_FLOORS", {"without floor": "chinchilla-no-floor"})
    monkeypatch.setattr(shape_multiverse, "_FLOORS", ("without floor",))
    folder = depth_or_width(tmp_path / "made_up", budgets=(1e6, 2e6))
    if unbracketed:
        for rate, seed in ((4e-3, 0), (4e-3, 1), (8e-3, 0)):
            add_run(folder, run_config(8, 46, rate, seed, tokens=2e6))
    folder.write_ledger()
    options = {"bracketed only", "all cells"}
    of_shape = explore_shapes(folder.path).universes
    assert {one.choices["rates"] for one in of_shape} == (options if unbracketed else {"bracketed only"})
    assert len(of_shape) == (2 * 2 + 1) * (2 if unbracketed else 1)
    of_compute = explore(TableQuery(open_ledger(folder.path))).universes
    assert {one.choices["rates"] for one in of_compute} == (options if unbracketed else {"all cells"})
    assert len(of_compute) == 2 * 3 * (2 if unbracketed else 1)


def test_the_valleys_of_a_universe_have_as_many_resamples_as_its_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def counted(clusters: int, count: int, seed: int) -> Iterator[Any]:
        drawn.append(count)
        return iter(draw_counts(clusters, count, seed))

    monkeypatch.setattr(compute_optimal, "draw_counts", counted)
    parameters, flops, loss = iso_flop_runs(noise=0.0005)
    points = Observations.of({"parameters": parameters, "tokens": flops / parameters / 6}, loss, np.arange(len(loss)) // 2)
    (actual,) = multiverse._valley(points)
    assert drawn == [multiverse.UNIVERSE_SETTINGS.bootstrap]
    assert actual.interval is not None


@pytest.mark.parametrize(("budgets", "gone"), [(1, 0), (4, 1), (7, 1), (12, 1), (30, 3)])
def test_the_smallest_tenth_of_the_budgets_is_left_out(budgets: int, gone: int) -> None:
    spread = np.tile(np.linspace(1, 1.01, 9), budgets)
    flops = np.repeat(np.geomspace(1e18, 1e22, budgets), 9) * spread
    points = Observations.of({"flops": flops}, spread)
    kept = multiverse._TRIMS["without the smallest 10% of budgets"](points)
    assert kept.labels == points.labels[9 * gone :]


@pytest.mark.slow
def test_depth_or_width_is_asked_in_every_size_that_may_be_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_multiverse, "HELD_EQUAL", ("parameters_non_embedding", "train_flops"))
    monkeypatch.setattr(shape_multiverse, "_FLOORS", ("without floor",))
    folder = depth_or_width(tmp_path / "made_up", Law(depth_effect=0.05))
    folder.write_ledger()
    assert asks_about_shape(folder.path)
    actual = explore_shapes(folder.path)
    as_dict = actual.to_dict()
    assert as_dict["answer"] == "Width"
    assert as_dict["answers"]["Width"]["decided"] > 0
    assert as_dict["universes"] == 2 * (2 * 2 * 2 + 4)
    first = actual.universes[0]
    assert first.value == pytest.approx(0.05, abs=0.01)
    assert first.interval is not None
    assert 0 < first.interval[0] < first.interval[1] < 0.06
    laws = [one for one in as_dict["all"] if one["choices"]["approach"] == "law" and one["value"] is not None]
    assert laws
    assert all(one["value"] == pytest.approx(0.05, abs=0.03) for one in laws)


@pytest.mark.slow
def test_a_slope_without_the_seeds_that_chose_is_that_of_the_other_seeds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of five seeds tried every rate."""
    monkeypatch.setattr(shape_multiverse, "HELD_EQUAL", ("parameters_non_embedding",))
    folder, others = (
        depth_or_width(tmp_path / "all", seeds=5, shapes=SHAPES[:3], budgets=(1e6,)),
        sweep_folder(tmp_path / "rest"),
    )
    for depth, width in SHAPES[:3]:
        for rate in (1e-3, 2e-3, 8e-3):
            add_run(folder, run_config(depth, width, rate, seed=1))
        for seed in (2, 3, 4):
            add_run(others, run_config(depth, width, 4e-3, seed))
    folder.sweep_file.write_text(yaml.safe_dump(SWEEP | {"seeds": 5}))
    folder.write_ledger()
    others.write_ledger()
    without, alone = (
        next(one for one in explore_shapes(each.path).universes if one.choices.get("seeds") == seeds and one.value is not None)
        for each, seeds in ((folder, "without the seeds that chose the rate"), (others, "all seeds"))
    )
    assert (without.value, without.interval) == (alone.value, alone.interval)


@pytest.mark.slow
def test_each_validation_set_is_asked_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_multiverse, "HELD_EQUAL", ("parameters_non_embedding",))
    monkeypatch.setattr(shape_multiverse, "_FLOORS", ("without floor",))
    values = []
    for sequences, effect in ((200, 0.05), (300, 0.02)):
        monkeypatch.setattr(synthetic, "SEQUENCES", sequences)
        folder = depth_or_width(tmp_path / f"{sequences}", Law(depth_effect=effect), shapes=SHAPES[:3], budgets=(1e6,))
        folder.write_ledger()
        alone = explore_shapes(folder.path).universes
        values += [(one.value, one.interval) for one in alone if one.choices["approach"] == "equal sizes"]
        assert all("validation" not in one.choices for one in alone)
        shutil.copytree(folder.path, tmp_path / "both", dirs_exist_ok=True)
    both = SweepFolder(tmp_path / "both")
    both.write_ledger()
    actual = explore_shapes(both.path).universes
    apart = [one for one in actual if one.choices["approach"] == "equal sizes"]
    assert sorted((one.value, one.interval) for one in apart) == sorted(values)
    sets = {f"validation_sequences={sequences}" for sequences in (200, 300)}
    assert {one.choices["validation"] for one in apart} == sets


@pytest.mark.slow
def test_no_law_is_asked_across_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_multiverse, "HELD_EQUAL", ("parameters_non_embedding",))
    folder = sweep_folder(tmp_path / "made_up")
    for rate, (depth, width) in product((0.15, 0.3), SHAPES):
        for learning_rate, tokens in product((2e-3, 4e-3, 8e-3), (1e6, 2e6)):
            plain = run_config(depth, width, learning_rate, tokens=tokens)
            add_run(folder, plain.model_copy(update={"masking": plain.masking.model_copy(update={"rate": rate})}))
    folder.write_ledger()
    reason = "loss: the losses of runs that differ in masking.rate are not comparable"
    actual = explore_shapes(folder.path).universes
    laws = [one.status for one in actual if one.choices["approach"] == "law"]
    assert laws
    assert all(status.startswith(f"refused: {reason}") for status in laws)
    assert {one.choices["validation"] for one in actual if one.value is not None} == {"rate=0.15", "rate=0.3"}
    with pytest.raises(InputError, match=reason):
        explore(TableQuery(open_ledger(folder.path)))


def test_a_contrast_of_two_cells_is_their_paired_difference() -> None:
    random = np.random.default_rng(0)
    one, other = random.normal(4.1, 0.3, (2, 50)), random.normal(4.0, 0.3, (3, 50))
    seeds = pooled_seed_variance([one, other])
    assert seeds is not None
    difference = contrast(np.array([1.0, -1.0]), [one, other], [seeds, seeds])
    expected = paired_difference(one, other, (seeds, seeds))
    assert difference.p_value == pytest.approx(expected.p_value)
    assert difference.estimate == pytest.approx(expected.estimate_nats)
    assert difference.interval == pytest.approx((expected.low_nats, expected.high_nats))


def test_a_seed_at_several_budgets_is_one_draw_of_a_slope() -> None:
    """Where a seed is off by the same at every budget, more budgets make the interval of their mean no narrower."""
    off = {"post": (-0.05, 0.0, 0.06), "pre": (0.04, -0.06, 0.01)}

    def interval(budgets: int) -> tuple[float, float] | None:
        cells = [cell(norm, budget, losses(4.0, off[norm])) for budget in range(1, budgets + 1) for norm in off]
        factors = np.tile([-0.5, 0.5], budgets) / budgets
        return shape_multiverse._contrast_of_shapes(cells, factors).interval

    one, four = interval(1), interval(4)
    assert one is not None
    assert four is not None
    assert one == pytest.approx(four)
    cells = [cell(norm, 1, losses(4.0, off[norm])) for norm in off]
    alone = contrast(np.array([-0.5, 0.5]), [each.losses for each in cells], [pooled_of(cells)] * 2)
    assert one == pytest.approx(alone.interval)


def test_a_shape_without_a_seed_at_all_its_budgets_has_no_slope() -> None:
    """It is not left out of a sum that is a slope only with it."""
    off = (0.0, 0.1)
    cells = [
        cell("post", 1, losses(4.0, off), (0, 1)),
        cell("post", 2, losses(3.0, off), (2, 3)),
        cell("pre", 1, losses(4.0, off)),
    ]
    assert shape_multiverse._with_common_seeds(cells) is None
    shared = [replace(cells[1], seeds=(1, 3)) if each is cells[1] else each for each in cells]
    kept = shape_multiverse._with_common_seeds(shared)
    assert kept is not None
    assert [each.seeds for each in kept] == [(1,), (1,), (0, 1)]
    assert [len(each.losses) for each in kept] == [1, 1, 2]
    assert kept[1].losses[0] == pytest.approx(cells[1].losses[0])


def pooled_of(cells: list[CellResult]) -> SeedVariance:
    """The pooled variance over the seeds of cells."""
    noise = pooled_seed_variance([each.losses for each in cells])
    assert noise is not None
    return noise


def test_depth_that_costs_nothing_is_not_weighed_against_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that share their weights are as many parameters however many they are: of those no question of shape is asked."""
    monkeypatch.setattr(shape_multiverse, "HELD_EQUAL", ("parameters_non_embedding",))
    groups = {"none": SHAPES[:3], "1": ((1, 128), (2, 128), (4, 128))}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"architecture.layer_groups": ["none", 1]}})
    shared = sweep_folder(tmp_path / "shared")
    for (name, shapes), seed in product(groups.items(), range(2)):
        for depth, width in shapes:
            config = in_setting(run_config(depth, width, seed=seed), layer_groups=None if name == "none" else 1)
            add_run(folder, config, Law(depth_effect=0.1 if name == "none" else -0.5))
            if name == "1":
                add_run(shared, config)
    for each in (folder, shared):
        each.write_ledger()
    assert not asks_about_shape(shared.path)
    usual = next(one for one in explore_shapes(folder.path).universes if one.choices["rates"] == "all cells")
    assert usual.value == pytest.approx(0.1, abs=0.02)


def test_a_sweep_of_one_depth_is_not_about_shape(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", shapes=((1, 128), (1, 184)), budgets=(1e6,))
    folder.write_ledger()
    assert not asks_about_shape(folder.path)
    assert not asks_about_shape(tmp_path)


def test_a_sweep_of_which_no_run_has_ended_is_reported_as_such(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "made_up", SWEEP)
    folder.write_ledger()
    for ask in (explore_shapes, lambda path: explore(TableQuery(open_ledger(path)))):
        with pytest.raises(InputError, match=r"made_up: has no rows: no run of the sweep has ended"):
            ask(folder.path)
