"""What is printed on a terminal is whole."""

from __future__ import annotations

import pytest

from study.terminal import PIPED_WIDTH, narrow_table, show


@pytest.mark.parametrize("width", [80, 100])
def test_no_number_of_a_table_is_cut_where_the_terminal_is_narrow(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    row = [f"{number}.12345678" for number in range(10, 25)]
    table = narrow_table("wide", (), tuple(row))
    table.add_row(*row)
    note = "a word of a note " * 20
    show(table, note)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert row in [line.split() for line in printed.splitlines()]
    assert max(len(line) for line in printed.splitlines() if "note" in line) <= width < PIPED_WIDTH
