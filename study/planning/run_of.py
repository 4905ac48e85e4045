"""The configuration of one run of a sweep, from its sizes, budget and knobs, with problems under the paths of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from study.base.errors import InputError, Problem
from study.base.schema import deep_merge, flatten, set_path
from study.config.recipe import Budget
from study.config.run_config import RunConfig
from study.config.sweep import MODEL, GoalSweep, SearchSweep, Sweep

_OF_ARCHITECTURE = "architecture."


def run_config(spec: Sweep, architecture: Mapping[str, Any], budget: Budget, knobs: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a sweep's run; vocabulary and positions default to those of the data.

    `knobs` override the base. Raises InputError with paths of the sweep file.
    """
    data = spec.data_with(knobs)
    template: dict[str, Any] = {
        "architecture": {"vocabulary": data["tokenizer"]["vocabulary"], "positions": spec.data.sequence_length}
        | dict(architecture),
        "recipe": {"budget": budget.model_dump(exclude_none=True)},
        "data": data,
        "masking": spec.masking.model_dump(),
        "seed": spec.first_seed,
    }
    values = deep_merge(template, spec.shared)
    for path, value in knobs.items():
        set_path(values, path, value)
    try:
        return RunConfig.parse(values)
    except InputError as error:
        name = "-".join(str(value) for value in architecture.values())
        raise InputError(Problem(_place(spec, problem.place, name), problem.message) for problem in error.problems) from None


def _place(spec: Sweep, path: str, shape: str = "") -> str:
    if (place := spec.place_of(path)) is not None:
        return place
    if path in flatten(spec.base):
        return f"base.{path}"
    if path in flatten(spec.shared):
        if path.startswith(_OF_ARCHITECTURE) and (model := spec.base.get("architecture", {}).get(MODEL)) is not None:
            return f"base.architecture.{MODEL} ({model}) {path.removeprefix(_OF_ARCHITECTURE)}"
        return f"preset ({spec.preset}) {path}"
    if path.startswith("recipe.budget"):
        return "pool.tokens" if isinstance(spec, GoalSweep) else "budgets"
    if path.startswith(_OF_ARCHITECTURE) and not isinstance(spec, SearchSweep):
        shapes = "pool" if isinstance(spec, GoalSweep) else "shapes"
        return f"{shapes} ({shape}) {path.removeprefix(_OF_ARCHITECTURE)}" if shape else shapes
    return f"base.{path}" if path.startswith(("recipe", "architecture")) else path
