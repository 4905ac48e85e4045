"""The command line: parses, calls one function each, and shows what it returns."""

from __future__ import annotations

import errno
import sys
import warnings

import click

from study.base.errors import InputError
from study.commands.bench import BENCH_COMMANDS
from study.commands.laws import LAW_COMMANDS
from study.commands.models import MODEL_COMMANDS
from study.commands.scores import SCORE_COMMANDS
from study.commands.sweeps import SWEEP_COMMANDS
from study.commands.trackers import TRACKER_COMMANDS

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
    except InputError as error:
        from study.base.terminal import printable

        for problem in error.problems[:MOST_TOLD]:
            click.echo(printable(f"error: {problem}"), err=True)
        if (more := len(error.problems) - MOST_TOLD) > 0:
            click.echo(f"error: and {more:,} more; these are the first", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in FOLDER_ERRORS or error.filename is None:
            raise
        click.echo(f"error: {error.filename}: {error.strerror}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt) as stopped:
        told = (stopped.__cause__ or stopped).args  # click turns an interrupt into an Abort
        click.echo("; ".join(["stopped", *map(str, told)]), err=True)
        sys.exit(INTERRUPTED_EXIT)


@click.group(
    commands=[*MODEL_COMMANDS, *SWEEP_COMMANDS, *LAW_COMMANDS, *SCORE_COMMANDS, *BENCH_COMMANDS, *TRACKER_COMMANDS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="scaling-study", prog_name="study")
def commands() -> None:
    """Answer scaling questions about masked-language-model encoders with evidence.

    A sweep file asks one question. `study plan` says what it costs, `study launch` runs it and goes on where it was
    stopped, and `study report` redraws its figures and answer from the records.
    """
