"""The knobs without effect in a run, and the configurations that train the same run.

A fingerprint covers every knob, with or without effect, so that ids stay. A plan trains each run once
(study.planning.coincidences).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from study.config.knobs import KNOBS
from study.config.run_config import RunConfig

UNTRAINED = ("recipe.start", "recipe.teacher", "recipe.batch_tokens", "recipe.precision", "recipe.weights")
"""The recipe knobs that have an effect in a run of no steps, or are refused there."""

IN_STEPS = tuple(
    f"recipe.{name}"
    for name in ("schedule", "warmup_fraction", "warmup_tokens", "decay_fraction", "final_learning_rate_fraction")
)
"""The knobs of the learning rate schedule."""

MASKED_SHARE = "recipe.masking.rate"
"""The share of masked positions in training."""


GENERATOR_SHARE = "recipe.generator_share"
"""The share of an encoder's sizes that its generator has."""


PARAMETRIZATION = "recipe.parametrization"
"""How rates and first values follow the size."""


WINDOWS = ("architecture.attention_window", "architecture.global_attention_every")
"""The size of windows, and which layers have them."""


class Rule(NamedTuple):
    """Knobs without effect in the runs to which the rule applies, and the reason."""

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
        "only schedule wsd uses it; linear and cosine decay from the end of the warmup",
        lambda run: run.recipe.schedule != "wsd",
    ),
    Rule(
        ("recipe.final_learning_rate_fraction",),
        "the learning rate does not decay within the steps",
        lambda run: not _falls(run),
    ),
    Rule(
        ("recipe.muon_rate_ratio",),
        "only optimizer muon uses it",
        lambda run: run.recipe.optimizer != "muon",
    ),
    Rule(
        ("recipe.base_width", "recipe.base_depth"),
        "parametrization standard does not use them",
        lambda run: run.recipe.parametrization == "standard",
    ),
    Rule(
        (PARAMETRIZATION, "recipe.base_width", "recipe.base_depth"),
        "the encoder has the base encoder's sizes, at which no parametrization scales anything",
        lambda run: run.at_base_sizes,
    ),
    Rule(
        ("recipe.packing",),
        "objective mlm_nsp and mlm_sop always read pairs of segments",
        lambda run: run.recipe.judges_pairs,
    ),
    Rule(
        (GENERATOR_SHARE,),
        "only objective rtd uses it",
        lambda run: not run.recipe.detects_replaced,
    ),
    Rule(
        ("architecture.mlm_transform",),
        "under objective rtd the generator's head is BERT's, and the encoder has none",
        lambda run: run.recipe.detects_replaced,
    ),
    Rule(
        ("recipe.initialisation", "recipe.residual_initialisation"),
        "all weights come from the run that recipe.start names",
        lambda run: run.recipe.init_from is not None and not run.recipe.detects_replaced,
    ),
    Rule(
        ("recipe.initialisation",),
        "it changes the projection of narrower tables, and the tables are as wide as the layers",
        lambda run: run.architecture.table_width == run.architecture.width and not run.recipe.detects_replaced,
    ),
    Rule(
        ("recipe.initialisation",),
        "it changes a projection that follows the sum of the embeddings, and that of trigrams precedes it",
        lambda run: run.architecture.trigram_embedding,
    ),
    Rule(
        ("architecture.positions",),
        "no parameter depends on positions",
        lambda run: not _counts_positions(run),
    ),
    Rule(
        ("architecture.rotary_theta", "architecture.local_rotary_theta"),
        "only position_encoding rotary uses it",
        lambda run: not run.architecture.rotary,
    ),
    Rule(
        WINDOWS,
        "no layer has a window, or every token is within it",
        lambda run: not _windows_hide(run),
    ),
)
"""When knobs have no effect."""

MAY_COINCIDE = frozenset((*IN_STEPS, MASKED_SHARE, *(knob for rule in RULES[1:] for knob in rule.knobs)))
"""The knobs with two values that may train the same run."""


def without_effect(run: RunConfig) -> dict[str, str]:
    """Return the reasons why knobs have no effect in a run, by dotted key."""
    return {knob: rule.reason for rule in reversed(RULES) if rule.applies(run) for knob in rule.knobs}


def training_key(run: RunConfig) -> str:
    """Return a key that runs share if they train identically, step by step.

    Budgets, warmup and decay count in steps, masks in positions, a generator's share in its sizes, windows in the tokens that
    each layer sees; wsd without a plateau counts as linear, scaled_rates at the base width as completep.
    """
    recipe, steps = run.recipe, run.steps
    unused = without_effect(run)
    ignored = (*unused, *IN_STEPS, *WINDOWS, MASKED_SHARE, GENERATOR_SHARE, PARAMETRIZATION, "recipe.budget")
    falls = (recipe.decay_steps(steps), recipe.schedule == "cosine", recipe.final_learning_rate_fraction)
    rates = (recipe.warmup_steps(steps), *(falls if _falls(run) else ()))
    generator = run.architecture.generator
    sizes = None if generator is None else (generator.width, generator.heads, generator.ffn)
    layers = [*map(run.architecture.is_local, range(run.architecture.depth))]
    windows = ((run.architecture.attention_window or 0) // 2, layers) if _windows_hide(run) else None
    scales = "standard" if PARAMETRIZATION in unused else _scales(run)
    return f"{run.identity(but=ignored)} {steps} {rates} {run.predictions if steps else None} {sizes} {windows} {scales}"


def _scales(run: RunConfig) -> str:
    name = run.recipe.parametrization
    return "completep" if name == "scaled_rates" and run.at_base_width else name


def _falls(run: RunConfig) -> bool:
    return run.recipe.decay_steps(run.steps) > 1


def _counts_positions(run: RunConfig) -> bool:
    """Whether the parameter count depends on `positions`: by a table of absolute ones, or a learned bias of unlimited reach."""
    architecture = run.architecture
    biased = architecture.distance_bias == "learned" and architecture.distance_bias_reach is None
    return architecture.position_encoding == "learned" or architecture.enhanced_mask_decoder or biased


def _windows_hide(run: RunConfig) -> bool:
    """Whether windows have an effect: they hide some token, or have rotary angles of their own."""
    architecture = run.architecture
    if (window := architecture.attention_window) is None or not architecture.local_layers:
        return False
    turned = architecture.rotary and architecture.local_rotary_theta is not None
    return turned or window // 2 < run.data.sequence_length - 1
