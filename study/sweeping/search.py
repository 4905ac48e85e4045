"""Free search by Optuna, in one process: it decides what to try next and is rebuilt from the records at every start."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from study.config import RunConfig
from study.errors import InputError
from study.records import RunRecord
from study.schema import flatten
from study.sweeping.plan import key_of, searched_config
from study.sweeping.spec import Dimension, SweepSpec


class OptunaSearch:
    """The trials of a search sweep: asked for one by one, told by records."""

    def __init__(self, spec: SweepSpec) -> None:
        assert spec.search is not None
        self.spec, self.search = spec, spec.search
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            sampler=_sampler(self.search.sampler, spec.first_seed), directions=["minimize"] * len(self.search.objectives)
        )
        self._distributions = {path: _distribution(dimension) for path, dimension in self.search.space.items()}
        self._asked: dict[str, tuple[optuna.Trial, RunConfig]] = {}
        self._known: set[str] = set()

    def restore(self, ended: Iterable[RunRecord], begun: Iterable[RunConfig]) -> None:
        """Take up what earlier starts tried: ended runs as finished trials, begun ones as the next to be asked.

        The sampler is seeded anew by how many there are; with its first seed it would draw the points of the first start again.
        """
        for record in sorted(ended, key=lambda record: (record.finished_at, record.run_id)):
            if self._point(record.config) is not None:
                self.tell(record)
        for config in begun:
            point = self._point(config)
            if point is not None and key_of(config) not in self._known:
                self.study.enqueue_trial(point)
        self.study.sampler = _sampler(self.search.sampler, self.spec.first_seed + len(self.study.get_trials(deepcopy=False)))

    @property
    def waiting(self) -> int:
        """None: a trial is asked for when there is a slot for it."""
        return 0

    def wanted(self, records: Mapping[str, RunRecord], running: Collection[str], free: int) -> list[RunConfig]:
        """The next trials for `free` slots, those whose run stopped without a record first.

        A point that was tried before is told its known outcome and not run again, one that is no valid run is told as failed.
        """
        configs = [config for key, (_, config) in self._asked.items() if key not in running]
        while len(configs) < free and self._begun() < self.search.trials:
            trial = self.study.ask(self._distributions)
            try:
                config = searched_config(self.spec, trial.params)
            except InputError:
                self.study.tell(trial, state=TrialState.FAIL)
                continue
            key = key_of(config)
            if key in records:
                self.study.tell(trial, *_outcome(self._objectives(records[key])))
            elif key in self._asked:
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                self._asked[key] = (trial, config)
                configs.append(config)
        return configs[:free]

    def tell(self, record: RunRecord) -> None:
        """Report an ended run; one that failed is told as failed."""
        key = key_of(record.config)
        if key in self._known:
            return
        self._known.add(key)
        values, state = _outcome(self._objectives(record))
        if (asked := self._asked.pop(key, None)) is not None:
            self.study.tell(asked[0], values, state)
            return
        self.study.add_trial(
            create_trial(params=self._point(record.config), distributions=self._distributions, values=values, state=state)
        )

    def _begun(self) -> int:
        return len(self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING)))

    def _objectives(self, record: RunRecord) -> list[float] | None:
        """The values of the objectives, None where the run is excluded."""
        if record.exclusion is not None:
            return None
        return [float(getattr(record, name)) for name in self.search.objectives]

    def _point(self, config: RunConfig) -> dict[str, Any] | None:
        """Where a run lies in the space, None where it does not."""
        flat = flatten(config.to_dict())
        point = {path: flat.get(path) for path in self.search.space}
        if not all(_holds(distribution, point[path]) for path, distribution in self._distributions.items()):
            return None
        return point if key_of(searched_config(self.spec, point)) == key_of(config) else None


def _sampler(name: str, seed: int) -> BaseSampler:
    samplers = {"tpe": TPESampler, "random": RandomSampler, "nsga2": NSGAIISampler}
    sampler: BaseSampler = samplers[name](seed=seed)
    return sampler


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices is not None:
        return CategoricalDistribution(dimension.choices)
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log, step=dimension.step or 1)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value lies in a dimension."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return isinstance(value, int | float) and distribution._contains(value)


def _outcome(values: list[float] | None) -> tuple[list[float] | None, TrialState]:
    return (None, TrialState.FAIL) if values is None else (values, TrialState.COMPLETE)
