"""The scores of runs from what is asked for to their table: one coordinator, one executor."""

from __future__ import annotations

from rich.console import Console

from study.base.durable_files import require_links
from study.base.terminal import say
from study.config.resources import Resources
from study.config.score_config import Downstream
from study.executing.executors import make_executor, make_slots
from study.running.coordinator import Coordinator
from study.running.display import score_display
from study.running.score_proposer import ScoreProposer
from study.running.shutdown import preparing
from study.scoring.evaluations import missing_baselines
from study.scoring.targets import Scored, Target, evaluations_of, label_runs, require_weights, runs_in_answer, target
from study.store.locks import held
from study.store.score_records import scores_of, write_scores
from study.store.sweep_folder import SweepFolder


def score_runs(asked: Target, downstream: Downstream, resources: Resources, console: Console) -> Scored:
    """Make every score that is asked for and not there yet, showing progress, and write the table of all scores.

    Raises InputError for bad input before anything is trained, and KeyboardInterrupt when stopped, after saving.
    """
    resources = resources.for_scores
    require_links(asked.sweep.path, "copy the sweep to another folder, and score it there")
    with held(asked.sweep.scoring):
        with preparing(asked.sweep.scoring.stop_file):
            found = evaluations_of(asked, downstream)
            scores = ScoreProposer(asked.sweep, found, missing_baselines(asked.sweep, found))
            missing = scores.missing()
            encoders = {job.folder.run.run_id: job.folder.run for job in missing if job.config.protocol != "random_init"}
            require_weights(encoders.values())
            slots = make_slots(resources, len(missing))
        for note in dict.fromkeys(note for subject in found for note in subject.task.notes):
            say(console, note)
        display = score_display(console, label_runs(asked))
        try:
            with display.bars:
                Coordinator(asked.sweep, scores).run(make_executor(resources, slots, asked.sweep), display.refresh)
        finally:
            if any(scores_of(run.folder) for run in asked.runs):
                write_scores(asked.sweep)
    return Scored(asked, tuple(found), scores.failed_baselines)


def score_sweep(folder: SweepFolder, downstream: Downstream, resources: Resources, console: Console) -> Scored | None:
    """Score the runs of a sweep that was just launched, where it was; None where its answer uses no run."""
    return score_runs(target(folder.path), downstream, resources, console) if runs_in_answer(folder) else None
