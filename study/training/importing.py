"""Import of a pre-trained encoder, with its tokeniser, as a completed run, to be scored, cut or used as a teacher."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
import yaml
from tokenizers import Tokenizer
from torch import Tensor

from study.base.durable_files import is_there, require_links, write_atomically
from study.base.errors import InputError, Problem
from study.base.text import path_from
from study.config.recipe import Budget, Recipe
from study.config.run_config import FEWEST_PIECES, DataConfig, RunConfig, TokenizerConfig
from study.config.shape_spec import LARGEST, why_beyond
from study.counting.architecture import Architecture, not_of_berts_kind
from study.counting.memory import AskedPrecision, Precision
from study.counting.parameters import parameters
from study.data.hub_corpus import PREFIX as HUB
from study.data.hub_corpus import loading
from study.data.prepared import prepare
from study.data.tokenizing import (
    ADDED,
    MOST_PADDING,
    SETTINGS,
    SPECIAL_MAP,
    json_object,
    load_tokenizer,
    named_as_berts,
    read_tokenizer,
    unused_capitals,
)
from study.model.in_transformers import cut_vocabulary, has_mlm_head, our_architecture, our_weights
from study.model.transformers_classes import TransformersClass, class_in
from study.store.ownership import Attempt, work_lock
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from study.training.run import Filing, Outcome, lack_of_memory
from study.training.stepless_runs import is_made, put_failure_aside, require_completed
from study.training.trainer import Trained, Training

VALIDATION_BATCH = 32
"""Sequences per batch of the imported run."""

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", SETTINGS, SPECIAL_MAP, ADDED)
"""The files that say how an encoder reads text."""

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FILES = ("config.json", _WEIGHTS, _INDEX, "model-*.safetensors", *TOKENIZER_FILES)

_MOST_POSITIONS = 2**20
"""The most positions of an encoder; rotary ones have no weights to compare them with."""

_NAMED_UP_TO = 2.0
"""Weights that lack up to half of an architecture's parameters are read, to name the first that differs."""

_LEAST_MULTIPLE = 4
"""A padded vocabulary is a multiple of this."""


def import_encoder(
    source: str,
    into: SweepFolder,
    data: DataConfig,
    execution: Execution,
    precision: AskedPrecision = "auto",
    say: Callable[[str], object] = lambda _: None,
) -> RunFolder:
    """Import a transformers encoder as a completed run of no steps, validated on a text; return its folder.

    `source` is hub:NAME, or a folder with config.json, model.safetensors or its shards, and tokenizer.json or vocab.txt. The
    encoder's tokeniser replaces that of `data` and is copied into the sweep folder, for sweeps that use the encoder; there its
    special pieces have BERT's names. Rows that pad the vocabulary beyond the tokeniser's pieces are cut. An encoder without its
    MLM head gets an untrained one and is not validated. `say` is called with a sentence on either. The recipe names the weights
    by their hash. An encoder imported before stays unchanged.

    Raises InputError if files are missing, nothing here computes the same, the text is unusable, the loss on it is not finite,
    memory does not suffice, or the folder has another tokeniser; only if the run's files cannot be written, a run is left.
    """
    require_links(into.path, "give another folder with --into")
    folder = _folder_of(source)
    settings, place = json_object(folder / "config.json"), str(folder / "config.json")
    family = class_in(settings, place)
    _check_sizes(settings, family, place)
    architecture = our_architecture(settings, place)
    if architecture.vocabulary < FEWEST_PIECES:
        too_few = f"is {architecture.vocabulary}, and a vocabulary has {FEWEST_PIECES} pieces or more"
        raise InputError.at(f"{place}.vocab_size", f"{too_few}; an encoder of real text has thousands")
    if data.sequence_length > architecture.positions:
        fits = f"give {architecture.positions} or fewer"
        raise InputError.at("data.sequence_length", f"{data.sequence_length} is more than the encoder has positions; {fits}")
    files = _weight_files(folder)
    _check_weights(architecture, files, place)
    loaded = _loaded(files)
    weights, predicts = our_weights(loaded, architecture, family, str(files[0])), has_mlm_head(loaded, family)
    if not predicts:
        say("It has no MLM head, so it has no loss: it can be scored and be a start, but not teach.")
    kept = into.path / "tokenizer.json"
    tokenizer, pieces = imported_tokenizer(folder, kept, architecture.vocabulary)
    if pieces < architecture.vocabulary:
        say(f"The vocabulary is cut from {architecture.vocabulary:,} rows to the {pieces:,} pieces of the tokeniser.")
        architecture, weights = architecture.model_copy(update={"vocabulary": pieces}), cut_vocabulary(weights, pieces)
    if note := unused_capitals(Tokenizer.from_buffer(tokenizer)):
        say(f"{note}.")
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
    run = into.run(config.fingerprint(prepared.fingerprint))
    if not is_made(run):
        training = Training(config, prepared, run, execution.of(config))
        with _measuring(source, training.precision):
            trained = training.validated(weights) if predicts else training.unvalidated(weights)
        if not is_there(kept):
            write_atomically(kept, tokenizer)
        _file(training, trained, into.name)
    require_completed(run)
    return run


@contextmanager
def _measuring(source: str, precision: Precision) -> Iterator[None]:
    """Raise InputError, by the encoder's name, where its loss is not finite or memory does not suffice."""
    try:
        yield
    except FloatingPointError as error:
        remedy = "fetch or save it anew: its weights overflow" if precision == "fp32" else "give --precision fp32"
        raise InputError.at(source, f"has no finite loss on this text ({error}); {remedy}") from None
    except Exception as error:
        if (lack := lack_of_memory(error)) is None:
            raise
        remedy = "give a smaller --sequence-length, or --device cpu where there is more memory"
        raise InputError.at(source, f"needs more memory than there is ({lack}); {remedy}") from None


def _file(training: Training, trained: Trained, sweep: str) -> None:
    """Write the run's files, unless another process has."""
    run = training.folder
    with work_lock(run) as locked:
        put_failure_aside(run)
        if run.record() is not None:
            return
        run.write_config(training.config)
        attempt = Attempt.begin(run, locked)
        with attempt.renewed():
            Filing(training, sweep, attempt).file(Outcome("COMPLETED", trained=trained))


def to_text(run: RunFolder, record: RunRecord) -> str:
    """Describe the imported encoder, its loss, and the lines of a sweep file that use it."""
    data, architecture = record.config.data, record.config.architecture
    usual = {"positions": data.sequence_length, "segments": 2, "norm": "post", "tied_decoder": True}
    unusual = {name: value for name, usually in usual.items() if (value := getattr(architecture, name)) != usually}
    base = unusual | not_of_berts_kind(architecture)
    of_text = f"{data.validation_sequences:,} sequences of {data.sequence_length} tokens of {data.corpus}"
    loss = "it has no loss, for lack of an MLM head"
    if record.loss_nats is not None:
        loss = f"{record.loss_nats:.4f} nats per masked token on {of_text}; unigram entropy {record.unigram_entropy_nats:.4f}"
    return "\n".join(
        [
            f"{architecture.shape_name}, {record.parameters:,} parameters: {run.path}",
            loss,
            *([f"Of {data.corpus}: {unread}"] if (unread := record.unread) else []),
            *([f"On this text it {record.order_note}"] if record.order_note else []),
            "A sweep that uses it as a start or a teacher needs:",
            f"  data: {_in_a_line({'tokenizer': data.tokenizer.model_dump(exclude_none=True)})}",
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


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if is_there(folder / _WEIGHTS) or not is_there(index):
        return [folder / _WEIGHTS]
    named = json_object(index).get("weight_map")
    names = sorted({*map(str, named.values())}) if isinstance(named, dict) else []
    if not names or any(name != Path(name).name or not name.endswith(".safetensors") for name in names):
        raise InputError.at(str(index), "has no weight_map to .safetensors files beside it; save_pretrained the model anew")
    if missing := [name for name in names if not is_there(folder / name)]:
        raise InputError.at(str(folder / missing[0]), f"does not exist, though {_INDEX} names it; fetch it")
    return [folder / name for name in names]


@contextmanager
def _opening(file: Path) -> Iterator[None]:
    """Raise InputError, by the file's name, where weights cannot be read."""
    try:
        yield
    except FileNotFoundError:
        remedy = "open the model with transformers and save_pretrained it; files of other kinds may run code and are not read"
        raise InputError.at(str(file), f"does not exist; {remedy}") from None
    except safetensors.SafetensorError as error:
        raise InputError.at(str(file), f"is damaged: {error}") from None


def _check_sizes(settings: dict[str, Any], family: TransformersClass, place: str) -> None:
    """Raise InputError for sizes beyond those of any encoder."""
    given = [(theirs, ours, settings.get(theirs)) for theirs, ours in family.fields.items()]
    numbers = [(theirs, ours, value) for theirs, ours, value in given if isinstance(value, int | float)]
    beyond = [
        Problem(f"{place}.{theirs}", f"{value} is {why}")
        for theirs, ours, value in numbers
        if ours in LARGEST and (why := why_beyond(ours, value))
    ]
    beyond += [
        Problem(f"{place}.{theirs}", f"{value} is above the most allowed, {_MOST_POSITIONS:,}")
        for theirs, ours, value in numbers
        if ours == "positions" and value > _MOST_POSITIONS
    ]
    if beyond:
        raise InputError(beyond)


def _check_weights(architecture: Architecture, files: Sequence[Path], place: str) -> None:
    """Raise InputError if an architecture is of another order of size than its weights."""
    held = 0
    for file in files:
        with _opening(file), safetensors.safe_open(file, "pt") as tensors:
            names = tensors.keys()
            held += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    if (described := parameters(architecture).parameters) > _NAMED_UP_TO * held:
        holds = f"its weights hold {held:,} numbers; give the config.json that belongs to them"
        raise InputError.at(place, f"describes {architecture.shape_name} of {described:,} parameters, but {holds}")


def _loaded(files: Sequence[Path]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in files:
        with _opening(file):
            weights |= safetensors.torch.load_file(file)
    return weights


def _read_by(data: DataConfig, tokenizer: Path, architecture: Architecture) -> DataConfig:
    file = TokenizerConfig(kind="file", path=str(tokenizer), vocabulary=architecture.vocabulary)
    return data.model_copy(update={"tokenizer": file})


def imported_tokenizer(folder: Path, kept: Path, vocabulary: int) -> tuple[bytes, int]:
    """Return the encoder's tokeniser as a tokenizer.json, with its number of pieces, at most the padded `vocabulary`.

    Raises InputError if the numbers differ by more, or the folder has another tokeniser.
    """
    given = next((file for name in ("tokenizer.json", "vocab.txt") if is_there(file := folder / name)), None)
    if given is None:
        raise InputError.at(
            str(folder), "has neither tokenizer.json nor vocab.txt; write one with its tokeniser's save_pretrained"
        )
    pieces = read_tokenizer(given).get_vocab_size()
    padding = vocabulary - pieces
    if padding and (vocabulary % _LEAST_MULTIPLE or not 0 < padding < MOST_PADDING):
        rows = f"holds {pieces:,} pieces, but the model has {vocabulary:,}, which is no usual padding"
        raise InputError.at(str(given), f"{rows}; save the tokeniser of this model beside it")
    tokenizer = load_tokenizer(TokenizerConfig(kind="file", path=str(given), vocabulary=pieces))
    content = named_as_berts(given) if given.suffix == ".json" else tokenizer.to_str(pretty=True).encode()
    if is_there(kept) and kept.read_bytes() != content:
        raise InputError.at(str(kept), f"differs from the tokeniser {given}; import into a separate folder")
    return content, pieces
