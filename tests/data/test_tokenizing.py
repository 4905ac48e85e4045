"""A trained vocabulary is the same in every process; a loaded one tokenises as its publisher's does."""

import hashlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers
from tokenizers.models import Unigram

from study.base.errors import InputError
from study.config.run_config import TokenizerConfig, TokenizerKind
from study.data import tokenizer_training
from study.data.tokenizing import (
    SETTINGS,
    SPECIAL_MAP,
    SPECIAL_PIECES,
    SpecialTokens,
    Stripped,
    bert_tokenizer,
    continuing_pieces,
    load_tokenizer,
    open_tokenizer,
    read_tokenizer,
    unused_capitals,
)

WORDPIECE_SHA256 = "28ff65a52b2e48cc61b12f75574600ca7a31b2903b403fdd1a7e7acdf8899573"

KINDS: tuple[TokenizerKind, ...] = ("wordpiece", "bpe", "byte_bpe", "unigram")

PIECES = [*SPECIAL_PIECES, "un", "##able", "able", "[", "]", "sep"]
WITH_A_GAP = bert_tokenizer(
    {piece: number + (number > 4) for number, piece in enumerate([*PIECES, *map(str, range(53))])}
).to_str()


def train_tokenizer(texts: Iterable[str], vocabulary: int, kind: TokenizerKind = "wordpiece", **rest: Any) -> Tokenizer:
    return tokenizer_training.train_tokenizer(texts, TokenizerConfig(kind=kind, vocabulary=vocabulary, **rest))


def sample() -> list[str]:
    """Text in which many pieces are equally common, so that only a fixed numbering gives a fixed vocabulary."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyzéøßλ中字°-.,"
    return [" ".join("".join(draw.choices(letters, k=draw.randint(1, 7))) for _ in range(40)) for _ in range(200)]


UNIGRAM_SLOW = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind == "unigram" else ()) for kind in KINDS]
)


def test_training_gives_the_tokens_of_every_earlier_run() -> None:
    text = train_tokenizer(sample(), 512, KINDS[0]).to_str()
    assert hashlib.sha256(text.encode()).hexdigest() == WORDPIECE_SHA256


@pytest.mark.slow
def test_training_gives_the_same_bytes_in_every_process() -> None:
    program = f"""
import hashlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_tokenizing import sample
from study.config.run_config import TokenizerConfig
from study.data.tokenizer_training import train_tokenizer
for kind in {KINDS}:
    tokenizer = train_tokenizer(sample(), TokenizerConfig(kind=kind, vocabulary=512))
    print(hashlib.sha256(tokenizer.to_str().encode()).hexdigest())
"""
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    trained = [train_tokenizer(sample(), 512, kind).to_str() for kind in KINDS]
    assert there == "".join(hashlib.sha256(text.encode()).hexdigest() + "\n" for text in trained), "another seed of hash()"


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_exactly_the_size_and_wraps_texts(kind: TokenizerKind) -> None:
    for vocabulary in (300, 512):
        tokenizer = train_tokenizer(sample(), vocabulary, kind)
        assert sorted(tokenizer.get_vocab().values()) == list(range(vocabulary))
        assert SpecialTokens.of(tokenizer) == SpecialTokens(0, 1, 2, 3, 4)
        ids = tokenizer.encode("bad cab").ids
        assert (ids[0], ids[-1]) == (2, 3)
        assert tokenizer.decode(ids).strip() == "bad cab"


def test_bpe_has_the_pieces_of_wordpiece_and_applies_its_merges_in_order() -> None:
    wordpiece, bpe = (train_tokenizer(sample(), 400, kind) for kind in KINDS[:2])
    assert wordpiece.get_vocab() == bpe.get_vocab()
    encoded = [[tokenizer.encode(text).tokens for text in sample()] for tokenizer in (wordpiece, bpe)]
    assert encoded[0] != encoded[1]


def test_bytes_know_every_text_and_keep_case_where_they_should() -> None:
    text = "Ein Fräulein, नमस्ते 🫨\n\tdone"
    cased = train_tokenizer(sample(), 300, "byte_bpe", lowercase=False)
    assert cased.decode(cased.encode(text, add_special_tokens=False).ids).removeprefix(" ") == text
    small = train_tokenizer(sample(), 300, "byte_bpe", strip_accents=False)
    assert small.decode(small.encode(text, add_special_tokens=False).ids).removeprefix(" ") == text.lower()
    plain = train_tokenizer(sample(), 300, "byte_bpe")
    assert plain.decode(plain.encode("Fräulein 한글", add_special_tokens=False).ids).removeprefix(" ") == "fraulein 한글"
    with pytest.raises(ValueError, match="byte_bpe needs 261 or more"):
        TokenizerConfig(kind="byte_bpe", vocabulary=260)


def test_a_vocabulary_out_of_reach_says_how_far_it_got() -> None:
    with pytest.raises(
        InputError,
        match=r"8,192 pieces are requested, but this corpus yields only \d+; give more text, or raise data.documents",
    ):
        train_tokenizer(["some words and some words"], 8192)
    with pytest.raises(InputError, match="holds no text"):
        train_tokenizer([], 64)


def test_more_characters_than_pieces_are_reported_before_unigram_is_trained() -> None:
    text = [chr(0x4E00 + number) for number in range(600)]
    with pytest.raises(InputError, match=r"400 pieces are requested, but this corpus needs 60\d, for all its characters"):
        train_tokenizer(text, 400, "unigram")


@pytest.mark.parametrize("vocabulary", [64, 100, 128])
def test_a_text_whose_characters_are_words_fills_a_vocabulary_with_them(vocabulary: int) -> None:
    characters = [chr(0x4E00 + number) for number in range(200)]
    texts = ["".join(characters[number % 190 :][:10]) + " and words" for number in range(400)]
    tokenizer = train_tokenizer(texts, vocabulary)
    assert sorted(tokenizer.get_vocab().values()) == list(range(vocabulary))
    assert sum(character in tokenizer.get_vocab() for character in characters) > vocabulary // 3
    with pytest.raises(InputError, match="512 pieces are requested, but this corpus yields only 2") as caught:
        train_tokenizer(texts, 512)
    yielded = re.search(r"yields only (\d+); lower it, give more text, or raise data.documents", str(caught.value))
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
        (
            "vocab.txt",
            "\n".join(PIECES),
            r"vocabulary: is 64, but .* holds 11 pieces with ids up to 10; a tokeniser has at least 64 pieces",
        ),
        ("vocab.txt", b"[PAD]\n\xff", r"is not UTF-8 text \(byte 6\)"),
        ("tokenizer.json", WITH_A_GAP, r"vocabulary: is 64, but .* holds 64 pieces with ids up to 64; set it to 65"),
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


@pytest.mark.slow
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


HINDI, THAI, GERMAN = "हिन्दी में यह एक वाक्य है", "ภาษาไทยมีสระอยู่บนและใต้", "Über Flüsse und Bäche"


@pytest.mark.parametrize("kind", KINDS)
def test_marks_of_other_scripts_count_as_vowels_and_stay_where_they_should(kind: TokenizerKind) -> None:
    strips = tokenizer_training.untrained(TokenizerConfig(kind=kind)).normalizer
    keeps = tokenizer_training.untrained(TokenizerConfig(kind=kind, strip_accents=False)).normalizer
    for text in (HINDI, THAI, "がんばって"):
        assert Stripped.by(strips, [text]).vowel_share > 0.1
        assert keeps.normalize_str(text).replace(" ", "") == text.replace(" ", "")
    assert Stripped.by(strips, [GERMAN]) == Stripped(3 / 18, 0.0)
    assert Stripped.by(keeps, [HINDI, GERMAN]) == Stripped.by(None, [HINDI]) == Stripped(0.0, 0.0)


def as_robertas(tokenizer: Tokenizer) -> str:
    """A tokeniser's file with RoBERTa's names of the special pieces, one of which is added after the others."""
    text = tokenizer.to_str()
    for ours, theirs in zip(SPECIAL_PIECES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True):
        text = text.replace(f'"{ours}"', f'"{theirs}"')
    return text


@UNIGRAM_SLOW
def test_special_pieces_have_any_names_and_padding_is_kept(kind: TokenizerKind, tmp_path: Path) -> None:
    trained = train_tokenizer(sample(), 300, kind)
    path = tmp_path / "tokenizer.json"
    path.write_text(as_robertas(trained))
    for rows in (300, 304, 320):
        loaded = load_tokenizer(TokenizerConfig(kind="file", vocabulary=rows, path=str(path)))
        assert SpecialTokens.of(loaded) == SpecialTokens.of(trained)
        texts = sample()[:5]
        expected = [trained.encode(text, add_special_tokens=False).ids for text in texts]
        assert [loaded.encode(text, add_special_tokens=False).ids for text in texts] == expected
    for rows in (299, 350):
        with pytest.raises(InputError, match=f"is {rows}, but .* holds 300 pieces"):
            load_tokenizer(TokenizerConfig(kind="file", vocabulary=rows, path=str(path)))


@UNIGRAM_SLOW
def test_pieces_say_where_words_begin(kind: TokenizerKind) -> None:
    tokenizer = train_tokenizer(sample(), 400, kind)
    continuing = {*continuing_pieces(tokenizer)}
    for text in sample()[:20]:
        words = re.sub("[-,.中字°]", "", text).split()
        ids = tokenizer.encode(" ".join(words), add_special_tokens=False).ids
        assert sum(piece not in continuing for piece in ids) == len(words)


def test_case_and_accents_of_a_vocabulary_may_be_given(tmp_path: Path) -> None:
    pieces = [*SPECIAL_PIECES, "zo", "##e", "##ë", *(f"filler{number}" for number in range(56))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    given = {"kind": "file", "vocabulary": 64, "path": str(tmp_path / "vocab.txt")}
    tokens = {
        strips: load_tokenizer(TokenizerConfig.parse(given | {"strip_accents": strips})).encode("Zoë").tokens[1:-1]
        for strips in (True, False)
    }
    assert tokens == {True: ["zo", "##e"], False: ["zo", "##ë"]}
    assert read_tokenizer(tmp_path / "vocab.txt").encode("Zoë").tokens[1:-1] == ["zo", "##e"]
    with pytest.raises(InputError, match=r"has lowercase, which a tokenizer.json decides itself"):
        TokenizerConfig.parse(given | {"path": "tokenizer.json", "lowercase": True})


MANY = [*SPECIAL_PIECES, "ann", "zo", "##e", "zoë", *(f"filler{number}" for number in range(191))]


@pytest.mark.parametrize(
    ("name", "cased", "settings", "given", "message"),
    [
        ("vocab.txt", True, {"do_lower_case": True}, {}, "has do_lower_case true, but vocab.txt keeps capitals"),
        ("vocab.txt", False, {"do_lower_case": False}, {}, "has do_lower_case false, but vocab.txt lowercases text"),
        ("vocab.txt", False, {"strip_accents": False}, {}, "or say data.tokenizer.strip_accents in the sweep"),
        ("vocab.txt", True, {"do_lower_case": True}, {"lowercase": True}, None),
        ("vocab.txt", False, {"strip_accents": False}, {"strip_accents": False}, None),
        ("tokenizer.json", True, {"do_lower_case": True}, {}, "has do_lower_case true, but tokenizer.json keeps capitals"),
        ("tokenizer.json", False, {"do_lower_case": False}, {}, "but tokenizer.json lowercases text; correct one of the two"),
        ("tokenizer.json", False, {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, {}, None),
        ("tokenizer.json", False, {"strip_accents": None, "do_lower_case": True}, {}, None),
    ],
)
def test_settings_by_which_transformers_reads_otherwise_are_refused(
    tmp_path: Path, name: str, cased: bool, settings: dict[str, Any], given: dict[str, Any], message: str | None
) -> None:
    pieces = [*MANY[:-8], *("Ann" if number == 0 else f"X{number}" for number in range(8))] if cased else MANY
    if name == "vocab.txt":
        (tmp_path / name).write_text("\n".join(pieces))
    else:
        bert_tokenizer({piece: number for number, piece in enumerate(pieces)}, not cased).save(str(tmp_path / name))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = TokenizerConfig.parse({"kind": "file", "vocabulary": 200, "path": str(tmp_path / name)} | given)
    if message is None:
        load_tokenizer(config)
        return
    with pytest.raises(InputError, match=re.escape(message)):
        load_tokenizer(config)


def test_few_pieces_with_capitals_need_a_decision(tmp_path: Path) -> None:
    """One placeholder would make an uncased vocabulary cased, and every word with a capital unknown."""
    (tmp_path / "vocab.txt").write_text("\n".join([*MANY[:-2], "<URL>", "HTTPURL"]))
    given = {"kind": "file", "vocabulary": 200, "path": str(tmp_path / "vocab.txt")}
    with pytest.raises(InputError, match=r"tokenizer.lowercase: is missing, but 1 of the 194 pieces of .* such as 'HTTPURL'"):
        load_tokenizer(TokenizerConfig.parse(given))
    assert load_tokenizer(TokenizerConfig.parse(given | {"lowercase": True})).encode("Ann").tokens[1] == "ann"
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load_tokenizer(TokenizerConfig.parse(given)).encode("Ann").tokens[1] == "ann"


def test_a_byte_order_mark_is_no_part_of_the_first_piece(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(MANY), encoding="utf-8-sig")
    assert read_tokenizer(tmp_path / "vocab.txt").get_vocab()["[PAD]"] == 0


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("added_tokens.json", {"[NEW]": 200, "ann": 201, "other": 202}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"0": {"content": "[PAD]"}, "200": {"content": "[NEW]"}}}),
    ],
)
def test_pieces_added_beside_a_vocabulary_are_not_split_into_others(tmp_path: Path, file: str, values: dict[str, Any]) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(MANY))
    (tmp_path / file).write_text(json.dumps(values))
    with pytest.raises(InputError, match=rf"{file}: adds \d pieces? that vocab.txt lacks, such as '\[NEW\]'; save"):
        read_tokenizer(tmp_path / "vocab.txt")
    pieces = [*MANY, "[NEW]", "other"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    assert read_tokenizer(tmp_path / "vocab.txt").get_vocab_size() == len(pieces)


@pytest.mark.parametrize(
    ("file", "vocabulary", "values", "key"),
    [
        (SETTINGS, "vocab.txt", {"added_tokens_decoder": {"0": {"content": ["x"]}}}, "added_tokens_decoder.0.content"),
        (SETTINGS, "vocab.txt", {"added_tokens_decoder": {"0": ["x"]}}, "added_tokens_decoder.0"),
        (SETTINGS, "tokenizer.json", {"cls_token": ["x"]}, "cls_token"),
        (SPECIAL_MAP, "tokenizer.json", {"cls_token": {"content": ["x"]}}, "cls_token.content"),
        ("tokenizer.json", "tokenizer.json", {"added_tokens": [{"content": ["x"]}]}, "added_tokens.0.content"),
    ],
)
def test_a_piece_that_is_no_string_is_refused_by_its_file_and_key(
    tmp_path: Path, file: str, vocabulary: str, values: dict[str, Any], key: str
) -> None:
    lowercasing(MANY, lowercase=True).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").write_text("\n".join(MANY))
    path = tmp_path / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))
    expected = f"{path}: has ['x'] under {key}, where a piece is a string; save_pretrained the tokeniser anew"
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        read_tokenizer(tmp_path / vocabulary)


def lowercasing(pieces: list[str], lowercase: bool) -> Tokenizer:
    return bert_tokenizer({piece: number for number, piece in enumerate(pieces)}, lowercase)


def test_capitals_that_a_tokenizer_json_never_reads_are_reported() -> None:
    cased = [*MANY, "Ann", "##X", "Zo"]
    warning = unused_capitals(lowercasing(cased, lowercase=True))
    assert warning is not None
    assert warning.startswith("3 of the tokeniser's 198 pieces have capitals, such as '##X', and it lowercases text")
    by_steps = lowercasing(cased, lowercase=False)
    assert unused_capitals(by_steps) is None, "it reads them"
    by_steps.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    assert unused_capitals(by_steps) == warning
    assert unused_capitals(lowercasing([*MANY, "HTTPURL"], lowercase=True)) is None, "one placeholder"
    assert unused_capitals(lowercasing(MANY, lowercase=True)) is None


@pytest.mark.parametrize(("kind", "vocabulary"), [("wordpiece", 64), ("byte_bpe", 300)])
def test_a_tokenizer_trained_to_lowercase_has_no_capitals_to_tell_of(kind: TokenizerKind, vocabulary: int) -> None:
    texts = ["Ann and Zoë IN Paris, AND ann with some BOX of Jugs, vases, four Quays and keys"] * 50
    assert unused_capitals(train_tokenizer(texts, vocabulary, kind)) is None
