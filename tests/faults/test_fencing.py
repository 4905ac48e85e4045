"""A process that is stopped, replaced and woken writes nothing more, whatever the clocks say."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from study.store.run_folder import RunFolder
from tests.conftest import Figure
from tests.faults.lives import MASKS, Lives, assert_same_bits, ended, recorded, size_of
from tests.small import config, run_folder, write_corpus
from tests.waiting import until


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


def seen(folder: RunFolder) -> dict[str, Any]:
    """Every file of a run but its log and what this test has it note, by content."""
    ignored = {folder.log_file, folder.path / MASKS}
    return {str(path): path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path not in ignored}


@pytest.mark.parametrize("clocks", [(30.0, -30.0), pytest.param((-30.0, 30.0), marks=pytest.mark.faults)])
def test_a_stopped_run_that_wakes_after_it_was_replaced_writes_nothing(
    clocks: tuple[float, float], corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    wanted, lives = config(corpus, recipe={"budget": {"steps": 600}}), Lives()
    folder = run_folder(tmp_path / "replaced", wanted)
    first = lives.start(wanted, folder, clock_seconds=clocks[0], lease_seconds=2.0, checkpoint_seconds=0.1)
    assert first.pid is not None
    until(lambda: size_of(folder.path / MASKS) > 500, seconds=600)
    os.kill(first.pid, signal.SIGSTOP)
    began = time.monotonic()
    second = lives.start(wanted, folder, clock_seconds=clocks[1], lease_seconds=2.0, checkpoint_seconds=60.0)
    assert ended(second) == 0
    waited = time.monotonic() - began
    assert recorded(folder).attempts == 2
    left = seen(folder)
    os.kill(first.pid, signal.SIGCONT)
    assert ended(first) == 75
    assert "attempt 2 has taken the run over from attempt 1" in folder.log_file.read_text()
    assert seen(folder) == left | {path: seen(folder)[path] for path in seen(folder) if path.endswith("0001.beat")}
    assert_same_bits(folder, lives.undisturbed(wanted, tmp_path / "undisturbed"))
    figure(
        f"clocks {clocks[0]:+.0f} s and {clocks[1]:+.0f} s, SIGSTOP, replaced and done after {waited:.0f} s, SIGCONT: "
        "exit 75, no file changed, one record, the same bits"
    )
