"""A run that is stopped by any signal at any moment resumes to the same bits, whatever its schedule and precision."""

from __future__ import annotations

import itertools
import random
import signal
from pathlib import Path
from typing import Any, get_args

import pytest

from study.config.recipe import Recipe
from tests.conftest import Figure
from tests.faults.lives import Lives, assert_same_bits, recorded, whole_step
from tests.small import config, run_folder, write_corpus

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SCHEDULES = get_args(Recipe.model_fields["schedule"].annotation)
PRECISIONS = ("fp32", "bf16")
ALL = list(itertools.product(SCHEDULES, PRECISIONS, SIGNALS))
SOME = [("linear", "fp32", signal.SIGKILL), ("wsd", "bf16", signal.SIGTERM)]
STEPS = 150


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


def recipe(schedule: str, precision: str, steps: int = STEPS) -> dict[str, Any]:
    return {"schedule": schedule, "precision": precision, "dropout": 0.1, "budget": {"steps": steps}}


@pytest.mark.parametrize(
    ("schedule", "precision", "number"),
    [
        *(pytest.param(*case) for case in SOME),
        *(pytest.param(*case, marks=pytest.mark.faults) for case in ALL if case not in SOME),
    ],
)
def test_a_stopped_run_resumes_to_the_same_bits(
    schedule: str, precision: str, number: signal.Signals, corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    wanted, lives, draw = config(corpus, recipe=recipe(schedule, precision)), Lives(), random.Random(number)
    folder = run_folder(tmp_path / "stopped", wanted)
    statuses = [lives.signalled(wanted, folder, number, draw) for _ in range(2)]
    assert set(statuses) <= ({-signal.SIGKILL, 0} if number == signal.SIGKILL else {75, 0})
    lives.undisturbed(wanted, tmp_path / "stopped")
    assert_same_bits(folder, lives.undisturbed(wanted, tmp_path / "undisturbed"))
    figure(f"{schedule}, {precision}, {number.name}: the same bits after {recorded(folder).attempts} attempts")


@pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.faults)])
def test_every_signal_saves_at_a_step_boundary(times: int, corpus: Path, tmp_path: Path, figure: Figure) -> None:
    wanted, lives, draw = config(corpus, recipe=recipe("linear", "fp32", 4000)), Lives(), random.Random(0)
    folder, steps = run_folder(tmp_path, wanted), []
    for number in itertools.islice(itertools.cycle(SIGNALS[1:]), times):
        assert lives.signalled(wanted, folder, number, draw, checkpoint_seconds=60.0) == 75
        assert folder.record() is None
        steps.append(whole_step(folder))
    assert steps == sorted(set(steps))
    figure(f"signals: {len(steps)} of {times} saved at a step boundary, optimiser step = trainer step, PREEMPTED, exit 75")
