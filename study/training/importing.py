"""Import of a pre-trained encoder as a completed run, to be scored, cut or used as a teacher."""

from __future__ import annotations

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
import yaml
from torch import Tensor

from study.base.durable_files import is_there, json_value, require_links, write_atomically
from study.base.errors import InputError
from study.base.text import path_from
from study.config.recipe import Budget, Recipe
from study.config.run_config import FEWEST_PIECES, DataConfig, RunConfig, TokenizerConfig
from study.counting.architecture import Architecture, not_of_berts_kind
from study.counting.memory import AskedPrecision
from study.data.hub_corpus import PREFIX as HUB
from study.data.hub_corpus import loading
from study.data.prepared import prepare
from study.data.tokenizing import is_cased, load_tokenizer
from study.model.in_transformers import our_architecture, our_weights
from study.model.transformers_classes import TransformersClass, class_in
from study.store.ownership import Attempt, work_lock
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from study.training.filing import Filing, Outcome
from study.training.trainer import Training

VALIDATION_BATCH = 32
"""Sequences per batch of the imported run."""

_UNLIKE = {
    "strip_accents": "a vocab.txt that keeps accents",
    "tokenize_chinese_chars": "a vocab.txt that leaves Chinese characters together",
}
"""Values of transformers that, if false, change how it reads a vocab.txt."""

_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


def import_encoder(
    source: str, into: SweepFolder, data: DataConfig, execution: Execution, precision: AskedPrecision = "auto"
) -> RunFolder:
    """Import a transformers encoder as a completed run of no steps, validated on a text; return its folder.

    `source` is hub:NAME, or a folder with config.json, model.safetensors and tokenizer.json or vocab.txt. The encoder's
    tokeniser replaces that of `data` and is copied into the sweep folder, for sweeps that use the encoder. The recipe names the
    weights by their hash. An encoder imported before stays unchanged.

    Raises InputError if files are missing, nothing built here computes the same, the text is unusable, or the sweep folder has
    another tokeniser.
    """
    require_links(into.path, "give another folder with --into")
    folder = _folder_of(source)
    settings, place = _json(folder / "config.json"), str(folder / "config.json")
    architecture, family = our_architecture(settings, place), class_in(settings, place)
    if architecture.vocabulary < FEWEST_PIECES:
        too_few = f"is {architecture.vocabulary}, and a vocabulary has {FEWEST_PIECES} pieces or more"
        raise InputError.at(f"{place}.vocab_size", f"{too_few}; an encoder of real text has thousands")
    if data.sequence_length > architecture.positions:
        fits = f"give {architecture.positions} or fewer"
        raise InputError.at("data.sequence_length", f"{data.sequence_length} is more than the encoder has positions; {fits}")
    weights = _weights(folder / "model.safetensors", architecture, family)
    kept = into.path / "tokenizer.json"
    tokenizer = _tokenizer(folder, kept, architecture.vocabulary)
    digest = hashlib.sha256(safetensors.torch.save(weights)).hexdigest()
    name = source.removeprefix(HUB) if source.startswith(HUB) else folder.resolve().name
    recipe = Recipe(
        start=f"{name}/{digest[:16]}",
        batch_tokens=VALIDATION_BATCH * data.sequence_length,
        budget=Budget(steps=0),
        precision=precision,
    )
    config = RunConfig.parse({"architecture": architecture, "recipe": recipe, "data": _read_by(data, kept, architecture)})
    with TemporaryDirectory() as scratch:  # an unusable text leaves nothing
        file = Path(scratch) / kept.name
        file.write_bytes(tokenizer)
        prepared = prepare(_read_by(data, file, architecture), progress=True)
    if not is_there(kept):
        write_atomically(kept, tokenizer)
    run = into.run(config.fingerprint(prepared.fingerprint))
    with work_lock(run) as locked:
        if run.record() is not None:
            return run
        run.write_config(config)
        attempt = Attempt.begin(run, locked)
        with attempt.renewed():
            training = Training(config, prepared, run, execution.of(config))
            Filing(training, into.name, attempt).file(Outcome("COMPLETED", trained=training.validated(weights)))
    return run


def to_text(run: RunFolder, record: RunRecord) -> str:
    """Describe the imported encoder, its loss, and the lines of a sweep file that use it."""
    data, architecture = record.config.data, record.config.architecture
    usual = {"positions": data.sequence_length, "segments": 2, "norm": "post", "tied_decoder": True}
    unusual = {name: value for name, usually in usual.items() if (value := getattr(architecture, name)) != usually}
    base = unusual | not_of_berts_kind(architecture)
    of_text = f"{data.validation_sequences:,} sequences of {data.sequence_length} tokens of {data.corpus}"
    return "\n".join(
        [
            f"{architecture.shape_name}, {record.parameters:,} parameters: {run.path}",
            f"{record.loss_nats:.4f} nats per masked token on {of_text}; unigram entropy {record.unigram_entropy_nats:.4f}",
            *([f"Of {data.corpus}: {unread}"] if (unread := data.tokenizer.unread(record.unknown_share)) else []),
            *([f"On this text it {record.order_note}"] if record.order_note else []),
            "A sweep that uses it as a start or a teacher needs:",
            f"  data: {_in_a_line({'tokenizer': data.tokenizer.model_dump()})}",
            *([f"  base: {_in_a_line({'architecture': base})}"] if base else []),
            f"  vary: {_in_a_line({'recipe.start': ['fresh', str(run.path)]})}",
        ]
    )


def _in_a_line(values: dict[str, Any]) -> str:
    return yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10_000).strip()


def _folder_of(source: str) -> Path:
    if source.startswith(HUB):
        from huggingface_hub import snapshot_download

        with loading(source, "cannot be fetched", "fetch it once while online, or give its folder"):
            return Path(snapshot_download(source.removeprefix(HUB), allow_patterns=list(_FILES)))
    folder = path_from(source, "the encoder")
    if not folder.is_dir():
        remedy = f"give a folder that save_pretrained wrote, or {HUB}NAME (looked at {folder.absolute()})"
        raise InputError.at(source, f"is not a folder; {remedy}")
    return folder


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json_value(file.read_bytes())
    except FileNotFoundError:
        raise InputError.at(str(file), "does not exist; save_pretrained writes it") from None
    except ValueError as error:
        raise InputError.at(str(file), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError.at(str(file), "is not a JSON object")
    return values


def _weights(file: Path, architecture: Architecture, family: TransformersClass) -> dict[str, Tensor]:
    try:
        theirs = safetensors.torch.load_file(file)
    except FileNotFoundError:
        remedy = "open the model with transformers and save_pretrained it; files of other kinds may run code and are not read"
        raise InputError.at(str(file), f"does not exist; {remedy}") from None
    except safetensors.SafetensorError as error:
        raise InputError.at(str(file), f"is damaged: {error}") from None
    return our_weights(theirs, architecture, family, str(file))


def _tokenizer(folder: Path, kept: Path, vocabulary: int) -> bytes:
    """The encoder's tokeniser as a tokenizer.json; raises InputError if the sweep folder has another one."""
    given = next((file for name in ("tokenizer.json", "vocab.txt") if is_there(file := folder / name)), None)
    if given is None:
        raise InputError.at(
            str(folder), "has neither tokenizer.json nor vocab.txt; write one with its tokeniser's save_pretrained"
        )
    settings = folder / "tokenizer_config.json"
    if given.suffix == ".txt" and is_there(settings):
        _refuse_unlike(settings, given)
    tokenizer = load_tokenizer(TokenizerConfig(kind="file", path=str(given), vocabulary=vocabulary))
    content = given.read_bytes() if given.suffix == ".json" else tokenizer.to_str(pretty=True).encode()
    if is_there(kept) and kept.read_bytes() != content:
        raise InputError.at(str(kept), f"differs from the tokeniser {given}; import into a separate folder")
    return content


def _refuse_unlike(settings: Path, vocabulary: Path) -> None:
    """Raise InputError if transformers reads a vocab.txt by other rules than load_tokenizer."""
    values = _json(settings)
    problems = [f"describes {what}" for setting, what in _UNLIKE.items() if values.get(setting) is False]
    cased = is_cased(vocabulary)
    if values.get("do_lower_case") is cased:
        problems.append(f"has do_lower_case {str(cased).lower()}, and vocab.txt has {'' if cased else 'no '}capitals")
    if problems:
        raise InputError.at(str(settings), f"{problems[0]}; save its tokeniser as a tokenizer.json")


def _read_by(data: DataConfig, tokenizer: Path, architecture: Architecture) -> DataConfig:
    file = TokenizerConfig(kind="file", path=str(tokenizer), vocabulary=architecture.vocabulary)
    return data.model_copy(update={"tokenizer": file})
