"""A workspace and a report of a sweep: the objects that are built, and how they are saved, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.base.errors import InputError
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import MirroredAnswer, Views, read_views, state_file
from tests.fake_runs import FakeRun, empty_sweep
from tests.sweeps import sweep_values
from tests.synthetic_scores import TASKS, add_scores

QUESTION = "Does 'depth' help?"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """A scored sweep with an answer and an image, which is on a server."""
    folder = empty_sweep(tmp_path, monkeypatch)
    run = FakeRun(folder)
    run.write(3)
    run.end()
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(Path("text.txt"), question=QUESTION)))
    add_scores(folder, {"cola": TASKS["cola"]}, seeds=1)
    folder.answer_file.write_text("**Depth helps.**\n\n<details>\nmore\n")
    folder.figures.mkdir()
    (folder.figures / "law_fit.png").touch()
    state = MirroredAnswer(mode="online", wandb_folder="x", project_url="https://example.org/us/scaling-study", sha256="0")
    state_file(folder, "answer").parent.mkdir(parents=True)
    state_file(folder, "answer").write_text(state.model_dump_json())
    return folder


def test_without_the_extra_the_command_says_what_to_install_before_anything_is_sent(
    folder: SweepFolder, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.commands.trackers.find_spec", lambda _: None)
    needs = "error: --workspace: needs wandb-workspaces: pip install 'scaling-study[workspaces]'\n"
    assert study("sync", folder.path, "--workspace") == (2, "", needs)
    assert not list(folder.wandb.glob("*run-*"))


def test_the_workspace_shows_losses_scaling_scores_knobs_and_figures_of_the_sweep(folder: SweepFolder) -> None:
    pytest.importorskip("wandb_workspaces")
    from study.tracking.workspaces import workspace_of

    view = json.loads(workspace_of(folder, "us", "scaling-study")._model.model_dump_json(by_alias=True, exclude_none=True))
    section = view["spec"]["section"]
    shown = {one["name"]: one["panels"] for one in section["panelBankConfig"]["sections"]}
    assert list(shown) == ["Loss", "Scaling", "Scores", "Knobs", "Figures"]
    loss = shown["Loss"][0]["config"]
    assert (loss["xAxis"], loss["metrics"]) == ("trainer/tokens", ["val/loss"])
    scaling = shown["Scaling"][0]["config"]
    assert (scaling["xAxis"], scaling["yAxis"], scaling["xAxisLogScale"]) == ("summary:parameters", "summary:loss_nats", True)
    assert shown["Scores"][0]["config"]["yAxis"] == "summary:downstream/cola/matthews"
    assert shown["Figures"][0]["config"]["mediaKeys"] == ["figures/law_fit"]
    (only,) = section["runSets"][0]["filters"]["filters"]
    assert (only["key"]["name"], only["op"], only["value"]) == ("group", "=", "depth")


def test_the_report_begins_with_the_answer_and_has_the_panels(folder: SweepFolder) -> None:
    wr = pytest.importorskip("wandb_workspaces.reports.v2")
    from study.tracking.workspaces import report_of

    report = report_of(folder, "us", "scaling-study")
    assert (report.title, report.project, report.entity) == (QUESTION, "scaling-study", "us")
    assert report.blocks[0] == wr.MarkdownBlock("**Depth helps.**")
    headings = [block.text for block in report.blocks if isinstance(block, wr.H2)]
    grids = [block for block in report.blocks if isinstance(block, wr.PanelGrid)]
    assert headings == ["Loss", "Scaling", "Scores", "Knobs", "Figures"]
    assert len(grids) == len(headings)
    assert {grid.runsets[0].filters for grid in grids} == {"Metric(\"Group\") == 'depth'"}


def test_views_are_saved_once_and_renewed_after(folder: SweepFolder, study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wr = pytest.importorskip("wandb_workspaces.reports.v2")
    workspaces = pytest.importorskip("wandb_workspaces.workspaces")
    from study.tracking.workspaces import save_views

    saved: list[Any] = []

    def save(view: Any) -> Any:
        saved.append(view)
        return view

    monkeypatch.setattr(workspaces.Workspace, "save", save)
    monkeypatch.setattr(wr.Report, "save", save)
    monkeypatch.setattr(workspaces.Workspace, "url", "https://example.org/us/scaling-study?nw=a")
    monkeypatch.setattr(wr.Report, "url", "https://example.org/us/scaling-study/reports/b")
    views = save_views(folder)
    assert views == read_views(folder) == Views(workspace=workspaces.Workspace.url, report=wr.Report.url)
    assert [type(one) for one in saved] == [workspaces.Workspace, wr.Report]
    monkeypatch.setattr(workspaces.Workspace, "from_url", lambda _url: saved[0])
    monkeypatch.setattr(wr.Report, "from_url", lambda _url: saved[1])
    folder.answer_file.write_text("**Depth does not help.**\n")
    assert save_views(folder) == views
    assert saved[2:] == saved[:2], "the same, changed"
    assert saved[3].blocks[0] == wr.MarkdownBlock("**Depth does not help.**")
    assert study("open", folder.path)[1] == f"{views.workspace}\n{views.report}\n"

    def refuse(url: str) -> None:
        raise ValueError("could not find the view")

    monkeypatch.setattr(workspaces.Workspace, "from_url", refuse)
    with pytest.raises(InputError, match=r"could not find the view; remove .*views.json to save new ones"):
        save_views(folder)


def test_a_sweep_that_is_on_no_server_has_no_views(folder: SweepFolder) -> None:
    pytest.importorskip("wandb_workspaces")
    from study.tracking.workspaces import save_views

    state_file(folder, "answer").unlink()
    with pytest.raises(InputError, match="has no run on W&B's server; wandb login, and study sync it first"):
        save_views(folder)
