"""How a run is told to stop: every signal reaches it, whatever its process inherited, and before torch is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from study.training.attempts import StopSignal


@pytest.fixture
def as_before() -> Iterator[None]:
    """Leaves this process's handlers and blocked signals as they were."""
    mask, handlers = signal.pthread_sigmask(signal.SIG_BLOCK, ()), {n: signal.getsignal(n) for n in StopSignal.signals}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("number", StopSignal.signals)
def test_a_signal_that_was_inherited_blocked_stops_all_the_same(number: signal.Signals) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    stop = StopSignal()
    stop.install()
    assert not stop.received
    os.kill(os.getpid(), number)
    assert stop.received


def test_stopping_needs_no_torch() -> None:
    code = "import sys, study.training.attempts; sys.exit('torch' in sys.modules or 'pytorch_lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
