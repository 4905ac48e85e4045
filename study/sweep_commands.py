"""The commands that look at a sweep and steer it: each parses, calls one function, and shows what it returns."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from study.errors import InputError
from study.options import as_json, results_option

if TYPE_CHECKING:
    from study.folders import SweepFolder

WATCH_SECONDS = 2.0
WATCH_MARGIN = 12
"""Lines of the terminal that are no rows of runs."""

folder_argument = click.argument("folder", type=click.Path(path_type=Path))


def sweep_folder(path: Path) -> SweepFolder:
    """The sweep's folder; raises InputError where there is none."""
    from study.folders import SweepFolder

    folder = SweepFolder(path if path.name not in ("", "..") else path.resolve())
    if not folder.sweep_file.exists():
        raise InputError.at(str(path), "is no sweep's folder (it holds no sweep.yaml); give one under results/")
    return folder


@click.command()
@folder_argument
@click.option("--watch", "-w", is_flag=True, help="Show it anew every two seconds, until nobody runs the sweep.")
@as_json
def status(folder: Path, watch: bool, as_json: bool) -> None:
    """Show where the runs of a sweep are; FOLDER is the sweep's folder under results/.

    With --json and --watch, one line of JSON each time.
    """
    from study.sweeping.status import status as status_of
    from study.sweeping.tables import status_summary, status_table
    from study.terminal import show

    sweep = sweep_folder(folder)
    if watch and as_json:
        while True:
            state = status_of(sweep)
            click.echo(json.dumps(state.to_dict()))
            if state.coordinator is None:
                return
            time.sleep(WATCH_SECONDS)
    if watch:
        _watch(sweep)
    state = status_of(sweep)
    if as_json:
        click.echo(json.dumps(state.to_dict(), indent=1))
    else:
        show(status_table(state), status_summary(state))


def _watch(sweep: SweepFolder) -> None:
    """Show a sweep on the terminal until nobody runs it."""
    from rich.console import Console
    from rich.live import Live

    from study.sweeping.status import status as status_of
    from study.sweeping.tables import watched

    console = Console()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (state := status_of(sweep)).coordinator is not None:
            live.update(watched(state, max(4, console.height - WATCH_MARGIN)), refresh=True)
            time.sleep(WATCH_SECONDS)


@click.command()
@folder_argument
@as_json
def stop(folder: Path, as_json: bool) -> None:
    """Let what is trained or scored of a sweep save and stop, wherever it was started; the same command goes on later."""
    from study.sweeping.steering import stop as stop_sweep

    sweep = sweep_folder(folder)
    stopped = stop_sweep(sweep)
    text = f"{sweep.name} has stopped; the same command goes on from there" if stopped else f"{sweep.name}: nobody runs it now"
    click.echo(json.dumps({"sweep": sweep.name, "stopped": stopped}) if as_json else text)


@click.command()
@folder_argument
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@as_json
def retry(folder: Path, runs: tuple[str, ...], as_json: bool) -> None:
    """Have failed runs tried again by the next launch: all that FAILED, were HUNG or met OOM, or the RUNs that are named.

    They go on from their last checkpoint. A run that was excluded can be named too, and is trained anew. What was recorded is
    kept among each run's past attempts.
    """
    from dataclasses import asdict

    from study.sweeping.steering import retry as retry_runs
    from study.terminal import printable

    sweep = sweep_folder(folder)
    retried = retry_runs(sweep, runs)
    if as_json:
        click.echo(json.dumps({"sweep": sweep.name, "retried": [asdict(run) for run in retried]}, indent=1))
        return
    for run in retried:
        click.echo(f"{run.run_id} was {run.state}: {printable(run.reason or '')}")
    click.echo(f"{len(retried)} runs will be tried again by the next launch of {sweep.name}")


@click.command()
@click.argument("run")
@click.option("--reason", help="Why; it stands in the ledger and the answer.")
@click.option("--undo", is_flag=True, help="Take the run back in.")
@results_option
@as_json
def exclude(run: str, reason: str | None, undo: bool, results: Path, as_json: bool) -> None:
    """Leave a run out of fits and comparisons, with the reason; RUN is its id or the start of it, or its folder in one sweep.

    Its record stays as it is. A later launch tunes and repeats as if the run had failed; to have it trained once more, `study
    retry` it by its id. `study report` writes the answer without it.
    """
    from study.sweeping.steering import exclude as exclude_run
    from study.sweeping.steering import include

    if undo == (reason is not None):
        raise InputError.at("study exclude", "needs either --reason, or --undo")
    found = include(run, results) if reason is None else exclude_run(run, results, reason)
    if as_json:
        click.echo(json.dumps({"run": found[0].run_id, "excluded": reason, "folders": [str(each.path) for each in found]}))
        return
    what = "counts again" if reason is None else "is left out"
    for each in found:
        click.echo(f"{each.run_id} {what} in {each.sweep.name}; to write its answer anew: study report {each.sweep.path}")


SWEEP_COMMANDS = (status, stop, retry, exclude)
