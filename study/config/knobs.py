"""The knobs of a run: which a sweep file may set in `base`, vary, tune or search, and which have no effect beside others.

A fingerprint covers every knob, with or without effect, so that ids stay. A plan trains each run once
(study.planning.coincidences).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, ValidationInfo

from study.base.errors import InputError, Problem, nearest, shown
from study.base.schema import deep_merge, flatten, number_in, set_path
from study.base.text import joined
from study.config.named_runs import NO_RUN
from study.config.presets import PRESET, PRESET_KNOBS, PRESETS, PresetName
from study.config.recipe import Recipe, TrainingMasking
from study.config.run_config import MOST_PIECES, TRAINING_MASKS, Masking, RunConfig
from study.config.shape_spec import LARGEST, why_beyond
from study.counting.architecture import NOT_IN_MLM, SET_BY_OBJECTIVE, SIZES, Architecture
from study.counting.named_models import find, trained_values

PARTS = ("architecture", "recipe")
"""The parts of a run that `base` sets."""

MODEL = "model"
"""The key under `base.architecture` that names an encoder of the literature."""

TOKENIZER_KNOBS = ("data.tokenizer.kind", "data.tokenizer.vocabulary")
"""The knobs of the data that `vary` may set; such runs compare in bits per byte of fixed masked words."""

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

_EXAMPLES = {"architecture": "architecture.norm", "recipe": "recipe.dropout"}
"""A knob of each part, as a message shows it."""


def few_enough(knobs: object) -> object:
    """Return the section; raises ValueError if it has more keys than a run has knobs."""
    if isinstance(knobs, Mapping) and len(knobs) > len(KNOBS):
        raise ValueError(f"has {len(knobs):,} keys, more than the {len(KNOBS)} knobs of a run")
    return knobs


def _of_section(section: str) -> AfterValidator:
    """Return the check of a section's keys, which needs a context: a launched sweep's file has none."""

    def check(knob: str, info: ValidationInfo) -> str:
        if info.context is not None and (problem := _why_not_in(section, knob)) is not None:
            raise ValueError(problem)
        return knob

    return AfterValidator(check)


def _set_once(knob: str, info: ValidationInfo) -> str:
    """Return a varied knob; raises ValueError if `tune` or `base` has it too."""
    if info.context is not None and knob in info.data.get("tune", ()):
        raise ValueError("is tuned too; leave it out of vary or of tune")
    if info.context is not None and knob in flatten(info.data.get("base", {})):
        raise ValueError("has a value in base too; remove that one")
    return knob


VariedKnob = Annotated[str, _of_section("vary"), AfterValidator(_set_once)]
TunedKnob = Annotated[str, _of_section("tune")]
SearchedKnob = Annotated[str, _of_section("search.space")]


def _why_not_in(section: str, knob: str) -> str | None:
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
    if knob == PRESET:
        return None if section == "vary" else "is a word for many knobs; compare presets under vary"
    if knob in PARTS:
        return f"contains keys; write each as one dotted key, as in {_EXAMPLES[knob]}"
    if knob not in KNOBS:
        elsewhere = [known for known in KNOBS if known.rpartition(".")[2] == knob.rpartition(".")[2]]
        hint = f"did you mean {elsewhere[0]!r}?" if len(elsewhere) == 1 else nearest(knob, list(KNOBS))
        return f"is not a knob of a run; {hint}"
    if knob in TRAINED_RUNS and section != "vary":
        return "is not a number; compare runs under vary"
    if knob.startswith("masking."):
        of_training = f"{TRAINING_MASKS}{knob.removeprefix('masking.')} changes only training masks"
        return f"also changes validation masks, so losses would not compare; {of_training}"
    if field in LARGEST and section != "search.space":
        return "is a size; list its values under shapes"
    return None


LONGEST_NAME = 64
"""A longer text under `base.architecture` is not taken for the name of a model."""

_BESIDE_BASE = {
    f"masking_{name}": f"belongs beside base, as masking.{name}; for training only, write base.{TRAINING_MASKS}{name}"
    for name in Masking.model_fields
}
"""Messages for mask keys written as one word under `base`."""

_ONE_STEP = {"budget": {"steps": 1}}
_STAND_IN = LARGEST | {"heads": 1, "vocabulary": MOST_PIECES}  # smaller ones have no room for some values


def with_parts(base: dict[str, Any]) -> dict[str, Any]:
    """Return `base`; raises ValueError if a part is no mapping."""
    for part in PARTS:
        if part in base and not isinstance(given := base[part], dict):
            named = isinstance(given, str) and len(given) <= LONGEST_NAME and part == PARTS[0]
            remedy = f"; for a named model write {{model: {given}}}" if named else ""
            raise ValueError(f"has {shown(given)} under {part}, which needs keys and values{remedy}")
    return base


def shared_values(preset: PresetName, base: Mapping[str, Any], of_shapes: Collection[str]) -> dict[str, Any]:
    """Return the preset, overridden by a named model without the sizes `of_shapes`, overridden by `base`."""
    architecture = base.get("architecture", {})
    if MODEL not in architecture:
        return deep_merge(PRESETS[preset], base)
    own = {key: value for key, value in architecture.items() if key != MODEL}
    values = {key: value for key, value in (trained_values(architecture[MODEL]) | own).items() if key not in of_shapes}
    return deep_merge({**PRESETS[preset], "architecture": {}}, {**base, "architecture": values})


def sizes_of_model(base: object) -> dict[str, Any] | None:
    """Return the sizes of a named model, if any, with those that `base` gives beside it."""
    architecture = base.get("architecture") if isinstance(base, Mapping) else None
    name = architecture.get(MODEL) if isinstance(architecture, Mapping) else None
    if not isinstance(architecture, Mapping) or not isinstance(name, str) or find(name) is None:
        return None
    values = trained_values(name) | dict(architecture)
    return {size: values[size] for size in SIZES}


def batch_of(preset: PresetName, base: Mapping[str, Any]) -> int | None:
    """Return the tokens of a batch, None if invalid."""
    recipe = deep_merge(PRESETS[preset], base).get("recipe", {})
    try:
        return Recipe.parse({key: recipe[key] for key in ("batch_tokens",) if key in recipe} | _ONE_STEP).batch_tokens
    except InputError:
        return None


def problems_of_base(
    base: Mapping[str, Any],
    beside: Collection[str],
    of_shapes: Collection[str],
    preset: PresetName | None,
    varied: Mapping[str, Sequence[object]],
) -> Iterator[Problem]:
    """Yield the problems of `base`, also of misplaced keys and sizes that the shapes give.

    Its values must go with those of the preset, unless that is invalid, or with one of those `varied` in their place.
    """
    for key in [key for key in base if key not in PARTS]:
        inside = [knob for knob in KNOBS if knob.startswith(PARTS) and knob.partition(".")[2] == key]
        unknown = f"is not a known key; {nearest(key, inside or [*PARTS])}"
        yield Problem(f"base.{key}", "belongs beside base, not under it" if key in beside else _BESIDE_BASE.get(key, unknown))
    if preset is None:
        return
    architecture, recipe = base.get("architecture", {}), base.get("recipe", {})
    of_architecture = (
        [*_problems_of_architecture(architecture, of_shapes, beneath)] for beneath in _beneath("architecture", preset, varied)
    )
    of_recipe = ([*_problems_of_recipe(recipe, beneath)] for beneath in _beneath("recipe", preset, varied))
    yield from min(of_architecture, key=len)
    yield from min(of_recipe, key=len)


def problems_of_presets(
    compared: Sequence[object], preset: PresetName | None, base: Mapping[str, Any], others: Sequence[str]
) -> Iterator[Problem]:
    """Yield the problems of presets under `vary`, beside that of the file, `base` and the `others` tuned or varied.

    What a preset sets is left to it, so that its name says what a run has.
    """
    place = f"vary.{PRESET}"
    for unknown in [name for name in compared if name not in PRESETS]:
        yield Problem(place, f"{shown(unknown)} is no preset; {nearest(str(unknown), [*PRESETS])}")
    if preset not in (None, "bert"):
        yield Problem(place, f"compares presets, but {PRESET} sets {preset} for all runs; remove one of them")
    of_base = [f"base.{knob}" for knob in flatten(base) if knob in (*PRESET_KNOBS, f"architecture.{MODEL}")]
    if given := of_base + [knob for knob in others if knob in PRESET_KNOBS]:
        remedy = "leave it to them, or compare knobs in place of presets"
        yield Problem(
            place, f"compares presets, which set {joined(PRESET_KNOBS)}; the file also sets {joined(given)}: {remedy}"
        )


def _beneath(part: str, preset: PresetName, varied: Mapping[str, Sequence[object]]) -> Iterator[dict[str, Any]]:
    """Yield the values of a part in each preset, alone and with each value of each varied knob in their place."""
    for name in [name for name in PRESETS if name in varied.get(PRESET, (preset,))]:
        values = dict(PRESETS[name].get(part, {}))
        yield values
        for knob, choices in varied.items():
            of_part, _, key = knob.partition(".")
            if of_part == part and "." not in key:
                yield from ({**values, key: choice} for choice in choices)


def _problems_of_architecture(
    given: Mapping[str, Any], of_shapes: Collection[str], preset: Mapping[str, Any]
) -> Iterator[Problem]:
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
    else:
        own = {**preset, **own}
    others = {key: value for key, value in own.items() if key not in LARGEST}
    if others.get("mlm_transform") == "none":  # whose decoder is as wide as the blocks, which the stand-in's are not
        del others["mlm_transform"]
    try:
        Architecture.parse(_STAND_IN | others, place)
    except InputError as error:
        yield from error.problems


def _values_of_model(name: object) -> dict[str, Any]:
    if not isinstance(name, str):
        raise InputError.at(MODEL, f"is {shown(name)}, not the name of a model such as albert-base")
    return trained_values(name)


def _problems_of_recipe(recipe: Mapping[str, Any], preset: Mapping[str, Any]) -> Iterator[Problem]:
    misplaced = {key: message for key, message in _BESIDE_BASE.items() if key in recipe} | {
        knob: f"a cell belongs under vary; write vary: {{recipe.{knob}: [{{cell: …}}]}}"
        for knob in NO_RUN
        if isinstance(recipe.get(knob), Mapping)
    }
    if "budget" in recipe:
        misplaced["budget"] = "belongs under budgets, beside base"
    yield from (Problem(f"base.recipe.{key}", message) for key, message in misplaced.items())
    try:
        own = {key: value for key, value in recipe.items() if key not in misplaced}
        Recipe.parse(deep_merge(preset, own) | _ONE_STEP, "base.recipe")
    except InputError as error:
        yield from error.problems


def problems_of_values(section: str, knob: str, values: Iterable[object]) -> Iterator[Problem]:
    """Yield what is wrong with values of a knob under a section, whatever the other knobs are."""
    for value in values:
        run: dict[str, Any] = {"architecture": {**_STAND_IN}, "recipe": {**_ONE_STEP}}
        set_path(run, knob, value)
        try:
            RunConfig.parse(run)
        except InputError as error:
            yield from (Problem(f"{section}.{knob}", each.message) for each in error.problems if each.place == knob)


UNTRAINED = ("recipe.start", "recipe.teacher", "recipe.batch_tokens", "recipe.precision", "recipe.weights")
"""The recipe knobs that have an effect in a run of no steps, or are refused there."""

IN_STEPS = tuple(
    f"recipe.{name}"
    for name in ("schedule", "warmup_fraction", "warmup_tokens", "decay_fraction", "final_learning_rate_fraction")
)
"""The knobs of the learning rate schedule."""

MASKED_SHARE = "recipe.masking.rate"
"""The share of masked positions in training."""


GENERATOR_SHARE = "recipe.generator_share"
"""The share of an encoder's sizes that its generator has."""


PARAMETRIZATION = "recipe.parametrization"
"""How rates and first values follow the size."""


WINDOWS = ("architecture.attention_window", "architecture.global_attention_every")
"""The size of windows, and which layers have them."""


class Rule(NamedTuple):
    """Knobs without effect in the runs to which the rule applies, and the reason."""

    knobs: tuple[str, ...]
    reason: str
    applies: Callable[[RunConfig], bool]


RULES = (
    Rule(
        tuple(knob for knob in KNOBS if knob.startswith("recipe.") and knob not in UNTRAINED),
        "no step is trained",
        lambda run: run.steps == 0,
    ),
    Rule(
        ("recipe.decay_fraction",),
        "only schedule wsd uses it; linear and cosine decay from the end of the warmup",
        lambda run: run.recipe.schedule != "wsd",
    ),
    Rule(
        ("recipe.final_learning_rate_fraction",),
        "the learning rate does not decay within the steps",
        lambda run: not _falls(run),
    ),
    Rule(
        ("recipe.muon_rate_ratio",),
        "only optimizer muon uses it",
        lambda run: run.recipe.optimizer != "muon",
    ),
    Rule(
        ("recipe.base_width", "recipe.base_depth"),
        "parametrization standard does not use them",
        lambda run: run.recipe.parametrization == "standard",
    ),
    Rule(
        (PARAMETRIZATION, "recipe.base_width", "recipe.base_depth"),
        "the encoder has the base encoder's sizes, at which no parametrization scales anything",
        lambda run: run.at_base_sizes,
    ),
    Rule(
        ("recipe.packing",),
        "objective mlm_nsp and mlm_sop always read pairs of segments",
        lambda run: run.recipe.judges_pairs,
    ),
    Rule(
        (GENERATOR_SHARE,),
        "only objective rtd uses it",
        lambda run: not run.recipe.detects_replaced,
    ),
    Rule(
        ("architecture.mlm_transform",),
        "under objective rtd the generator's head is BERT's, and the encoder has none",
        lambda run: run.recipe.detects_replaced,
    ),
    Rule(
        ("recipe.initialisation", "recipe.residual_initialisation"),
        "all weights come from the run that recipe.start names",
        lambda run: run.recipe.init_from is not None and not run.recipe.detects_replaced,
    ),
    Rule(
        ("recipe.initialisation",),
        "it changes the projection of narrower tables, and the tables are as wide as the layers",
        lambda run: run.architecture.table_width == run.architecture.width and not run.recipe.detects_replaced,
    ),
    Rule(
        ("recipe.initialisation",),
        "it changes a projection that follows the sum of the embeddings, and that of trigrams precedes it",
        lambda run: run.architecture.trigram_embedding,
    ),
    Rule(
        ("architecture.positions",),
        "no parameter depends on positions",
        lambda run: not _counts_positions(run),
    ),
    Rule(
        ("architecture.rotary_theta", "architecture.local_rotary_theta"),
        "only position_encoding rotary uses it",
        lambda run: not run.architecture.rotary,
    ),
    Rule(
        WINDOWS,
        "no layer has a window, or every token is within it",
        lambda run: not _windows_hide(run),
    ),
)
"""When knobs have no effect."""

MAY_COINCIDE = frozenset((*IN_STEPS, MASKED_SHARE, *(knob for rule in RULES[1:] for knob in rule.knobs)))
"""The knobs with two values that may train the same run."""


def without_effect(run: RunConfig) -> dict[str, str]:
    """Return the reasons why knobs have no effect in a run, by dotted key."""
    return {knob: rule.reason for rule in reversed(RULES) if rule.applies(run) for knob in rule.knobs}


def training_key(run: RunConfig) -> str:
    """Return a key that runs share if they train identically, step by step.

    Budgets, warmup and decay count in steps, masks in positions, a generator's share in its sizes, windows in the tokens that
    each layer sees; wsd without a plateau counts as linear, scaled_rates at the base width as completep.
    """
    recipe, steps = run.recipe, run.steps
    unused = without_effect(run)
    ignored = (*unused, *IN_STEPS, *WINDOWS, MASKED_SHARE, GENERATOR_SHARE, PARAMETRIZATION, "recipe.budget")
    falls = (recipe.decay_steps(steps), recipe.schedule == "cosine", recipe.final_learning_rate_fraction)
    rates = (recipe.warmup_steps(steps), *(falls if _falls(run) else ()))
    generator = run.architecture.generator
    sizes = None if generator is None else (generator.width, generator.heads, generator.ffn)
    layers = [*map(run.architecture.is_local, range(run.architecture.depth))]
    windows = ((run.architecture.attention_window or 0) // 2, layers) if _windows_hide(run) else None
    scales = "standard" if PARAMETRIZATION in unused else _scales(run)
    return f"{run.identity(but=ignored)} {steps} {rates} {run.predictions if steps else None} {sizes} {windows} {scales}"


def _scales(run: RunConfig) -> str:
    name = run.recipe.parametrization
    return "completep" if name == "scaled_rates" and run.at_base_width else name


def _falls(run: RunConfig) -> bool:
    return run.recipe.decay_steps(run.steps) > 1


def _counts_positions(run: RunConfig) -> bool:
    """Whether the parameter count depends on `positions`: by a table of absolute ones, or a learned bias of unlimited reach."""
    architecture = run.architecture
    biased = architecture.distance_bias == "learned" and architecture.distance_bias_reach is None
    return architecture.position_encoding == "learned" or architecture.enhanced_mask_decoder or biased


def _windows_hide(run: RunConfig) -> bool:
    """Whether windows hide some token, or have rotary angles of their own."""
    architecture = run.architecture
    if (window := architecture.attention_window) is None or not architecture.local_layers:
        return False
    turned = architecture.rotary and architecture.local_rotary_theta is not None
    return turned or window // 2 < run.data.sequence_length - 1
