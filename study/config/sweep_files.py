"""Reading a sweep file with command-line overrides, or a launched sweep's copy, with problems of knobs from the raw values.

study.planning.plan checks whether the parts of a run fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from study.base.errors import InputError, Problem, near, nearest, shown
from study.base.schema import flatten, number_in, set_below, whole
from study.base.shipped import shipped
from study.base.yaml_files import MOST_NESTED, load_yaml, problem_in_words, read_yaml
from study.config.named_runs import NO_RUN
from study.config.recipe import Recipe, TrainingMasking
from study.config.run_config import TRAINING_MASKS, Masking
from study.config.shape_spec import LARGEST, Shapes, why_beyond
from study.config.sweep import MODEL, PARTS, TOKENIZER_KNOBS, Budgets, Sweep, SweepBase, sweep_of
from study.counting.architecture import NOT_IN_MLM, SET_BY_OBJECTIVE, Architecture
from study.counting.named_models import trained_values

SWEEP_FILE = "sweep.yaml"
"""The name of the copy in the sweep's folder."""

_PIPES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""The folders of what a shell gives for a file: /dev/stdin, or /dev/fd/63 for <(cat sweep.yaml)."""

_NAMELESS = "is missing, since text from a pipe has no file name; give name=NAME"

_PRUNE_REFUSED = "belongs under search: stopping slow runs would bias a comparison or a fit"


def read_sweep(path: Path, overrides: Sequence[str] = ()) -> tuple[Sweep, dict[str, Any]]:
    """Read a sweep file with `key.path=value` overrides: the sweep, and the plain values for `sweep.yaml`.

    The name of a shipped sweep stands for its file, and `-` for standard input. Raises InputError with every problem of the
    file and the overrides.
    """
    values = _values_of(path)
    problems = list(_problems_between(overrides))
    for override in overrides:
        try:
            _override(values, override)
        except InputError as error:
            problems += error.problems
    if "name" not in values:
        problems.append(Problem("name", _NAMELESS))
        values["name"] = "piped"
    try:
        sweep = parse_sweep(values)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return sweep, values


def _values_of(path: Path) -> dict[str, Any]:
    """Return the values of a sweep file, whose name is that of the file; text from a pipe has none of its own."""
    if str(path) == "-":
        path = Path("/dev/stdin")
    if path.parent in _PIPES:
        return read_yaml(path, piped=True)
    path = _file_of(path)
    return {"name": path.stem} | read_yaml(path)


def read_launched(path: Path) -> Sweep:
    """Read the sweep that a launch left in its folder.

    Another version may have launched it: unknown keys are ignored, knobs unchecked. Raises InputError if the file is missing or
    holds no sweep.
    """
    values = {"name": path.parent.name} | read_yaml(path)
    try:
        return sweep_of(values, unknown="ignore")
    except InputError as error:
        raise InputError(Problem(str(path), str(problem)) for problem in error.problems) from None


def parse_sweep(values: Mapping[str, Any]) -> Sweep:
    """Return the sweep of plain values; raises InputError with every problem."""
    problems = list(problems_of_knobs(values))
    if "prune" in values:
        problems.append(Problem("prune", _PRUNE_REFUSED))
        values = {key: value for key, value in values.items() if key != "prune"}
    if isinstance(base := values.get("base"), Mapping):
        values = {**values, "base": {key: value for key, value in base.items() if key in PARTS}}
    try:
        sweep = sweep_of(values)
    except InputError as error:
        known = {problem.place for problem in problems}
        problems = [*(problem for problem in error.problems if problem.place not in known), *problems]
    if problems:
        raise InputError([*problems, *_unmet_targets(values)])
    return sweep


def _unmet_targets(values: Mapping[str, Any]) -> Sequence[Problem]:
    """Return the targets that no width meets, in a sweep with other problems; none if its shapes are invalid."""
    base = values.get("base")
    architecture = base.get("architecture") if isinstance(base, Mapping) else None
    with suppress(InputError):
        return Shapes.parse(values.get("shapes")).sizes(architecture if isinstance(architecture, Mapping) else {})[1]
    return ()


def _file_of(path: Path) -> Path:
    """Return the file at a path, else the shipped sweep of this name; raises InputError where another file may be meant.

    That is the copy in a sweep's folder, the file with its suffix, one under sweeps/, or what has the nearest name beside it or
    among the shipped ones. Of two sweeps with one name, neither is chosen.
    """
    if path.is_file():
        return path
    file = path if path.suffix in (".yaml", ".yml") else Path(f"{path}.yaml")
    named = [one for one in (path / SWEEP_FILE, file, Path("sweeps") / file.name) if one.is_file()]
    ours = shipped("sweeps")
    if (own := ours.get(str(path))) is not None and all(map(own.samefile, named)):
        return own
    beside = {name: Path(name) for name in ours} | {one.stem: one for one in sorted(path.parent.glob("*.y*ml"))}
    if not named and (best := near(file.stem, [*beside])) is not None:
        named = [beside[best]]
    if named:
        raise InputError.at(str(path), f"is not a file; did you mean {named[0]}?")
    return path


def _problems_between(overrides: Sequence[str]) -> Iterator[Problem]:
    paths = [override.partition("=")[0] for override in overrides]
    yield from (Problem(path, f"is set {count} times; set it once") for path, count in Counter(paths).items() if count > 1)
    for index, path in enumerate(paths):
        if undone := next((before for before in paths[:index] if before.startswith(f"{path}.")), None):
            yield Problem(path, f"would undo {undone}, which comes before it; set one of them")


def _override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = _keys_of(path)
    if not separator or not all(path.split(".")) or not path.isprintable():
        raise InputError.at(shown(override), "is not an override; write key.path=value, as in seeds=3")
    if len(keys) > MOST_NESTED:
        raise InputError.at(shown(path), f"goes through {len(keys)} keys, more than the {MOST_NESTED} that a file may nest")
    try:
        value = load_yaml(text)
    except yaml.constructor.ConstructorError as error:
        raise InputError.at(path, problem_in_words(error)) from None
    except yaml.MarkedYAMLError as error:
        raise InputError.at(path, f"{shown(text)} is not a YAML value: {problem_in_words(error)}") from None
    set_below(values, keys, value)


def _keys_of(path: str) -> list[str]:
    """Return the keys of a path; a knob under `vary`, `tune` or `search.space` is one dotted key."""
    keys = path.split(".")
    for above in (["vary"], ["tune"], ["search", "space"]):
        if keys[: len(above)] == above and len(keys) > len(above) + 1:
            below = keys[len(above) :]
            parts = 3 if ".".join(below[:3]) in KNOBS else 2
            return [*above, ".".join(below[:parts]), *below[parts:]]
    return keys


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
    """Yield the problems of knobs and `base`, even if other values are invalid."""
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
    """Return the values listed for a knob, including a search's choices; none without a list."""
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
    """Return the fields of a named model; raises InputError for anything that is no name of one."""
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
