"""What an encoder of any shape would cost and reach: counts, memory, latency, predicted loss and score, and its neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from study.base.errors import InputError
from study.base.quantities import read_whole
from study.base.schema import number_in
from study.counting.architecture import Architecture, unbuildable, unlike_bert
from study.counting.latency import LatencyModel, fit_latency, kind_words, read_table
from study.counting.memory import WeightFormat, inference_memory
from study.counting.named_models import catalogue, named
from study.counting.parameters import parameters
from study.dashboard.law_lines import MOST_AHEAD, offers_of, prediction_of, tasks_of
from study.dashboard.library import Library, stamp_of
from study.shapes.accounts import USUAL_LENGTH, Account, Conditions, account, training_flops

BASE = "bert-base"
"""The model whose values stand where an address gives none."""

NEIGHBOURS = 5
"""The named models that are called nearest."""

MOST = 10_000_000
"""The largest size."""

MOST_TOKENS = 1e15
"""The most training tokens."""

FIELDS = tuple(name for name, field in Architecture.model_fields.items() if not field.exclude)
"""The fields of an architecture that a user chooses."""


def what_if_form(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an architecture with their kinds, and the named models to begin from.

    Meanwhile the laws are fitted that the menus of the page choose from, those of the chosen `sweep` first.
    """
    library.make_ahead(_choices(library, asked.get("sweep", "")))
    models = {model.short_name: model.architecture.model_dump(mode="json") for model in catalogue()}
    fields = [_field(name) for name in FIELDS]
    return {"fields": fields, "models": models, "base": BASE, "sequence_length": USUAL_LENGTH}


def _choices(library: Library, chosen: str) -> Iterator[Callable[[], object]]:
    """Predict by every law and for every task of the chosen sweep, then as the other sweeps do when they are chosen."""
    for name in sorted(library.folders(), key=lambda name: name != chosen):
        shot = library.snapshot(name)
        if shot.live:
            continue
        yield partial(what_if, library, {"sweep": name})
        if name == chosen:
            for offer in offers_of(library, shot)[1:MOST_AHEAD]:
                yield partial(what_if, library, {"sweep": name, "law": offer.key})
            for task in [*tasks_of(library, shot)][1:]:
                yield partial(what_if, library, {"sweep": name, "task": task})


def _field(name: str) -> dict[str, Any]:
    annotation = Architecture.model_fields[name].annotation
    optional = type(None) in get_args(annotation)
    words = [word for one in (annotation, *get_args(annotation)) if get_origin(one) is Literal for word in get_args(one)]
    is_flag = annotation is bool or bool in get_args(annotation)
    is_real = float in (annotation, *get_args(annotation)) or any(float in get_args(one) for one in get_args(annotation))
    kind = "choice" if words else "flag" if is_flag else "real" if is_real else "count"
    return {"name": name, "kind": kind, "optional": optional, "words": words}


def what_if(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """Everything that is counted or predicted for the architecture of an address; `problems` where there is none.

    Counts are those of `study params`.
    """
    try:
        architecture = architecture_asked(asked)
        conditions = _conditions(asked, architecture)
    except InputError as error:
        return {"problems": [_in_words(problem.place, problem.message) for problem in error.problems]}
    counted, precision = account(architecture, conditions), _precision(asked)
    return {
        "architecture": architecture.model_dump(mode="json"),
        "account": counted.to_dict() | (_memory_in_int8(counted) if counted.memory and precision == "int8" else {}),
        "totals": counted.count.totals(),
        "parts": [{"part": one.part, "name": one.name, "count": one.count} for one in counted.count.components],
        "unlike_bert": sorted(unlike_bert(architecture)),
        "unbuildable": unbuildable(architecture),
        "models": _counted_models(conditions.sequence_length),
        "nearest": _nearest(architecture, conditions.sequence_length),
        "latency": _latencies(library, architecture, conditions, precision),
        "prediction": _prediction(library, asked, architecture, conditions.sequence_length),
        "problems": [],
    }


def architecture_asked(asked: Mapping[str, str]) -> Architecture:
    """Return the architecture of an address: a named model with the fields that the address gives; raises InputError."""
    values = named(asked.get("model") or BASE).model_dump()
    for name in FIELDS:
        if (given := asked.get(name)) is None:
            continue
        kind = _field(name)["kind"]
        if kind == "count" and given not in ("", "none"):
            values[name] = 0 if given == "0" else read_whole(name, given)
            if values[name] > MOST:
                raise InputError.at(name, f"is {values[name]:,}; the most is {MOST:,}")
        elif kind == "real" and given not in ("", "none"):
            values[name] = number_in(given)
        elif kind == "flag":
            values[name] = None if given in ("", "none") else given == "true"
        else:
            values[name] = None if given in ("", "none") and _field(name)["optional"] else given
    return Architecture.parse(values)


def _conditions(asked: Mapping[str, str], architecture: Architecture) -> Conditions:
    length = read_whole("sequence length", asked.get("sequence_length") or str(min(USUAL_LENGTH, architecture.positions)))
    if not 1 <= length <= architecture.positions:
        message = f"is {length:,}; it is from 1 to the number of positions, {architecture.positions:,}"
        raise InputError.at("sequence length", message)
    batch = read_whole("batch", asked.get("batch") or "32")
    if not 1 <= batch <= MOST:
        raise InputError.at("batch", f"is {batch:,}; it is from 1 to {MOST:,}")
    return Conditions(length, batch, "bf16" if _precision(asked) == "bf16" else "fp32")


def _precision(asked: Mapping[str, str]) -> WeightFormat:
    """Return the precision of an address; int8 is for inference."""
    given = asked.get("precision") or "fp32"
    known: dict[str, WeightFormat] = {one: one for one in get_args(WeightFormat)}
    if given not in known:
        raise InputError.at("precision", f"is {given}; it is {', '.join(known)}")
    return known[given]


def _memory_in_int8(counted: Account) -> dict[str, Any]:
    """Return the memory of an account with inference in int8, and training, which int8 is not for, in fp32."""
    at = counted.conditions
    inference = inference_memory(counted.architecture, at.batch, at.sequence_length, "int8")
    training = {use: memory.to_dict() for use, memory in counted.memory.items()}
    return {"memory": {"setting": f"{at}; inference in int8"} | training | {"inference": inference.to_dict()}}


def _in_words(place: str, message: str) -> str:
    return f"{place.replace('_', ' ')}: {message}"


@lru_cache(maxsize=64)
def _counted_models(length: int) -> tuple[dict[str, Any], ...]:
    """Return the named models with their counts, at a sequence length or at their positions if these are fewer."""
    return tuple(
        {
            "name": model.short_name,
            "family": model.family,
            "shape": model.architecture.shape_name,
            "vocabulary": model.architecture.vocabulary,
            **parameters(model.architecture).totals(),
            "flops_per_token": _flops_per_token(model.architecture, length),
        }
        for model in catalogue()
    )


def _flops_per_token(architecture: Architecture, length: int) -> float:
    return training_flops(architecture, min(length, architecture.positions))[1]["train_flops"]


def _nearest(architecture: Architecture, length: int) -> list[str]:
    """Return the named models nearest in the logarithms of parameters and FLOPs a token."""
    own = math.log(parameters(architecture).parameters_encoder), math.log(_flops_per_token(architecture, length))

    def distance(row: Mapping[str, Any]) -> float:
        return math.dist(own, (math.log(row["parameters_encoder"]), math.log(row["flops_per_token"])))

    return [row["name"] for row in sorted(_counted_models(length), key=distance)[:NEIGHBOURS]]


def _latencies(
    library: Library, architecture: Architecture, conditions: Conditions, precision: WeightFormat
) -> list[dict[str, Any]]:
    """Return the latency by each table below the folder, or why one gives none."""
    root, setting = library.root, (conditions.batch, conditions.sequence_length)
    rows: list[dict[str, Any]] = []
    for path in sorted({*root.glob("latency/*/table.csv"), *root.glob("*/latency/*/table.csv")}):
        machine = path.parent.name
        try:
            rows += [
                {
                    "machine": machine,
                    "threads": model.threads,
                    "seconds": model.seconds(architecture, *setting),
                    "error": model.error,
                    "beyond": model.beyond(architecture, *setting),
                }
                for model in _latency_models(library, path, architecture, precision, setting)
            ]
        except InputError as error:
            rows.append({"machine": machine, "problem": f"its table {'; '.join(each.message for each in error.problems)}"})
    return rows


def _latency_models(
    library: Library, path: Path, kind: Architecture, precision: WeightFormat, setting: tuple[int, int]
) -> list[LatencyModel]:
    """Return the latency model of a kind for each number of threads that a table has.

    Raises InputError for an unsuitable table.
    """

    def fitted() -> list[LatencyModel]:
        table = read_table(path)
        threads = sorted(table.loc[table["precision"] == precision, "threads"].unique().tolist())
        return [fit_latency(table, precision, count, setting, kind=kind) for count in threads or (None,)]

    return library.kept(("latency", path, kind_words(kind), precision, setting), stamp_of(path), fitted)


def _prediction(library: Library, asked: Mapping[str, str], architecture: Architecture, length: int) -> dict[str, Any] | None:
    """Return the loss, and the score of a task, by the laws of the chosen sweep; None where no sweep is chosen."""
    if not asked.get("sweep"):
        return None
    shot = library.snapshot(asked["sweep"])
    offers = {offer.key: offer.words for offer in offers_of(library, shot)}
    key = asked["law"] if asked.get("law") in offers else next(iter(offers), None)
    tasks = [*tasks_of(library, shot)]
    task = asked["task"] if asked.get("task") in tasks else next(iter(tasks), "")
    laws = {"laws": offers, "law": key, "tasks": tasks, "task": task}
    if key is None:
        return laws | {"why_not": "The runs of this sweep allow no law: they are too few, or of too few sizes and budgets."}
    try:
        tokens = float(read_whole("tokens", asked.get("tokens") or "1M"))
        if not 1 <= tokens <= MOST_TOKENS:
            raise InputError.at("tokens", f"is {tokens:,.0f}; it is from 1 to {MOST_TOKENS:,.0f}")
        return laws | prediction_of(library, shot, key, task, architecture, tokens, length)
    except InputError as error:
        return laws | {"why_not": "; ".join(_in_words(problem.place, problem.message) for problem in error.problems)}
