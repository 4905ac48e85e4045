"""A trained encoder as a folder for transformers: weights, configuration, tokeniser, the run's record, and the model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import yaml
from tokenizers import Tokenizer
from tokenizers.processors import BertProcessing
from torch import Tensor

from study.base.durable_files import is_there, takes_files, write_atomically
from study.base.errors import InputError
from study.base.quantities import plus_minus
from study.base.schema import flatten
from study.base.text import code, escape, table
from study.counting.architecture import Architecture
from study.counting.components import OF_GENERATOR
from study.counting.parameters import parameters
from study.data.hub_corpus import loading
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens
from study.model.in_transformers import their_config, their_weights, without_mlm_head
from study.model.masked_language_model import DECODER_POSITIONS
from study.model.replaced_tokens import generator_state
from study.model.transformers_classes import TransformersClass, class_for
from study.scoring.pretrained import Pretrained
from study.store.records import RunRecord
from study.store.score_records import ScoreRecord, readable_scores, scores, with_series

LICENCE = "other"
"""The licence that the card names until its owner chooses one; text and tokeniser have terms of their own."""


@dataclass(frozen=True)
class Kind:
    """What an exported encoder is: in words, and by the hub's names of its task."""

    words: str
    task: str


MASKED = Kind("A masked language model", "fill-mask")
DETECTOR = Kind("An encoder trained to detect replaced tokens", "feature-extraction")
GENERATOR = Kind("A masked language model, the generator of an encoder that detects replaced tokens,", "fill-mask")
HEADLESS = Kind("An encoder without an MLM head", "feature-extraction")


@dataclass(frozen=True)
class Exported:
    """A folder of an export: what it holds, its family and class of transformers, and what differs from the run.

    `parameters` counts what is written, without a head that is left out.
    """

    folder: Path
    kind: Kind
    architecture: Architecture
    family: TransformersClass
    class_name: str
    parameters: int
    notes: tuple[str, ...] = ()

    @property
    def non_embedding(self) -> int:
        """Its parameters less the head and the tables."""
        return parameters(self.architecture).parameters_non_embedding

    def opened_at(self, place: str) -> str:
        """Return the call that opens it; a pooler would be one of random weights."""
        options = ", add_pooling_layer=False" if self.kind is HEADLESS and self.family.has_pooler else ""
        return f"{self.class_name}.from_pretrained({place}{options})"

    @property
    def other_classes(self) -> str:
        """What else opens it, in words."""
        return "any Auto class" + (" but that for masked language models" if self.kind is HEADLESS else "")


def export(run: Pretrained, folder: Path) -> list[Exported]:
    """Write a completed run as a new folder for `from_pretrained` of its model and all models on its encoder.

    An encoder that detects replaced tokens and its generator are written into folders within it.

    `model_max_length` is the run's `usual_length`, even with more positions: those are untrained. An encoder without a trained
    MLM head is written without one, for the class of the encoder alone. Raises InputError where the folder is not empty, no
    class of transformers computes the same, or weights or text are gone.
    """
    _check_empty(folder)
    architecture, state = run.config.architecture, run.state()
    if architecture.enhanced_mask_decoder:
        state = {name: tensor for name, tensor in state.items() if not name.startswith(DECODER_POSITIONS)}
    family = class_for(architecture.model_copy(update={"enhanced_mask_decoder": False}))
    if (generator := architecture.generator) is None:
        record = run.folder.record()
        headless = architecture.enhanced_mask_decoder or (record is not None and record.untrained_head)
        return [_export(run, _described(folder, HEADLESS if headless else MASKED, architecture, family), state)]
    return [
        _export(run, _described(folder / "discriminator", DETECTOR, architecture, family), state),
        _export(run, _described(folder / "generator", GENERATOR, generator, family), generator_state(state)),
    ]


def _described(folder: Path, kind: Kind, architecture: Architecture, family: TransformersClass) -> Exported:
    name = family.encoder_name if kind is HEADLESS else family.name_for(architecture)
    lacking = architecture.pair_head and family.pretraining is None
    written = architecture.model_copy(update={"pair_head": architecture.pair_head and not lacking})
    own = [
        each.count
        for each in parameters(written).components
        if not each.name.startswith(OF_GENERATOR) and not (kind is HEADLESS and each.part == "head")
    ]
    notes = [f"The head for pairs of segments is left out, since {name} has none."] if lacking else []
    if architecture.enhanced_mask_decoder:
        notes.append(f"The MLM head is left out, since {family.name} has no enhanced mask decoder for it to read.")
    elif kind is HEADLESS:
        notes.append("The MLM head is left out, since the encoder was imported without one and it is untrained.")
    if architecture.trigram_embedding:
        notes.append(f"{name} reads [PAD] beside the last token of a padded sequence, and a run here nothing.")
    return Exported(folder, kind, architecture, family, name, sum(own), tuple(notes))


def _export(run: Pretrained, exported: Exported, state: Mapping[str, Tensor]) -> Exported:
    record, content = run.folder.record(), run.folder.content(run.folder.record_file)
    assert record is not None, "a completed run has a record"
    assert content is not None
    architecture, family = exported.architecture, exported.family
    weights = {name: tensor.clone() for name, tensor in their_weights(state, architecture, family).items()}
    if exported.kind is HEADLESS:
        weights = without_mlm_head(weights, family)
    config = their_config(architecture, run.special, run.config.recipe.dropout, family)
    scored = [] if exported.kind is GENERATOR else readable_scores([run.folder])
    files = {
        "README.md": model_card(record, scored, exported).encode(),
        "record.json": content,
        "tokenizer.json": _with_brackets(run.tokenizer, run.special).to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(_tokenizer_config(run, family)),
        "model.safetensors": safetensors.torch.save(weights, {"format": "pt"}),
        "config.json": _json(config | {"architectures": [exported.class_name]}),
    }
    exported.folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(exported.folder / name, content)
    return exported


def push(folder: Path, repository: str) -> str:
    """Upload an export to a repository of the Hugging Face hub, new ones private, and return its address.

    `record.json` stays here: it names this machine and local paths. Raises InputError where the hub refuses.
    """
    from huggingface_hub import HfApi

    with loading(repository, "cannot be pushed", f"log in with `hf auth login`; the export is in {folder}"):
        api = HfApi()
        address = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=["record.json"], commit_message="Export")
    return str(address)


def _check_empty(folder: Path) -> None:
    place = str(folder)
    if is_there(folder) and not folder.is_dir():
        raise InputError.at(place, "is a file; give a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError.at(place, "is not empty, and no file is overwritten; give a new folder")
    if not takes_files(folder):
        raise InputError.at(place, "cannot be written; give another folder")


def _with_brackets(tokenizer: Tokenizer, special: SpecialTokens) -> Tokenizer:
    """Return a tokeniser that adds [CLS] and [SEP], whatever its file says."""
    ids = tokenizer.encode("a").ids
    if (ids[:1], ids[-1:]) != ([special.cls], [special.sep]):
        tokenizer.post_processor = BertProcessing(("[SEP]", special.sep), ("[CLS]", special.cls))
    return tokenizer


def _tokenizer_config(run: Pretrained, family: TransformersClass) -> dict[str, Any]:
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_PIECES, strict=True))
    segments = ["token_type_ids"] if family.has_segments else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.usual_length,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
    } | names


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=2).encode() + b"\n"


def model_card(record: RunRecord, scored: list[ScoreRecord], exported: Exported) -> str:
    """Markdown that says what the encoder is, how it was trained, on what, and how well it does.

    Paths are cut to their last part. Only the scores of this run at their chosen knobs are listed, a line a series
    (study.store.score_records.series), and none of random weights.
    """
    kind, name = exported.kind, exported.class_name
    tags = [kind.task, exported.family.model_type]
    head = {"library_name": "transformers", "pipeline_tag": kind.task, "license": LICENCE, "tags": tags}
    return "\n".join(
        [
            f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
            f"# {escape(exported.architecture.shape_name)}\n",
            f"{kind.words} of {exported.parameters:,} parameters ({exported.non_embedding:,} without embeddings),",
            f"{_origin(record)}run `{record.run_id}` of the sweep {code(record.sweep)} with Scaling Study.\n",
            f"```python\nfrom transformers import AutoTokenizer, {name}\n",
            "model = " + exported.opened_at('"THIS_REPOSITORY"'),
            'tokenizer = AutoTokenizer.from_pretrained("THIS_REPOSITORY")\n```\n',
            "## Results\n",
            _results(record, kind),
            *_scores(scored),
            "\n## Training\n",
            table(("knob", "value"), _config(record).items()),
            "\n## Licence\n",
            "Not chosen yet: name one here and in `license` above; text and tokeniser have terms of their own.\n",
        ]
    )


def _origin(record: RunRecord) -> str:
    """Return where the weights come from: an encoder that others trained is named, with the hash of its weights."""
    return f"imported from {escape(record.config.recipe.start)} and written from " if record.is_imported else "written from "


def _results(record: RunRecord, kind: Kind) -> str:
    """Return the table of a run's results, for the card of a generator its own alone."""
    rows: list[tuple[str, object]] = []
    if record.loss_nats is not None and kind is not GENERATOR:
        loss = plus_minus(record.loss_nats, record.loss_standard_error_nats)
        of = "token, of detecting whether it was replaced" if kind is DETECTOR else "masked token"
        rows.append((f"validation loss, nats per {of}", loss))
    if record.generator_loss_nats is not None:
        of = "" if kind is GENERATOR else " of the generator"
        rows.append((f"validation loss{of}, nats per masked token", f"{record.generator_loss_nats:.4f}"))
    if record.order_gain_nats is not None and kind is not GENERATOR:
        gain = plus_minus(record.order_gain_nats, record.order_gain_standard_error_nats)
        rows.append(("what the order of words is worth, nats", gain))
    accuracy = record.generator_accuracy if kind is GENERATOR else record.accuracy
    if accuracy is not None:
        rows.append((f"accuracy at {'ordinary' if kind is DETECTOR else 'masked'} tokens", f"{accuracy:.4f}"))
    if record.tokens:
        rows += [("training tokens", f"{record.tokens:,}"), ("training FLOPs", f"{record.train_flops:.3g}")]
    return table(("", "value"), rows) if rows else "It has no loss, for lack of an MLM head.\n"


def _scores(scored: list[ScoreRecord]) -> list[str]:
    frame = with_series(scores(scored))
    if frame.empty:
        return []
    groups = frame.groupby(["series", "protocol", "metric"])["test"]
    rows = [(*map(str, key), f"{values.mean():.4f}", len(values)) for key, values in groups if isinstance(key, tuple)]
    return ["", table(("task", "protocol", "metric", "score", "seeds"), rows)]


def _config(record: RunRecord) -> dict[str, Any]:
    """Return the configuration of the run by dotted key, paths cut to their last part, but not an imported encoder's name."""
    values = {key: value for key, value in flatten(record.config.to_dict()).items() if value is not None}
    named = {"recipe.start": record.config.recipe.start} if record.is_imported else {}
    short = {key: Path(value).name if isinstance(value, str) and "/" in value else value for key, value in values.items()}
    return short | named
