"""A fitted law as a file, the JSON of `study fit --json`, and its loss for a shape."""

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
from study.laws.catalogue import find_law
from study.laws.estimation import Settings
from study.laws.law import Law
from study.laws.minimising import Space
from study.laws.observations import VOCABULARY
from study.laws.uncertainty import UNUSABLE

_DOUBTS = {
    "weakly_identified": "is weakly identified",
    "lack_of_fit": "leaves something out",
    "missed_forecast": "missed the largest runs that it was fitted to",
    "reads_no_order": "is of encoders that read no word order",
}
"""By status of a fit: what notes say of its law."""


@dataclass(frozen=True)
class FittedLaw:
    """A law of loss with its estimates; `convention` says which of the TOTALS its variable `parameters` counts.

    `notes` describe doubts about its fit, `ranges` the values of its variables, and `alike` what else its runs had in common;
    all are empty where the file does not say.
    """

    law: Law
    estimates: Mapping[str, float]
    convention: str
    notes: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    alike: Mapping[str, int] = field(default_factory=dict)

    def loss_nats(self, architecture: Architecture, tokens: float | None) -> float:
        """The loss of a shape after a number of tokens; raises InputError where tokens are missing."""
        columns = {name: np.array([value]) for name, value in self._values(architecture, tokens).items()}
        return float(self.law.predict(self.estimates, columns)[0])

    def beyond(self, architecture: Architecture, tokens: float | None) -> set[str]:
        """The variables whose values for a shape lie outside the range of the fit."""
        values = self._values(architecture, tokens)
        return {name for name, (low, high) in self.ranges.items() if not low <= values[name] <= high}

    def notes_on(self, shapes: Sequence[Architecture], vocabulary: int, tokens: float | None) -> list[str]:
        """Notes on the losses of shapes: those of the fit, another vocabulary, and shapes outside the ranges."""
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
        """The values of the law's variables for a shape."""
        if tokens is None and "tokens" in self.law.variables:
            raise InputError.at("--tokens", f"is missing; {self.law.name} gives the loss after a number of tokens, such as 1B")
        values: dict[str, float] = {size: getattr(architecture, size) for size in SIZES}
        values |= {"parameters": parameters(architecture).totals()[self.convention], "tokens": tokens or 0.0}
        return {name: float(values[name]) for name in self.law.variables}


class _Rows(Strict):
    """What `study fit --json` prints about the rows of a fit."""

    warnings: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)
    alike: dict[str, int] = Field(default_factory=dict)


def read_law(path: Path, convention: str | None = None) -> FittedLaw:
    """Read the law of a JSON file: `law`, `estimates`, and under `columns` which total `parameters` counts.

    `convention`, one of TOTALS, is that total where the file names a column of another table. Raises InputError, with every
    problem, where the file holds no law of loss in the sizes of a shape and tokens, where its fit failed or ended on a bound,
    and where it names another total than `convention`.
    """
    values = _read(path)
    name = values.get("law")
    if not isinstance(name, str):
        raise InputError.at(str(path), f"holds no law ({shown(name)} under 'law'); give what study fit --json prints")
    law = find_law(name, str(path))
    problems = [
        Problem(str(path), f"{name} needs {variable}, which a shape does not have")
        for variable in law.variables
        if variable not in (*SIZES, "parameters", "tokens")
    ]
    if law.predicts != "loss":
        problems.append(Problem(str(path), f"{name} predicts the {law.predicts}, not the loss"))
    estimates = values.get("estimates")
    known: Mapping[str, Any] = estimates if isinstance(estimates, dict) else {}
    for parameter in law.parameters:
        if not isinstance(known.get(parameter), int | float) or isinstance(known[parameter], bool):
            problems.append(Problem(f"{path}: estimates.{parameter}", f"is {shown(known.get(parameter))}, not a number"))
    columns = values.get("columns") or {}
    told: Any = columns.get("parameters", "parameters") if isinstance(columns, dict) else columns
    place = f"{path}: columns.parameters"
    if "parameters" in law.variables and told not in TOTALS and convention is None:
        message = f"{shown(told)} is none of {', '.join(TOTALS)}; say by --law-convention which of them your column counts"
        problems.append(Problem(place, message))
    if told in TOTALS and convention not in (None, told):
        problems.append(Problem(place, f"is {told}, and --law-convention says {convention}; leave the option out"))
    status, reasons = values.get("status"), "; ".join(map(str, values.get("reasons") or ()))
    if status in UNUSABLE:
        message = f"holds a fit of {name} that {'failed' if status == 'failed' else 'ended on a bound'} ({reasons}); "
        problems.append(Problem(str(path), f"{message}fit another law, or more runs"))
    if problems:
        raise InputError(problems)
    notes = [f"{name} {_DOUBTS[status]} ({reasons})"] if status in _DOUBTS else []
    rows = _Rows.parse({key: values[key] for key in _Rows.model_fields if key in values}, str(path))
    notes += [f"{name} was fitted with a warning: {warning}" for warning in rows.warnings]
    ranges = {variable: rows.ranges[variable] for variable in law.variables if variable in rows.ranges}
    known_estimates = {name: float(known[name]) for name in law.parameters}
    return FittedLaw(law, known_estimates, convention or told, tuple(notes), ranges, rows.alike)


@dataclass(frozen=True)
class FitOptions:
    """How an earlier fit was made: law, columns, settings, and the share held out, without the table."""

    law: str
    source: Mapping[str, Any]
    settings: Settings
    held_out: float

    def refuse_contradictions(self, path: Path, given: Mapping[str, object]) -> None:
        """Raise InputError for every option that contradicts these."""
        told = {"law": self.law, **self.source, **self.source["roles"]}
        problems = [
            Problem(option_name(name), f"is {value!r}, and {path} says {told[name]!r}; leave out it or --as")
            for name, value in given.items()
            if told.get(name) and value != told[name]
        ]
        if problems:
            raise InputError(problems)


class _Options(Strict):
    """What `study fit --json` prints under `options`: fields of a TableQuery but the table, those of Settings, the rest."""

    roles: dict[str, Text]
    where: Text | None
    cluster: Text | None
    budget: Text | None
    any_units: bool
    bracketed_only: bool
    best_of: Text | None = None
    huber_delta: Positive | None
    space: Space
    bootstrap: Index
    seed: Index
    starts: Count
    held_out: Annotated[float, Field(gt=0, le=0.9)]


def read_options(path: Path) -> FitOptions:
    """Read the options of a file of `study fit --json`; raises InputError where it holds none."""
    values = _read(path)
    name = values.get("law")
    if "options" not in values or not isinstance(name, str):
        raise InputError.at(str(path), "holds no law with its options; give what study fit --json prints")
    find_law(name, str(path))
    options = _Options.parse(values["options"], f"{path}: options").model_dump()
    held_out, delta = options.pop("held_out"), options.pop("huber_delta")
    settings = {each.name: options.pop(each.name) for each in fields(Settings) if each.name != "huber_delta"}
    return FitOptions(name, options, Settings(huber_delta=np.inf if delta is None else delta, **settings), held_out)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json_value(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError.at(str(path), "does not exist; study fit --json prints what it should hold") from None
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError.at(str(path), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError.at(str(path), "holds no keys and values; give what study fit --json prints")
    return values
