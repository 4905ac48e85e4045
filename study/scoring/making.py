"""One score, from its configuration to its record: idempotent, resumable, ending in a named state."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from study.base.durable_files import retry_write
from study.base.errors import InputError
from study.config.score_config import ScoreConfig
from study.scoring.baselines import baselines
from study.scoring.fine_tuning import fine_tune, prepare_process
from study.scoring.predictions import test_facts
from study.scoring.pretrained import pretrained, train_text
from study.scoring.probes import probe
from study.scoring.pseudo_likelihood import score_pairs
from study.scoring.scored_examples import PlannedTask
from study.scoring.task_inputs import ScoreAttempt, padding_share, task_inputs
from study.store.ownership import Attempt, Fenced
from study.store.records import Ending, State, timestamp
from study.store.run_folder import RunFolder
from study.store.score_records import BaselineRecord, ScoreFolder, ScoreRecord, baseline, file_baseline
from study.store.sweep_folder import SweepFolder
from study.training.attempts import Preempted, StopSignal, in_attempt
from study.training.callbacks import Watchdog
from study.training.checkpoints import newest_whole_checkpoint, precision_of, resumed
from study.training.execution import Execution, environment, forget_peak_memory, peak_memory_bytes, release_models
from study.training.run import failure_of, tidy

Facts = dict[str, Any]


def make_baselines(planned: PlannedTask, run: RunFolder, sweep: SweepFolder, threads: int) -> None:
    """Make and file the baselines of a task, beside other metrics of the same examples and text.

    Raises InputError where the examples or the text have changed.
    """
    prepare_process(threads)
    task, encoder = planned.read(), pretrained(run.path)
    text = encoder.prepared.fingerprint if task.spec.kind == "minimal_pairs" else None
    measured = baselines(task, lambda: train_text(encoder))
    before = baseline(sweep, planned.name, planned.fingerprint)
    known = before.scores if before is not None and before.data_fingerprint == text else {}
    record = BaselineRecord(
        task=planned.name,
        task_fingerprint=planned.fingerprint,
        data_fingerprint=text,
        metric=task.spec.headline,
        reported_on="test",
        scores={name: known.get(name, {}) | scores for name, scores in measured.items()},
    )
    file_baseline(sweep, record)


def score(
    config: ScoreConfig, planned: PlannedTask, folder: ScoreFolder, sweep: str, execution: Execution, stop: StopSignal
) -> Ending:
    """Make a score and file its record; returns how it ended.

    A score with a record is not made again, a partial fine-tuning resumes. Every failure ends in a record with the reason.
    PREEMPTED leaves none: the score was stopped, or another process owns it.
    """

    def begin() -> Ending | None:
        if (record := folder.score()) is not None:
            return record.state
        forget_peak_memory(execution)
        folder.write_settings(config)
        return None

    try:
        return in_attempt(folder, begin, partial(_attempted, config, planned, folder, sweep, execution, stop))
    finally:
        release_models(execution.device)


def _attempted(
    config: ScoreConfig,
    planned: PlannedTask,
    folder: ScoreFolder,
    sweep: str,
    execution: Execution,
    stop: StopSignal,
    attempt: Attempt,
) -> Ending:
    """One attempt at a score; raises Fenced where another owns it."""
    checkpoint = newest_whole_checkpoint(folder.checkpoints)
    precision = precision_of(config.knobs.precision, checkpoint, execution.device)
    execution = resumed(execution, checkpoint)
    prepare_process(execution.threads)

    def file(state: State, reason: str | None, facts: Facts) -> None:
        record = ScoreRecord(
            score_id=folder.path.name,
            run_id=folder.run.run_id,
            sweep=sweep,
            config=config,
            kind=planned.kind,
            state=state,
            reason=reason,
            reported_on="test",
            attempts=attempt.number,
            started_at=attempt.started_at,
            finished_at=timestamp(),
            environment=environment(execution, precision),
            peak_memory_bytes=peak_memory_bytes(execution),
            **facts,
        )
        retry_write(lambda: folder.file_score(record), check=attempt.check)
        tidy(folder, state)

    def give_up(reason: str) -> None:
        """From the watchdog's thread: the main one does not come back."""
        try:
            file("HUNG", reason, {})
        finally:
            os._exit(1)

    watchdog, encoder = Watchdog(execution.hang_seconds, give_up), pretrained(folder.run.path)
    scoring = ScoreAttempt(config, encoder, folder, execution, precision, checkpoint, stop, attempt.check, watchdog)
    state, reason, facts = _ending(lambda: _facts(planned, scoring))
    if state != "PREEMPTED":
        file(state, reason, facts)
    return state


def _ending(make: Callable[[], Facts]) -> tuple[Ending, str | None, Facts]:
    try:
        return "COMPLETED", None, make()
    except Preempted:
        return "PREEMPTED", None, {}
    except Fenced:
        raise
    except InputError as error:
        return "FAILED", str(error), {}
    except Exception as error:
        outcome = failure_of(error)
        return outcome.state, outcome.reason, {}


def _facts(planned: PlannedTask, scoring: ScoreAttempt) -> Facts:
    config, task = scoring.config, planned.read()
    shared: Facts = {f"{split}_examples": len(examples) for split, examples in task.splits.items()}
    shared |= {"chosen_on": "dev" if "dev" in task.splits else None}
    if config.update == "none":
        return shared | score_pairs(scoring, task)
    data = task_inputs(task, scoring.run, config.knobs)
    shared |= {"segments": data.segments, "truncated_examples": data.truncated, "lost_share": data.lost_share}
    if config.update == "head" and task.spec.kind != "spans":
        return shared | probe(scoring, data)
    tuned = fine_tune(scoring, data)
    module = tuned.module
    steps = min(module.steps, module.validated_step)
    batches = [module.rows_at(step) for step in range(module.steps_per_epoch)]
    lengths = data.splits[batches[0][0]].tokens.lengths
    return (
        shared
        | test_facts(task, tuned.test_predictions)
        | {
            "dev_scores": module.best["scores"],
            "best_epoch": module.best["epoch"],
            "epochs": steps // module.steps_per_epoch,
            "steps": steps,
            "tokens": module.tokens_done,
            "train_flops": tuned.train_flops,
            "spent_flops": tuned.spent_flops,
            "seconds": tuned.seconds,
            "tokens_per_second": module.tokens_done / module.seconds_training,
            "padding_share": padding_share(lengths, [rows for _, rows in batches]),
        }
    )
