"""Each file of a results folder, damaged in each way: every command that reads names it and reads the rest."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from study.api import load_ledger
from study.base import errors
from study.cli import main
from study.dashboard.serving import ANSWERS
from study.report.answer import report
from study.store.records import RunRecord
from study.store.score_records import ScoreRecord
from study.store.sweep_folder import SweepFolder
from tests.dashboard.test_dashboard_server import known
from tests.small import config, trained, write_corpus
from tests.sweeps import RATES, sweep_values
from tests.synthetic import SEQUENCES, SWEEP, add_run, depth_or_width, run_config
from tests.synthetic_scores import TASKS, add_scores

Damage = Callable[[Path], None]


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    """One bit near the beginning, where headers are and names of fields."""
    content = bytearray(file.read_bytes())
    content[min(20, len(content) - 1)] ^= 4
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def link_to_nowhere(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def link_to_itself(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def nest(file: Path) -> None:
    """JSON and YAML that no parser follows to its end."""
    file.write_bytes(b"[" * 100_000)


DAMAGES: tuple[Damage, ...] = (truncate, flip, empty, make_folder, link_to_nowhere, link_to_itself, nest)

FILES_OF_RUNS = (
    *("exclusion.json", "config.yaml", "metrics.jsonl", "record.json", "validation_losses.npy", "validation_documents.npy"),
    "scores/*/record.json",
)
"""Files of a run, from its folder on."""

MOST_FILES = 8
"""The files of one kind that are damaged, each in turn."""

FILES_OF_SWEEPS = ("cells.json", "ledger.parquet", "scores.parquet", "answer.md", "fits/*.json", "baselines/*.json")
"""Files of a sweep beside its sweep.yaml, from its folder on."""


@dataclass(frozen=True)
class Place:
    """A folder of results, of a sweep with made-up runs and one with the weights of a run, and room for what commands write."""

    path: Path

    @property
    def made(self) -> SweepFolder:
        return SweepFolder(self.path / "results" / "made")

    @property
    def real(self) -> SweepFolder:
        return SweepFolder(self.path / "results" / "real")

    def files_of_runs(self) -> list[Path]:
        """One file of each kind, each of another run."""
        actual: dict[Path, Path] = {}
        for name in FILES_OF_RUNS:
            others = (run for run in sorted(self.made.runs_folder.iterdir()) if run not in actual)
            run = next(run for run in others if any(run.glob(name)))
            actual[run] = next(run.glob(name))
        return [*actual.values()]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small sweeps with scores, a run that failed and an excluded one, and an answer."""
    place = Place(tmp_path_factory.mktemp("original"))
    shapes, path = ((1, 64), (1, 92), (2, 64)), place.made.path
    made = depth_or_width(path, budgets=(1e6, 2e6), shapes=shapes, rates=(4e-3,), seeds=2)
    sweep = SWEEP | {"shapes": {"grid": {"depth": [1, 2], "width": [64, 92], "heads": [2]}}}
    made.sweep_file.write_text(yaml.safe_dump({name: sweep[name] for name in sweep if name != "tune"}))
    add_run(made, run_config(1, 64, 4e-3, 7), state="FAILED", reason="it fell over")
    add_run(made, run_config(1, 64, 4e-3, 8), excluded="the GPU was broken")
    for run in made.runs():
        run.write_validation_documents(np.arange(SEQUENCES))
    made.cells_file.write_text("[]")
    add_scores(made, {"sst2": TASKS["sst2"]}, seeds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.report.answer.FIGURES", {})
        report(made)
    corpus = write_corpus(place.path / "text.txt")
    trained(place.real.path, config(corpus, recipe={"budget": {"steps": 2}}))
    place.real.sweep_file.write_text(yaml.safe_dump(sweep_values(corpus, tune=RATES)))
    add_scores(place.real, {"sst2": TASKS["sst2"]}, seeds=1)
    (place.path / "texts.txt").write_text("kame\n")
    for split in ("train", "dev", "test"):
        (place.path / f"{split}.csv").write_text("text,label\nkame kame,0\ngila gila,1\n")
    splits = {"train": "train", "dev": "dev", "test": "test"}
    sources = [{"files": "{split}.csv", "splits": splits}]
    task = {"kind": "single", "metrics": ["accuracy"], "sources": sources, "labels": ["no", "yes"]}
    (place.path / "task.yaml").write_text(yaml.safe_dump(task))
    return place.path


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Place:
    """A copy to damage."""
    return Place(Path(shutil.copytree(original, tmp_path / "place", symlinks=True)))


class Study:
    """The command line, in this process; nothing is scored, and figures, which read no files but the ledger, are not drawn."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._caplog, self._patch = capsys, caplog, patch
        patch.setattr("study.report.answer.FIGURES", {})
        patch.setattr("study.data.corpora.docstrings_identity", lambda: "the same")
        patch.setattr("study.running.score_launch.execute_all", lambda *_: None)

    def __call__(self, *arguments: object) -> tuple[int, str]:
        """The exit status, and what was printed and logged; whatever else a command raises, the test fails."""
        self._caplog.clear()
        errors._warn.cache_clear()
        self._patch.setattr(sys, "argv", ["study", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, "".join([*self._capsys.readouterr(), self._caplog.text])


@pytest.fixture
def study(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Study:
    return Study(capsys, caplog, monkeypatch)


Commands = dict[str, tuple[object, ...]]


def of_sweep(place: Place) -> Commands:
    """The commands that read the records of a sweep, by name: those that derive something first, then those that change it."""
    path, into = place.made.path, place.path / "written"
    small = ("--law", "power", "--where", "tokens < 1.5e6")
    return {
        "status": (path, "--json"),
        "report": (path, "--html", place.path / "page.html"),
        "fit": (path, *small, "--bootstrap", "0"),
        "plot": (path, *small, "--into", into),
        "multiverse": (path, path),
        "plan": (place.made.sweep_file, "--results", path.parent),
        "open": (path,),
        "stop": (path,),
        "exclude": (place.made.runs()[-1].path, "--reason", "a test"),
        "retry": (path,),
        "sync": (path,),
        "pack": (path,),
    }


def of_run(place: Place) -> Commands:
    """The commands that read a run with weights, or the sweep that has no other run, by name."""
    (run,), into = place.real.runs_folder.iterdir(), place.path / "written"
    return {
        "params": (run,),
        "compare": (run,),
        "score": (place.real.path, "--tasks", place.path / "task.yaml", "--device", "cpu"),
        "optuna": (place.real.path, "--storage", f"sqlite:///{place.path}/searches.db"),
        "export": (run, "--into", into / "exported"),
        "features": (run, place.path / "texts.txt", "--device", "cpu"),
        "compress": (run, "--to", "bf16", "--into", into / "compressed", "--seconds", "0.001", "--threads", "1"),
    }


def pages(place: Place, run: str) -> Iterator[tuple[str, int, str]]:
    """Every answer of the dashboard about the sweep and one of its runs: its name, status and text."""
    client = known(place.made.path.parent)
    asked = {"sweep": "made", "sweeps": "made", "run": run, "runs": run, "metric": "val/loss", "x": "trainer/tokens"}
    for name in ANSWERS:
        answer = client.get(f"/api/{name}", params=asked | {"target": "loss_nats"})
        yield name, answer.status_code, answer.text


SLOW = ("plot", "sync", "compress")
"""What `make slow` alone runs over every damage."""

NAMED = {
    "status": {"record.json"},
    "report": {"record.json", "validation_losses.npy", "validation_documents.npy", "scores/*/record.json"},
    "plan": {"record.json"},
    "retry": {"record.json", "scores/*/record.json"},
    "pack": {"record.json"},
    "sync": {"record.json"},
}
"""The damaged files of runs that a command names: those that it reads, whatever the damage is."""

EXIT = {"sync": 1, "pack": 2}
"""The status of a command that could not do all of its work; all others read what is left, and exit with 0."""


@contextlib.contextmanager
def damaged(file: Path, damage: Damage) -> Iterator[None]:
    """A file with a damage while the block runs."""
    content = file.read_bytes()
    damage(file)
    try:
        yield
    finally:
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
        file.write_bytes(content)


EVERY_DAMAGE = pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
SOME_DAMAGE = pytest.mark.parametrize(
    "damage",
    [
        flip,
        *(pytest.param(each, marks=pytest.mark.slow) for each in DAMAGES if each is not flip),
    ],
    ids=lambda damage: damage.__name__,
)


@SOME_DAMAGE
@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_damaged_runs_are_named_and_the_others_read(damage: Damage, slow: bool, place: Place, study: Study) -> None:
    """A file of each kind is damaged, each of another run."""
    files = dict(zip(FILES_OF_RUNS, place.files_of_runs(), strict=True))
    for file in files.values():
        damage(file)
    for name, arguments in of_sweep(place).items():
        if (name in SLOW) == slow:
            status, said = study(name, *arguments)
            assert status == EXIT.get(name, 0), (name, said)
            assert {kind for kind in NAMED.get(name, ()) if str(files[kind]) not in said} == set(), (name, said)
    assert len(load_ledger(place.made.path)) >= len(place.made.runs()) - 2, "those without record and exclusion are left out"
    damaged = {file.relative_to(place.made.runs_folder).parts[0] for file in files.values()}
    whole = next(run.run_id for run in place.made.runs() if run.run_id not in damaged)
    for name, status, said in pages(place, whole):
        assert status == (422 if name == "law" else 200), (name, said)
        assert name not in ("overview", "sweep", "points") or str(files["record.json"]) in said, (name, said)


@SOME_DAMAGE
@pytest.mark.parametrize(
    ("pattern", "needing"),
    [
        ("record.json", {"score", "export", "features"}),
        ("weights.safetensors", {"export", "features"}),
        ("scores/*/record.json", {"score"}),
    ],
)
def test_a_damaged_file_of_a_run_is_refused_by_whoever_needs_it(
    pattern: str, needing: set[str], damage: Damage, place: Place, study: Study
) -> None:
    """What configures the run stands in its config.yaml, too; a score that is damaged is not made anew without a word."""
    (run,) = place.real.runs()
    damage(file := next(run.path.glob(pattern)))
    for command, arguments in of_run(place).items():
        if command not in SLOW:
            status, said = study(command, *arguments)
            assert status == 2 or (status == 0 and command not in needing), (command, said)
            assert status == 0 or str(file) in said, (command, said)


@SOME_DAMAGE
@pytest.mark.parametrize(
    "names",
    [pytest.param(FILES_OF_SWEEPS, id="derived"), pytest.param(("sweep.yaml",), id="sweep", marks=pytest.mark.slow)],
)
def test_a_damaged_file_of_a_sweep_is_named(damage: Damage, names: tuple[str, ...], place: Place, study: Study) -> None:
    """Or written anew, or not needed; a sweep file whose name is given need not be named again.

    A run that `retry` leaves unfinished is not packed, whatever else is damaged.
    """
    files = [file for name in names for file in sorted(place.made.path.glob(name))]
    for file in files:
        damage(file)
    for name, arguments in of_sweep(place).items():
        if name not in SLOW:
            status, said = study(name, *arguments)
            named = any(file.name in said or file in arguments for file in files) or (
                name == "pack" and "unfinished run" in said
            )
            assert status == 0 or (status == 2 and named), (name, said)
    for name, status, said in pages(place, place.made.runs()[0].run_id):
        known_problem = name == "law" or any(file.name in said for file in files)
        assert status == 200 or (status == 422 and known_problem), (name, said)


@pytest.mark.slow
@EVERY_DAMAGE
@pytest.mark.parametrize(
    "pattern",
    [
        *(f"made/runs/*/{name}" for name in FILES_OF_RUNS),
        *(f"made/{name}" for name in FILES_OF_SWEEPS),
        "real/runs/*/[!.]*.*",
        "real/runs/*/scores/*/*.json",
    ],
)
def test_each_damaged_file_is_named_by_whoever_cannot_do_without(
    damage: Damage, pattern: str, original: Path, tmp_path: Path, study: Study
) -> None:
    for number, file in enumerate(sorted((original / "results").glob(pattern))[:MOST_FILES]):
        place = Place(Path(shutil.copytree(original, tmp_path / str(number), symlinks=True)))
        damage(damaged := place.path / file.relative_to(original))
        for name, arguments in [*of_sweep(place).items(), *of_run(place).items()]:
            if name != "sync":
                status, said = study(name, *arguments)
                named = damaged.name in said or damaged in arguments or (name == "pack" and "unfinished run" in said)
                assert status == 0 or (status == 2 and named), (damaged, name, said)
        for name, status, said in pages(place, place.made.runs()[0].run_id):
            assert status == 200 or (status == 422 and (name == "law" or damaged.name in said)), (damaged, name, said)


def test_a_record_without_a_field_is_read_or_named(place: Place, study: Study) -> None:
    """What a report needs of it is asked of the records; what it does with the others does not depend on the field.

    Each run loses another field at a time.
    """
    files = [run.record_file for run in place.made.runs()]
    fields = [name for name in json.loads(files[0].read_text()) if not RunRecord.model_fields[name].is_required()]
    required = [name for name, field in RunRecord.model_fields.items() if field.is_required()]
    for given, commands in ((fields, ("status", "report")), (required, ("status",))):
        for begin in range(0, len(given), len(files)):
            lost = dict(zip(files, given[begin : begin + len(files)], strict=False))
            with contextlib.ExitStack() as stack:
                for file, field in lost.items():
                    stack.enter_context(damaged(file, partial(take_away, field)))
                answers = [study(name, *of_sweep(place)[name]) for name in commands]
            assert [status for status, _ in answers] == [0] * len(answers), lost
            listed = {run["run_id"] for run in json.JSONDecoder().raw_decode(answers[0][1])[0]["runs"]}
            unlisted = [file for file in lost if file.parent.name not in listed]
            assert all(str(file) in answers[0][1] for file in unlisted), lost
            assert given is fields or unlisted == [*lost], lost


@pytest.mark.slow
def test_a_score_without_a_field_is_read_or_named(place: Place, study: Study) -> None:
    """Each score loses another field at a time."""
    files = sorted(place.made.runs_folder.glob("*/scores/*/record.json"))
    fields = [*json.loads(files[0].read_text())]
    for begin in range(0, len(fields), len(files)):
        lost = dict(zip(files, fields[begin : begin + len(files)], strict=False))
        with contextlib.ExitStack() as stack:
            for file, field in lost.items():
                stack.enter_context(damaged(file, partial(take_away, field)))
            status, said = study("report", *of_sweep(place)["report"])
        unread = [file for file, field in lost.items() if ScoreRecord.model_fields[field].is_required()]
        assert status == 0, (lost, said)
        assert [file for file in unread if str(file) not in said] == [], (lost, said)


def take_away(field: str, file: Path) -> None:
    values = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in values.items() if name != field}))


@pytest.mark.parametrize(
    "target",
    [
        "nowhere",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("../made", marks=pytest.mark.slow),
        pytest.param("../../elsewhere/runs/x", marks=pytest.mark.slow),
        pytest.param("/etc", marks=pytest.mark.slow),
    ],
)
def test_a_link_to_no_home_is_named_and_its_run_left_out(target: str, place: Place, study: Study) -> None:
    made = place.made
    link = made.homes / made.runs()[0].run_id
    link.parent.mkdir(exist_ok=True)
    if target:
        os.symlink(target, link)
    else:
        link.mkdir()
    for name in ("status", "report", "plan"):
        assert study(name, *of_sweep(place)[name])[0] == 0
    listed = study("status", made.path, "--json")[1]
    assert (str(link) in listed) == bool(target), "a folder is no link"


def test_every_bit_of_the_header_of_losses_is_known(place: Place) -> None:
    """NumPy reads Python from a header: a flipped bit made it raise what no reader expected."""
    run = place.made.runs()[0]
    content = run.validation_losses_file.read_bytes()
    for bit in range(8 * 128):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        run.validation_losses_file.write_bytes(changed)
        with pytest.raises(errors.InputError, match="is damaged"):
            run.validation_losses()
