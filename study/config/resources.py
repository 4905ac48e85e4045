"""The compute of a sweep: `resources` of a sweep file, and the flags that override them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from study.base.errors import InputError, Problem
from study.base.schema import Count, Strict, Text

Kernels = Literal["eager", "onednn", "compiled", "graphed"]
"""The kernels of a step: torch's own, those with fp32 products by oneDNN on a CPU, fused by torch.compile, or fused and
recorded as one CUDA graph.

All but the first change the last bits of a run; validation is never fused.
"""

AskedKernels = Literal[Kernels, "auto"]
"""Kernels, or `auto`, which depends on device and precision (study.training.execution.resolve_kernels)."""

UNITS = {"s": 1 / 60, "m": 1.0, "min": 1.0, "h": 60.0, "d": 1440.0}
"""Minutes per unit of a time limit."""

SLURM_TIME = re.compile(r"(?:(?P<days>\d+)-|(?=\d+:))(?P<parts>\d{1,4}(?::\d{2}){0,2})")
"""Slurm's time limits, except bare numbers: minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""

SLURM_FLAGS = ("partition", "time", "array", "nodes")
"""The `slurm` fields that the command line sets."""


def _slurm_time(text: str) -> str:
    minutes_of(text)
    return text


def _slurm_memory(text: str) -> str:
    if not re.fullmatch(r"\d+([KMGT]B?)?", text, re.IGNORECASE):
        raise ValueError("is not an amount of memory; write 64GB or 500MB")
    return text


def _line(text: str) -> str:
    """One line of printable text; sbatch and the terminal misread line breaks and invisible characters."""
    if hidden := [character for character in text if not character.isprintable()]:
        raise ValueError(f"contains {hidden[0]!r}; write one line of printable characters")
    return text


def _word(text: str) -> str:
    if any(character.isspace() for character in _line(text)):
        raise ValueError("contains a space; write one name, or several separated by commas")
    return text


def _script(text: str) -> str:
    for line in text.replace("\t", " ").split("\n"):
        _line(line)
    return text


_SET_HERE = {
    **{name: f"slurm.{name}" for name in ("partition", "time", "array", "nodes", "account", "qos", "constraint", "exclude")},
    "mem": "slurm.memory",
    "cpus-per-task": "slurm.cpus",
    "wrap": "slurm.setup",
    **dict.fromkeys(("job-name", "output", "error", "signal", "open-mode", "ntasks-per-node")),
}
"""The options of sbatch that every job is given, with the fields that set them, if any."""


def _option_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", text):
        raise ValueError("is not an option of sbatch; write its long name without leading dashes, as in reservation")
    if (name := text.replace("_", "-")) in _SET_HERE:
        field = _SET_HERE[name]
        raise ValueError(f"is set for every job; {'leave it out' if field is None else f'write {field}'}")
    return text


Line = Annotated[Text, AfterValidator(_line)]
"""One line of printable text."""

Word = Annotated[Text, AfterValidator(_word)]
"""Printable text without spaces, such as Slurm's names."""

Script = Annotated[Text, AfterValidator(_script)]
"""Printable lines of shell, so that people see what runs."""

OptionName = Annotated[str, AfterValidator(_option_name)]
"""The long name of an sbatch option, without leading dashes."""

MemoryAmount = Annotated[str, AfterValidator(_slurm_memory)]
"""An amount of memory in Slurm's format."""

ResourceCount = Annotated[Count, Field(le=100_000)]
"""A number of devices, nodes, cores or jobs, limited far above any cluster's to catch typing errors."""

TimeLimit = Annotated[str, AfterValidator(_slurm_time)]
"""A time limit such as 30m, 4h, 2d, or Slurm's '1-12:00:00'."""


def minutes_of(text: str) -> int:
    """Return the whole minutes of a time limit; raises ValueError if it is malformed."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d)", text):
        return max(1, math.ceil(float(match[1]) * UNITS[match[2]]))
    if match := SLURM_TIME.fullmatch(text):
        parts = [int(part) for part in match["parts"].split(":")]
        hours, minutes, seconds = ([0, *parts] if match["days"] is None and len(parts) == 2 else [*parts, 0, 0])[:3]
        return max(1, 1440 * int(match["days"] or 0) + 60 * hours + minutes + (seconds > 0))
    raise ValueError("is not a time limit; write 30m, 4h, 2d or '1-12:00:00', in quotes")


class SlurmOptions(Strict):
    """The options of a run's Slurm job; `array` limits the sweep's jobs in the queue.

    Runs that are ready together form one job array. `cpus` counts cores per rank, `memory` is per node, `setup` holds shell
    lines that run before Python with the user's rights, and `options` holds other sbatch options by long name.
    """

    partition: Word | None = None
    time: TimeLimit | None = None
    array: ResourceCount = 64
    nodes: ResourceCount = 1
    cpus: ResourceCount = 1
    memory: MemoryAmount | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Line | None = None
    exclude: Word | None = None
    setup: tuple[Script, ...] = ()
    options: dict[OptionName, Line | int | bool] = Field(default_factory=dict)

    @field_validator("time", mode="before")
    @classmethod
    def _not_a_bare_number(cls, value: object) -> object:
        """Refuse a bare number: PyYAML reads 4:00:00 as 14400, which Slurm would take for minutes."""
        if isinstance(value, int | float):
            raise ValueError("is a number without a unit; write 30m, 4h, 2d or '1-12:00:00', in quotes")
        return value


class RayOptions(Strict):
    """The Ray cluster, by default RAY_ADDRESS or a local one, and each run's share of it.

    `runs` limits the runs at a time, by default to the nodes' capacity.
    """

    address: Word | None = None
    cpus: ResourceCount = 1
    runs: ResourceCount | None = None


class Resources(Strict):
    """The compute of a sweep and of each run. None of it changes a run's id; `kernels` changes the last bits of its numbers.

    `devices` counts the devices of one run (DDP) over all its nodes; `slots_per_device` runs share each device.
    """

    on: Literal["local", "slurm", "ray"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: ResourceCount = 1
    slots_per_device: ResourceCount | None = None
    kernels: AskedKernels = "auto"
    slurm: SlurmOptions = SlurmOptions()
    ray: RayOptions = RayOptions()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.on == "slurm" and self.slots_per_device is not None:
            raise ValueError("slots_per_device does not apply on Slurm, which assigns the GPUs itself; leave it out")
        if self.on == "slurm" and self.devices % self.slurm.nodes:
            raise ValueError(f"devices {self.devices} cannot be divided evenly among {self.slurm.nodes} nodes")
        if self.on == "ray" and self.slots_per_device is not None and self.devices > 1:
            raise ValueError(f"a run on {self.devices} devices cannot share them on Ray; leave slots_per_device out")
        return self

    @property
    def executed(self) -> tuple[str, ...]:
        """The shell lines of Slurm jobs."""
        return tuple(line for part in self.slurm.setup for line in part.splitlines()) if self.on == "slurm" else ()

    @property
    def sbatch_options(self) -> tuple[str, ...]:
        """The further options of Slurm jobs, as on a command line."""
        return tuple(f"--{name}={value}" for name, value in self.slurm.options.items()) if self.on == "slurm" else ()

    @property
    def executed_lines(self) -> list[str]:
        """What a sweep file gives every Slurm job to execute, as lines to show before a launch."""
        shown = {
            "Every Slurm job first executes these lines of the sweep file as you:": self.executed,
            "Every Slurm job has these options of the sweep file, which may run programs, too:": self.sbatch_options,
        }
        return [line for heading, lines in shown.items() if lines for line in (heading, *(f"  {line}" for line in lines))]

    @property
    def for_scores(self) -> Resources:
        """The resources of a downstream score: one device, and torch's own kernels."""
        slurm = self.slurm.model_copy(update={"nodes": 1})
        return self.model_copy(update={"devices": 1, "kernels": "eager", "slurm": slurm})

    def overridden(self, **flags: Any) -> Resources:
        """Return these resources, overridden by flags that are not None."""
        given = {name: value for name, value in flags.items() if value is not None}
        slurm = {name: given.pop(name) for name in SLURM_FLAGS if name in given}
        on = given.get("on", self.on)
        if slurm and on != "slurm":
            raise InputError(Problem(f"--{name}", "applies only with --on slurm") for name in slurm)
        values = self.model_dump(exclude_unset=True) | given
        if slurm:
            values["slurm"] = values.get("slurm", {}) | slurm
        return type(self).parse(values, "resources")
