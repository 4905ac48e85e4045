"""Where a sweep runs and on how much: the `resources` of a sweep file, and the flags that override them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from study.base.errors import InputError, Problem
from study.base.schema import Count, Strict, Text

Kernels = Literal["eager", "onednn", "compiled", "graphed"]
"""How a step's kernels run: torch's own, the same with a CPU's fp32 products by oneDNN, fused by torch.compile, or fused and
recorded as one CUDA graph.

All but the first change the last bits of a run; validation is never fused.
"""

AskedKernels = Literal[Kernels, "auto"]
"""Kernels, or `auto`, which depends on device and precision (study.training.execution.resolve_kernels)."""

UNITS = {"s": 1 / 60, "m": 1.0, "min": 1.0, "h": 60.0, "d": 1440.0}
"""Minutes of each unit of a time limit."""

SLURM_TIME = re.compile(r"(?:(?P<days>\d+)-|(?=\d+:))(?P<parts>\d{1,4}(?::\d{2}){0,2})")
"""Slurm's time limits, without bare numbers: minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""

SLURM_FLAGS = ("partition", "time", "array", "nodes")
"""What the command line sets in the `slurm` part."""


def _slurm_time(text: str) -> str:
    minutes_of(text)
    return text


def _slurm_memory(text: str) -> str:
    if not re.fullmatch(r"\d+([KMGT]B?)?", text, re.IGNORECASE):
        raise ValueError("is not an amount of memory; write 64GB or 500MB")
    return text


def _line(text: str) -> str:
    """One line of printable text; sbatch and the terminal would misread a line break or an invisible character."""
    if hidden := [character for character in text if not character.isprintable()]:
        raise ValueError(f"holds {hidden[0]!r}; write one line of printable characters")
    return text


def _word(text: str) -> str:
    if any(character.isspace() for character in _line(text)):
        raise ValueError("holds a blank; write one name, or several with commas between")
    return text


def _script(text: str) -> str:
    for line in text.replace("\t", " ").split("\n"):
        _line(line)
    return text


def _option_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", text):
        raise ValueError("is not an option of sbatch; write its long name without leading dashes, as in reservation")
    return text


Line = Annotated[Text, AfterValidator(_line)]
"""One line of printable text."""

Word = Annotated[Text, AfterValidator(_word)]
"""The same without spaces, like Slurm's names."""

Script = Annotated[Text, AfterValidator(_script)]
"""Lines of shell, printable so that people see what is executed."""

OptionName = Annotated[str, AfterValidator(_option_name)]
"""The long name of an option of sbatch, without leading dashes."""

MemoryAmount = Annotated[str, AfterValidator(_slurm_memory)]
"""An amount of memory in Slurm's format."""

ResourceCount = Annotated[Count, Field(le=100_000)]
"""A number of devices, nodes, cores or jobs, at most far beyond any cluster's, so that a typing error is refused."""

TimeLimit = Annotated[str, AfterValidator(_slurm_time)]
"""A time limit such as 30m, 4h, 2d, or Slurm's own '1-12:00:00'."""


def minutes_of(text: str) -> int:
    """The whole minutes of a time limit; raises ValueError if it is not one."""
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d)", text):
        return max(1, math.ceil(float(found[1]) * UNITS[found[2]]))
    if found := SLURM_TIME.fullmatch(text):
        parts = [int(part) for part in found["parts"].split(":")]
        hours, minutes, seconds = ([0, *parts] if found["days"] is None and len(parts) == 2 else [*parts, 0, 0])[:3]
        return max(1, 1440 * int(found["days"] or 0) + 60 * hours + minutes + (seconds > 0))
    raise ValueError("is not a time limit; write 30m, 4h, 2d or '1-12:00:00', in quotes")


class SlurmOptions(Strict):
    """The options of a run's Slurm job; `array` is the most jobs of the sweep in the queue at a time.

    Runs that become due together are submitted as one job array. `cpus` counts cores per rank, `memory` is per node, `setup`
    holds shell lines that run before Python with the user's rights, and `options` other options of sbatch by their long names.
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
        """PyYAML reads 4:00:00 as the number 14400, which Slurm would take for minutes."""
        if isinstance(value, int | float):
            raise ValueError("is a number without a unit; write 30m, 4h, 2d or '1-12:00:00', in quotes")
        return value


class RayOptions(Strict):
    """The Ray cluster, by default RAY_ADDRESS or one started on this machine, and each run's share of it.

    At most `runs` run at a time, by default as many as fit on the cluster's nodes.
    """

    address: Word | None = None
    cpus: ResourceCount = 1
    runs: ResourceCount | None = None


class Resources(Strict):
    """Where runs execute and what each gets. None of it changes a run's id; `kernels` changes the last bits of its numbers.

    `devices` counts the devices of one run (DDP), over all its nodes; `slots_per_device` runs share each device.
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
            raise ValueError("slots_per_device is for GPUs that this launcher shares out itself, and on Slurm, Slurm does")
        if self.on == "slurm" and self.devices % self.slurm.nodes:
            raise ValueError(f"devices {self.devices} cannot be shared out over {self.slurm.nodes} nodes evenly")
        if self.on == "ray" and self.slots_per_device is not None and self.devices > 1:
            raise ValueError(f"a run of {self.devices} devices has them to itself on Ray; leave slots_per_device out")
        return self

    @property
    def executed(self) -> tuple[str, ...]:
        """The lines of shell that every Slurm job executes."""
        return tuple(line for part in self.slurm.setup for line in part.splitlines()) if self.on == "slurm" else ()

    @property
    def for_scores(self) -> Resources:
        """The same resources for downstream scores: one device each, and torch's own kernels."""
        slurm = self.slurm.model_copy(update={"nodes": 1})
        return self.model_copy(update={"devices": 1, "kernels": "eager", "slurm": slurm})

    def overridden(self, **flags: Any) -> Resources:
        """These resources, overridden by the command line's flags that are not None."""
        given = {name: value for name, value in flags.items() if value is not None}
        slurm = {name: given.pop(name) for name in SLURM_FLAGS if name in given}
        on = given.get("on", self.on)
        if slurm and on != "slurm":
            raise InputError(Problem(f"--{name}", "is for --on slurm") for name in slurm)
        values = self.model_dump(exclude_unset=True) | given
        if slurm:
            values["slurm"] = values.get("slurm", {}) | slurm
        return type(self).parse(values, "resources")
