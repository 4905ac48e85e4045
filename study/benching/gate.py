"""Contenders in processes of their own that take turns: each trains while its gate is open, and waits between rounds."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from study.executing.processes import log_into

PATIENCE_SECONDS = 300.0
"""How long a contender may take to start, or for one round."""


class ContenderError(Exception):
    """A contender could not start, or failed; the message says why."""


@dataclass(frozen=True)
class Order:
    """The length of a round: at least so many seconds and steps, after `lead_in` steps.

    Steps of the lead-in count only if each is as long as the round.
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
        """Seconds a step."""
        return self.seconds / self.steps


def use_one_gpu() -> None:
    """Let this process see the first GPU only; transformers' Trainer trains on all that it sees."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def start_forkserver() -> None:
    """Start the forkserver and wait until it has loaded what contenders import, so that no start pays for it."""
    process = _context().Process(target=int)
    process.start()
    process.join()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["study.benching.contenders", "study.benching.peers"])
    return context


class Gate:
    """The contender's side: `step`, called after every step, blocks between rounds.

    `synchronise` waits for the device. `release` frees unused memory for the other contenders while this one waits.
    """

    def __init__(self, channel: Connection, synchronise: Callable[[], None], release: Callable[[], None]) -> None:
        self._channel, self.synchronise, self._release = channel, synchronise, release
        self._order: Order | None = None
        self._leading_in, self._steps, self._started = False, 0, 0.0

    def step(self) -> None:
        """Count a step: the first one ends the start, and the last one of a round reports the round."""
        if self._order is None:
            self.ready()
            self._begin()
            return
        order, self._steps = self._order, self._steps + 1
        spent = perf_counter() - self._started
        if self._leading_in and self._steps >= order.lead_in and spent < order.seconds * self._steps:
            self.synchronise()
            self._leading_in, self._steps, self._started = False, 0, perf_counter()
        elif self._steps >= max(order.least_steps, order.lead_in) and spent >= order.seconds:
            self.synchronise()
            self.report(RoundTime(self._steps, perf_counter() - self._started))
            self._begin()

    def ready(self) -> None:
        """Report that the first step is done, and when."""
        self.synchronise()
        self.report(perf_counter())

    def wait(self) -> Order:
        """Block until the next round; exit the process if the other side is gone."""
        self._release()
        try:
            order: Order = self._channel.recv()
        except EOFError:
            raise SystemExit(0) from None
        return order

    def report(self, what: object) -> None:
        """Send a result, once the device has finished its work."""
        self.synchronise()
        self._channel.send(what)

    def _begin(self) -> None:
        self._order = self.wait()
        self._leading_in, self._steps, self._started = self._order.lead_in > 0, 0, perf_counter()


class Contender:
    """The other side: starts a contender's process, opens its gate, and receives its results. A `with` block stops it.

    `target` is the full name of a function, which is called there with the arguments and the channel of its Gate. Its output
    goes into `log`. Processes come from a forkserver that has loaded torch, Lightning and transformers.
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
        """Wait for the end of the first step; its seconds since the start (one clock serves all processes)."""
        return float(self.end()) - self._since

    def round(self, order: Order) -> Any:
        """Open the gate for one round, and wait for its result."""
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
    """Call a contender's function in its process, and send the reason if it fails."""
    os.environ.update(environment)
    use_one_gpu()
    log_into(log)
    module, _, name = target.rpartition(".")
    try:
        getattr(importlib.import_module(module), name)(*arguments, channel)
    except Exception as error:
        traceback.print_exc()
        first_line, *_ = [*str(error).strip().splitlines(), "no message"]
        channel.send(ContenderError(f"{type(error).__name__}: {first_line}"))
