"""Each file of a results folder, damaged in each way: every command that reads names it and reads the rest."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from study.base import errors
from study.cli import main
from study.report.answer import report
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder
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


DAMAGES: tuple[Damage, ...] = (truncate, flip, empty, make_folder, link_to_nowhere)

FILES_OF_RUNS = (
    *("config.yaml", "metrics.jsonl", "record.json", "validation_losses.npy", "validation_documents.npy"),
    "scores/*/record.json",
)
"""Files of a run, from its folder on."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A small sweep with scores, a run that failed and an excluded one, and its answer."""
    path = tmp_path_factory.mktemp("made") / "results" / "made"
    folder = depth_or_width(path, budgets=(1e6, 2e6), shapes=((1, 64), (1, 92), (2, 64)), rates=(4e-3,), seeds=1)
    sweep = SWEEP | {"shapes": {"grid": {"depth": [1, 2], "width": [64, 92], "heads": [2]}}}
    folder.sweep_file.write_text(yaml.safe_dump({name: sweep[name] for name in sweep if name != "tune"}))
    add_run(folder, run_config(1, 64, 4e-3, 7), state="FAILED", reason="it fell over")
    add_run(folder, run_config(1, 64, 4e-3, 8), excluded="the GPU was broken")
    for run in folder.runs():
        run.write_validation_documents(np.arange(SEQUENCES))
    folder.cells_file.write_text("[]")
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.report.answer.FIGURES", {})
        report(folder)
    return folder


class Study:
    """The command line, in this process; figures, which take most of the time and read no files, are not drawn."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._caplog, self._patch = capsys, caplog, patch
        patch.setattr("study.report.answer.FIGURES", {})
        patch.setattr("study.data.corpora.docstrings_identity", lambda: "the same")

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


def reading(folder: SweepFolder) -> tuple[tuple[object, ...], ...]:
    """The commands that read the folder of a sweep; `report` writes the ledger that `fit` reads."""
    return (
        ("status", folder.path, "--json"),
        ("report", folder.path),
        ("fit", folder.path, "--law", "power", "--where", "tokens < 1.5e6", "--bootstrap", "0"),
        ("plan", folder.sweep_file, "--results", folder.path.parent),
    )


def said(folder: SweepFolder, study: Study) -> list[tuple[int, str, bytes]]:
    """What each command says, with the answer that stands there afterwards."""
    return [(*study(*command), folder.answer_file.read_bytes()) for command in reading(folder)]


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


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_of_a_run_is_named_and_the_others_are_read(damage: Damage, made: SweepFolder, study: Study) -> None:
    """Whoever does not need the file says what it says of the whole folder."""
    whole, run = said(made, study), made.runs()[0]
    assert [status for status, *_ in whole] == [0, 0, 0, 0], whole
    for file in (file for pattern in FILES_OF_RUNS for file in sorted(run.path.glob(pattern))):
        with damaged(file, damage):
            for before, now in zip(whole, said(made, study), strict=True):
                assert now == before or (now[0] == 0 and str(file) in now[1]) or now[2] != before[2], (file, now)
            if file == run.record_file:
                listed = json.loads(study("status", made.path, "--json")[1].split("WARNING")[0])["runs"]
                assert {one["run_id"] for one in listed} == {one.run_id for one in made.runs()[1:]}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["sweep.yaml", "cells.json", "ledger.parquet", "answer.md"])
def test_a_damaged_file_of_a_sweep_is_named(damage: Damage, name: str, made: SweepFolder, study: Study) -> None:
    """Or written anew, or not needed; a sweep file whose name is given need not be named again."""
    file = made.path / name
    with damaged(file, damage):
        for command in reading(made):
            status, printed = study(*command)
            assert status == 0 or (status == 2 and (name in printed or file in command)), (command, printed)


def test_a_record_without_a_field_is_read_or_named(made: SweepFolder, study: Study) -> None:
    """What a report needs of it is asked of the records; what it does with the others does not depend on the field."""
    run = made.runs()[0]
    for field in json.loads(run.record_file.read_text()):

        def take_away(file: Path, field: str = field) -> None:
            values = json.loads(file.read_text())
            file.write_text(json.dumps({name: value for name, value in values.items() if name != field}))

        with damaged(run.record_file, take_away):
            commands = reading(made)
            answers = [study(*command) for command in (commands[: 1 if RunRecord.model_fields[field].is_required() else 2])]
            assert [status for status, _ in answers] == [0] * len(answers), field
            left = len(json.loads(answers[0][1].partition("WARNING")[0])["runs"])
            assert left == len(made.runs()) or str(run.record_file) in answers[0][1], field


@pytest.mark.parametrize("target", ["nowhere", "", "../made", "../../elsewhere/runs/x", "/etc"])
def test_a_link_to_no_home_is_named_and_its_run_left_out(target: str, made: SweepFolder, study: Study) -> None:
    run = made.runs()[0]
    link = made.homes / run.run_id
    link.parent.mkdir(exist_ok=True)
    if target:
        os.symlink(target, link)
    else:
        link.mkdir()
    try:
        for command in reading(made):
            assert study(*command)[0] == 0
        listed = study("status", made.path, "--json")[1]
        assert (str(link) in listed) == bool(target), "a folder is no link"
    finally:
        shutil.rmtree(made.homes)


def test_every_bit_of_the_header_of_losses_is_known(made: SweepFolder) -> None:
    """NumPy reads Python from a header: a flipped bit made it raise what no reader expected."""
    run = made.runs()[0]
    content = run.validation_losses_file.read_bytes()
    try:
        for bit in range(8 * 128):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            run.validation_losses_file.write_bytes(changed)
            with pytest.raises(errors.InputError, match="is damaged"):
                run.validation_losses()
    finally:
        run.validation_losses_file.write_bytes(content)
