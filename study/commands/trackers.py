"""The commands about trackers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import click

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.base.grouping import grouped
from study.base.quantities import plural
from study.base.text import echo, pasted
from study.commands.options import as_json, completing, folder_argument, open_page, output_folder, sweep_folder


@click.command()
@folder_argument
@click.option("--weights", is_flag=True, help="Also send the weights of completed runs, as artifacts.")
@click.option("--workspace", is_flag=True, help="Also save a W&B workspace and report of the sweep, or renew them; an extra.")
@as_json
def sync(folder: Path, weights: bool, workspace: bool, as_json: bool) -> None:
    """Mirror the runs in FOLDER to W&B, each as one clean run.

    Downstream scores are in each run's summary; the answer is a run of its own, with its figures. What W&B already has is left
    alone.
    """
    from rich.console import Console
    from rich.progress import Progress

    from study.tracking.mirror import mirror_sweep

    if workspace and find_spec("wandb_workspaces") is None:
        raise InputError.at("--workspace", "needs wandb-workspaces: pip install 'scaling-study[workspaces]'")
    sweep = sweep_folder(folder)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        outcome = mirror_sweep(sweep, progress=update, weights=weights)
    if as_json:
        echo(json.dumps(outcome.to_dict(), indent=1))
    else:
        counts = (
            f"{plural(outcome.mirrored, 'run')} mirrored now, {outcome.already:,} already there, {len(outcome.failed)} failed"
        )
        echo(f"{counts}{_ANSWER[outcome.answer]} (W&B is {outcome.mode})")
        reasons = outcome.failed | outcome.problems
        for reason, (name, *others) in grouped(reasons, reasons.__getitem__).items():
            echo(f"{name}{f' and {len(others):,} more' if others else ''}: {reason}", err=True)
    if workspace and outcome.mirrored + outcome.already:
        from study.tracking.workspaces import save_views

        views = save_views(sweep)
        echo(f"workspace: {views.workspace}\nreport: {views.report}", err=as_json)
    if outcome.failed or outcome.problems:
        sys.exit(1)


_ANSWER = {
    "mirrored": "; the answer mirrored now",
    "already": "; the answer already there",
    "failed": "; the answer failed",
    "none": "",
}


@click.command("open")
@click.argument(
    "folder", type=click.Path(path_type=Path), default=Path("results"), shell_complete=completing("sweep_folders", paths=True)
)
def open(folder: Path) -> None:  # noqa: A001
    """Open a sweep on W&B, or name the dashboard.

    FOLDER is a sweep's folder, its name below `results`, or a folder of sweeps. What `study launch` or `study sync` brought to
    W&B's server is opened in a browser, and its address is printed; of any other sweep, the command is printed that shows it.
    """
    from study.store.sweep_folder import sweeps_in
    from study.tracking.mirror_state import page_of, read_views

    path = folder if is_there(folder) or not is_there(named := Path("results") / folder) else named
    sweeps = sweeps_in(path) if is_there(path) else {path.name: sweep_folder(path)}
    pages = {name: page for name, sweep in sweeps.items() if (page := page_of(sweep)) is not None}
    for name, page in pages.items():
        views = read_views(sweeps[name])
        shown = [page] if views is None else [views.workspace, views.report]
        echo("\n".join(shown if len(sweeps) == 1 else [f"{name}: {one}" for one in shown]))
        if len(pages) == 1:
            open_page(shown[0])
    if not pages:
        brings = f"study sync {pasted(path)}" if len(sweeps) == 1 else "study sync of one of them"
        echo(f"{path} is not on W&B's server; after wandb login, {brings} brings it there")
        echo(f"here: study dashboard {pasted(path)}")


@click.command("optuna")
@folder_argument
@click.option("--storage", required=True, metavar="URL", help="Database of Optuna, such as sqlite:///study.db.")
@as_json
def optuna(folder: Path, storage: str, as_json: bool) -> None:
    """Copy the searches of a sweep into an Optuna storage.

    A search is one study, and so is each cell that is tuned: values, states, losses at every validation, and facts of the run.
    Run it again to add what has ended since. optuna-dashboard and Optuna's importances read it:

    \b
    study optuna results/mine --storage sqlite:///mine.db
    optuna-dashboard sqlite:///mine.db
    """  # noqa: D301
    from study.planning.optuna_mirror import mirror

    done = mirror(sweep_folder(folder), storage)
    if as_json:
        echo(json.dumps(asdict(done), indent=1))
    else:
        lines = [f"{name}: {plural(trials, 'trial')}" for name, trials in done.studies.items()]
        echo("\n".join([*lines, f"{plural(done.added, 'trial')} added now: {done.storage}"]))
        if done.left_out:
            echo(f"{plural(done.left_out, 'run')} left out, without a value in the range of every knob", err=True)


@click.command("import-wandb")
@click.argument("source")
@click.option("--into", type=output_folder, required=True, help="Folder for ledger and histories.")
@click.option("--group", help="Only the runs of this W&B group.")
@click.option(
    "--tuned",
    multiple=True,
    metavar="KEY",
    default=("recipe.learning_rate",),
    show_default=True,
    help="A key in which runs of one cell may differ; repeatable.",
)
@as_json
def import_wandb(source: str, into: Path, group: str | None, tuned: tuple[str, ...], as_json: bool) -> None:
    """Read W&B runs into a ledger, with their whole histories.

    `study fit`, `plot` and `multiverse` take it.

    \b
    study import-wandb entity/project --group depth --into results/theirs
    study import-wandb path/to/wandb --into results/theirs    # offline runs
    """  # noqa: D301
    from study.tracking.wandb_import import import_wandb as read

    done = read(source, into, group, tuned)
    if as_json:
        echo(json.dumps(asdict(done) | {"ledger": str(done.ledger)}, indent=1))
    else:
        echo(f"{plural(done.runs, 'run')} with {done.rows:,} rows: {done.ledger}")
