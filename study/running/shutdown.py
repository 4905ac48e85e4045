"""How a coordinator stops: the jobs save first."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from study.base.durable_files import is_there, retry_write
from study.base.errors import GOES_ON, InputError
from study.base.quantities import plural
from study.executing.job import Executor

SAVE_SECONDS = 60.0
"""How long jobs may take to save when stopped."""

LOOK_SECONDS = 0.2
"""How often the order to stop is looked for before there are jobs."""


@contextmanager
def interrupted() -> Iterator[None]:
    """Let SIGTERM, and a terminal that hangs up unless nohup lets it, interrupt the block as Ctrl-C does."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = (signal.SIGTERM, signal.SIGHUP) if hangs_up else (signal.SIGTERM,)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def preparing(order: Path) -> Iterator[None]:
    """Let the stop file, too, interrupt the block as Ctrl-C does, while there is nothing to save."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            if is_there(order):
                _thread.interrupt_main()
                return

    watcher = threading.Thread(target=look, daemon=True, name="orders")
    try:
        with interrupted():
            watcher.start()
            try:
                yield
            finally:
                over.set()
                watcher.join()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(GOES_ON) from None


def require_folder(folder: Path, file: Path) -> None:
    """Raise InputError where a folder was moved or removed, which a write would create anew."""
    try:
        retry_write(file.stat)
    except OSError as error:
        message = f"was moved or removed ({file}: {error.strerror}); bring it back, and {GOES_ON}"
        raise InputError.at(str(folder), message) from None


def save_and_stop(executor: Executor, futures: Collection[Future[int]]) -> None:
    """Let all submitted jobs save and end; end those that take too long, or all at a second Ctrl-C."""
    unsaved = set(futures)
    if unsaved:
        waits = f"waiting up to {SAVE_SECONDS:.0f} s for {plural(len(unsaved), 'job')} to save"
        with suppress(OSError):  # of a terminal that is gone
            sys.stderr.write(f"stopping: {waits}; press Ctrl-C again to end now, at the last checkpoint\n")
    try:
        executor.interrupt()
        unsaved = wait(unsaved, SAVE_SECONDS).not_done
    except KeyboardInterrupt:
        pass
    executor.kill()
    wait(unsaved, SAVE_SECONDS)  # not for ever: a Slurm that does not answer tells nobody how its jobs ended
