"""The knobs of a run that a sweep file may vary, tune or search, as the types of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

from study.base.errors import nearest
from study.base.schema import flatten
from study.config.named_runs import NO_RUN
from study.config.recipe import Recipe, TrainingMasking
from study.config.run_config import TRAINING_MASKS, Masking
from study.config.shape_spec import LARGEST
from study.counting.architecture import NOT_IN_MLM, SET_BY_OBJECTIVE, Architecture

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
    """Return the section; raises ValueError if it has more keys than a run has knobs, of which each would be a problem."""
    if isinstance(knobs, Mapping) and len(knobs) > len(KNOBS):
        raise ValueError(f"has {len(knobs):,} keys, more than the {len(KNOBS)} knobs of a run")
    return knobs


def _of_section(section: str) -> AfterValidator:
    """Return the check of a section's keys; without a context, as in the file of a launched sweep, none is checked."""

    def check(knob: str, info: ValidationInfo) -> str:
        if info.context is not None and (problem := _why_not_in(section, knob)) is not None:
            raise ValueError(problem)
        return knob

    return AfterValidator(check)


def _set_once(knob: str, info: ValidationInfo) -> str:
    """Return a varied knob; raises ValueError if `tune` or `base`, which come first, have it too."""
    if info.context is not None and knob in info.data.get("tune", ()):
        raise ValueError("is tuned too; leave it out of vary or of tune")
    if info.context is not None and knob in flatten(info.data.get("base", {})):
        raise ValueError("has a value in base too; remove that one")
    return knob


VariedKnob = Annotated[str, _of_section("vary"), AfterValidator(_set_once)]
TunedKnob = Annotated[str, _of_section("tune")]
SearchedKnob = Annotated[str, _of_section("search.space")]


def _why_not_in(section: str, knob: str) -> str | None:
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
