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
class Exported:
    """A folder of an export, its class of transformers, its parameters, and what differs from the run."""

    folder: Path
    class_name: str
    parameters: int
    notes: tuple[str, ...] = ()


def export(run: Pretrained, folder: Path) -> list[Exported]:
    """Write a completed run as a new folder for `from_pretrained` of its model and all models on its encoder.

    An encoder that detects replaced tokens and its generator are written into folders within it.

    `model_max_length` is the sequence length of pre-training, even with more positions: those are untrained. An encoder without
    a trained MLM head is written without one. Raises InputError where the folder is not empty, no class of transformers
    computes the same, or weights or text are gone.
    """
    _check_empty(folder)
    architecture, state = run.config.architecture, run.state()
    if architecture.enhanced_mask_decoder:
        state = {name: tensor for name, tensor in state.items() if not name.startswith(DECODER_POSITIONS)}
    family = class_for(architecture.model_copy(update={"enhanced_mask_decoder": False}))
    if (generator := architecture.generator) is None:
        return [_export(run, folder, architecture, family, state)]
    return [
        _export(run, folder / "discriminator", architecture, family, state),
        _export(run, folder / "generator", generator, family, generator_state(state)),
    ]


def _export(
    run: Pretrained, folder: Path, architecture: Architecture, family: TransformersClass, state: Mapping[str, Tensor]
) -> Exported:
    record, content = run.folder.record(), run.folder.content(run.folder.record_file)
    assert record is not None, "a completed run has a record"
    assert content is not None
    weights = {name: tensor.clone() for name, tensor in their_weights(state, architecture, family).items()}
    headless = record.untrained_head or architecture.enhanced_mask_decoder
    if headless:
        weights = without_mlm_head(weights, family)
    files = {
        "README.md": model_card(record, readable_scores([run.folder]), family.name_for(architecture)).encode(),
        "record.json": content,
        "tokenizer.json": _with_brackets(run.tokenizer, run.special).to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(_tokenizer_config(run, family)),
        "model.safetensors": safetensors.torch.save(weights, {"format": "pt"}),
        "config.json": _json(their_config(architecture, run.special, run.config.recipe.dropout, family)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    lacking = architecture.pair_head and family.pretraining is None
    written = architecture.model_copy(update={"pair_head": architecture.pair_head and not lacking})
    own = [
        each.count
        for each in parameters(written).components
        if not each.name.startswith(OF_GENERATOR) and not (headless and each.part == "head")
    ]
    name = family.name_for(architecture)
    notes = [f"The head for pairs of segments is left out, since {name} has none."] if lacking else []
    if architecture.enhanced_mask_decoder:
        notes.append(f"The MLM head is left out, since {name} has no enhanced mask decoder for it to read.")
    if architecture.trigram_embedding:
        notes.append(f"{name} reads [PAD] beside the last token of a padded sequence, and a run here nothing.")
    return Exported(folder, name, sum(own), tuple(notes))


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
        "model_max_length": run.max_length(None),
        "model_input_names": ["input_ids", *segments, "attention_mask"],
    } | names


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=2).encode() + b"\n"


def model_card(record: RunRecord, scored: list[ScoreRecord], class_name: str) -> str:
    """Markdown that says what the encoder is, how it was trained, on what, and how well it does.

    Paths are cut to their last part. Only the scores of this run at their chosen knobs are listed, a line a series
    (study.store.score_records.series), and none of random weights.
    """
    detects = record.config.recipe.detects_replaced
    task, kind = ("feature-extraction", "electra") if detects else ("fill-mask", "bert")
    what = "An encoder trained to detect replaced tokens, with its generator" if detects else "A masked language model"
    head = {"library_name": "transformers", "pipeline_tag": task, "license": LICENCE, "tags": [task, kind]}
    shape, sizes = record.config.architecture.shape_name, (record.parameters, record.parameters_non_embedding)
    return "\n".join(
        [
            f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
            f"# {escape(shape)}\n",
            f"{what} of {sizes[0]:,} parameters ({sizes[1]:,} without embeddings),",
            f"trained from run `{record.run_id}` of the sweep {code(record.sweep)} with Scaling Study.\n",
            "```python\nfrom transformers import AutoTokenizer, " + class_name + "\n",
            f'model = {class_name}.from_pretrained("THIS_REPOSITORY")',
            'tokenizer = AutoTokenizer.from_pretrained("THIS_REPOSITORY")\n```\n',
            "## Results\n",
            _results(record),
            *_scores(scored),
            "\n## Training\n",
            table(("knob", "value"), _config(record).items()),
            "\n## Licence\n",
            "Not chosen yet: name one here and in `license` above; text and tokeniser have terms of their own.\n",
        ]
    )


def _results(record: RunRecord) -> str:
    rows: list[tuple[str, object]] = []
    if record.loss_nats is not None:
        loss = plus_minus(record.loss_nats, record.loss_standard_error_nats)
        of = "token, of detecting whether it was replaced" if record.config.recipe.detects_replaced else "masked token"
        rows.append((f"validation loss, nats per {of}", loss))
    if record.generator_loss_nats is not None:
        rows.append(("validation loss of the generator, nats per masked token", f"{record.generator_loss_nats:.4f}"))
    if record.order_gain_nats is not None:
        gain = plus_minus(record.order_gain_nats, record.order_gain_standard_error_nats)
        rows.append(("what the order of words is worth, nats", gain))
    if record.accuracy is not None:
        at = "ordinary" if record.config.recipe.detects_replaced else "masked"
        rows.append((f"accuracy at {at} tokens", f"{record.accuracy:.4f}"))
    rows += [("training tokens", f"{record.tokens:,}"), ("training FLOPs", f"{record.train_flops:.3g}")]
    return table(("", "value"), rows)


def _scores(scored: list[ScoreRecord]) -> list[str]:
    frame = with_series(scores(scored))
    if frame.empty:
        return []
    groups = frame.groupby(["series", "protocol", "metric"])["test"]
    rows = [(*map(str, key), f"{values.mean():.4f}", len(values)) for key, values in groups if isinstance(key, tuple)]
    return ["", table(("task", "protocol", "metric", "score", "seeds"), rows)]


def _config(record: RunRecord) -> dict[str, Any]:
    """Return the configuration of the run by dotted key, paths cut to their last part."""
    values = {key: value for key, value in flatten(record.config.to_dict()).items() if value is not None}
    return {key: Path(value).name if isinstance(value, str) and "/" in value else value for key, value in values.items()}
