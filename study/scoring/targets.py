"""What is scored: the runs of a folder, and the requested tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem, check_all, map_all, shown
from study.base.grouping import grouped
from study.base.quantities import count_text
from study.base.text import joined
from study.config.resources import Resources
from study.config.run_config import RunConfig
from study.config.score_config import GRID, Downstream
from study.config.tuned_values import Tried, best_values
from study.scoring.evaluations import Evaluation, all_evaluations
from study.scoring.pretrained import Pretrained
from study.scoring.scored_examples import subset
from study.store.records import RunRecord, cell_of, ledger
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.tasks.examples import TaskData
from study.tasks.loading import UNLABELLED, load_task


@dataclass(frozen=True)
class Target:
    """The completed runs to score, and their sweep."""

    sweep: SweepFolder
    runs: tuple[Pretrained, ...]

    @property
    def resources(self) -> Resources:
        """This machine, with the sweep's options for Slurm and Ray jobs."""
        launched = self.sweep.launched()
        requested = (Resources() if launched is None else launched.resources).for_scores
        return Resources(slurm=requested.slurm, ray=requested.ray)


@dataclass(frozen=True)
class Scored:
    """The requested scores that exist now, with a line for each task whose baselines failed."""

    target: Target
    evaluations: tuple[Evaluation, ...]
    failed_baselines: tuple[str, ...]


def target(path: Path) -> Target:
    """Return the run in a folder, or the runs that a sweep's answer uses: with tuning, those of each cell's best knobs.

    Raises InputError without a completed run.
    """
    run = RunFolder(path.resolve())
    if run.is_run:
        record = run.record()
        sweep, completed = SweepFolder.of(run), [run] if record is not None and record.state == "COMPLETED" else []
    else:
        sweep = SweepFolder(path.resolve())
        if not sweep.runs():
            raise InputError.at(
                str(path), "is neither the folder of a run nor that of a sweep with runs, such as results/<sweep>"
            )
        completed = runs_in_answer(sweep)
    if not completed and run.is_run:
        raise InputError.at(str(path), "has no completed run; complete one with study launch")
    if not completed:
        table = ledger(sweep.records(), sweep.tuned(), sweep.cells())
        unused = [] if table.empty else sorted(table[table["state"] == "COMPLETED"]["exclusion"].dropna().unique())
        why = f" ({'; '.join(unused)})" if unused else ""
        remedy = "give the folder of another run, or complete more with study launch"
        raise InputError.at(str(path), f"has no completed run that its answer uses{why}; {remedy}")
    return Target(sweep, tuple(Pretrained(run) for run in completed))


def single_run(path: Path) -> Pretrained:
    """Return the run in a folder, or the only run that a sweep's answer uses.

    Raises InputError as `target` does, and without weights.
    """
    runs = target(path).runs
    if len(runs) > 1:
        raise InputError.at(
            str(path), f"is a sweep with {len(runs)} suitable runs; give the folder of one, such as runs/{runs[0].run_id}"
        )
    require_weights(run.folder for run in runs)
    return runs[0]


def require_weights(runs: Iterable[RunFolder]) -> None:
    """Raise InputError with a line for each run whose weights are gone."""
    problems = [
        Problem(str(run.weights_file), f"does not exist, but the weights are needed; {run.weights_remedy()}")
        for run in runs
        if not is_there(run.weights_file)
    ]
    if problems:
        raise InputError(problems)


def require_texts(runs: Iterable[Pretrained]) -> None:
    """Prepare the text of each run; raise InputError with every problem.

    The tokenisers are trained on it, and baselines count words in it.
    """
    map_all(lambda run: run.prepared, {(run.config.data, run.data_fingerprint): run for run in runs}.values())


def label_runs(requested: Target) -> dict[str, str]:
    """Return a label for each run by id: shape, variant, tokens and seed where they differ, else the id."""
    configs = {run.run_id: run.config for run in requested.runs}
    knobs = requested.sweep.distinguishing_knobs()
    several_budgets = len({config.tokens for config in configs.values()}) > 1
    several_seeds = len({config.seed for config in configs.values()}) > 1

    def name(config: RunConfig) -> str:
        budget = f"{count_text(config.tokens)} tokens" if several_budgets else ""
        seed = f"run seed {config.seed}" if several_seeds else ""
        return " ".join(filter(None, (config.architecture.shape_name, config.variant(knobs), budget, seed)))

    names = {run_id: name(config) for run_id, config in configs.items()}
    shared = {name for name, count in Counter(names.values()).items() if count > 1}
    return {run_id: f"{name} {run_id[:6]}" if name in shared else name for run_id, name in names.items()}


def runs_in_answer(sweep: SweepFolder) -> list[RunFolder]:
    """Return the runs that a sweep's answer uses: at every seed those with the knobs that their cell chose.

    Excluded runs, and runs of cells that the last launch lacks, are left out.
    """
    tuned, planned, requested = sweep.tuned(), sweep.cells(), sweep.trial_seeds()
    cells = grouped(sweep.records(), lambda record: cell_of(record.config, tuned, record.data_fingerprint))
    own = [records for cell, records in cells.items() if not planned or cell in planned]
    return [sweep.run(record.run_id) for records in own for record in _at_best_knobs(records, tuned, requested)]


def _at_best_knobs(records: list[RunRecord], tuned: tuple[str, ...], requested: Collection[int]) -> list[RunRecord]:
    """Return a cell's usable records at its best knobs."""

    def tried(record: RunRecord) -> Tried[tuple[Any, ...]]:
        values = tuple(record.config.values_of(tuned).values())
        return Tried(record.config.seed, values, record.usable_loss_nats, record.is_informative)

    trials = [*map(tried, records)]
    best = best_values(trials, requested)
    chosen = [record for record, one in zip(records, trials, strict=True) if one.values == best and one.loss is not None]
    return chosen + [record for record in records if record.untrained_head and record.excluded is None]


def load_tasks(downstream: Downstream) -> dict[str, TaskData]:
    """Return the requested tasks by name; raises InputError with every problem."""
    data, names = downstream.data_folder, downstream.tasks

    def loaded(number: int) -> TaskData:
        return subset(load_task(names[number], data, f"downstream.tasks[{number}]"), downstream.knobs)

    tasks = dict(zip(names, map_all(loaded, range(len(names))), strict=True))
    for name, files in grouped(names, lambda one: tasks[one].spec.name).items():
        if len({tasks[one].fingerprint for one in files}) > 1:
            message = f"are different tasks of one name, {shown(name)}; give each file its own, as in `name: {name}-2`"
            raise InputError.at("downstream.tasks", f"{joined(files)} {message}")
    if (teacher := downstream.knobs.teacher) is not None:
        _check_teaching(tasks, Path(teacher))
    return tasks


def _check_teaching(tasks: Mapping[str, TaskData], teacher: Path) -> None:
    """Raise InputError where a teacher has not completed, or a task has no unlabelled text."""
    record = RunFolder(teacher).record()
    if record is None or record.state != "COMPLETED":
        raise InputError.at("downstream.knobs.teacher", f"{teacher} is not the folder of a completed run")
    require_weights([RunFolder(teacher)])
    if lacking := [name for name, task in tasks.items() if UNLABELLED not in task.splits]:
        remedy = "name one in its YAML, splits: {unlabelled: …}, or score the task without a teacher"
        raise InputError(
            Problem(f"downstream.tasks {name}", f"has no unlabelled text to teach on; {remedy}") for name in lacking
        )


def check_tasks(downstream: Downstream, planned: Callable[[], Iterable[RunConfig]]) -> None:
    """Raise InputError where tasks cannot be loaded, or need an MLM head that the planned runs lack."""
    pairs = [name for name, task in load_tasks(downstream).items() if task.spec.kind == "minimal_pairs"]
    if pairs and any(run.recipe.detects_replaced for run in planned()):
        without = "reads the MLM head, which runs of objective rtd lack"
        raise InputError(Problem(f"downstream.tasks {name}", f"{without}; leave out the task") for name in pairs)


def evaluations_of(requested: Target, downstream: Downstream) -> list[Evaluation]:
    """Return every run on every requested task; raises InputError with every problem."""
    lengths = [partial(run.max_length, downstream.knobs.max_length) for run in requested.runs]
    evaluations = all_evaluations(
        requested.runs, requested.sweep.name, check_all(partial(load_tasks, downstream), *lengths), downstream
    )
    if (teacher := downstream.knobs.teacher) is not None:  # which reads as many tokens
        map_all(Pretrained(RunFolder(Path(teacher))).max_length, {one.max_length for one in evaluations})
    _check_grid(downstream, evaluations)
    _check_heads(evaluations)
    return evaluations


def _check_heads(evaluations: Sequence[Evaluation]) -> None:
    """Raise InputError where a task needs an MLM head that is not there."""
    why: dict[str, str] = {}
    for run in (one.run for one in evaluations):
        if run.config.recipe.detects_replaced:
            why[run.run_id] = "detects replaced tokens (objective rtd)"
        elif (record := run.folder.record()) and record.untrained_head:
            why[run.run_id] = "was imported without one"
    for one in evaluations:
        if one.protocol == "zero_shot" and one.run.run_id in why:
            without = f"reads the MLM head, and run {one.run.run_id} {why[one.run.run_id]}"
            raise InputError.at(f"downstream.tasks {one.name}", f"{without}; leave out the task, or start a run from it")


def _check_grid(downstream: Downstream, evaluations: Sequence[Evaluation]) -> None:
    """Raise InputError where no task uses the given rates, batches or epochs."""
    if downstream.update == "all" or any(evaluation.trained for evaluation in evaluations):
        return
    if given := [name for name in GRID if name in downstream.model_fields_set]:
        raise InputError.at(f"downstream.{given[0]}", "has no effect on probes (update: head); leave it out, or update all")
