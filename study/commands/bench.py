"""The command that measures speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from study.base.machine import rest_at_barriers
from study.base.text import echo
from study.benching.results import TITLES, as_line, as_text
from study.commands.options import CountRange, FiniteRange, as_json, device_option, output_folder, threads_option

ALONE = ("design", "stopping")
"""The sections that measure no speed; each runs by itself."""


@click.command()
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([*TITLES, *ALONE]),
    metavar="SECTION",
    help=f"Measure only this, of {', '.join([*TITLES, *ALONE])}; repeatable.",
)
@click.option("--pools", type=click.Path(path_type=Path), help="Folder of scalebench's tables, for --only design.")
@click.option("--replay", type=click.Path(path_type=Path), help="Folder of a finished sweep, for --only design.")
@click.option("--shapes", help="Trained shapes as DEPTHxWIDTH, as in 2x128,4x256.  [default: the device's own]")
@click.option("--vocabulary", help="Word pieces V of the shapes.  [default: 30522,8192]")
@click.option("--dtype", default=None, help="Precisions of the shapes.  [default: fp32,bf16 on CPU, bf16 on CUDA]")
@click.option("--batch", type=CountRange(1), help="Sequences per batch of the shapes.  [default: 32]")
@click.option("--sequence-length", type=CountRange(8), help="Tokens per sequence of the shapes.  [default: 128]")
@click.option("--dropout", type=FiniteRange(0, 1, max_open=True), default=0.0, show_default=True, help="Of all contenders.")
@device_option
@threads_option
@click.option("--tokens", type=CountRange(1), default="1M", show_default=True, help="Of run_mlm, for time-to-loss.")
@click.option("--seeds", type=CountRange(1), default=1, show_default=True, help="Seeds of time-to-loss.")
@click.option("--preset-alone", is_flag=True, help="Race preset modern2 alone, without telling its parts apart.")
@click.option("--rounds", type=CountRange(1), help="Rounds of alternating contenders.  [default: 5, 3 on CUDA]")
@click.option("--into", type=output_folder, default=Path("results/bench"), show_default=True)
@as_json
def bench(
    only: tuple[str, ...],
    pools: Path | None,
    replay: Path | None,
    into: Path,
    as_json: bool,
    vocabulary: str | None,
    dtype: str | None,
    **options: Any,
) -> None:
    """Measure how fast this machine trains, starts and reads.

    The usual peer and the machine's own limits stand beside it. Every row is printed and written to <hardware>.json as
    it is finished; tables and figures lie beside it. With --json the rows are printed, by section if there are several.
    --only design measures no speed but how well chosen runs forecast, from the tables of --pools and the sweep of --replay, and
    writes design.md; --only stopping simulates how often sweeps that look after every seed err, and writes stopping.md.
    """
    if only == ("stopping",):
        _stopping(into, as_json)
        return
    if {*ALONE} & {*only} or pools is not None or replay is not None:
        _designs(only, pools, replay, into, as_json)
        return
    rest_at_barriers()
    from study.base.quantities import read_whole_numbers
    from study.benching.command import BenchOptions, run
    from study.plotting.speed import draw_files

    vocabularies = None if vocabulary is None else read_whole_numbers("--vocabulary", vocabulary)
    requested = BenchOptions(**options, vocabularies=vocabularies, dtypes=_dtypes(dtype))
    results, rows = run(requested, only, into, lambda section, row: echo(as_line(section, row), err=True), {"laws": _laws})
    draw_files(results.file)
    if as_json:
        echo(json.dumps(next(iter(rows.values())) if len(rows) == 1 else rows, indent=1))
    else:
        tables = [as_text(section, table, results.sections[section]["environment"]["busy"]) for section, table in rows.items()]
        echo("\n\n".join([*tables, f"Kept in {results.file}"]))


def _designs(only: tuple[str, ...], pools: Path | None, replay: Path | None, output: Path, as_json: bool) -> None:
    """Measure what designs forecast from finished runs, and write it; what is not measured stays as it was."""
    from study.base.errors import InputError

    if only != ("design",):
        raise InputError.at(
            f"--only {only[0] if only else 'design'}", "measures no speed and runs by itself; leave out the other sections"
        )
    if pools is None and replay is None:
        what = "one is needed with --only design: the folder of scalebench's tables, or the results of a finished sweep"
        raise InputError.at("--pools, --replay", what)
    from study.designing.benchmark import as_line, measure, measure_coverage, measure_replay, write
    from study.evidence.ledgers import open_ledger

    replayed = None if replay is None else open_ledger(replay)
    written = output / "design.md"

    def reporting(part: str) -> Callable[[dict[str, Any]], None]:
        rows: list[dict[str, Any]] = []

        def report(row: dict[str, Any]) -> None:
            rows.append(row)
            write(part, rows, output)
            echo(as_line(row), err=True)

        return report

    if pools is not None:
        measure(pools, reporting("designs"))
        write("coverage", measure_coverage(), output)
    if replayed is not None:
        measure_replay(replayed, reporting("replay"))
    echo((written.with_suffix(".json") if as_json else written).read_text(encoding="utf-8"))


def _stopping(output: Path, as_json: bool) -> None:
    """Simulate sweeps that stop when they are decided, and write what they did."""
    from study.designing.racing import measure, write

    rows = measure()
    text = write(rows, output).read_text(encoding="utf-8")
    echo(json.dumps(rows, indent=1) if as_json else text)


def _laws(report: Callable[[Mapping[str, Any]], None]) -> None:
    """Fit and refit Chinchilla's law, and fit it to a large ledger."""
    from study.benching.results import measurement
    from study.replicating.fit_times import CELLS, REFITS, RUNS_OF_A_CELL, ledger_seconds, measure

    times = measure()
    report(measurement(f"a fit and {REFITS:,} refits of Chinchilla's law ({times.status})", times.ours_seconds, "s"))
    report(measurement("SciPy's BFGS for as many, over ours", times.scipy_seconds / times.ours_seconds, "times"))
    ledger, table = ledger_seconds()
    report(measurement(f"a fit to a ledger of {CELLS * RUNS_OF_A_CELL:,} runs", ledger, "s"))
    report(measurement("over a fit to a table of as many rows", ledger / table, "times"))


def _dtypes(text: str | None) -> Any:
    from study.base.errors import InputError

    if text is None:
        return None
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(parts) <= {"fp32", "bf16"}:
        raise InputError.at("--dtype", f"{text!r} is not fp32, bf16 or both; write them as fp32,bf16")
    return parts
