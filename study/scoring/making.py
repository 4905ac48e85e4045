"""One score, from its configuration to its record: idempotent, resumable, and ending in a named state."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from study.base.durable_files import patiently
from study.base.errors import InputError
from study.config.score_config import Knobs
from study.scoring.attempt import Scoring
from study.scoring.baselines import baselines
from study.scoring.fine_tuning_trainer import fine_tune, prepare_process
from study.scoring.jobs import BaselineJob, Job
from study.scoring.predictions import test_facts
from study.scoring.pretrained import pretrained, train_text
from study.scoring.probes import probe
from study.scoring.pseudo_likelihood import score_pairs
from study.scoring.subsets import loaded_task, subset
from study.scoring.task_batches import padding_share
from study.scoring.task_inputs import task_inputs
from study.store.records import Ending, timestamp
from study.store.score_records import BaselineRecord, ScoreRecord, baseline, file_baseline
from study.store.sweep_folder import SweepFolder
from study.tasks.examples import TaskData
from study.training.checkpoints import newest_whole_checkpoint, precision_of
from study.training.execution import Execution, environment, peak_memory_bytes
from study.training.filing import failure_of, tidy
from study.training.stopping import Preempted, StopSignal

Facts = dict[str, Any]


def make_baselines(job: BaselineJob) -> None:
    """Make the baselines of a task and file them, beside other metrics of the same examples and text that were measured before.

    Raises InputError where the examples, or the text that words of minimal pairs are counted in, are others by now.
    """
    sweep, task = SweepFolder(job.sweep), _planned_task(job.task, job.data, job.knobs, job.fingerprint)
    run = pretrained(job.run)
    text = run.prepared.fingerprint if task.spec.kind == "minimal_pairs" else None
    found = baselines(task, lambda: train_text(run))
    before = baseline(sweep, job.name, job.fingerprint)
    known = before.scores if before is not None and before.data_fingerprint == text else {}
    record = BaselineRecord(
        task=job.name,
        task_fingerprint=job.fingerprint,
        data_fingerprint=text,
        metric=task.spec.headline,
        reported_on="test",
        scores={name: known.get(name, {}) | scores for name, scores in found.items()},
    )
    file_baseline(sweep, record)


def _planned_task(name: str, data: Path | None, knobs: Knobs, fingerprint: str) -> TaskData:
    """A task with the examples that a score was planned on; raises InputError where they are others by now."""
    task = subset(loaded_task(name, data), knobs)
    if task.fingerprint != fingerprint:
        raise InputError.at(name, "has other examples than when it was planned; bring them back, or score what is there anew")
    return task


def score(job: Job, execution: Execution, stop: StopSignal) -> Ending:
    """Make a score and file its record; returns how it ended.

    A score that has its record is not made again, a half-done fine-tuning resumes. Whatever goes wrong, also with reading the
    task or the encoder, ends in a record with the reason, but for PREEMPTED, which leaves none.
    """
    folder, run = job.folder, pretrained(job.run)
    if (record := folder.score()) is not None:
        return record.state
    prepare_process(execution.threads)
    if execution.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    folder.write_settings(job.config)
    started = timestamp()
    attempt = folder.claim_attempt({"pid": os.getpid(), "hostname": platform.node(), "started_at": started})
    checkpoint = newest_whole_checkpoint(folder.checkpoints)
    precision = precision_of(job.config.knobs.precision, checkpoint, execution.device)
    scoring = Scoring(job.config, run, folder, execution, precision, checkpoint, stop)
    state, reason, facts = _attempt(lambda: _found(job, scoring))
    if state == "PREEMPTED":
        return state
    made = ScoreRecord(
        score_id=job.score_id,
        run_id=run.run_id,
        sweep=job.sweep,
        config=job.config,
        kind=job.kind,
        state=state,
        reason=reason,
        reported_on="test",
        attempts=attempt,
        started_at=started,
        finished_at=timestamp(),
        environment=environment(execution, precision),
        peak_memory_bytes=peak_memory_bytes(execution),
        **facts,
    )
    patiently(lambda: folder.file_score(made), check=folder.attempt_file(attempt).stat)  # a write would make the folder anew
    tidy(folder, state)
    return state


def _attempt(found: Callable[[], Facts]) -> tuple[Ending, str | None, Facts]:
    """How an attempt ended, why where it failed, and what it found."""
    try:
        return "COMPLETED", None, found()
    except Preempted:
        return "PREEMPTED", None, {}
    except InputError as error:
        return "FAILED", str(error), {}
    except Exception as error:
        outcome = failure_of(error)
        return outcome.state, outcome.reason, {}


def _found(job: Job, scoring: Scoring) -> Facts:
    """What the protocol of a score finds, and what it finds it on."""
    config = job.config
    task = _planned_task(job.task, job.data, config.knobs, config.task_fingerprint)
    shared: Facts = {f"{split}_examples": len(examples) for split, examples in task.splits.items()}
    shared |= {"chosen_on": "dev" if "dev" in task.splits else None}
    if config.update == "none":
        return shared | score_pairs(scoring, task)
    data = task_inputs(task, scoring.run, config.knobs)
    shared |= {"segments": data.segments, "truncated_examples": data.truncated}
    if config.update == "head" and task.spec.kind != "spans":
        return shared | probe(scoring, data)
    tuned = fine_tune(scoring, data)
    module = tuned.module
    steps = min(module.steps, module.validated_step)
    train = data.splits["train"].tokens.lengths
    return (
        shared
        | test_facts(task, tuned.test_predictions)
        | {
            "dev_scores": module.best["scores"],
            "best_epoch": module.best["epoch"],
            "epochs": steps // module.steps_per_epoch,
            "steps": steps,
            "tokens": module.tokens_done,
            "seconds": tuned.seconds,
            "tokens_per_second": module.tokens_done / module.seconds_training,
            "padding_share": padding_share(train, [module.order.at(step) for step in range(module.steps_per_epoch)]),
        }
    )
