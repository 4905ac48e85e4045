"""One sweep in which a run diverges, hangs, runs out of memory or of disk: each says so, and the others complete."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.conftest import Figure
from tests.launching import Place
from tests.sweeps import write_sweep, write_topics
from tests.waiting import until

INJECTED = Path(__file__).parent / "injected"
LAUNCH = ("launch", "toy.yaml", "--no-wandb", "--device", "cpu", "--hung-after", "15s")

FAULTS = {
    1: ("nan", 40, "DIVERGED", "the training loss is nan in the 1 step to step 42"),
    2: ("inf", 40, "DIVERGED", "the training loss is nan in the 1 step to step 42"),
    3: ("memory", 10, "OOM", "CUDA out of memory. Tried to allocate 20.00 GiB"),
    4: ("full", 10, "FAILED", "disk full: [Errno 27] File too large"),
    5: ("hang", 20, "HUNG", "no step for 15 s, in read_forever (sitecustomize.py:"),
}
"""What befalls the run of a seed at a step, how it must end, and how its reason begins."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.mark.slow
def test_each_fault_ends_in_its_state_and_the_sweep_completes(corpus: Path, tmp_path: Path, figure: Figure) -> None:
    faults = {seed: {"fault": fault, "step": step} for seed, (fault, step, _, _) in FAULTS.items()}
    path = os.pathsep.join([str(INJECTED), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    made = Place(tmp_path / "place", PYTHONPATH=path, STUDY_TEST_FAULTS=json.dumps(faults))
    write_sweep(made.path / "toy.yaml", corpus, seeds=8, shapes={"grid": {"depth": [1]}}, budgets={"steps": [50]})
    made.study(*LAUNCH, seconds=900)
    began = time.monotonic()
    until(lambda: made.processes() == [], seconds=15)
    gone = time.monotonic() - began
    records = {record.config.seed: record for record in made.folder.records()}
    assert len(records) == 8
    for seed, (fault, step, state, reason) in FAULTS.items():
        record = records[seed]
        assert (record.state, (record.reason or "")[: len(reason)]) == (state, reason)
        assert record.steps <= (50 if fault == "full" else step + 2)  # a full disk is met where weights are written
        figure(f"{fault} at step {step}: {state} after step {record.steps} ({(record.reason or '')[:60]}…)")
    hung = made.folder.run(records[5].run_id)
    assert "training_step (sitecustomize.py" in (records[5].reason or "")
    assert "in read_forever" in hung.log_file.read_text()
    others = [record.state for seed, record in records.items() if seed not in FAULTS]
    assert others == ["COMPLETED"] * 3
    assert made.folder.answer_file.exists()
    figure(f"the other {len(others)} runs of the sweep completed, and no process was left {gone:.1f} s later")
