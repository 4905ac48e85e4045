"""Which knobs of a run have no effect beside its others, and which configurations train the same run.

A fingerprint covers all knobs, with or without an effect, so that ids stay. A plan trains each run once
(study.planning.coincidences).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from study.config.run_config import RunConfig
from study.config.sweep_knobs import KNOBS

UNTRAINED = ("recipe.start", "recipe.teacher", "recipe.batch_tokens", "recipe.precision")
"""The knobs of a recipe that have an effect in a run of no steps, or are refused there."""

IN_STEPS = tuple(
    f"recipe.{name}"
    for name in ("schedule", "warmup_fraction", "warmup_tokens", "decay_fraction", "final_learning_rate_fraction")
)
"""The knobs that shape the learning rate over the steps."""

MASKED_SHARE = "recipe.masking.rate"
"""The knob that sets how many positions of a training sequence are masked."""


class Rule(NamedTuple):
    """Knobs that have no effect in the runs to which it applies, and why."""

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
        "it is for schedule wsd; linear and cosine decay from the end of the warmup on",
        lambda run: run.recipe.schedule != "wsd",
    ),
    Rule(
        ("recipe.final_learning_rate_fraction",),
        "the learning rate does not decay within the steps",
        lambda run: not _falls(run),
    ),
    Rule(
        ("recipe.muon_rate_ratio",),
        "it is for optimizer muon",
        lambda run: run.recipe.optimizer != "muon",
    ),
    Rule(
        ("recipe.base_width", "recipe.base_depth"),
        "they are for parametrization completep",
        lambda run: run.recipe.parametrization != "completep",
    ),
    Rule(
        ("recipe.parametrization", "recipe.base_width", "recipe.base_depth"),
        "the encoder has the sizes of the base encoder, where completep scales nothing",
        lambda run: run.at_base_sizes,
    ),
    Rule(
        ("recipe.initialisation", "recipe.residual_initialisation"),
        "all weights come from the run that recipe.start names",
        lambda run: run.recipe.init_from is not None,
    ),
    Rule(
        ("recipe.initialisation",),
        "it changes the projection of narrower tables, and the tables are as wide as the layers",
        lambda run: run.architecture.table_width == run.architecture.width,
    ),
    Rule(
        ("architecture.positions",),
        "no parameter belongs to a position",
        lambda run: not _counts_positions(run),
    ),
)
"""When knobs have no effect."""

MAY_COINCIDE = frozenset((*IN_STEPS, MASKED_SHARE, *(knob for rule in RULES[1:] for knob in rule.knobs)))
"""The knobs of which two values may train the same run."""


def without_effect(run: RunConfig) -> dict[str, str]:
    """The knobs without effect in a run, by their dotted keys, and why."""
    return {knob: rule.reason for rule in reversed(RULES) if rule.applies(run) for knob in rule.knobs}


def training_key(run: RunConfig) -> str:
    """A key that runs share if they are trained alike, step by step.

    It counts budgets, warmup and decay in steps and masks in positions, and takes wsd without a plateau for linear.
    """
    recipe, steps = run.recipe, run.steps
    aside = (*without_effect(run), *IN_STEPS, MASKED_SHARE, "recipe.budget")
    falls = (recipe.decay_steps(steps), recipe.schedule == "cosine", recipe.final_learning_rate_fraction)
    rates = (recipe.warmup_steps(steps), *(falls if _falls(run) else ()))
    return f"{run.identity(but=aside)} {steps} {rates} {run.predictions if steps else None}"


def _falls(run: RunConfig) -> bool:
    """Whether a step after the warmup is below the peak learning rate."""
    return run.recipe.decay_steps(run.steps) > 1


def _counts_positions(run: RunConfig) -> bool:
    """Whether the number of parameters depends on that of positions: by a learned table, or a learned bias without a reach."""
    architecture = run.architecture
    biased = architecture.distance_bias == "learned" and architecture.distance_bias_reach is None
    return architecture.position_encoding == "learned" or biased
