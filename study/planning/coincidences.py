"""Cells that a sweep requests under two names: they train the same and are planned once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from study.base.errors import Problem
from study.base.schema import deep_merge, set_path
from study.config.knobs import GENERATOR_SHARE, IN_STEPS, MASKED_SHARE, MAY_COINCIDE, WINDOWS, training_key, without_effect
from study.config.named_runs import kept_layers, layers_problem
from study.config.run_config import RunConfig, describe_knobs
from study.config.sweep import CellSweep
from study.store.run_folder import PlannedRuns, teacher_architecture

_BUDGETS = "budgets"


@dataclass(frozen=True)
class RequestedCell:
    """A cell as the sweep file requests it: its run at the lowest tuned values, and its values of what is varied."""

    config: RunConfig
    variant: Mapping[str, Any]

    @cached_property
    def axes(self) -> dict[str, object]:
        """What distinguishes it from others of its shape, by key of the file."""
        varied = {f"vary.{knob}": value for knob, value in self.variant.items()}
        budget = self.config.recipe.budget
        return {_BUDGETS: f"{budget.amount:,.15g} {budget.unit}", **varied}

    def differs_from(self, other: RequestedCell) -> list[str]:
        """Return the keys of the file in which two differ."""
        return [place for place, value in self.axes.items() if other.axes[place] != value]

    def name(self, with_budget: bool) -> str:
        """Its variant in words, and its budget."""
        return " ".join(filter(None, (describe_knobs(self.variant), str(self.axes[_BUDGETS]) if with_budget else "")))


def cell_key(config: RunConfig, spec: CellSweep) -> tuple[str, ...]:
    """Return what cells share that train the same runs, at the lowest tuned values and at each knob's highest."""
    values = config.to_dict() if spec.tune else {}
    return training_key(config), *(training_key(_at(values, knob, tuned.high)) for knob, tuned in spec.tune.items())


def _at(values: Mapping[str, Any], knob: str, value: float) -> RunConfig:
    changes: dict[str, Any] = {}
    set_path(changes, knob, value)
    return RunConfig.parse(deep_merge(values, changes))


def with_layers_listed(config: RunConfig, given: int | None, first: PlannedRuns) -> RunConfig:
    """Return the run with the layers that it keeps and matches as lists, as far as known.

    `given` is the depth of its start, if known, and `first` are the runs that the sweep trains first, by id.
    """
    listed, depth, recipe = {}, config.architecture.depth, config.recipe
    start = recipe.init_from
    if start is not None and given is not None and not layers_problem(given, depth, start.keep):
        listed["start"] = f"{start.folder}:{','.join(map(str, kept_layers(given, depth, start.keep)))}"
    teacher, taught_by = recipe.teacher_run, teacher_architecture(config, first)
    if teacher is not None and taught_by is not None and teacher.losses.layers != "last":
        pairs = sorted(pair for pair in teacher.losses.pairs(depth, taught_by.depth) if all(pair) or teacher.losses.of_hidden)
        last = [(depth, taught_by.depth)]
        layers = "" if pairs == last else ",".join(f"{one}-{other}" for one, other in pairs)
        before, _, _ = recipe.teacher.rpartition(":layers=")
        listed["teacher"] = f"{before}:layers={layers}" if layers else before
    return RunConfig.parse(deep_merge(config.to_dict(), {"recipe": listed})) if listed else config


def other_names(group: Sequence[RequestedCell]) -> tuple[str, ...]:
    """Return the other names of a cell, each with the reason."""
    first, *others = group
    return tuple(
        f"{one.name(_BUDGETS in places)} is {first.name(_BUDGETS in places)}: {_why(one, places)}"
        for one in others
        if (places := one.differs_from(first))
    )


def redundant(groups: Iterable[Sequence[RequestedCell]]) -> Iterator[Problem]:
    """Yield values of a sweep file that train nothing new, each with the value that it repeats."""
    requested: Counter[tuple[str, object]] = Counter()
    again: dict[tuple[str, object], list[tuple[RequestedCell, RequestedCell]]] = {}
    for group in groups:
        first, *others = group
        requested.update(axis for one in group for axis in one.axes.items())
        for one in others:
            places = one.differs_from(first)
            if len(places) == 1:
                again.setdefault((places[0], one.axes[places[0]]), []).append((first, one))
    for (place, value), pairs in again.items():
        if len(pairs) == requested[place, value]:
            first, one = pairs[0]
            why = f"train the same runs: {_why(one, [place])}; keep one of them"
            yield Problem(place, f"{first.axes[place]} and {value} {why}")


def alike_when_tuned(spec: CellSweep, runs: Iterable[tuple[Mapping[str, float], RunConfig]]) -> Iterator[Problem]:
    """Yield tuned values of a cell that train the same as others."""
    if MAY_COINCIDE.isdisjoint(spec.tune):
        return
    trained: dict[str, Mapping[str, float]] = {}
    for point, run in runs:
        first = trained.setdefault(training_key(run), point)
        for knob in [knob for knob, value in point.items() if first[knob] != value]:
            if (why := without_effect(run).get(knob)) is not None:
                yield Problem(f"tune.{knob}", f"has no effect in {run.architecture.shape_name}: {why}; leave it out")
            else:
                both = f"{first[knob]:g} and {point[knob]:g} train the same run of {run.architecture.shape_name}"
                yield Problem(f"tune.{knob}", f"{both}, of {run.steps:,} steps; ask for fewer trials, or a wider range")


def _why(one: RequestedCell, places: Sequence[str]) -> str:
    rounded = {
        _BUDGETS: f"both are {one.config.steps:,} steps",
        f"vary.{MASKED_SHARE}": f"both mask {one.config.predictions} positions of a sequence",
        **{f"vary.{knob}": "the same tokens see each other in every layer" for knob in WINDOWS},
        "vary.recipe.start": "both keep the same layers in the same order",
        "vary.recipe.teacher": "both match the same layers",
        f"vary.{GENERATOR_SHARE}": "both give the generator the same sizes",
    } | {f"vary.{knob}": "every step has the same learning rate at both" for knob in IN_STEPS}
    reasons = rounded | {f"vary.{knob}": why for knob, why in without_effect(one.config).items()}
    return "; ".join(dict.fromkeys(reasons.get(place, "both have the same effect") for place in places))
