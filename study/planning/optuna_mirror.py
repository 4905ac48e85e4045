"""A copy of a sweep's searches in an Optuna storage, for optuna-dashboard and Optuna's own analyses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from study.base.errors import InputError
from study.base.grouping import grouped
from study.base.quantities import count_text
from study.base.text import at_budget, shape_and_variant
from study.config.sweep import CellSweep, GoalSweep, SearchSweep
from study.planning.plan import point_of
from study.planning.search import distribution_of
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder

MARK = "scaling_study_sweep"
"""The user attribute that says which sweep a study mirrors."""

NOTED = ("state", "reason", "tokens", "parameters", "parameters_non_embedding", "train_flops", "accuracy", "order_gain_nats")
"""The fields of a record that its trial has as user attributes, beside run_id, seed and wall_seconds."""

STATES = {"COMPLETED": TrialState.COMPLETE, "PRUNED": TrialState.PRUNED}
"""The state of a trial by that of its run; all others failed."""


@dataclass(frozen=True)
class MirroredStudies:
    """The studies of a storage that mirror a sweep, the trials in them and new in them, and the runs that are none.

    A run of an earlier launch is no trial if it is outside the space of the search, or has no value for a knob tuned since.
    """

    storage: str
    studies: dict[str, int]
    added: int
    left_out: int


def mirror(folder: SweepFolder, storage: str) -> MirroredStudies:
    """Add the ended runs of a sweep that a storage lacks: one study for a search, or one for each cell that is tuned.

    Each trial has the run's values, validation losses, and facts as user attributes; a retried run is a further trial. Raises
    InputError for a sweep without search or tuned knobs, a storage that cannot be opened, or a study of another origin.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spec, records = folder.sweep(), sorted(folder.records(), key=lambda record: (record.finished_at, record.run_id))
    if isinstance(spec, GoalSweep) or (isinstance(spec, CellSweep) and not spec.tune):
        raise InputError.at(str(folder.path), "has neither search nor tune, so Optuna searched nothing")
    if "://" not in storage:
        raise InputError.at("--storage", f"{storage!r} is not the URL of a database; write sqlite:///study.db")
    objectives = spec.search.objectives if isinstance(spec, SearchSweep) else ("loss_nats",)
    trials_of = [record for record in records if _is_trial(spec, record)]
    studies = {name: _trials(folder, spec, members, objectives) for name, members in _members(spec, trials_of).items()}
    try:
        opened = optuna.storages.get_storage(storage)
        added = sum(_add(opened, spec.name, name, trials, len(objectives)) for name, trials in studies.items())
    except (SQLAlchemyError, ImportError) as error:
        raise InputError.at("--storage", f"{storage!r} cannot be opened: {str(error).splitlines()[0]}") from None
    return MirroredStudies(
        storage, {name: len(trials) for name, trials in studies.items()}, added, len(records) - len(trials_of)
    )


def _is_trial(spec: CellSweep | SearchSweep, record: RunRecord) -> bool:
    if isinstance(spec, SearchSweep):
        return point_of(spec, record.config) is not None
    return all(value is not None and value > 0 for value in record.config.values_of(spec.tune).values())


def _members(spec: CellSweep | SearchSweep, records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    if isinstance(spec, SearchSweep):
        return {spec.name: [*records]}
    cells = grouped(records, lambda record: record.config.identity(but=(*spec.tune, "seed")))
    return {_name(spec, members[0]): members for members in cells.values()}


def _name(spec: CellSweep, record: RunRecord) -> str:
    """Return a cell's name in the sweep, as norm: L2-H64-A2-F256 (norm=pre) at 200k tokens."""
    config = record.config
    cell = shape_and_variant(config.architecture.shape_name, config.variant(spec.vary))
    budget = config.recipe.budget
    return f"{spec.name}: {at_budget(cell, f'{count_text(budget.amount)} {budget.unit}')}"


def _trials(
    folder: SweepFolder, spec: CellSweep | SearchSweep, records: Iterable[RunRecord], objectives: Iterable[str]
) -> list[FrozenTrial]:
    """Return the trials of a study, on ranges that hold every value tried."""
    points = [(record, _point(spec, record)) for record in records]
    if isinstance(spec, SearchSweep):
        space = {path: distribution_of(dimension) for path, dimension in spec.search.space.items()}
    else:
        space = {path: _range([*tuned.line(), *(point[path] for _, point in points)]) for path, tuned in spec.tune.items()}
    return [_trial(folder, record, point, space, objectives) for record, point in points]


def _point(spec: CellSweep | SearchSweep, record: RunRecord) -> dict[str, Any]:
    if isinstance(spec, CellSweep):
        return record.config.values_of(spec.tune)
    point = point_of(spec, record.config)
    assert point is not None, "a study has only runs of its space"
    return point


def _range(values: list[float]) -> BaseDistribution:
    return FloatDistribution(min(values), max(values), log=True)


def _trial(
    folder: SweepFolder,
    record: RunRecord,
    point: Mapping[str, Any],
    space: dict[str, BaseDistribution],
    objectives: Iterable[str],
) -> FrozenTrial:
    run = folder.run(record.run_id)
    losses = {row["trainer/step"]: row["val/loss"] for row in run.metrics() if "val/loss" in row}
    state = TrialState.FAIL if record.excluded else STATES.get(record.state, TrialState.FAIL)
    facts = {name: value for name in (*NOTED, "wall_seconds") if (value := getattr(record, name)) is not None}
    trial = create_trial(
        state=state,
        values=[float(getattr(record, name)) for name in objectives] if state == TrialState.COMPLETE else None,
        params=dict(point),
        distributions=space,
        user_attrs={"run_id": record.run_id, "seed": record.config.seed, "finished_at": record.finished_at, **facts},
        intermediate_values=losses,
    )
    trial.datetime_start, trial.datetime_complete = _local(record.started_at), _local(record.finished_at)
    return trial


def _local(moment: str) -> datetime:
    """Return a moment in local time without a zone, as Optuna keeps it."""
    return datetime.fromisoformat(moment).astimezone().replace(tzinfo=None)


def _add(storage: optuna.storages.BaseStorage, sweep: str, name: str, trials: list[FrozenTrial], objectives: int) -> int:
    """Add the trials that a study lacks; return how many. Raises InputError where the study is no mirror."""
    directions = [StudyDirection.MINIMIZE] * objectives
    study = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
    if study.user_attrs.get(MARK, None if study.get_trials(deepcopy=False) else sweep) != sweep:
        raise InputError.at("--storage", f"has a study {name!r} that does not mirror this sweep; give another database")
    study.set_user_attr(MARK, sweep)
    known = {_attempt(trial) for trial in study.get_trials(deepcopy=False)}
    new = [trial for trial in trials if _attempt(trial) not in known]
    study.add_trials(new)
    return len(new)


def _attempt(trial: FrozenTrial) -> tuple[str, str]:
    return trial.user_attrs["run_id"], trial.user_attrs["finished_at"]
