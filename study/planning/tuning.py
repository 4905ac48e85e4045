"""The search for a cell's best value of a knob: Optuna keeps the trials, bracketing names the next ones.

A model of the loss, as TPE fits one, needs more than three to six trials. The loss has one valley in the logarithm of a rate,
near that of a cell of similar shape or budget. So three values around that best are tried, then outwards as long as the loss
falls, until worse values lie on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

KNOB = "index"
"""The one parameter of a study: the index of a value on its line, 0 being the value below the range."""

AT_ONCE = 3
"""So many trials around the start are requested at once."""


@dataclass(frozen=True)
class Line:
    """The values of a knob in order: one below the range, the range, one above it; None where no run can have it.

    `start` is the index to begin at, inside the range. An index outside the range is tried once, on one side only.
    """

    values: tuple[float | None, ...]
    start: int

    @property
    def inside(self) -> range:
        """The indices of the range."""
        return range(1, len(self.values) - 1)


class Bracketing(BaseSampler):
    """An Optuna sampler that names the next index on a line, by the study's trials."""

    def __init__(self, line: Line) -> None:
        self.line = line

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Nothing: there is one knob."""
        del study, trial
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing: there is one knob."""
        del study, trial, search_space
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the next index; `next_index` says first whether there is one."""
        del trial, param_name, param_distribution
        index = self.next_index(study)
        assert index is not None, "the search is over"
        return float(index)

    def next_index(self, study: optuna.Study) -> int | None:
        """Return the next index to try; None where the best has a worse one on both sides, or the line ends.

        While nothing is usable it is the nearest to the start, the lower first.
        """
        losses = _losses(study)
        best = min(losses, key=lambda index: (losses[index], index)) if losses else self.line.start
        if not losses or losses[best] == math.inf:
            untried = [index for index in self.line.inside if index not in losses]
            return min(untried, key=lambda index: (abs(index - self.line.start), index), default=None)
        for index in (best - 1, best + 1):
            if index not in losses and self._may_try(index, losses):
                return index
        return None

    def _may_try(self, index: int, losses: Mapping[int, float]) -> bool:
        outside = (0, len(self.line.values) - 1)
        if index not in outside:
            return index in self.line.inside
        return self.line.values[index] is not None and not any(other in losses for other in outside)


@lru_cache(maxsize=4096)
def next_indices(line: Line, known: tuple[tuple[int, float | None], ...]) -> tuple[int, ...]:
    """Return the indices that a search on a line needs next, given the losses `known` by index (None: no usable loss).

    The search is replayed from its start and so depends on the losses alone. Known losses that it did not ask for are added
    once it is over, and it goes on from them.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    losses, sampler = dict(known), Bracketing(line)
    study = optuna.create_study(sampler=sampler)
    space: dict[str, BaseDistribution] = {KNOB: FloatDistribution(0, len(line.values) - 1)}
    for index in _first(line):
        study.enqueue_trial({KNOB: float(index)})
    if missing := _replay(study, space, losses, len(_first(line))):
        return missing
    while True:
        while sampler.next_index(study) is not None:
            if missing := _replay(study, space, losses, 1):
                return missing
        unasked = [index for index in losses if index not in _losses(study)]
        if not unasked:
            return ()
        for index in unasked:
            state, value = _outcome(losses[index])
            study.add_trial(create_trial(params={KNOB: float(index)}, distributions=space, value=value, state=state))


def start_near(values: Sequence[float], best: float | None) -> int:
    """Return the index, from 1, of the value nearest to another cell's best, by default the middle."""
    if best is None:
        return (len(values) + 1) // 2
    return 1 + min(range(len(values)), key=lambda index: abs(math.log(values[index] / best)))


def _first(line: Line) -> list[int]:
    return sorted(sorted(line.inside, key=lambda index: abs(index - line.start))[:AT_ONCE])


def _replay(
    study: optuna.Study, space: dict[str, BaseDistribution], losses: Mapping[int, float | None], count: int
) -> tuple[int, ...]:
    """Ask for so many trials and complete them; those whose loss is unknown."""
    missing = []
    for _ in range(count):
        trial = study.ask(space)
        index = round(trial.params[KNOB])
        if index in losses:
            state, value = _outcome(losses[index])
            study.tell(trial, value, state)
        else:
            missing.append(index)
    return tuple(missing)


def _outcome(loss: float | None) -> tuple[TrialState, float | None]:
    return (TrialState.FAIL, None) if loss is None else (TrialState.COMPLETE, loss)


def _losses(study: optuna.Study) -> dict[int, float]:
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
    return {round(trial.params[KNOB]): math.inf if trial.value is None else trial.value for trial in ended}
