"""What the records of the trained runs that a recipe names say: a teacher's size, which FLOPs count, and a donor's depth."""

from __future__ import annotations

from study.config.named_runs import InitFrom, Teacher
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.store.run_folder import RunFolder


def teacher_architecture(config: RunConfig) -> Architecture | None:
    """The architecture of the run that this one learns from; None where it has no teacher, or that one's record is not here."""
    return _architecture_of(config.recipe.teacher_run)


def init_from_depth(config: RunConfig) -> int | None:
    """The layers of the run whose weights this one begins with; None where there is none, or its record is not here."""
    architecture = _architecture_of(config.recipe.init_from)
    return None if architecture is None else architecture.depth


def _architecture_of(named: InitFrom | Teacher | None) -> Architecture | None:
    record = None if named is None else RunFolder(named.folder).record()
    return None if record is None else record.config.architecture


def expected_flops(config: RunConfig, steps: int) -> float:
    """The `train_flops` of so many steps, with the forward passes of a teacher that is here."""
    per_token = config.flops_per_token_with(teacher_architecture(config))["train_flops"]
    return per_token * (steps * config.recipe.batch_tokens)
