"""A run trained by two processes that exchange gradients, as on two devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from study.folders import RunFolder

RANK = """
import sys
from pathlib import Path
from study.folders import RunFolder
from study.model.lightning import MaskedLanguageModelling
from study.training.stopping import StopSignal
from study.training.execution import Execution
from study.training.run import train
stop, step = StopSignal(), MaskedLanguageModelling.training_step
def until(self, *batch):
    if self.trainer.global_step == int(sys.argv[2]):
        stop.set()
    return step(self, *batch)
MaskedLanguageModelling.training_step = until
folder = RunFolder(Path(sys.argv[1]))
print(train(folder.config(), folder, "test", Execution(devices=2), stop))
"""


def ranks_said(folder: RunFolder, stop_at: int = -1) -> list[str]:
    """Train a run by two ranks that are told to stop in one step; how each says that it ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder.path), str(stop_at)],
            env=os.environ | {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return said
