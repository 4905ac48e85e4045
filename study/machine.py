"""The machine that a process is on, as its kernel tells: the cores that it may use, and the most memory that it has had."""

from __future__ import annotations

import os
import resource
import sys


def cores() -> int:
    """The cores that this process may use: those of its affinity where the system keeps one, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_resident_bytes() -> int:
    """The most memory of the machine that this process has had at a time; macOS counts it in bytes, Linux in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
