"""Problems of a sweep file's knobs and `base`, from its raw values.

study.planning.plan checks whether the parts of a run fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from study.base.errors import InputError, Problem, nearest, shown
from study.base.schema import flatten, number_in, whole
from study.config.named_runs import NO_RUN
from study.config.recipe import Recipe, TrainingMasking
from study.config.run_config import TRAINING_MASKS, Masking
from study.config.shape_spec import LARGEST, why_beyond
from study.config.sweep import MODEL, PARTS, TOKENIZER_KNOBS, Budgets, SweepBase
from study.counting.architecture import NOT_IN_MLM, SET_BY_OBJECTIVE, Architecture
from study.counting.named_models import trained_values

KNOBS = (
    *(f"architecture.{name}" for name in Architecture.model_fields if name not in NOT_IN_MLM),
    *(f"recipe.{name}" for name in Recipe.model_fields if name not in ("masking", "budget")),
    *(f"{TRAINING_MASKS}{name}" for name in TrainingMasking.model_fields),
    *(f"masking.{name}" for name in Masking.model_fields),
    *TOKENIZER_KNOBS,
)
"""The dotted keys that `vary`, `tune` and `search` may set."""

TRAINED_RUNS = tuple(f"recipe.{knob}" for knob in NO_RUN)
"""The knobs that name a trained run."""

_BESIDE_BASE = {
    f"masking_{name}": f"belongs beside base, as masking.{name}; for training only, write base.{TRAINING_MASKS}{name}"
    for name in Masking.model_fields
}
"""Messages for mask keys written as one word under `base`."""


def problems_of_knobs(values: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of knobs and `base`, even if other values are invalid."""
    search, base = values.get("search"), values.get("base", {})
    space = search.get("space") if isinstance(search, Mapping) else None
    vary, tune = values.get("vary"), values.get("tune")
    for section, given in (("vary", vary), ("tune", tune), ("search.space", space)):
        if isinstance(given, Mapping) and len(given) > len(KNOBS):
            yield Problem(section, f"has {len(given):,} keys, more than the {len(KNOBS)} knobs of a run")
        elif isinstance(given, Mapping):
            for knob, value in given.items():
                yield from _problems_of_knob(section, str(knob), value)
    yield from (Problem(part, f"belongs under base; write base.{part}") for part in PARTS if part in values)
    if isinstance(vary, Mapping):
        yield from _problems_of_varied(vary, tune, base)
    if isinstance(base, Mapping):
        yield from _problems_of_base(base, has_shapes=values.get("shapes") is not None or values.get("goal") is not None)
        yield from _problems_of_budgets(values, base)


def _problems_of_knob(section: str, knob: str, value: object) -> Iterator[Problem]:
    place = f"{section}.{knob}"
    if (message := _why_no_knob(section, knob, value)) is not None:
        yield Problem(place, message)
    elif knob == "recipe.precision" and len(values := _listed(value)) > 1 and "auto" in values:
        yield Problem(place, "'auto' means bf16 or fp32, depending on the device; list those two to compare them")


def _listed(value: object) -> list[Any]:
    """The values listed for a knob, including a search's choices; none without a list."""
    listed = value.get("choices") if isinstance(value, Mapping) else value
    return listed if isinstance(listed, list) else []


def _why_no_knob(section: str, knob: str, value: object) -> str | None:
    """Why a section cannot list a knob; None if it can."""
    field = knob.removeprefix("architecture.")
    if knob.startswith("data.") and (section != "vary" or knob not in TOKENIZER_KNOBS):
        compared = " and ".join(TOKENIZER_KNOBS)
        remedy = f"write one sweep each ({compared} may stand under vary and are compared in bits per byte)"
        return f"is the same for all runs of a sweep, since losses on different text or tokens do not compare; {remedy}"
    if field in SET_BY_OBJECTIVE:
        return "follows recipe.objective; leave it out"
    if knob == f"architecture.{MODEL}":
        return f"is the same for all runs of a sweep; launch the file once with each, as base.{knob}=NAME"
    if field in NOT_IN_MLM:
        return "changes no run: masked language models do not depend on it"
    if knob == "preset":
        return "is the same for all runs of a sweep; launch the file once with each preset, or list the knobs that differ"
    if knob in PARTS and isinstance(value, Mapping):
        return f"contains keys; write each as one dotted key, as in {knob}.{next(iter(value), '…')}"
    if knob not in KNOBS:
        return f"is not a knob of a run; {nearest(knob, list(KNOBS))}"
    if knob in TRAINED_RUNS and section != "vary":
        return "is not a number; compare runs under vary"
    if knob.startswith("masking."):
        of_training = f"{TRAINING_MASKS}{knob.removeprefix('masking.')} changes only training masks"
        return f"also changes validation masks, so losses would not compare; {of_training}"
    if field in LARGEST and section != "search.space":
        return "is a size; list its values under shapes"
    return None


def _problems_of_varied(vary: Mapping[Any, Any], tune: object, base: object) -> Iterator[Problem]:
    elsewhere = flatten(base) if isinstance(base, Mapping) else {}
    for knob in vary:
        if isinstance(tune, Mapping) and knob in tune:
            yield Problem(f"vary.{knob}", "is tuned too; leave it out of vary or of tune")
        elif knob in elsewhere:
            yield Problem(f"vary.{knob}", "has a value in base too; remove that one")


def _problems_of_base(base: Mapping[Any, Any], has_shapes: bool) -> Iterator[Problem]:
    for key in [key for key in base if key not in PARTS]:
        if key in SweepBase.known_keys():
            yield Problem(f"base.{key}", "belongs beside base, not under it")
        else:
            inside = [knob for knob in KNOBS if knob.startswith(PARTS) and knob.partition(".")[2] == key]
            unknown = f"is not a known key; {nearest(str(key), inside or [*PARTS])}"
            yield Problem(f"base.{key}", _BESIDE_BASE.get(key, unknown))
    if isinstance(architecture := base.get("architecture"), Mapping):
        yield from _problems_of_architecture(architecture, has_shapes)
    if isinstance(recipe := base.get("recipe"), Mapping):
        yield from _problems_of_recipe(recipe)


def _problems_of_architecture(given: Mapping[Any, Any], has_shapes: bool) -> Iterator[Problem]:
    place = "base.architecture"
    for size in [size for size in LARGEST if size in given]:
        if has_shapes:
            yield Problem(f"{place}.{size}", "is set by the shapes of the sweep; leave it out here")
        elif isinstance(value := number_in(given[size]), int | float) and (why := why_beyond(size, value)):
            yield Problem(f"{place}.{size}", f"{value:g} is {why}")
    for name in [name for name in SET_BY_OBJECTIVE if name in given]:
        yield Problem(f"{place}.{name}", "follows recipe.objective; leave it out")
    own = {key: value for key, value in given.items() if key != MODEL}
    if MODEL in given:
        try:
            own = _values_of_model(given[MODEL]) | own
        except InputError as error:
            yield from (Problem(f"{place}.{MODEL}", problem.message) for problem in error.problems)
    sensible = {key: value for key, value in own.items() if key not in LARGEST}
    try:
        Architecture.parse(
            LARGEST | {"heads": 1, "vocabulary": 1} | sensible, place
        )  # fields that a small shape has no room for
    except InputError as error:
        yield from error.problems


def _values_of_model(name: object) -> dict[str, Any]:
    """The fields of a named model; raises InputError for anything that is no name of one."""
    if not isinstance(name, str):
        raise InputError.at(MODEL, f"is {shown(name)}, not the name of a model such as albert-base")
    return trained_values(name)


def _problems_of_recipe(recipe: Mapping[Any, Any]) -> Iterator[Problem]:
    if "budget" in recipe:
        yield Problem("base.recipe.budget", "belongs under budgets, beside base")
    cells = {
        knob: f"a cell belongs under vary; write vary: {{recipe.{knob}: [{{cell: …}}]}}"
        for knob in NO_RUN
        if isinstance(recipe.get(knob), Mapping)
    }
    beside_base = cells | {key: message for key, message in _BESIDE_BASE.items() if key in recipe}
    yield from (Problem(f"base.recipe.{key}", message) for key, message in beside_base.items())
    given = {key: value for key, value in recipe.items() if key not in beside_base}
    try:
        Recipe.parse({**given, "budget": {"steps": 1}}, "base.recipe")
    except InputError as error:
        yield from error.problems


def _problems_of_budgets(values: Mapping[str, Any], base: Mapping[Any, Any]) -> Iterator[Problem]:
    """Token budgets below one batch, if the file fixes the batch; other budgets depend on the shapes."""
    recipe, knobs = base.get("recipe"), [values.get("tune"), values.get("vary")]
    varies = values.get("search") is not None or any(
        "recipe.batch_tokens" in each for each in knobs if isinstance(each, Mapping)
    )
    given = {key: recipe[key] for key in ("batch_tokens",) if isinstance(recipe, Mapping) and key in recipe}
    try:
        batch = Recipe.parse({**given, "budget": {"steps": 1}}).batch_tokens
        budgets = Budgets.parse(values.get("budgets"))
    except InputError:
        return  # reported elsewhere
    for tokens in budgets.tokens:
        if tokens < batch and not varies:
            yield Problem("budgets.tokens", f"{whole(tokens):,} tokens are less than one batch of {batch:,}")
