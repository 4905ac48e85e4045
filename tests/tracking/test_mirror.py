"""The W&B mirror: what it holds, and that it can be repeated."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from study.base.errors import InputError
from study.running.control import exclude, include
from study.store.run_folder import RunFolder
from study.store.score_records import write_scores
from study.store.sweep_folder import SweepFolder
from study.tracking.code_state import note_code
from study.tracking.mirror import SyncReport, mirror_sweep, retry_seconds
from study.tracking.mirror_state import ANSWER, answer_files, answer_sha256, images, left_behind
from study.tracking.mirror_wandb import batch_seconds, shortened, tracked_config
from tests.fake_runs import FakeRun, empty_sweep
from tests.fake_wandb_server import SECRET, Listener, Server
from tests.sweeps import sweep_values
from tests.synthetic import environment
from tests.synthetic_scores import TASKS, add_scores
from tests.wandb_files import Held, Written, assert_all_there, items
from tests.wandb_files import records_in as records_in  # tests/running/test_launch.py takes it from here


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    return empty_sweep(tmp_path, monkeypatch)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that the environment is logged in to."""
    server = Server()
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    yield server
    server.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    server = Listener()
    yield server
    server.close()


def files_of(folder: SweepFolder) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.wandb.rglob("*") if path.is_file() and path.parent.name != "logs"}


def test_an_offline_run_holds_exactly_what_the_run_wrote(folder: SweepFolder) -> None:
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(Path("text.txt"), tags=["pilot"])))
    run = FakeRun(folder, seed=3)
    run.write(700)  # more than a block of the .wandb file
    run.end(
        state="DIVERGED",
        reason="loss became NaN at step 700",
        loss_nats=None,
        environment=environment().model_dump(),
    )
    report = mirror_sweep(folder)
    assert report == SyncReport("offline", mirrored=1)
    held = Held(folder, run)
    assert held.rows == [run.row(step) for step in range(1, 701)]
    assert (held.runs[0].run_id, held.runs[0].project) == (run.folder.run_id, "scaling-study")
    assert (held.runs[0].display_name, held.runs[0].run_group) == ("L2-H128-A2-F512 lr=3e-3 seed=3", "depth")
    assert held.runs[0].job_type == "pretrain"
    assert list(held.runs[-1].tags) == ["L2-H128-A2-F512", "pilot", "excluded"]
    config = {key: value for key, value in held.config.items() if key != "_wandb"}
    assert {key: config[key] for key in tracked_config(run.config)} == tracked_config(run.config)
    assert (config["architecture.depth"], config["recipe.learning_rate"], config["seed"]) == (2, 0.003, 3)
    assert config["flops_per_token.train_flops"] < config["flops_per_token.train_flops_dense_head"]
    assert config["environment.device"] == "cpu"
    assert held.summary["state"] == "DIVERGED"
    assert held.summary["exclusion"] == "DIVERGED: loss became NaN at step 700"
    assert "loss_nats" not in held.summary
    assert held.exit_codes == [1]


@pytest.mark.parametrize(("rate", "said"), [(3e-3, "3e-3"), (1e-4, "1e-4"), (10**-2.5, "3.16e-3"), (1.0, "1e0")])
def test_a_name_says_shape_rate_and_seed(rate: float, said: str, folder: SweepFolder) -> None:
    config = FakeRun(folder).config
    config = config.model_copy(update={"recipe": config.recipe.model_copy(update={"learning_rate": rate})})
    assert config.words(()) == f"L2-H128-A2-F512 lr={said} seed=0"


def test_names_keep_within_the_limit_of_wandb() -> None:
    assert shortened("a name") == "a name"
    assert shortened("x" * 128) == "x" * 128
    assert (len(shortened("x" * 500)), shortened("x" * 500)[-1]) == (128, "…")


def test_sync_can_be_repeated_and_rebuilds_what_was_deleted(folder: SweepFolder) -> None:
    ended, going_on, planned = FakeRun(folder, 0), FakeRun(folder, 1), FakeRun(folder, 2)
    ended.write(5)
    ended.end()
    going_on.write(5)
    heard: list[tuple[int, int]] = []
    assert mirror_sweep(folder, progress=lambda done, of: heard.append((done, of))).mirrored == 2
    assert heard == [(1, 3), (2, 3), (3, 3)]
    before = files_of(folder)
    report = mirror_sweep(folder)
    assert (report.mirrored, report.already) == (0, 2)
    assert files_of(folder) == before
    assert not list(folder.wandb.glob(f"*{planned.folder.run_id}*"))

    going_on.write(3)
    going_on.end()
    assert mirror_sweep(folder).mirrored == 1
    assert_all_there(folder, going_on)

    shutil.rmtree(folder.wandb)
    assert mirror_sweep(folder).mirrored == 2
    assert_all_there(folder, ended)


def test_what_a_person_excludes_and_includes_again_is_mirrored_so(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(5)
    run.end()
    assert mirror_sweep(folder).mirrored == 1
    exclude(run.folder.run_id, folder.path.parent, "broken GPU")
    assert mirror_sweep(folder).mirrored == 1
    held = Held(folder, run)
    assert list(held.runs[-1].tags)[-1] == "excluded"
    assert "broken GPU" in held.summary["exclusion"]
    assert mirror_sweep(folder).already == 1
    include(run.folder.run_id, folder.path.parent)
    assert mirror_sweep(folder).mirrored == 1
    held = Held(folder, run)
    assert "excluded" not in list(held.runs[-1].tags)
    assert "exclusion" not in held.summary


def test_scores_are_in_the_summary_of_each_run_and_follow_the_table(folder: SweepFolder) -> None:
    runs = [FakeRun(folder, seed) for seed in range(2)]
    for run in runs:
        run.write(5)
        run.end(loss_nats=5.0 - run.config.seed)
    assert mirror_sweep(folder).mirrored == 2
    add_scores(folder, {"cola": TASKS["cola"], "sst2": TASKS["sst2"]}, seeds=2)
    assert len(left_behind(folder)) == 2
    assert mirror_sweep(folder).mirrored == 2
    table = pd.read_parquet(folder.scores_file)
    for run in runs:
        own = table[(table["run_id"] == run.folder.run_id) & (table["protocol"] == "fine_tune")]
        shown = {name: value for name, value in Held(folder, run).summary.items() if name.startswith("downstream/")}
        means = own.groupby("task")["test"].mean()
        assert shown == pytest.approx({"downstream/cola/matthews": means["cola"], "downstream/sst2/accuracy": means["sst2"]})
        assert_all_there(folder, run)
    assert mirror_sweep(folder).already == 2
    shutil.rmtree(runs[0].folder.scores)
    write_scores(folder)
    assert mirror_sweep(folder).mirrored == 1
    assert not [name for name in Held(folder, runs[0]).summary if name.startswith("downstream/")]
    folder.scores_file.write_bytes(b"PAR1")
    report = mirror_sweep(folder)
    assert "cannot be read as parquet" in report.problems["scores.parquet"]


def answered(folder: SweepFolder) -> None:
    """Let a sweep have an answer, with a figure as an image."""
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(Path("text.txt"), question="Does depth help?")))
    text = "**Depth helps.**\n\n![How it falls](figures/law_fit.svg)\n\n*It \\* falls*\n\n**Runs:** 2.\n\n<details>\nmore\n"
    folder.answer_file.write_text(text)
    folder.figures.mkdir()
    Image.new("RGB", (8, 4)).save(folder.figures / "law_fit.png")
    (folder.figures / "law_fit.svg").write_text("<svg/>")


def test_the_answer_is_a_run_with_text_images_and_files(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(3)
    run.end()
    answered(folder)
    folder.write_ledger()
    assert left_behind(folder) == [run.folder.run_id, ANSWER]
    assert mirror_sweep(folder) == SyncReport("offline", mirrored=1, answer="mirrored")
    held = Written(folder)
    (shown,) = [items(record.history.item) for record in held.records if record.HasField("history")]
    assert shown["figures/law_fit/_type"] == "image-file"
    assert (held.files / shown["figures/law_fit/path"]).is_file()
    assert (shown["ledger/_type"], shown["ledger/nrows"]) == ("table-file", 1)
    written = json.loads((held.files / shown["ledger/path"]).read_text())
    assert dict(zip(written["columns"], written["data"][0], strict=True))["run_id"] == run.folder.run_id
    described = held.runs[0]
    assert (described.job_type, described.run_group, described.display_name) == ("answer", "depth", "answer of depth")
    assert described.notes == "**Depth helps.**\n\n**Runs:** 2."
    assert items(described.config.update)["question"] == "Does depth help?"
    files = {"answer.md", "sweep.yaml", "ledger.parquet", "ledger.csv", "figures/law_fit.png", "figures/law_fit.svg"}
    assert held.artifacts.pop("answer-depth") == files
    assert [*held.artifacts.values()] == [{"ledger.table.json"}], "what W&B keeps of the table"
    assert left_behind(folder) == []
    assert mirror_sweep(folder) == SyncReport("offline", already=1, answer="already")
    folder.answer_file.write_text("**Depth does not help.**\n")
    assert left_behind(folder) == [ANSWER]
    assert mirror_sweep(folder).answer == "mirrored"
    assert Written(folder).runs[0].notes == "**Depth does not help.**"


def test_an_answer_that_cannot_be_mirrored_fails_no_run(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(3)
    run.end()
    answered(folder)
    (folder.figures / "law_fit.png").write_text("no image")
    report = mirror_sweep(folder)
    assert (report.mirrored, report.answer, [*report.problems]) == (1, "failed", [ANSWER])
    assert Held(folder, run).rows == list(run.folder.metrics())
    Image.new("RGB", (8, 4)).save(folder.figures / "law_fit.png")
    assert mirror_sweep(folder) == SyncReport("offline", already=1, answer="mirrored")


def test_weights_come_along_where_they_are_asked_for_and_stay(folder: SweepFolder) -> None:
    run, failed = FakeRun(folder), FakeRun(folder, seed=1)
    for each in (run, failed):
        each.write(3)
    run.folder.weights_file.write_bytes(b"weights")
    run.end()
    failed.end(state="DIVERGED", loss_nats=None, reason="loss became NaN")
    assert mirror_sweep(folder).mirrored == 2
    assert Held(folder, run).artifacts == {}
    assert mirror_sweep(folder, weights=True).mirrored == 1
    name = f"weights-{run.folder.run_id}"
    assert Held(folder, run).artifacts == {name: {"weights.safetensors", "config.yaml", "record.json"}}
    assert mirror_sweep(folder, weights=True).already == 2
    exclude(run.folder.run_id, folder.path.parent, "broken GPU")
    assert mirror_sweep(folder).mirrored == 1
    assert name in Held(folder, run).artifacts


def test_weights_to_which_a_link_leads_are_not_sent(folder: SweepFolder, tmp_path: Path) -> None:
    (secret := tmp_path / "key").write_text("a secret")
    run = FakeRun(folder)
    run.write(3)
    run.folder.weights_file.symlink_to(secret)
    run.end()
    assert mirror_sweep(folder, weights=True).mirrored == 1
    assert Held(folder, run).artifacts == {}
    assert mirror_sweep(folder, weights=True).already == 1


def git(place: Path, *words: str) -> str:
    """What git says in a repository."""
    own = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *own, *words], cwd=place, check=True, capture_output=True, text=True).stdout.strip()


def test_code_is_that_of_the_launch_that_trained_the_run(
    folder: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    note_code(folder)
    assert not folder.code_file.exists(), "outside a repository"
    (repository := tmp_path / "code").mkdir()
    git(repository, "init", "--quiet")
    git(repository, "remote", "add", "origin", f"https://me:{SECRET}@example.org/code.git")
    (repository / "model.py").write_text("depth = 1\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "one")
    monkeypatch.chdir(repository)
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    note_code(folder)
    assert not folder.code_file.exists()
    monkeypatch.delenv("WANDB_DISABLE_GIT")
    monkeypatch.setattr("study.tracking.code_state.timestamp", lambda: "2026-01-01T00:00:00+00:00")
    note_code(folder)
    first = git(repository, "rev-parse", "HEAD")
    (repository / "model.py").write_text("depth = 2\n")
    monkeypatch.setattr("study.tracking.code_state.timestamp", lambda: "2026-02-01T00:00:00+00:00")
    note_code(folder)
    note_code(folder)
    assert len(json.loads(folder.code_file.read_text())) == 2, "the same code is noted once"
    early, late = FakeRun(folder, 0), FakeRun(folder, 1)
    for run, started_at in ((early, "2026-01-01T00:00:07+00:00"), (late, "2026-02-01T00:00:07+00:00")):
        run.write(2)
        run.end(started_at=started_at)
    answered(folder)
    mirror_sweep(folder)
    for run, changed in ((early, False), (late, True)):
        held = Held(folder, run)
        assert (held.runs[0].git.commit, held.runs[0].git.remote_url) == (first, "https://example.org/code.git")
        assert held.config["code.changed"] is changed
    assert "-depth = 1\n+depth = 2\n" in (Written(folder).files / "diff.patch").read_text()
    folder.code_file.write_text("no JSON")
    note_code(folder)
    assert [entry["commit"] for entry in json.loads(folder.code_file.read_text())] == [first]


def test_a_sweep_is_opened_where_it_is_to_be_seen(
    folder: SweepFolder, server: Server, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.chdir(folder.path.parent.parent)
    run = FakeRun(folder)
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(Path("text.txt"))))
    run.write(3)
    run.end()
    status, out, _ = study("open", "depth")
    assert status == 0
    assert "after wandb login, study sync results/depth brings it there" in out
    assert "here: study dashboard results/depth\n" in out
    assert mirror_sweep(folder).mode == "online"
    page = f"{server.url}/me/scaling-study/groups/depth/workspace"
    assert study("open", "depth") == study("open", folder.path) == (0, f"{page}\n", "")
    assert study("open") == (0, f"{page}\n", "")
    assert opened == [page] * 3
    status, _, error = study("open", "dept")
    assert (status, error) == (2, "error: dept: is not a sweep folder: it has no sweep.yaml; give one under results/\n")


def test_a_line_torn_by_a_kill_is_not_mirrored_over_and_over(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(3)
    with run.folder.metrics_file.open("a") as file:
        file.write('{"trainer/tokens": 4096, "train/loss": 1')
    assert mirror_sweep(folder).mirrored == 1
    assert (mirror_sweep(folder).already, left_behind(folder)) == (1, [])
    with run.folder.metrics_file.open("a") as file:
        file.write("}\n")
    assert left_behind(folder) == [run.folder.run_id]
    assert mirror_sweep(folder).mirrored == 1
    assert Held(folder, run).rows == list(run.folder.metrics())


def test_a_run_whose_rows_were_cut_is_reported_and_mirrored_again_once_they_are_whole(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(9)
    run.end()
    whole = run.folder.metrics_file.read_bytes()
    run.folder.metrics_file.write_bytes(whole[: len(whole) // 2])
    report = mirror_sweep(folder)
    assert (report.mirrored, {*report.problems}) == (1, {run.folder.run_id})
    assert "metrics.jsonl ends at step 4 of 9" in report.problems[run.folder.run_id]
    run.folder.metrics_file.write_bytes(whole)
    assert mirror_sweep(folder) == SyncReport("offline", mirrored=1)
    assert_all_there(folder, run)
    assert mirror_sweep(folder) == SyncReport("offline", already=1)


def test_online_a_run_that_goes_on_is_resumed_without_repeating_a_step(folder: SweepFolder, server: Server) -> None:
    run = FakeRun(folder)
    run.write(5)
    assert mirror_sweep(folder) == SyncReport("online", mirrored=1)
    assert server.rows(run) == list(run.folder.metrics())
    run.write(3)
    run.end()
    assert mirror_sweep(folder).mirrored == 1
    assert server.rows(run) == list(run.folder.metrics())
    assert mirror_sweep(folder).already == 1
    shutil.rmtree(folder.wandb)
    assert mirror_sweep(folder).mirrored == 1
    assert server.rows(run) == list(run.folder.metrics())


def test_answers_that_crash_wandb_fail_the_runs_and_not_the_sync(folder: SweepFolder, server: Server) -> None:
    runs = [FakeRun(folder, seed) for seed in range(2)]
    for run in runs:
        run.write(2)
        run.end()
    server.broken = True
    assert set(mirror_sweep(folder).failed) == {run.folder.run_id for run in runs}
    assert not any(isinstance(handler, logging.FileHandler) for handler in logging.getLogger("wandb").handlers)
    server.broken = False
    assert mirror_sweep(folder).mirrored == 2


@pytest.mark.slow
def test_an_offline_run_can_be_synced_by_wandb_itself(
    folder: SweepFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = FakeRun(folder)
    run.write(5)
    mirror_sweep(folder)
    run.write(5)
    run.end()
    mirror_sweep(folder)
    monkeypatch.delenv("WANDB_MODE")
    [path] = folder.wandb.glob("offline-run-*")
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", str(path)], check=True, cwd=folder.wandb, capture_output=True, timeout=60
    )
    assert server.rows(run) == list(run.folder.metrics())


def test_who_logs_in_later_is_mirrored_online_and_an_unreachable_server_is_asked_once(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [FakeRun(folder, seed) for seed in range(3)]
    for run in runs:
        run.write(2)
        run.end()
    assert mirror_sweep(folder).mirrored == 3
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setattr("study.tracking.mirror_wandb.INIT_SECONDS", 2.0)
    begin = time.monotonic()
    report = mirror_sweep(folder)
    assert time.monotonic() - begin < 10
    assert (report.mode, report.mirrored, len(report.failed)) == ("online", 0, 3)
    assert SECRET not in str(report)
    (reason,) = set(report.failed.values())
    assert reason.startswith("the W&B server http://127.0.0.1:9 refuses or does not answer; study sync tries again: ")
    assert [message for message in caplog.messages if "mirrored" in message or "W&B server" in message] == [reason], "once"


def test_who_is_not_logged_in_touches_no_network(
    folder: SweepFolder, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, listener.url)
    run = FakeRun(folder)
    run.write(3)
    run.end()
    assert mirror_sweep(folder).mode == "offline"
    assert_all_there(folder, run)
    assert listener.connections == []


def test_an_unknown_mode_is_refused_with_its_reason(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "sideways")
    with pytest.raises(InputError, match="should be 'online', 'offline'"):
        mirror_sweep(folder)


def test_rows_come_once_and_a_damaged_one_is_named_by_its_line(tmp_path: Path) -> None:
    file, rows = tmp_path / "metrics.jsonl", RunFolder(tmp_path).rows()
    assert [*rows.new()] == []
    file.write_text('{"trainer/step": 1}\n{"trainer/')
    assert [*rows.new()] == [{"trainer/step": 1}]
    with file.open("a") as more:
        more.write('step": 2}\nnot JSON\n')
    new = rows.new()
    assert next(new) == {"trainer/step": 2}
    with pytest.raises(InputError, match=r"metrics.jsonl:3: is not a row of metrics"):
        next(new)


def test_bad_names_and_damaged_runs_are_named_and_stop_no_other(folder: SweepFolder, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "results" / "..%2F<b>'; $(x)")
    folder.path.mkdir(parents=True)
    good, hostile, damaged = FakeRun(folder, 0), FakeRun(folder, 1, run_id="*"), FakeRun(folder, 2)
    for run in (good, hostile, damaged):
        run.write(2)
        run.end()
    damaged.folder.metrics_file.write_text("not JSON\n")
    before = set((tmp_path / "results").iterdir()), set((folder.path / "runs").rglob("*"))
    report = mirror_sweep(folder)
    assert report.mirrored == 1
    assert set(report.failed) == {"*", damaged.folder.run_id}
    assert "16 hex digits" in report.failed["*"]
    assert Held(folder, good).runs[0].run_group == folder.name
    assert (set((tmp_path / "results").iterdir()), set((folder.path / "runs").rglob("*"))) == before
    assert {path.name for path in tmp_path.iterdir()} == {"results", "home"}


@pytest.mark.slow
def test_requests_that_are_too_many_are_made_again_later_and_no_row_twice(folder: SweepFolder, server: Server) -> None:
    """W&B answers 429 where requests come too often."""
    run = FakeRun(folder)
    run.write(30)
    run.end()
    server.refusals = {"file_stream": 2, "graphql": 1}
    report = mirror_sweep(folder)
    assert (report.mirrored, report.failed) == (1, {})
    assert server.rows(run) == list(run.folder.metrics())
    assert len(server.refused) == 3
    assert min(later - earlier for earlier, later in itertools.pairwise(server.refused)) > 0.5
    assert left_behind(folder) == []


@pytest.mark.slow
def test_a_mirror_that_is_refused_for_too_long_goes_on_later_where_it_stopped(
    folder: SweepFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = FakeRun(folder, seed=1), FakeRun(folder, seed=2)
    first.write(20)
    first.end()
    assert mirror_sweep(folder).mirrored == 1
    second.write(20)
    second.end()
    monkeypatch.setattr("study.tracking.mirror_wandb.FINISH_SECONDS", 3.0)
    server.refusals = {"file_stream": 10_000}
    report = mirror_sweep(folder)
    assert (report.already, list(report.failed)) == (1, [second.folder.run_id])
    assert left_behind(folder) == [second.folder.run_id]
    server.refusals.clear()
    refused_before = len(server.refused)
    assert mirror_sweep(folder).mirrored == 1
    assert [server.rows(run) for run in (first, second)] == [list(run.folder.metrics()) for run in (first, second)]
    assert len(server.refused) == refused_before


def test_more_runs_at_a_time_send_larger_batches_and_errors_make_longer_pauses() -> None:
    assert [batch_seconds(runs) for runs in (1, 10, 25, 100)] == [15, 15, 15, 60]
    assert [retry_seconds(errors) for errors in (1, 2, 3, 6, 99)] == [30, 60, 120, 900, 900]


def test_of_what_links_lead_to_out_of_a_strangers_folder_nothing_is_sent(folder: SweepFolder, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("a secret")
    folder.figures.mkdir(parents=True)
    folder.fits.symlink_to(secrets)
    for name in ("mine.png", "mine.svg"):
        (folder.figures / name).write_bytes(b"drawn")
    for link in ("theirs.png", "theirs.svg"):
        (folder.figures / link).symlink_to(secrets / "key")
    folder.ledger_file.symlink_to(secrets / "key")
    folder.answer_file.write_text("an answer")
    assert [file.name for file in images(folder)] == ["mine.png"]
    sent = {file.relative_to(folder.path).as_posix() for file in answer_files(folder)}
    assert sent == {"answer.md", "figures/mine.png", "figures/mine.svg"}
    assert answer_sha256(folder) is not None
    folder.answer_file.unlink()
    folder.answer_file.symlink_to(secrets / "key")
    assert answer_sha256(folder) is None
