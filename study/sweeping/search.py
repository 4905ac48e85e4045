"""Free search by Optuna, in one process: it decides what to try next and is rebuilt from the records at every start."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from study.config import RunConfig
from study.errors import InputError, Problem
from study.records import RunRecord
from study.schema import flatten
from study.sweeping.plan import key_of, searched_config
from study.sweeping.spec import Dimension, SweepSpec

CHECKED_POINTS = 2000
"""How many points of a space are tried for validity before a search starts."""


class OptunaSearch:
    """The trials of a search sweep: asked for one by one, told by records."""

    def __init__(self, spec: SweepSpec) -> None:
        assert spec.search is not None
        self.spec, self.search = spec, spec.search
        self._check_space()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(
            sampler=_sampler(self.search.sampler, spec.first_seed), directions=["minimize"] * len(self.search.objectives)
        )
        self._asked: dict[str, optuna.Trial] = {}
        self._known: set[str] = set()

    def restore(self, ended: Iterable[RunRecord], begun: Iterable[RunConfig]) -> None:
        """Take up what earlier starts tried: ended runs as finished trials, begun ones as the next to be asked."""
        for record in sorted(ended, key=lambda record: (record.finished_at, record.run_id)):
            if self._point(record.config) is not None:
                self.tell(record)
        for config in begun:
            point = self._point(config)
            if point is not None and key_of(config) not in self._known:
                self.study.enqueue_trial(point)

    def wanted(self, records: Mapping[str, RunRecord], free: int) -> list[RunConfig]:
        """The next trials for `free` slots; a point that was tried before is told its known outcome and not run again."""
        configs: list[RunConfig] = []
        while len(configs) < free and self._begun() < self.search.trials:
            trial = self.study.ask(_distributions(self.search.space))
            config = searched_config(self.spec, trial.params)
            key = key_of(config)
            if key in records:
                self.study.tell(trial, *_outcome(self._objectives(records[key])))
            elif key in self._asked:
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                self._asked[key] = trial
                configs.append(config)
        return configs

    def tell(self, record: RunRecord) -> None:
        """Report an ended run; one that failed is told as failed."""
        key = key_of(record.config)
        if key in self._known:
            return
        self._known.add(key)
        values, state = _outcome(self._objectives(record))
        if (trial := self._asked.pop(key, None)) is not None:
            self.study.tell(trial, values, state)
            return
        distributions = _distributions(self.search.space)
        self.study.add_trial(
            create_trial(params=self._point(record.config), distributions=distributions, values=values, state=state)
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
        for path, distribution in _distributions(self.search.space).items():
            if point[path] is None or not distribution._contains(distribution.to_internal_repr(point[path])):
                return None
        return point if key_of(searched_config(self.spec, point)) == key_of(config) else None

    def _check_space(self) -> None:
        """Raise InputError where points of the space are no valid runs: all of a small space, a fixed sample of a large one."""
        axes = {path: _candidates(dimension) for path, dimension in self.search.space.items()}
        points: Iterable[tuple[Any, ...]] = itertools.product(*axes.values())
        if _size(axes) > CHECKED_POINTS:
            draw = random.Random(0)
            points = [tuple(draw.choice(values) for values in axes.values()) for _ in range(CHECKED_POINTS)]
        problems: dict[str, Problem] = {}
        for values in points:
            try:
                searched_config(self.spec, dict(zip(axes, values, strict=True)))
            except InputError as error:
                for problem in error.problems:
                    problems.setdefault(problem.place, problem)
        if problems:
            raise InputError(problems.values())


def _sampler(name: str, seed: int) -> BaseSampler:
    samplers = {"tpe": TPESampler, "random": RandomSampler, "nsga2": NSGAIISampler}
    sampler: BaseSampler = samplers[name](seed=seed)
    return sampler


def _distributions(space: Mapping[str, Dimension]) -> dict[str, BaseDistribution]:
    return {path: _distribution(dimension) for path, dimension in space.items()}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices is not None:
        return CategoricalDistribution(dimension.choices)
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log, step=dimension.step or 1)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _candidates(dimension: Dimension) -> list[Any]:
    """Values of a dimension worth checking: all choices, all whole numbers, both ends of a range of reals."""
    if dimension.choices is not None:
        return list(dimension.choices)
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.whole:
        return list(range(int(dimension.low), int(dimension.high) + 1, dimension.step or 1))
    return [dimension.low, dimension.high]


def _size(axes: Mapping[str, list[Any]]) -> int:
    size = 1
    for values in axes.values():
        size *= len(values)
    return size


def _outcome(values: list[float] | None) -> tuple[list[float] | None, TrialState]:
    return (None, TrialState.FAIL) if values is None else (values, TrialState.COMPLETE)
