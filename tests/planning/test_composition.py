"""Each knob of a recipe composes with every way in which a sweep uses it, or is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import pytest

from study.base.errors import InputError
from study.base.schema import deep_merge, flatten, set_path
from study.config.presets import PRESETS, PresetName
from study.config.sweep import parse_sweep
from study.planning.plan import Plan
from study.planning.proposing import families
from tests.sweeps import sweep_values

RUN = f"results/mine/runs/{'0' * 16}"
"""The folder of a trained run, which nothing here reads."""


class Knob(NamedTuple):
    """A knob with its default, another value, what must stand beside it to have an effect, and where it is tuned."""

    name: str
    default: object
    value: object
    beside: Mapping[str, Any] = MappingProxyType({})
    range: tuple[float, float] | None = None


KNOBS = [
    Knob("recipe.masking.rate", 0.15, 0.3),
    Knob("recipe.masking.mask_share", 0.8, 0.9),
    Knob("recipe.masking.random_share", 0.1, 0.05, range=(0.05, 0.1)),
    Knob("recipe.masking.whole_words", False, True),
    Knob("recipe.masking.static_copies", 0, 10, range=(1, 10)),
    Knob("recipe.optimizer", "adamw", "muon"),
    Knob("recipe.muon_rate_ratio", 4, 8, {"recipe.optimizer": "muon"}),
    Knob("recipe.parametrization", "standard", "completep"),
    Knob("recipe.parametrization", "standard", "scaled_rates"),
    Knob("recipe.base_width", 128, 64, {"recipe.parametrization": "completep"}, (64, 128)),
    Knob("recipe.base_depth", 2, 4, {"recipe.parametrization": "completep"}),
    Knob("recipe.residual_initialisation", "bert", "zero"),
    Knob("recipe.objective", "mlm", "mlm_nsp"),
    Knob("recipe.objective", "mlm", "mlm_sop"),
    Knob("recipe.objective", "mlm", "rtd"),
    Knob("recipe.generator_share", 0.25, 0.5, {"recipe.objective": "rtd"}),
    Knob("recipe.packing", "full_sentences", "doc_sentences"),
    Knob("recipe.packing", "full_sentences", "segment_pairs"),
    Knob("recipe.unique_tokens", 256, 512),
    Knob("architecture.distance_bias", "none", "learned"),
    Knob("architecture.distance_bias", "none", "alibi"),
    Knob("architecture.distance_bias_reach", "none", 4, {"architecture.distance_bias": "learned"}, (2, 4)),
    Knob("architecture.query_key_norm", False, True),
    Knob("architecture.embedding_norm", "none", True, {"architecture.norm": "pre"}),
    Knob("architecture.norm", "post", "pre"),
    Knob("architecture.mlm_transform", "embedding_width", "none"),
    Knob("architecture.position_encoding", "learned", "rotary"),
    Knob("architecture.position_encoding", "learned", "disentangled"),
]


def base_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What `base` says so that knobs have these values."""
    base: dict[str, Any] = {}
    for name, value in values.items():
        set_path(base, name, value)
    return base


def varied(knob: Knob) -> dict[str, Any]:
    return {"base": base_of(knob.beside), "vary": {knob.name: [knob.default, knob.value]}}


def tuned(knob: Knob) -> dict[str, Any]:
    low, high = knob.range or (knob.default, knob.value)
    return {"base": base_of(knob.beside), "tune": {knob.name: {"low": low, "high": high, "trials": 2}}}


def searched(knob: Knob) -> dict[str, Any]:
    sizes = {"architecture": {"depth": 1, "width": 16, "heads": 2, "ffn": 32}}
    space = {knob.name: {"choices": [knob.default, knob.value]}}
    return {"shapes": None, "base": deep_merge(sizes, base_of(knob.beside)), "search": {"trials": 2, "space": space}}


def trunked(knob: Knob) -> dict[str, Any]:
    base = base_of({**knob.beside, knob.name: knob.value, "recipe.schedule": "wsd"})
    return {"base": base, "budgets": {"steps": [100, 200]}}


def trunked_after_warmup(knob: Knob) -> dict[str, Any]:
    return deep_merge(trunked(knob), {"base": {"recipe": {"warmup_tokens": 256}}})


def started(knob: Knob) -> dict[str, Any]:
    return {"base": base_of({**knob.beside, knob.name: knob.value}), "vary": {"recipe.start": ["fresh", RUN]}}


def taught(knob: Knob) -> dict[str, Any]:
    return {"base": base_of({**knob.beside, knob.name: knob.value}), "vary": {"recipe.teacher": ["none", RUN]}}


WAYS: dict[str, Callable[[Knob], dict[str, Any]]] = {
    "vary": varied,
    "tune": tuned,
    "search": searched,
    "trunk": trunked,
    "trunk after a warmup in tokens": trunked_after_warmup,
    "start": started,
    "teacher": taught,
}

COMPARED = ("vary", "tune")
"""The ways in which a sweep gives a knob several values."""

NO_NUMBER: tuple[str, ...] = ("whole_words", "optimizer", "parametrization", "residual_initialisation", "objective")
NO_NUMBER += ("packing", "distance_bias", "query_key_norm", "embedding_norm", "norm", "mlm_transform", "position_encoding")
"""The knobs that cannot be tuned."""


def as_written(value: object) -> object:
    """A value as a file gives it."""
    return "none" if value is None else value


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: f"{knob.name}={knob.value}")
@pytest.mark.parametrize("way", WAYS)
def test_each_knob_composes_with_each_way_or_is_refused_in_one_sentence(way: str, knob: Knob) -> None:
    values = sweep_values(Path("corpus.txt"), **WAYS[way](knob))
    if way == "teacher" and "rtd" in (knob.value, knob.beside.get("recipe.objective")):
        with pytest.raises(InputError, match=r"masked words, which objective rtd does not learn"):
            Plan(parse_sweep(values)).check()
        return
    if way == "tune" and knob.name.rpartition(".")[2] in NO_NUMBER:
        with pytest.raises(InputError) as refusal:
            parse_sweep(values)
        ends = [f"tune.{knob.name}.low", f"tune.{knob.name}.high"]
        assert [problem.place for problem in refusal.value.problems] == ends
        assert all("number" in problem.message for problem in refusal.value.problems)
        return
    plan = Plan(parse_sweep(values))
    plan.check()
    actual = [run.values_of([knob.name])[knob.name] for run in plan.first_runs]
    compared = (knob.range or (knob.default, knob.value)) if way == "tune" else (knob.default, knob.value)
    if way in COMPARED:
        assert {as_written(value) for value in actual} == {*compared}
    elif way != "search":
        assert {as_written(value) for value in actual} == {knob.value}
    assert len({run.fingerprint("text") for run in plan.first_runs}) == len(plan.first_runs)
    if way.startswith("trunk"):
        assert [len(family) for family in families(plan.cells)] == [2, 2], "both budgets of a shape share their way"
        assert all(run.branch_step for run in plan.first_runs)


def test_every_recent_knob_is_among_them() -> None:
    of_presets = {name for preset in PRESETS.values() for name in flatten(preset)}
    assert {knob.name for knob in KNOBS} >= of_presets - {"recipe.learning_rate"}


@pytest.mark.parametrize("preset", [name for name, values in PRESETS.items() if values])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "tune"])
def test_a_preset_composes_with_each_way(way: str, preset: str) -> None:
    """It is no knob: what a sweep compares stands over it, and so does what trunks, starts and teachers need."""
    knob = Knob("architecture.norm_kind", "layer", "rms")
    plan = Plan(parse_sweep(sweep_values(Path("corpus.txt"), preset=preset, **WAYS[way](knob))))
    plan.check()
    chosen = flatten(PRESETS[cast("PresetName", preset)])
    set_by_it = {name: value for name, value in chosen.items() if name != "recipe.learning_rate"}
    assert all(run.values_of(set_by_it) == set_by_it for run in plan.first_runs)
