"""Whole sweeps through the `study` command: to the end, stopped, killed, failing in part, and redrawn."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import io
import json
import math
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest
from filelock import FileLock

from study.base.errors import InputError
from study.base.quantities import signed
from study.base.text import escape
from study.cli import main
from study.config.sweep_files import read_sweep
from study.dashboard.library import Library, OnOtherText
from study.dashboard.pages import overview, texts
from study.data.cache import cache_root
from study.data.prepared import prepare, stream_fingerprint
from study.data.tokenizing import SPECIAL_PIECES
from study.report.figures import FIGURES
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import checkpoints_in
from tests.launching import STUDY, Place, has_rows, numbers, until_in, written
from tests.scoring.test_scoring import write_tasks
from tests.sweeps import write_sweep, write_topics
from tests.synthetic import SWEEP, add_run, run_config, sweep_folder
from tests.waiting import until

LAUNCH = ("launch", "toy.yaml", "--no-wandb", "--device", "cpu")
DERIVED = ("ledger.parquet", "ledger.csv", "fits", "figures", "answer.md")
TUNED: dict[str, Any] = {
    "tune": {"recipe.learning_rate": {"low": 0.005, "high": 0.01, "trials": 2}},
    "seeds": 2,
    "budgets": {"steps": [250]},
    "base": {"architecture": {"norm": "pre"}},
}
"""Two cells of two rates, one rate more beyond the better, and the best at a second seed: eight runs of a second."""

DRAWN = ("learning_rate", "loss_curves")
"""Figures enough to see that an answer has them."""


def draw_few(patch: pytest.MonkeyPatch) -> None:
    """Draw no more than DRAWN: each figure takes long."""
    patch.setattr("study.report.answer.FIGURES", {name: FIGURES[name] for name in DRAWN})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


def place(path: Path, corpus: Path, **changes: Any) -> Place:
    made = Place(path)
    write_sweep(path / "toy.yaml", corpus, **changes)
    return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> tuple[Place, str]:
    """An undisturbed sweep, and what its launch printed."""
    made = place(tmp_path_factory.mktemp("finished"), corpus, **TUNED)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.chdir(made.path)
        patch.setattr(sys, "argv", ["study", *LAUNCH])
        draw_few(patch)
        main()
    return made, printed.getvalue()


def launched(made: Place, study: Any) -> str:
    """What a launch prints in this process, whose forkserver has loaded torch for all tests."""
    status, printed, errors = study("launch", made.path / "toy.yaml", "--results", made.path / "results", *LAUNCH[2:])
    assert status == 0, printed + errors
    return str(printed)


def copied(finished: tuple[Place, str], to: Path) -> Place:
    shutil.copytree(finished[0].path, to / "copy")
    return Place(to / "copy")


def times(folder: SweepFolder) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (folder.path / "runs").rglob("*") if path.is_file()}


def test_a_sweep_runs_to_its_answer(finished: tuple[Place, str]) -> None:
    made, printed = finished
    folder = made.folder
    records = folder.records()
    assert {record.state for record in records} == {"COMPLETED"}
    assert len(records) == 8
    ledger = pd.read_parquet(folder.ledger_file)
    columns = ["run_id", "loss_nats", "tokens"]
    as_text = pd.read_csv(folder.path / "ledger.csv", dtype={"run_id": str})
    pd.testing.assert_frame_equal(ledger[columns], as_text[columns])
    assert set(ledger["run_id"]) == {run.run_id for run in folder.runs()}
    assert ledger["exclusion"].isna().all()
    assert (ledger["unknown_share"] == 0).all()
    assert ledger["validation_overlap_share"].between(0, 1).all()
    assert ledger["validation_documents"].between(2, 32).all()
    assert json.loads((folder.fits / "learning_rate.json").read_text())["cells"]
    drawn = {path.stem for path in folder.figures.glob("*.svg")}
    assert not [*folder.figures.glob("*.png")]
    assert drawn == {*DRAWN}
    answer = folder.answer_file.read_text()
    assert "Does a second layer help?" in answer
    assert all(f"figures/{name}.svg" in answer for name in drawn)
    assert printed.count("COMPLETED L") == len(records)
    assert f"**Runs:** {len(records)} of {len(records)} runs ended; {len(records)} read no word order, " in answer
    headline = printed.partition("\n\nThe answer: ")[0].splitlines()[-1]
    assert f"**{escape(headline)}**" in answer, "the terminal shows the sentence that opens the answer"
    assert "The answer: results/toy/answer.md" in printed
    assert not folder.wandb.exists()
    assert not list(folder.path.rglob("*.ckpt"))


def test_a_second_launch_trains_nothing_and_redraws_the_same(
    finished: tuple[Place, str], tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few(monkeypatch)
    again = copied(finished, tmp_path)
    before, drawn = times(again.folder), written(again.folder.path, DERIVED)
    shutil.rmtree(again.folder.figures)
    results = again.path / "results"
    status, out, err = study("launch", again.path / "toy.yaml", "--results", results, *LAUNCH[2:], "--json")
    assert status == 0, err
    assert times(again.folder) == before
    assert written(again.folder.path, DERIVED) == drawn
    cost, left, passes, overlap, there = err.splitlines()[:5]
    assert cost.startswith("6 runs, 384,000 tokens, ")
    assert left == "Nothing is left to do: all runs have ended."
    assert passes == "the text has 21.6k tokens to train on; the longest run reads them 3.0 times"
    assert overlap == "0.0% of the validation tokens stand in 13-token windows that occur in the training text"
    assert there == "8 runs have ended already"
    assert "COMPLETED" not in err
    answer = json.loads(out)
    assert answer["runs"] == {"started": 8, "ended": 8, "excluded": 0}
    assert json.loads(study("report", again.folder.path, "--json")[1]) == answer
    paid = json.loads(study("plan", again.path / "toy.yaml", "--results", results, "--json", "--device", "cpu")[1])
    assert paid["runs"] == 6
    assert "by 8 earlier runs of this sweep" in paid["basis"]


def test_a_report_says_that_the_text_has_changed_since_its_runs(
    finished: tuple[Place, str], corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.report.answer.FIGURES", {})
    made, text = copied(finished, tmp_path), corpus.read_text()
    note = f"of earlier launches read another text than {corpus} is now; the answer is about the text that they read.\n"
    assert note not in study("report", made.folder.path)[1]
    try:
        corpus.write_text(f"{text}\n\nAnother document.\n")
        read, record = Counter[str](), RunFolder.record
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "record", lambda run: read.update([run.run_id]) or record(run))
            assert note in study("report", made.folder.path)[1]
        assert (len(read), median(read.values())) == (8, 1), "nor are all records read twice"
        assert note in study("report", made.folder.path, "--json")[2]
        corpus.unlink()
        assert note not in study("report", made.folder.path)[1], "where the text is not here nobody knows"
    finally:
        corpus.write_text(text)


@pytest.mark.slow
def test_the_dashboard_says_that_the_text_has_changed_since_the_runs_and_reads_no_record_for_it(
    finished: tuple[Place, str], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[OnOtherText] = []
    monkeypatch.setattr("study.dashboard.serving.serve", lambda _folder, _port, on_other_text: served.append(on_other_text))
    made, text = copied(finished, tmp_path), corpus.read_text()
    monkeypatch.setattr(sys, "argv", ["study", "dashboard", str(made.folder.path.parent), "--no-open"])
    main()
    library = Library(made.folder.path.parent, *served)
    overview(library, {})
    monkeypatch.setattr(RunFolder, "record", lambda _: pytest.fail("a record is read again"))
    assert texts(library, {}) == {}
    try:
        corpus.write_text(f"{text}\n\nAnother document.\n")
        note = f"8 runs of earlier launches read another text than {corpus} is now."
        assert texts(library, {}) == texts(library, {"sweep": "toy"}) == {"toy": note}
        corpus.unlink()
        assert texts(library, {}) == {}, "where the text is not here nobody knows"
    finally:
        corpus.write_text(text)
    monkeypatch.undo()
    assert texts(Library(made.folder.path.parent), {}) == {}, "without the packages that read text"


def test_what_is_derived_is_rebuilt_with_the_same_bytes_without_torch(finished: tuple[Place, str], tmp_path: Path) -> None:
    bare = copied(finished, tmp_path)
    bare.study("report", bare.folder.path)
    drawn = written(bare.folder.path, DERIVED)
    assert {name.partition("/")[0] for name in drawn} == {*DERIVED}
    for name in DERIVED:
        path = bare.folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    code = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "pytorch_lightning", "wandb", "optuna", "tokenizers", "datasets"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from study.cli import main
sys.argv[1:] = ["report", "."]
main()
"""
    folder = bare.folder.path
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=bare.environment, check=True, capture_output=True, timeout=100)
    assert written(bare.folder.path, DERIVED) == drawn


def assert_stopped(made: Place, launcher: subprocess.Popen[str], study: Any) -> list[RunFolder]:
    """A launcher that was told to stop says how to go on, and every run that had begun has saved; the runs that wait."""
    output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, errors
    assert errors.strip().endswith("stopped; the same command continues from here")
    assert "Traceback" not in output + errors
    assert made.processes() == []
    waiting = [run for run in made.folder.runs() if run.record() is None]
    assert waiting
    assert all(checkpoints_in(run.checkpoints) for run in waiting if has_rows(run))
    state = json.loads(study("status", made.folder.path, "--json")[1])
    assert (state["coordinator"], state["counts"]["stopped"]) == (None, len(waiting))
    return waiting


@pytest.mark.slow
def test_after_ctrl_c_a_sweep_goes_on_to_the_same_bits(
    finished: tuple[Place, str], corpus: Path, tmp_path: Path, study: Any
) -> None:
    made = place(tmp_path, corpus, **TUNED)
    launcher = made.start(*LAUNCH)
    until(made.is_training)
    os.killpg(launcher.pid, signal.SIGINT)
    waiting = assert_stopped(made, launcher, study)
    assert all(len(checkpoints_in(run.checkpoints)) == 1 for run in waiting if has_rows(run))
    launched(made, study)
    assert numbers(made.folder) == numbers(finished[0].folder)
    assert study("status", made.folder.path)[1].startswith("toy: 8 runs started, 8 completed, not running")


@pytest.mark.slow  # a launch is stopped while it prepares its text, and by Ctrl-C after its first rows, among the fast
def test_ctrl_c_while_the_first_run_is_starting_is_quiet(corpus: Path, tmp_path: Path) -> None:
    made = place(tmp_path, corpus)
    launcher = made.start(*LAUNCH)
    until(lambda: bool(made.folder.runs()))
    os.killpg(launcher.pid, signal.SIGINT)
    output, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert "Traceback" not in output + errors
    assert made.processes() == []


@pytest.mark.slow
def test_a_running_sweep_can_be_looked_at_and_not_launched_again_and_sigterm_stops_it(
    corpus: Path, tmp_path: Path, study: Any
) -> None:
    made = place(tmp_path, corpus, budgets={"steps": [100_000]})
    launcher = made.start(*LAUNCH)
    until(lambda: len([run for run in made.folder.runs() if has_rows(run)]) == 2)
    state = json.loads(study("status", made.folder.path, "--json")[1])
    assert (state["coordinator"]["pid"], state["counts"]) == (launcher.pid, {"running": 2})
    assert all(0 < run["tokens"] < run["target_tokens"] for run in state["runs"])
    assert f"run by process {launcher.pid}" in " ".join(study("status", made.folder.path)[1].split())
    status, _, refused = study("launch", made.path / "toy.yaml", "--results", made.path / "results", *LAUNCH[2:])
    assert status == 2
    assert f"is being run by process {launcher.pid} on" in refused
    assert study("report", made.folder.path)[0] == 0
    assert "0 of 2 runs ended" in made.folder.answer_file.read_text()
    launcher.terminate()
    assert_stopped(made, launcher, study)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "SIGTERM"])
def test_a_launch_is_seen_and_stopped_while_it_prepares_its_text(how: str, corpus: Path, tmp_path: Path, study: Any) -> None:
    """Nothing is there of it yet but its lock; a second launch need not wait for the text to be told who has the first."""
    made = place(tmp_path, corpus, data={"tokenizer": {"vocabulary": 99}})
    spec, _ = read_sweep(made.path / "toy.yaml")
    tokens = cache_root() / "tokens" / stream_fingerprint(spec.data)
    tokens.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(tokens.with_name(f"{tokens.name}.lock")):  # as if somebody else were making the same tokens
        launcher = made.start(*LAUNCH)
        until_in(launcher, made.folder.launching.holder_file.exists, seconds=60)
        state = json.loads(study("status", made.folder.path, "--json")[1])
        assert (state["coordinator"]["pid"], state["runs"]) == (launcher.pid, [])
        status, _, refused = study("launch", made.path / "toy.yaml", "--results", made.path / "results", *LAUNCH[2:])
        assert (status, f"is being run by process {launcher.pid} on" in refused) == (2, True)
        if how == "stop":
            assert study("stop", made.folder.path)[1] == "toy has stopped; the same command resumes it\n"
        else:
            launcher.terminate()
        _, errors = launcher.communicate(timeout=60)
    assert (launcher.returncode, errors.strip().splitlines()[-1]) == (130, "stopped; the same command continues from here")
    assert not tokens.exists()
    assert study("stop", made.folder.path)[0] == 2, "nothing was launched there, and nobody launches it"


def test_a_launch_reports_every_problem_at_once(corpus: Path, tmp_path: Path, study: Any) -> None:
    asked = {"tasks": ["colla"]}
    sweep = write_sweep(tmp_path / "toy.yaml", corpus, budgets={"steps": [10]}, data={"corpus": "away.txt"}, downstream=asked)
    status, _, err = study("launch", sweep, "--results", tmp_path / "results", *LAUNCH[2:])
    assert status == 2
    assert [line.partition(": ")[2].partition(":")[0] for line in err.splitlines()] == ["data.corpus", "downstream.tasks[0]"]
    assert err == study("plan", sweep, "--results", tmp_path / "results", *LAUNCH[3:])[2]


@pytest.mark.parametrize("dedupe", [False, True])
def test_a_plan_says_how_much_validation_text_trains_once_the_text_is_prepared(
    dedupe: bool, tmp_path: Path, study: Any
) -> None:
    text = write_topics(tmp_path / "text.txt")
    documents = text.read_text().split("\n\n")
    text.write_text("\n\n".join([*documents, *(f"{document} again" for document in documents)]))
    sweep = write_sweep(tmp_path / "toy.yaml", text, data={"dedupe": dedupe, "validation_sequences": 16})
    planned = ("plan", sweep, "--results", tmp_path / "results", *LAUNCH[3:])
    status, out, _ = study(*planned)
    assert (status, "The launch measures how much of the validation text" in out) == (0, True)
    spec, _ = read_sweep(sweep, ())
    share = prepare(spec.data).validation_overlap_share
    assert share is not None
    assert (share < 0.05) is dedupe
    assert json.loads(study(*planned, "--json")[1])["validation_overlap_share"] == share
    words = " ".join(study(*planned)[1].split())
    assert f"{share:.1%} of the validation tokens stand in 13-token windows that occur in the training text" in words
    assert ("data.dedupe: true leaves out what repeats." in words) is not dedupe


def test_a_plan_and_a_launch_say_what_of_a_folder_is_not_read(
    tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few(monkeypatch)
    documents = write_topics(tmp_path / "text.txt").read_text().split("\n\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    rows = [*documents, documents[0], None, None]
    (folder / "text.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps({"text": row}) + "\n" for row in rows).encode()))
    (folder / "notes.pdf").write_text("not read")
    one = {"grid": {"depth": [1], "width": [16], "heads": [2], "ffn": [32]}}
    data = {"corpus": str(folder), "dedupe": True, "validation_sequences": 16}
    sweep = write_sweep(tmp_path / "toy.yaml", folder, shapes=one, budgets={"steps": [10]}, data=data)
    passed_over = f"1 file of {folder} is skipped: {folder / 'notes.pdf'}"
    planned = study("plan", sweep, "--results", tmp_path / "results", *LAUNCH[3:], "--json")[1]
    assert json.loads(planned)["passed_over"] == passed_over
    out = study("launch", sweep, "--results", tmp_path / "results", *LAUNCH[2:])[1]
    words = "".join(out.split())
    for note in (passed_over, "2 rows without text and 1 repeated document are skipped", "deduplicated: 0 repeated"):
        assert "".join(note.split()) in words


def test_text_that_its_vocabulary_cannot_read_is_planned_with_a_warning_and_refused_before_anything_is_trained(
    corpus: Path, tmp_path: Path, study: Any
) -> None:
    pieces = [*SPECIAL_PIECES, *(f"unused{number}" for number in range(95))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = {"kind": "file", "path": str(tmp_path / "vocab.txt"), "vocabulary": 100}
    sweep = write_sweep(tmp_path / "toy.yaml", corpus, data={"tokenizer": tokenizer})
    status, out, _ = study("plan", sweep, "--results", tmp_path / "results", *LAUNCH[3:])
    assert (status, "100% of the text's characters are [UNK]" in out) == (0, True)
    status, _, refused = study("launch", sweep, "--results", tmp_path / "results", *LAUNCH[2:])
    assert (status, "data.tokenizer: " in refused) == (2, True)
    assert not (tmp_path / "results" / "toy" / "runs").exists()


def test_a_launch_says_what_of_its_tasks_no_run_will_read_before_it_trains_one(
    corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(json.dumps({"text": f"{label} λογος", "label": label}) + "\n" for label in "ab")
    splits = ("train", "dev", "test")
    for split in splits:
        (tmp_path / f"{split}.jsonl").write_text(rows)
    source = {"files": "{split}", "splits": {split: split for split in splits}}
    (tmp_path / "greek.yaml").write_text(json.dumps({"kind": "single", "metrics": ["accuracy"], "sources": [source]}))
    sweep = write_sweep(tmp_path / "toy.yaml", corpus, downstream={"tasks": [str(tmp_path / "greek.yaml")]})

    def train(*_: object) -> None:
        raise InputError.at("runs", "would be trained now")

    monkeypatch.setattr("study.running.launch.execute_all", train)
    status, printed, errors = study("launch", sweep, "--results", tmp_path / "results", *LAUNCH[2:])
    assert (status, errors.splitlines()[-1]) == (2, "error: runs: would be trained now")
    assert "greek: 83% of the characters of train are [UNK] or dropped by the tokeniser" in " ".join(printed.split())


@pytest.mark.slow
def test_a_launch_that_is_told_to_stop_before_it_scores_does_not_score(
    finished: tuple[Place, str], corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lock is held from the first run to the last score: an order in between is obeyed, and a second launch refused."""
    made = copied(finished, tmp_path)
    write_tasks(made.path / "tasks", corpus.read_text().split("\n\n"))
    asked = {"tasks": ["tasks/first.yaml"], "seeds": 1, "learning_rates": [1e-3], "epochs": [1], "knobs": {"max_length": 8}}
    write_sweep(made.path / "toy.yaml", corpus, **TUNED, downstream=asked)
    launcher = made.start(*LAUNCH)
    until_in(launcher, made.folder.launching.holder_file.exists, seconds=60)
    assert study("stop", made.folder.path)[1] == "toy has stopped; the same command resumes it\n"
    output, errors = launcher.communicate(timeout=60)
    assert (launcher.returncode, "Traceback" in output + errors) == (130, False)
    assert not [*made.folder.path.rglob("scores/*/record.json")]
    assert not made.folder.launching.stop_file.exists()
    monkeypatch.chdir(made.path)
    out = launched(made, study)
    ended = "all runs have ended; writing an answer without scores, then scoring on tasks/first.yaml\n"
    assert [part.count("COMPLETED first") > 0 for part in out.split(ended)] == [False, True]
    assert "longer than what an encoder reads, and cut" in made.folder.answer_file.read_text()
    assert len([*made.folder.path.rglob("scores/*/record.json")]) >= 4
    assert set(pd.read_parquet(made.folder.scores_file)["task"]) == {"first"}


@pytest.mark.slow
def test_a_launch_whose_words_nobody_takes_writes_its_answer_all_the_same(corpus: Path, tmp_path: Path) -> None:
    """Neither its own words nor those of what it calls, on a disk that is full, keep it from training and scoring."""
    write_tasks(tmp_path / "tasks", corpus.read_text().split("\n\n"))
    asked = {"tasks": ["tasks/order.yaml"], "seeds": 1, "knobs": {"max_length": 8}}
    base = {"architecture": {"norm": "pre"}, "recipe": {"learning_rate": 0.01}}
    made = place(tmp_path, corpus, shapes={"grid": {"depth": [1]}}, base=base, budgets={"steps": [250]}, downstream=asked)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([STUDY, *LAUNCH], cwd=made.path, env=made.environment, stdout=full, stderr=full, timeout=150)
    assert done.returncode == 1, "what it was to say in the end is lost, and whoever reads that has to know"
    assert [record.state for record in made.folder.records()] == ["COMPLETED"]
    assert "order" in made.folder.answer_file.read_text()
    with open("/dev/full", "wb") as full:
        lost = subprocess.run(
            [STUDY, "params", "bert-tiny"], env=made.environment, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert (lost.returncode, lost.stderr) == (1, b"error: standard output: No space left on device\n")


def hung_up(made: Place, under_nohup: bool) -> subprocess.Popen[bytes]:
    """A launch whose terminal hangs up once a run trains."""
    terminal, theirs = pty.openpty()

    def take_the_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        if under_nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    launcher = subprocess.Popen(
        [STUDY, *LAUNCH],
        cwd=made.path,
        env=made.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_the_terminal,
    )
    os.close(theirs)
    until(made.is_training)
    os.close(terminal)
    return launcher


@pytest.mark.slow  # a disk that is full, as above, takes words away likewise
def test_a_launch_whose_terminal_is_gone_writes_its_answer(corpus: Path, tmp_path: Path) -> None:
    """As one that nohup started on a connection that then broke."""
    made = place(tmp_path, corpus, budgets={"steps": [600]})
    assert hung_up(made, under_nohup=True).wait(timeout=150) == 1
    assert {record.state for record in made.folder.records()} == {"COMPLETED"}
    assert made.folder.answer_file.exists()


@pytest.mark.slow  # SIGTERM stops it likewise
def test_a_launch_whose_terminal_hangs_up_saves_its_runs(corpus: Path, tmp_path: Path, study: Any) -> None:
    """As when a connection breaks that a launch was started on without nohup."""
    made = place(tmp_path, corpus, budgets={"steps": [100_000]})
    assert hung_up(made, under_nohup=False).wait(timeout=100) in (1, 130), "1 where it had words that nobody can read"
    until(lambda: made.processes() == [])
    begun = [run for run in made.folder.runs() if has_rows(run)]
    assert begun
    assert all(checkpoints_in(run.checkpoints) for run in begun)
    state = json.loads(study("status", made.folder.path, "--json")[1])
    assert (state["coordinator"], state["counts"]["stopped"]) == (None, len(made.folder.runs()))


@pytest.mark.parametrize("call", ["link", "symlink"])
def test_results_on_a_file_system_without_links_are_refused_before_anything_is_trained(
    call: str, corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, call, refuse)
    sweep = write_sweep(tmp_path / "toy.yaml", corpus)
    for command in (("plan", sweep, *LAUNCH[3:]), ("launch", sweep, *LAUNCH[2:])):
        status, _, refused = study(*command, "--results", tmp_path / "results")
        assert status == 2
        assert "toy: is on a file system without" in refused
        assert refused.endswith(", which results need; give another folder with --results\n")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("closed", [".homes", "toy/runs"])
def test_a_part_of_the_results_that_is_another_users_is_reported_before_anything_is_trained(
    closed: str, corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, scratch = tmp_path / "results" / closed, tempfile.TemporaryDirectory
    theirs.mkdir(parents=True)

    def refuse(dir: Path, **options: Any) -> Any:  # noqa: A002
        if Path(dir) == theirs:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(dir))
        return scratch(dir=dir, **options)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    sweep = write_sweep(tmp_path / "toy.yaml", corpus)
    status, _, refused = study("launch", sweep, *LAUNCH[2:], "--results", tmp_path / "results")
    assert (status, refused) == (2, f"error: {theirs}: cannot be written; give another folder with --results\n")


@pytest.mark.slow
def test_runs_stop_when_their_coordinator_is_killed_and_a_relaunch_resumes_them(
    finished: tuple[Place, str], corpus: Path, tmp_path: Path
) -> None:
    made = place(tmp_path, corpus, **TUNED)
    launcher = made.start(*LAUNCH)
    until(made.is_training)
    launcher.kill()
    launcher.communicate()
    until(lambda: made.processes() == [], seconds=15)
    saved = [run for run in made.folder.runs() if checkpoints_in(run.checkpoints)]
    assert saved
    made.study(*LAUNCH)
    assert numbers(made.folder) == numbers(finished[0].folder)
    assert all((record := run.record()) is not None and record.attempts == 2 for run in saved)


@pytest.mark.slow
def test_a_run_that_diverges_leaves_its_row_and_the_rest_goes_on(
    corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few(monkeypatch)
    made = place(
        tmp_path,
        corpus,
        tune={"recipe.learning_rate": {"low": 0.01, "high": 1e12, "trials": 2}},
        base={"architecture": {"norm": "pre"}, "recipe": {"gradient_clip_norm": 1e30, "warmup_fraction": 0.0}},
        budgets={"steps": [250]},
        seeds=2,
    )
    printed = launched(made, study)
    ledger = pd.read_parquet(made.folder.ledger_file)
    diverged = ledger[ledger["recipe.learning_rate"] == 1e12]
    assert list(diverged["state"]) == ["DIVERGED", "DIVERGED"]
    assert diverged["exclusion"].str.startswith("DIVERGED: ").all()
    assert diverged["loss_nats"].isna().all()
    repeated = ledger[ledger["seed"] == 1]
    assert sorted(repeated["architecture.depth"]) == [1, 2]
    assert set(repeated["state"]) == {"COMPLETED"}
    assert printed.count("DIVERGED L") == 2
    assert "DIVERGED" in study("status", made.folder.path)[1]
    assert made.folder.answer_file.read_text().count("| DIVERGED: ") == 2


def test_what_people_wrote_is_shown_and_does_nothing(
    corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_few(monkeypatch)
    question = "Is <script>alert(1)</script> *better*?\n\n# No | `rm` [x](javascript:1) [/red] \x1b[31m"
    people = {"question": question, "expect": "![i](http://x/y)"}
    made = place(tmp_path, corpus, **people)
    reason = "\x1b[31m [/red] *disk* full"
    add_run(sweep_folder(made.folder.path, SWEEP | people), run_config(1, 128), state="FAILED", reason=reason)
    for command in (("plan", made.path / "toy.yaml"), ("report", made.folder.path), ("status", made.folder.path)):
        status, shown, _ = study(*command)
        assert (status, "\x1b" in shown) == (0, False)
    answer = made.folder.answer_file.read_text()
    line = next(line for line in answer.splitlines() if "Question." in line)
    assert line == (
        r"> **Question.** Is \<script\>alert(1)\</script\> \*better\*? \# No \| \`rm\` \[x\](javascript:1) \[/red\] \[31m"
    )
    assert r"\!\[i\](http://x/y)" in answer
    assert r"FAILED: \[31m \[/red\] \*disk\* full" in answer


@pytest.mark.slow
def test_tokenisers_are_compared_in_bits_per_byte_of_the_same_words(tmp_path: Path, corpus: Path, study: Any) -> None:
    changes: dict[str, Any] = {
        "question": "What does the vocabulary buy?",
        "base": TUNED["base"],
        "shapes": {"grid": {"depth": [1]}},
        "vary": {"data.tokenizer.vocabulary": [90, 100]},
        "budgets": {"steps": [60]},
        "seeds": 2,
    }
    made = place(tmp_path, corpus, **changes)
    launched(made, study)
    assert study("report", made.folder.path, "--include-unbracketed")[0] == 0
    ledger = pd.read_parquet(made.folder.ledger_file)
    assert len(ledger) == 4
    assert ledger["masked_words"].nunique() == 1
    assert ledger["data_fingerprint"].nunique() == 2
    assert (ledger["architecture.vocabulary"] == ledger["data.tokenizer.vocabulary"]).all()
    assert ledger["parameters"].nunique() == 2
    pairs = json.loads((made.folder.fits / "paired_differences.json").read_text())["pairs"]
    assert [pair["weighs"] for pair in pairs] == ["data.tokenizer.vocabulary"]
    first = pairs[0]
    means = ledger.groupby("cell")["bits_per_masked_byte"].mean() * math.log(2)
    expected = means[first["first_cell"]] - means[first["second_cell"]]
    assert first["difference"]["estimate_nats"] == pytest.approx(expected, abs=1e-6)
    answer = made.folder.answer_file.read_text()
    assert "per byte of fixed masked words" in answer
    assert "bits per byte |" in answer
    difference = f"{signed(expected / math.log(2))} bits per byte (95% interval"
    assert difference in answer
