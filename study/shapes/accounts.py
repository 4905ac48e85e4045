"""Accounts of an architecture, by name, file or run: parameters, FLOPs and memory, and why other numbers differ."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.base.text import aligned, pasted
from study.counting.architecture import Architecture, not_of_berts_kind, unbuildable
from study.counting.components import LETTERS
from study.counting.memory import Memory, Precision, memory_of
from study.counting.named_models import catalogue, find, unknown
from study.counting.parameters import MASKING_RATE, ParameterCount, flops_per_token, formulas, masked_positions, parameters

if TYPE_CHECKING:
    from study.store.run_folder import RunFolder


@dataclass(frozen=True)
class NamedArchitecture:
    """An architecture with its title and, for a named model, its published size and how that is known."""

    title: str
    architecture: Architecture
    published: tuple[str, str] | None = None


def resolve_architecture(name: str, results: Path) -> NamedArchitecture:
    """Resolve a name: named models first, then files and folders, then runs in `results`.

    Raises InputError.
    """
    if not name.strip():
        raise InputError.at(repr(name), "is not a model name; give one such as bert-base, a file, or a run's folder or id")
    if model := find(name):
        return NamedArchitecture(model.short_name, model.architecture, (model.published, model.published_status))
    if is_there(path := Path(name)) and path.is_file():
        return NamedArchitecture(name, _in_file(path))
    if path.is_dir() or _is_run(path):
        return NamedArchitecture(name, _in_folder(path))
    if path.suffix in (".yaml", ".yml") or (len(path.parts) > 1 and (path.parent.is_dir() or path.parent.name == "runs")):
        raise InputError.at(name, "does not exist, and is not a model name")
    if (architecture := _of_id(name, results)) is not None:
        return NamedArchitecture(name, architecture)
    raise unknown(name, f", a file or a run in {results}")


def _in_file(path: Path) -> Architecture:
    """Read the architecture in a YAML file, alone or as in a config.yaml, with its objective's head."""
    from study.base.yaml_files import read_yaml
    from study.config.recipe import Recipe

    values: dict[str, Any] = read_yaml(path)
    if "architecture" in values:
        architecture = Architecture.parse(values["architecture"], place=f"{path}: architecture")
        given = values.get("recipe", {})
        recipe = Recipe.parse({"budget": {"steps": 0}} | given if isinstance(given, dict) else given, f"{path}: recipe")
        return architecture.model_copy(update=recipe.heads)
    if "shapes" in values:
        raise InputError.at(str(path), f"is a sweep of many architectures; see `study plan {pasted(path)}`")
    return Architecture.parse(values, place=str(path))


def _is_run(path: Path) -> bool:
    """Whether a path is a run, also of a packed sweep."""
    from study.store.run_folder import RunFolder

    return RunFolder(path).is_run


def _in_folder(path: Path) -> Architecture:
    from study.store.run_folder import RunFolder

    run = RunFolder(path)
    if not run.is_run:
        raise InputError.at(str(path), "is not a run folder: it needs a config.yaml or a run's record.json")
    return _of_run(run)


def _of_run(run: RunFolder) -> Architecture:
    return _in_file(run.config_file) if is_there(run.config_file) else run.config().architecture


def _of_id(run_id: str, results: Path) -> Architecture | None:
    from study.store.sweep_folder import runs_of_id

    runs = runs_of_id(run_id, results)
    return _of_run(runs[0]) if runs else None


USUAL_LENGTH = 128
"""Default tokens per sequence for counts."""

LECTURE_VOCABULARY = 30_000
"""The vocabulary as rounded by Devlin et al. 2019, §3."""


@dataclass(frozen=True)
class Conditions:
    """Sequence length for FLOPs; batch, length and precision for memory."""

    sequence_length: int
    batch: int
    precision: Precision

    def __str__(self) -> str:
        return f"{self.batch} x {self.sequence_length} tokens, {self.precision}"


@dataclass(frozen=True)
class Explanation:
    """A figure that others give for the same model, its definition, and why it differs from ours."""

    name: str
    figure: int | str
    reason: str


@dataclass(frozen=True)
class Account:
    """The parameters and training FLOPs of an architecture at a sequence length, ready to print."""

    title: str
    architecture: Architecture
    count: ParameterCount
    conditions: Conditions
    predictions: int
    flops: dict[str, float]
    memory: dict[str, Memory]
    explanations: tuple[Explanation, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the account as plain values."""
        account: dict[str, object] = {
            "name": self.title,
            "shape": self.architecture.shape_name,
            "parameters": totals(self.count),
            "components": {component.name: component.count for component in self.count.components},
            "formulas": formulas(self.architecture),
            "flops_per_token": self.flops,
            "sequence_length": self.conditions.sequence_length,
            "predictions_per_sequence": self.predictions,
        }
        if self.memory:
            memory = {use: memory.to_dict() for use, memory in self.memory.items()}
            account["memory"] = {"setting": str(self.conditions)} | memory
        if self.explanations:
            account["explanations"] = [asdict(explanation) for explanation in self.explanations]
        return account

    def to_text(self) -> str:
        """Return the account as plain text tables."""
        parts = [self._components(), self._totals(), self._flops()]
        if self.memory:
            parts.append(self._memory())
        if self.explanations:
            parts.append(self._explanations())
        return "\n\n".join("\n".join(part) for part in parts)

    def _components(self) -> list[str]:
        total, written = self.count.parameters, formulas(self.architecture)
        rows = [["component", "formula", "parameters", "share"]]
        rows += [[c.name, written[c.name], f"{c.count:,}", f"{c.count / total:.1%}"] for c in self.count.components]
        rows.append(["MLM model", "", f"{total:,}", "100%"])
        return [self.title, *aligned(rows, left=2), *textwrap.wrap(_legend(written), 80)]

    def _totals(self) -> list[str]:
        rows = [[TOTALS[key], f"{value:,}"] for key, value in totals(self.count).items()]
        return aligned([["total", "parameters"], *rows])

    def _flops(self) -> list[str]:
        lengths = f"{self.conditions.sequence_length} tokens a sequence, {self.predictions} of them masked"
        titles = ["training FLOPs per token, forward and backward", f"({lengths})"]
        return [*titles, *aligned([[convention, f"{value:,.0f}"] for convention, value in self.flops.items()])]

    def _memory(self) -> list[str]:
        rows = [[f"memory ({self.conditions}), bytes", *self.memory]]
        for part in next(iter(self.memory.values())).parts:
            rows.append([part.replace("_", " "), *(f"{memory.parts[part]:,}" for memory in self.memory.values())])
        rows.append(["total at the peak", *(f"{memory.total:,}" for memory in self.memory.values())])
        return aligned(rows)

    def _explanations(self) -> list[str]:
        figures = [x.figure if isinstance(x.figure, str) else f"{x.figure:,}" for x in self.explanations]
        rows = aligned([[x.name, figure] for x, figure in zip(self.explanations, figures, strict=True)])
        wrapped = [textwrap.wrap(x.reason, 80, initial_indent="    ", subsequent_indent="    ") for x in self.explanations]
        return ["why other numbers differ", *(line for row, lines in zip(rows, wrapped, strict=True) for line in (row, *lines))]


TOTALS = {
    "encoder": "encoder",
    "encoder_with_pooler": "encoder with pooler",
    "mlm_tied": "MLM model, tied",
    "mlm_untied": "MLM model, untied",
    "non_embedding": "encoder, non-embedding",
}
"""Display name of each total."""


def totals(count: ParameterCount) -> dict[str, int]:
    """Return the totals by their JSON names."""
    return {
        "encoder": count.parameters_encoder,
        "encoder_with_pooler": count.parameters_encoder + count.parameters_pooler,
        "mlm_tied": count.parameters_mlm_tied,
        "mlm_untied": count.parameters_mlm_untied,
        "non_embedding": count.parameters_non_embedding,
    }


def account(
    architecture: Architecture, conditions: Conditions, title: str | None = None, others: tuple[Explanation, ...] = ()
) -> Account:
    """Account for an architecture under some conditions, with 15% of positions masked as in BERT.

    Memory covers training with AdamW and the encoder's forward pass, if study.model builds the encoder. Raises InputError if
    the sequence length exceeds the positions.
    """
    predictions, flops = training_flops(architecture, conditions.sequence_length)
    return Account(
        title=title or architecture.shape_name,
        architecture=architecture,
        count=parameters(architecture),
        conditions=conditions,
        predictions=predictions,
        flops=flops,
        memory={} if unbuildable(architecture) else memory_in(conditions, architecture),
        explanations=others,
    )


def default_length(length: int | None, architectures: Sequence[Architecture]) -> int:
    """Return the given length, else USUAL_LENGTH or the fewest positions."""
    return length if length is not None else min(USUAL_LENGTH, *(architecture.positions for architecture in architectures))


def memory_in(conditions: Conditions, architecture: Architecture) -> dict[str, Memory]:
    """Memory of training and inference."""
    return memory_of(architecture, conditions.batch, conditions.sequence_length, conditions.precision)


def training_flops(
    architecture: Architecture, sequence_length: int, masking_rate: float = MASKING_RATE
) -> tuple[int, dict[str, float]]:
    """Masked positions per sequence, and FLOPs per token by convention; raises InputError."""
    if not 1 <= sequence_length <= architecture.positions:
        raise InputError.at("--sequence-length", f"{sequence_length} is not between 1 and positions {architecture.positions}")
    predictions = masked_positions(sequence_length, masking_rate)
    return predictions, flops_per_token(architecture, sequence_length, predictions)


def explanations(
    architecture: Architecture, published: tuple[str, str] | None = None, of_name: bool = True
) -> tuple[Explanation, ...]:
    """Why other people's numbers for this architecture differ from ours, each with its figure.

    `published` is the size that authors or the model card state, and how it is known. Lecture and tutorial sums cover only
    plain BERT. Unless it was given by its name (`of_name`), the named model of this architecture or shape comes first.
    """
    reasons = [] if of_name else [*_named_model(architecture)]
    if published:
        size, status = published
        reason = f"rounded, as stated by the authors or the model card, which rarely say which total it is ({status})"
        reasons.append(Explanation("published", size, reason))
    plain = not not_of_berts_kind(architecture) and architecture.norm == "post"
    if plain and architecture.ffn == 4 * architecture.width:
        reasons += [_lecture(architecture), _tutorial(architecture)]
    masked_words = architecture.model_copy(update={"pair_head": False, "generator_share": 0.0})
    return (*reasons, *_other_totals(masked_words, parameters(masked_words)))


def _named_model(a: Architecture) -> Iterator[Explanation]:
    """Yield the named model of this shape that differs least, BERT's own first."""
    alike = [model for model in catalogue() if model.architecture.sizes == a.sizes]
    if not alike:
        return
    model = min(alike, key=lambda model: (len(_differing(a, model.architecture)), model.family != "BERT"))
    if differ := _differing(a, model.architecture):
        reason = f"its depth, width, heads and ffn, but {', '.join(f'{name} {value} there' for name, value in differ.items())}"
        yield Explanation("named model of this shape", model.short_name, reason)
    else:
        yield Explanation(
            "named model", model.short_name, f"every size is its own; study params {model.short_name} is the same"
        )


def _differing(a: Architecture, other: Architecture) -> dict[str, Any]:
    own = dict(a)
    return {name: value for name, value in other if value != own[name]}


def _lecture(a: Architecture) -> Explanation:
    """30,000 words, positions, and L layers of 12·H², each rounded to whole millions.

    Our reconstruction: the lecture's figure for Base, 107.4M, needs the rounding; exactly it is 108.4M.
    """
    layer = 12 * a.width**2
    tables = (LECTURE_VOCABULARY + a.positions) * a.width
    rounded = round(layer, -6) or layer
    reason = f"{LECTURE_VOCABULARY:,}·H + P·H + L·12·H², no biases, norms, segments or pooler"
    if rounded != layer:
        reason += f"; each layer rounded to {rounded / 1e6:.0f}M (unrounded {(tables + a.depth * layer) / 1e6:.1f}M)"
    return Explanation("sum as in a lecture", tables + a.depth * rounded, reason)


def _tutorial(a: Architecture) -> Explanation:
    """Three tables and a decoder of V·H each with its bias V, and layers of 4·H² attention, a 2·H² FFN and 4·H of norms.

    The tutorial's code prints 136,298,298 for Base and 276,141,882 for Large; what its small terms are is our reading.
    """
    h = a.width
    estimate = 4 * a.vocabulary * h + a.vocabulary + a.depth * (6 * h**2 + 4 * h)
    reason = "an FFN of 2·H² instead of 8·H², but three V·H embeddings and a V·H decoder: 4·V·H + V + L·(6·H² + 4·H)"
    return Explanation("estimate as in a tutorial", estimate, reason)


def _other_totals(a: Architecture, count: ParameterCount) -> list[Explanation]:
    """Totals of modules that people load or sum."""
    tied, pooler, decoder = count.parameters_mlm_tied, count.parameters_pooler, a.vocabulary * a.table_width
    others = [
        Explanation("matrices of the blocks alone, L·12·H²", 12 * a.depth * a.width**2, "the rule of thumb for BERT's layers")
    ]
    head = sum(component.count for component in count.components if component.part == "head")
    own = head if a.tied_decoder else head - decoder
    others.append(
        Explanation("MLM head", own, "what it adds to the encoder: transform, norm and output bias; the decoder is tied")
    )
    others.append(
        Explanation("MLM head with its decoder", own + decoder, "the same and the decoder V·E, which is the token table")
    )
    if pooler:
        total = count.parameters_encoder + pooler
        others.append(Explanation("encoder with pooler", total, "what transformers' AutoModel loads: no MLM head"))
    if pooler and a.segments > 1:
        pretraining = tied + pooler + 2 * a.width + 2
        reason = "MLM and sentence-pair pre-training: adds the pooler H² + H and the pair head 2·H + 2"
        others.append(Explanation("pre-training, MLM + NSP", pretraining, reason))
    others.append(Explanation("decoder not tied", tied + decoder, "the output projection counts V·E again"))
    if a.second_output_bias:
        both = "the checkpoint lists one bias twice (predictions.bias, predictions.decoder.bias); a sum over names adds V"
        others.append(Explanation("output bias counted twice", tied + a.vocabulary, both))
        reason = "transformers with tie_word_embeddings=False: the decoder, and a second bias that it never uses"
        others.append(Explanation("decoder not tied, bias twice", count.parameters_mlm_untied, reason))
    if a.layer_groups is not None:
        unshared = parameters(a.model_copy(update={"layer_groups": None})).parameters
        others.append(
            Explanation("layers not shared", unshared, "the size of the network as it runs; fewer parameters are stored")
        )
    return others


def _legend(written: dict[str, str]) -> str:
    used = set(re.findall(r"[A-Z]", " ".join(written.values())))
    return ", ".join(f"{letter} {meaning}" for letter, meaning in LETTERS.items() if letter in used)
