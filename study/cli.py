"""The command line: each command parses, calls one function, and shows the result."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

import click

from study.base.errors import InputError, near
from study.base.text import echo, printable, tolerate_lost

HOMES = {
    "sweeps": ("demo", "new", "sweeps", "plan", "launch", "report", "dashboard", "notebook"),
    "runs": ("status", "stop", "retry", "exclude", "pack", "unpack"),
    "laws": ("laws", "fit", "predict", "design", "score-law", "frontier", "plot", "multiverse", "replicate"),
    "models": ("params", "compare", "figures", "shapes", "latency"),
    "scores": ("tasks", "score", "features", "export", "import-encoder", "compress"),
    "trackers": ("sync", "open", "import-wandb", "optuna"),
    "bench": ("bench",),
}
"""All commands, by the module of study.commands that defines them."""

TITLES = {
    "sweeps": "Sweeps",
    "runs": "Runs of a sweep",
    "laws": "Scaling laws",
    "models": "Models",
    "scores": "Trained encoders and tasks",
    "trackers": "W&B and Optuna",
    "bench": "Speed",
}
"""The titles of the groups of commands in the help."""

INTERRUPTED_EXIT = 130

MOST_REPORTED = 20
"""At most so many problems are reported."""

REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or work on a copy in a folder of your own"),
    errno.EROFS: "work on a copy in a folder that can be written",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there, and run the command again"),
    **dict.fromkeys((errno.EFBIG, errno.ENOLCK), "use another file system"),
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR), "move it away, or give another path"),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), "give another path"),
}
"""What helps where a folder is unwritable, unlockable, full or a file, or a path leads nowhere.

Any other system error is shown whole.
"""


def main() -> None:
    """Run the command line; bad input is reported in full on standard error, with exit status 2.

    A lost standard error ends no command: progress and remarks are dropped. A lost standard output ends it with status 1.
    """
    _replace_closed_streams()
    with tolerate_lost("stderr"):
        _run()


def _run() -> None:
    warnings.filterwarnings("ignore", "flock not supported")  # study.store.ownership tells what of it matters
    try:
        commands(prog_name="study", standalone_mode=False)
        click.echo(nl=False)  # what is left in the buffer
    except InputError as error:
        lines = [printable(f"error: {problem}") for problem in error.problems[:MOST_REPORTED]]
        if (more := len(error.problems) - MOST_REPORTED) > 0:
            lines.append(f"error: and {more:,} more")
        _end(2, *lines)
    except OSError as error:
        if (lost := _lost_words()) is not None:
            _end(1, *([] if lost.errno == errno.EPIPE else [f"error: standard output: {lost.strerror}"]))
        remedy = REMEDIES.get(error.errno or 0)
        if remedy is None or error.filename is None:
            raise
        _end(2, printable(f"error: {error.filename}: {error.strerror}; {remedy}"))
    except ModuleNotFoundError as error:
        package = (error.name or "study").partition(".")[0]
        if find_spec(package) is not None:
            raise
        _end(2, f"error: study {' '.join(sys.argv[1:2])} needs {package}, which is not installed: pip install scaling-study")
    except click.ClickException as error:
        words = io.StringIO()
        error.show(words)
        _end(error.exit_code, words.getvalue().removesuffix("\n"))
    except (click.Abort, KeyboardInterrupt) as stopped:
        why = (stopped.__cause__ or stopped).args  # click turns an interrupt into an Abort
        _end(INTERRUPTED_EXIT, "; ".join(["stopped", *map(str, why)]))


def _replace_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams (`>&-`), whose numbers the next files would get."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _end(status: int, *lines: str) -> NoReturn:
    """Report on standard error and exit."""
    for line in lines:
        echo(line, err=True)
    sys.exit(status)


def _lost_words() -> OSError | None:
    """Return the error of a broken standard output, None where it works; what is left to print is then discarded."""
    try:
        click.echo()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


class Commands(click.Group):
    """The commands of HOMES; each is imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in order."""
        return sorted(name for names in HOMES.values() for name in names)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, each with its summary."""
        limit = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for home, names in HOMES.items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            with formatter.section(TITLES[home]):
                formatter.write_dl([(name, one.get_short_help_str(limit)) for name, one in commands if one is not None])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; an unknown one is reported with the nearest name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if (best := near(args[0], self.list_commands(ctx))) is None:
                raise
            raise click.UsageError(f"unknown command {args[0]!r}; did you mean {best!r}?", ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, None where there is none."""
        home = next((home for home, names in HOMES.items() if cmd_name in names), None)
        if home is None:
            return None
        command: click.Command = getattr(import_module(f"study.commands.{home}"), cmd_name.replace("-", "_"))
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="scaling-study", prog_name="study")
def commands() -> None:
    """Answer scaling questions about masked-language-model encoders with evidence.

    A sweep file asks one question. `study plan` says what it costs, `study launch` runs it and goes on where it was stopped,
    and `study report` redraws its figures and answer from the records.
    """
