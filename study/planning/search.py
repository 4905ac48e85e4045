"""Free search and pruning by Optuna, in one process, rebuilt from the records at every start."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import product
from statistics import median
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from study.base.errors import InputError
from study.base.quantities import plural
from study.config.knobs import training_key
from study.config.run_config import RunConfig
from study.config.search_spec import Choices, Dimension, Prune
from study.config.sweep import SearchSweep
from study.planning.plan import point_of, points_of, searched_config
from study.store.records import RunRecord
from study.store.run_folder import Orders, RunFolder
from study.store.work_folder import Rows

MOST_LISTED = 10_000
"""A finite space of at most so many points is listed, so that the points not yet tried are known."""

MOST_REPEATS = 100
"""After so many repeated points in a row, the sampler of a larger space has nothing new to try."""

STARTED = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED, TrialState.RUNNING)

Checks = Mapping[int, float]
"""The validation loss of a run at the checks of its search, by number from 1."""


class OptunaSearch:
    """The trials of a search sweep, requested one by one and completed by records."""

    def __init__(self, spec: SearchSweep) -> None:
        self.spec, self.search = spec, spec.search
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            study_name=spec.name,  # by which, and the trial's number, Hyperband draws a bracket
            sampler=_sampler(self.search.sampler, spec.first_seed),
            pruner=_pruner(self.search.prune),
            directions=["minimize"] * len(self.search.objectives),
        )
        self._distributions = {path: distribution_of(dimension) for path, dimension in self.search.space.items()}
        self._pending: dict[str, tuple[optuna.Trial, RunConfig]] = {}
        self._known: set[str] = set()
        self._names: dict[str, str] = {}
        """The key of the first run that was trained so, by `training_key`."""
        self._points = _shuffled(spec) if points_of(spec) <= MOST_LISTED else None
        self._repeats, self._repeats_in_a_row = 0, 0
        self.exhausted: str | None = None
        """Why the search ends before all its trials, in words; None while it does not."""

    def restore(
        self, ended: Iterable[RunRecord], started: Iterable[RunConfig], checked: Callable[[RunConfig], Checks] = lambda _: {}
    ) -> None:
        """Restore earlier trials: ended runs as finished trials, started ones to be requested next.

        `checked` gives the losses a run reported before its end, for pruning. The sampler is seeded by the number of trials:
        its first seed would repeat the first points.
        """
        genetic = self.search.sampler == "nsga2"  # which knows its population by what it noted at each trial
        if not genetic:
            self.study.sampler = RandomSampler()  # draws nothing: replayed trials have their points
        for record in sorted(ended, key=lambda record: (record.finished_at, record.run_id)):
            if genetic or self.search.prune is not None:
                self._replay(record, checked(record.config))
            self.tell(record.config.key, record)
        for config in started:
            if config.key not in self._known:
                self.study.enqueue_trial(self._point(config))
        self.study.sampler = _sampler(self.search.sampler, self.spec.first_seed + len(self.study.get_trials(deepcopy=False)))

    def _replay(self, record: RunRecord, checked: Checks) -> None:
        """Ask for the trial of an ended run and report what it did."""
        self.study.enqueue_trial(self._point(record.config))
        trial = self._ask()
        self._pending[record.config.key] = (trial, record.config)
        for check, loss in checked.items():
            trial.report(loss, check)
            trial.should_prune()

    def report(self, key: str, check: int, loss: float) -> str | None:
        """Report a running run's loss at a check; return why it is to stop there, if so."""
        trial, _ = self._pending[key]
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        if check in frozen.intermediate_values:
            return None
        trial.report(loss, check)
        if not trial.should_prune():
            return None
        assert self.search.prune is not None
        by = self.search.prune.by
        others = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,) if by == "median" else None)
        there = [other.intermediate_values[check] for other in others if check in other.intermediate_values]
        return f"{by}: {loss:.4f} nats, where the median of {len(there)} runs is {median(there):.4f}"

    @property
    def waiting(self) -> int:
        """None: a trial is requested when a slot is free."""
        return 0

    def wanted(self, records: Mapping[str, RunRecord], running: Collection[str], free: int) -> list[RunConfig]:
        """Return the next trials for `free` slots, first those whose run stopped without a record.

        A point that was trained before takes the known outcome and is no trial of its own. An invalid run is a failed trial.
        """
        configs = [config for key, (_, config) in self._pending.items() if key not in running]
        while len(configs) < free and self._started() < self.search.trials and self.exhausted is None:
            trial = self._ask()
            try:
                config = searched_config(self.spec, trial.params)
            except InputError:
                self.study.tell(trial, state=TrialState.FAIL)
                continue
            key = self._names.setdefault(training_key(config), config.key)
            if key in records:
                self.study.tell(trial, *_outcome(self._objectives(records[key])))
                self._ask_for_another()
            elif key in self._pending:
                self.study.tell(trial, state=TrialState.FAIL)
                self._ask_for_another()
            else:
                self._pending[key] = (trial, config)
                self._repeats_in_a_row = 0
                configs.append(config)
        return configs[:free]

    def _ask(self) -> optuna.Trial:
        trial = self.study.ask(self._distributions)
        _ = trial.relative_params  # a point may be given already; nsga2 notes the trial's generation as it draws one
        return trial

    def _ask_for_another(self) -> None:
        """After a repeated point, let an untried point be next, if all are listed."""
        self._repeats += 1
        self._repeats_in_a_row += 1
        if self._points is None:
            if self._repeats_in_a_row >= MOST_REPEATS:
                self._end_early(f"{MOST_REPEATS} points in a row train the same as earlier ones")
        elif (point := next(filter(self._is_new, self._points), None)) is not None:
            self.study.enqueue_trial(point)
        else:
            self._end_early(f"all {plural(int(points_of(self.spec)), 'point')} of its space are tried")

    def _is_new(self, point: dict[str, Any]) -> bool:
        """Whether a point is valid and trains as no other."""
        try:
            return training_key(searched_config(self.spec, point)) not in self._names
        except InputError:
            return False

    def _end_early(self, why: str) -> None:
        self.exhausted = f"The search ends after {plural(len(self._names), 'run')} of {self.search.trials:,} trials: {why}"

    def tell(self, key: str, record: RunRecord) -> None:
        """Report an ended run; a failed one is a failed trial."""
        if key in self._known:
            return
        self._known.add(key)
        self._names.setdefault(training_key(record.config), key)
        values, state = _outcome(self._objectives(record))
        if record.state == "PRUNED":
            state = TrialState.PRUNED
        if (requested := self._pending.pop(key, None)) is not None:
            self.study.tell(requested[0], values, state)
            return
        self.study.add_trial(
            create_trial(params=self._point(record.config), distributions=self._distributions, values=values, state=state)
        )

    def _point(self, config: RunConfig) -> dict[str, Any]:
        point = point_of(self.spec, config)
        assert point is not None, "no run of the search"
        return point

    def _started(self) -> int:
        return len(self.study.get_trials(deepcopy=False, states=STARTED)) - self._repeats

    def _objectives(self, record: RunRecord) -> list[float] | None:
        """Return the values of the objectives, None for an excluded run.

        With several objectives also for a run without word order: its small size would put it on the Pareto front.
        """
        unread = record.reads_order is False and len(self.search.objectives) > 1
        if record.exclusion is not None or unread:
            return None
        return [float(getattr(record, name)) for name in self.search.objectives]


def _shuffled(spec: SearchSweep) -> Iterator[dict[str, Any]]:
    axes = spec.search.space
    points = list(product(*(dimension.values for dimension in axes.values())))
    random.Random(spec.first_seed).shuffle(points)
    return (dict(zip(axes, point, strict=True)) for point in points)


def _sampler(name: str, seed: int) -> BaseSampler:
    samplers = {"tpe": TPESampler, "random": RandomSampler, "nsga2": NSGAIISampler}
    sampler: BaseSampler = samplers[name](seed=seed)
    return sampler


def _pruner(prune: Prune | None) -> BasePruner:
    """Optuna's pruner; a step of a trial is the number of a check."""
    if prune is None:
        return NopPruner()
    if prune.by == "hyperband":
        return HyperbandPruner(min_resource=prune.first_check, max_resource=prune.checks, reduction_factor=3)
    return MedianPruner(n_startup_trials=prune.spared, n_warmup_steps=prune.first_check)


def distribution_of(dimension: Dimension) -> BaseDistribution:
    """Optuna's distribution of a dimension."""
    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.choices)
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log, step=dimension.step or 1)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _outcome(values: list[float] | None) -> tuple[list[float] | None, TrialState]:
    return (None, TrialState.FAIL) if values is None else (values, TrialState.COMPLETE)


Home = Callable[[RunConfig], RunFolder]


class Pruning:
    """Follows the metrics of a search's runs, and writes `prune.json`."""

    def __init__(self, search: OptunaSearch, prune: Prune, home: Home) -> None:
        self.search, self.prune, self._home = search, prune, home
        self._rows: dict[str, Rows] = {}

    def begin(self, config: RunConfig) -> None:
        """Order the validations that are a run's checks."""
        self._home(config).write_orders(Orders(validations=self.prune.checks))

    def look(self, running: Mapping[str, RunConfig]) -> None:
        """Report what the runs logged since, and order those that are pruned to stop."""
        self._rows = {key: rows for key, rows in self._rows.items() if key in running}
        for key, config in running.items():
            run = self._home(config)
            rows = self._rows.setdefault(key, run.rows())
            if rows.rewritten():
                rows = self._rows[key] = run.rows()
            for check, row in checks_in(rows.new(), config, self.prune):
                if run.prune() is None and (why := self.search.report(key, check, row["val/loss"])) is not None:
                    run.write_prune(f"{why}, after {row['trainer/tokens']:,} tokens")


def checked(run: RunFolder, config: RunConfig, prune: Prune) -> Checks:
    """Return the validation losses of a run at its checks."""
    return {check: row["val/loss"] for check, row in checks_in(run.metrics(), config, prune)}


def checks_in(rows: Iterator[dict[str, Any]], config: RunConfig, prune: Prune) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows that are checks, with their numbers."""
    interval = config.check_interval(prune.checks)
    for row in rows:
        step = row["trainer/step"]
        if "val/loss" in row and step % interval == 0 and step < config.steps:
            yield step // interval, row
