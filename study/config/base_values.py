"""What a sweep file sets for all runs: `base`, over a named model and a preset."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from study.base.errors import InputError, Problem, nearest, shown
from study.base.schema import deep_merge, number_in
from study.config.knobs import KNOBS, MODEL, PARTS
from study.config.named_runs import NO_RUN
from study.config.presets import PRESETS, PresetName
from study.config.recipe import Recipe
from study.config.run_config import TRAINING_MASKS, Masking
from study.config.shape_spec import LARGEST, why_beyond
from study.counting.architecture import SET_BY_OBJECTIVE, SIZES, Architecture
from study.counting.named_models import find, trained_values

LONGEST_NAME = 64
"""A longer text under `base.architecture` is not taken for the name of a model."""

_BESIDE_BASE = {
    f"masking_{name}": f"belongs beside base, as masking.{name}; for training only, write base.{TRAINING_MASKS}{name}"
    for name in Masking.model_fields
}
"""Messages for mask keys written as one word under `base`."""

_ONE_STEP = {"budget": {"steps": 1}}


def with_parts(base: dict[str, Any]) -> dict[str, Any]:
    """Return `base`; raises ValueError if a part is no mapping."""
    for part in PARTS:
        if part in base and not isinstance(given := base[part], dict):
            named = isinstance(given, str) and len(given) <= LONGEST_NAME and part == PARTS[0]
            remedy = f"; for a named model write {{model: {given}}}" if named else ""
            raise ValueError(f"has {shown(given)} under {part}, which needs keys and values{remedy}")
    return base


def shared_values(preset: PresetName, base: Mapping[str, Any], of_shapes: Collection[str]) -> dict[str, Any]:
    """Return the preset, overridden by a named model, whose sizes `of_shapes` are left out, overridden by `base`."""
    architecture = base.get("architecture", {})
    if MODEL not in architecture:
        return deep_merge(PRESETS[preset], base)
    own = {key: value for key, value in architecture.items() if key != MODEL}
    values = {key: value for key, value in (trained_values(architecture[MODEL]) | own).items() if key not in of_shapes}
    return deep_merge({**PRESETS[preset], "architecture": {}}, {**base, "architecture": values})


def sizes_of_model(base: object) -> dict[str, Any] | None:
    """Return the sizes of a named model, with those that `base` gives beside it; None without a known one."""
    architecture = base.get("architecture") if isinstance(base, Mapping) else None
    name = architecture.get(MODEL) if isinstance(architecture, Mapping) else None
    if not isinstance(architecture, Mapping) or not isinstance(name, str) or find(name) is None:
        return None
    values = trained_values(name) | dict(architecture)
    return {size: values[size] for size in SIZES}


def batch_of(preset: PresetName, base: Mapping[str, Any]) -> int | None:
    """Return the tokens of a batch; None if they are invalid, which `problems_of_base` reports."""
    recipe = deep_merge(PRESETS[preset], base).get("recipe", {})
    try:
        return Recipe.parse({key: recipe[key] for key in ("batch_tokens",) if key in recipe} | _ONE_STEP).batch_tokens
    except InputError:
        return None


def problems_of_base(base: Mapping[str, Any], beside: Collection[str], of_shapes: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of `base`, among them keys that belong beside it, and sizes that the shapes give."""
    for key in [key for key in base if key not in PARTS]:
        inside = [knob for knob in KNOBS if knob.startswith(PARTS) and knob.partition(".")[2] == key]
        unknown = f"is not a known key; {nearest(key, inside or [*PARTS])}"
        yield Problem(f"base.{key}", "belongs beside base, not under it" if key in beside else _BESIDE_BASE.get(key, unknown))
    yield from _problems_of_architecture(base.get("architecture", {}), of_shapes)
    yield from _problems_of_recipe(base.get("recipe", {}))


def _problems_of_architecture(given: Mapping[str, Any], of_shapes: Collection[str]) -> Iterator[Problem]:
    place = "base.architecture"
    for size in [size for size in LARGEST if size in given]:
        if size in of_shapes:
            yield Problem(f"{place}.{size}", "is set by the shapes of the sweep; leave it out here")
        elif isinstance(value := number_in(given[size]), int | float) and (why := why_beyond(size, value)):
            yield Problem(f"{place}.{size}", f"{value:g} is {why}")
    yield from (
        Problem(f"{place}.{name}", "follows recipe.objective; leave it out") for name in SET_BY_OBJECTIVE if name in given
    )
    own = {key: value for key, value in given.items() if key != MODEL}
    if MODEL in given:
        try:
            own = _values_of_model(given[MODEL]) | own
        except InputError as error:
            yield from (Problem(f"{place}.{MODEL}", problem.message) for problem in error.problems)
    others = {key: value for key, value in own.items() if key not in LARGEST}
    try:
        Architecture.parse(LARGEST | {"heads": 1, "vocabulary": 1} | others, place)  # a small shape has no room for some
    except InputError as error:
        yield from error.problems


def _values_of_model(name: object) -> dict[str, Any]:
    """Return the fields of a named model; raises InputError for anything that is no name of one."""
    if not isinstance(name, str):
        raise InputError.at(MODEL, f"is {shown(name)}, not the name of a model such as albert-base")
    return trained_values(name)


def _problems_of_recipe(recipe: Mapping[str, Any]) -> Iterator[Problem]:
    misplaced = {key: message for key, message in _BESIDE_BASE.items() if key in recipe} | {
        knob: f"a cell belongs under vary; write vary: {{recipe.{knob}: [{{cell: …}}]}}"
        for knob in NO_RUN
        if isinstance(recipe.get(knob), Mapping)
    }
    if "budget" in recipe:
        misplaced["budget"] = "belongs under budgets, beside base"
    yield from (Problem(f"base.recipe.{key}", message) for key, message in misplaced.items())
    try:
        Recipe.parse({key: value for key, value in recipe.items() if key not in misplaced} | _ONE_STEP, "base.recipe")
    except InputError as error:
        yield from error.problems
