"""A user's files are read in bounded memory, and refused with the place of what is wrong."""

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from study.base.errors import InputError
from study.config.run_config import DataConfig
from study.data.corpora import Tally, corpus_files, corpus_identity, passed_over, read_corpus, split_documents
from study.data.text_readers import COMPRESSIONS, MAX_CHARACTERS, pieces, read_file
from study.tasks.example_tables import read_table


def read(path: Path, column: str = "text") -> list[str]:
    return list(read_file(path, column))


def names(files: Iterable[Path], folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in files]


def written(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
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
        ("a.txt", gzip.compress(b"fine", mtime=0), r"is not UTF-8 text \(byte 1\); it looks like gzip; end its name in .gz"),
        ("a.csv", "text\none\n".encode("utf-16"), r"it looks like UTF-16; convert it with iconv -f UTF-16"),
        ("a.csv", b"a;b\n1;2\n", r"known: a, b \(line 1 names the columns, with semicolons between them\)"),
        ("a.tsv", b"1\t" + b"word " * 99, r"known: 1, (word ){12}… \(line 1 names the columns, with tabs between them\)"),
        ("a.jsonl", b'{"text": ["a"]}', r"'text' does not hold text in .*, but \['a'\]; no column holds text; write one"),
        ("a.txt", b"fine\0", r"NUL \(byte 4\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}', r"a.jsonl:2: is not UTF-8 text \(byte 24 of the file\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"a.jsonl:2: is not JSON: .* of the file\)"),
        ("a.jsonl", b'\xef\xbb\xbf{"text":"\xff"}', r"is not UTF-8 text \(byte 12 of the file\)"),
        ("a.jsonl", b'{"text": "a", "n": ' + b"1" * 5000 + b"}", r"a.jsonl:1: cannot be read: Exceeds the limit"),
        ("a.jsonl", '{"text": "éé" x}'.encode(), r"is not JSON: .* \(byte 16 of the file\)"),
        ("a.jsonl", b"\xef\xbb\xbf" + '{"text": "éé" x}'.encode(), r"is not JSON: .* \(byte 19 of the file\)"),
        ("a.jsonl", b'["text"]', r"a.jsonl:1: is \['text'\], but an object"),
        ("a.jsonl", b'{"texts": "a"}', r"'text' is not a column of .*a.jsonl:1; did you mean 'texts'"),
        ("a.jsonl", b'{"text": 3, "body": "a"}', r"'text' does not hold text in .*; known: body"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1: cannot be read: it is nested too deeply"),
        ("a.jsonl", b'{"text": "a", "text": "b"}', r"a.jsonl:1: cannot be read: the key 'text' appears twice"),
        ("a.parquet", b"PAR1 but not really", r"is not a Parquet file"),
        ("a.csv", b"text,text\none,two\n", r"'text' names 2 columns of .*a.csv; rename the others"),
        ("a.tsv", b"text\tid\ttext\none\t1\ttwo\n", r"'text' names 2 columns of .*a.tsv; rename the others"),
        ("a.csv", b"id,text\n1,one\n2,two,three\n", r"a.csv:3: has 3 fields but the header has 2; quote the fields"),
        ("a.csv", b'id,text\n1,"one" two\n', r"a.csv:2: .*expected after.*; rewrite the file according to RFC 4180"),
        ("a.csv", b"id,body\n1,one\n", r"'text' is not a column of .*a.csv; known: body, id"),
        ("a.csv", b"id,text\n1,caf\xe9\n", r"is not UTF-8 text \(byte 13\)"),
        ("a.tsv", b'id\ttext\n1\t"one\n2\n', r"a.tsv:3: has 1 fields but the header has 2; replace tabs"),
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
    files = corpus_files(str(tmp_path))
    assert names(files.read, tmp_path) == ["a.TXT", "b/[1].txt", "c.txt"]
    assert names(files.passed_over, tmp_path) == ["README.md"]


def test_a_folder_says_what_it_passes_over_and_hidden_files_are_no_part_of_it(tmp_path: Path) -> None:
    for name in (".hidden.txt", ".git/a.txt", "b/._a.txt", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        written(tmp_path / name, name)
    assert passed_over(str(tmp_path)) is None
    assert names(corpus_files(str(tmp_path)).read, tmp_path) == ["a.txt"]
    written(tmp_path / "b.pdf", "x")
    assert passed_over(str(tmp_path)) == f"1 file of {tmp_path} is skipped: {tmp_path / 'b.pdf'}"
    for number in range(4):
        written(tmp_path / f"c{number}.parquet.gz", "x")
    assert str(passed_over(str(tmp_path))).startswith(f"5 files of {tmp_path} are skipped: ")
    assert str(passed_over(str(tmp_path))).endswith("c1.parquet.gz, …")
    assert passed_over(str(tmp_path / "a.txt")) is None


def test_links_of_a_folder_are_read_reported_or_refused(tmp_path: Path) -> None:
    """A link to a file is that file; a linked folder may lead in circles; behind a broken link, text is missing."""
    folder = tmp_path / "folder"
    folder.mkdir()
    written(tmp_path / "elsewhere.txt", "x")
    (folder / "a.txt").symlink_to("../elsewhere.txt")
    (folder / "here").symlink_to(".")
    assert names(corpus_files(str(folder)).read, folder) == ["a.txt"]
    assert passed_over(str(folder)) == f"1 file of {folder} is skipped: {folder / 'here'}"
    (folder / "b.txt").symlink_to("nowhere.txt")
    with pytest.raises(InputError, match=r"cannot be read: No such file or directory \('.*b\.txt'\)"):
        corpus_files(str(folder))


TEXTS = ['one, "two"\nthree', "", "ünï\u2028code", "four"]


def content_of(suffix: str) -> bytes:
    """TEXTS as a text file; none is in several lines in a .tsv."""
    if suffix == ".jsonl":
        return "".join(json.dumps({"id": at, "text": text or None}) + "\n" for at, text in enumerate(TEXTS)).encode()
    if suffix == ".txt":
        return "\n\n".join(TEXTS).encode()
    buffer = io.StringIO()
    if suffix == ".csv":
        csv.writer(buffer).writerows([("id", "text"), *enumerate(TEXTS)])
    else:
        buffer.writelines(
            f"{at}\t{text}\n".replace("\n", " ", text.count("\n")) for at, text in [("id", "text"), *enumerate(TEXTS)]
        )
    return buffer.getvalue().encode("utf-8-sig")


def compressed(content: bytes, compression: str) -> bytes:
    """Two members of one file, as tools write them that append."""
    compress = gzip.compress if compression == ".gz" else partial(pa.compress, codec="zstd", asbytes=True)
    half = len(content) // 2
    return compress(content[:half]) + compress(content[half:])


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ('text;"a, b"', "one;2"),
        ('"a, b, c";text', "2;one"),
        ('"say ""no, no""";text', "2;one"),
        ('"a, b";text;"c,\nd"', "2;one;3"),
        ('5" wide;text;a,b', "2;one;3"),
        ("a, b;text;c", "2;one;3"),
        ("text", '"one"'),
        ("text,a;b", "one,2"),
    ],
)
def test_delimiters_in_a_columns_name_separate_nothing(tmp_path: Path, header: str, row: str) -> None:
    path = written(tmp_path / "a.csv", f"{header}\n{row}\n")
    assert read(path) == ["one"]
    assert read_table(path, ["text"]).columns == {"text": ["one"]}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".txt"])
def test_compressed_text_is_read_as_the_text_in_it(tmp_path: Path, suffix: str) -> None:
    content = content_of(suffix)
    plain = read(written(tmp_path / f"a{suffix}", content))
    assert [text.split() for text in plain if text] == [text.split() for text in TEXTS if text]
    for compression in COMPRESSIONS:
        assert read(written(tmp_path / f"b.c{suffix}{compression.upper()}", compressed(content, compression))) == plain


@pytest.mark.parametrize("compression", list(COMPRESSIONS))
def test_compressed_text_that_is_damaged_is_refused(tmp_path: Path, compression: str) -> None:
    content = compressed(b"word " * 100_000, compression)
    for damaged in (content[:-10], b"not compressed at all"):
        with pytest.raises(InputError, match=rf"a\.txt\{compression}: cannot be read: "):
            read(written(tmp_path / f"a.txt{compression}", damaged))
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 3\)"):
        read(written(tmp_path / f"a.txt{compression}", compressed(b"caf\xe9 and more of it", compression)))


@pytest.mark.parametrize("what", ["stream", "file"])
def test_arrow_is_read_as_a_stream_and_as_a_file(tmp_path: Path, what: str) -> None:
    table = pa.table({"id": range(4), "text": [text or None for text in TEXTS]})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as sink, getattr(pa.ipc, f"new_{what}")(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    assert read(path) == TEXTS
    with pytest.raises(InputError, match=r"'texts' is not a column of .*a\.arrow; did you mean 'text'"):
        read(path, "texts")
    for damaged in (b"not arrow", path.read_bytes()[:400]):
        with pytest.raises(InputError, match=r"a\.arrow: (is not an Arrow file, or is damaged after row \d|cannot be read: )"):
            read(written(tmp_path / "b" / "a.arrow", damaged))


def test_what_save_to_disk_wrote_is_read_of_train_alone_and_without_its_caches(tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"text": TEXTS})
    dataset.save_to_disk(tmp_path / "one", num_shards=2)
    assert [document.text for document in read_corpus(DataConfig(corpus=str(tmp_path / "one")))] == TEXTS
    assert passed_over(str(tmp_path / "one")) is None
    DatasetDict(train=dataset, test=dataset).save_to_disk(tmp_path / "several")
    written(tmp_path / "several" / "train" / "cache-1234.arrow", "of a map")
    files = corpus_files(str(tmp_path / "several"))
    assert names(files.read, tmp_path / "several") == ["train/data-00000-of-00001.arrow"]
    assert names(files.passed_over, tmp_path / "several") == ["test/data-00000-of-00001.arrow", "train/cache-1234.arrow"]
    DatasetDict(left=dataset, right=dataset).save_to_disk(tmp_path / "others")
    with pytest.raises(
        InputError, match=r"has the splits left, right, none of them train; give the folder of one, such as '.*left'"
    ):
        corpus_files(str(tmp_path / "others"))
    DatasetDict(all=dataset).save_to_disk(tmp_path / "single")
    assert len(corpus_files(str(tmp_path / "single")).read) == 1


def test_the_cache_of_load_dataset_is_read_of_train_alone(tmp_path: Path) -> None:
    written(tmp_path / "dataset_info.json", '{"splits": {"train": {}, "test": {}}}')
    train = ["a-train-00000-of-00002.arrow", "a-train-00001-of-00002.arrow"]
    for name in (*train, "a-test.arrow", "cache-12.arrow"):
        written(tmp_path / name, "x")
    assert names(corpus_files(str(tmp_path)).read, tmp_path) == train
    assert names(corpus_files(str(tmp_path)).passed_over, tmp_path) == ["a-test.arrow", "cache-12.arrow"]


def test_a_copy_of_a_hub_dataset_is_read_of_train_alone(tmp_path: Path) -> None:
    train = [f"{config}/train-0000{shard}-of-00002.parquet" for config in ("a", "b") for shard in (0, 1)]
    others = ["a/test-00000-of-00001.parquet", "b/validation-00000-of-00001.parquet"]
    parts = ["c/part-00000-of-00002.parquet", "c/tail-00001-of-00002.parquet", "c/train.parquet"]
    for name in (*train, *others, *parts):
        written(tmp_path / name, "x")
    assert names(corpus_files(str(tmp_path)).read, tmp_path) == [*train, *parts]
    assert names(corpus_files(str(tmp_path)).passed_over, tmp_path) == others


def test_of_files_or_folders_named_as_splits_train_alone_is_read(tmp_path: Path) -> None:
    read = ["Csv/Train.csv", "a/train.parquet", "b/my_train-1.jsonl.gz", "b/my_train-2.jsonl.gz", "c/wiki.train.txt"]
    read += ["d/en/train/pos/1.txt", "d/fr/training/1.txt"]
    others = ["Csv/Test.csv", "a/test.parquet", "a/validation.parquet", "b/my_dev.jsonl.gz", "b/my_eval01.txt"]
    others += ["c/wiki.test.txt", "c/wiki.valid.txt", "d/en/test/pos/1.txt", "d/fr/val/1.txt"]
    for name in (*read, *others):
        written(tmp_path / name, "x")
    assert names(corpus_files(str(tmp_path)).read, tmp_path) == read
    assert names(corpus_files(str(tmp_path)).passed_over, tmp_path) == others
    assert passed_over(str(tmp_path / "a")) == (
        f"2 files of {tmp_path / 'a'} are skipped: {tmp_path / 'a' / 'test.parquet'}, {tmp_path / 'a' / 'validation.parquet'}"
    )
    assert passed_over(str(tmp_path / "a" / "test.parquet")) is None, "what is named itself is read"


def test_names_of_splits_are_read_where_no_readable_train_of_theirs_stands_beside_them(tmp_path: Path) -> None:
    read = ["a/test.txt", "a/valid.txt", "b/dev/1.txt", "b/more.txt", "c/other.test.txt", "c/test.txt", "c/wiki.train.txt"]
    read += ["d/latest.txt", "d/pretest.txt", "d/test_cases.txt", "d/train.txt", "d/trains.txt", "e/test.txt"]
    for name in (*read, "e/train.zip"):
        written(tmp_path / name, "x")
    assert names(corpus_files(str(tmp_path)).read, tmp_path) == read
    assert names(corpus_files(str(tmp_path)).passed_over, tmp_path) == ["e/train.zip"]
    (tmp_path / "test").mkdir()
    (tmp_path / "train").mkdir()
    written(tmp_path / "train" / "1.txt", "x")
    written(tmp_path / "test" / "1.txt", "x")
    assert names(corpus_files(str(tmp_path / "test")).read, tmp_path) == ["test/1.txt"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_two_columns_of_one_name_are_refused(suffix: str, tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["one"]), pa.array(["two"])], names=["text", "text"])
    if suffix == ".parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    with pytest.raises(InputError, match=rf"'text' names 2 columns of .*a{suffix}; rename the others"):
        read(tmp_path / f"a{suffix}")


def test_a_dotted_column_is_a_field_of_nested_values_in_every_kind(tmp_path: Path) -> None:
    """Unless a column has just that name."""
    rows = [{"doc": {"text": "one", "of": {"body": "two"}}}, {"doc": {"text": None, "of": None}}, {"doc": None}]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    for name in ("a.parquet", "a.arrow", "a.jsonl"):
        assert read(tmp_path / name, "doc.text") == ["one", "", ""]
        assert read(tmp_path / name, "doc.of.body") == ["two", "", ""]
        with pytest.raises(InputError, match=r"'doc.txt' is not a column of .*; did you mean 'doc.text'"):
            read(tmp_path / name, "doc.txt")
        with pytest.raises(InputError, match=r"'doc' does not hold text"):
            read(tmp_path / name, "doc")
    named = {"doc.text": "its name", "doc": {"text": "nested"}}
    pq.write_table(pa.Table.from_pylist([named]), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", "doc.text") == ["its name"]
    assert read(written(tmp_path / "a.jsonl", json.dumps(named)), "doc.text") == ["its name"]
    assert read(written(tmp_path / "a.csv", "doc.text,id\none,2\n"), "doc.text") == ["one"]


def test_rows_without_text_are_counted_and_no_column_is_guessed(tmp_path: Path) -> None:
    rows = [{"text": "one"}, {"id": 2}, {"text": None}, {"text": " "}, {"text": "two"}]
    path = written(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    tally = Tally()
    assert len(list(split_documents(read_corpus(DataConfig(corpus=str(path))), tally))) == 2
    assert (tally.documents, tally.empty) == (2, 3)
    with pytest.raises(InputError, match=r"'text' does not hold text in .*a\.jsonl:2"):
        read(written(path, '{"text": "one"}\n{"text": 2}'))


def test_what_a_file_is_read_as_is_part_of_the_identity_of_a_corpus(tmp_path: Path) -> None:
    names = ("a.jsonl.gz", "a.csv.gz", "a.txt.gz", "a.txt")
    identities = [corpus_identity(DataConfig(corpus=str(written(tmp_path / name, "same")))) for name in names]
    assert len({json.dumps(identity) for identity in identities}) == 4
    assert ["text_column" in dict(identity) for identity in identities] == [True, True, False, False]  # type: ignore[call-overload]


def test_a_corpus_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for name, message in {
        "none.txt": "does not exist",
        "a.pdf": "unknown suffix; known: .parquet, .arrow, .jsonl, .csv, .tsv, .txt, the last 4 also as .gz or .zst",
        "empty.txt": "is empty",
        "folder": "holds no file of a known kind; known: .parquet",
        "a" * 300 + ".txt": "cannot be read: .*File name too long",
    }.items():
        if name == "folder":
            (tmp_path / name).mkdir()
        elif name in ("a.pdf", "empty.txt"):
            written(tmp_path / name, "x" if name == "a.pdf" else "")
        with pytest.raises(InputError, match=message):
            corpus_files(str(tmp_path / name))
