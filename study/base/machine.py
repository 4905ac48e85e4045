"""The machine that a process is on, as its kernel tells: its processor, the cores it may use, the most memory it has had."""

from __future__ import annotations

import os
import platform
import resource
import sys

PROCESSORS = "/proc/cpuinfo"
"""Where Linux lists the processors."""


def cores() -> int:
    """The cores that this process may use: those of its affinity where the system keeps one, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_resident_bytes() -> int:
    """The most memory of the machine that this process has had at a time; macOS counts it in bytes, Linux in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def processor_line(name: str) -> str | None:
    """What the kernel says of the first processor under a name, None where it says nothing (as outside Linux)."""
    if os.path.exists(PROCESSORS):
        with open(PROCESSORS, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(name):
                    return line.split(":", 1)[1].strip()
    return None


def processor_name() -> str:
    """The first processor's name, with its family where the name holds no number, as the AMD EPYC of a virtual machine.

    Family 25 is Zen 3 and Zen 4, 26 is Zen 5.
    """
    name, family = processor_line("model name") or platform.machine(), processor_line("cpu family")
    return name if family is None or any(letter.isdigit() for letter in name) else f"{name} family {family}"
