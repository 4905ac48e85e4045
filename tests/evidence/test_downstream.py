"""Scores are joined to the ledger as they were filed, and what is said of them recovers the law that they were made by."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.optimize import bisect
from scipy.stats import spearmanr, studentized_range

from study.base.quantities import budget_words
from study.base.statistics import ScoreNoise, half_interval, noise_of_mean, noise_of_seeds
from study.config.run_config import RunConfig
from study.config.score_config import Knobs
from study.counting.named_models import find
from study.counting.parameters import parameters
from study.evidence.downstream import Beside, DownstreamEvidence, TaskScores, between, downstream, noises_over_tasks, observed
from study.evidence.evidence import Evidence, gather
from study.evidence.ledgers import COUNTS, LEDGER_PARAMETERS, LOSS, LOSS_PER_BYTE
from study.evidence.score_points import published_scores, score_points
from study.evidence.score_trends import orders, p_value_of, rank_interval, trend
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.forecasting import Forecast
from study.laws.observations import Observations
from study.plotting import score_against_loss
from study.plotting.score_against_count import ScoreAgainst
from study.plotting.style import MARKERS
from study.report.answer import Answer, report
from study.report.figures import FIGURES
from study.report.open_questions import undecided
from study.report.score_sentences import best_variant, law_table, published_table, score_findings, score_table, trend_table
from study.report.verdicts import _on_scores
from study.store.score_records import baseline, file_baseline, score_folder, scores_of, write_scores
from study.store.sweep_folder import SweepFolder
from study.tasks.task_spec import read_spec
from tests.figures import title_of
from tests.synthetic import SWEEP, Law, add_run, depth_or_width, in_setting, run_config, sweep_folder, with_facts
from tests.synthetic_scores import FINGERPRINT, TASKS, ScoreLaw, add_score, add_scores

pytestmark = pytest.mark.usefixtures("few_resamples")

AGAINST_PARAMETERS, AGAINST_FLOPS = ScoreAgainst("parameters"), ScoreAgainst("train_flops")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    folder = depth_or_width(tmp_path_factory.mktemp("results") / "scored", seeds=1, rates=(4e-3,), budgets=(1e6,))
    folder.write_ledger()
    add_scores(folder)
    return folder


@pytest.fixture(scope="module")
def evidence(scored: SweepFolder) -> Evidence:
    return gather(scored)


def test_a_score_stands_beside_the_loss_of_its_own_run(scored: SweepFolder, evidence: Evidence) -> None:
    assert evidence.downstream is not None
    (sst2,) = [task for task in evidence.downstream.tasks if task.task == "sst2"]
    assert len(sst2.points) == 6
    for _, row in sst2.points.iterrows():
        (run_id,) = row["runs"]
        run = scored.run(run_id)
        record = run.record()
        assert record is not None
        assert (row["loss"], row["parameters"], row["tokens"]) == (record.loss_nats, record.parameters, record.tokens)
        mine = [actual for actual in scores_of(run) if actual.config.task == "sst2"]
        for column, protocol in {"score": "fine_tune", "random": "random_init"}.items():
            values = [actual.test for actual in mine if actual.config.protocol == protocol and actual.test is not None]
            assert row[column] == pytest.approx(np.mean(values))
        assert row["seeds"] == 3
        assert (row["majority"], row["bag_of_words"]) == (0.5, 0.6)
    assert list(sst2.points["loss"]) == sorted(sst2.points["loss"], reverse=True)


@pytest.mark.parametrize(("text", "words"), [("synthetic", 0.6), (None, 0.6), ("other", np.nan)])
def test_words_that_were_counted_in_other_text_are_no_baseline(tmp_path: Path, text: str | None, words: float) -> None:
    folder = depth_or_width(tmp_path / "scored", seeds=1, shapes=[(1, 128)], rates=(4e-3,), budgets=(1e6,))
    add_scores(folder, {"blimp": TASKS["blimp"]})
    known = baseline(folder, "blimp", FINGERPRINT)
    assert known is not None
    file_baseline(folder, known.model_copy(update={"data_fingerprint": text}))
    (row,) = score_points(folder, folder.write_ledger()).to_dict("records")
    assert row["bag_of_words"] == pytest.approx(words, nan_ok=True)


def test_the_error_is_over_examples_and_over_seeds_pooled_over_encoders(evidence: Evidence) -> None:
    assert evidence.downstream is not None
    for task in evidence.downstream.tasks:
        law = TASKS[task.task]
        examples, seeds = law.deviation, 0 if law.zero_shot else law.deviation / np.sqrt(3)
        error = task.points["error"].to_numpy(dtype=float)
        assert error == pytest.approx(np.full(6, np.hypot(examples, seeds)), rel=0.15)
        freedom = np.inf if law.zero_shot else 12
        for noise, half in zip(task.points["noise"], task.points["half"], strict=True):
            assert (noise.freedom, noise.over_examples) == (freedom, pytest.approx(examples**2))
            sources = (noise.over_seeds, noise.over_examples)
            assert half == pytest.approx(half_interval(0.95, sources, (freedom, np.inf)))


@pytest.mark.slow
def test_equal_encoders_of_few_seeds_are_seldom_called_reversed() -> None:
    random, actual = np.random.default_rng(0), []
    loss, encoders, seeds = np.array([4.0, 3.8, 3.6]), 3, 2
    for _ in range(2000):
        scores = random.normal(0.7, 0.01, (encoders, seeds))
        noise = noise_of_seeds(float(scores.var(axis=1, ddof=1).mean()), encoders, seeds, 0.0)
        relation = trend(loss, scores.mean(axis=1), [noise] * encoders, np.arange(encoders))
        assert relation is not None
        actual.append(bool(relation.reversals))
    assert np.mean(actual) < 0.06


def test_seeds_of_untrained_weights_say_nothing_of_pre_trained_ones(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "few", seeds=1, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92), (4, 64)))
    folder.write_ledger()
    law = replace(TASKS["blimp"], untrained_deviation=0.2)
    add_scores(folder, {"blimp": law})
    points = score_points(folder, folder.read_ledger())
    assert points["error"].to_numpy(dtype=float) == pytest.approx(np.full(3, law.deviation))
    assert points["half"].to_numpy(dtype=float) == pytest.approx(np.full(3, 1.96 * law.deviation), rel=1e-3)
    assert (points["random_half"] > 10 * law.deviation).all()
    assert list(points["seeds"]) == [1, 1, 1]


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_scores_of_one_seed_are_said_to_be_beyond_the_noise_of_examples_alone(
    scored: SweepFolder, tmp_path: Path, seeds: int
) -> None:
    shutil.copytree(scored.path, tmp_path / "s", ignore=shutil.ignore_patterns("scores*", "baselines"))
    folder = SweepFolder(tmp_path / "s")
    add_scores(folder, {name: TASKS[name] for name in ("sst2", "rte")}, seeds=seeds)
    few = gather(folder)
    alone = seeds == 1
    tables = (trend_table(few), score_table(few), published_table(few))
    assert [("± 95% (examples) |" in table, "± 95% |" in table) for table in tables] == [(alone, not alone)] * 3
    findings = score_findings(few)
    beyond = [sentence for sentence in findings if "beyond " in sentence]
    assert len(beyond) >= 4
    assert {"beyond the noise of examples" in sentence for sentence in beyond} == {alone}
    assert {"beyond noise" in sentence for sentence in beyond} == {not alone}
    (unsure,) = [sentence for sentence in undecided(few) if sentence.startswith("How far scores on")] or [""]
    assert ("rte, sst2" in unsure and "of one seed" in unsure) is alone
    assert ("one seed" in _on_scores(few).certainty) is alone


@pytest.mark.parametrize(("seeds", "over"), [(2, "examples and seeds"), (1, "examples alone, of one seed")])
def test_a_verdict_on_variants_says_what_its_noise_is_over(tmp_path: Path, seeds: int, over: str) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for norm in ("post", "pre"):
        add_run(folder, in_setting(run_config(1, 128), norm=norm))
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=seeds)
    assert _on_scores(gather(folder)).certainty == f"Tests at 5%, adjusted by Bonferroni over all pairs; noise is over {over}."


def test_tasks_are_distinguished_by_whether_they_follow_the_loss(evidence: Evidence) -> None:
    actual = evidence.downstream
    assert actual is not None
    verdicts = {task.task: task.trend.verdict for task in actual.tasks if task.trend is not None}
    assert verdicts == {"blimp": "monotone", "cola": "monotone", "sst2": "monotone", "rte": "undecided"}
    above = {task.task: task.above_untrained for task in actual.tasks}
    assert above["sst2"] == above["blimp"] == (6, 6)
    assert above["rte"][0] <= 1
    sentences = score_findings(evidence)
    assert sentences[0].startswith("blimp, cola, sst2: scores follow the loss, monotone")
    assert "rte: scores show no decided relation to the loss (Holm, 5%)." in sentences
    assert any("sst2 6 of 6" in sentence for sentence in sentences)
    assert not any(sentence.startswith("Left out of the average") for sentence in sentences), "above chance or not"


def test_trends_are_corrected_for_the_number_of_tasks(evidence: Evidence) -> None:
    """By Holm, the least p first; what no order of so few encoders could decide is said."""
    actual = evidence.downstream
    assert actual is not None
    trends = [task.trend for task in actual.tasks]
    pairs = [
        (relation.p_value, relation.p_value_holm)
        for relation in trends
        if relation and relation.p_value and relation.p_value_holm
    ]
    assert len(pairs) == len(trends) == 4
    assert min(pairs)[1] == pytest.approx(4 * min(pairs)[0])
    assert all(adjusted >= p_value for p_value, adjusted in pairs)
    assert not any("cannot decide" in sentence for sentence in score_findings(evidence))
    many = replace(actual, tasks=tuple(replace(actual.tasks[0], task=f"task {number}") for number in range(20)))
    few = [replace(_of_encoders(task, 4), trend=replace(task.trend, p_value_holm=1.0)) for task in many.tasks if task.trend]
    findings = score_findings(with_facts(evidence, downstream=replace(many, tasks=tuple(few))))
    assert "; 4 encoders at most cannot decide one of 20 tasks in whatever order, more of them might." in findings[0]


@pytest.mark.parametrize(
    ("encoders", "remark"),
    [
        ((5, 5), ""),
        ((4, 5), "; 4 encoders at most (task 0) cannot decide one of 2 tasks in whatever order, more of them might"),
        ((3, 4), "; 4 encoders at most cannot decide one of 2 tasks in whatever order, more of them might"),
        ((3,), "; 3 encoders at most cannot decide it in whatever order, more of them might"),
    ],
)
def test_tasks_that_no_order_of_their_encoders_could_decide_are_named(
    evidence: Evidence, encoders: tuple[int, ...], remark: str
) -> None:
    """The least p of n encoders is 2/n!, which Holm takes twice for the first of two tasks: 0.033 of five, 0.17 of four."""
    actual = evidence.downstream
    assert actual is not None
    assert actual.tasks[0].trend is not None
    tasks = tuple(
        replace(_of_encoders(actual.tasks[0], n), task=f"task {place}", trend=replace(actual.tasks[0].trend, p_value_holm=1.0))
        for place, n in enumerate(encoders)
    )
    (sentence,) = [
        line for line in score_findings(with_facts(evidence, downstream=replace(actual, tasks=tasks))) if "Holm" in line
    ]
    names = ", ".join(task.task for task in tasks)
    assert sentence == f"{names}: scores show no decided relation to the loss (Holm, 5%){remark}."


def _of_encoders(task: TaskScores, n: int) -> TaskScores:
    """The task over its first so many encoders."""
    return replace(task, points=task.points.head(n))


def test_the_least_p_of_encoders_of_two_shapes_is_one_of_eight(evidence: Evidence) -> None:
    """Two of each, so that the two shapes and the two encoders of each change places; the reverse order is one of these."""
    actual = evidence.downstream
    assert actual is not None
    four = _of_encoders(actual.tasks[0], 4)
    assert four.least_p_value == pytest.approx(2 / 24)
    two = replace(four, points=four.points.assign(shape=["a", "a", "b", "b"]))
    assert two.least_p_value == pytest.approx(2 / 8)


@pytest.mark.parametrize(
    ("lifts", "counts"),
    [
        ((0.0, 1.0), "sst2 6 of 6; none on other"),
        ((0.0, 0.0), "sst2 6 of 6, other 6 of 6"),
        ((1.0, 1.0), "none on any task"),
        ((0.0, np.nan), "sst2 6 of 6"),
    ],
)
def test_where_pre_training_shows_is_reported_with_the_tasks_where_it_does_not(
    evidence: Evidence, lifts: tuple[float, float], counts: str
) -> None:
    """Untrained weights that score as they do, or one point higher; a task without them is not compared."""
    actual = evidence.downstream
    assert actual is not None
    (sst2,) = (task for task in actual.tasks if task.task == "sst2")
    tasks = tuple(
        replace(sst2, task=name, points=sst2.points.assign(random=sst2.points["random"] + lift))
        for name, lift in zip(("sst2", "other"), lifts, strict=True)
    )
    changed = with_facts(evidence, downstream=replace(actual, tasks=tasks))
    (sentence,) = [line for line in score_findings(changed) if line.startswith("Encoders above")]
    assert sentence.endswith(f"beyond noise, each tested at 5%: {counts}.")
    assert "0 of 0" not in trend_table(changed)


def test_where_pre_training_hurts_and_where_a_bag_of_words_is_better_is_reported(evidence: Evidence) -> None:
    """Half intervals of 0.03 and 0.04 make 0.05 noise; over the examples alone a bag of words has as much as the encoder."""
    actual = evidence.downstream
    assert actual is not None
    (sst2,) = (task for task in actual.tasks if task.task == "sst2")
    noises = np.full(3, ScoreNoise(0.1, 2, (0.04 / 1.96) ** 2))
    points = sst2.points.head(3).assign(score=0.7, half=0.03, random_half=0.04, noise=noises)
    hurt = replace(sst2, points=points.assign(random=[0.749, 0.751, 0.6], bag_of_words=[0.751, 0.749, 0.649]))
    alone = replace(sst2, task="alone", points=points.assign(random=np.nan, bag_of_words=np.nan))
    findings = score_findings(with_facts(evidence, downstream=replace(actual, tasks=(hurt, alone))))
    assert "Encoders below the same encoders untrained, beyond noise likewise: sst2 1 of 3." in findings
    assert "Beside a bag of words, beyond noise likewise, encoders above: sst2 1 of 3; below: sst2 1 of 3." in findings
    counts = hurt.to_dict()
    assert counts["beside_untrained"] == {"above": 1, "below": 1, "of": 3}
    assert counts["beside_bag_of_words"] == {"above": 1, "below": 1, "of": 3}
    nothing = score_findings(with_facts(evidence, downstream=replace(actual, tasks=(alone,))))
    assert not any("beyond noise likewise" in sentence for sentence in nothing)
    usual = score_findings(evidence)
    assert "Encoders below the same encoders untrained, beyond noise likewise: none on any task." in usual


@pytest.mark.parametrize(("errors", "beside"), [((0.0, 0.0, 0.02), (0, 1, 3)), ((0.0, 0.0, 0.0), (0, 0, 0))])
def test_an_encoder_that_finds_nothing_lends_a_bag_of_words_no_certainty(
    evidence: Evidence, errors: tuple[float, ...], beside: tuple[int, int, int]
) -> None:
    """A constant answer scores 0 on any examples; a bag of words at 0.05 has noise, as large as the largest of the encoders."""
    actual = evidence.downstream
    assert actual is not None
    noises = [ScoreNoise(0.0, np.inf, error**2) for error in errors]
    points = pd.DataFrame({"score": [0.0, 0.0, 0.1], "noise": noises, "half": [noise.half for noise in noises]})
    words = pd.Series([0.03, 0.05, 0.08])
    assert replace(actual.tasks[0], points=points.assign(bag_of_words=words)).beside_words == Beside(*beside)


@pytest.mark.slow
def test_an_encoder_as_good_as_a_bag_of_words_seldom_differs_significantly_from_it(evidence: Evidence) -> None:
    """Right on three in four of 2,000 examples each, whichever those are, 4,000 times: 16% would be, were a score as known."""
    actual = evidence.downstream
    assert actual is not None
    draw, draws = np.random.default_rng(0), 4000
    scores, words = draw.binomial(2000, 0.75, (2, draws)) / 2000
    noises = [ScoreNoise(0.0, np.inf, score * (1 - score) / 2000) for score in scores]
    halves = [noise.half for noise in noises]
    points = pd.DataFrame({"score": scores, "noise": noises, "half": halves, "bag_of_words": words})
    beside = replace(actual.tasks[0], points=points).beside_words
    assert 0.03 <= (beside.above + beside.below) / beside.of <= 0.06


def test_the_best_on_average_is_reported_beside_the_second_and_of_how_many(evidence: Evidence) -> None:
    actual = evidence.downstream
    assert actual is not None
    assert actual.average is not None
    ranked = actual.average.points.sort_values("score", ascending=False)
    (sentence,) = [sentence for sentence in score_findings(evidence) if sentence.startswith("On average")]
    assert f"{ranked['name'].iloc[0]} scores highest, {ranked['score'].iloc[0]:.3f} ± " in sentence
    assert sentence.endswith(f"beyond noise above {ranked['name'].iloc[1]}, {ranked['score'].iloc[1]:.3f}.")
    assert actual.average.trend is not None
    (sentence,) = [sentence for sentence in score_findings(evidence) if sentence.startswith("The average's rank correlation")]
    assert f" is {actual.average.trend.correlation:+.2f} (95% interval " in sentence
    assert sentence.endswith(f", 6 encoders): {actual.average.trend.verdict}.")
    loud = actual.average.points.head(2).assign(noise=pd.Series([ScoreNoise(9.0, 2, 9.0)] * 2, dtype=object))
    fewer = replace(actual.average, points=loud)
    (sentence,) = [
        one
        for one in score_findings(with_facts(evidence, downstream=replace(actual, average=fewer)))
        if one.startswith("On av")
    ]
    assert "scores highest, of the 2 of 6 encoders that met all of them, " in sentence
    assert ", not beyond noise above " in sentence
    alone = replace(actual.average, points=actual.average.points.head(1))
    of_one = score_findings(with_facts(evidence, downstream=replace(actual, average=alone)))
    assert not [sentence for sentence in of_one if sentence.startswith("On average")]


@pytest.mark.parametrize(("settings", "encoders"), [(2, 2), (5, 5), (3, 6)])
def test_of_equal_variants_the_best_is_seldom_called_significantly_above_any(
    evidence: Evidence, settings: int, encoders: int
) -> None:
    """The best is chosen by the scores that test it: it leads another one as often as the range of all is that large.

    Also where a setting has several encoders, such as two budgets, and stands by its best one.
    """
    actual = evidence.downstream
    assert actual is not None
    noise = ScoreNoise(0.0, np.inf, 1.0)
    facts = {"shape": "L1", "half": noise.half, "noise": [noise] * encoders}
    facts |= {"setting": [f"knob={encoder % settings}" for encoder in range(encoders)]}

    def leads(size: float) -> float:
        points = pd.DataFrame(facts | {"score": [size, *[0.0] * (encoders - 1)]})
        said = best_variant(DownstreamEvidence((replace(actual.tasks[0], points=points),), None, {}))
        return 1.0 if "not significantly above any other" not in said else -1.0

    smallest = bisect(leads, 0.0, 10.0, xtol=1e-3)
    assert 0.02 <= studentized_range.sf(smallest, encoders, np.inf) <= 0.0501


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_runs_of_one_cell_are_one_encoder_whose_noise_is_between_them(tmp_path: Path, seeds: int) -> None:
    folder = depth_or_width(tmp_path / "seeds", seeds=2, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92), (4, 64)))
    ledger = folder.write_ledger()
    law = replace(TASKS["sst2"], between_runs=0.02)
    add_scores(folder, {"sst2": law}, seeds=seeds)
    actual = gather(folder).downstream
    assert actual is not None
    (sst2,) = actual.tasks
    assert len(sst2.points) == 3
    scores, off = pd.read_parquet(folder.scores_file), []
    for _, row in sst2.points.iterrows():
        assert set(row["runs"]) == set(ledger.loc[ledger["cell"] == row["cell"], "run_id"])
        assert row["loss"] == pytest.approx(ledger.loc[ledger["cell"] == row["cell"], "loss_nats"].mean())
        of_cell = scores[scores["run_id"].isin(row["runs"]) & (scores["protocol"] == "fine_tune")]
        of_runs = of_cell.groupby("run_id")["test"].mean()
        assert row["score"] == pytest.approx(of_runs.mean())
        assert row["seeds"] == seeds
        off.append(of_runs.var(ddof=1))
        over_examples = of_cell["test_standard_error"].mean()
    between = np.mean(off) / 2
    assert sst2.points["error"].to_numpy(dtype=float) == pytest.approx(np.full(3, np.hypot(between**0.5, over_examples)))
    assert sst2.best["score"] == sst2.points["score"].max()
    assert sst2.above_untrained[1] == 3
    assert sst2.trend is not None
    assert (sst2.trend.n, sst2.trend.verdict) == (3, "undecided")
    assert sst2.trend.p_value == pytest.approx(2 / 6), "three encoders have six orders"


@pytest.mark.slow
def test_settings_of_one_shape_are_encoders_apart_and_untrained_alike_where_they_are_built_alike(tmp_path: Path) -> None:
    """The first norm alone was scored untrained, and whatever its dropout those are its untrained weights."""
    folder = sweep_folder(tmp_path / "s")
    for norm, dropout in product(("post", "pre"), (0.0, 0.1)):
        add_run(folder, in_setting(run_config(1, 64), norm=norm, dropout=dropout))
    add_scores(folder, {"sst2": TASKS["sst2"]})
    points = score_points(folder, folder.write_ledger()).set_index("name")
    assert set(points["shape"]) == {"L1-H64-A2-F256"}
    first = {record.config.architecture.norm for record in folder.records()[:1]}.pop()
    assert set(points.index) == {f"L1-H64-A2-F256 (norm={n}, dropout={d})" for n, d in product(("post", "pre"), ("0", "0.1"))}
    actual = gather(folder).downstream
    assert actual is not None
    assert "each variant needs its own law" in str(actual.tasks[0].forecast_from_sizes)
    assert {name for name, row in points.iterrows() if row["random"] > 0} == {
        f"L1-H64-A2-F256 (norm={first}, dropout={dropout})" for dropout in ("0", "0.1")
    }


@pytest.mark.slow
def test_encoders_that_begin_with_layers_of_one_are_not_drawn_apart(tmp_path: Path) -> None:
    """Of two donors each encoder's order is its own; of one there is a correlation, but nothing that says how sure it is."""
    one, other = "0123456789abcdef", "fedcba9876543210"
    tasks = {"sst2": TASKS["sst2"], "blimp": TASKS["blimp"]}
    shapes = ((1, 128), (2, 128), (4, 128))
    for starts, tested in (((f"a/{one}:last", f"b/{one}", "fresh"), False), ((f"a/{one}", f"b/{other}", "fresh"), True)):
        folder = sweep_folder(tmp_path / str(tested))
        for (depth, width), start in zip(shapes, starts, strict=True):
            add_run(folder, run_config(depth, width, start=start))
        folder.write_ledger()
        add_scores(folder, tasks)
        evidence = gather(folder)
        actual = evidence.downstream
        assert actual is not None
        assert actual.average is not None
        trends = [task.trend for task in actual.all if task.trend is not None]
        assert len(trends) == 3
        assert all((trend.p_value is not None) == (trend.low is not None) == tested for trend in trends)
        assert all((trend.verdict != "untested") == tested for trend in trends)
        text = " ".join(score_findings(evidence))
        blimp, sst2, average = (f"{trend.correlation:+.2f}" for trend in trends)
        began = "encoders that began as one, with layers of one trained encoder or on one trunk, are not drawn apart"
        why = f"no interval or p, since {began}."
        assert (f"Rank correlation with the falling loss: blimp {blimp}, sst2 {sst2}; {why}" in text) != tested
        assert (
            f"The average's rank correlation with the falling loss is {average} (3 encoders, not drawn apart)." in text
        ) != tested
        assert ("decided relation" in text) == tested
        assert (f"| {blimp} | – | – | – | 3 | 0 |" in trend_table(evidence)) != tested


@pytest.mark.parametrize("branches", [pytest.param(False, marks=pytest.mark.slow), True])
def test_branches_of_one_trunk_are_not_drawn_apart(tmp_path: Path, branches: bool) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width in (64, 128):
        trunk = add_run(folder, run_config(1, width, tokens=2e6))
        add_run(folder, run_config(1, width, tokens=1e6), trunk=trunk if branches else None)
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"]})
    actual = gather(folder).downstream
    assert actual is not None
    relation = actual.tasks[0].trend
    assert relation is not None
    assert (relation.n, relation.verdict) == (4, "untested" if branches else "undecided")


@pytest.mark.slow
def test_budgets_of_one_shape_are_encoders_of_their_own_names(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", seeds=1, rates=(4e-3,), budgets=(1e6, 2e6), shapes=((1, 64), (1, 128), (2, 128)))
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"], "cola": TASKS["cola"]})
    evidence = gather(folder)
    assert evidence.downstream is not None
    names = {f"{cell.architecture.shape_name} at {budget_words(cell.budget)}" for cell in evidence.cells}
    assert len(names) == 6
    for task in evidence.downstream.all:
        assert set(task.points["name"]) == names
        assert task.best["name"] in trend_table(evidence)
        assert "settings" not in str(task.forecast_from_sizes)
    assert all(score_table(evidence).count(f"| {name} |") == 2 for name in names)
    (sentence,) = [sentence for sentence in score_findings(evidence) if sentence.startswith("On average")]
    assert sentence.count(" at 2M tokens") == 2
    (trend,) = [sentence for sentence in score_findings(evidence) if sentence.startswith("The average's")]
    assert " (p = " in trend
    assert ", 6 encoders of 3 shapes): " in trend
    assert trend_table(evidence).count(" | – | 0.") == 3, "two tasks and their average have a p and no interval"


def test_no_encoder_that_the_commonest_answer_matches_is_above_untrained(evidence: Evidence) -> None:
    assert evidence.downstream is not None
    (sst2,) = (task for task in evidence.downstream.tasks if task.task == "sst2")
    scores = sst2.points["score"].sort_values()
    assert replace(sst2, chance=scores.iloc[3] - 1e-6).above_untrained[0] <= 3
    assert replace(sst2, chance=scores.iloc[-1]).above_untrained == (0, 6)


def test_an_encoder_is_above_chance_and_untrained_weights_beyond_the_noise_of_both(evidence: Evidence) -> None:
    """0.05 where half intervals are 0.03 and 0.04."""
    assert evidence.downstream is not None
    (sst2,) = (task for task in evidence.downstream.tasks if task.task == "sst2")
    points = sst2.points.head(3).assign(score=0.8, half=0.03, random=[0.749, 0.751, 0.7], random_half=0.04)

    def of(**changes: Any) -> tuple[int, int]:
        return replace(sst2, points=points.assign(**changes), chance=0.5).above_untrained

    assert of() == (2, 3)
    assert of(random=0.8) == (0, 3)
    assert of(random=0.8, half=0.0, random_half=0.0) == (0, 3)
    assert of(random=np.nan) == (0, 0)
    assert of(score=0.52, random=0.3) == (0, 3)


def test_what_size_alone_makes_of_scores_is_told_from_what_training_adds(evidence: Evidence) -> None:
    """Untrained scores that rise twice as fast as trained ones: they follow the loss perfectly, and the gain falls."""
    actual = evidence.downstream
    assert actual is not None
    assert actual.average is not None
    of_tasks = [task.normalised["random"] for task in actual.tasks]
    expected = [np.mean([of_task[cell] for of_task in of_tasks]) for cell in actual.average.points["cell"]]
    assert actual.average.points["random"].tolist() == pytest.approx(expected)
    (sst2,) = [task for task in actual.tasks if task.task == "sst2"]
    score = sst2.points["score"]
    rising = replace(sst2, points=sst2.points.assign(random=2 * (score - 1))).untrained
    assert rising is not None
    assert sst2.trend is not None
    assert (rising.score, rising.gain) == pytest.approx((sst2.trend.correlation, -sst2.trend.correlation))
    assert replace(sst2, points=sst2.points.assign(random=[0.5] * 5 + [np.nan])).untrained is None
    assert replace(sst2, trend=None).untrained is None
    (sentence,) = (one for one in score_findings(evidence) if one.startswith("Untrained, "))
    beside = actual.average.untrained
    assert beside is not None
    assert f"{beside.score:+.2f} with" in sentence
    assert f"has {beside.gain:+.2f}." in sentence


def test_the_error_of_an_average_of_one_run_each_is_that_of_independent_tasks(evidence: Evidence) -> None:
    actual = evidence.downstream
    assert actual is not None
    assert actual.average is not None
    for task in actual.tasks:
        width = 1 - (task.chance or 0.0)
        errors = [noise.error for noise in task.normalised["noise"]]
        assert errors == pytest.approx((task.points["error"].to_numpy(dtype=float) / width).tolist())
    for _, row in actual.average.points.iterrows():
        parts = [task.normalised.loc[row["cell"], "noise"] for task in actual.tasks]
        assert row["error"] == pytest.approx(sum(part.error**2 for part in parts) ** 0.5 / 4)
        assert (row["noise"], row["half"]) == (noise_of_mean(parts), noise_of_mean(parts).half)


@pytest.mark.slow
def test_the_error_of_an_average_of_several_runs_each_is_between_their_averages(tmp_path: Path) -> None:
    """Runs are averaged over tasks first; one that lacks a task says nothing of the scatter, and its cell has one fewer."""
    folder = depth_or_width(tmp_path / "s", seeds=3, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92), (4, 64)))
    ledger = folder.write_ledger()
    laws = {name: replace(TASKS[name], between_runs=0.02) for name in ("sst2", "cola")}
    add_scores(folder, laws)
    lacking = ledger["run_id"].iloc[0]
    table = pd.read_parquet(folder.scores_file)
    table = table[(table["protocol"] == "fine_tune") & ((table["run_id"] != lacking) | (table["task"] != "cola"))]
    table.to_parquet(folder.scores_file)
    actual = downstream(folder, ledger)
    assert actual is not None
    assert actual.average is not None
    scores = table.groupby(["run_id", "task"])["test"].mean().unstack()
    shares = ((scores["sst2"] - 0.5) / 0.5 + scores["cola"]).dropna() / 2
    cells = shares.groupby(ledger.set_index("run_id")["cell"])
    freedom = len(shares) - 3
    assert freedom == 5
    variance = sum((share - share.mean()).pow(2).sum() for _, share in cells) / freedom
    for _, row in actual.average.points.iterrows():
        noise, runs = row["noise"], 2 if row["cell"] == ledger["cell"].iloc[0] else 3
        assert (noise.over_seeds, noise.freedom) == (pytest.approx(variance / runs), freedom)
        assert noise.over_examples == pytest.approx(0.004**2 * (1 / 0.5**2 + 1) / 4), "each task has examples of its own"


@pytest.mark.slow
@pytest.mark.parametrize(("common", "own"), [(0.0, 0.01), (0.01, 0.003)])
def test_an_average_covers_its_truth_though_a_lucky_run_is_lucky_on_every_task(common: float, own: float) -> None:
    """Four equal encoders, three runs each, on three tasks; two of them seldom differ significantly."""
    random, covered, apart, draws = np.random.default_rng(0), [], [], 150
    cells, tasks, seeds = pd.Index(list("abcd"), name="cell"), 3, 3
    runs = [tuple(f"{cell}{seed}" for seed in range(seeds)) for cell in cells]
    for _ in range(draws):
        luck = random.normal(0, common, (len(cells), seeds))
        scores = [luck + random.normal(0, own, luck.shape) for _ in range(tasks)]
        of_tasks = []
        for of_task in scores:
            noise = noise_of_seeds(float(of_task.var(axis=1, ddof=1).mean()), len(cells) * (seeds - 1), seeds, 0.0)
            columns = {"noise": noise, "runs": runs, "run_scores": list(map(tuple, of_task))}
            of_tasks.append(pd.DataFrame(columns, cells))
        mean, noises = np.mean(scores, axis=(0, 2)), noises_over_tasks(of_tasks)
        assert noises.nunique() == 1, "of as many runs each"
        covered += (np.abs(mean) <= noises["a"].half).tolist()
        apart.append(noises["a"].of_difference(noises["b"]).chance_beyond(abs(mean[0] - mean[1])) < 0.05)
    assert 0.93 <= np.mean(covered) <= 0.99
    assert np.mean(apart) < 0.08


def test_the_average_lies_between_chance_and_perfect(evidence: Evidence) -> None:
    actual = evidence.downstream
    assert actual is not None
    assert actual.average is not None
    assert actual.average.metric == "mean of 4 tasks, 0 chance, 1 perfect"
    shares = [
        (task.points.set_index("cell")["score"] - TASKS[task.task].chance) / (1 - TASKS[task.task].chance)
        for task in actual.tasks
    ]
    by_cell = actual.average.points.set_index("cell")["score"]
    for cell, score in by_cell.items():
        assert score == pytest.approx(np.mean([share.loc[str(cell)] for share in shares]))
    assert 0 < by_cell.min() < by_cell.max() < 1


@pytest.mark.slow
def test_an_average_is_the_same_whatever_other_encoders_are_scored(scored: SweepFolder, evidence: Evidence) -> None:
    """Were it in units of the best of them, which is held out, what is forecast would be in what it is forecast by."""
    assert evidence.downstream is not None
    assert evidence.downstream.average is not None
    all_six = evidence.downstream.average.points.set_index("cell")["score"]
    ledger = scored.read_ledger()
    without_best = downstream(scored, ledger[ledger["cell"] != all_six.idxmax()])
    assert without_best is not None
    assert without_best.average is not None
    others = without_best.average.points.set_index("cell")["score"]
    assert len(others) == 5
    assert others.to_dict() == pytest.approx(all_six.drop(all_six.idxmax()).to_dict())


@pytest.mark.slow
def test_the_average_of_tasks_that_follow_a_law_is_forecast_as_they_are(tmp_path: Path) -> None:
    """The largest encoder's, which is the best, by the law between the task's own ends."""
    folder = depth_or_width(tmp_path / "s", seeds=1, rates=(4e-3,), budgets=(1e6,))
    folder.write_ledger()
    chances = {"sst2": 0.5, "trec": 0.25, "cola": 0.0}
    add_scores(folder, {task: ScoreLaw("accuracy", chance) for task, chance in chances.items()})
    actual = gather(folder).downstream
    assert actual is not None
    assert actual.average is not None
    forecast = actual.average.forecast
    assert isinstance(forecast, Forecast)
    assert forecast.covered.all()
    assert np.abs(forecast.errors).max() < 0.02
    assert isinstance(actual.average.law, Fit)
    assert actual.average.law.estimates == pytest.approx({"k": 3.0, "L0": 4.0}, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chance", "why"),
    [
        (np.nan, "its chance level was not measured"),
        (1.0, "the majority class is always right"),
        (-0.1, None),
    ],
)
def test_a_task_without_two_ends_is_left_out_of_the_average(
    monkeypatch: pytest.MonkeyPatch, scored: SweepFolder, chance: float, why: str | None
) -> None:
    points = score_points(scored, scored.read_ledger())
    points.loc[points["task"] == "sst2", "majority"] = chance
    monkeypatch.setattr("study.evidence.downstream.score_points", Mock(return_value=points))
    scores = downstream(scored, pd.DataFrame())
    assert scores is not None
    assert scores.average is not None
    assert scores.left_out == ({} if why is None else {"sst2": why})
    assert scores.average.metric.startswith(f"mean of {4 if why is None else 3} tasks")


@pytest.mark.slow
def test_only_encoders_that_met_all_tasks_are_averaged(scored: SweepFolder, tmp_path: Path) -> None:
    folder = SweepFolder(shutil.copytree(scored.path, tmp_path / "scored"))
    run = folder.runs()[0]
    for record in scores_of(run):
        if record.config.task == "cola":
            shutil.rmtree(score_folder(run, record.score_id).path)
    write_scores(folder)
    actual = gather(folder).downstream
    assert actual is not None
    assert actual.average is not None
    assert (len(actual.tasks[0].points), len(actual.average.points)) == (6, 5)


def test_the_largest_size_is_held_out_and_forecast(evidence: Evidence) -> None:
    actual = evidence.downstream
    assert actual is not None
    (sst2,) = [task for task in actual.tasks if task.task == "sst2"]
    assert sst2.points[sst2.is_forecast]["train_flops"].min() > sst2.points[~sst2.is_forecast]["train_flops"].max()
    assert isinstance(sst2.forecast, Forecast)
    assert np.abs(sst2.forecast.errors).max() < 0.03
    assert isinstance(sst2.forecast_from_sizes, Forecast)
    assert np.abs(sst2.forecast_from_sizes.errors).max() < 0.1
    assert isinstance(sst2.law, Fit)
    assert sst2.law.estimates["k"] == pytest.approx(TASKS["sst2"].slope, rel=0.2)
    assert sst2.law.estimates["L0"] == pytest.approx(TASKS["sst2"].middle, abs=0.05)


def test_constants_of_a_law_that_its_scores_do_not_pin_down_are_not_shown(evidence: Evidence) -> None:
    actual = evidence.downstream
    assert actual is not None
    (sst2,) = [task for task in actual.tasks if task.task == "sst2"]
    assert isinstance(sst2.law, Fit)
    shown = {}
    for status in ("converged", "weakly_identified", "on_bound", "failed"):
        of_status = replace(sst2, law=replace(sst2.law, status=status))
        table = law_table(with_facts(evidence, downstream=replace(actual, tasks=(of_status,), average=None)))
        shown[status] = " L0 " in table
    assert shown == {"converged": True, "weakly_identified": False, "on_bound": False, "failed": False}


def test_figures_show_points_laws_and_published_scores(evidence: Evidence) -> None:
    by_loss = score_against_loss.frame(evidence)
    assert set(by_loss["task"]) == {*TASKS, "average"}
    law = by_loss[(by_loss["kind"] == "law") & (by_loss["task"] == "sst2")].sort_values("x")
    assert (law["score"].diff().dropna() < 0).all()
    assert ((law["low"] <= law["score"] + 1e-6) & (law["score"] <= law["high"] + 1e-6)).mean() > 0.9
    by_size = AGAINST_PARAMETERS.frame(evidence)
    published = by_size[by_size["kind"] == "published"]
    assert set(published["task"]) == {"sst2", "cola", "rte"}
    bert = published[(published["task"] == "sst2") & (published["family"] == "BERT")]
    assert list(bert["score"]) == [0.832, 0.859, 0.897, 0.896, 0.935, 0.949], "the miniatures, Base and Large on the test set"
    assert set(bert["split"]) == {"test"}
    (legend,) = AGAINST_PARAMETERS.draw(by_size).legends
    named = {text.get_text() for text in legend.get_texts()}
    assert {f"published: {family}" for family in ("BERT, test", "DistilBERT, dev", "ALBERT, dev", "ELECTRA, dev")} <= named
    flops = AGAINST_FLOPS.frame(evidence)
    assert set(flops["train_flops"]) == set(evidence.ledger["train_flops"])
    for _, task in flops.groupby("task"):
        assert task["x"].nunique() == len(task), "side by side where FLOPs are near"
    np.testing.assert_allclose(flops["x"], flops["train_flops"], rtol=0.05)


def test_scores_of_several_tokenisers_follow_their_loss_in_bits_per_byte(scored: SweepFolder, tmp_path: Path) -> None:
    """One masks the same words whatever the tokeniser, so that all losses per byte compare, and none per token."""
    tokenizers = {"vary": {"data.tokenizer.kind": ["wordpiece", "bpe"]}, "data": {**SWEEP["data"], "tokenizer": {}}}
    folder = SweepFolder(shutil.copytree(scored.path, tmp_path / "scored"))
    folder.sweep_file.write_text(yaml.safe_dump(SWEEP | tokenizers))
    ledger = folder.read_ledger()
    bits = 2.0 - 0.1 * ledger["loss_nats"].rank()  # in another order than the losses per token
    ledger = ledger.assign(bits_per_masked_byte=bits, masked_words="the words")
    actual = downstream(folder, ledger)
    assert actual is not None
    known = dict(zip(ledger["cell"], bits, strict=True))
    for task in actual.all:
        assert (set(task.points["unit"]), set(task.points["validation"])) == ({"bits per byte"}, {"the words"})
        assert task.points["loss"].tolist() == pytest.approx([known[cell] for cell in task.points["cell"]])
        assert list(task.points["loss"]) == sorted(known.values(), reverse=True)
    verdicts = {task.task: task.trend.verdict for task in actual.tasks if task.trend is not None}
    assert verdicts == {"blimp": "falls", "cola": "falls", "sst2": "falls", "rte": "undecided"}
    evidence = with_facts(gather(folder, ledger=scored.read_ledger()), downstream=actual)
    data = score_against_loss.frame(evidence)
    points, laws = (data[data["kind"] == kind] for kind in ("measured", "law"))
    assert points["x"].max() < 2
    assert laws["x"].dropna().between(points["x"].min(), points["x"].max()).all(), "the law is in bits per byte, too"
    assert LOSS_PER_BYTE in " ".join(title_of(score_against_loss.draw(data)).split())
    assert "loss (bits per byte) |" in score_table(evidence)
    without = downstream(folder, ledger.assign(bits_per_masked_byte=np.nan))
    assert without is not None
    assert [task.trend for task in without.all] == [None] * 5


class Harder(Law):
    """A law of a second validation text, which is two nats harder."""

    def loss(self, config: RunConfig) -> float:
        """The usual loss, and two nats more of sequences of 32 tokens."""
        return super().loss(config) + 2 * (config.data.sequence_length == 32)


def of_two_texts(path: Path, tasks: Sequence[str], lengths: Mapping[int, int]) -> Evidence:
    """The evidence of so many widths validated on sequences of each length, whose scores depend on the width alone."""
    folder = sweep_folder(path, SWEEP | {"tune": {}, "question": "Do scores on tasks rise as the loss falls?"})
    for length, count in lengths.items():
        for width in range(32, 32 * count + 32, 32):
            config = run_config(1, width)
            data = config.data.model_copy(update={"sequence_length": length})
            add_run(folder, config.model_copy(update={"data": data}), Harder(), text=f"{length} tokens")
    folder.write_ledger()
    for record, task in product(folder.records(), tasks):
        add_score(folder, record, task, TASKS["blimp"], "zero_shot", 0, 0.5 + record.config.architecture.width / 1000)
    write_scores(folder)
    return gather(folder)


def test_scores_are_related_to_the_losses_of_one_validation_alone(tmp_path: Path) -> None:
    """Over both, the harder text would hide what each group shows without exception."""
    evidence = of_two_texts(tmp_path / "s", ("blimp", "sst2"), {64: 5, 32: 6})
    actual = evidence.downstream
    assert actual is not None
    for task in actual.tasks:
        assert (len(task.points), len(task.compared)) == (11, 6), "the one that most share"
        loss, score = (task.points[name].to_numpy(dtype=float) for name in ("loss", "score"))
        both = trend(loss, score, list(task.points["noise"]), np.arange(11))
        assert both is not None
        assert (both.verdict, bool(both.reversals)) == ("undecided", True)
        assert task.trend is not None
        assert (task.trend.n, task.trend.correlation, task.trend.verdict) == (6, 1.0, "monotone")
        assert isinstance(task.law, Fit)
        assert task.law.n == 6
        assert isinstance(task.forecast, Forecast)
        assert isinstance(task.forecast_from_sizes, Forecast)
        assert task.is_forecast.sum() == 1
    which, verdict, *_ = score_findings(evidence)
    assert which == (
        "blimp, sst2: losses of different text, masks or objectives do not compare, so trend, law and forecast are of 6 of 11 "
        "encoders, those of sequence_length=32, data_fingerprint=32 tokens."
    )
    assert verdict.startswith("blimp, sst2: scores follow the loss, monotone")
    assert "over 6 encoders whose losses compare, adjusted" in Answer(evidence, {}).to_markdown()
    data = score_against_loss.frame(evidence)
    assert set(data.loc[data["kind"] == "law", "panel"]) == {
        f"{name} (paradigm_accuracy)\nsequence_length=32, data_fingerprint=32 tokens" for name in ("blimp", "sst2")
    }
    drawn = score_against_loss.draw(data)
    assert len(drawn.axes) == 4
    for _, rows in data[data["kind"] == "measured"].groupby("panel"):
        assert len({cell.validation for cell in evidence.cells if cell.name in set(rows["cell"])}) == 1
    assert not title_of(drawn).startswith("Scores rise")


def test_scores_of_too_few_comparable_losses_are_related_to_none(tmp_path: Path) -> None:
    evidence = of_two_texts(tmp_path / "s", ("blimp",), {64: 2, 32: 2})
    assert score_findings(evidence)[0] == (
        "blimp: fewer than three encoders of losses that compare, or all scores alike; nothing can be said about the loss."
    )


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(count, marks=() if count in ("parameters", "train_flops", "loss_nats") else pytest.mark.slow)
        for count in ("loss_nats", *COUNTS)
        if count != "spent_flops"  # which a ledger has where runs start from or learn from others
    ],
)
def test_scores_stand_at_the_loss_or_the_count_of_the_ledger_that_is_chosen(evidence: Evidence, count: str) -> None:
    if count == "loss_nats":
        data, draw = score_against_loss.frame(evidence), score_against_loss.draw
    else:
        data, draw = ScoreAgainst(count).frame(evidence), ScoreAgainst(count).draw
    points = data[(data["kind"] == "measured") & (data["task"] == "sst2")]
    known = evidence.ledger.groupby("cell")[count].mean()[points["cell"]]
    np.testing.assert_allclose(points["x"].astype(float), known.astype(float), rtol=0.05)
    assert (LOSS if count == "loss_nats" else COUNTS[count]) in title_of(draw(data)).replace("\n", " ")


@pytest.mark.parametrize("count", LEDGER_PARAMETERS)
def test_published_models_stand_at_their_size_in_the_count_that_is_chosen(evidence: Evidence, count: str) -> None:
    data = ScoreAgainst(count).frame(evidence)
    published = data[(data["kind"] == "published") & (data["task"] == "sst2")].set_index("label")
    tiny = find("bert-tiny")
    assert tiny is not None
    assert published.loc["BERT-Tiny", "x"] == getattr(parameters(tiny.architecture), count)


def test_published_scores_stand_beside_an_encoder_of_their_size(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = published_table(evidence).splitlines()
    (tiny,) = [
        line for line in lines if line.startswith("| sst2 | accuracy | BERT-Tiny | test | Turc et al. 2019 | 4,416,698 |")
    ]
    assert tiny.endswith("| 0.832 | – | – | – | – |"), "the largest here has a fifth of its parameters"
    monkeypatch.setattr("study.report.score_sentences.NEAR", 1000.0)
    assert evidence.downstream is not None
    points = next(task.points for task in evidence.downstream.tasks if task.task == "sst2")
    largest = points["parameters"].max()
    (tiny,) = [line for line in published_table(evidence).splitlines() if line.startswith("| sst2 | accuracy | BERT-Tiny |")]
    assert f"| {largest:,} |" in tiny


@pytest.mark.slow
def test_the_key_of_a_law_names_its_interval_where_one_is_drawn(evidence: Evidence) -> None:
    with_interval = score_against_loss.frame(evidence)
    for data, label in (
        (with_interval, "law of the loss, with the law's 95% interval"),
        (with_interval.assign(low=np.nan, high=np.nan), "law of the loss"),
    ):
        (legend,) = score_against_loss.draw(data).legends
        assert label in [text.get_text() for text in legend.get_texts()]


def test_what_was_not_trained_has_no_place_on_an_axis_of_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = pd.DataFrame({"task": "trec", "x": [0.0, 1e9], "score": [0.5, 0.6]})
    monkeypatch.setattr("study.plotting.score_against_count.measured", lambda *_: scores)
    assert AGAINST_FLOPS.frame(Mock())["score"].tolist() == [0.6]


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(score_against_loss, marks=pytest.mark.slow),
        pytest.param(AGAINST_PARAMETERS, marks=pytest.mark.slow),
        AGAINST_FLOPS,
    ],
)
def test_scores_of_settings_and_of_widths_of_one_depth_look_apart(tmp_path: Path, figure: Any) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width, norm in product((64, 128), ("post", "pre")):
        add_run(folder, in_setting(run_config(2, width), norm=norm))
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    evidence = gather(folder)
    data = figure.frame(evidence)
    points = data[data["kind"] == "measured"]
    assert set(points["cell"]) == {cell.name for cell in evidence.cells}
    named = [f"depth 2, width {width}, norm={norm}" for width, norm in product((64, 128), ("post", "pre"))]
    assert sorted(points["line"]) == sorted(named)
    drawn = figure.draw(data)
    lines = drawn.legends[0].get_lines()[:4]
    assert [line.get_label() for line in lines] == named
    looks = {(line.get_color(), line.get_marker(), line.get_markerfacecolor()) for line in lines}
    assert len(looks) == 4
    shown = drawn.axes[0].get_lines()
    assert {(line.get_color(), line.get_marker(), line.get_markerfacecolor()) for line in shown} >= looks


@pytest.mark.slow
def test_budgets_of_one_shape_stand_side_by_side_and_the_larger_one_is_the_larger_point(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", seeds=1, rates=(4e-3,), budgets=(2e6, 1e6), shapes=((1, 64), (1, 128)))
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    data = AGAINST_PARAMETERS.frame(gather(folder))
    scores = data[data["kind"] == "measured"]
    assert scores["x"].nunique() == len(scores) == 4
    np.testing.assert_allclose(scores["x"].astype(float), scores["parameters"].astype(float), rtol=0.05)
    drawn = AGAINST_PARAMETERS.draw(data)
    (panel,) = drawn.axes
    assert panel.get_xlabel() == "parameters; near ones side by side"
    low, high = panel.get_xlim()
    assert low < data["x"].min() < data["x"].max() < high, "published models are shown too"
    key = {line.get_label(): line.get_markersize() for line in drawn.legends[0].get_lines()}
    assert key["1M tokens"] < key["2M tokens"]
    shown = [line for line in panel.get_lines() if line.get_marker() in list(MARKERS)]
    points = {x: line.get_markersize() for line in shown for x in np.asarray(line.get_xdata()).tolist()}
    assert all(points[row["x"]] == key[row["budget"]] for _, row in scores.iterrows())


@pytest.mark.slow
def test_published_models_are_shown_beside_encoders_of_much_smaller_sizes_in_every_panel(evidence: Evidence) -> None:
    data = AGAINST_PARAMETERS.frame(evidence)
    for panel in AGAINST_PARAMETERS.draw(data).axes:
        low, high = panel.get_xlim()
        assert low < data["x"].min() < data["x"].max() < high
        highest = max(drawn.get_zorder() for drawn in panel.get_lines())
        assert all(name.get_zorder() > highest for name in panel.texts), "no point covers a name"


def test_what_a_forecast_holds_out_has_a_ring_whatever_its_face(evidence: Evidence) -> None:
    data = AGAINST_FLOPS.frame(evidence)
    one = data[data["task"] == "sst2"]
    (panel,) = AGAINST_FLOPS.draw(one).axes
    held = one[one["forecast"].astype(bool)]
    assert len(held)
    (rings,) = [line for line in panel.get_lines() if line.get_markersize() >= 10]
    assert set(np.asarray(rings.get_ydata()).tolist()) == set(held["score"])


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(score_against_loss, marks=pytest.mark.slow),
        pytest.param(AGAINST_PARAMETERS, marks=pytest.mark.slow),
        AGAINST_FLOPS,
    ],
)
def test_the_title_and_legend_of_one_task_fit_the_figure(tmp_path: Path, figure: Any) -> None:
    folder = depth_or_width(tmp_path / "one", seeds=1, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    data = figure.frame(gather(folder))
    assert not data["forecast"].eq(True).any(), "two shapes are too few for a forecast"
    canvas = FigureCanvasAgg(drawn := figure.draw(data))
    canvas.draw()  # type: ignore[no-untyped-call]
    assert title_of(drawn).replace("\n", " ").endswith("bars: 95% over examples")
    for part in (drawn.legends[0], *drawn.texts):
        extent = part.get_window_extent(canvas.get_renderer())  # type: ignore[no-untyped-call]
        assert 0 <= extent.x0 < extent.x1 <= drawn.bbox.width
    assert not any("held out" in text.get_text() for text in drawn.legends[0].get_texts())


def test_scores_with_other_than_the_usual_knobs_say_so(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "one", seeds=1, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    add_scores(folder, {"cola": TASKS["cola"]}, seeds=1)
    for record in folder.records():
        add_score(folder, record, "sst2", TASKS["sst2"], "fine_tune", 0, 0.7, knobs=Knobs(max_train_examples=300))
    write_scores(folder)
    lines = [line for line in score_findings(gather(folder)) if line.startswith("Scored with")]
    assert lines == ["Scored with max_train_examples=300: sst2."]


def test_examples_that_an_encoder_did_not_read_whole_are_reported_by_task(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "one", seeds=1, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    add_scores(folder, {"cola": TASKS["cola"]}, seeds=1)
    for cut, record in enumerate(folder.records()):
        add_score(folder, record, "sst2", TASKS["sst2"], "fine_tune", 0, 0.7, truncated_examples=1500 + cut)
    assert write_scores(folder)["truncated_examples"].max() == 1501
    (line,) = (line for line in score_findings(gather(folder)) if line.startswith("Examples longer"))
    assert line.endswith("(the most of any encoder): sst2 1,501 of 2,872.")


def test_text_that_a_tokeniser_loses_is_reported_by_task_above_the_threshold(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "one", seeds=1, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    add_scores(folder, {"rte": TASKS["rte"]}, seeds=1)
    assert "lost_share" not in write_scores(folder), "older records lack it"
    for number, record in enumerate(folder.records()):
        add_score(folder, record, "sst2", TASKS["sst2"], "fine_tune", 0, 0.7, lost_share=0.12 + number / 100)
        add_score(folder, record, "cola", TASKS["cola"], "fine_tune", 0, 0.3, lost_share=0.05)
    write_scores(folder)
    (line,) = (line for line in score_findings(gather(folder)) if line.startswith("Characters that"))
    assert line.endswith("(the most of any encoder): sst2 13%.")


@pytest.mark.slow
def test_bars_of_scores_hold_the_scatter_between_seeds_of_pre_training(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "one", seeds=2, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    data = AGAINST_FLOPS.frame(gather(folder))
    title = title_of(AGAINST_FLOPS.draw(data)).replace("\n", " ")
    assert title.endswith("bars: 95% over seeds and examples")


@pytest.mark.slow
def test_the_title_says_what_the_bars_of_scores_are_over(evidence: Evidence) -> None:
    data = AGAINST_FLOPS.frame(evidence)
    assert "over examples, and seeds where" in title_of(AGAINST_FLOPS.draw(data)).replace("\n", " ")
    seeded = data[data["task"] != "blimp"]
    drawn = AGAINST_FLOPS.draw(seeded)
    assert title_of(drawn).endswith("bars: 95% over seeds and examples")
    assert any("forecast" in text.get_text() for text in drawn.legends[0].get_texts())


@pytest.mark.slow
def test_an_answer_of_a_sweep_with_scores_reports_them(evidence: Evidence) -> None:
    text = Answer(evidence, {}).to_markdown()
    for fold in ("Scores against the loss", "Laws from loss to score", "Downstream scores"):
        assert f"<summary>{fold}</summary>" in text
    assert "scores follow the loss, monotone" in text


@pytest.mark.slow  # tests/test_packed_sweeps.py draws a figure of scores
def test_a_report_of_a_sweep_with_scores_states_and_draws_them(scored: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {name: figure for name, figure in FIGURES.items() if "score" in name}
    monkeypatch.setattr("study.report.answer.FIGURES", drawn)
    scored.scores_file.unlink()
    answer = report(scored)
    assert tuple(answer.figures) == (
        "parameters_loss_score",
        "score_against_loss",
        "score_against_parameters",
        "score_against_flops",
    )
    kept = json.loads((scored.fits / "downstream.json").read_text())
    assert {task["task"] for task in kept["tasks"]} == set(TASKS)
    assert scored.scores_file.exists(), "scores are rebuilt from the records"
    assert scored.scores_file.with_suffix(".csv").exists()


def test_a_sweep_without_scores_says_nothing_of_them(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "bare", seeds=1, rates=(4e-3,), budgets=(1e6,), shapes=((1, 128),))
    folder.write_ledger()
    evidence = gather(folder)
    assert evidence.downstream is None
    assert score_findings(evidence) == []
    assert {trend_table(evidence), law_table(evidence), score_table(evidence)} == {""}
    assert score_against_loss.frame(evidence).empty


def test_a_rank_correlation_needs_both_its_interval_and_enough_encoders() -> None:
    loss = np.array([4.0, 3.8, 3.6, 3.4, 3.2, 3.0])
    rising = np.array([0.5, 0.55, 0.6, 0.65, 0.7, 0.75])
    quiet, loud = ([ScoreNoise(0.0, np.inf, error**2)] * 6 for error in (0.005, 0.1))
    apart = np.arange(6)
    actual = trend(loss, rising, quiet, apart)
    assert actual is not None
    assert (actual.correlation, actual.verdict, actual.reversals) == (1.0, "monotone", ())
    assert actual.p_value == pytest.approx(2 / 720)
    three = trend(loss[:3], rising[:3], quiet[:3], apart[:3])
    assert three is not None
    assert three.verdict == "undecided", "one order in three is too likely by chance"
    swapped = rising[[0, 1, 2, 3, 5, 4]]
    clear, noisy = trend(loss, swapped, quiet, apart), trend(loss, swapped, loud, apart)
    assert clear is not None
    assert noisy is not None
    assert clear.reversals == ((5, 4),)
    assert noisy.reversals == ()
    falling = trend(loss, rising[::-1].copy(), quiet, apart)
    assert falling is not None
    assert falling.verdict == "falls"
    assert trend(loss, np.full(6, 0.5), quiet, apart) is None
    assert trend(loss[:2], rising[:2], quiet[:2], apart[:2]) is None


@pytest.mark.slow
def test_the_luck_that_encoders_of_one_shape_share_is_no_trend() -> None:
    """Losses that hang on the shape more than on the budget, and scores on neither, half of whose scatter is their shape's."""
    random, shapes, budgets = np.random.default_rng(0), 4, 3
    of_shape = np.repeat(np.arange(shapes), budgets)
    together, alone = [], []
    for _ in range(150):
        loss = 4 - 1.0 * of_shape - 0.2 * np.tile(np.arange(budgets), shapes) + random.normal(0, 0.05, len(of_shape))
        score = random.normal(size=shapes)[of_shape] + random.normal(size=len(of_shape))
        together.append(p_value_of(loss, score, of_shape) < 0.05)
        alone.append(p_value_of(loss, score, np.arange(len(of_shape))) < 0.05)
    assert np.mean(together) < 0.09
    assert np.mean(alone) > 0.12


def test_a_trend_within_and_between_few_shapes_is_found() -> None:
    loss = np.array([4.0, 3.7, 3.4, 3.5, 3.2, 2.9, 3.0, 2.7, 2.4])
    actual = trend(loss, -loss, [ScoreNoise(0.0, np.inf, 1e-4)] * 9, np.repeat([0, 1, 2], 3))
    assert actual is not None
    assert (actual.correlation, actual.verdict, actual.low, actual.high) == (1.0, "monotone", None, None)


@pytest.mark.parametrize(
    ("shapes", "count"),
    [([0, 1, 2, 3], 24), ([0, 0, 0, 0], 24), ([0, 0, 1, 1], 8), ([0, 1, 1, 2], 4), ([0, 1, 0, 1, 0], 12)],
)
def test_orders_keep_the_encoders_of_a_shape_together(shapes: list[int], count: int) -> None:
    """Shapes of as many encoders change places, and encoders within theirs."""
    kept = orders(np.array(shapes))
    assert len(np.unique(kept, axis=0)) == len(kept) == count
    many = np.array([*shapes, 7, 7, 7, 8, 8, 8])
    drawn = orders(many)
    assert (np.sort(drawn, axis=1) == np.arange(len(many))).all()
    together = np.equal.outer(many, many)
    assert all((np.equal.outer(many[order], many[order]) == together).all() for order in drawn[:200])
    of_three = [encoder for encoder, shape in enumerate(many) if np.sum(many == shape) == 3]
    assert np.unique(drawn[:, -1]).tolist() == of_three


@pytest.mark.slow
def test_the_interval_of_a_rank_correlation_covers_that_of_the_population() -> None:
    random, r, n = np.random.default_rng(0), 0.6, 6
    population = 6 / np.pi * np.arcsin(r / 2)
    drawn = random.multivariate_normal([0, 0], [[1, r], [r, 1]], size=(400, n))
    actual = [rank_interval(round(float(spearmanr(one).statistic), 9), n) for one in drawn]
    assert np.mean([low <= population <= high for low, high in actual]) > 0.93
    assert np.mean([low > 0 for low, _ in actual]) < 0.5


def test_a_perfect_order_of_few_encoders_is_not_taken_for_certain() -> None:
    intervals = [rank_interval(1.0, n) for n in (3, 4, 5, 8)]
    assert [high for _, high in intervals] == [1.0] * 4
    lows = [low for low, _ in intervals]
    assert lows == sorted(lows)
    assert lows[1] < 0 < lows[2] < 0.5, "the exact test excludes 0 from five encoders on"
    assert rank_interval(-1.0, 5) == (-1.0, -lows[2])


def test_a_law_between_known_ends_is_the_free_law_with_them_given() -> None:
    loss = np.linspace(3.0, 5.0, 12)
    free, known = LAWS["score-of-loss"], between(0.5)
    theta = np.array([[3.0, 4.0], [1.0, 3.5]])
    whole = np.column_stack([np.tile([0.5, 1.0], (2, 1)), theta])
    assert known.values(theta, {"loss": loss}) == pytest.approx(free.values(whole, {"loss": loss}))
    derivatives = known.at({"loss": loss}).derivatives(theta)
    step = 1e-6
    for place in range(2):
        moved = theta.copy()
        moved[:, place] += step
        slope = (known.values(moved, {"loss": loss}) - known.values(theta, {"loss": loss})) / step
        assert derivatives.jacobian[..., place] == pytest.approx(slope, abs=1e-4)
    score = free.values(whole[:1], {"loss": loss})[0]
    fitted = fit(known, Observations.of({"loss": loss}, score), Settings(space="linear", bootstrap=50))
    assert fitted.status == "converged"
    assert list(fitted.estimates.values()) == pytest.approx([3.0, 4.0], rel=1e-4)


def test_runs_of_one_shape_are_held_out_together(evidence: Evidence) -> None:
    assert evidence.downstream is not None
    points = evidence.downstream.tasks[0].points
    twice = points.loc[[*points.index, *points.index]].reset_index(drop=True)
    assert observed(twice).n_clusters == observed(points).n_clusters == points["shape"].nunique()


def test_published_scores_are_those_of_the_table(shared_data: Path) -> None:
    packaged = Path(__file__).resolve().parents[2] / "study" / "evidence" / "bert_miniatures_glue.csv"
    assert packaged.read_text() == (shared_data / "published" / "encoders" / "bert_miniatures_glue_test.csv").read_text()
    mrpc = {one.model: one for one in published_scores("mrpc", "accuracy")}
    assert (mrpc["BERT-Tiny"].score, mrpc["BERT-Medium"].score) == (0.711, 0.816)
    assert "BERT-Base" not in mrpc, "whose F1 was published"
    sizes = [one.sizes["parameters"] for one in published_scores("stsb", "spearman")]
    assert sizes == sorted(sizes)
    stsb = {one.model: one.score for one in published_scores("stsb", "spearman") if one.family == "BERT"}
    assert list(stsb.values()) == [0.736, 0.733, 0.770, 0.784, 0.858, 0.865]
    assert published_scores("trec", "accuracy") == ()


def test_each_published_score_says_what_was_scored_and_where_it_stands(shared_data: Path) -> None:
    electra = shared_data / "published" / "encoders" / "electra_glue_squad_dev.csv"
    (large,) = [row for row in csv.DictReader(electra.open()) if row[""] == "ELECTRA-Large"]
    columns = {("squad", "exact_match"): "SQuAD 1.1", ("squad_v2", "exact_match"): "SQuAD 2.0", ("cola", "matthews"): "CoLA"}
    for (task, metric), column in columns.items():
        (one,) = [one for one in published_scores(task, metric) if one.model == "ELECTRA-Large"]
        assert (one.score, one.split) == (round(float(large[column]) / 100, 6), "dev")
    packaged = Path(__file__).resolve().parents[2] / "study" / "evidence" / "published_scores.csv"
    rows = list(csv.DictReader(packaged.open()))
    assert len({(row["model"], row["task"], row["metric"]) for row in rows}) == len(rows)
    for row in rows:
        assert row["metric"] in read_spec(row["task"])[0].metrics
        assert row["split"] in ("test", "dev")
        assert row["source"]
    ner = {one.model: one.score for one in published_scores("conll2003", "entity_f1")}
    assert ner == {"BERT-Base": 0.924, "BERT-Large": 0.928}
