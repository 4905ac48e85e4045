"""The W&B mirror in its own process beside a launch; only there is wandb imported."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import left_behind

LAST_SECONDS = 60.0
"""How long the mirror may continue after the stop request or the coordinator's death."""

logger = logging.getLogger(__name__)


class MirrorProcess:
    """A sweep's mirror in its own process and session during a launch.

    Nothing here raises or waits for W&B: what a failed mirror leaves, `study sync` mirrors later. The process ends with its
    parent.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the mirror is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; does nothing if WANDB_MODE is `disabled`."""
        if _switched_off():
            return
        command = [sys.executable, "-P", "-m", "study.tracking.mirror_process", str(self._folder.path.absolute())]
        try:
            with self._log() as log:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            logger.warning("the W&B mirror could not start; `study sync` mirrors the runs later: %s", error)

    def stop(self, timeout_seconds: float) -> list[str]:
        """Stop the mirror, kill it after `timeout_seconds`, and return what it left behind."""
        if _switched_off():
            return []
        if self._process is not None:
            try:
                self._process.communicate(b"\n", timeout_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        return left_behind(self._folder)

    def _log(self) -> IO[bytes]:
        """Return the process's log, or the null device if unwritable."""
        try:
            self._folder.wandb.mkdir(exist_ok=True)
            return (self._folder.wandb / "mirror.log").open("ab")
        except OSError as error:
            logger.warning("the W&B mirror has no log: %s", error)
            return Path(os.devnull).open("ab")


def _switched_off() -> bool:
    return os.environ.get("WANDB_MODE") == "disabled"


def main() -> None:
    """Follow the sweep folder in the argument until standard input closes or receives."""
    from study.tracking.mirror import mirror_sweep

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    os.nice(10)
    stop = threading.Event()
    threading.Thread(target=_await_stop, args=(stop,), daemon=True).start()
    logger.info("%s", mirror_sweep(SweepFolder(Path(sys.argv[1])), stop))


def _await_stop(stop: threading.Event) -> None:
    """Set `stop` when the parent asks or dies; exit after LAST_SECONDS even if W&B hangs."""
    os.read(sys.stdin.fileno(), 1)
    stop.set()
    time.sleep(LAST_SECONDS)
    logger.error("W&B did not answer in time; `study sync` mirrors the rest later")
    os._exit(1)


if __name__ == "__main__":
    main()
