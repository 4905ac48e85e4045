"""The scores of runs as a table for a terminal: each with its interval, beside baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from rich.table import Table

from study.base.grouping import grouped
from study.base.quantities import error_text, plural
from study.base.statistics import noise_of_seeds, pooled_variance
from study.base.terminal import narrow_table
from study.base.text import pasted, printable
from study.config.run_config import MOST_UNKNOWN
from study.scoring.evaluations import Evaluation
from study.scoring.targets import Scored, label_runs
from study.store.records import RETRIED
from study.store.score_records import ScoreRecord, baseline, chosen, scores_of
from study.store.sweep_folder import SweepFolder

_BASELINES = {"majority": "majority", "bag_of_words": "words"}
"""The baselines by their names in the table."""


@dataclass(frozen=True)
class Measured:
    """A mean over the seeds of fine-tuning with its 95% interval over seeds and examples.

    The variance between seeds is pooled over the encoders of a task; without two seeds the interval is over the examples alone.
    """

    score: float
    interval: tuple[float, float] | None
    seeds: int
    learning_rate: float | None


@dataclass(frozen=True)
class ScoreRow:
    """One run on one task, beside random weights of the same architecture and the baselines.

    `setting` are the run's values of the sweep's knobs, in words, and `seed` is that of its pre-training.
    """

    run_id: str
    shape: str
    setting: str
    tokens: int
    seed: int
    task: str
    metric: str
    protocol: str
    measured: Measured
    random_weights: Measured | None
    baselines: Mapping[str, float]


def rows(scored: Scored) -> list[ScoreRow]:
    """One row for each run and task, at the chosen knobs."""
    measured = _measured(scored)
    knobs = scored.target.sweep.distinguishing_knobs()
    return [
        ScoreRow(
            run_id=evaluation.run.run_id,
            shape=evaluation.run.config.architecture.shape_name,
            setting=evaluation.run.config.variant(knobs),
            tokens=evaluation.run.config.tokens,
            seed=evaluation.run.config.seed,
            task=evaluation.task.spec.name,
            metric=evaluation.task.spec.headline,
            protocol=evaluation.protocol,
            measured=measured[evaluation.run.run_id, evaluation.name],
            random_weights=measured.get((evaluation.run.random_id, evaluation.name)),
            baselines=_baselines(scored.target.sweep, evaluation),
        )
        for evaluation in scored.evaluations
        if not evaluation.random and (evaluation.run.run_id, evaluation.name) in measured
    ]


def score_table(scored: Scored) -> tuple[Table | str, ...]:
    """Return the rows as a table, and notes on its columns."""
    names = label_runs(scored.target)
    shown = [
        (_task_words(row), (names[row.run_id], *_cells(row)), "")
        for row in sorted(rows(scored), key=lambda row: (row.task, names[row.run_id]))
    ]
    title = f"{scored.target.sweep.name}: downstream scores"
    table = narrow_table(title, ["encoder"], ("score", "±", "seeds", "rate", "random", "±"), shown)
    note = "Mean over seeds of fine-tuning on the reported split, ± half its 95% interval over examples, and over"
    note += " seeds where there are several, whose variance is pooled on a task."
    more = "Knobs are chosen on dev. random: the same architecture, untrained; words: a bag of words."
    ended = _ended(scored)
    lines = [
        note,
        more,
        *_cut(ended),
        *_lost(ended),
        *_failures(ended, scored.target.sweep),
        *map(printable, scored.failed_baselines),
        f"All scores: {scored.target.sweep.scores_file.with_suffix('.csv')}",
    ]
    return table, "\n".join(lines)


def _task_words(row: ScoreRow) -> str:
    """Return a task with its metric and baselines, such as `trec, accuracy: majority 0.2260, words 0.7500`."""
    kept = [f"{word} {row.baselines[name]:.4f}" for name, word in _BASELINES.items() if name in row.baselines]
    return f"{row.task}, {row.metric}{': ' if kept else ''}{', '.join(kept)}"


def _cells(row: ScoreRow) -> tuple[str, ...]:
    measured = row.measured
    rate = "" if measured.learning_rate is None else f"{measured.learning_rate:g}"
    return (*_shown(measured), str(measured.seeds), rate, *_shown(row.random_weights))


def score_values(scored: Scored) -> list[dict[str, object]]:
    """Return the rows as plain values."""
    return [asdict(row) for row in rows(scored)]


def _records(scored: Scored) -> dict[str, ScoreRecord]:
    return {record.score_id: record for run in scored.target.runs for record in scores_of(run.folder)}


def _measured(scored: Scored) -> dict[tuple[str, str], Measured]:
    records = _records(scored)
    at_best: dict[tuple[bool, str], dict[str, list[ScoreRecord]]] = {}
    for evaluation in scored.evaluations:
        ids = [job.key for job in evaluation.jobs(records)]
        if best := chosen([records[score_id] for score_id in ids if score_id in records]):
            encoder = evaluation.run.random_id if evaluation.random else evaluation.run.run_id
            at_best.setdefault((evaluation.random, evaluation.name), {})[encoder] = best
    means: dict[tuple[str, str], Measured] = {}
    for (_, task), of_encoders in at_best.items():
        variance, freedom = pooled_variance([_scores(best) for best in of_encoders.values()])
        means |= {(encoder, task): _mean(best, variance, freedom) for encoder, best in of_encoders.items()}
    return means


def _mean(best: Sequence[ScoreRecord], variance: float, freedom: int) -> Measured:
    values, interval = _scores(best), best[0].test_interval
    errors = [record.test_standard_error for record in best if record.test_standard_error is not None]
    mean = fmean(values)
    if freedom:
        half = noise_of_seeds(variance, freedom, len(values), fmean(errors) if errors else math.nan).half
        interval = (mean - half, mean + half)
    return Measured(mean, interval, len(values), best[0].config.knobs.learning_rate if best[0].steps else None)


def _scores(records: Sequence[ScoreRecord]) -> list[float]:
    return [record.test for record in records if record.test is not None]


def _failures(ended: Sequence[ScoreRecord], sweep: SweepFolder) -> list[str]:
    failed = [record for record in ended if record.state != "COMPLETED"]
    lines = []
    for (state, task), records in grouped(failed, lambda record: (record.state, record.config.task)).items():
        reasons = list(dict.fromkeys(record.reason for record in records))
        first = ", the first" if len(reasons) > 1 else ""
        lines.append(printable(f"{state}: {task}, {plural(len(records), 'score')}{first}: {reasons[0]}"))
    if any(record.state in RETRIED for record in failed):
        lines.append(f"To try again what failed: study retry {pasted(sweep.path)}")
    return lines


def _cut(ended: Sequence[ScoreRecord]) -> list[str]:
    cut: dict[str, int] = {}
    for record in ended:
        if record.truncated_examples:
            cut[record.config.task] = max(cut.get(record.config.task, 0), record.truncated_examples)
    cut_short = "too long for an encoder and cut (the most of any score)"
    return [printable(f"{task}: {plural(count, 'example')} {cut_short}") for task, count in cut.items()]


def _lost(ended: Sequence[ScoreRecord]) -> list[str]:
    lost = {
        task: max(record.lost_share or 0.0 for record in records)
        for task, records in grouped(ended, lambda record: record.config.task).items()
    }
    dropped = "of the characters of a split lost by a tokeniser, [UNK] or dropped (the most of any score)"
    return [printable(f"{task}: {share:.0%} {dropped}") for task, share in lost.items() if share > MOST_UNKNOWN]


def _ended(scored: Scored) -> list[ScoreRecord]:
    records = _records(scored)
    requested = dict.fromkeys(job.key for evaluation in scored.evaluations for job in evaluation.jobs(records))
    return [records[score_id] for score_id in requested if score_id in records]


def _baselines(sweep: SweepFolder, evaluation: Evaluation) -> dict[str, float]:
    kept = baseline(sweep, *evaluation.task_key)
    return {} if kept is None else kept.beside(evaluation.task.spec.headline, evaluation.run.data_fingerprint)


def _shown(measured: Measured | None) -> tuple[str, str]:
    if measured is None:
        return "", ""
    low, high = measured.interval or (None, None)
    return f"{measured.score:.4f}", "" if low is None or high is None else error_text((high - low) / 2)
