"""Whatever a stranger's table or an expression over its columns holds, it is read or refused on a line: no other end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from study.base.errors import InputError
from study.laws.expressions import evaluate
from study.laws.tables import read_table
from tests.malice import outcome

pytestmark = pytest.mark.fuzz

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt", ".csv.gz", ".xlsx", "")
CELLS = st.sampled_from(
    [
        *(b"N,D,loss\n", b"N\tD\tloss\n", b"N D loss\n", b"1e6,2e7,3.5\n", b"1e6\t2e7\t3,5\n", b'"1,000","3,5",x\n', b"N,N\n"),
        *(
            b"10M,1B,3.2\n",
            b"\n",
            b",",
            b"\t",
            b";",
            b'"',
            b"\r\n",
            b"#",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"\0",
            b"nan",
            b"inf",
            b"-",
        ),
        *(
            b"9" * 400,
            b'{"N": 1, "loss": 3}\n',
            b'{"N": {"0": 1}}',
            b"[[1]]",
            b"[" * 3000,
            b"PAR1",
            b"PK\x03\x04",
            b"\x1f\x8b",
            b"{",
        ),
    ]
)

FRAME = pd.DataFrame({"N": [1.0, 2.0, None], "Model Size": [3, 4, 5], "kind": ["a", "b", None], "recipe.rate": [0.1, 0.2, 0.3]})
WORDS = st.sampled_from(
    [
        *(
            "N",
            "Model Size",
            "`loss-c4`",
            "kind",
            "recipe.rate",
            "nowhere",
            "'a'",
            '"b"',
            "1",
            "0",
            "1e400",
            "1e-400",
            "9" * 90,
        ),
        *(
            "+",
            "-",
            "*",
            "/",
            "**",
            "%",
            "//",
            "@",
            "==",
            "!=",
            "<",
            "<=",
            "in",
            "not in",
            "not",
            "and",
            "or",
            "&",
            "|",
            "~",
            "is",
        ),
        *("(", ")", "((((", "[", "]", "{", "}", ",", ".", ":", ":=", "=", ";", "`", "'", "\\", "\n", "\0", "\ud800", "lambda"),
        *(
            "__import__('os')",
            "N.__class__",
            "f'{N}'",
            "[N for N in N]",
            "9**9**9",
            "N(1)",
            "N[0]",
            "*N",
            "...",
            "True",
            "None",
        ),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def columns(name: str) -> pd.Series[Any]:
    if name not in FRAME:
        raise InputError.at("column", f"{name!r} is not there")
    return FRAME[name]


@given(st.sampled_from(SUFFIXES), st.lists(CELLS, max_size=8).map(b"".join) | st.binary(max_size=40))
@example(".csv", b"N,D\n1,2,3,4\n")
@example(".csv", b',\r\n"1,000","3,5",x\n"1,000","3,5",x\n')
@example(".jsonl", b'{"N": 1}\n[2]\n')
@example(".csv", b"[" * 6000 + b"," + b"[" * 6000 + b"\n1,2\n")
@example(".csv", b'"' + b"9," * 70_000)
def test_a_table_is_read_or_refused(folder: Path, suffix: str, content: bytes) -> None:
    file = folder / f"fuzz{suffix}"
    file.write_bytes(content)
    table, problems = outcome(lambda: read_table(file))
    assert all(problem.place.startswith(str(file)) for problem in problems)
    assert table is None or len(set(table.columns)) == len(table.columns)


@given(st.lists(WORDS, max_size=9).map(" ".join) | st.text(max_size=20))
@example("(" * 900)
@example("N" + "+N" * 499)
@example("-" * 999 + "N")
def test_an_expression_has_a_value_or_is_refused(text: str) -> None:
    _, problems = outcome(lambda: evaluate(text, columns, "--where", FRAME.columns))
    assert all(problem.place in ("--where", "column") for problem in problems)
