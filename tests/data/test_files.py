"""A user's files are read in bounded memory, and refused with the place of what is wrong."""

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.base.errors import InputError
from study.data.text_files import MAX_CHARACTERS, corpus_files, pieces, read_file


def read(path: Path, column: str = "text") -> list[str]:
    return list(read_file(path, column))


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 9))
def test_pieces_are_short_and_join_to_the_text(text: str, limit: int) -> None:
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= limit
    for before in parts[:-1]:
        assert before[-1] in " \n" or not set(before) & {" ", "\n"}, "a part is cut inside a word only where it is one word"


def test_blank_lines_separate_the_documents_of_a_text_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "\ufeffone\r\nstill one\r\n\r\n \t\r\ntwo\n\n\n")
    assert [text.split() for text in read(path)] == [["one", "still", "one"], ["two"]]


def test_an_endless_line_comes_in_parts_and_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("w") as file:
        for _ in range(30):
            file.write("word " * 200_000)
    tracemalloc.start()
    lengths = [len(text) for text in read_file(path, "text")]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(lengths) == 30_000_000
    assert max(lengths) <= MAX_CHARACTERS
    assert peak < 12_000_000


def test_json_lines_and_parquet_give_the_same_texts(tmp_path: Path) -> None:
    texts = ["one", None, "", "ünï\u2028code"]
    lines = "\n".join(json.dumps({"id": number, "text": text}) for number, text in enumerate(texts))
    table = pa.table({"id": range(4), "text": texts})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(written(tmp_path / "a.jsonl", lines + "\n\n")) == read(tmp_path / "a.parquet") == ["one", "", "", texts[3]]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_string_type_of_parquet_is_text(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"text": pa.array(["one", None]).cast(kind)}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == ["one", ""]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n" * 400_000 + b"caf\xe9 x", r"is not UTF-8 text \(byte 2000003\)"),
        ("a.txt", b"fine\xc3", r"is not UTF-8 text \(byte 4\)"),
        ("a.txt", b"fine\0", r"NUL \(byte 4\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}', r"a.jsonl:2: is not UTF-8 text \(byte 24 of the file\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"a.jsonl:2: is not JSON: .* of the file\)"),
        ("a.jsonl", b'\xef\xbb\xbf{"text":"\xff"}', r"is not UTF-8 text \(byte 12 of the file\)"),
        ("a.jsonl", b'{"text": "a", "n": ' + b"1" * 5000 + b"}", r"a.jsonl:1: cannot be read: Exceeds the limit"),
        ("a.jsonl", '{"text": "éé" x}'.encode(), r"is not JSON: .* \(byte 16 of the file\)"),
        ("a.jsonl", b"\xef\xbb\xbf" + '{"text": "éé" x}'.encode(), r"is not JSON: .* \(byte 19 of the file\)"),
        ("a.jsonl", b'["text"]', r"a.jsonl:1: is \['text'\] where an object"),
        ("a.jsonl", b'{"texts": "a"}', r"'text' is not a column of .*a.jsonl:1; did you mean 'texts'"),
        ("a.jsonl", b'{"text": 3, "body": "a"}', r"'text' does not hold text in .*; known: body"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1: is nested too deeply"),
        ("a.parquet", b"PAR1 but not really", r"is not a Parquet file"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(written(tmp_path / name, content))


def test_bad_columns_of_parquet_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["a"], "text": [1]}), path)
    with pytest.raises(InputError, match=r"'bodi' is not a column of .*; did you mean 'body'"):
        read(path, "bodi")
    with pytest.raises(InputError, match="'text' does not hold text"):
        read(path)
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    pq.write_table(pa.table({"text": bad}), path)
    with pytest.raises(InputError, match=r"row 1 \(from 0\) is not UTF-8 text"):
        read(path)


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("c.txt", "b/[1].txt", "a.TXT", "README.md"):
        written(tmp_path / name, name)
    assert [file.relative_to(tmp_path).as_posix() for file in corpus_files(str(tmp_path))] == ["a.TXT", "b/[1].txt", "c.txt"]


def test_a_corpus_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for name, message in {
        "none.txt": "does not exist",
        "a.csv": "unknown suffix; known: .parquet, .jsonl, .txt",
        "empty.txt": "is empty",
        "folder": "holds no .parquet, .jsonl, .txt file",
        "a" * 300 + ".txt": "cannot be read: .*File name too long",
    }.items():
        if name == "folder":
            (tmp_path / name).mkdir()
        elif name in ("a.csv", "empty.txt"):
            written(tmp_path / name, "x" if name == "a.csv" else "")
        with pytest.raises(InputError, match=message):
            corpus_files(str(tmp_path / name))
