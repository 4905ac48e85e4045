"""A fitted law as the JSON of `study fit --json`, and its loss for a shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from study.base.durable_files import json_value
from study.base.errors import InputError, Problem, option_name, shown
from study.base.quantities import plural, span
from study.base.schema import Count, Index, Positive, Strict, Text
from study.counting.architecture import SIZES, Architecture
from study.counting.parameters import TOTALS, parameters
from study.laws.catalogue import LAWS, find_law
from study.laws.estimation import Settings
from study.laws.law import Law
from study.laws.minimising import Space
from study.laws.observations import VOCABULARY
from study.laws.uncertainty import UNUSABLE

_DOUBTS = {
    "weakly_identified": "is weakly identified",
    "lack_of_fit": "omits something",
    "missed_forecast": "missed the largest runs that it was fitted to",
    "reads_no_order": "is of encoders that read no word order",
}
"""The note on a law, by status of its fit."""


@dataclass(frozen=True)
class FittedLaw:
    """A law of loss with its estimates; `convention` names the total of TOTALS that `parameters` counts.

    `notes` are doubts about the fit, `ranges` the ranges of its variables, `alike` what its runs share; each is empty if
    unknown.
    """

    law: Law
    estimates: Mapping[str, float]
    convention: str
    notes: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    alike: Mapping[str, int] = field(default_factory=dict)

    def loss_nats(self, architecture: Architecture, tokens: float | None) -> float:
        """Return the loss of a shape; raises InputError if tokens are missing."""
        columns = {name: np.array([value]) for name, value in self._values(architecture, tokens).items()}
        return float(self.law.predict(self.estimates, columns)[0])

    def beyond(self, architecture: Architecture, tokens: float | None) -> set[str]:
        """Return the variables for which a shape lies outside the fitted range."""
        values = self._values(architecture, tokens)
        return {name for name, (low, high) in self.ranges.items() if not low <= values[name] <= high}

    def notes_on(self, shapes: Sequence[Architecture], vocabulary: int, tokens: float | None) -> list[str]:
        """Write notes on predicted losses: doubts about the fit, another vocabulary, extrapolated shapes."""
        notes = [*self.notes]
        if (fitted := self.alike.get(VOCABULARY, vocabulary)) != vocabulary:
            notes.append(
                f"{self.law.name} was fitted to runs of vocabulary {fitted:,}, and these shapes have {vocabulary:,}; "
                f"losses over other vocabularies are not comparable: give --vocabulary {fitted}"
            )
        beyond = Counter(name for shape in shapes for name in self.beyond(shape, tokens))
        return notes + [
            f"{self.law.name} is extrapolated for {beyond[name]} of {plural(len(shapes), 'shape')}: it was fitted to {name} of "
            f"{span(*self.ranges[name])}"
            for name in self.ranges
            if beyond[name]
        ]

    def _values(self, architecture: Architecture, tokens: float | None) -> dict[str, float]:
        if tokens is None and "tokens" in self.law.variables:
            raise InputError.at("--tokens", f"is missing; {self.law.name} gives the loss after a number of tokens, such as 1B")
        values: dict[str, float] = {size: getattr(architecture, size) for size in SIZES}
        values |= {"parameters": parameters(architecture).totals()[self.convention], "tokens": tokens or 0.0}
        return {name: float(values[name]) for name in self.law.variables}


class _Rows(Strict):
    """The row fields of `study fit --json`."""

    warnings: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)
    alike: dict[str, int] = Field(default_factory=dict)


@dataclass(frozen=True)
class FittedScore:
    """A task's score at sizes in two steps: a law of the loss, and one of the score at a loss."""

    loss: FittedLaw
    law: Law
    estimates: Mapping[str, float]

    def score(self, architecture: Architecture, tokens: float | None) -> float:
        """Return the score of a shape; raises InputError if tokens are missing."""
        loss = {"loss": np.array([self.loss.loss_nats(architecture, tokens)])}
        return float(self.law.predict(self.estimates, loss)[0])


def read_score_law(path: Path, convention: str | None = None) -> FittedScore:
    """Read both steps from what `study score-law --json` prints; raises InputError as `read_law` does."""
    steps = read_json_fit(path).get("two_steps")
    if not isinstance(steps, dict) or not all(isinstance(steps.get(step), dict) for step in ("loss", "score")):
        raise InputError.at(str(path), "holds no law of a score in two steps; give what study score-law --json prints")
    law, values = LAWS["score-of-loss"], steps["score"]
    estimates, problems = estimates_of(law, values, path)
    if problems := [*problems, *unusable_fit(law, values, path)]:
        raise InputError(problems)
    return FittedScore(_law_in(steps["loss"], path, convention), law, estimates)


def read_law(path: Path, convention: str | None = None) -> FittedLaw:
    """Read a law from JSON: `law`, `estimates`, and the total under `columns` that `parameters` counts.

    `convention`, one of TOTALS, is that total if the file names another table's column. Raises InputError, with every problem,
    if the file has no law of loss in shape sizes and tokens, a failed fit, a fit on a bound, or another total than
    `convention`.
    """
    return _law_in(read_json_fit(path), path, convention)


def _law_in(values: Mapping[str, Any], path: Path, convention: str | None) -> FittedLaw:
    name = values.get("law")
    if not isinstance(name, str):
        raise InputError.at(str(path), f"holds no law ({shown(name)} under 'law'); give what study fit --json prints")
    law = find_law(name, str(path))
    estimates, missing = estimates_of(law, values, path)
    counted, unclear = _count_of_parameters(law, values, path, convention)
    if problems := [*_unsuitable(law, path), *missing, *unclear, *unusable_fit(law, values, path)]:
        raise InputError(problems)
    rows = _Rows.parse({key: values[key] for key in _Rows.model_fields if key in values}, str(path))
    notes = doubts_of(law, values)
    ranges = {variable: rows.ranges[variable] for variable in law.variables if variable in rows.ranges}
    return FittedLaw(law, estimates, counted, tuple(notes), ranges, rows.alike)


def _unsuitable(law: Law, path: Path) -> list[Problem]:
    foreign = [variable for variable in law.variables if variable not in (*SIZES, "parameters", "tokens")]
    problems = [Problem(str(path), f"{law.name} needs {variable}, which a shape does not have") for variable in foreign]
    if law.predicts != "loss":
        problems.append(Problem(str(path), f"{law.name} predicts the {law.predicts}, not the loss"))
    return problems


def estimates_of(law: Law, values: Mapping[str, Any], path: Path) -> tuple[dict[str, float], list[Problem]]:
    """Return the estimates in a fit's JSON, and the problem of each that is missing."""
    given = values.get("estimates")
    known: Mapping[str, Any] = given if isinstance(given, dict) else {}
    numbers = {name: value for name, value in known.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    missing = [name for name in law.parameters if name not in numbers]
    problems = [Problem(f"{path}: estimates.{name}", f"is {shown(known.get(name))}, not a number") for name in missing]
    return {name: float(numbers[name]) for name in law.parameters if name in numbers}, problems


def _count_of_parameters(law: Law, values: Mapping[str, Any], path: Path, convention: str | None) -> tuple[str, list[Problem]]:
    columns = values.get("columns") or {}
    counted: Any = columns.get("parameters", "parameters") if isinstance(columns, dict) else columns
    source = f"{path}: columns.parameters"
    if counted in TOTALS and convention not in (None, counted):
        return counted, [Problem(source, f"is {counted}, and --law-convention says {convention}; leave the option out")]
    if counted not in TOTALS and convention is None and "parameters" in law.variables:
        choices = ", ".join(TOTALS)
        message = f"{shown(counted)} is none of {choices}; name the total that your column counts with --law-convention"
        return "", [Problem(source, message)]
    return convention or str(counted), []


def unusable_fit(law: Law, values: Mapping[str, Any], path: Path) -> list[Problem]:
    """Why a fit's constants mean nothing; empty if they may be used."""
    if (status := values.get("status")) not in UNUSABLE:
        return []
    ended = "failed" if status == "failed" else "ended on a bound"
    return [Problem(str(path), f"holds a fit of {law.name} that {ended} ({_reasons(values)}); fit another law, or more runs")]


def doubts_of(law: Law, values: Mapping[str, Any]) -> list[str]:
    """Return the doubts that a fit's status raises, and its warnings, such as that losses are in bits."""
    doubt, warnings = _DOUBTS.get(str(values.get("status"))), values.get("warnings")
    doubts = [f"{law.name} {doubt} ({_reasons(values)})"] if doubt else []
    return [
        *doubts,
        *(f"{law.name} was fitted with a warning: {warning}" for warning in (warnings if isinstance(warnings, list) else ())),
    ]


def _reasons(values: Mapping[str, Any]) -> str:
    return "; ".join(map(str, values.get("reasons") or ()))


@dataclass(frozen=True)
class FitOptions:
    """How to repeat a fit: law, columns, settings and held-out share, without the table."""

    law: str
    source: Mapping[str, Any]
    settings: Settings
    held_out: float

    def refuse_contradictions(self, path: Path, given: Mapping[str, object]) -> None:
        """Raise InputError for options that contradict these."""
        counted = {"law": self.law, **self.source, **self.source["roles"]}
        problems = [
            Problem(option_name(name), f"is {value!r}, and {path} says {counted[name]!r}; leave out that option or --as")
            for name, value in given.items()
            if counted.get(name) and value != counted[name]
        ]
        if problems:
            raise InputError(problems)


class _Options(Strict):
    """The `options` of `study fit --json`: TableQuery fields except the table, Settings fields, and the rest."""

    roles: dict[str, Text]
    where: Text | None
    cluster: Text | None
    budget: Text | None
    any_units: bool
    bracketed_only: bool
    best_of: Text | None = None
    hold_out: Text | None = None
    leave_out_group: Text | None = None
    huber_delta: Positive | None
    space: Space
    bootstrap: Index
    seed: Index
    starts: Count
    held_out: Annotated[float, Field(gt=0, le=0.9)]


def read_options(path: Path) -> FitOptions:
    """Read the options from `study fit --json`; raises InputError if the file has none."""
    values = read_json_fit(path)
    name = values.get("law")
    if "options" not in values or not isinstance(name, str):
        raise InputError.at(str(path), "holds no law with its options; give what study fit --json prints")
    find_law(name, str(path))
    options = _Options.parse(values["options"], f"{path}: options").model_dump()
    held_out, delta = options.pop("held_out"), options.pop("huber_delta")
    settings = {each.name: options.pop(each.name) for each in fields(Settings) if each.name != "huber_delta"}
    return FitOptions(name, options, Settings(huber_delta=np.inf if delta is None else delta, **settings), held_out)


def read_json_fit(path: Path) -> dict[str, Any]:
    """Return the JSON of study fit; raises InputError for any other file."""
    try:
        values = json_value(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError.at(str(path), "does not exist; study fit --json prints such a file") from None
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError.at(str(path), f"is not JSON: {error}; give what study fit --json prints") from None
    if not isinstance(values, dict):
        raise InputError.at(str(path), "holds no keys and values; give what study fit --json prints")
    return values
