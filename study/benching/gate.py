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
"""How long a contender may take over its start or over one round."""


class ContenderError(Exception):
    """A contender could not start or broke off; says why."""


@dataclass(frozen=True)
class Order:
    """What a round asks for: at least so many steps and seconds, after steps that count only where each is as long as it."""

    seconds: float
    least_steps: int = 1
    lead_in: int = 0


@dataclass(frozen=True)
class RoundTime:
    """How many steps a round took, and the seconds."""

    steps: int
    seconds: float

    @property
    def step_seconds(self) -> float:
        """Seconds a step."""
        return self.seconds / self.steps


def load() -> None:
    """Start the forkserver and wait until it has loaded what contenders need, so that no start pays for it."""
    process = _context().Process(target=_nothing)
    process.start()
    process.join()


def _nothing() -> None:
    """What the first process does."""


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["study.benching.single_process", "study.benching.peers"])
    return context


class Gate:
    """The contender's side: `step` after every step blocks between rounds.

    `synchronise` waits for the device, `release` gives memory that is not in use to the others while this one waits.
    """

    def __init__(self, channel: Connection, synchronise: Callable[[], None], release: Callable[[], None]) -> None:
        self._channel, self.synchronise, self._release = channel, synchronise, release
        self._order: Order | None = None
        self._leading_in, self._steps, self._started = False, 0, 0.0

    def step(self) -> None:
        """One step is done. The first one ever is the end of starting; a round that is full is reported."""
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
        """Tell that the first step is done, and when."""
        self.synchronise()
        self.report(perf_counter())

    def wait(self) -> Order:
        """Block until the next round; ends the process where nobody asks any more."""
        self._release()
        try:
            order: Order = self._channel.recv()
        except EOFError:
            raise SystemExit(0) from None
        return order

    def report(self, what: object) -> None:
        """Tell the other side, once the device has done all it was given."""
        self.synchronise()
        self._channel.send(what)

    def _begin(self) -> None:
        self._order = self.wait()
        self._leading_in, self._steps, self._started = self._order.lead_in > 0, 0, perf_counter()


class Contender:
    """The side that asks: starts the process of a contender and gives its rounds.

    `target`, a function by its full name, is called there with the arguments and the channel of its Gate; what it prints goes
    into `log`. The processes come from a forkserver that has loaded torch, Lightning and transformers. A `with` block stops it.
    """

    def __init__(
        self,
        target: str,
        arguments: tuple[Any, ...],
        log: Path,
        environment: Mapping[str, str] | None = None,
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
        """Wait until the first step is done; its seconds since the start (one clock serves all processes)."""
        return float(self._receive()) - self._since

    def round(self, order: Order) -> Any:
        """Open the gate for one round, and wait for what it reports."""
        self.begin(order)
        return self._receive()

    def begin(self, order: Order) -> None:
        """Open the gate for one round."""
        self._send(order)

    def end(self) -> Any:
        """What the round that was begun reports."""
        return self._receive()

    def stop(self) -> None:
        """End the process at once."""
        self._channel.close()
        self._process.kill()
        self._process.join()

    def _send(self, order: Order) -> None:
        try:
            self._channel.send(order)
        except OSError:
            raise self._lost() from None

    def _receive(self) -> Any:
        if not self._channel.poll(PATIENCE_SECONDS):
            raise ContenderError(f"nothing came for {PATIENCE_SECONDS:.0f} s")
        try:
            what = self._channel.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(what, ContenderError):
            raise what
        return what

    def _lost(self) -> ContenderError:
        self._process.join(10)
        return ContenderError(f"its process ended with exit status {self._process.exitcode}")


def _run(target: str, arguments: tuple[Any, ...], channel: Connection, log: Path, environment: dict[str, str]) -> None:
    """The life of a contender's process."""
    os.environ.update(environment)
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # Trainer takes all it sees
    log_into(log)
    module, _, name = target.rpartition(".")
    try:
        getattr(importlib.import_module(module), name)(*arguments, channel)
    except Exception as error:
        traceback.print_exc()
        told = str(error).strip().splitlines()
        channel.send(ContenderError(f"{type(error).__name__}: {told[0] if told else 'no message'}"))
