"""The configuration of one run: a frozen tree of architecture, recipe, data, masking and seed."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from study.base.schema import MOST, Count, Index, Mismatches, Positive, Share, Strict, Text, flatten, set_path, whole
from study.base.yaml_files import read_yaml
from study.config.named_runs import NO_RUN, Teacher, parse_start, parse_teacher
from study.config.presets import PRESET, PRESET_KNOBS, PRESETS, PresetName
from study.config.recipe import BASE_FFN_RATIO, BASE_HEAD_WIDTH, Recipe
from study.counting.architecture import (
    ALWAYS_WRITTEN,
    NONE,
    NOT_IN_MLM,
    Architecture,
    berts_values,
    not_of_berts_kind,
    unbuildable,
    unlike_bert,
)
from study.counting.parameters import flops_per_token, masked_positions, parameters, spared_flops_per_token

NUMERICS_VERSION = 1
"""Incremented by every code change that moves a run's numbers; CHANGELOG.md explains each."""

_SMALL = Architecture.parse(dict.fromkeys(("depth", "width", "heads", "ffn", "vocabulary", "positions"), 1))
_UNTRAINED = Recipe.parse({"budget": {"steps": 1}})

_LATER = _UNTRAINED.model_dump(
    include={
        *(*NO_RUN, "initialisation", "residual_initialisation", "masking", "optimizer", "muon_rate_ratio"),
        *("parametrization", "base_width", "base_depth", "objective", "generator_share", "packing", "weights"),
    },
    exclude_none=True,
)
"""The recipe knobs that configurations omit at their defaults, with the defaults."""

LEFT_OUT = flatten({"recipe": _LATER}) | {
    f"architecture.{name}": NONE if value is None else value for name, value in berts_values().items()
}
LEFT_OUT["data.dedupe"] = False
"""The values that configurations omit, by knob."""

TRAINING_MASKS = "recipe.masking."
"""The prefix of the knobs of training's masks."""

OR_NONE = frozenset(f"architecture.{name}" for name, value in berts_values().items() if value is None)
"""The architecture knobs that may be NONE."""

_of_presets = attrgetter(*PRESET_KNOBS)
_BERTS = dict(zip(PRESET_KNOBS, _of_presets(SimpleNamespace(architecture=_SMALL, recipe=_UNTRAINED)), strict=True))
_PRESET_OF = {tuple((_BERTS | flatten(values))[knob] for knob in PRESET_KNOBS): name for name, values in PRESETS.items()}
"""The preset of each combination of values of PRESET_KNOBS, masks as in validation written as None."""

OVERLAP_WINDOW = 13
"""The length in tokens of the windows searched for in both validation and training text."""

MOST_OVERLAP = 0.05
"""The share of validation tokens in repeated windows above which answers report it."""

FEWEST_PIECES = 64
"""The smallest vocabulary: the special pieces and a few characters."""

MOST_PIECES = 2**32
"""The largest vocabulary."""

FEWEST_BYTE_PIECES = 5 + 256
"""The smallest vocabulary of bytes: the special pieces, and every byte."""

TokenizerKind = Literal["wordpiece", "bpe", "byte_bpe", "unigram", "file"]
"""The kinds of tokenisers."""

TokenizerVariant = tuple[TokenizerKind, int]
"""In what the tokenisers of one sweep may differ: kind and vocabulary."""

Texts = Mapping[TokenizerVariant, str]
"""The data fingerprints of one corpus by tokeniser; empty if unknown."""

MOST_STRIPPED = 0.01
"""The share of characters that lose a mark above which a note appears; of English text fewer than one in a thousand do."""

MOST_UNKNOWN = 0.05
"""The share of [UNK] above which a warning appears; on the docstrings, 256 pieces give 9% and 512 pieces 0.06%."""


class TokenizerConfig(Strict):
    """The tokeniser: a vocabulary of exactly `vocabulary` pieces trained on the training split, or a file.

    `wordpiece` is Hugging Face's: pairs are merged by frequency, as in `bpe`, so both have the same pieces; WordPiece encodes a
    word by its longest pieces from the left, BPE by its merges in the order in which they were learnt (Sennrich et al. 2016).
    `byte_bpe` merges bytes, and so knows every text (Radford et al. 2019). `unigram` prunes a large vocabulary by likelihood
    (Kudo 2018). `file` loads a `vocab.txt` (WordPiece) or any `tokenizer.json` from `path`; rows of `vocabulary` beyond its
    pieces are padding.

    `lowercase` is true by default, and for a `vocab.txt` unless it has capitals. `strip_accents` follows it, as in BERT, but
    text whose vowels are marks, as in Hindi or Thai, needs a decision. A `tokenizer.json` decides both itself.
    """

    kind: TokenizerKind = "wordpiece"
    vocabulary: Annotated[Count, Field(ge=FEWEST_PIECES, le=MOST_PIECES)] = 8192
    path: Text | None = None
    lowercase: bool | None = None
    strip_accents: bool | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if (self.kind == "file") != (self.path is not None):
            raise ValueError("needs a path exactly when its kind is 'file'")
        if self.kind == "byte_bpe" and self.vocabulary < FEWEST_BYTE_PIECES:
            raise ValueError(
                f"has a vocabulary of {self.vocabulary}; byte_bpe needs {FEWEST_BYTE_PIECES} or more, with every byte"
            )
        given = [name for name in ("lowercase", "strip_accents") if getattr(self, name) is not None]
        if given and (self.path or "").lower().endswith(".json"):
            raise ValueError(f"has {given[0]}, which a tokenizer.json decides itself; leave it out")
        return self

    @property
    def variant(self) -> TokenizerVariant:
        """What distinguishes it in a sweep."""
        return self.kind, self.vocabulary

    @property
    def words(self) -> str:
        """Its name in a sweep."""
        return f"{self.kind}, {self.vocabulary:,} pieces"

    def lowercases(self, by_default: bool = True) -> bool:
        """Whether it makes letters small."""
        return by_default if self.lowercase is None else self.lowercase

    def strips_accents(self, by_default: bool = True) -> bool:
        """Whether it drops combining marks; `by_default` is that of `lowercases`."""
        return self.lowercases(by_default) if self.strip_accents is None else self.strip_accents

    @property
    def remedy(self) -> str:
        """Advice for reducing [UNK]."""
        if self.kind == "file":
            return "train a tokeniser on this text (kind: wordpiece), or use one of its language"
        larger = "use a larger vocabulary, since up to an eighth of it is the alphabet"
        return f"{larger}, or kind: byte_bpe, which knows every character"

    def unread(self, unknown_share: float | None, of: Literal["tokens", "characters"] = "characters") -> str | None:
        """Return a warning about a text's lost share, if above MOST_UNKNOWN."""
        if unknown_share is None or unknown_share <= MOST_UNKNOWN:
            return None
        words = "words that the tokeniser does not know and no run predicts"
        lost = "[UNK] or dropped" if of == "characters" else "[UNK]"
        return f"{unknown_share:.0%} of the text's {of} are {lost}, {words}; {self.remedy}"

    def stripped(self, share: float | None) -> str | None:
        """Return a note on a text's share of characters whose marks are dropped, if above MOST_STRIPPED."""
        if share is None or share <= MOST_STRIPPED:
            return None
        remedy = "data.tokenizer.strip_accents: false keeps them"
        return f"{share:.0%} of the text's characters lose a mark (an accent or a vowel sign) that no run predicts; {remedy}"


class DataConfig(Strict):
    """The text of a run: corpus, tokeniser, sequence length and validation size.

    `corpus` is `docstrings`, a file (.parquet, .arrow, .jsonl, .csv, .tsv or .txt, text also as .gz or .zst), a folder of
    files, a folder from `save_to_disk` of datasets, or `hub:NAME[:CONFIG[:SPLIT]]`, by default its train split. `text_column`
    names the text's column; dots reach nested fields. `documents` is the most rows that are read, from the first on; with it, a
    hub corpus is streamed, not downloaded whole. `dedupe` drops repeated paragraphs and keeps near-duplicate documents in one
    split (study.data.deduplication). `sequence_length` counts tokens, [CLS] included.
    """

    corpus: Text = "docstrings"
    text_column: Text = "text"
    documents: Count | None = None
    dedupe: bool = False
    tokenizer: TokenizerConfig = TokenizerConfig()
    sequence_length: Annotated[Count, Field(ge=8)] = 128
    validation_sequences: Count = 1024

    def overlap(self, share: float | None) -> str | None:
        """Return the share of validation text that is also training text, in words, if known."""
        if share is None:
            return None
        words = f"{share:.1%} of the validation tokens stand in {OVERLAP_WINDOW}-token windows that occur in the training text"
        if share <= MOST_OVERLAP:
            return words
        remedy = "use text that repeats itself less" if self.dedupe else "data.dedupe: true leaves out what repeats"
        return f"{words}, so losses reward memory too; {remedy}"


class Masking(Strict):
    """The masks of validation, and by default of training (`recipe.masking`).

    BERT's corruption: of the chosen positions 80% become [MASK], 10% a random token, 10% stay (Devlin et al. 2019, §3.1). Each
    sequence has exactly round(rate · sequence length) of them, for static shapes.
    """

    rate: Annotated[Positive, Field(le=0.5)] = 0.15
    mask_share: Share = 0.8
    random_share: Share = 0.1

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(f"mask_share {self.mask_share} and random_share {self.random_share} add up to more than 1")
        return self


class RunConfig(Strict):
    """Everything that can change the numbers of a run, and nothing else."""

    architecture: Architecture
    recipe: Recipe
    data: DataConfig = DataConfig()
    masking: Masking = Masking()
    seed: Index = 0

    @model_validator(mode="after")
    def _same_masks_stand_once(self) -> Self:
        """Drop the `recipe.masking` values that equal `masking`: one run, one fingerprint."""
        training = self.recipe.masking
        if same := {name: None for name, value in self.masking if getattr(training, name) == value}:
            recipe = self.recipe.model_copy(update={"masking": training.model_copy(update=same)})
            object.__setattr__(self, "recipe", recipe)
        return self

    @model_validator(mode="after")
    def _heads_follow_the_objective(self) -> Self:
        asked = self.recipe.heads
        if any(getattr(self.architecture, name) != value for name, value in asked.items()):
            object.__setattr__(self, "architecture", self.architecture.model_copy(update=asked))
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if problems := [*self._mismatches()]:
            raise Mismatches(problems)
        return self

    def _mismatches(self) -> Iterator[str]:
        """Yield what is wrong between the parts."""
        if problem := unbuildable(self.architecture):
            yield f"architecture.{problem}"
        else:
            yield from self._unlike_generator()
            yield from self._unlike_parametrization()
        yield from self._unlike_text()
        yield from self._unlike_masks()
        yield from self._unlike_budget()

    def _unlike_text(self) -> Iterator[str]:
        architecture, recipe = self.architecture, self.recipe
        length, pieces = self.data.sequence_length, self.data.tokenizer.vocabulary
        if architecture.vocabulary != pieces:
            yield f"architecture.vocabulary {architecture.vocabulary} differs from the tokenizer's, {pieces}"
        if architecture.positions < length:
            yield f"architecture.positions {architecture.positions} is below data.sequence_length {length}"
        if recipe.batch_tokens % length:
            below = recipe.batch_tokens // length * length
            remedy = f"give {f'{below} or ' if below else ''}{below + length}"
            yield f"recipe.batch_tokens {recipe.batch_tokens} is not a multiple of data.sequence_length {length}; {remedy}"
        if recipe.unique_tokens is not None and recipe.unique_tokens < 2 * length:
            yield f"recipe.unique_tokens {recipe.unique_tokens:g} are less than two sequences of {length}"
        if recipe.reads_pairs and architecture.segments < 2:
            knob = f"objective {recipe.objective}" if recipe.judges_pairs else f"packing {recipe.packing}"
            yield f"recipe.{knob} reads two segments, but architecture.segments {architecture.segments}; set it to 2"

    def _unlike_generator(self) -> Iterator[str]:
        if (generator := self.architecture.generator) is None:
            return
        if problem := unbuildable(generator):
            yield f"recipe.generator_share {self.recipe.generator_share:g} makes a generator whose {problem}"
        if self.recipe.teacher_run is not None:
            yield "recipe.teacher predicts masked words, which objective rtd does not learn; leave out one of them"

    def _unlike_parametrization(self) -> Iterator[str]:
        """Yield what completep and scaled_rates have no rule for."""
        if self.recipe.parametrization == "standard":
            return
        asked = f"recipe.parametrization {self.recipe.parametrization}"
        if self.recipe.detects_replaced:
            yield f"{asked} has no rule for objective rtd, whose two encoders share tables"
        if self.architecture.relative:
            yield f"{asked} has no rule for architecture.position_encoding {self.architecture.position_encoding}"
        if strange := self._without_rule():
            yield f"{asked} has no rule for architecture.{strange}"
        head = self.architecture.mlm_transform, self.architecture.norm
        if self.recipe.parametrization == "completep" and head == ("none", "post"):
            lacks = "which architecture.mlm_transform none and norm post lack; set norm pre"
            yield f"{asked} divides the logits by a norm that the decoder alone reads, {lacks}"
        if self.recipe.parametrization == "scaled_rates" and not self.architecture.tied_decoder:
            yield f"{asked} slows tables that are the decoder, too; set architecture.tied_decoder true"

    def _without_rule(self) -> str | None:
        """Return the first field of MobileBERT, which only the standard parametrisation knows, if any."""
        of_mobilebert = {"bottleneck_width", "ffn_stack", "trigram_embedding"}
        for name, value in not_of_berts_kind(self.architecture).items():
            if name in of_mobilebert or (name, value) in (("norm_kind", "affine"), ("mlm_transform", "width")):
                return f"{name} {value}"
        return None

    def _unlike_masks(self) -> Iterator[str]:
        length, training = self.data.sequence_length, self.training_masking
        if self.validation_predictions < 1:
            yield f"masking.rate {self.masking.rate} masks no position of {length}"
        if self.predictions < 1:
            yield f"recipe.masking.rate {training.rate} masks no position of {length}"
        if training.mask_share + training.random_share > 1 + 1e-9:
            shares = f"mask_share {training.mask_share} and random_share {training.random_share}"
            yield f"recipe.masking has {shares}, which add up to more than 1; give both"

    def _unlike_budget(self) -> Iterator[str]:
        recipe = self.recipe
        if recipe.budget.steps == 0:
            yield from self._unlike_untrained()
            return
        if recipe.teacher_run is not None and recipe.budget.flops is not None:
            yield f"{recipe.budget.words} would leave out the FLOPs of the teacher {recipe.teacher}; give tokens or steps"
        if recipe.weights != "fp32":
            rounds = f"recipe.weights {recipe.weights} rounds the weights of a trained run"
            yield f"{rounds}; train in fp32, and set recipe.budget.steps 0 with that run as recipe.start"
        if self.steps < 1:
            batch = recipe.batch_tokens
            yield f"{recipe.budget.words} pays for {self.budget_tokens:,.0f} tokens, less than one batch of {batch:,}"
            return
        if self.tokens > MOST:
            yield f"{recipe.budget.words} pays for {self.tokens:.3g} tokens, more than the {MOST:,} that a table holds"
        if recipe.warmup_tokens is not None:
            warmup = recipe.warmup_steps(self.steps)
            decay = recipe.decay_steps(self.steps) if recipe.schedule == "wsd" else 0
            if warmup + decay > self.steps:
                both = f"{warmup:,} steps" + (f" and the decay {decay:,}" if decay else "")
                budget = f"the {self.steps:,} of {recipe.budget.words}"
                yield f"recipe.warmup_tokens {recipe.warmup_tokens:g} are {both}, more than {budget}"

    def _unlike_untrained(self) -> Iterator[str]:
        if self.recipe.init_from is None:
            yield "recipe.budget.steps 0 trains nothing; set recipe.start to the run that has the weights"
        if self.recipe.teacher_run is not None:
            yield f"recipe.budget.steps 0 trains nothing; leave out the teacher {self.recipe.teacher}"
        if self.recipe.objective != "mlm":
            head = "head for pairs" if self.recipe.judges_pairs else "generator"
            yield f"recipe.budget.steps 0 trains no {head}; leave out recipe.objective {self.recipe.objective}"

    @property
    def at_base_width(self) -> bool:
        """Whether tables, layers and FFN are as wide as the base encoder's."""
        a, width = self.architecture, self.recipe.base_width
        return (a.width, a.table_width, a.ffn) == (width, width, BASE_FFN_RATIO * width)

    @property
    def at_base_sizes(self) -> bool:
        """Whether the encoder has the base encoder's sizes."""
        depth_and_head = (self.architecture.depth, self.architecture.head_width)
        return self.at_base_width and depth_and_head == (self.recipe.base_depth, BASE_HEAD_WIDTH)

    @property
    def batch_sequences(self) -> int:
        """Sequences per global batch."""
        return self.recipe.batch_tokens // self.data.sequence_length

    @property
    def training_masking(self) -> Masking:
        """The rate and shares of training masks."""
        own = self.recipe.masking.model_dump(include=set(Masking.model_fields), exclude_none=True)
        return self.masking.model_copy(update=own)

    @property
    def predictions(self) -> int:
        """Masked positions per training sequence."""
        return masked_positions(self.data.sequence_length, self.training_masking.rate)

    @property
    def validation_predictions(self) -> int:
        """Masked positions per validation sequence."""
        return masked_positions(self.data.sequence_length, self.masking.rate)

    @property
    def flops_per_token(self) -> dict[str, float]:
        """Training FLOPs per input token by convention, without a teacher's."""
        return flops_per_token(self.architecture, self.data.sequence_length, self.predictions)

    def flops_per_token_with(self, teacher: Architecture | None) -> dict[str, float]:
        """Training FLOPs per input token by convention, with a teacher's forward pass: a third of its training.

        A teacher whose predictions have no weight runs no head. Losses between layers add their products to the conventions
        that count products.
        """
        if teacher is None:
            return self.flops_per_token
        named, length = self.recipe.teacher_run or Teacher(Path()), self.data.sequence_length
        training = flops_per_token(teacher, length, self.predictions if named.weight else 0)
        matching = named.losses.flops_per_token(self.architecture, teacher, length)
        return {
            convention: flops + training[convention] / 3 + (0 if convention.startswith("train_flops_6n") else matching)
            for convention, flops in self.flops_per_token.items()
        }

    def spared_flops_per_token_with(self, teacher: Architecture | None) -> float:
        """Return the `train_flops` per input token that the last layer saves, with a third of the teacher's.

        Losses between layers need both at every token.
        """
        if self.recipe.teacher_run is not None and self.recipe.teacher_run.losses:
            return 0.0
        own, its = (
            0.0 if model is None else spared_flops_per_token(model, self.data.sequence_length, self.predictions)
            for model in (self.architecture, teacher)
        )
        return own + its / 3

    @property
    def budget_tokens(self) -> float:
        """The budget in tokens, before rounding down to whole steps."""
        budget = self.recipe.budget
        if budget.tokens is not None:
            return budget.tokens
        if budget.steps is not None:
            return float(budget.steps * self.recipe.batch_tokens)
        if budget.flops is not None:
            return budget.flops / self.flops_per_token["train_flops"]
        assert budget.tokens_per_parameter is not None
        return budget.tokens_per_parameter * parameters(self.architecture).parameters

    @property
    def steps(self) -> int:
        """Optimiser steps: the whole batches in the budget."""
        return int(self.budget_tokens * (1 + 1e-12) // self.recipe.batch_tokens)

    @property
    def tokens(self) -> int:
        """Input tokens of training."""
        return self.steps * self.recipe.batch_tokens

    def validation_interval(self, validations: int) -> int:
        """Return the steps between at most `validations` validations; at least 2, for a checkpoint."""
        return self.steps // min(self.steps, validations) + 1

    def check_interval(self, checks: int) -> int:
        """Return the steps between `checks` validations, the last at the end; few steps allow fewer."""
        return math.ceil(self.steps / checks)

    @property
    def branch_step(self) -> int | None:
        """The last step before the decay, if all longer budgets share the steps up to it.

        So they do for wsd with a warmup in tokens: data order, masks and dropout depend on the step alone.
        """
        if self.recipe.schedule != "wsd" or self.recipe.warmup_tokens is None:
            return None
        decay = self.recipe.decay_steps(self.steps)
        return self.steps - decay if 0 < decay < self.steps else None

    @property
    def preset(self) -> PresetName | None:
        """The preset of all values that any preset sets, except for the learning rate; None if these are of no preset."""
        values = dict(zip(PRESET_KNOBS, _of_presets(self), strict=True))
        if values[f"{TRAINING_MASKS}rate"] == self.masking.rate:
            values[f"{TRAINING_MASKS}rate"] = None
        return _PRESET_OF.get(tuple(values.values()))

    def values_of(self, knobs: Collection[str]) -> dict[str, Any]:
        """Return the values of knobs by dotted key, also omitted ones."""
        included: dict[str, Any] = {}
        for knob in knobs:
            if knob != PRESET:
                set_path(included, knob, True)
        values = flatten(_plain(self.model_dump(mode="json", include=included)))
        if any(knob.startswith(TRAINING_MASKS) for knob in knobs):
            training = flatten(_plain(self.training_masking.model_dump()), TRAINING_MASKS.rstrip("."))
            values |= {knob: value for knob, value in training.items() if knob in values}
        if PRESET in knobs:
            values[PRESET] = self.preset
        return {knob: values.get(knob) for knob in knobs}

    def variant(self, knobs: Collection[str]) -> str:
        """Return the values of knobs, in words."""
        return describe_knobs({knob: ledger_value(knob, value) for knob, value in self.values_of(knobs).items()})

    def words(self, knobs: Collection[str]) -> str:
        """Return the run in a few words: shape, knobs, learning rate and seed."""
        return describe_run(self.architecture.shape_name, self.variant(knobs), self.recipe.learning_rate, self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved tree as plain values, whole floats as integers.

        It omits LEFT_OUT, so that a new field changes nothing.
        """
        values: dict[str, Any] = _plain(self.model_dump(mode="json", exclude_none=True))
        kept = {*ALWAYS_WRITTEN, *unlike_bert(self.architecture)}
        if "warmup_tokens" in values["recipe"]:
            del values["recipe"]["warmup_fraction"]
        values["recipe"] = _beyond(values["recipe"], _LATER)
        if not self.data.dedupe:
            del values["data"]["dedupe"]
        values["architecture"] = {name: value for name, value in values["architecture"].items() if name in kept}
        return values

    def without_paths(self) -> dict[str, Any]:
        """Return the tree without paths, which identifies a run on one text.

        The text column, which the text's fingerprint covers, keeps its default.
        """
        values = self.to_dict()
        for name in NOT_IN_MLM:
            values["architecture"].pop(name, None)
        values["data"].pop("corpus")
        values["data"]["text_column"] = DataConfig.model_fields["text_column"].default
        values["data"]["tokenizer"].pop("path", None)
        values["recipe"] |= self.recipe.trained_runs
        return values

    @functools.cached_property
    def key(self) -> str:
        """The identity of this run among runs on the same data."""
        return self.identity()

    def identity(self, but: Iterable[str] = ()) -> str:
        """JSON that identifies this run, except for the knobs in `but`, among runs on the same data.

        A fast `without_paths`, valid only within a process: a new field changes it.
        """
        unused: dict[str, Any] = {"recipe": dict.fromkeys(NO_RUN, True), "architecture": dict.fromkeys(NOT_IN_MLM, True)}
        unused["data"] = {"corpus": True, "text_column": True, "tokenizer": {"path": True}}
        for knob in but:
            set_path(unused, knob, True)
        return self.model_dump_json(exclude=unused) + json.dumps(self.recipe.trained_runs)

    def to_yaml(self) -> str:
        """Return the resolved tree as YAML, which `from_yaml` reads."""
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml writes the same bytes ten times as fast
        text: str = yaml.dump(self.to_dict(), Dumper=dumper, sort_keys=False, allow_unicode=True)
        return text

    @classmethod
    def from_yaml(cls, path: Path) -> Self:
        """Read the output of `to_yaml`."""
        return cls.parse(read_yaml(path), place=str(path))

    def fingerprint(self, data_fingerprint: str) -> str:
        """Return the run id: 16 hex digits of SHA-256 over everything that can change the run's numbers.

        `data_fingerprint` covers the content of corpus and tokeniser (study.data.prepared); the number of validation sequences
        is added. Defaults are omitted; changing one must increment NUMERICS_VERSION.
        """
        unused: dict[str, Any] = {"data": True, "architecture": set(NOT_IN_MLM)}
        values = _plain(self.model_dump(mode="json", exclude_defaults=True, exclude=unused))
        values["recipe"] |= self.recipe.trained_runs
        values["validation_sequences"] = self.data.validation_sequences
        values |= {"data_fingerprint": data_fingerprint, "numerics_version": NUMERICS_VERSION}
        return fingerprint_of(values)


def ledger_value(knob: str, value: object) -> object:
    """Return a knob's value in a ledger: a trained run's identity, an optional value as a word."""
    if knob in OR_NONE:
        return NONE if value is None else str(value)
    parse = _TRAINED_RUN_OF.get(knob)
    run = parse(value) if parse is not None and isinstance(value, str) else None
    return value if run is None else run.identity


_TRAINED_RUN_OF = {"recipe.start": parse_start, "recipe.teacher": parse_teacher}


def describe_knobs(values: Mapping[str, object]) -> str:
    """Knob values by the last part of their keys if unique: norm=pre, dropout=0.1, masking.rate=0.3."""
    words = {
        knob: knob.removeprefix("recipe.") if knob.startswith(TRAINING_MASKS) else knob.rpartition(".")[2] for knob in values
    }
    names = words if len({*words.values()}) == len(words) else {knob: knob for knob in values}
    return ", ".join(
        f"{names[knob]}={value:.6g}" if isinstance(value, float) else f"{names[knob]}={NONE if value is None else value}"
        for knob, value in values.items()
    )


def describe_run(shape: str, variant: str, learning_rate: float, seed: int) -> str:
    """Return a run in a few words, such as `L2-H128-A2-F512 norm=pre lr=3e-3 seed=0`."""
    mantissa, exponent = f"{learning_rate:.2e}".split("e")
    return " ".join(filter(None, (shape, variant, f"lr={float(mantissa):g}e{int(exponent)} seed={seed}")))


def fingerprint_of(values: object) -> str:
    """16 hex digits of SHA-256 over canonical JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _beyond(values: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from `plain`, recursively."""
    kept = {
        name: _beyond(value, plain[name]) if isinstance(value, dict) and name in plain else value
        for name, value in values.items()
        if value != plain.get(name)
    }
    return {name: value for name, value in kept.items() if value != {}}


def _plain(value: Any) -> Any:
    """Model values with whole floats as integers."""
    if isinstance(value, dict):
        return {key: below if type(below) in _SCALARS else _plain(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_plain(below) for below in value]
    return whole(value) if isinstance(value, float) else value


_SCALARS = (str, int, bool, type(None))
