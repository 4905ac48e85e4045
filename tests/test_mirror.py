"""The W&B mirror: what it holds, that it can be repeated, and that no fault of it or of W&B touches who writes."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from study.config import RunConfig
from study.errors import InputError
from study.records import RunFolder, RunRecord, SweepFolder, counts_of
from study.sweeping.mirror import MirrorProcess, left_behind, run_name, sync, tracked_config

SECRET = "f00d" * 10


@pytest.fixture(autouse=True)
def _no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    path = tmp_path / "results" / "depth"
    path.mkdir(parents=True)
    return SweepFolder(path)


class Listener:
    """A server on loopback that accepts and never answers."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self.connections.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()
        for connection in self.connections:
            connection.close()


class Server:
    """A W&B server on loopback that keeps the history of its runs and knows just the requests that the mirror causes."""

    def __init__(self) -> None:
        self.history: dict[str, list[str]] = {}
        self.broken = False
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = (
                    json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}") if "otel" not in self.path else {}
                )
                answer = json.dumps(server.answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/file_stream"):
            if sent := body.get("files", {}).get("wandb-history.jsonl"):
                self.history.setdefault(path.split("/")[-2], [])[sent["offset"] :] = sent["content"]
            return {}
        query, name = body.get("query", ""), body.get("variables", {}).get("name")
        project = {"id": "p", "name": "scaling-study", "entity": {"id": "e", "name": "me"}}
        if "RunResumeStatus" in query:
            return {"data": {"model": project | {"bucket": self._bucket(name) if name in self.history else None}}}
        if "UpsertBucket" in query:
            bucket = {"id": name, "name": name, "displayName": name, "sweepName": None, "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "CreateRunFiles" in query and not self.broken:
            files = [{"name": name, "uploadUrl": f"{self.url}/{name}"} for name in body["variables"]["files"]]
            return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def _bucket(self, name: str) -> dict[str, Any]:
        rows = self.history[name]
        texts = {"summaryMetrics": "{}", "config": "{}", "eventsTail": "[]", "historyTail": json.dumps(rows[-1:])}
        lines = {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0}
        return {"id": name, "name": name, "displayName": name, "tags": [], "notes": None, "wandbConfig": "{}"} | texts | lines

    def rows(self, run: FakeRun) -> list[dict[str, Any]]:
        history = [json.loads(line) for line in self.history[run.folder.run_id]]
        assert [row["_step"] for row in history] == list(range(len(history)))
        return [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


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


class FakeRun:
    """A run that writes rows and a record without training."""

    def __init__(self, folder: SweepFolder, seed: int = 0, run_id: str | None = None) -> None:
        self.config = RunConfig.parse(
            {
                "architecture": {"depth": 2, "width": 128, "heads": 2, "ffn": 512, "vocabulary": 2048},
                "recipe": {"learning_rate": "3e-3", "batch_tokens": 1024, "budget": {"steps": 100}},
                "data": {"tokenizer": {"vocabulary": 2048}},
                "seed": seed,
            }
        )
        self.folder: RunFolder = folder.run(run_id or self.config.fingerprint("data"))
        self.folder.write_config(self.config)
        self.sweep = folder.name
        self.steps = 0

    def write(self, count: int) -> None:
        with self.folder.metrics_file.open("a") as file:
            for _ in range(count):
                self.steps += 1
                file.write(json.dumps(self.row(self.steps)) + "\n")

    def row(self, step: int) -> dict[str, float]:
        row = {
            "trainer/step": step,
            "trainer/tokens": step * 1024,
            "trainer/flops": step * 1.1e9,
            "train/loss": 7.6 / step**0.1,
        }
        return row | ({"val/loss": 7.5 / step**0.1} if step % 10 == 0 else {"perf/mfu": 0.1 + step / 3e4})

    def end(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "run_id": self.folder.run_id,
            "sweep": self.sweep,
            "state": "COMPLETED",
            "config": self.config,
            "data_fingerprint": "data",
            "steps": self.steps,
            "tokens": self.steps * 1024,
            "loss_nats": 5.1,
            "attempts": 1,
            "started_at": "2026-01-01T00:00:00+00:00",
            "finished_at": "2026-01-01T00:01:00+00:00",
        }
        assert self.folder.file_record(RunRecord(**values | counts_of(self.config, self.steps) | changes))


class Steady:
    """Writes a row every 5 ms in a thread, as a run does, and keeps the longest time that one row took."""

    def __init__(self, run: FakeRun) -> None:
        self.slowest = 0.0
        self._run = run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.wait(0.005):
            begin = time.perf_counter()
            self._run.write(1)
            self.slowest = max(self.slowest, time.perf_counter() - begin)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._run.end()


def records_in(file: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: LevelDB's log format, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items(message: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in message}


class Held:
    """What the one offline W&B folder of a run holds."""

    def __init__(self, folder: SweepFolder, run: FakeRun) -> None:
        found = list(folder.wandb.glob(f"*run-*-{run.folder.run_id}*"))
        assert len(found) == 1, found
        assert found[0].name.startswith("offline-run-")
        records = list(records_in(found[0] / f"run-{run.folder.run_id}.wandb"))
        history = [items(record.history.item) for record in records if record.HasField("history")]
        assert [row["_step"] for row in history] == list(range(len(history)))
        self.rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]
        self.runs = [record.run for record in records if record.HasField("run")]
        self.config: dict[str, Any] = {}
        for record in records:
            self.config |= items(record.run.config.update) | items(record.config.update)
        self.summary = {key: value for record in records for key, value in items(record.summary.update).items()}
        self.exit_codes = [record.exit.exit_code for record in records if record.HasField("exit")]


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def files_of(folder: SweepFolder) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.wandb.rglob("*") if path.is_file() and path.parent.name != "logs"}


def assert_all_there(folder: SweepFolder, run: FakeRun) -> None:
    held = Held(folder, run)
    assert held.rows == list(run.folder.metrics())
    assert held.exit_codes == [0]
    assert left_behind(folder) == []


def test_an_offline_run_holds_exactly_what_the_run_wrote(folder: SweepFolder) -> None:
    run = FakeRun(folder, seed=3)
    run.write(700)  # more than a block of the .wandb file
    run.end(
        state="DIVERGED",
        reason="loss became NaN at step 700",
        loss_nats=None,
        tags=("pilot",),
        environment={
            "hostname": "h", "device": "cpu", "processor": "x", "threads": 2, "precision": "fp32",
            "python": "3.11", "torch": "2.13", "lightning": "2.6", "study": "0.1",
        },
    )  # fmt: skip
    report = sync(folder)
    assert report.to_dict() == {"mode": "offline", "mirrored": 1, "already": 0, "failed": {}}
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
    assert run_name(config) == f"L2-H128-A2-F512 lr={said} seed=0"


def test_sync_can_be_repeated_and_rebuilds_what_was_deleted(folder: SweepFolder) -> None:
    ended, going_on, planned = FakeRun(folder, 0), FakeRun(folder, 1), FakeRun(folder, 2)
    ended.write(5)
    ended.end()
    going_on.write(5)
    heard: list[tuple[int, int]] = []
    assert sync(folder, lambda done, of: heard.append((done, of))).mirrored == 2
    assert heard == [(1, 3), (2, 3), (3, 3)]
    before = files_of(folder)
    report = sync(folder)
    assert (report.mirrored, report.already) == (0, 2)
    assert files_of(folder) == before
    assert not list(folder.wandb.glob(f"*{planned.folder.run_id}*"))

    going_on.write(3)
    going_on.end()
    assert sync(folder).mirrored == 1
    assert_all_there(folder, going_on)

    shutil.rmtree(folder.wandb)
    assert sync(folder).mirrored == 2
    assert_all_there(folder, ended)


def test_a_torn_line_waits_for_its_end_and_a_rewritten_file_is_mirrored_anew(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(4)
    with run.folder.metrics_file.open("a") as file:
        file.write('{"train/loss": 1')
    mirror = MirrorProcess(folder)
    mirror.start()
    until(lambda: any(folder.wandb.glob("offline-run-*/*.wandb")))
    time.sleep(1.5)
    kept = run.folder.metrics_file.read_bytes().splitlines(keepends=True)[:2]
    run.folder.metrics_file.write_bytes(b"".join(kept))  # the run resumes from an earlier checkpoint
    run.steps = 20
    run.write(5)
    run.end()
    assert mirror.stop(20) == 0
    assert [row["trainer/step"] for row in Held(folder, run).rows] == [1, 2, 21, 22, 23, 24, 25]
    assert_all_there(folder, run)


def test_a_mirror_that_is_killed_leaves_the_writer_alone_and_sync_repairs(folder: SweepFolder) -> None:
    writers = [Steady(FakeRun(folder, seed)) for seed in range(2)]
    mirror = MirrorProcess(folder)
    mirror.start()
    until(lambda: len(list(folder.wandb.glob("offline-run-*/*.wandb"))) == 2)
    with pytest.raises(InputError, match="is being mirrored"):
        sync(folder)
    assert mirror._process is not None
    os.kill(mirror._process.pid, signal.SIGKILL)
    until(lambda: not mirror.alive)
    time.sleep(0.5)
    for writer in writers:
        writer.end()
    assert max(writer.slowest for writer in writers) < 1
    assert mirror.stop(5) == 2
    assert sync(folder).mirrored == 2
    for writer in writers:
        assert_all_there(folder, writer._run)


def test_a_live_mirror_has_everything_when_it_is_stopped(folder: SweepFolder) -> None:
    mirror = MirrorProcess(folder)
    mirror.start()
    writer = Steady(FakeRun(folder))
    until(lambda: any(folder.wandb.glob("offline-run-*/*.wandb")))
    writer.end()
    assert mirror.stop(20) == 0
    assert not mirror.alive
    assert_all_there(folder, writer._run)
    assert sync(folder).already == 1


def test_a_folder_that_cannot_be_written_only_delays_the_mirror(folder: SweepFolder) -> None:
    folder.wandb.write_text("a file where the folder should be")
    mirror = MirrorProcess(folder)
    mirror.start()
    writer = Steady(FakeRun(folder))
    time.sleep(4)
    assert mirror.alive
    writer.end()
    assert mirror.stop(10) == 1
    report = sync(folder)
    assert (report.mirrored, len(report.failed)) == (0, 1)
    folder.wandb.unlink()
    assert sync(folder).mirrored == 1
    assert_all_there(folder, writer._run)


def test_a_server_that_hangs_costs_nothing_and_offline_has_everything(
    folder: SweepFolder, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", listener.url)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    mirror = MirrorProcess(folder)
    mirror.start()
    writer = Steady(FakeRun(folder))
    until(lambda: bool(listener.connections))
    writer.end()
    assert writer.slowest < 1
    begin = time.monotonic()
    assert mirror.stop(2) == 1
    assert time.monotonic() - begin < 4
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert sync(folder).to_dict() == {"mode": "offline", "mirrored": 1, "already": 0, "failed": {}}
    assert_all_there(folder, writer._run)
    assert not [path for path in folder.path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_online_a_run_that_goes_on_is_resumed_without_repeating_a_step(folder: SweepFolder, server: Server) -> None:
    run = FakeRun(folder)
    run.write(5)
    assert sync(folder).to_dict() == {"mode": "online", "mirrored": 1, "already": 0, "failed": {}}
    assert server.rows(run) == list(run.folder.metrics())
    run.write(3)
    run.end()
    assert sync(folder).mirrored == 1
    assert server.rows(run) == list(run.folder.metrics())
    assert sync(folder).already == 1
    shutil.rmtree(folder.wandb)
    assert sync(folder).mirrored == 1
    assert server.rows(run) == list(run.folder.metrics())


def test_answers_that_crash_wandb_fail_the_runs_and_not_the_sync(folder: SweepFolder, server: Server) -> None:
    runs = [FakeRun(folder, seed) for seed in range(2)]
    for run in runs:
        run.write(2)
        run.end()
    server.broken = True
    assert set(sync(folder).failed) == {run.folder.run_id for run in runs}
    server.broken = False
    assert sync(folder).mirrored == 2


def test_an_offline_run_can_be_synced_by_wandb_itself(
    folder: SweepFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = FakeRun(folder)
    run.write(5)
    sync(folder)
    run.write(5)
    run.end()
    sync(folder)
    monkeypatch.delenv("WANDB_MODE")
    [path] = folder.wandb.glob("offline-run-*")
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", str(path)], check=True, cwd=folder.wandb, capture_output=True, timeout=60
    )
    assert server.rows(run) == list(run.folder.metrics())


def test_who_logs_in_later_is_mirrored_online_and_an_unreachable_server_is_asked_once(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [FakeRun(folder, seed) for seed in range(3)]
    for run in runs:
        run.write(2)
        run.end()
    assert sync(folder).mirrored == 3
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setattr("study.sweeping.mirror.INIT_SECONDS", 2.0)
    begin = time.monotonic()
    report = sync(folder)
    assert time.monotonic() - begin < 10
    assert (report.mode, report.mirrored, len(report.failed)) == ("online", 0, 3)
    assert SECRET not in str(report)


def test_who_is_not_logged_in_touches_no_network(
    folder: SweepFolder, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, listener.url)
    run = FakeRun(folder)
    run.write(3)
    run.end()
    assert sync(folder).mode == "offline"
    assert_all_there(folder, run)
    assert listener.connections == []


def test_switched_off_it_writes_nothing(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run = FakeRun(folder)
    run.write(3)
    run.end()
    mirror = MirrorProcess(folder)
    mirror.start()
    assert not mirror.alive
    assert mirror.stop(1) == 0
    assert sync(folder).to_dict() == {"mode": "disabled", "mirrored": 0, "already": 0, "failed": {}}
    assert sorted(path.name for path in folder.path.iterdir()) == ["runs"]


def test_an_unknown_mode_is_refused_with_its_reason(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "sideways")
    with pytest.raises(InputError, match="should be 'online', 'offline'"):
        sync(folder)


def test_bad_names_and_damaged_runs_are_named_and_stop_no_other(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "results" / "..%2F<b>'; $(x)")
    folder.path.mkdir(parents=True)
    good, hostile, damaged = FakeRun(folder, 0), FakeRun(folder, 1, run_id="*"), FakeRun(folder, 2)
    for run in (good, hostile, damaged):
        run.write(2)
        run.end()
    damaged.folder.metrics_file.write_text("not JSON\n")
    before = set((tmp_path / "results").iterdir()), set((folder.path / "runs").rglob("*"))
    report = sync(folder)
    assert report.mirrored == 1
    assert set(report.failed) == {"*", damaged.folder.run_id}
    assert "16 hex digits" in report.failed["*"]
    assert Held(folder, good).runs[0].run_group == folder.name
    assert (set((tmp_path / "results").iterdir()), set((folder.path / "runs").rglob("*"))) == before
    assert {path.name for path in tmp_path.iterdir()} == {"results", "home"}


def test_the_mirror_ends_when_its_parent_dies(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(3)
    code = (
        "import sys, time; from pathlib import Path; from study.records import SweepFolder;"
        "from study.sweeping.mirror import MirrorProcess; mirror = MirrorProcess(SweepFolder(Path(sys.argv[1])));"
        "mirror.start(); print(mirror._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        mirror = Path("/proc") / parent.stdout.readline().decode().strip()
        until(lambda: any(folder.wandb.glob("offline-run-*/*.wandb")))
        parent.kill()
    until(lambda: not mirror.exists() or "Z" in (mirror / "stat").read_text().split()[2])
    assert left_behind(folder) == []
    assert Held(folder, run).exit_codes == [1]
