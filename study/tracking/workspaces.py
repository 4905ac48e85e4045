"""A workspace and a report of a sweep on W&B's server, as code of wandb-workspaces, an extra.

Both show the runs of the sweep's group: losses, scaling, scores, knobs and figures; the report begins with the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wandb.errors import Error as WandbError

from study.base.durable_files import content_of, write_atomically
from study.base.errors import InputError
from study.store.score_records import DOWNSTREAM, scores_by_run
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import MOST_CHARACTERS, VIEWS, Views, images, project_of, read_views, state_file, wandb_group
from study.tracking.mirror_wandb import in_view

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

CURVES = {
    "val/loss": "Validation loss (nats per predicted token)",
    "train/loss": "Training loss (nats)",
    "val/order_gain": "Order gain (nats per predicted token)",
    "perf/tokens_per_second": "Speed (tokens/s)",
}
"""The logged metrics that are shown, with titles."""

SIZES = {
    "parameters": "Loss against parameters (MLM model)",
    "train_flops": "Loss against training FLOPs (train_flops)",
    "tokens": "Loss against training tokens",
}
"""The quantities against which the loss is shown, with titles."""

LOSS = "loss_nats"

SHAPES = ("architecture.depth", "architecture.width", "recipe.learning_rate")
"""The knobs that are shown beside those that the sweep varies."""


def panels_by_section(folder: SweepFolder) -> dict[str, list[Any]]:
    """Return the panels of a sweep by section."""
    from wandb_workspaces.reports import v2 as wr

    scores = sorted({name for run in scores_by_run(folder).values() for name in run})
    knobs = dict.fromkeys((*folder.varied(), *folder.tuned(), *SHAPES))
    columns = [*(wr.Config(knob) for knob in knobs), wr.SummaryMetric(LOSS), *map(wr.SummaryMetric, scores)]
    sections: dict[str, list[Any]] = {
        "Loss": [wr.LinePlot(title=title, x="trainer/tokens", y=[metric]) for metric, title in CURVES.items()],
        "Scaling": [_scatter(size, LOSS, title, log_x=True) for size, title in SIZES.items()],
        "Scores": [_scatter(LOSS, score, f"{score.removeprefix(DOWNSTREAM)} against loss") for score in scores],
        "Knobs": [
            wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(metric=column) for column in columns]),
            wr.ParameterImportancePlot(with_respect_to=LOSS),
        ],
        "Figures": [wr.MediaBrowser(media_keys=[f"figures/{image.stem}"], num_columns=1) for image in images(folder)],
    }
    return {name: shown for name, shown in sections.items() if shown}


def _scatter(x: str, y: str, title: str, **options: Any) -> Any:
    from wandb_workspaces.reports import v2 as wr

    return wr.ScatterPlot(title=title, x=wr.SummaryMetric(x), y=wr.SummaryMetric(y), **options)


def workspace_of(folder: SweepFolder, entity: str, project: str) -> Workspace:
    """Return the workspace of a sweep in an entity's project."""
    from wandb_workspaces import expr, workspaces

    sections = [workspaces.Section(name=name, panels=shown, is_open=True) for name, shown in panels_by_section(folder).items()]
    runs = workspaces.RunsetSettings(filters=expr.And(expr.Metric("Group") == wandb_group(folder)))
    return workspaces.Workspace(
        entity=entity, project=project, name=wandb_group(folder), sections=sections, runset_settings=runs
    )


def report_of(folder: SweepFolder, entity: str, project: str) -> Report:
    """Return the report of a sweep: its answer, as far as it was written, and the panels of the workspace."""
    from wandb_workspaces import expr
    from wandb_workspaces.reports import v2 as wr

    answer = (content_of(folder.answer_file) or b"").decode(errors="replace")
    blocks: list[Any] = [wr.MarkdownBlock(in_view(answer))] if answer else []
    for name, shown in panels_by_section(folder).items():
        of_group = expr.And(expr.Metric("Group") == wandb_group(folder))
        runs = wr.Runset(entity=entity, project=project, name=folder.name, filters=of_group)
        blocks += [wr.H2(name), wr.PanelGrid(runsets=[runs], panels=shown)]
    question = folder.sweep().question
    return wr.Report(project=project, entity=entity, title=question[:MOST_CHARACTERS], description=folder.name, blocks=blocks)


def save_views(folder: SweepFolder) -> Views:
    """Save workspace and report, in place of those saved before, and return their addresses.

    Raises InputError if the sweep is not on a server, or the server refuses.
    """
    from wandb_workspaces import workspaces
    from wandb_workspaces.reports import v2 as wr

    if (project_url := project_of(folder)) is None:
        raise InputError.at(str(folder.path), "has no run on W&B's server; wandb login, and study sync it first")
    entity, project = urlsplit(project_url).path.strip("/").split("/")[-2:]
    workspace, report, before = workspace_of(folder, entity, project), report_of(folder, entity, project), read_views(folder)
    if before is not None:
        saved = _reach(folder, lambda: workspaces.Workspace.from_url(before.workspace))
        saved.sections, saved.runset_settings, workspace = workspace.sections, workspace.runset_settings, saved
        written = _reach(folder, lambda: wr.Report.from_url(before.report))
        written.title, written.blocks, report = report.title, report.blocks, written
    views = Views(
        workspace=_reach(folder, lambda: workspace.save().url),
        report=_reach(folder, lambda: report.save().url),
    )
    write_atomically(state_file(folder, VIEWS), views.model_dump_json().encode() + b"\n")
    return views


def _reach(folder: SweepFolder, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (WandbError, ValueError) as error:
        remedy = f"remove {state_file(folder, VIEWS)} to save new ones"
        raise InputError.at(str(folder.path), f"W&B refuses its workspace or report: {error}; {remedy}") from None
