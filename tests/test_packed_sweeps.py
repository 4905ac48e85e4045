"""Every part of the workbench reads a packed sweep as it reads run folders, and adds to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.dashboard.run_charts import runs_in
from study.report.answer import report
from study.report.figures import FIGURES
from study.report.notebooks import gather_scored
from study.running.control import exclude, include, retry
from study.running.status import status
from study.scoring.targets import single_run
from study.shapes.accounts import resolve_architecture
from study.store.packing import pack, unpack
from study.store.run_folder import RunFolder
from study.store.score_records import write_scores
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror import SyncReport, mirror_sweep
from study.tracking.mirror_state import left_behind
from study.training.trained_runs import check_trained_runs
from tests.fake_runs import FakeRun, empty_sweep
from tests.launching import written
from tests.running.test_coordinator import FakeExecutor, completes, run
from tests.running.test_sharing import FOUR, THREE, launched
from tests.synthetic import add_run, depth_or_width, run_config
from tests.synthetic_scores import TASKS, add_scores
from tests.wandb_files import Held, assert_all_there

REFERENCE = Path(__file__).resolve().parents[1] / "results" / "reference"

DERIVED = ("ledger.csv", "scores.csv", "answer.md", "fits", "figures")

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepFolder, SweepFolder]:
    """One sweep in run folders and packed, each under a results folder of its own."""
    place = tmp_path_factory.mktemp("both")
    made = depth_or_width(place / "loose" / "x", shapes=((1, 128), (2, 92), (4, 64)), rates=(2e-3, 4e-3, 8e-3), budgets=(1e6,))
    add_scores(made, {name: TASKS[name] for name in ("sst2", "blimp")}, seeds=2)
    packed = SweepFolder(place / "packed" / "x")
    shutil.copytree(made.path, packed.path)
    pack(packed)
    assert not packed.runs_folder.exists()
    return made, packed


@pytest.fixture(scope="module")
def reported(both: tuple[SweepFolder, SweepFolder]) -> tuple[SweepFolder, SweepFolder]:
    """The two with their answers, and figures of what ledger, curves, losses a sequence and scores hold."""
    drawn = ("loss_against_flops", "loss_curves", "paired_differences", "score_against_loss")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.report.answer.FIGURES", {name: FIGURES[name] for name in drawn})
        for folder in both:
            assert set(report(folder).figures) == {*drawn}
    return both


@pytest.mark.slow
def test_a_report_has_the_same_bytes(reported: tuple[SweepFolder, SweepFolder]) -> None:
    loose, packed = (written(folder.path, DERIVED) for folder in reported)
    assert loose == packed
    assert {"answer.md", "fits/downstream.json", "figures/loss_curves.svg"} <= loose.keys()


@pytest.mark.slow
def test_status_tables_and_notebooks_are_the_same(reported: tuple[SweepFolder, SweepFolder]) -> None:
    def seen(folder: SweepFolder) -> list[str]:
        runs, problems = runs_in({"x": folder})
        assert problems == {}
        scores = gather_scored(folder).downstream
        assert scores is not None
        tables = runs, write_scores(folder)
        return [str(status(folder).to_dict()), str(scores.to_dict()), *(table.to_csv() for table in tables)]

    loose, packed = map(seen, reported)
    assert loose == packed


@pytest.mark.parametrize("name", ["cut_distil_or_scratch", "layer_losses", "projection_start"])
def test_runs_that_need_a_cell_of_the_sweep_belong_to_it(name: str) -> None:
    """A packed sweep knows the run that others start from or learn from by its record, where its text is not at hand."""
    shown = status(SweepFolder(REFERENCE / name))
    assert {run.reason for run in shown.runs} == {None}
    assert shown.remaining_flops == 0


def test_a_packed_run_is_known_by_its_id_and_by_where_its_folder_was(both: tuple[SweepFolder, SweepFolder]) -> None:
    _, packed = both
    run = packed.runs()[0]
    expected = run.config().architecture
    for name in (str(run.path), run.run_id, run.run_id[:10]):
        assert resolve_architecture(name, packed.path.parent).architecture == expected
    with pytest.raises(InputError, match="does not exist, and is not a model name"):
        resolve_architecture(str(packed.runs_folder / "0123456789abcdef"), packed.path.parent)


def test_a_packed_run_is_no_teacher_no_start_and_is_not_scored(both: tuple[SweepFolder, SweepFolder]) -> None:
    _, packed = both
    run = packed.runs()[0]
    config, remedy = run.config(), r"its sweep is packed, which keeps none: put the file there, or train the run under"
    for knob in ("start", "teacher"):
        asked = config.model_copy(update={"recipe": config.recipe.model_copy(update={knob: str(run.path)})})
        with pytest.raises(InputError, match=rf"recipe\.{knob} {run.path}: has no weights\.safetensors; {remedy}"):
            check_trained_runs([asked])
    with pytest.raises(InputError, match=rf"weights\.safetensors: does not exist, but the weights are needed; {remedy}"):
        single_run(run.path)


def test_a_damaged_pack_is_a_problem_of_its_sweep_alone(both: tuple[SweepFolder, SweepFolder], tmp_path: Path) -> None:
    loose, packed = both
    damaged = SweepFolder(tmp_path / "damaged")
    shutil.copytree(packed.path, damaged.path)
    (curves,) = damaged.path.glob("packed/*/records.jsonl.gz")
    curves.write_bytes(curves.read_bytes()[:-1])
    runs, problems = runs_in({"loose": loose, "damaged": damaged})
    assert len(runs) == len(loose.records())
    assert problems.keys() == {"damaged"}
    assert problems["damaged"].startswith(f"{curves}: is damaged: its SHA-256")


def test_a_launch_trains_what_a_pack_lacks_and_nothing_twice(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(), shapes={"grid": {"depth": [1, 2]}})
    folder = SweepFolder(tmp_path / "results" / "toy")
    pack(folder)
    again = FakeExecutor()
    progress = run(tmp_path, again, shapes={"grid": {"depth": [1, 2]}})
    assert (len(progress.ended), again.submitted, folder.runs_folder.exists()) == (2, [], False)
    more = FakeExecutor()
    progress = run(tmp_path, more, shapes={"grid": {"depth": [1, 2, 3]}})
    assert (len(progress.ended), len(more.submitted), len(folder.records())) == (3, 1, 3)
    assert [path.name for path in folder.runs_folder.iterdir()] == more.submitted
    assert pack(folder).runs == 3


def test_what_a_packed_sweep_has_trained_is_taken_over_by_another(tmp_path: Path) -> None:
    launched(tmp_path, "one", FakeExecutor(_with_rows), **THREE)
    one, two = SweepFolder(tmp_path / "results" / "one"), SweepFolder(tmp_path / "results" / "two")
    exclude(one.runs()[1].run_id, tmp_path / "results", "a bad disk")
    rows = {run.run_id: [*run.metrics()] for run in one.runs()}
    pack(one)
    executor = FakeExecutor(_with_rows)
    progress = launched(tmp_path, "two", executor, **FOUR)
    shared = {record.run_id for record in two.records()} & rows.keys()
    assert (len(shared), len(executor.submitted), len(progress.ended)) == (2, 2, 4)
    for run_id in shared:
        assert [*two.run(run_id).metrics()] == rows[run_id] != []
        assert two.run(run_id).record() == one.run(run_id).record()
        assert two.run(run_id).record_file.exists()
        assert two.home(run_id).path == one.run(run_id).path


def test_a_packed_sweep_takes_over_from_one_in_folders(tmp_path: Path) -> None:
    launched(tmp_path, "two", FakeExecutor(), shapes={"grid": {"depth": [4]}})
    pack(SweepFolder(tmp_path / "results" / "two"))
    launched(tmp_path, "one", FakeExecutor(), **THREE)
    again = FakeExecutor()
    launched(tmp_path, "two", again, **FOUR)
    assert len(again.submitted) == 1
    assert len(SweepFolder(tmp_path / "results" / "two").records()) == 4


def _with_rows(config: Any, run: RunFolder) -> int:
    run.metrics_file.write_text('{"trainer/step": 1, "trainer/tokens": 64, "val/loss": 5.5}\n')
    return completes(config, run)


def test_packed_runs_are_excluded_and_taken_back_and_not_retried(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "results" / "x")
    shutil.copytree(_failing(tmp_path / "made").path, folder.path)
    failed = next(record.run_id for record in folder.records() if record.state == "FAILED")
    good = next(record.run_id for record in folder.records() if record.state == "COMPLETED")
    exclude(good, tmp_path / "results", "a bad disk")
    pack(folder)
    for run_id in (good, failed):
        exclude(run_id, tmp_path / "results", "a bad disk")
        assert folder.ledger().set_index("run_id").loc[run_id, "exclusion"] == "excluded: a bad disk"
        include(run_id, tmp_path / "results")
    assert [record.excluded for record in folder.records()] == [None, None]
    with pytest.raises(InputError, match=rf"{failed}: is packed and cannot be changed; first run: study unpack {folder.path}"):
        retry(folder)
    unpack(folder)
    assert [retried.run_id for retried in retry(folder)] == [failed]


def _failing(path: Path) -> SweepFolder:
    folder = depth_or_width(path, shapes=((1, 128),), budgets=(1e6,), rates=(4e-3,), seeds=1)
    add_run(folder, run_config(2, 92), state="FAILED", reason="a full disk")
    return folder


@pytest.mark.slow
def test_a_packed_sweep_is_mirrored_as_its_runs_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = empty_sweep(tmp_path, monkeypatch)
    run, later = FakeRun(folder, seed=1), FakeRun(folder, seed=2)
    for each in (run, later):
        each.write(40)
        each.end()
    pack(folder)
    assert left_behind(folder) == [one.folder.run_id for one in sorted((run, later), key=lambda one: one.folder.run_id)]
    assert mirror_sweep(folder) == SyncReport("offline", mirrored=2)
    assert Held(folder, run).rows == [run.row(step) for step in range(1, 41)]
    assert_all_there(folder, later)
    assert left_behind(folder) == []
    assert mirror_sweep(folder).already == 2
    unpack(folder)
    assert mirror_sweep(folder).already == 2


def test_the_commands_say_what_they_did(tmp_path: Path, study: Callable[..., tuple[int, str, str]]) -> None:
    folder = _failing(tmp_path / "x")
    folder.runs()[0].weights_file.write_bytes(bytes(2000))
    status, _, err = study("pack", folder.path)
    assert (status, err.count("\n")) == (2, 1)
    assert "x: has weights or checkpoints of 1 run, 2 kB, which a pack does not keep; " in err
    status, out, _ = study("pack", folder.path, "--delete-weights")
    assert status == 0
    assert out.startswith("x: 2 runs, 7 files, packed into ")
    assert out.endswith(f": {folder.path / 'packed' / '1'}\n")
    assert study("pack", folder.path, "--json")[0] == 0
    assert study("unpack", folder.path)[:2] == (0, f"x: 2 runs unpacked into {folder.runs_folder}\n")
    status, _, err = study("unpack", folder.path)
    assert (status, err) == (2, f"error: {folder.path}: is not packed\n")
