"""What is printed on a terminal is whole."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from pathlib import Path
from unicodedata import category

import pytest
from rich.console import Console
from rich.progress import TimeElapsedColumn, TimeRemainingColumn

import study
from study.base.terminal import PIPED_WIDTH, WHOLE, bars, narrow_table, say, show
from study.base.text import echo, tolerate_lost


@pytest.mark.parametrize("width", [80, 100])
def test_no_number_of_a_table_is_cut_where_the_terminal_is_narrow(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    row = [f"{number}.12345678" for number in range(10, 25)]
    table = narrow_table("wide", (), row, [("", row, "")])
    note = "a word of a note " * 20
    show(table, note)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert row in [line.split() for line in printed.splitlines()]
    assert max(len(line) for line in printed.splitlines() if "note" in line) <= width < PIPED_WIDTH


def test_rows_of_a_table_stand_below_what_they_share_and_above_what_is_noted_of_them() -> None:
    rows = [
        ("L1 norm=pre", ("3f2a", "5.1", ""), ""),
        ("L1 norm=pre", ("41d3", "5.25", ""), "stuck " * 20),
        ("L2", ("b7", "4", ""), ""),
    ]
    table = narrow_table("a title", ("run",), ("nats", "left"), rows)
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert " ".join(lines).count("stuck") == 20
    assert [line for line in lines if line and "stuck" not in line and "─" not in line] == [
        *("a title", "run   nats", "L1 norm=pre", "3f2a   5.1", "41d3  5.25", "L2", "b7       4")
    ], "and a column that is empty in every row is not there"


@pytest.mark.parametrize("width", [80, 200])
def test_numbers_beside_a_bar_stand_whole_at_any_width_and_its_words_are_wrapped(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    times = TimeElapsedColumn(table_column=WHOLE), TimeRemainingColumn(table_column=WHOLE)
    progress = bars(console, "{task.percentage:>3.0f}%", times[0], "left", times[1])
    label, note = "L2-H64-A2-F256 position_encoding=learned lr=4e-3 seed=0", "14,549 [tokens/s]"
    progress.add_task(label, total=100, completed=33, note=note)
    console.print(progress.get_renderable())
    lines = out.getvalue().splitlines()
    assert "33% 0:00:00 left -:--:--" in lines[0]
    assert ("━" in lines[0]) == (width == 200), "the bar gives way first"
    assert {*label.split(), *note.split()} <= {*out.getvalue().split()}
    assert (len(lines) > 1) == (width == 80)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_is_wrapped_at_words_on_a_terminal_and_stays_one_in_a_log(is_terminal: bool) -> None:
    out = io.StringIO()
    line = "COMPLETED L2-H64-A2-F256 [norm=pre] lr=4e-3 seed=0: 5.2424 ± 0.0244 nats after 399,872 tokens in 30 s"
    say(Console(file=out, width=80, force_terminal=is_terminal, color_system=None), line)
    lines = out.getvalue().splitlines()
    assert " ".join(each.strip() for each in lines) == line
    assert len(lines) == (2 if is_terminal else 1)


def test_work_outlives_who_listens_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    streams = Full(), Full()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    with tolerate_lost("stdout", "stderr"), bars(Console(stderr=True)) as shown:
        shown.add_task("a task", note="")
        say(Console(), "a word")
        sys.stderr.write("another")
        show("and more")
    assert (sys.stdout, sys.stderr) == streams
    with pytest.raises(OSError, match="No space left"):
        say(Console(), "a word")


HOSTILE = "a\x1b]0;owned\x07b\u202ec\x9bd\r\x1b[2Je\u200b é 漢 $x$"
"""It would name the window, turn letters round, and clear the screen."""


def test_text_of_unknown_origin_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = narrow_table(HOSTILE, (HOSTILE,), (), [(HOSTILE, (HOSTILE,), HOSTILE)])
    terminal = io.StringIO()
    echo(HOSTILE)
    show(HOSTILE, table)
    say(Console(file=terminal, force_terminal=True, color_system=None, width=200), HOSTILE)
    printed = capsys.readouterr().out + terminal.getvalue()
    assert printed.count("owned") == printed.count("漢") == 8
    assert not {character for character in printed if category(character) in ("Cc", "Cf")} - {"\n"}


def test_text_goes_out_by_one_door() -> None:
    """What prints in another way than by `echo`, `say` and `show` prints what it is given."""
    package = Path(study.__file__).parent
    doors = {package / "base" / "text.py", package / "base" / "terminal.py", package / "cli.py"}
    printing = re.compile(r"\bprint\(|click\.echo\(|sys\.stdout\.write|sys\.stderr\.writelines")
    files = {file for file in package.rglob("*.py") if file.parent.name != "benching"} - doors  # a bench prints its own numbers
    files |= {*package.parent.joinpath("analysis").glob("*.py")}
    assert {file for file in files if printing.search(file.read_text())} == set()
