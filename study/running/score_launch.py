"""From a sweep's runs to the table of their scores, by the engine that trains runs."""

from __future__ import annotations

from rich.console import Console

from study.base.durable_files import require_links
from study.base.terminal import say
from study.config.resources import Resources
from study.config.score_config import Downstream
from study.executing.executors import make_slots
from study.running.display import execute_all
from study.running.score_proposer import ScoreProposer
from study.running.shutdown import preparing
from study.scoring.evaluations import missing_baselines
from study.scoring.targets import Scored, Target, evaluations_of, label_runs, require_weights, runs_in_answer
from study.scoring.targets import target as find_target
from study.store.locks import held
from study.store.score_records import scores_of, write_scores
from study.store.sweep_folder import SweepFolder


def score_runs(target: Target, downstream: Downstream, resources: Resources, console: Console) -> Scored:
    """Make every requested score that does not exist, with progress, and write the table of all scores.

    Raises InputError for bad input before anything is trained, and KeyboardInterrupt when stopped, after saving.
    """
    sweep, resources = target.sweep, resources.for_scores
    require_links(sweep.path, "copy the sweep to another folder, and score it there")
    with held(sweep.scoring):
        with preparing(sweep.scoring.stop_file):
            evaluations = evaluations_of(target, downstream)
            scores = ScoreProposer(sweep, evaluations, missing_baselines(sweep, evaluations), label_runs(target))
            missing = scores.missing()
            encoders = {job.folder.run.run_id: job.folder.run for job in missing if job.config.protocol != "random_init"}
            require_weights(encoders.values())
            slots = make_slots(resources, len(missing))
        for note in dict.fromkeys(note for evaluation in evaluations for note in evaluation.task.notes):
            say(console, note)
        try:
            execute_all(sweep, scores, resources, slots, console)
        finally:
            if any(scores_of(run.folder) for run in target.runs):
                write_scores(sweep)
    return Scored(target, tuple(evaluations), scores.failed_baselines)


def score_sweep(sweep: SweepFolder, downstream: Downstream, resources: Resources, console: Console) -> Scored | None:
    """Score the runs that a sweep's answer uses; None where it uses none."""
    return score_runs(find_target(sweep.path), downstream, resources, console) if runs_in_answer(sweep) else None
