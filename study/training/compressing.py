"""Compression of a trained encoder: a run of no steps with fewer layers, neurons or directions, or with rounded weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from study.base.durable_files import require_links
from study.base.errors import InputError, map_all
from study.base.quantities import listed
from study.config.named_runs import layers_problem
from study.config.recipe import Budget, Recipe
from study.config.run_config import RunConfig
from study.counting.memory import WeightFormat
from study.data.prepared import PreparedData
from study.store.ownership import work_lock
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution
from study.training.run import train
from study.training.stepless_runs import is_made, logged, put_failure_aside, require_completed
from study.training.trained_runs import check_trained_runs

METHODS = {
    "int8": "weights and products of int8 (on a CPU)",
    "bf16": "weights of bf16",
    "prune=SHARE": "without this share of the FFN's neurons",
    "layers=N": "with N layers: the first, or N:last, or N:spread; or with those of a list, layers=0,2,4",
    "factor=WIDTH": "with token, position and segment tables of this width",
}
"""What `study compress --to` knows."""

_OTHERS = {
    "heads": "attention is as wide as the encoder, so heads cannot be left out alone; prune=SHARE leaves out FFN neurons",
    "sparse": "single zeros save nothing without sparse kernels; prune=SHARE leaves out whole FFN neurons",
    "int4": "torch has no fast products of int4 on a CPU; give int8",
    "fp16": "products of fp16 are slow on a CPU, and bf16 takes as many bytes; give bf16",
}
"""Why other methods are refused."""


@dataclass(frozen=True)
class CompressionMethod:
    """What a compressed run changes in its source; None leaves it."""

    text: str
    layers: int | None = None
    keep: str = "first"
    prune: float | None = None
    factor: int | None = None
    weights: WeightFormat | None = None

    @classmethod
    def parse(cls, text: str) -> CompressionMethod:
        """Return the methods of a text such as `layers=6:spread,int8`, which are applied together.

        Raises InputError for others.
        """
        parsed = cls(text)
        given: set[str] = set()
        for method in _methods(text):
            name, _, value = method.partition("=")
            kind = "weights" if name in ("int8", "bf16") and not value else name
            if kind in given:
                raise InputError.at("--to", f"{text} gives {kind} twice; give another --to for another run")
            given.add(kind)
            parsed = replace(parsed, **_change(method, name, value))
        if not given:
            raise InputError.at("--to", f"is empty; known: {known_methods()}")
        return parsed


def _methods(text: str) -> list[str]:
    """Return a text's methods, whose commas also separate layers."""
    return re.split(r"(?<!\d),|,(?!\d)", ",".join(listed(text))) if listed(text) else []


def _change(method: str, name: str, value: str) -> dict[str, Any]:
    """Return the fields of a CompressionMethod that one word sets."""
    if name in ("int8", "bf16") and not value:
        return {"weights": name}
    if name == "layers" and value:
        number, _, keep = value.partition(":")
        if number.isdecimal() and int(number) and keep in ("", "first", "last", "spread"):
            return {"layers": int(number), "keep": keep or "first"}
        if re.fullmatch(r"\d{1,4}(,\d{1,4})+", value):
            if len({*value.split(",")}) <= value.count(","):
                raise InputError.at("--to", f"{method} names a layer twice; name each once")
            return {"layers": value.count(",") + 1, "keep": value}
        known = "layers=6, layers=6:last, layers=6:spread or a list such as layers=0,2,4"
        raise InputError.at("--to", f"{method} is no number of layers; give {known}")
    if name == "factor" and value:
        if value.isdecimal() and int(value):
            return {"factor": int(value)}
        raise InputError.at("--to", f"{method} is no width of a table; give factor=128")
    if name == "prune" and value:
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if 0 < share < 1:
            return {"prune": share}
        raise InputError.at("--to", f"{method} is no share between 0 and 1; give prune=0.5")
    raise InputError.at("--to", f"{method} is not known; {_OTHERS.get(name) or f'known: {known_methods()}'}")


def known_methods() -> str:
    """All methods, in words."""
    return ", ".join(f"{method} ({meaning})" for method, meaning in METHODS.items())


def compressed_config(source: RunFolder, to: CompressionMethod) -> RunConfig:
    """Return the run of no steps that compresses a completed run, on its text and validation masks.

    Raises InputError if it changes nothing, or more than the source has.
    """
    record = source.record()
    assert record is not None, "a completed run has a record"
    given, architecture = record.config, record.config.architecture.model_copy(update={"pair_head": False})
    changes: dict[str, Any] = {}
    if to.layers is not None:
        named = to.keep if "," in to.keep else to.layers
        if to.layers >= architecture.depth:
            raise InputError.at("--to", f"layers={named} leaves out none of {architecture.depth} layers; give fewer")
        if problem := layers_problem(architecture.depth, to.layers, to.keep):
            raise InputError.at("--to", f"layers={named}, but {source.path} {problem}")
        changes["depth"] = to.layers
    if to.prune is not None:
        changes["ffn"] = round((1 - to.prune) * architecture.ffn)
        if not 0 < changes["ffn"] < architecture.ffn:
            left = f"leaves {changes['ffn']} of {architecture.ffn} neurons"
            raise InputError.at("--to", f"prune={to.prune:g} {left}; give a share that leaves out some and keeps some")
    if to.factor is not None:
        if to.factor >= architecture.table_width:
            raise InputError.at("--to", f"factor={to.factor} is no narrower than the tables, {architecture.table_width}")
        changes["embedding_width"] = to.factor
    weights = to.weights or given.recipe.weights
    if not changes and weights == given.recipe.weights:
        raise InputError.at("--to", f"the weights of {source.path} are stored in {weights} already")
    precision = "fp32" if record.environment is None or weights == "int8" else record.environment.precision
    kept = "" if to.keep == "first" else f":{to.keep}"
    recipe = Recipe(
        start=f"{source.path}{kept}",
        weights=weights,
        batch_tokens=given.recipe.batch_tokens,
        budget=Budget(steps=0),
        precision=precision,
    )
    values = {"recipe": recipe, "data": given.data, "masking": given.masking}
    return RunConfig.parse({"architecture": architecture.model_dump() | changes, **values})


def compress(
    source: RunFolder, prepared: PreparedData, asked: Sequence[CompressionMethod], into: SweepFolder, execution: Execution
) -> list[RunFolder]:
    """Make compressions of a completed run, validated on the same masks; return their folders.

    Those made before stay. Raises InputError, before anything is made, for all that do not fit, and if one did not complete.
    """
    require_links(into.path, "give another folder with --into")
    configs = map_all(partial(compressed_config, source), asked)
    for config in configs:
        execution.check(config)
    check_trained_runs(configs, prepared={source.config().data.tokenizer.variant: prepared})
    return [_made(config, into.run(config.fingerprint(prepared.fingerprint)), into.name, execution) for config in configs]


def _made(config: RunConfig, run: RunFolder, sweep: str, execution: Execution) -> RunFolder:
    if not is_made(run):
        with work_lock(run):
            put_failure_aside(run)
        with logged(run) as end_hung:
            train(config, run, sweep, execution.of(config), StopSignal(), end_hung)
    require_completed(run)
    return run
