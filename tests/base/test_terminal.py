"""What is printed on a terminal is whole."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest
from rich.console import Console
from rich.progress import TimeElapsedColumn, TimeRemainingColumn

from study.base.terminal import PIPED_WIDTH, WHOLE, bars, narrow_table, say, show, tolerate_lost_output


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
    told = [line.strip() for line in out.getvalue().splitlines()]
    assert " ".join(told).count("stuck") == 20
    assert [line for line in told if line and "stuck" not in line and "─" not in line] == [
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
    with tolerate_lost_output(), bars(Console(stderr=True)) as shown:
        shown.add_task("a task", note="")
        say(Console(), "a word")
        sys.stderr.write("another")
        show("and more")
    assert (sys.stdout, sys.stderr) == streams
    with pytest.raises(OSError, match="No space left"):
        say(Console(), "a word")
