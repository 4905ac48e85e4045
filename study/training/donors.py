"""The weights that a run begins with where they are not drawn: those of a trained run, as many of its layers as it has."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from study.architecture import NOT_IN_MLM, Architecture
from study.config import DataConfig, Donor, RunConfig
from study.data.cache import sha256_of
from study.data.prepared import PreparedData
from study.data.tokenizing import tokenizer_file
from study.errors import InputError, Problem
from study.folders import RunFolder
from study.model.cutting import cut, kept_layers
from study.model.trained_weights import trained_weights

_PLACE = "recipe.start"


def starting_weights(config: RunConfig, prepared: PreparedData) -> dict[str, Tensor] | None:
    """The weights of a run's donor under the run's own names, None where they are drawn; raises InputError as check_donors."""
    if (donor := config.recipe.donor) is None:
        return None
    check_donors([config], prepared)
    folder = RunFolder(donor.folder)
    layers = kept_layers(folder.config().architecture.depth, config.architecture.depth, donor.keep)
    return cut(trained_weights(folder), layers)


def check_donors(configs: Iterable[RunConfig], prepared: PreparedData | None = None) -> None:
    """Raise InputError with everything that keeps donors of these runs from giving their weights, each once.

    A donor must have completed, have the run's architecture but for the depth, at least as many layers, and its tokeniser: that
    of the same text, or of the same file, which is looked at where the runs' data is there.
    """
    problems: dict[str, Problem] = {}
    for config in configs:
        if (donor := config.recipe.donor) is not None:
            found = _problems(donor, config.architecture)
            if not found and prepared is not None:
                found = _problems_of_tokenizer(donor, config.data, prepared)
            problems |= {str(problem): problem for problem in found}
    if problems:
        raise InputError(problems.values())


def _problems(donor: Donor, wanted: Architecture) -> list[Problem]:
    folder = RunFolder(donor.folder)
    place = f"{_PLACE} {donor.folder}"
    if not folder.record_file.exists():
        return [Problem(place, "is the folder of no run that has ended; give one that was trained, from where you are now")]
    record = folder.record()
    assert record is not None
    if record.run_id != folder.run_id:
        return [Problem(place, f"holds run {record.run_id}; a run's folder has its id for a name")]
    if record.state != "COMPLETED":
        return [
            Problem(place, f"did not complete ({record.state}), so it has no weights to give; `study retry` goes on with it")
        ]
    if not folder.weights_file.exists():
        return [Problem(place, f"has no {folder.weights_file.name}; fetch it, or train the run again")]
    given = record.config.architecture
    sizes = [name for name in Architecture.model_fields if name not in (*NOT_IN_MLM, "depth")]
    if differ := [name for name in sizes if getattr(given, name) != getattr(wanted, name)]:
        told = ", ".join(f"{name} {getattr(given, name)} and not {getattr(wanted, name)}" for name in differ)
        return [Problem(place, f"has {told}; a run begins with the weights of one that differs from it in depth alone")]
    if given.depth < wanted.depth:
        return [Problem(place, f"has {given.depth} of the {wanted.depth} layers that {wanted.shape_name} begins with")]
    layers = kept_layers(given.depth, wanted.depth, donor.keep)
    if donor.keep != "first" and layers == kept_layers(given.depth, wanted.depth, "first"):
        same = f"gives {wanted.shape_name} the same layers by :{donor.keep} as by :first"
        return [Problem(place, f"{same}; leave :{donor.keep} out")]
    return []


def _problems_of_tokenizer(donor: Donor, data: DataConfig, prepared: PreparedData) -> list[Problem]:
    record = RunFolder(donor.folder).record()
    assert record is not None
    if record.data_fingerprint == prepared.fingerprint:
        return []
    files = [each.tokenizer for each in (record.config.data, data) if each.tokenizer.kind == "file"]
    try:
        if len(files) == 2 and len({sha256_of(tokenizer_file(tokenizer)) for tokenizer in files}) == 1:
            return []
    except InputError as error:
        return [Problem(f"{_PLACE} {donor.folder}: {problem.place}", problem.message) for problem in error.problems]
    remedy = "give both one vocabulary, as tokenizer: {kind: file, …}"
    return [Problem(f"{_PLACE} {donor.folder}", f"was trained on other text, with pieces of its own; {remedy}")]
