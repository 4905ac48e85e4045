"""What a process has of its machine: the processor, usable cores and their load, memory, and when garbage is collected."""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROCESSORS = "/proc/cpuinfo"
"""The file in which Linux lists the processors."""


OWN_STATUS = "/proc/self/status"
"""The file in which Linux describes a process to itself."""

CPU_TIMES = "/proc/stat"
"""The file in which Linux counts processor time."""

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""The variables that set how OpenMP threads wait."""

SHORT_SPIN = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
"""The default here: GNU OpenMP, which torch uses on Linux, spins for ten microseconds; others sleep at once."""


def rest_at_barriers() -> None:
    """Make OpenMP threads sleep during long waits unless the user configures them; call it before torch loads.

    GNU's threads spin for three milliseconds by default, and on a busy machine occupy cores that the awaited thread needs. Two
    threads on two cores (2x128, 2,048 tokens a batch, fp32) beside three to five busy programs trained 4,000 to 8,000 tokens/s
    by default, 39,000 to 41,000 with a short spin; on idle cores 69,000 to 79,000 and 64,000 to 73,000, a fifth less without
    spin. Source: libgomp manual, GOMP_SPINCOUNT; OpenMP 5.2, 21.2.7.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ.update(SHORT_SPIN)


def busy_share(seconds: float = 1.0) -> float | None:
    """Return the share of processor time in use over the next seconds, if known."""
    if not os.path.exists(CPU_TIMES):
        return None
    idle, total = _cpu_times()
    time.sleep(seconds)
    later_idle, later_total = _cpu_times()
    return 1 - (later_idle - idle) / max(1, later_total - total)


def _cpu_times() -> tuple[int, int]:
    """Idle ticks of all processors, disk waits included, and all ticks. Source: proc_stat(5)."""
    ticks = [int(field) for field in Path(CPU_TIMES).read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_resident_bytes() -> int:
    """Peak resident memory: on Linux since it was last forgotten, if it can be, elsewhere since the process began."""
    if (known := _line_of(OWN_STATUS, "VmHWM")) is not None:
        return int(known.split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak_resident() -> None:
    """Let the peak of resident memory begin anew, where Linux allows it: a process may do one job after another."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as own:
        own.write("5")


def processor_line(name: str) -> str | None:
    """Return a field of the first processor in /proc/cpuinfo, if there."""
    return _line_of(PROCESSORS, name)


def _line_of(file: str, name: str) -> str | None:
    if os.path.exists(file):
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(name):
                    return line.split(":", 1)[1].strip()
    return None


def processor_name() -> str:
    """Return the first processor's name, with its family (25: Zen 3 and 4, 26: Zen 5) for one without a number."""
    name, family = processor_line("model name") or platform.machine(), processor_line("cpu family")
    return name if family is None or any(letter.isdigit() for letter in name) else f"{name} family {family}"


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disable the cyclic garbage collector inside the block: each collection walks all live objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
