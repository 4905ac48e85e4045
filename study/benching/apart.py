"""Measurements by a module of its own, run as a whole process with a folder and a cache of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from study.benching.figures import Tell, failed


def measure_apart(module: str, what: str, tell: Tell) -> None:
    """Tell the rows that `python -m MODULE FOLDER` prints as JSON, or as one of `what` why it failed."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        environment = os.environ | {"STUDY_CACHE": f"{folder}/cache"}
        done = subprocess.run([sys.executable, "-m", module, folder], env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        tell(failed(what, lines[-1] if lines else f"exit status {done.returncode}"))
        return
    for row in json.loads(done.stdout):
        tell(row)
