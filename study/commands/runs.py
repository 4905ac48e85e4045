"""The commands about the runs of a sweep."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from study.base.errors import InputError
from study.base.text import echo
from study.commands.options import as_json, completing, folder_argument, folder_with_runs, results_option, sweep_folder

if TYPE_CHECKING:
    from study.store.sweep_folder import SweepFolder

WATCH_SECONDS = 2.0
WATCH_MARGIN = 12
"""Lines of the terminal that are not rows of runs."""


@click.command()
@folder_argument
@click.option("--watch", "-w", is_flag=True, help="Refresh every two seconds while the sweep is running.")
@click.option("--all", "every", is_flag=True, help="List every run, even if there are more than 200.")
@as_json
def status(folder: Path, watch: bool, every: bool, as_json: bool) -> None:
    """Show the state of a sweep's runs.

    FOLDER is the sweep's folder under results/. Of more than 200 runs, those that are running, excluded or spiked are listed,
    as many as fit the screen. With --json and --watch, each update is one line of JSON.
    """
    from study.base.terminal import show
    from study.running.status import MOST_LISTED, status_summary, status_table, watched
    from study.running.status import status as status_of

    sweep = sweep_folder(folder)
    if watch and as_json:
        while True:
            state = status_of(sweep)
            echo(json.dumps(state.to_dict()))
            if state.coordinator is None:
                return
            time.sleep(WATCH_SECONDS)
    if watch:
        _watch(sweep)
    state = status_of(sweep)
    if as_json:
        echo(json.dumps(state.to_dict(), indent=1))
    elif every or len(state.runs) <= MOST_LISTED:
        show(status_table(state), status_summary(state))
    else:
        show(*watched(state, _rows_free()))


def _rows_free() -> int:
    return max(4, shutil.get_terminal_size().lines - WATCH_MARGIN)


def _watch(sweep: SweepFolder) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from study.base.terminal import Visible
    from study.running.status import status as status_of
    from study.running.status import watched

    console = Console()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (state := status_of(sweep)).coordinator is not None:
            table, *lines = watched(state, _rows_free())
            live.update(Visible(Group(table, *map(Text, lines))), refresh=True)
            time.sleep(WATCH_SECONDS)


@click.command()
@folder_argument
@as_json
def stop(folder: Path, as_json: bool) -> None:
    """Let a sweep save and stop, wherever it was started.

    Stops training and scoring; the same command resumes later.
    """
    from study.running.control import stop as stop_sweep

    sweep = sweep_folder(folder)
    stopped = stop_sweep(sweep)
    text = f"{sweep.name} has stopped; the same command resumes it" if stopped else f"{sweep.name} is not running"
    echo(json.dumps({"sweep": sweep.name, "stopped": stopped}) if as_json else text)


@click.command()
@folder_argument
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completing("runs"))
@as_json
def retry(folder: Path, runs: tuple[str, ...], as_json: bool) -> None:
    """Try failed runs and scores again.

    The next launch, or study score, resumes those that ended as FAILED, HUNG or OOM, or those of the named RUNs, from their
    last checkpoints. A named run that was excluded is trained anew. Every record is kept among the past attempts of its run.
    """
    from study.base.quantities import plural
    from study.base.text import printable
    from study.running.control import retry as retry_failed

    sweep = folder_with_runs(folder)
    retried = retry_failed(sweep, runs)
    if as_json:
        echo(json.dumps({"sweep": sweep.name, "retried": [asdict(run) for run in retried]}, indent=1))
        return
    for one in retried:
        echo(printable(f"{f'{one.task} of ' if one.task else ''}{one.run_id} was {one.state}: {one.reason or ''}"))
    scores = sum(one.task is not None for one in retried)
    if count := len(retried) - scores:
        echo(f"{plural(count, 'run')} will be tried again by the next launch of {sweep.name}")
    if scores:
        by = f"the next study score, or launch that scores, of {sweep.name}"
        echo(f"{plural(scores, 'score')} will be tried again by {by}")
    if not retried:
        echo(f"no run or score of {sweep.name} ended as FAILED, HUNG or OOM; name other runs to try them again")


@click.command()
@click.argument("run", shell_complete=completing("runs", paths=True))
@click.option("--reason", help="The reason, which the ledger and the answer quote.")
@click.option("--undo", is_flag=True, help="Include the run again.")
@results_option
@as_json
def exclude(run: str, reason: str | None, undo: bool, results: Path, as_json: bool) -> None:
    """Exclude a run from fits and comparisons, with a reason.

    RUN is its id or the start of it, or its folder in one sweep. Its record stays as it is. A later launch tunes and repeats as
    if the run had failed; to train it once more, `study retry` it by its id. `study report` writes the answer without it.
    """
    from study.base.text import pasted
    from study.running.control import exclude as exclude_run
    from study.running.control import include
    from study.store.sweep_folder import SweepFolder

    if undo == (reason is not None):
        raise InputError.at("study exclude", "needs either --reason, or --undo")
    folders = include(run, results) if reason is None else exclude_run(run, results, reason)
    if as_json:
        echo(json.dumps({"run": folders[0].run_id, "excluded": reason, "folders": [str(each.path) for each in folders]}))
        return
    what = "is included again" if reason is None else "is excluded"
    for each in folders:
        sweep = SweepFolder.of(each)
        echo(f"{each.run_id} {what} in {sweep.name}; to update its answer: study report {pasted(sweep.path)}")


@click.command()
@folder_argument
@click.option(
    "--delete-weights", is_flag=True, help="Delete the weights and checkpoints of the runs, which a pack does not keep."
)
@as_json
def pack(folder: Path, delete_weights: bool, as_json: bool) -> None:
    """Turn the run folders of a finished sweep into a few files.

    Records, scores, attempts, learning curves and validation losses go into FOLDER/packed, with checksums. Every command reads
    a packed sweep as any other, a launch adds runs beside the pack, and packing again includes them. Weights, checkpoints and
    logs are left out, so a packed run can no longer be scored, nor be a start or a teacher of other runs.
    """
    from study.base.quantities import bytes_text, plural
    from study.store.packing import pack as pack_runs

    sweep = folder_with_runs(folder)
    done = pack_runs(sweep, delete_weights)
    if as_json:
        echo(json.dumps(asdict(done) | {"path": str(done.path)}, indent=1))
        return
    scores = f" and {plural(done.scores, 'score')}" if done.scores else ""
    size = f"{plural(done.tables, 'file')} of {bytes_text(done.table_bytes)}"
    echo(f"{sweep.name}: {plural(done.runs, 'run')}{scores}, {done.files:,} files, packed into {size}: {done.path}")


@click.command()
@folder_argument
@as_json
def unpack(folder: Path, as_json: bool) -> None:
    """Turn a packed sweep into run folders again.

    The files have their original bytes. What a pack leaves out is lost: weights, checkpoints and logs.
    """
    from study.base.quantities import plural
    from study.store.packing import unpack as unpack_runs

    sweep = folder_with_runs(folder)
    runs = unpack_runs(sweep)
    message = f"{sweep.name}: {plural(runs, 'run')} unpacked into {sweep.runs_folder}"
    echo(json.dumps({"sweep": sweep.name, "runs": runs}) if as_json else message)
