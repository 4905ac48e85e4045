"""Tables of every kind that people save: read right, or refused by name with what to do."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS
from study.laws.reading import TableQuery, read_observations
from study.laws.tables import RunTable, read_table, tidy_table

SIZES = [31_600_000, 125_000_000, 354_000_000, 1_300_000_000, 2_700_000_000]
LOSSES = [3.912, 3.25, 2.981, 2.656, 2.53]
FRAME = pd.DataFrame({"N": SIZES, "loss": LOSSES})


def check(path: Path) -> None:
    points = read_observations(TableQuery(RunTable.read(path)), LAWS["power"])
    np.testing.assert_allclose(points.columns["parameters"], SIZES)
    np.testing.assert_allclose(points.response, LOSSES)


def csv(frame: pd.DataFrame = FRAME) -> bytes:
    return frame.to_csv(index=False).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv.gz", gzip.compress(csv())),
        ("t.csv.bz2", bz2.compress(csv())),
        ("t.tsv.xz", lzma.compress(csv().replace(b",", b"\t"))),
        ("runs.v2.jsonl.gz", gzip.compress(FRAME.to_json(orient="records", lines=True).encode())),
        ("t.txt", FRAME.to_string(index=False).encode()),
        ("t.txt", FRAME.to_string().encode()),
        ("t.dat", b'"N" "loss"\n' + "".join(f'"{row}" {N} {loss}\n' for row, N, loss in FRAME.itertuples()).encode()),
        ("t.csv", csv().replace(b",", b" ")),
        ("t.dat", b"# of last week\n" + csv().replace(b",", b"   ")),
        ("t.txt", csv().replace(b",", b"|")),
        ("t.json", FRAME.to_json().encode()),
        ("t.json", FRAME.to_json(orient="index").encode()),
        ("t.json", FRAME.to_json(orient="split").encode()),
        ("t.json", FRAME.to_json(orient="table").encode()),
        ("t.json", FRAME.to_json(orient="records").encode()),
        ("t.json", json.dumps(FRAME.to_dict(orient="list")).encode()),
        ("t.csv", FRAME.to_csv(index=False, sep=";", decimal=",").encode()),
        ("t.tsv", FRAME.to_csv(index=False, sep="\t", decimal=",").encode()),
        ("t.csv", FRAME.to_csv(index=False, decimal=",").encode()),
        ("t.csv", FRAME.assign(N=[f"{size:,}" for size in SIZES]).to_csv(index=False).encode()),
        ("t.csv", FRAME.assign(N=[f"{size:,}".replace(",", "’") for size in SIZES]).to_csv(index=False).encode()),
        ("t.csv", FRAME.assign(N=[f"{size / 1e6:g}M" for size in SIZES]).to_csv(index=False).encode()),
        (
            "t.csv",
            FRAME.assign(N=[f"{size:,}".replace(",", ".") for size in SIZES])
            .to_csv(index=False, decimal=",", sep=";")
            .encode(),
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_tables_are_read_as_they_are_saved(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    check(tmp_path / name)


def test_text_in_quotes_is_one_field_between_blanks(tmp_path: Path) -> None:
    """write.table of R quotes names and text, with blanks in them or not."""
    rows = [f'"{row}" {N} {loss} "model {row}"' for row, N, loss in FRAME.itertuples()]
    (tmp_path / "t.dat").write_text("\n".join(['"N" "loss" "model name"', *rows]))
    check(tmp_path / "t.dat")
    assert read_table(tmp_path / "t.dat")["model name"].tolist() == [f"model {row}" for row in range(len(FRAME))]


def test_a_named_index_is_columns(tmp_path: Path) -> None:
    """Else a column that names the runs is lost where it is the index."""
    table = FRAME.assign(run=list("abcde"), step=10)
    for index in ("run", ["run", "step"]):
        table.set_index(index).to_parquet(tmp_path / "t.parquet")
        assert read_table(tmp_path / "t.parquet")["run"].tolist() == list("abcde")
    check(tmp_path / "t.parquet")
    clash = FRAME.set_index(pd.Index(list("abcde"), name="loss"))
    with pytest.raises(InputError, match="more than one column named loss"):
        tidy_table(clash, tmp_path)


def test_dots_join_the_levels_of_a_column_name(tmp_path: Path) -> None:
    levels = FRAME.set_axis(pd.MultiIndex.from_tuples([("config", "N"), ("eval", "loss")]), axis=1)
    named = tidy_table(levels.set_axis(pd.Index(list("abcde"), name="run")), tmp_path)
    assert list(named) == ["run", "config.N", "eval.loss"]


def test_names_with_blanks_are_kept_where_wide_blanks_separate_columns(tmp_path: Path) -> None:
    table = FRAME.rename(columns={"N": "Model Size", "loss": "Val Loss"})
    (tmp_path / "t.txt").write_text("\n".join([f"{a}   {b}" for a, b in [tuple(table.columns), *table.to_numpy().tolist()]]))
    assert list(read_table(tmp_path / "t.txt").columns) == ["Model Size", "Val Loss"]


@pytest.mark.parametrize("mark", ["\t", ";"])
def test_a_comma_before_three_digits_is_decimal_where_other_numbers_show_it(tmp_path: Path, mark: str) -> None:
    """3,656 was read as 3656, and then taken for a perplexity."""
    (tmp_path / "t.tsv").write_text(FRAME.to_csv(index=False, sep=mark, decimal=","))
    assert read_table(tmp_path / "t.tsv")["loss"].tolist() == LOSSES


def test_numbers_that_may_be_read_in_two_ways_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("N\tloss\n125\t3,912\n354\t3,250\n")
    with pytest.raises(InputError, match=r"loss: '3,912' may mean 3.912 or 3912; write it in one of these ways"):
        check(path)
    path.write_text("N;loss\n1.250.000;3,656\n125.000;3,901\n")
    assert read_table(path)["N"].tolist() == [1_250_000, 125_000]
    path.write_text("N\tloss\n125.000\t3,65\n354.000\t3,2\n")
    with pytest.raises(InputError, match=r"N: '125.000' may mean 125 or 125000, as other columns have decimal commas"):
        check(path)


def with_units(losses: list[str], header: str = "loss", sizes: str = "{}") -> pd.DataFrame:
    return pd.DataFrame({"N": [sizes.format(size) for size in SIZES], header: losses})


@pytest.mark.parametrize("form", ["{} nats", "{}nats", "{} Nats/token", "{} (nats)", " {} nat per token "])
def test_losses_whose_cells_say_nats_are_read(tmp_path: Path, form: str) -> None:
    with_units([form.format(loss) for loss in LOSSES], sizes="{} params").to_csv(tmp_path / "t.csv", index=False)
    check(tmp_path / "t.csv")
    decimal = with_units([form.format(f"{loss:g}".replace(".", ",")) for loss in LOSSES])
    decimal.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    check(tmp_path / "t.tsv")


@pytest.mark.parametrize(
    ("cells", "said", "remedy"),
    [
        ([f"{loss / np.log(2)} bits" for loss in LOSSES], "bits", "0.693147*loss"),
        ([f"{loss / np.log(2)} bits per token" for loss in LOSSES], "bits", "0.693147*loss"),
        ([f"{np.exp(loss)} ppl" for loss in LOSSES], "perplexity", "log(loss)"),
    ],
    ids=["bits", "bits per token", "ppl"],
)
def test_losses_whose_cells_say_another_unit_are_refused_with_what_reads_them(
    tmp_path: Path, cells: list[str], said: str, remedy: str
) -> None:
    with_units(cells).to_csv(tmp_path / "t.csv", index=False)
    table = RunTable.read(tmp_path / "t.csv")
    with pytest.raises(InputError) as refused:
        read_observations(TableQuery(table), LAWS["power"])
    (problem,) = map(str, refused.value.problems)
    assert problem.startswith(f"loss: is in {said} by its cells, not in nats; ")
    assert f"give --loss '{remedy}'" in problem
    points = read_observations(TableQuery(table, {"loss": remedy}), LAWS["power"])
    np.testing.assert_allclose(points.response, LOSSES, rtol=1e-6)
    as_it_is = read_observations(TableQuery(table, any_units=True), LAWS["power"])
    np.testing.assert_allclose(as_it_is.response, [float(cell.split()[0]) for cell in cells])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["3.9 nats", "5.2 bits", "2.9 nats"], "loss: holds cells in different units (row 1: '3.9 nats', row 2: '5.2 bits')"),
        (["3.9", "3.2 nats", "2.9"], "loss: holds cells in different units (row 1: '3.9', row 2: '3.2 nats')"),
        (["1.1 bpb", "1.0 bpb", "0.9 bpb"], "loss: is in bits per byte by its cells, not in nats; "),
        (["3.9 tokens"] * 2 + ["3.1 tokens"], "loss: is in tokens by its cells, not in nats; name another column"),
        (["3.9 hartleys", "3.2 hartleys", "2.9 hartleys"], "loss: holds 5 non-numeric values (row 1: '3.9 hartleys'"),
    ],
)
def test_units_that_differ_or_do_not_fit_are_refused(tmp_path: Path, cells: list[str], message: str) -> None:
    with_units(cells + cells[:2]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError) as refused:
        check(tmp_path / "t.csv")
    assert str(refused.value.problems[0]).startswith(message)


@pytest.mark.parametrize("rows", [b"1,2,3,\n4,5,6,\n", b'"a",1,2,3\n"b",4,5,6\n'], ids=["a last comma", "names of rows"])
def test_fields_without_a_name_shift_no_column(tmp_path: Path, rows: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(b"N,D,loss\n" + rows)
    table = read_table(tmp_path / "t.csv")
    assert table[["N", "D", "loss"]].to_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv.zst", b"(\xb5/\xfd", "t.csv.zst: is none of .* decompress it first"),
        ("t.xls", b"\xd0\xcf", "t.xls: is none of .* save it as .xlsx or .csv"),
        ("t.feather", b"ARROW1", "save it as .parquet"),
        ("t.csv", b'"N,loss\n' + b"1,2\n" * 40_000, "cannot be read as csv: its header has a quote that nothing closes"),
        ("t.csv.gz", b"N,loss\n1,2\n", r"cannot be read as csv\.gz: Not a gzipped file"),
        ("t.csv.gz", gzip.compress(csv(), mtime=0)[:-9], r"cannot be read as csv\.gz: Compressed file ended"),
        ("t.csv", b"| N | loss |\n|---|---|\n| 1 | 2 |\n", "is a Markdown table; save it as .csv"),
        ("t.json", b'{"a": {"N": 1, "loss": 2}, "b": {"N": 1, "loss": 3}}', r"save it by to_json\(orient='records'\)"),
        ("t.json", b'{"N": [1, 2], "loss": [3]}', "its columns differ in length"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_table(tmp_path / name)


def _without_openpyxl(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise ImportError("Missing optional dependency 'openpyxl'")

    monkeypatch.setattr(pd, "read_excel", absent)


def test_a_workbook_is_refused_by_name_where_openpyxl_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_openpyxl(monkeypatch)
    (tmp_path / "t.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=r"is an Excel workbook; save it as .csv, or install openpyxl"):
        read_table(tmp_path / "t.xlsx")


def _two_sheets(path: Path) -> None:
    with pd.ExcelWriter(path) as book:
        FRAME.to_excel(book, sheet_name="one", index=False)
        FRAME.to_excel(book, sheet_name="two", index=False)


def test_dates_are_no_numbers(tmp_path: Path) -> None:
    """A spreadsheet makes 3-12 a date, and the nanoseconds of dates were read as sizes and losses."""
    FRAME.assign(loss=pd.to_datetime(["2026-03-12"] * len(FRAME))).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"loss: holds 5 non-numeric values \(row 1: '2026-03-12"):
        check(tmp_path / "t.parquet")


def test_the_only_sheet_of_a_workbook_is_read(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="openpyxl is an extra")
    FRAME.to_excel(tmp_path / "t.xlsx", index=False)
    check(tmp_path / "t.xlsx")
    _two_sheets(tmp_path / "t.xlsx")
    with pytest.raises(InputError, match=r"has 2 sheets with rows \(one, two\); save one as .csv"):
        read_table(tmp_path / "t.xlsx")
    (tmp_path / "t.xlsx").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(InputError, match="cannot be read as xlsx"):
        read_table(tmp_path / "t.xlsx")


CHANGES: list[Callable[[pd.DataFrame], pd.DataFrame]] = [
    lambda frame: frame.iloc[::-1],
    lambda frame: frame[["loss", "N"]],
    lambda frame: frame.rename(columns=str.upper),
]


@pytest.mark.parametrize("change", CHANGES)
def test_neither_order_nor_case_changes_the_points(tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(FRAME).to_csv(tmp_path / "t.csv", index=False)
    points = read_observations(TableQuery(RunTable.read(tmp_path / "t.csv")), LAWS["power"])
    assert sorted(zip(points.columns["parameters"].tolist(), points.response.tolist(), strict=True)) == sorted(
        zip(SIZES, LOSSES, strict=True)
    )
