"""A sweep with a goal through the `study` command: launched, stopped, resumed, and then nothing is left to do."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from study.store.sweep_folder import GoalPath
from tests.launching import Place, until_in
from tests.sweeps import write_sweep

LAUNCH = ("launch", "toy.yaml", "--no-wandb", "--device", "cpu")
WORDS = [a + b for a in "bdgklmnp" for b in ("ab", "ek", "il", "om")]

GOAL: dict[str, Any] = {
    "question": "What loss will two layers of width 32 reach after 80k tokens?",
    "shapes": None,
    "budgets": None,
    "data": {"tokenizer": {"vocabulary": 64}},
    "preset": "modern",
    "base": {"recipe": {"batch_tokens": 256, "precision": "fp32", "learning_rate": 0.02}},
    "goal": {"forecast": {"parameters_non_embedding": 2.5e4, "tokens": 8e4}, "within": "1%"},
    "pool": {"depth": 1, "width": [8, 32], "tokens": [1e4, 4e4], "head_width": 8},
    "seeds": 2,
    "spend": {"flops": 4e9},
}


def write_rounds(path: Path, documents: int = 600) -> Path:
    """Documents of 20 to 60 words that go round the same words in order, so that order determines each masked word."""
    draw = random.Random(0)
    texts = []
    for _ in range(documents):
        start, words = draw.randrange(len(WORDS)), draw.randint(20, 60)
        texts.append(" ".join(WORDS[(start + place) % len(WORDS)] for place in range(words)))
    path.write_text("\n\n".join(texts))
    return path


@pytest.mark.slow
def test_a_goal_is_launched_stopped_resumed_and_then_nothing_is_left_to_do(tmp_path: Path, study: Any) -> None:
    made = Place(tmp_path / "here")
    corpus = write_rounds(tmp_path / "text.txt")
    write_sweep(made.path / "toy.yaml", corpus, **GOAL)
    _, planned, _ = study("plan", made.path / "toy.yaml", "--results", made.path / "results")
    assert "Goal: half the 95% interval of the forecast" in planned
    assert "The best grid of the same cost is expected to give ± " in planned

    launcher = made.start(*LAUNCH)
    until_in(launcher, lambda: bool(made.folder.records()), 300)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=120)
    stopped = {record.run_id: record for record in made.folder.records()}
    assert stopped

    here = ("launch", made.path / "toy.yaml", "--results", made.path / "results", *LAUNCH[2:])
    status, resumed, errors = study(*here, "--json")
    assert status == 0, errors
    path = made.folder.goal_path()
    assert path is not None
    assert path.state in ("met", "spent", "unreachable")
    records = {record.run_id: record for record in made.folder.records()}
    assert records.keys() >= stopped.keys(), "more, unless all had ended before the launch could stop"
    assert all(records[name] == record for name, record in stopped.items())
    assert {run.run_id for run in path.runs} == {*records}
    assert sum(run.spent_flops for run in path.runs) <= path.spend_flops
    answer = json.loads(resumed)
    assert answer["headline"] == f"{path.sentence}."
    assert "figures/path_to_goal.svg" in answer["figures"]

    before, text = (
        {file: file.stat().st_mtime_ns for file in made.folder.path.rglob("record.json")},
        made.folder.goal_file.read_text(),
    )
    status, again, _ = study(*here)
    assert (status, "COMPLETED" in again) == (0, False)
    assert path.sentence in " ".join(again.split())
    assert made.folder.goal_file.read_text() == text
    assert {file: file.stat().st_mtime_ns for file in made.folder.path.rglob("record.json")} == before
    assert GoalPath.model_validate_json(text) == path
