"""What a sweep's folder says of the sweep: as it was launched, by whichever version, and nothing where none was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.base.errors import InputError
from study.config.sweep import CellSweep, SearchSweep
from study.config.sweep_files import read_sweep
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from tests.sweeps import RATES, sweep_values, write_sweep

REFERENCE = sorted((Path(__file__).resolve().parents[2] / "results" / "reference").glob("*/sweep.yaml"))
SEARCH = {"trials": 2, "space": {"recipe.dropout": {"low": 0, "high": 0.5}}, "head_width": 16}


def folder_of(path: Path, **changes: Any) -> SweepFolder:
    """A folder with the sweep.yaml of `sweep_values`."""
    folder = SweepFolder(path)
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(Path("text.txt"), **changes)))
    return folder


@pytest.mark.parametrize("given", [("seeds=7",), ("seeds=10.0", "first_seed=2"), ("first_seed=1k",), ()])
def test_the_seeds_that_try_tuned_values_are_those_of_the_launch(given: tuple[str, ...], tmp_path: Path) -> None:
    """Where nothing is tuned, none does."""
    folder = SweepFolder(tmp_path)
    assert not folder.trial_seeds()
    for changes in ({"tune": RATES}, {}):
        spec, values = read_sweep(write_sweep(tmp_path / "file.yaml", tmp_path / "text.txt", **changes), given)
        folder.sweep_file.write_text(yaml.safe_dump(values))
        assert isinstance(spec, CellSweep)
        assert folder.sweep() == spec
        assert folder.trial_seeds() == (spec.trial_seeds if changes else ())


def test_a_folder_says_what_its_sweep_varies_tunes_and_searches(tmp_path: Path) -> None:
    vary = {"architecture.norm": ["post", "pre"], "recipe.learning_rate": [0.01, 0.02]}
    folder = folder_of(tmp_path, vary=vary, tune={"recipe.beta1": {"low": 0.8, "high": 0.9, "trials": 2}}, tags=["pilot"])
    assert folder.varied() == ("architecture.norm", "recipe.learning_rate")
    assert folder.tuned() == ("recipe.beta1",)
    assert folder.distinguishing_knobs() == ("architecture.norm", "recipe.beta1")
    assert folder.tags() == ("pilot",)
    searched = folder_of(tmp_path, shapes=None, search=SEARCH)
    assert isinstance(searched.sweep(), SearchSweep)
    assert (searched.varied(), searched.tuned(), searched.trial_seeds()) == ((), (), ())
    assert searched.distinguishing_knobs() == ("recipe.dropout",)


def test_a_folder_that_nobody_launched_into_has_no_sweep(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    assert folder.launched() is None
    asked = (folder.varied(), folder.tuned(), folder.distinguishing_knobs(), folder.tags(), folder.trial_seeds())
    assert asked == ((), (), (), (), ())
    with pytest.raises(InputError, match="does not exist"):
        folder.sweep()


def test_a_sweep_of_another_version_is_read_without_the_keys_that_are_gone(tmp_path: Path) -> None:
    plain = folder_of(tmp_path).sweep()
    values = sweep_values(Path("text.txt"), sampler="tpe", vary={"recipe.gone": [1, 2]})
    values["data"]["shuffle"] = values["shapes"]["order"] = values["shapes"]["grid"]["experts"] = True
    values["resources"] = {"slurm": {"reservation": "mine"}}
    folder = SweepFolder(tmp_path)
    folder.sweep_file.write_text(yaml.safe_dump(values))
    assert folder.sweep().model_copy(update={"vary": {}}) == plain
    assert folder.varied() == ("recipe.gone",)
    with pytest.raises(InputError, match="sampler: is not a known key"):
        read_sweep(folder.sweep_file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": "several"}, "sweep.yaml: seeds: 'several' is not a whole number"),
        ({"tune": 3}, "sweep.yaml: tune: 3 is not a mapping of keys to values"),
        ({"question": None}, "sweep.yaml: question: is missing and has no default"),
        ({"shapes": None}, "sweep.yaml: needs exactly one of shapes, search and goal"),
    ],
)
def test_a_sweep_file_that_somebody_damaged_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **changes)
    for ask in (folder.sweep, folder.varied, folder.trial_seeds, folder.distinguishing_knobs):
        with pytest.raises(InputError, match=message):
            ask()


def test_a_sweep_is_read_once_for_as_long_as_its_file_stays(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tags=["first"])
    assert folder.sweep() is folder.sweep()
    (tmp_path / "next").mkdir()
    shutil.move(folder_of(tmp_path / "next", tags=["later"]).sweep_file, folder.sweep_file)
    assert folder.tags() == ("later",)


@pytest.mark.parametrize("file", REFERENCE, ids=lambda file: file.parent.name)
def test_every_committed_sweep_is_read_as_a_launch_would(file: Path) -> None:
    assert SweepFolder(file.parent).sweep() == read_sweep(file)[0]


def test_the_folder_of_each_run_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SweepFolder(tmp_path)
    for name in ("a", "b", "c"):
        folder.run(name).path.mkdir(parents=True)
        folder.run(name).config_file.touch()
    made, make = [], RunFolder.__init__

    def counted(run: RunFolder, path: Path, *rest: Any, **options: Any) -> None:
        made.append(path.name)
        make(run, path, *rest, **options)

    monkeypatch.setattr(RunFolder, "__init__", counted)
    assert [run.run_id for run in folder.runs()] == made == ["a", "b", "c"]
