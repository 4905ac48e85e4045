"""W&B runs become a ledger: what the mirror brought to W&B comes back, and runs of strangers too."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from study.base.errors import InputError
from study.evidence.ledgers import OWN_COLUMNS
from study.store.named_files import write_table
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror import mirror_sweep
from study.tracking.mirror_state import ANSWER
from study.tracking.wandb_import import import_wandb, of_one_kind, offline_runs
from tests.fake_runs import FakeRun, empty_sweep
from tests.sweeps import sweep_values

RATE = ("recipe.learning_rate",)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """A mirrored sweep of three runs, one of them longer than a page of W&B's samples, one that diverged."""
    folder = empty_sweep(tmp_path, monkeypatch)
    tune = {"recipe.learning_rate": {"low": 0.001, "high": 0.01, "trials": 2}}
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(Path("text.txt"), tune=tune)))
    for seed, rows in enumerate((700, 30, 10)):
        run = FakeRun(folder, seed=seed)
        run.write(rows)
        run.end(**({"state": "DIVERGED", "reason": "loss became NaN", "loss_nats": None} if seed == 2 else {}))
    assert mirror_sweep(folder).mirrored == 3
    return folder


def test_a_mirrored_sweep_comes_back_as_its_own_ledger_with_whole_histories(folder: SweepFolder, tmp_path: Path) -> None:
    done = import_wandb(str(folder.wandb), tmp_path / "into", folder.name, RATE)
    assert (done.runs, done.rows) == (3, 740)
    ours, theirs = folder.write_ledger(), pd.read_parquet(done.ledger)
    assert {*theirs} >= OWN_COLUMNS
    wanted = ours.set_index("run_id").sort_index()
    table = theirs.set_index("run_id").sort_index()
    for name in ("cell", "state", "loss_nats", "tokens", "parameters", "train_flops", "exclusion", "architecture.depth", "seed",
                 *RATE, "data_fingerprint", "started_at"):  # fmt: skip
        pd.testing.assert_series_equal(table[name], wanted[name], check_dtype=False)
    for run in folder.runs():
        lines = (tmp_path / "into" / "runs" / run.run_id / "history.jsonl").read_text().splitlines()
        rows = [{key: value for key, value in json.loads(line).items() if not key.startswith("_")} for line in lines]
        assert rows == list(run.metrics())


def test_the_command_reads_and_a_law_takes_what_it_wrote(folder: SweepFolder, tmp_path: Path, study: Any) -> None:
    status, out, error = study("import-wandb", folder.wandb, "--into", tmp_path / "into")
    assert status == 0, error
    assert "3 runs with 740 rows" in out
    status, out, error = study("import-wandb", tmp_path / "home", "--into", tmp_path / "into")
    assert status == 2
    status, out, error = study("import-wandb", folder.wandb, "--into", tmp_path / "into", "--group", "other")
    assert "has no W&B run of the group 'other'" in error


def test_the_answer_of_a_mirrored_sweep_is_no_run(folder: SweepFolder, tmp_path: Path) -> None:
    folder.answer_file.write_text("**Depth helps.**\n")
    assert mirror_sweep(folder).answer == "mirrored"
    assert [run.job_type for run in offline_runs(folder.wandb)].count(ANSWER) == 1
    assert import_wandb(str(folder.wandb), tmp_path / "into", None, RATE).runs == 3


def test_a_folder_with_runs_of_ours_takes_no_import(folder: SweepFolder, tmp_path: Path) -> None:
    unlaunched = SweepFolder(tmp_path / "alone")
    FakeRun(unlaunched, seed=0).write(2)
    for into in (folder, unlaunched):
        before = sorted(into.path.rglob("*"))
        with pytest.raises(InputError, match=r"holds a sweep or runs trained here.*; give another folder with --into"):
            import_wandb(str(folder.wandb), into.path, None, RATE)
        assert sorted(into.path.rglob("*")) == before
    for _ in range(2):
        assert import_wandb(str(folder.wandb), tmp_path / "into", None, RATE).runs == 3, "an import can be repeated"


def test_a_torn_file_gives_what_is_whole(folder: SweepFolder) -> None:
    file = max(folder.wandb.rglob("*.wandb"), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    (run,) = list(offline_runs(file.parent))
    assert run.state == "crashed"
    assert 300 < len(run.rows) < 700
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    file.write_bytes(bytes(flipped))
    (run,) = list(offline_runs(file.parent))
    assert 200 < len(run.rows) < 500
    assert [row["_step"] for row in run.rows] == list(range(len(run.rows)))


class Api:
    """A server's public interface, as far as it is used."""

    def runs(self, path: str, filters: dict[str, str] | None) -> list[Any]:
        if path != "them/scaling":
            raise ValueError("Could not find project")
        assert filters == {"group": "small"}
        rows = [{"_step": step, "val/loss": 5 - step / 100, "group": "batch 7", "spread": "NaN"} for step in range(900)]
        common = {"group": "small", "job_type": None, "scan_history": lambda: iter(rows)}
        config = {
            "model": {"layers": 2},
            "lr": 1e-3,
            "clip": "Infinity",
            "seed": 0,
            "name": "exp",
            "run_id": 7,
            "_wandb": {"version": "0"},
        }
        summary = {
            "val/loss": -4.0,
            "spread": "Infinity",
            "_runtime": 3,
            "run_id": 8,
            "name": "best",
            "state": "good",
            "exclusion": "no",
            "cell": 9,
        }
        return [
            SimpleNamespace(id="a", name="one", state="finished", config=config, summary=summary, **common),
            SimpleNamespace(id="b", name="two", state="crashed", config=config | {"lr": 2e-3}, summary={}, **common),
            SimpleNamespace(id="c", name="answer", state="finished", config={}, summary={}, **common | {"job_type": "answer"}),
        ]


def test_runs_of_strangers_come_whole_from_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wandb.Api", Api)
    done = import_wandb("them/scaling", tmp_path, "small", ("lr",))
    assert (done.runs, done.rows) == (2, 1800)
    table = pd.read_parquet(done.ledger)
    assert table["cell"].nunique() == 1
    assert list(table["model.layers"]) == [2, 2]
    assert list(table["clip"]) == [float("inf")] * 2
    assert list(table["run_id"]) == ["a", "b"]
    assert list(table["name"]) == ["one", "two"]
    assert list(table["config.name"]) == ["exp", "exp"], "a configuration may call what it likes so, and is kept"
    assert list(table["config.run_id"]) == [7, 7]
    for name, value in {"run_id": 8, "name": "best", "state": "good", "exclusion": "no", "cell": 9}.items():
        assert table[f"summary.{name}"].dropna().tolist() == [value], "a summary, too"
    assert list(table["state"]) == ["finished", "crashed"]
    assert list(table["group"]) == ["small", "small"]
    assert list(table["history.group"]) == ["batch 7", "batch 7"]
    assert table["spread"].tolist() == [pytest.approx(float("inf")), pytest.approx(float("nan"), nan_ok=True)], "no text"
    lines = (tmp_path / "runs" / "a" / "history.jsonl").read_text().splitlines()
    assert json.loads(lines[0], parse_constant=pytest.fail)["spread"] is None, "JSON has no NaN"
    assert list(table["val/loss"]) == pytest.approx([-4.0, 5 - 8.99])
    assert [None if pd.isna(why) else why for why in table["exclusion"]] == [None, "W&B says crashed"]
    assert not [name for name in table.columns if name.startswith("_")]
    with pytest.raises(
        InputError, match=r"cannot be read from the W&B server http.*; see whether it answers, wandb login and "
    ):
        import_wandb("them/nothing", tmp_path, "small", ())


@pytest.mark.parametrize("source", ["/nowhere/runs", "./runs", "runs", "entity/project/runs"])
def test_a_source_that_is_neither_a_folder_nor_a_project_is_refused_before_the_server_is_asked(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wandb.Api", lambda: pytest.fail("the server was asked"))
    with pytest.raises(InputError, match="is neither a folder here nor an entity/project on W&B's server"):
        import_wandb(source, tmp_path / "into", None, ())


def test_what_some_runs_lack_is_missing_and_what_is_of_several_kinds_is_text(tmp_path: Path) -> None:
    table = pd.DataFrame({"stuck": [True, float("nan"), False], "list": [[1], None, "x"], "loss": [1.0, 2.0, float("nan")]})
    write_table(tmp_path / "ledger.parquet", of_one_kind(table))
    actual = pd.read_parquet(tmp_path / "ledger.parquet")
    kept = {name: [None if pd.isna(value) else value for value in actual[name]] for name in ("stuck", "list")}
    assert kept == {"stuck": [True, None, False], "list": ["[1]", None, "x"]}
    assert actual["loss"].tolist()[:2] == [1.0, 2.0]
