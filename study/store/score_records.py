"""Records of downstream scores and their table; each lies under its pre-training run.

results/<sweep>/
    runs/<run id>/scores/<score id>/
        config.json             written first
        metrics.jsonl           one line a logged step
        attempts/               one file a start, and records of retried ones
        checkpoints/            kept until the score is completed
        record.json             written last, once
    baselines/<task>-<fingerprint>.json    without an encoder: the majority class, a bag of words
    scores.parquet, scores.csv  rebuilt from the records
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from study.base.durable_files import content_of, is_there, write_atomically
from study.base.errors import map_readable, warn_of
from study.base.grouping import grouped
from study.base.schema import Index, Share, Strict, Text
from study.config.run_config import describe_knobs
from study.config.score_config import TUNED, ScoreConfig
from study.config.tuned_values import Tried, best_values
from study.store.named_files import Inside, file_once, parsed, read_parquet, write_table
from study.store.records import Amount, Environment, Magnitude, State
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import WorkFolder

if TYPE_CHECKING:
    import pandas as pd

_SCORE_AGAIN = "move it away to score again"

DOWNSTREAM = "downstream/"
"""The prefix of a downstream score's name, as in downstream/cola/matthews."""

FROZEN = " (frozen)"
"""Suffix of a task whose head alone was trained, on frozen features."""

_TEST = "test/"
"""The prefix of the columns with every metric on the split `reported_on`."""


class Probe(Strict):
    """A linear model on frozen features, with its main metric on dev and test.

    `layer` is one layer (0 is the embeddings), or the last four, concatenated or summed.
    """

    layer: Index | Literal["concat", "sum"]
    pooling: Literal["cls", "mean", "token"]
    regularisation: Magnitude
    dev: Magnitude
    test: Magnitude


class ScoreRecord(Strict):
    """The row that an ended score leaves; unreached values are None, never zero.

    Knobs, epoch, layer and pooling are chosen by the main metric, `config.metric`, on `chosen_on`; `reported_on` is another
    split if anything was chosen. `dev_scores` and `test_scores` hold every metric at the chosen epoch; `test_standard_error`
    and the 95% `test_interval` are the main one's over the examples. `lost_share` is the share of characters that became [UNK]
    or no piece in the split with the largest, None in older records. The record of `run_id` describes the encoder. `tokens`
    went through the encoder in training, without padding; `tokens_per_second` is of training alone, `seconds` of everything but
    reading the task, over all attempts, with a teacher's fine-tuning; earlier versions left out that and test. `train_flops`
    are the encoder's of fine-tuning, by that convention (SequenceFlops) and without padding; `spent_flops`, with a teacher,
    also its fine-tuning, its labels, and the `train_flops` of all runs that it needs.
    """

    schema_version: Literal[1] = 1
    score_id: str
    run_id: str
    sweep: str
    config: ScoreConfig
    kind: Text
    state: State
    reason: str | None = None
    chosen_on: str | None = None
    reported_on: str
    train_examples: Index | None = None
    unlabelled_examples: Index | None = None
    dev_examples: Index | None = None
    test_examples: Index | None = None
    truncated_examples: Index | None = None
    lost_share: Share | None = None
    segments: Index | None = None
    dev_scores: dict[str, Magnitude] = Field(default_factory=dict)
    test_scores: dict[str, Magnitude] = Field(default_factory=dict)
    test_standard_error: Magnitude | None = None
    test_interval: tuple[Magnitude, Magnitude] | None = None
    best_epoch: Index | None = None
    epochs: Index | None = None
    steps: Index | None = None
    tokens: Index | None = None
    train_flops: Amount | None = None
    spent_flops: Amount | None = None
    seconds: Magnitude | None = None
    tokens_per_second: Magnitude | None = None
    padding_share: Magnitude | None = None
    peak_memory_bytes: Index | None = None
    probes: tuple[Probe, ...] = ()
    attempts: Index = 1
    started_at: str
    finished_at: str
    environment: Environment | None = None

    @property
    def dev(self) -> float | None:
        """The main metric on the split `chosen_on`."""
        return self.dev_scores.get(self.config.metric)

    @property
    def test(self) -> float | None:
        """The main metric on the split `reported_on`."""
        return self.test_scores.get(self.config.metric)


class BaselineRecord(Strict):
    """Scores of a task's split without an encoder: every metric of each baseline.

    `metric` was then the task's main one. `data_fingerprint` is of the text in which words of minimal pairs were counted, None
    for other kinds, which learn from their own examples, and in older records.
    """

    task: str
    task_fingerprint: str
    data_fingerprint: str | None = None
    metric: str
    reported_on: str
    scores: dict[str, dict[str, float]]

    def by(self, metric: str) -> dict[str, float]:
        """One metric of each baseline, if measured."""
        return {name: scores[metric] for name, scores in self.scores.items() if metric in scores}

    def beside(self, metric: str, data_fingerprint: str) -> dict[str, float]:
        """`by`, empty if words were counted in other data."""
        return self.by(metric) if self.data_fingerprint in (None, data_fingerprint) else {}


class ScoreFolder(WorkFolder):
    """The files of one score, by name."""

    work, done, depth = "score", "made", 3

    settings_file = Inside("config.json")
    """The score's configuration."""

    @property
    def run(self) -> RunFolder:
        """The scored run."""
        return RunFolder(self.path.parent.parent)

    def write_settings(self, config: ScoreConfig) -> None:
        """Write the configuration once."""
        if not is_there(self.settings_file):
            write_atomically(self.settings_file, config.model_dump_json(indent=1, exclude_none=True).encode() + b"\n")

    def file_score(self, record: ScoreRecord) -> bool:
        """Link the record into place; False if one exists, which stays."""
        return file_once(self.record_file, record)

    def score(self) -> ScoreRecord | None:
        """Return the record, None until the score has ended."""
        return self.read_as(self.record_file, ScoreRecord, _SCORE_AGAIN)


class BaselineFolder(WorkFolder):
    """The files beside a task's baselines: a log."""

    work, done, depth = "baselines", "made", 1

    @property
    def log_file(self) -> Path:  # type: ignore[override]
        """The output of its processes."""
        return self.path.with_name(f"{self.path.name}.txt")

    @property
    def sweep(self) -> SweepFolder:
        """The sweep of its task."""
        return SweepFolder(self.path.parent.parent)


def score_folder(run: RunFolder, score_id: str) -> ScoreFolder:
    """Return the folder of one score of a run."""
    return ScoreFolder(run.scores / score_id)


def scores_of(run: RunFolder) -> list[ScoreRecord]:
    """Return a run's ended scores by id; raises InputError if one cannot be read."""
    ended = (score_folder(run, name).score() for name in run.names(run.scores))
    return [record for record in ended if record is not None]


def file_baseline(folder: SweepFolder, record: BaselineRecord) -> None:
    """Keep the baselines of a task."""
    write_atomically(_baseline_file(folder, record.task, record.task_fingerprint), record.model_dump_json(indent=1).encode())


def baseline(folder: SweepFolder, task: str, task_fingerprint: str) -> BaselineRecord | None:
    """Return the baselines of a task, None if missing."""
    file = _baseline_file(folder, task, task_fingerprint)
    return parsed(content_of(file), str(file), BaselineRecord, _SCORE_AGAIN)


def readable_scores(runs: Iterable[RunFolder]) -> list[ScoreRecord]:
    """Return the ended scores of runs; logs unreadable ones."""
    folders = (score_folder(run, name) for run in runs for name in run.names(run.scores))
    ended, problems = map_readable(ScoreFolder.score, folders)
    warn_of(problems)
    return [record for record in ended if record is not None]


def scores_in(folder: SweepFolder) -> pd.DataFrame:
    """Return the table of `scores` of a sweep."""
    return scores(readable_scores(folder.runs()))


def write_scores(folder: SweepFolder) -> pd.DataFrame:
    """Rebuild `scores.parquet` and `scores.csv`; returns the table."""
    table = scores_in(folder)
    write_table(folder.scores_file, table)
    return table


def series(scores: pd.DataFrame) -> pd.Series[str]:
    """Return the series of each row of `scores`; only scores of one series compare.

    Named by task, frozen features, and knobs or examples if they differ under one name.
    """
    import numpy as np

    names = scores["task"] + np.where(scores["update"] == "head", FROZEN, "")
    for column, words in (("knobs", scores["knobs"]), ("task_fingerprint", scores["task_fingerprint"].str[:6])):
        several = scores.groupby(names)[column].transform("nunique") > 1
        names = names.mask(several & (words != ""), names + " (" + words + ")")
    return names


def with_series(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `scores` of trained encoders, with their `series`."""
    trained = scores[scores["protocol"] != "random_init"]
    return trained.assign(series=series(trained) if len(trained) else "")


def scores_by_run(folder: SweepFolder) -> dict[str, dict[str, float]]:
    """Return each run's metrics, means over seeds, named `downstream/<series>/<metric>`.

    Read from `scores.parquet` as last written; empty without one. Raises InputError if it is damaged.
    """
    if not is_there(folder.scores_file):
        return {}
    table = with_series(read_parquet(folder.scores_file, "`study report` writes it from the records"))
    metrics = [name for name in map(str, table) if name.startswith(_TEST)]
    means = table.groupby(["run_id", "series"], as_index=False)[metrics].mean()
    by_run: dict[str, dict[str, float]] = {}
    for row in means.to_dict("records"):
        known = {name: float(row[name]) for name in metrics if not math.isnan(row[name])}
        names = {f"{DOWNSTREAM}{row['series']}/{name.removeprefix(_TEST)}": value for name, value in known.items()}
        by_run.setdefault(str(row["run_id"]), {}).update(names)
    return by_run


def scores(records: Iterable[ScoreRecord]) -> pd.DataFrame:
    """One row for each completed score at its chosen knobs.

    Scores that differ only in learning rate, batch, epochs and seed compete, and `chosen` decides. Columns: `run_id`,
    `encoder`, `sweep`, `task`, `kind`, `protocol`, `update`, `seed`, the tuned knobs, `knobs` (other unusual ones, in words),
    the `precision` used, `metric`, `dev`, `test`, `dev/<metric>` and `test/<metric>` for each metric, `chosen_on`,
    `reported_on`, examples, how many were cut, `lost_share` if known, `tokens_per_second`, and with teachers `train_flops` and
    `spent_flops`. A row of random weights has the id of the run above it; join it to others by `architecture`. Scores with one
    `score_id` are one score, under any number of runs.
    """
    import pandas as pd

    distinct: dict[str, ScoreRecord] = {}
    for record in records:
        distinct.setdefault(record.score_id, record)
    groups = grouped(distinct.values(), lambda record: record.config.tuned_with())
    rows = [_row(record) for group in groups.values() for record in chosen(group)]
    columns = ["task", "protocol", "run_id", "seed"]
    return pd.DataFrame(rows).sort_values(columns, ignore_index=True) if rows else pd.DataFrame(columns=columns)


def chosen(group: list[ScoreRecord]) -> list[ScoreRecord]:
    """Return one encoder's completed records of a task at the knobs ranked best on dev.

    A diverged score ranks last; other failures do not count. Nothing is chosen if none completed at the grid's seeds.
    """
    tried = sorted(map(_tried, group), key=lambda one: one.values)  # ties go to the smallest knobs
    best = best_values(tried)
    return [record for record in group if _tried(record).loss is not None and tuned_values(record.config) == best]


def _tried(record: ScoreRecord) -> Tried[tuple[Any, ...]]:
    """Return a score's result for its knobs; without dev it ranks last."""
    completed = record.state == "COMPLETED" and record.test is not None
    loss = None if not completed else math.inf if record.dev is None else -record.dev
    return Tried(record.config.seed, tuned_values(record.config), loss, completed or record.state == "DIVERGED")


def tuned_values(config: ScoreConfig) -> tuple[Any, ...]:
    """Return the values of the knobs that a grid varies."""
    return tuple(getattr(config.knobs, name) for name in TUNED)


def _row(record: ScoreRecord) -> dict[str, Any]:
    kept = (
        *("score_id", "run_id", "sweep", "kind", "dev", "test", "test_standard_error", "chosen_on", "reported_on"),
        *("train_examples", "dev_examples", "test_examples", "truncated_examples"),
        *("best_epoch", "tokens", "seconds", "tokens_per_second"),
    )
    names = {name: getattr(record, name) for name in kept}
    if record.lost_share is not None:
        names["lost_share"] = record.lost_share
    if record.spent_flops is not None:
        names |= {"train_flops": record.train_flops, "spent_flops": record.spent_flops}
    config = record.config.model_dump(mode="json", exclude={"knobs"})
    knobs = {name: getattr(record.config.knobs, name) for name in TUNED}
    metrics = {f"dev/{name}": value for name, value in record.dev_scores.items()}
    metrics |= {f"{_TEST}{name}": value for name, value in record.test_scores.items()}
    given = {name: value for name, value in record.config.knobs.identity().items() if name not in TUNED}
    rest = {"knobs": describe_knobs(given), "precision": None if record.environment is None else record.environment.precision}
    return names | config | knobs | rest | metrics


def _baseline_file(folder: SweepFolder, task: str, task_fingerprint: str) -> Path:
    return folder.baselines / f"{task}-{task_fingerprint}.json"
