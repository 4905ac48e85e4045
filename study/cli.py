"""The command line: parses, calls one function each, and shows what it returns."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click

from study.base.errors import InputError

HOMES = {
    "models": ("params", "compare", "figures", "shapes", "latency"),
    "sweeps": ("plan", "launch", "report", "status", "stop", "retry", "exclude"),
    "laws": ("laws", "fit", "score-law", "frontier", "plot", "multiverse", "replicate"),
    "scores": ("score", "features", "export", "import-encoder"),
    "bench": ("bench",),
    "trackers": ("sync", "import-wandb"),
    "packs": ("pack", "unpack"),
}
"""All commands, by the module of study.commands that defines them."""

INTERRUPTED_EXIT = 130

MOST_TOLD = 20
"""So many problems are told: of a list that is wrong throughout the first are enough."""

FOLDER_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOLCK),
    *(errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""What a folder answers that cannot be written to or locked, is full or is a file, or a name that is a folder or leads nowhere.

Any other error of the system is shown whole.
"""


def main() -> None:
    """Run the command line; bad input is told in full on standard error, with exit status 2."""
    warnings.filterwarnings("ignore", "flock not supported")  # study.store.locks tells what of it matters
    try:
        commands(prog_name="study", standalone_mode=False)
        click.echo(nl=False)  # what is left in the buffer
    except InputError as error:
        from study.base.text import printable

        told = [printable(f"error: {problem}") for problem in error.problems[:MOST_TOLD]]
        if (more := len(error.problems) - MOST_TOLD) > 0:
            told.append(f"error: and {more:,} more; these are the first")
        _end(2, *told)
    except OSError as error:
        if (lost := _lost_words()) is not None:
            _end(1, *([] if lost.errno == errno.EPIPE else [f"error: standard output: {lost.strerror}"]))
        if error.errno not in FOLDER_ERRORS or error.filename is None:
            raise
        _end(2, f"error: {error.filename}: {error.strerror}")
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        _end(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as stopped:
        why = (stopped.__cause__ or stopped).args  # click turns an interrupt into an Abort
        _end(INTERRUPTED_EXIT, "; ".join(["stopped", *map(str, why)]))


def _end(status: int, *told: str) -> NoReturn:
    """Say why on standard error, as far as anybody listens, and exit."""
    with suppress(OSError):
        for line in told:
            click.echo(line, err=True)
    sys.exit(status)


def _lost_words() -> OSError | None:
    """Why standard output takes no more, None where it takes a line; what is left for it then goes nowhere."""
    try:
        click.echo()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


class Commands(click.Group):
    """The commands of HOMES, each of which is imported when it is asked for, so that it waits for no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands in order."""
        return sorted(name for names in HOMES.values() for name in names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, None where there is none."""
        home = next((home for home, names in HOMES.items() if cmd_name in names), None)
        if home is None:
            return None
        found: click.Command = getattr(import_module(f"study.commands.{home}"), cmd_name.replace("-", "_"))
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="scaling-study", prog_name="study")
def commands() -> None:
    """Answer scaling questions about masked-language-model encoders with evidence.

    A sweep file asks one question. `study plan` says what it costs, `study launch` runs it and goes on where it was
    stopped, and `study report` redraws its figures and answer from the records.
    """
