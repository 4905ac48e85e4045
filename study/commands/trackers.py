"""The commands about trackers: each parses, calls one function, and shows what it returns."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from study.base.quantities import plural
from study.base.text import echo
from study.commands.options import as_json, output_folder
from study.commands.sweeps import folder_argument, sweep_folder


@click.command()
@folder_argument
@as_json
def sync(folder: Path, as_json: bool) -> None:
    """Replay the runs in FOLDER to W&B, each into one clean run.

    What is there already is left alone.
    """
    from rich.console import Console
    from rich.progress import Progress

    from study.tracking.mirror import mirror_sweep

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=None)
        outcome = mirror_sweep(
            sweep_folder(folder), progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        echo(json.dumps(outcome.to_dict(), indent=1))
    else:
        counts = (
            f"{plural(outcome.mirrored, 'run')} mirrored now, {outcome.already} there already, {len(outcome.failed)} failed"
        )
        echo(f"{counts} (W&B is {outcome.mode})")
        for run_id, reason in outcome.failed.items():
            echo(f"{run_id}: {reason}", err=True)
    if outcome.failed:
        sys.exit(1)


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
    help="A key that runs of one cell may differ in; repeat it.",
)
@as_json
def import_wandb(source: str, into: Path, group: str | None, tuned: tuple[str, ...], as_json: bool) -> None:
    """Read W&B runs into a ledger, with their whole histories.

    `study fit`, `plot` and `multiverse` take it.

    \b
    study import-wandb entity/project --group depth --into results/theirs
    study import-wandb path/to/wandb --into results/theirs      # offline runs, of this project or any
    """  # noqa: D301
    from study.tracking.wandb_import import import_wandb as read

    done = read(source, into, group, tuned)
    if as_json:
        echo(json.dumps(asdict(done) | {"ledger": str(done.ledger)}, indent=1))
    else:
        echo(f"{done.runs} runs with {done.rows:,} rows: {done.ledger}")
