"""The commands that pack a sweep and unpack it: each parses, calls one function, and shows what it returns."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from study.base.text import echo
from study.commands.options import as_json
from study.commands.sweeps import folder_argument, folder_with_runs


@click.command()
@folder_argument
@click.option(
    "--delete-weights", is_flag=True, help="Delete the weights and checkpoints of the runs, which a pack does not keep."
)
@as_json
def pack(folder: Path, delete_weights: bool, as_json: bool) -> None:
    """Turn the run folders of a finished sweep into a few files.

    Records, scores, attempts, learning curves and validation losses go into FOLDER/packed, checksummed. Every command reads a
    packed sweep as it reads any other, a launch adds runs beside the pack, and packing again takes them in. Weights,
    checkpoints and logs are left out, so that a packed run cannot be scored any more, nor be a start or a teacher of others.
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
    echo(f"{sweep.name}: {plural(done.runs, 'run')}{scores}, {done.files:,} files, are {size} now: {done.path}")


@click.command()
@folder_argument
@as_json
def unpack(folder: Path, as_json: bool) -> None:
    """Turn a packed sweep into run folders again.

    The files have the bytes that they had. What a pack leaves out does not come back: weights, checkpoints and logs.
    """
    from study.base.quantities import plural
    from study.store.packing import unpack as unpack_runs

    sweep = folder_with_runs(folder)
    runs = unpack_runs(sweep)
    told = f"{sweep.name}: {plural(runs, 'run')} have folders again: {sweep.runs_folder}"
    echo(json.dumps({"sweep": sweep.name, "runs": runs}) if as_json else told)
