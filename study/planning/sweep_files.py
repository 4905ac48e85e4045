"""Reading a sweep file, with overrides from the command line: everything that is wrong with it is told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from study.base.errors import InputError, Problem, near, nearest, shown
from study.base.schema import flatten, number_in, set_below, whole
from study.base.yaml_files import KeyLoader, read_yaml
from study.config.named_runs import NO_RUN
from study.config.recipe import Recipe, TrainingMasking
from study.config.run_config import TRAINING_MASKS, Masking
from study.config.shape_spec import LARGEST, Shapes, why_beyond
from study.config.sweep_spec import PARTS, Budgets, SweepSpec
from study.counting.architecture import COUNTED_ALONE, NOT_IN_MLM, Architecture, built_words
from study.planning.plan import solved
from study.store.sweep_folder import SweepFolder

KNOBS = (
    *(f"architecture.{name}" for name in Architecture.model_fields if name not in NOT_IN_MLM),
    *(f"recipe.{name}" for name in Recipe.model_fields if name not in ("masking", "budget")),
    *(f"{TRAINING_MASKS}{name}" for name in TrainingMasking.model_fields),
    *(f"masking.{name}" for name in Masking.model_fields),
)
"""The dotted keys of a run that `vary`, `tune` and `search` may set."""

_BESIDE_BASE = {
    f"masking_{name}": f"stands beside base, as masking.{name}; for training alone write base.{TRAINING_MASKS}{name}"
    for name in Masking.model_fields
}
"""What is told of a key for the masks, those of a whole sweep or of training, where it is written as one word under `base`."""

TRAINED_RUNS = tuple(f"recipe.{knob}" for knob in NO_RUN)
"""The knobs that name a trained run."""

PRUNE_REFUSED = (
    "stands under search and nowhere else: to stop those runs of a comparison or a fit that begin slowly would bias it"
)


def read_sweep(path: Path, overrides: tuple[str, ...] = ()) -> tuple[SweepSpec, dict[str, Any]]:
    """A sweep file with `key.path=value` overrides put in: the strict model, and the plain values as `sweep.yaml` keeps them.

    Raises InputError with everything that is wrong with the file or the overrides.
    """
    if not path.is_file() and (meant := next(filter(Path.is_file, _files_meant(path)), None)):
        raise InputError.at(str(path), f"is no file; did you mean {meant}?")
    values = {"name": path.stem} | read_yaml(path)
    paths = Counter(override.partition("=")[0] for override in overrides)
    problems = [Problem(path, f"is set {count} times; set it once") for path, count in paths.items() if count > 1]
    for override in overrides:
        try:
            _override(values, override)
        except InputError as error:
            problems += error.problems
    try:
        spec = parse_sweep(values)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return spec, values


def _files_meant(path: Path) -> Iterator[Path]:
    """What may be meant by a path that is no file.

    A sweep's folder, a file without its suffix, one under sweeps/, or the one beside it whose name is nearest.
    """
    file = path if path.suffix in (".yaml", ".yml") else Path(f"{path}.yaml")
    yield from (SweepFolder(path).sweep_file, file, Path("sweeps") / file.name)
    beside = {one.stem: one for one in sorted(path.parent.glob("*.y*ml"))}
    if (best := near(file.stem, [*beside])) is not None:
        yield beside[best]


def parse_sweep(values: Mapping[str, Any]) -> SweepSpec:
    """The sweep that `values` describe; what is wrong with its knobs and with the parts of `base` is told at once too."""
    problems = list(_problems_of_parts(values))
    if "prune" in values:
        problems.append(Problem("prune", PRUNE_REFUSED))
        values = {key: value for key, value in values.items() if key != "prune"}
    if isinstance(base := values.get("base"), Mapping):
        values = {**values, "base": {key: value for key, value in base.items() if key in PARTS}}
    try:
        spec = SweepSpec.parse(values)
    except InputError as error:
        told = {problem.place for problem in problems}
        problems = [*(problem for problem in error.problems if problem.place not in told), *problems]
    if problems:
        raise InputError([*problems, *_unmet_targets(values)])
    return spec


def _unmet_targets(values: Mapping[str, Any]) -> Iterable[Problem]:
    """The sizes that no width meets, of a sweep that cannot be planned for other reasons; none where the shapes are wrong."""
    problems: dict[str, Problem] = {}
    base = values.get("base")
    architecture = base.get("architecture") if isinstance(base, Mapping) else None
    with suppress(InputError):
        solved(Shapes.parse(values.get("shapes")), architecture if isinstance(architecture, Mapping) else {}, problems)
    return problems.values()


def _override(values: dict[str, Any], override: str) -> None:
    """Put one `key.path=value` into the values of a sweep file."""
    path, separator, text = override.partition("=")
    if not separator or not all(path.split(".")):
        raise InputError.at(shown(override), "is not an override; write key.path=value, as in seeds=3")
    try:
        value = yaml.load(text, Loader=KeyLoader)
    except yaml.constructor.ConstructorError as error:
        raise InputError.at(path, str(error.problem)) from None
    except (yaml.YAMLError, ValueError):
        raise InputError.at(path, f"{shown(text)} is not a YAML value") from None
    set_below(values, _keys_of(path), value)


def _keys_of(path: str) -> list[str]:
    """The keys that a path goes through; a knob under `vary`, `tune` or `search.space` is one key with dots in it."""
    keys = path.split(".")
    for above in (["vary"], ["tune"], ["search", "space"]):
        if keys[: len(above)] == above and len(keys) > len(above) + 1:
            below = keys[len(above) :]
            parts = 3 if ".".join(below[:3]) in KNOBS else 2
            return [*above, ".".join(below[:parts]), *below[parts:]]
    return keys


def _problems_of_parts(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with knobs and with `base` by itself; whether the parts of a run fit is for study.planning.plan."""
    search = values.get("search")
    space = search.get("space") if isinstance(search, Mapping) else None
    knobs = {"vary": values.get("vary"), "tune": values.get("tune"), "search.space": space}
    for place, given in knobs.items():
        for path, value in given.items() if isinstance(given, Mapping) else ():
            if str(path).startswith("data."):
                message = "is one for all runs of a sweep, since losses on other text or other pieces do not compare"
                yield Problem(f"{place}.{path}", f"{message}; make a sweep of each")
            elif str(path).removeprefix("architecture.") in NOT_IN_MLM:
                yield Problem(f"{place}.{path}", "changes no run: a masked language model is built alike at any value")
            elif path in PARTS and isinstance(value, Mapping):
                dotted = f"{path}.{next(iter(value), '…')}"
                yield Problem(f"{place}.{path}", f"holds keys; write each as one with a dot, as in {dotted}")
            elif path not in KNOBS:
                yield Problem(f"{place}.{path}", f"is not a knob of a run; {nearest(str(path), list(KNOBS))}")
            elif path in TRAINED_RUNS and place != "vary":
                yield Problem(f"{place}.{path}", "is compared by vary, and no number to search")
            elif str(path).startswith("masking."):
                message = "changes the masks of validation too, so that losses could not be compared"
                message += f"; {TRAINING_MASKS}{path.removeprefix('masking.')} changes those of training alone"
                yield Problem(f"{place}.{path}", message)
            elif place != "search.space" and str(path).removeprefix("architecture.") in LARGEST:
                yield Problem(f"{place}.{path}", "is what shapes give; list its values there")
            elif place != "tune":
                asked = value.get("choices") if isinstance(value, Mapping) else value
                yield from _problems_of_words(f"{place}.{path}", str(path).removeprefix("architecture."), asked)
    for part in PARTS:
        if part in values:
            yield Problem(part, f"stands under base; write base.{part}")
    base = values.get("base", {})
    yield from _problems_of_varied(knobs["vary"], knobs["tune"], base)
    if not isinstance(base, Mapping):
        return
    for key in [key for key in base if key not in PARTS]:
        inside = [knob for knob in KNOBS if knob.startswith(PARTS) and knob.partition(".")[2] == key]
        told = f"is not a known key; {nearest(str(key), inside or [*PARTS])}"
        beside = "stands beside base, not under it" if key in SweepSpec.model_fields else _BESIDE_BASE.get(key)
        yield Problem(f"base.{key}", beside or told)
    if isinstance(architecture := base.get("architecture"), Mapping):
        yield from _problems_of_architecture(architecture, values.get("shapes") is not None)
    if isinstance(recipe := base.get("recipe"), Mapping):
        if "budget" in recipe:
            yield Problem("base.recipe.budget", "stands under budgets, beside base")
        beside_base = {key: told for key, told in _BESIDE_BASE.items() if key in recipe}
        yield from (Problem(f"base.recipe.{key}", told) for key, told in beside_base.items())
        given = {key: value for key, value in recipe.items() if key not in beside_base}
        try:
            Recipe.parse({**given, "budget": {"steps": 1}}, "base.recipe")
        except InputError as error:
            yield from error.problems
    yield from _problems_of_budgets(values, base)


def _problems_of_varied(varied: object, tuned: object, base: object) -> Iterator[Problem]:
    """What is wrong with knobs that are varied and have another place."""
    elsewhere = flatten(base) if isinstance(base, Mapping) else {}
    for path in varied if isinstance(varied, Mapping) else ():
        place = f"vary.{path}"
        if isinstance(tuned, Mapping) and path in tuned:
            yield Problem(place, "is tuned too; leave it out of one of the two")
        elif path in elsewhere:
            yield Problem(place, "has a value in base too; leave it out there")


def _problems_of_architecture(given: Mapping[Any, Any], has_shapes: bool) -> Iterator[Problem]:
    place = "base.architecture"
    for size in [size for size in LARGEST if size in given]:
        if has_shapes:
            yield Problem(f"{place}.{size}", "is what shapes give; leave it out here")
        elif isinstance(value := number_in(given[size]), int | float) and (why := why_beyond(size, value)):
            yield Problem(f"{place}.{size}", f"{value:g} is {why}")
    for key, value in given.items():
        yield from _problems_of_words(f"{place}.{key}", str(key), [value])
    sensible = {key: value for key, value in given.items() if key not in LARGEST and key not in COUNTED_ALONE}
    try:
        Architecture.parse({"depth": 1, "width": 1, "heads": 1, "ffn": 1, "vocabulary": 1} | sensible, place)
    except InputError as error:
        yield from error.problems


def _problems_of_words(place: str, field: str, asked: object) -> Iterator[Problem]:
    """Which values cannot be trained, of a field of the architecture that can be counted at more than can."""
    built = built_words(field)
    for value in asked if field in COUNTED_ALONE and isinstance(asked, list) else ():
        if value not in built:
            yield Problem(place, f"{shown(value)} cannot be trained; {' or '.join(built)} can")


def _problems_of_budgets(values: Mapping[str, Any], base: Mapping[Any, Any]) -> Iterator[Problem]:
    """Budgets in tokens below one batch, where the file fixes the batch; other budgets depend on the shapes."""
    recipe, knobs = base.get("recipe"), [values.get("tune"), values.get("vary")]
    varies = values.get("search") is not None or any(
        "recipe.batch_tokens" in each for each in knobs if isinstance(each, Mapping)
    )
    given = {key: recipe[key] for key in ("batch_tokens",) if isinstance(recipe, Mapping) and key in recipe}
    try:
        batch = Recipe.parse({**given, "budget": {"steps": 1}}).batch_tokens
        budgets = Budgets.parse(values.get("budgets"))
    except InputError:
        return  # told already
    for tokens in budgets.tokens:
        if tokens < batch and not varies:
            yield Problem("budgets.tokens", f"{whole(tokens):,} tokens are less than one batch of {batch:,}")
