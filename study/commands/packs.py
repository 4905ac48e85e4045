"""The commands that pack and unpack a sweep."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

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

    Records, scores, attempts, learning curves and validation losses go into FOLDER/packed, with checksums. Every command reads
    a packed sweep as any other, a launch adds runs beside the pack, and packing again includes them. Weights, checkpoints and
    logs are left out, so a packed run can no longer be scored, nor be a start or a teacher of other runs.
    """
    from study.base.quantities import bytes_text, plural
    from study.store.packing import pack as pack_runs

    sweep = folder_with_runs(folder)
    done = pack_runs(sweep, delete_weights)
    if as_json:
        click.echo(json.dumps(asdict(done) | {"path": str(done.path)}, indent=1))
        return
    scores = f" and {plural(done.scores, 'score')}" if done.scores else ""
    size = f"{plural(done.tables, 'file')} of {bytes_text(done.table_bytes)}"
    click.echo(f"{sweep.name}: {plural(done.runs, 'run')}{scores}, {done.files:,} files, packed into {size}: {done.path}")


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
    told = f"{sweep.name}: {plural(runs, 'run')} unpacked into {sweep.runs_folder}"
    click.echo(json.dumps({"sweep": sweep.name, "runs": runs}) if as_json else told)
