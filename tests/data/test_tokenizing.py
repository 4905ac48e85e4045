"""A trained vocabulary is the same in every process; a loaded one tokenises as its publisher's does."""

import hashlib
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import Unigram

from study.base.errors import InputError
from study.config.run_config import TokenizerConfig
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens, bert_tokenizer, load_tokenizer, open_tokenizer, train_tokenizer

PIECES = [*SPECIAL_PIECES, "un", "##able", "able", "[", "]", "sep"]
WITH_A_GAP = bert_tokenizer(
    {piece: number + (number > 4) for number, piece in enumerate([*PIECES, *map(str, range(53))])}
).to_str()


def sample() -> list[str]:
    """Text in which many pieces are equally common, so that only a fixed numbering gives a fixed vocabulary."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyzéøßλ中字°-.,"
    return [" ".join("".join(draw.choices(letters, k=draw.randint(1, 7))) for _ in range(40)) for _ in range(200)]


def test_training_gives_the_same_bytes_in_every_process() -> None:
    program = f"""
import hashlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_tokenizing import sample
from study.data.tokenizing import train_tokenizer
print(hashlib.sha256(train_tokenizer(sample(), 512).to_str().encode()).hexdigest())
"""
    hashes = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(3)
    }
    assert len(hashes) == 1
    assert hashes == {hashlib.sha256(train_tokenizer(sample(), 512).to_str().encode()).hexdigest() + "\n"}


def test_a_trained_vocabulary_has_exactly_the_size_and_the_specials_first() -> None:
    for vocabulary in (64, 300):
        tokenizer = train_tokenizer(sample(), vocabulary)
        assert sorted(tokenizer.get_vocab().values()) == list(range(vocabulary))
        assert SpecialTokens.of(tokenizer) == SpecialTokens(0, 1, 2, 3, 4)


def test_a_trained_tokenizer_gives_back_the_text() -> None:
    texts = [text.lower() for text in sample()]
    tokenizer = train_tokenizer(texts, 512)
    for text in texts:
        pieces = tokenizer.encode(text, add_special_tokens=False).tokens
        assert "[UNK]" not in pieces
        stripped = text.translate(str.maketrans("é", "e", " "))
        assert "".join(pieces).replace("##", "") == stripped


def test_a_vocabulary_out_of_reach_says_how_far_it_got() -> None:
    with pytest.raises(
        InputError,
        match=r"data.tokenizer.vocabulary: 8,192 pieces are requested, but this corpus yields only \d+; give more text$",
    ):
        train_tokenizer(["some words and some words"], 8192)
    with pytest.raises(InputError, match="holds no text"):
        train_tokenizer([], 64)


@pytest.mark.parametrize("vocabulary", [64, 100, 128])
def test_a_text_whose_characters_are_words_fills_a_vocabulary_with_them(vocabulary: int) -> None:
    characters = [chr(0x4E00 + number) for number in range(200)]
    texts = ["".join(characters[number % 190 :][:10]) + " and words" for number in range(400)]
    tokenizer = train_tokenizer(texts, vocabulary)
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocabulary))
    assert sum(character in tokenizer.get_vocab() for character in characters) > vocabulary // 3
    with pytest.raises(InputError, match="512 pieces are requested, but this corpus yields only 2") as caught:
        train_tokenizer(texts, 512)
    yielded = re.search(r"yields only (\d+); lower it, or give more text$", str(caught.value))
    assert yielded
    assert len(train_tokenizer(texts, int(yielded[1])).get_vocab()) == int(yielded[1])


def test_a_vocabulary_is_filled_where_a_character_with_two_pieces_comes_last_and_one_is_lacking() -> None:
    """One may stand inside a word, too, as of Yi; of a Chinese one there is one piece."""
    chinese, yi = ([chr(first + number) for number in range(100)] for first in (0x4E00, 0xA000))
    texts = [" ".join([*chinese[: number + 1], *yi[: number + 1]]) for number in range(100)]
    for vocabulary in range(100, 106):
        assert len(train_tokenizer(texts, vocabulary).get_vocab()) == vocabulary


def test_special_pieces_in_a_text_are_text(tmp_path: Path) -> None:
    bert_tokenizer({piece: number for number, piece in enumerate(PIECES)}).save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode("[SEP] unable", add_special_tokens=False).tokens == ["[", "sep", "]", "un", "##able"]
    assert tokenizer.encode("able").tokens == ["[CLS]", "able", "[SEP]"]


def test_a_vocabulary_is_loaded_from_either_file(tmp_path: Path) -> None:
    pieces = [*PIECES, *(f"filler{number}" for number in range(64 - len(PIECES)))]
    (tmp_path / "vocab.txt").write_text("\r\n".join(pieces) + "\r\n")
    loaded = load_tokenizer(TokenizerConfig(kind="file", vocabulary=64, path=str(tmp_path / "vocab.txt")))
    loaded.save(str(tmp_path / "tokenizer.json"))
    again = load_tokenizer(TokenizerConfig(kind="file", vocabulary=64, path=str(tmp_path / "tokenizer.json")))
    assert again.get_vocab() == {piece: number for number, piece in enumerate(pieces)}
    assert again.encode("unable").ids == loaded.encode("unable").ids == [2, 5, 6, 3]


def test_a_vocabulary_with_capitals_keeps_case_and_accents_as_transformers_reads_it(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    pieces = [*SPECIAL_PIECES, "Ann", "ann", "Zo", "##ë", "##e", "is", "IN", "Paris", "##s"]
    pieces += [f"filler{number}" for number in range(64 - len(pieces))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    ours = load_tokenizer(TokenizerConfig(kind="file", vocabulary=64, path=str(tmp_path / "vocab.txt")))
    theirs = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=False)
    texts = ["Ann ann Zoë Zoe is IN Paris", "PARIS"]
    assert [encoding.ids for encoding in ours.encode_batch(texts)] == theirs(texts)["input_ids"]
    assert ours.encode(texts[0], add_special_tokens=False).tokens[:4] == ["Ann", "ann", "Zo", "##ë"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", "\n".join(PIECES).replace("[MASK]", "mask"), r"data.tokenizer.path: the vocabulary lacks \[MASK\]"),
        ("vocab.txt", "\n".join([*PIECES, "un"]), "holds the piece 'un' twice"),
        ("vocab.txt", "\n".join([*PIECES, "un\r", "able\r"]), "holds the piece 'un' twice"),
        ("vocab.txt", "\n".join(PIECES), r"vocabulary: is 64, but .* holds 11 pieces with ids up to 10"),
        ("vocab.txt", b"[PAD]\n\xff", r"is not UTF-8 text \(byte 6\)"),
        ("tokenizer.json", WITH_A_GAP, r"vocabulary: is 64, but .* holds 64 pieces with ids up to 64"),
        ("tokenizer.json", "{}", "is not a tokenizer.json"),
        ("tokenizer.json", b"\x80\x04garbage", "is not a tokenizer.json"),
        ("tokenizer.pkl", "x", "is neither a .txt of pieces nor a tokenizer.json"),
    ],
)
def test_a_bad_tokenizer_file_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message):
        load_tokenizer(TokenizerConfig(kind="file", vocabulary=64, path=str(path)))


def test_a_tokenizer_without_a_token_for_what_it_does_not_know_is_refused_before_training(tmp_path: Path) -> None:
    """It would fail at the first strange character of the text, which may come after hours."""
    pieces = [*SPECIAL_PIECES, *(chr(97 + number) for number in range(26)), *(f"x{number}" for number in range(33))]
    without = Tokenizer(Unigram([(piece, -float(number)) for number, piece in enumerate(pieces)]))
    without.save(str(tmp_path / "tokenizer.json"))
    given = TokenizerConfig(kind="file", vocabulary=64, path=str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"cannot encode unknown characters: .*; set its unk_id or unk_token"):
        load_tokenizer(given)
    Tokenizer(Unigram([(piece, -float(number)) for number, piece in enumerate(pieces)], 1)).save(
        str(tmp_path / "tokenizer.json")
    )
    assert load_tokenizer(given).encode("\u16a0").ids == [1]


def test_a_missing_tokenizer_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a file; give a vocab.txt or a tokenizer.json"):
        load_tokenizer(TokenizerConfig(kind="file", vocabulary=64, path=str(tmp_path / "none.txt")))


def test_berts_vocabulary_tokenizes_as_in_transformers(shared_data: Path) -> None:
    import pyarrow.parquet as pq
    from transformers import BertTokenizerFast

    vocabulary = str(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    ours = load_tokenizer(TokenizerConfig(kind="file", vocabulary=30522, path=vocabulary))
    theirs = BertTokenizerFast(vocab=vocabulary, do_lower_case=True)
    with pq.ParquetFile(shared_data / "corpora" / "wiki.parquet") as file:
        texts = next(file.iter_batches(batch_size=200, columns=["text"]))["text"].to_pylist()
    texts += ["", "Ünïcode—dash… 中文 naïve\u2028x\0y", "a" * 101, "Don't [MASK] me", "🙂 \u0301 ½"]
    assert [encoding.ids for encoding in ours.encode_batch(texts)] == theirs(texts)["input_ids"]
