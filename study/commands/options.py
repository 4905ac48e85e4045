"""Options and arguments that several commands share, and what the shell completes for them."""

from __future__ import annotations

import math
import os
import re
import sys
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.base.errors import InputError, shown
from study.base.quantities import listed, read_count, read_whole

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from study.store.sweep_folder import SweepFolder


def completing(*sources: str, paths: bool = False) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Tab completion by names of SOURCES that begin like the end of a list with commas, or by paths, too."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        before, comma, begun = incomplete.rpartition(",")
        names = [name for source in sources for name in SOURCES[source](context) if name.startswith(begun)]
        ours = [CompletionItem(f"{before}{comma}{name}") for name in names]
        return [CompletionItem(incomplete, type="file"), *ours] if paths else ours  # bash forgets what comes before a path

    return complete


class FiniteRange(click.FloatRange):
    """A number between two ends, written as in files: 1,000 and 1k are the same; unlike click's it refuses nan and infinity."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails where it is none, is not finite, or lies outside."""
        if isinstance(value, str):
            with suppress(InputError):
                value = read_count("", value)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not finite", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Return the range in the help, empty where there is none."""
        if self.min is None and self.max is None:
            return ""
        return re.sub(r"[\d.]+(?:e[+-]?\d+)?", lambda number: f"{float(number[0]):g}", super()._describe_range())


class CountRange(click.IntRange):
    """A whole number between two ends, written as in files: 16K and 16,000 are the same."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails where it is none, is not whole, or lies outside."""
        if isinstance(value, str) and param is not None and not value.removeprefix("-").isdecimal():
            value = read_whole(param.opts[0], value)
        return super().convert(value, param, ctx)

    def _describe_range(self) -> str:
        """Return the range in the help, empty where there is none."""
        if self.min is None and self.max is None:
            return ""
        return re.sub(r"\d+", lambda number: f"{int(number[0]):,}", super()._describe_range())


device_option = click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)

threads_option = click.option("--threads", type=CountRange(1, 1024), help="CPU threads.  [default: all cores of this process]")


class OutputFolder(click.Path):
    """A folder to write into, which may be new; an unwritable one is refused at once."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder; fails where it is unwritable."""
        from study.base.durable_files import takes_files

        folder = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not takes_files(folder):
            self.fail(f"{str(folder)!r} cannot be written; give another folder", param, ctx)
        return folder


output_folder = OutputFolder()

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


class Formats(click.ParamType[list[str]]):
    """Formats of figures, as a list such as `svg,pdf`."""

    name = "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the formats; raises InputError for an unknown one."""
        for name in (names := listed(value)):
            if name not in (known := ("svg", "pdf", "png", "csv")):
                raise InputError.at("--formats", f"{shown(name)} is not a format of figures; choose from {', '.join(known)}")
        return names


def figure_options(command: Any) -> Any:
    """Return the formats and the style of the figures that a command writes."""
    for option in (
        click.option(
            "--style",
            type=click.Choice(["page", "paper"]),
            default="page",
            show_default=True,
            help="Figures as wide as a page (7.2 in) or as a column of a paper (3.3 in).",
        ),
        click.option(
            "--formats",
            default="svg",
            show_default=True,
            type=Formats(),
            help="Some of svg,pdf,png,csv; SVG is always written, csv is the figure's data.",
        ),
    ):
        command = option(command)
    return command


def open_page(address: str) -> None:
    """Open a page in a browser with windows; one that would take the terminal is left alone."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)


results_option = click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder of all sweeps: a launch adds to it, and runs are found in it.",
)
"""Where sweeps are, for commands that read there or launch; whatever else a command writes goes `--into` a folder."""


PLACES = ("on", "device", "slots_per_device", "partition", "time", "array")
"""The parameters of `place_options`."""


def place_options(command: Any) -> Any:
    """Return the options that say where runs or scores execute, and how many at a time."""
    for option in (
        click.option("--array", type=CountRange(1), help="Most Slurm jobs in the queue at a time.  [default: 64]"),
        click.option("--time", help="Time limit of each Slurm job, such as 30m or 4h; runs continue in further jobs."),
        click.option("--partition", help="Partition of the Slurm jobs."),
        click.option(
            "--slots-per-device",
            type=CountRange(1),
            help="Jobs at a time on each device.  [default: 1 per GPU, or 1 per CPU core]",
        ),
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Kind of device.  [default: auto]"),
        click.option(
            "--on",
            type=click.Choice(["local", "slurm", "ray"]),
            help="Where jobs execute; slurm and ray are extras.  [default: local]",
        ),
    ):
        command = option(command)
    return command


MOST_NAMED = 5
"""At most so many sweeps are named where a folder of several was given for one."""

folder_argument = click.argument(
    "folder", type=click.Path(path_type=Path), shell_complete=completing("sweep_folders", paths=True)
)


def sweep_folder(path: Path) -> SweepFolder:
    """Return the sweep's folder, also of a launch that has written nothing yet; raises InputError where there is none."""
    from study.base.durable_files import is_there
    from study.store.ownership import is_held

    folder = _folder(path)
    if not is_there(folder.sweep_file) and not any(map(is_held, (folder.launching, folder.scoring))):
        raise InputError.at(str(path), f"is not a sweep folder: it has no sweep.yaml; {_folder_meant(path)}")
    return folder


def folder_with_runs(path: Path) -> SweepFolder:
    """Return a folder with runs, of a sweep or of imported encoders; else as `sweep_folder`."""
    folder = _folder(path)
    return folder if folder.runs() else sweep_folder(path)


def _folder(path: Path) -> SweepFolder:
    """Return the folder at a path, named even where the path ends in no name."""
    from study.store.sweep_folder import SweepFolder

    return SweepFolder(path if path.name not in ("", "..") else path.resolve())


def _folder_meant(path: Path) -> str:
    """Return a hint at the folder that may be meant: by a sweep's name, file or results, or by a similar name."""
    from study.base.durable_files import is_there
    from study.base.errors import near
    from study.store.sweep_folder import SweepFolder, sweeps_in

    named = SweepFolder(Path("results") / path.stem)
    if is_there(named.sweep_file):
        return f"did you mean {named.path}?"
    beside = {folder.parent.name: folder.parent for folder in sorted(path.parent.glob("*/sweep.yaml"))}
    if (best := near(path.name, [*beside])) is not None:
        return f"did you mean {beside[best]}?"
    with suppress(InputError):
        below = [str(sweep.path) for sweep in sweeps_in(path).values()]
        return f"give one of them, such as {', '.join(below[:MOST_NAMED])}{', …' if len(below) > MOST_NAMED else ''}"
    return "give one under results/"


def _models(_context: click.Context) -> list[str]:
    from study.counting.named_models import catalogue

    return [model.short_name for model in catalogue()]


def _laws(_context: click.Context) -> list[str]:
    from study.laws.catalogue import LAWS

    return [*LAWS]


def _questions(_context: click.Context) -> list[str]:
    from study.evidence.recipe_multiverse import ASKABLE

    return ["compute", "shape", *ASKABLE]


def _tasks(_context: click.Context) -> list[str]:
    from study.tasks.task_spec import known_tasks

    return known_tasks()


def _shipped_sweeps(_context: click.Context) -> list[str]:
    from study.base.shipped import shipped

    return [*shipped("sweeps")]


def _notebooks(_context: click.Context) -> list[str]:
    from study.base.shipped import shipped

    return [*shipped("analysis", ".py")]


def _sweep_folders(context: click.Context) -> list[str]:
    return sorted(str(file.parent) for file in _results(context).glob("[!.]*/sweep.yaml"))


def _runs(context: click.Context) -> Iterator[str]:
    from study.store.sweep_folder import SweepFolder

    folder = context.params.get("folder")
    folders = map(Path, _sweep_folders(context)) if folder is None else [folder]
    yield from dict.fromkeys(run.run_id for path in folders for run in SweepFolder(path).runs())


def _results(context: click.Context) -> Path:
    return Path(context.params.get("results") or "results")


SOURCES: Mapping[str, Callable[[click.Context], Iterable[str]]] = {
    "models": _models,
    "laws": _laws,
    "questions": _questions,
    "tasks": _tasks,
    "shipped_sweeps": _shipped_sweeps,
    "notebooks": _notebooks,
    "sweep_folders": _sweep_folders,
    "runs": _runs,
}
"""What the shell completes by Tab; the sweeps and runs are those of the results folder, or of the sweep that stands before."""
