"""Strict, frozen models that report all problems together, with their paths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from study.base.errors import InputError, Problem, near, nearest, shown
from study.base.quantities import read_count


def _number(value: object) -> object:
    """Parse a number such as 10M, 190,350,517 or 2e5; other values stay, booleans are refused."""
    if type(value) in (int, float):  # the common case, as in records
        return value
    if isinstance(value, bool):
        raise ValueError("is true or false, not a number")
    written = isinstance(value, str) and (value[-1:].isalpha() or "," in value or "e" in value.lower())
    return number_in(value) if written else value


_Number = BeforeValidator(_number)
"""Reads every number of a file: 16K is 16,000, as on the command line."""

HELD = (1e-37, 1e37)
"""The range of a run's nonzero numbers, near that of single precision."""

MOST = 2**63 - 1
"""The largest 64-bit integer."""

Count = Annotated[int, Field(ge=1, le=MOST), _Number]
"""A whole number, at least one; 2e5 is accepted for 200000."""

Index = Annotated[int, Field(ge=0, le=MOST), _Number]
"""A whole number, at least zero."""


def _held(value: float) -> float:
    """Return the value, with -0.0 as zero; raises ValueError outside HELD."""
    if value and not HELD[0] <= value <= HELD[1]:
        raise ValueError("is beyond what devices calculate with, {:g} to {:g}".format(*HELD))
    return abs(value)


Number = Annotated[float, _Number]
"""A finite number."""

Positive = Annotated[float, Field(gt=0), _Number, AfterValidator(_held)]
"""A finite number above zero; PyYAML reads 1e-3 as a string, which is accepted."""

NonNegative = Annotated[float, Field(ge=0), _Number, AfterValidator(_held)]
"""A finite number, zero or above; -0.0 becomes 0.0."""

Share = Annotated[float, Field(ge=0, le=1), _Number, AfterValidator(_held)]
"""A share between 0 and 1; -0.0 becomes 0.0."""

Text = Annotated[str, Field(min_length=1)]
"""A nonempty string."""

ItemT = TypeVar("ItemT")


def each_once(values: tuple[ItemT, ...]) -> tuple[ItemT, ...]:
    """Return the values; raises ValueError for a repeated one."""
    for value, count in Counter(values).items():
        if count > 1:
            repeated: object = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
            if isinstance(repeated, float):
                repeated = whole(repeated)
            raise ValueError(f"holds {shown(repeated)} twice; list it once")
    return values


def _not_empty(values: tuple[ItemT, ...]) -> tuple[ItemT, ...]:
    if not values:
        raise ValueError("is empty")
    return values


def _listed(value: object) -> object:
    return (value,) if isinstance(value, int | float | str) else value


Distinct = Annotated[tuple[ItemT, ...], AfterValidator(each_once)]
"""Any number of distinct values; a repeated one is an error, since dropping it could hide a typo."""

Several = Annotated[Distinct[ItemT], AfterValidator(_not_empty)]
"""One or more distinct values; Field(min_length=1) would also call a list of invalid items empty."""

OneOrSeveral = Annotated[Several[ItemT], BeforeValidator(_listed)]
"""One or more distinct values; a single one needs no brackets."""


class Strict(BaseModel):
    """A frozen model that refuses unknown keys and infinite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @classmethod
    def parse(
        cls, values: object, place: str = "", unknown: Literal["forbid", "ignore"] = "forbid", context: object = None
    ) -> Self:
        """Validate a mapping; `unknown` says whether unknown keys are errors, and validators see `context`.

        Raises InputError with every problem under its dotted path below `place`.
        """
        if not isinstance(values, Mapping):
            raise InputError.at(place, f"is {shown(values)}, not keys and values")
        try:
            return cls.model_validate(values, extra=unknown, context=context)
        except ValidationError as error:
            raise InputError(_problems(cls, error, place)) from None

    @classmethod
    def known_keys(cls) -> dict[str, Any]:
        """Return the keys as files spell them, with their types."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}


ModelT = TypeVar("ModelT", bound=Strict)

SAME_LIKENESS = 0.9
"""The similarity from which a key of the same mapping is suggested: about that of a plural."""


MOST_HINTS = 100
"""At most so many problems of one model say what may be meant."""


def join_path(*parts: str | int) -> str:
    """`a.b[2].c` from its parts, without empty ones."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part:
            path += f".{part}" if path else part
    return path


class Mismatches(ValueError):
    """Several things that are wrong between the parts of one model; each is a problem of its own."""

    def __init__(self, messages: Sequence[str]) -> None:
        super().__init__("; ".join(messages))
        self.messages = messages


def _problems(model: type[Strict], error: ValidationError, place: str) -> list[Problem]:
    """Every problem once, in the order of the fields; the first MOST_HINTS have hints."""
    problems: dict[str, list[Problem]] = {}
    for detail in error.errors(include_url=False):
        unknown = detail["type"] == "extra_forbidden"
        path = join_path(place, *_without_tags(detail["loc"], unknown))
        message = "is not a known key" if unknown and len(problems) >= MOST_HINTS else _message(model, detail)
        raised = detail.get("ctx", {}).get("error")
        messages = raised.messages if isinstance(raised, Mismatches) else [message]
        problems.setdefault(path, [Problem(path, each) for each in messages])
    return [*chain.from_iterable(problems.values())]


def _without_tags(location: tuple[str | int, ...], own_key: bool) -> tuple[str | int, ...]:
    """Return a location without the names that pydantic adds for the arms of a union.

    An unknown key at its end is no such name.
    """
    tags, last = ("int", "float", "str", "bool"), len(location) - 1
    return tuple(
        part
        for index, part in enumerate(location)
        if isinstance(part, int) or (own_key and index == last) or not ("[" in part or part in tags)
    )


def _message(model: type[Strict], detail: ErrorDetails) -> str:
    value = shown(detail["input"])
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_key(model, detail["loc"])
        case "missing":
            return "is missing and has no default"
        case "value_error":
            reason = str(detail["ctx"]["error"])
            named = detail["loc"][-1:] == ("[key]",)  # the place ends with the key
            return reason if named or isinstance(detail["input"], Mapping | BaseModel) else f"{value} {reason}"
        case "model_type" | "model_attributes_type":
            return f"{value} is not a mapping with keys {', '.join(_model_at(model, detail['loc']).known_keys())}"
        case "dict_type":
            return f"{value} is not a mapping of keys to values"
        case "string_too_short" | "too_short":
            return "is empty"
    return "has no value; give one, or leave it out" if detail["input"] is None else f"{value}{_of_value(model, detail)}"


def _unknown_key(model: type[Strict], location: tuple[str | int, ...]) -> str:
    """Return a message with the nearest key."""
    key = str(location[-1])
    parts = {name: _part(annotation) for name, annotation in _model_at(model, location[:-1]).known_keys().items()}
    inside = [f"{name}.{key}" for name, part in parts.items() if part is not None and key in part.known_keys()]
    inside += [path for path in _paths(model) if path.replace(".", "_") == key]
    meant = inside if near(key, [*parts], SAME_LIKENESS) is None else []
    return f"is not a known key; {nearest(key, meant or [*parts])}"


_LIMITS = {
    "greater_than_equal": ("is below the least allowed, ", "ge"),
    "greater_than": ("must be above ", "gt"),
    "less_than_equal": ("is above the most allowed, ", "le"),
    "less_than": ("must be below ", "lt"),
}
"""The words for pydantic's limit errors, and the key under which they hold the limit."""

_NEEDED = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "is not a whole number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "is neither true nor false"),
    **dict.fromkeys(("float_parsing", "float_type"), "is not a number"),
    "int_parsing_size": "is too large",
    "finite_number": "must be a finite number",
}
"""The words for pydantic's errors of a single value."""


def _of_value(model: type[Strict], detail: ErrorDetails) -> str:
    """Return the problem, to follow the value."""
    kind, given = detail["type"], detail["input"]
    context: dict[str, Any] = detail.get("ctx") or {}
    example = shown(str(given)).strip("'\"")
    if kind in _NEEDED:
        return f" {_NEEDED[kind]}"
    if kind in _LIMITS:
        words, key = _LIMITS[kind]
        return f" {words}{whole(_tightest(key, context[key], model, detail['loc'])):,}"
    match kind:
        case "literal_error":
            known = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
            best = near(str(given), known)
            return f" is not one of {', '.join(known)}{f'; did you mean {best!r}?' if best else ''}"
        case "string_type" if isinstance(given, bool):
            return " is not text; no, yes, on, off, true and false are text only in quotes, as in 'no'"
        case "string_type":
            return f" is not text; write it in quotes, such as '{example}'"
        case "tuple_type" | "list_type":
            item = number_in(example) if "," in example else example  # whose commas would separate items
            return f" is not a list; write it in brackets, such as [{item}]"
        case _:
            return f": {detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _tightest(key: str, broken: float, model: type[Strict], location: tuple[str | int, ...]) -> float:
    """Return the tightest limit of a field whose type has several, of which pydantic names the first that is broken."""
    fields = {field.alias or name: field for name, field in _model_at(model, location[:-1]).model_fields.items()}
    field = fields.get(str(location[-1])) if location else None
    limits = [float(limit) for each in (field.metadata if field else ()) if (limit := getattr(each, key, None)) is not None]
    return max([broken, *limits]) if key.startswith("g") else min([broken, *limits])


def _paths(model: type[Strict]) -> Iterator[str]:
    """Yield the keys within parts, as in `masking.rate`."""
    for name, annotation in model.known_keys().items():
        if (part := _part(annotation)) is not None:
            yield from (f"{name}.{key}" for key in part.known_keys())


def _model_at(model: type[Strict], location: tuple[str | int, ...]) -> type[Strict]:
    annotation: object = model
    for part in location:
        if part in (keys := model.known_keys()):
            annotation = keys[str(part)]
        else:
            annotation = next(_tagged(annotation, str(part)), annotation)
        model = next(_models_in(annotation), model)
    return model


def _tagged(annotation: object, tag: str) -> Iterator[object]:
    """Yield the member of a union that has a tag."""
    if Tag(tag) in getattr(annotation, "__metadata__", ()):
        yield annotation
    for part in get_args(annotation):
        yield from _tagged(part, tag)


def _part(annotation: object) -> type[Strict] | None:
    alternatives = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return next((one for one in alternatives if isinstance(one, type) and issubclass(one, Strict)), None)


def _models_in(annotation: object) -> Iterator[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated recursively by `over`, sharing no mapping."""
    merged = {key: deep_merge(value, {}) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = deep_merge(below if isinstance(below, dict) else {}, value) if isinstance(value, Mapping) else value
    return merged


def set_path(values: dict[str, Any], path: str, value: object) -> None:
    """Set `value` at the dotted `path`, as `set_below` does."""
    set_below(values, path.split("."), value)


def set_below(values: dict[str, Any], keys: Sequence[str], value: object) -> None:
    """Set a value below these keys, creating mappings; raises InputError if a scalar is in the way."""
    *way, last = keys
    here = values
    for depth, part in enumerate(way):
        below = here.setdefault(part, {})
        if not isinstance(below, dict):
            message = f"{'.'.join(way[: depth + 1])} is {shown(below)}, so nothing can be set below it"
            raise InputError.at(".".join(keys), message)
        here = below
    here[last] = value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and value:
            flat.update(flatten(value, path))
        else:
            flat[path] = value
    return flat


def whole(value: float) -> int | float:
    """Return an int if exact, so that 2e5 equals 200000."""
    return int(value) if abs(value) < 2**53 and value == int(value) else value


def number_in(value: object) -> object:
    """Parse a number in a string, as in a file; other values stay."""
    if not isinstance(value, str):
        return value
    try:
        number = read_count("", value) if value[-1:].isalpha() or "," in value else float(value)
    except (InputError, ValueError):
        return value
    return whole(number) if math.isfinite(number) else value
