"""Measurements in processes of their own: contenders that alternate, or a function in a fresh one.

A contender trains while its gate is open and waits between rounds. A fresh process has none of the command's memory, threads or
caches.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, Self, TypeVar

from study.benching.results import Report, failure
from study.executing.processes import log_into

PATIENCE_SECONDS = 300.0
"""The longest start or round of a contender."""

P = ParamSpec("P")
R = TypeVar("R")


class ContenderError(Exception):
    """A contender failed; the message says why."""


@dataclass(frozen=True)
class Order:
    """The minimum seconds and steps of a round, after `lead_in` steps.

    Lead-in steps count only if each is as long as the round.
    """

    seconds: float
    least_steps: int = 1
    lead_in: int = 0


@dataclass(frozen=True)
class RoundTime:
    """The steps of a round and their seconds."""

    steps: int
    seconds: float

    @property
    def step_seconds(self) -> float:
        """Seconds per step."""
        return self.seconds / self.steps


def use_one_gpu() -> None:
    """Hide all GPUs but the first; transformers' Trainer trains on all visible ones."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def start_forkserver() -> None:
    """Start the forkserver and wait for its imports, so no contender's start includes them."""
    process = _context().Process(target=int)
    process.start()
    process.join()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["study.benching.contenders", "study.benching.peers"])
    return context


class Gate:
    """The contender's side: `step`, called after every step, blocks between rounds.

    `synchronise` waits for the device. `release` frees unused memory while the contender waits.
    """

    def __init__(self, channel: Connection, synchronise: Callable[[], None], release: Callable[[], None]) -> None:
        self._channel, self.synchronise, self._release = channel, synchronise, release
        self._order: Order | None = None
        self._leading_in, self._steps, self._started = False, 0, 0.0

    def step(self) -> None:
        """Count a step; the first ends the start, and the last of a round reports it."""
        if self._order is None:
            self.ready()
            self._begin()
            return
        order, self._steps = self._order, self._steps + 1
        elapsed = perf_counter() - self._started
        if self._leading_in and self._steps >= order.lead_in and elapsed < order.seconds * self._steps:
            self.synchronise()
            self._leading_in, self._steps, self._started = False, 0, perf_counter()
        elif self._steps >= max(order.least_steps, order.lead_in) and elapsed >= order.seconds:
            self.synchronise()
            self.report(RoundTime(self._steps, perf_counter() - self._started))
            self._begin()

    def ready(self) -> None:
        """Report when the first step is done."""
        self.synchronise()
        self.report(perf_counter())

    def wait(self) -> Order:
        """Block until the next round; exit if the other side is gone."""
        self._release()
        try:
            order: Order = self._channel.recv()
        except EOFError:
            raise SystemExit(0) from None
        return order

    def report(self, what: object) -> None:
        """Send a result once the device is done."""
        self.synchronise()
        self._channel.send(what)

    def _begin(self) -> None:
        self._order = self.wait()
        self._leading_in, self._steps, self._started = self._order.lead_in > 0, 0, perf_counter()


class Contender:
    """The parent's side: starts a process, opens its gate, and receives its results; a `with` block stops it.

    `target` is the full name of a function, called with the arguments and its Gate's channel; its output goes into `log`. The
    forkserver has loaded torch, Lightning and transformers.
    """

    def __init__(
        self, target: str, arguments: tuple[Any, ...], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        context = _context()
        self._channel, theirs = context.Pipe()
        started = (target, arguments, theirs, log, dict(environment or {}))
        self._process = context.Process(target=_run, args=started, daemon=True)
        self._since = perf_counter()
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self) -> float:
        """Wait for the first step; return its seconds since the start (all processes share the clock)."""
        return float(self.end()) - self._since

    def round(self, order: Order) -> Any:
        """Run one round and return its result."""
        self.begin(order)
        return self.end()

    def begin(self, order: Order) -> None:
        """Open the gate for one round."""
        try:
            self._channel.send(order)
        except OSError:
            raise self._lost() from None

    def end(self) -> Any:
        """Wait for the next result."""
        if not self._channel.poll(PATIENCE_SECONDS):
            raise ContenderError(f"no result within {PATIENCE_SECONDS:.0f} s")
        try:
            result = self._channel.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(result, ContenderError):
            raise result
        return result

    def stop(self) -> None:
        """Kill the process."""
        self._channel.close()
        self._process.kill()
        self._process.join()

    def _lost(self) -> ContenderError:
        self._process.join(10)
        return ContenderError(f"its process ended with exit status {self._process.exitcode}")


def _run(target: str, arguments: tuple[Any, ...], channel: Connection, log: Path, environment: dict[str, str]) -> None:
    """Call a contender's function in its process; on failure, send the reason."""
    os.environ.update(environment)
    use_one_gpu()
    log_into(log)
    module, _, name = target.rpartition(".")
    try:
        getattr(importlib.import_module(module), name)(*arguments, channel)
    except Exception as error:
        traceback.print_exc()
        channel.send(ContenderError(_reason(error)))


def in_own_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a new process without output; returns its result or raises its exception."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        spawn: Any = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn, initializer=_begin, initargs=(Path(folder) / "log",)) as pool:
            return pool.submit(function, *args, **kwargs).result()


def _begin(log: Path) -> None:
    """Send all output into a file, and end with the parent, which may be killed."""
    log_into(log)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


@contextmanager
def failures_reported(what: str, report: Report) -> Iterator[None]:
    """Report an exception of the block as a failure row and continue."""
    try:
        yield
    except Exception as error:
        report(failure(what, _reason(error)))


def _reason(error: Exception) -> str:
    first_line, *_ = [*str(error).strip().splitlines(), "no message"]
    return f"{type(error).__name__}: {first_line}"
