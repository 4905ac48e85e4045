"""Which knobs of a run have no effect beside its others, and which configurations train one run under two names.

The fingerprint of a run covers all of its knobs, whether they have an effect or not, so that ids stay as they are. A plan
trains each run once (study.planning.coincidences).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from study.config.run_config import RunConfig
from study.config.sweep_knobs import KNOBS

UNTRAINED = ("recipe.start", "recipe.teacher", "recipe.batch_tokens", "recipe.precision")
"""The knobs of a recipe that have an effect where nothing is trained, or are refused there."""

IN_STEPS = tuple(
    f"recipe.{name}"
    for name in ("schedule", "warmup_fraction", "warmup_tokens", "decay_fraction", "final_learning_rate_fraction")
)
"""The knobs that give the share of the learning rate at each step, beside the number of steps."""

MASKED_SHARE = "recipe.masking.rate"
"""The knob that gives how many positions of a training sequence are masked."""


class Rule(NamedTuple):
    """Knobs that have no effect where a run is such, and why."""

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
        "it is for schedule wsd alone; linear and cosine fall over all that follows the warmup",
        lambda run: run.recipe.schedule != "wsd",
    ),
    Rule(
        ("recipe.final_learning_rate_fraction",),
        "the learning rate does not fall within the steps",
        lambda run: not _falls(run),
    ),
    Rule(
        ("recipe.muon_rate_ratio",),
        "it is for optimizer muon alone",
        lambda run: run.recipe.optimizer != "muon",
    ),
    Rule(
        ("recipe.base_width", "recipe.base_depth"),
        "they are for parametrization completep alone",
        lambda run: run.recipe.parametrization != "completep",
    ),
    Rule(
        ("recipe.parametrization", "recipe.base_width", "recipe.base_depth"),
        "the encoder has the sizes of the base, at which nothing is scaled",
        lambda run: run.at_base_sizes,
    ),
    Rule(
        ("recipe.initialisation", "recipe.residual_initialisation"),
        "all weights are those of the run that recipe.start names",
        lambda run: run.recipe.init_from is not None,
    ),
    Rule(
        ("recipe.initialisation",),
        "it is about the projection of narrower tables, and the tables are as wide as the layers",
        lambda run: run.architecture.table_width == run.architecture.width,
    ),
    Rule(
        ("architecture.positions",),
        "no position has a row of a table or a number of its own",
        lambda run: not _counts_positions(run),
    ),
)
"""The knobs that have no effect beside others."""

MAY_COINCIDE = frozenset((*IN_STEPS, MASKED_SHARE, *(knob for rule in RULES[1:] for knob in rule.knobs)))
"""The knobs of a run that is trained of which two values may train the same."""


def without_effect(run: RunConfig) -> dict[str, str]:
    """The knobs that change nothing in a run, by their dotted keys, and why."""
    return {knob: rule.reason for rule in reversed(RULES) if rule.applies(run) for knob in rule.knobs}


def training_key(run: RunConfig) -> str:
    """What runs share that are trained alike, step by step, however their configurations put it.

    Budgets, warmup and decay are counted in steps, and linear is what wsd is without a plateau; masks are counted in positions.
    """
    recipe, steps = run.recipe, run.steps
    aside = (*without_effect(run), *IN_STEPS, MASKED_SHARE, "recipe.budget")
    falls = (recipe.decay_steps(steps), recipe.schedule == "cosine", recipe.final_learning_rate_fraction)
    rates = (recipe.warmup_steps(steps), *(falls if _falls(run) else ()))
    return f"{run.identity(but=aside)} {steps} {rates} {run.predictions if steps else None}"


def _falls(run: RunConfig) -> bool:
    """Whether a step is taken at less than the peak of the learning rate, after the warmup."""
    return run.recipe.decay_steps(run.steps) > 1


def _counts_positions(run: RunConfig) -> bool:
    """Whether weights depend on the number of positions: a learned table has a row each, a learned bias a number a distance."""
    architecture = run.architecture
    biased = architecture.distance_bias == "learned" and architecture.distance_bias_reach is None
    return architecture.position_encoding == "learned" or biased
