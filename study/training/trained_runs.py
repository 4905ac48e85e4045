"""The trained runs that another run needs: its initial weights and its teacher."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem
from study.config.named_runs import InitFrom, kept_layers, layers_problem
from study.config.run_config import DataConfig, RunConfig, TokenizerVariant
from study.counting.architecture import NOT_IN_MLM, Architecture
from study.data.cache import sha256_of
from study.data.prepared import PreparedData
from study.data.tokenizing import tokenizer_file
from study.model.masked_language_model import ENCODER, MaskedLanguageModel, TeacherModel
from study.model.stored_weights import trained_weights
from study.store.records import RunRecord
from study.store.run_folder import NONE_PLANNED, PlannedRuns, RunFolder
from study.training.reshaping import grown, shrunk, ungrowable, unshrinkable

SHRINKING = ("depth", "ffn", "embedding_width")
"""The sizes in which a run may be smaller than the one that it starts from."""

_SEGMENTS = "encoder.embeddings.segment.weight"
_BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.(.+)")


def starting_weights(
    config: RunConfig, prepared: PreparedData, tick: Callable[[], object] = lambda: None
) -> dict[str, Tensor] | None:
    """Return the initial weights of a run under its names; None if fresh.

    `tick` is called as the text that weighs what to leave out is read. Raises InputError as check_trained_runs does, and if the
    weights are damaged.
    """
    if (init_from := config.recipe.init_from) is None:
        return None
    _raise_all(_problems_of_start(config, init_from, prepared))
    folder = RunFolder(init_from.folder)
    given, wanted = folder.config().architecture, config.architecture
    if init_from.grow is not None:
        return grown(trained_weights(folder), given, wanted, init_from.grow, config.seed)
    layers, weights = kept_layers(given.depth, wanted.depth, init_from.keep), trained_weights(folder)
    given = given.model_copy(update={"segments": wanted.segments})
    if given.generator != wanted.generator:
        weights = {name: tensor for name, tensor in weights.items() if name.startswith(ENCODER)}
    given = given.model_copy(update={"depth": wanted.depth})
    return shrunk(_with_segments(cut(weights, layers), given), given, config, prepared, tick)


def _with_segments(weights: dict[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Return weights with embeddings of segments, zeros if it had none."""
    if not architecture.segments or _SEGMENTS in weights:
        return weights
    return weights | {_SEGMENTS: torch.zeros(architecture.segments, architecture.summed_width)}


def load_teacher(config: RunConfig, prepared: PreparedData) -> TeacherModel | None:
    """Return the teacher of a run, if any; raises InputError as starting_weights does."""
    if (teacher := config.recipe.teacher_run) is None:
        return None
    _raise_all(_problems_of_teacher(config, teacher.folder, prepared))
    folder = RunFolder(teacher.folder)
    model = MaskedLanguageModel(folder.config().architecture)
    model.load_state_dict(trained_weights(folder))
    return TeacherModel(model, teacher.weight, teacher.temperature, teacher.losses)


def check_trained_runs(
    configs: Iterable[RunConfig],
    begun: Container[str] = (),
    prepared: Mapping[TokenizerVariant, PreparedData] = MappingProxyType({}),
    planned: PlannedRuns = NONE_PLANNED,
) -> None:
    """Raise InputError with every distinct reason why starts and teachers of these runs are unusable.

    Both must have completed with the run's tokeniser, from the same text or file, compared only if the data is prepared. A
    start needs the run's architecture with at least as many layers and neurons, and tables at least as wide, perhaps
    without segments, or one that can grow into it, unless the run's key is in `begun`. A teacher needs the run's vocabulary
    and enough positions, and layers that fit the losses between layers. Runs that are `planned`, by id, need not have
    completed.
    """
    problems: dict[str, Problem] = {}
    for config in configs:
        of_run: list[Problem] = []
        data = prepared.get(config.data.tokenizer.variant)
        if (init_from := config.recipe.init_from) is not None and config.key not in begun:
            of_run += _problems_of_start(config, init_from, data, planned)
        if (teacher := config.recipe.teacher_run) is not None:
            of_run += _problems_of_teacher(config, teacher.folder, data, planned)
        problems |= {str(problem): problem for problem in of_run}
    _raise_all(problems.values())


def _raise_all(problems: Iterable[Problem]) -> None:
    if listed := list(problems):
        raise InputError(listed)


def _problems_of_start(
    config: RunConfig,
    init_from: InitFrom,
    prepared: PreparedData | None,
    planned: PlannedRuns = NONE_PLANNED,
) -> Iterator[Problem]:
    unfit = partial(_unfit_start, wanted=config.architecture, init_from=init_from)
    if (parent := planned.get(init_from.folder.name)) is not None:
        return _problems_of_planned("start", parent, unfit)
    place, folder = f"recipe.start {init_from.folder}", RunFolder(init_from.folder)
    return _problems(place, folder, unfit, config, prepared, predicts=config.recipe.budget.steps == 0)


def _problems_of_teacher(
    config: RunConfig, path: Path, prepared: PreparedData | None, planned: PlannedRuns = NONE_PLANNED
) -> Iterator[Problem]:
    unfit = partial(_unfit_teacher, config=config)
    if (parent := planned.get(path.name)) is not None:
        return _problems_of_planned("teacher", parent, unfit)
    return _problems(f"recipe.teacher {path}", RunFolder(path), unfit, config, prepared, predicts=True)


def _problems_of_planned(knob: str, parent: RunConfig, unfit: Callable[[Architecture], str | None]) -> Iterator[Problem]:
    """Why a run of the same sweep cannot serve another."""
    if problem := unfit(parent.architecture):
        yield Problem(f"recipe.{knob}", f"the cell {parent.architecture.shape_name} {problem}")


def _problems(
    place: str,
    folder: RunFolder,
    unfit: Callable[[Architecture], str | None],
    config: RunConfig,
    prepared: PreparedData | None,
    predicts: bool,
) -> Iterator[Problem]:
    """Yield the first reason why a trained run, whose head `predicts` if needed, cannot be used."""
    record = folder.record()
    if record is None:
        remedy = f"give one that was trained (looked at {folder.path.absolute()})"
        yield Problem(place, f"is not the folder of a finished run; {remedy}")
    elif predicts and record.config.recipe.detects_replaced:
        yield Problem(place, "detects replaced tokens (objective rtd) and predicts none; start from it and train, or score it")
    elif predicts and record.untrained_head:
        yield Problem(place, "was imported without an MLM head and predicts nothing; start from it and train, or score it")
    elif problem := _incomplete(folder, record) or unfit(record.config.architecture):
        yield Problem(place, problem)
    else:
        yield from _problems_of_tokenizer(record, config.data, prepared, place)


def _incomplete(folder: RunFolder, record: RunRecord) -> str | None:
    if record.run_id != folder.run_id:
        return f"holds run {record.run_id}; a run's folder has its id for a name"
    if record.state != "COMPLETED":
        return f"did not complete ({record.state}), so it has no weights; `study retry` resumes it"
    if not is_there(folder.weights_file):
        return f"has no {folder.weights_file.name}; {folder.weights_remedy()}"
    return None


def _unfit_start(given: Architecture, wanted: Architecture, init_from: InitFrom) -> str | None:
    detects = given.generator is not None or wanted.generator is not None
    if detects and (init_from.grow is not None or given.table_width != wanted.table_width):
        return "cannot grow or get narrower tables from or into objective rtd; start at its width and embedding_width"
    if init_from.grow is not None:
        return ungrowable(given, wanted)
    given = given if given.segments else given.model_copy(update={"segments": wanted.segments})
    sizes = [name for name in Architecture.model_fields if name not in (*NOT_IN_MLM, *SHRINKING)]
    if differ := [name for name in sizes if getattr(given, name) != getattr(wanted, name)]:
        differences = ", ".join(f"{name} {getattr(given, name)}, not {getattr(wanted, name)}" for name in differ)
        smaller = ", ".join(SHRINKING)
        return f"has {differences}; a run can start only from one that differs from it in {smaller} alone, or grow (:grow=even)"
    if problem := unshrinkable(given, wanted):
        return problem
    if given.depth < wanted.depth:
        return f"has {given.depth} of the {wanted.depth} layers that {wanted.shape_name} begins with; or grow (:grow=even)"
    if given.layer_groups is not None and given.depth != wanted.depth:
        return f"has layer_groups {given.layer_groups}; layers that share their weights cannot be cut off"
    if problem := layers_problem(given.depth, wanted.depth, init_from.keep):
        return problem
    kept = kept_layers(given.depth, wanted.depth, init_from.keep)
    if any(given.is_local(layer) != wanted.is_local(new) for new, layer in enumerate(kept)):
        return f"has global attention in every {given.global_attention_every}th layer, and the layers kept would change kind"
    if given.convolution_kernel and kept[0] > 0:
        return f"has convolution_kernel {given.convolution_kernel} beside its first layer; keep that layer"
    if given.skips_first_norm and kept[0] > 0:
        return "has no norm before its first layer (embedding_norm True), which was trained without one; keep that layer"
    return None


def _unfit_teacher(given: Architecture, config: RunConfig) -> str | None:
    wanted, length = config.architecture.vocabulary, config.data.sequence_length
    if given.generator is not None:
        return "detects replaced tokens (objective rtd) and predicts none that it could teach"
    if given.vocabulary != wanted:
        return f"has a vocabulary of {given.vocabulary}, not {wanted}; a teacher needs its student's vocabulary"
    if given.positions < length:
        return f"has {given.positions} positions, but sequences have {length} tokens; shorten them"
    named = config.recipe.teacher_run
    return None if named is None else named.losses.problem(config.architecture, given)


def _problems_of_tokenizer(given: RunRecord, data: DataConfig, prepared: PreparedData | None, place: str) -> Iterator[Problem]:
    if prepared is None or given.data_fingerprint == prepared.fingerprint_at(given.config.data.sequence_length):
        return
    files = [each.tokenizer for each in (given.config.data, data) if each.tokenizer.kind == "file"]
    try:
        if len(files) == 2 and len({sha256_of(tokenizer_file(tokenizer)) for tokenizer in files}) == 1:
            return
    except InputError as error:
        yield from (Problem(f"{place}: {problem.place}", problem.message) for problem in error.problems)
        return
    remedy = "give both the same tokenizer: {kind: file, …}"
    yield Problem(place, f"was trained on other text, with its own vocabulary; {remedy}")


def cut(weights: Mapping[str, Tensor], layers: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights of a MaskedLanguageModel with only these layers, renumbered; the rest is kept."""
    numbers = {layer: number for number, layer in enumerate(layers)}
    kept = {}
    for name, tensor in weights.items():
        if (block := _BLOCK.fullmatch(name)) is None:
            kept[name] = tensor
        elif (number := numbers.get(int(block[1]))) is not None:
            kept[f"encoder.blocks.{number}.{block[2]}"] = tensor
    return kept
