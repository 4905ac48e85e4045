"""The files of one run, and facts from runs that a recipe names."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from study.base.durable_files import write_atomically
from study.base.errors import InputError, map_readable, warn_of
from study.base.schema import Count, Strict
from study.base.text import pasted
from study.config.named_runs import InitFrom, Teacher
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.store.named_files import Inside, array_content, array_in, file_once, reason_in
from study.store.records import RunRecord
from study.store.work_folder import WorkFolder, checkpoints_in, step_of, written_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

PlannedRuns = Mapping[str, RunConfig]
"""Runs by id that a sweep trains before others that need them, and that may not have begun."""

NONE_PLANNED: PlannedRuns = MappingProxyType({})
"""No such runs."""


class Orders(Strict):
    """A sweep's orders for a run: steps at which to save its state for others, and an unusual number of validations."""

    branch_steps: tuple[Count, ...] = ()
    validations: Count | None = None


class Trunk(Strict):
    """The run that trained the first `step` steps of another."""

    run_id: str
    step: Count


class RunFolder(WorkFolder):
    """The files of one run, by name."""

    work, done, depth = "run", "trained", 1

    config_file = Inside("config.yaml")
    """The resolved configuration."""
    exclusion_file = Inside("exclusion.json")
    """Why a person excludes the run from fits; absent otherwise."""
    validation_losses_file = Inside("validation_losses.npy")
    """Nats summed over the masked tokens of each validation sequence."""
    validation_documents_file = Inside("validation_documents.npy")
    """The document of each validation sequence; runs of earlier versions have none."""
    byte_losses_file = Inside("byte_losses.npy")
    """Nats of each document's masked words ÷ the mean bytes of these; runs of earlier versions have none."""
    weights_file = Inside("weights.safetensors")
    """The final weights of a completed run."""
    orders_file = Inside("orders.json")
    """The sweep's orders for the run."""
    prune_file = Inside("prune.json")
    """Why the run should stop early; absent otherwise."""
    trunk_file = Inside("trunk.json")
    """The run that trained the first steps of this one."""
    scores = Inside("scores")
    """The folder of the downstream scores."""

    @property
    def run_id(self) -> str:
        """The run's id, which names the folder."""
        return self.path.name

    @property
    def is_run(self) -> bool:
        """Whether the folder holds a configuration, or a record directly below `runs/`."""
        return self.holds(self.config_file) or (self.path.resolve().parent.name == "runs" and self.ended)

    def write_config(self, config: RunConfig) -> None:
        """Write the configuration once; it never changes."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.holds(self.config_file):
            write_atomically(self.config_file, config.to_yaml().encode())

    def config(self) -> RunConfig:
        """Return the configuration, from the record if there is one, which reads faster."""
        record = self.record()
        return RunConfig.from_yaml(self.config_file) if record is None else record.config

    def weights_remedy(self) -> str:
        """Return the remedy for missing weights."""
        if (packed := self.packed) is not None and self.run_id in packed.run_ids:
            return "its sweep is packed, which keeps none: put the file there, or train the run under another --results"
        return "fetch it, or train the run again (move its folder away and launch)"

    def branch(self, step: int) -> Path:
        """Return the state after a step from which a shorter budget branches."""
        return self.path / f"branch-{step:010d}"

    def branch_steps(self) -> list[int]:
        """Return the steps after which the run left its state."""
        return [step_of(states[-1]) for branch in self.path.glob("branch-*") if (states := checkpoints_in(branch))]

    def leave_rows(self, step: int) -> None:
        """Hard-link the rows so far beside a step's state."""
        self.branch(step).mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(self.metrics_file, self.branch(step) / self.metrics_file.name)

    def remove_branch(self, step: int) -> None:
        """Remove the state left after a step, and nothing else beside it."""
        branch = self.branch(step)
        if branch.is_symlink():
            return
        for file in (*written_in(branch), branch / self.metrics_file.name):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            branch.rmdir()

    def remove_branches(self) -> None:
        """Remove all states left for others."""
        for branch in self.path.glob("branch-" + "[0-9]" * 10):
            self.remove_branch(int(branch.name.removeprefix("branch-")))

    def write_orders(self, orders: Orders) -> None:
        """Write the sweep's orders."""
        write_atomically(self.orders_file, orders.model_dump_json(exclude_none=True).encode())

    def orders(self) -> Orders:
        """Return the sweep's orders."""
        return self.read_as(self.orders_file, Orders, "remove it; the next launch writes it anew") or Orders()

    def write_prune(self, reason: str) -> None:
        """Ask the run to stop early."""
        write_atomically(self.prune_file, json.dumps({"reason": reason}).encode())

    def prune(self) -> str | None:
        """Why the run should stop early, or None."""
        return reason_in(self.prune_file, "remove it; the search judges the run anew")

    def write_trunk(self, trunk: Trunk | None) -> None:
        """Write which run trained the first steps, if any."""
        if trunk is None:
            self.trunk_file.unlink(missing_ok=True)
        else:
            write_atomically(self.trunk_file, trunk.model_dump_json().encode())

    def trunk(self) -> Trunk | None:
        """Return the run that trained the first steps, or None."""
        return self.read_as(self.trunk_file, Trunk, "remove the run's folder to train the run again")

    def spent(self, tokens: int, batch_tokens: int) -> dict[str, Any]:
        """Return a record's trunk fields."""
        trunk = self.trunk()
        if trunk is None:
            return {"spent_tokens": tokens}
        return {"spent_tokens": max(0, tokens - trunk.step * batch_tokens), "trunk": trunk.run_id, "trunk_step": trunk.step}

    def remove_leftovers(self) -> None:
        """Also remove files of other ranks."""
        super().remove_leftovers()
        for file in self.rank_files():
            file.unlink(missing_ok=True)

    def rank_file(self, rank: int) -> Path:
        """Return the file for a non-leading rank's error."""
        return self.path / f"rank-{rank}.json"

    def rank_files(self) -> Iterator[Path]:
        """Return the error files of all ranks."""
        return self.path.glob("rank-*.json")

    def file_record(self, record: RunRecord) -> bool:
        """Link the record into place; False if one exists, which stays."""
        return file_once(self.record_file, record)

    def record(self) -> RunRecord | None:
        """Return the record of an ended run; an unreadable exclusion counts as one, with a warning."""
        if (record := self.read_as(self.record_file, RunRecord, "study launch puts it aside and trains the run again")) is None:
            return None
        reasons, problems = map_readable(RunFolder.excluded, [self])
        warn_of(problems)
        excluded = f"{self.exclusion_file.name} cannot be read" if problems else reasons[0]
        return record if excluded is None else record.model_copy(update={"excluded": excluded})

    def put_record_aside(self, note: dict[str, str]) -> Path:
        """Also withdraw the request to stop early."""
        self.prune_file.unlink(missing_ok=True)
        return super().put_record_aside(note)

    def excluded(self) -> str | None:
        """Why a person excludes this run, if one does."""
        return None if self._bare else reason_in(self.exclusion_file, "`study exclude` writes it anew")

    def write_validation_losses(self, losses: NDArray[np.float64]) -> None:
        """Write the summed nats of each validation sequence."""
        _write_array(self.validation_losses_file, losses.astype(np.float64))

    def write_byte_losses(self, losses: NDArray[np.float64]) -> None:
        """Write the losses of masked words, to the digits of float32."""
        _write_array(self.byte_losses_file, losses.astype(np.float32).astype(np.float64))

    def byte_losses(self, bits: float) -> NDArray[np.float64]:
        """Return the losses of masked words, in nats.

        Raises InputError if they are not those of these bits per byte.
        """
        content, remedy = self.content(self.byte_losses_file), f"study exclude {pasted(self.path)} --reason ..."
        losses = None
        with contextlib.suppress(ValueError):
            losses = None if content is None else array_in(content, np.float64)
        if losses is None or not math.isclose(losses.mean(), bits * math.log(2), rel_tol=1e-6):
            message = "is gone, damaged or of another run, and comparisons need it"
            raise InputError.at(str(self.byte_losses_file), f"{message}; fetch it, or leave the run out: {remedy}")
        return losses

    def validation_losses(self) -> NDArray[np.float64]:
        """Return the summed nats of each sequence; raises InputError if missing or damaged."""
        try:
            if (content := self.content(self.validation_losses_file)) is None:
                raise FileNotFoundError
            losses = array_in(content, np.float64)
            if not np.isfinite(losses).all():
                raise ValueError("not the losses that a run writes")
        except (FileNotFoundError, ValueError) as error:
            what = "does not exist" if isinstance(error, FileNotFoundError) else "is damaged"
            remedy = f"fetch it, or leave the run out: study exclude {pasted(self.path)} --reason ..."
            raise InputError.at(str(self.validation_losses_file), f"{what}, and comparisons need it; {remedy}") from None
        return losses

    def recorded_losses(self, tokens: float, loss: float) -> NDArray[np.float64]:
        """Return `validation_losses`; raises InputError if their mean is not the record's."""
        losses = self.validation_losses()
        if not math.isclose(losses.sum(), tokens * loss, rel_tol=1e-6):
            message = f"sums to {losses.sum():g} nats, but its record says {loss:g} for each of {tokens:g} masked tokens"
            remedy = f"fetch both anew, or leave the run out: study exclude {pasted(self.path)} --reason ..."
            raise InputError.at(str(self.validation_losses_file), f"{message}; {remedy}")
        return losses

    def losses_per_token(self, tokens: float, loss: float) -> NDArray[np.float64]:
        """Loss per masked token of each sequence, all with equally many, whose mean is the record's.

        Raises InputError as `recorded_losses` does.
        """
        summed = self.recorded_losses(tokens, loss)
        return summed / (tokens / len(summed))

    def write_validation_documents(self, documents: NDArray[np.int64]) -> None:
        """Write the document of each validation sequence."""
        _write_array(self.validation_documents_file, documents.astype(np.int32))

    def validation_documents(self) -> NDArray[np.int64] | None:
        """Return the document of each sequence, None in earlier versions; raises InputError if damaged."""
        if (content := self.content(self.validation_documents_file)) is None:
            return None
        try:
            documents = array_in(content, np.int32)
        except ValueError:
            message = "is damaged, and standard errors cluster by it; fetch it, or copy that of another run of the sweep"
            raise InputError.at(str(self.validation_documents_file), message) from None
        return documents.astype(np.int64)


def _write_array(file: Path, values: NDArray[np.generic]) -> None:
    write_atomically(file, array_content(values))


def teacher_architecture(config: RunConfig, planned: PlannedRuns = NONE_PLANNED) -> Architecture | None:
    """Return the teacher's architecture; None without a teacher or its record.

    `planned` are runs, by id, that may not have begun.
    """
    if (teacher := config.recipe.teacher_run) is not None and (run := planned.get(teacher.folder.name)) is not None:
        return run.architecture
    return _architecture_of(teacher)


def init_from_depth(config: RunConfig, planned: PlannedRuns = NONE_PLANNED) -> int | None:
    """Return the depth of the run whose weights initialise this one; None without one or its record, or if they are grown.

    `planned` are runs, by id, that may not have begun.
    """
    if (init_from := config.recipe.init_from) is not None and init_from.grow is not None:
        return None
    if init_from is not None and (run := planned.get(init_from.folder.name)) is not None:
        return run.architecture.depth
    architecture = _architecture_of(init_from)
    return None if architecture is None else architecture.depth


def _architecture_of(named: InitFrom | Teacher | None) -> Architecture | None:
    record = None if named is None else RunFolder(named.folder).record()
    return None if record is None else record.config.architecture


def flops_before(config: RunConfig) -> float | None:
    """Return the `train_flops` of all runs without which this one could not be trained, each counted once.

    None without any, or without the record of one.
    """
    flops: dict[str, float] = {}
    waiting = [config]
    while waiting:
        recipe = waiting.pop().recipe
        for folder in [named.folder for named in (recipe.init_from, recipe.teacher_run) if named is not None]:
            if folder.name in flops:
                continue
            if (record := RunFolder(folder).record()) is None:
                return None
            flops[folder.name] = record.train_flops
            waiting.append(record.config)
    return sum(flops.values()) if flops else None


def expected_flops(config: RunConfig, steps: int, planned: PlannedRuns = NONE_PLANNED) -> float:
    """Return the `train_flops` of `steps`, with a teacher's forward passes if its record is here or it is `planned`."""
    per_token = config.flops_per_token_with(teacher_architecture(config, planned))["train_flops"]
    return per_token * (steps * config.recipe.batch_tokens)
