"""What the shell completes by Tab: models, laws, tasks, sweeps and runs by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from study.base.shipped import shipped


def complete(context: click.Context, incomplete: str, sources: Iterable[str], paths: bool) -> list[CompletionItem]:
    """Return the names of sources, functions of this module, that begin like the end of a list with commas.

    Or paths if asked.
    """
    before, comma, begun = incomplete.rpartition(",")
    names = [name for source in sources for name in globals()[source](context) if name.startswith(begun)]
    ours = [CompletionItem(f"{before}{comma}{name}") for name in names]
    return [CompletionItem(incomplete, type="file"), *ours] if paths else ours  # bash forgets what comes before a path


def models(_context: click.Context) -> list[str]:
    """Return the names of the models of the literature."""
    from study.counting.named_models import catalogue

    return [model.short_name for model in catalogue()]


def laws(_context: click.Context) -> list[str]:
    """Return the names of the laws."""
    from study.laws.catalogue import LAWS

    return [*LAWS]


def tasks(_context: click.Context) -> list[str]:
    """Return the names of the known tasks."""
    from study.tasks.task_spec import known_tasks

    return known_tasks()


def shipped_sweeps(_context: click.Context) -> list[str]:
    """Return the names of the shipped sweeps."""
    return [*shipped("sweeps")]


def notebooks(_context: click.Context) -> list[str]:
    """Return the names of the shipped notebooks."""
    return [*shipped("analysis", ".py")]


def sweep_folders(context: click.Context) -> list[str]:
    """Return the folders of the sweeps in the results folder."""
    return sorted(str(file.parent) for file in _results(context).glob("[!.]*/sweep.yaml"))


def runs(context: click.Context) -> Iterator[str]:
    """Yield the ids of the runs in the results folder, or in the sweep's folder that stands before."""
    from study.store.sweep_folder import SweepFolder

    folder = context.params.get("folder")
    folders = map(Path, sweep_folders(context)) if folder is None else [folder]
    yield from dict.fromkeys(run.run_id for path in folders for run in SweepFolder(path).runs())


def _results(context: click.Context) -> Path:
    return Path(context.params.get("results") or "results")
