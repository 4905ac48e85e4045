"""Text encoded word by word has the tokens that it has as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from study.data import token_files
from study.data.token_files import WordCache, count_characters, encodes_words_alone
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens, bert_tokenizer

PIECES = [*SPECIAL_PIECES, *"abcdeghno.,-", *(f"##{letter}" for letter in "abcdeghno"), "ab", "##cd", "ß", "水"]
TEXTS = st.lists(st.text(st.sampled_from("abcdÀé ß水.,-\n\t\x1c\u0301\u00a0\u2028\u200dΣ[SEP]")), max_size=6)


def tokenizer() -> Tokenizer:
    made = bert_tokenizer({piece: number for number, piece in enumerate(PIECES)})
    made.encode_special_tokens = True
    return made


@given(st.lists(TEXTS, min_size=1, max_size=4), st.one_of(TEXTS, st.lists(st.text(), max_size=4)))
def test_words_alone_give_the_tokens_of_the_text(batches: list[list[str]], strange: list[str]) -> None:
    made = tokenizer()
    special = SpecialTokens.of(made)
    cache = WordCache(made, special)
    for texts in (*batches, strange):
        whole = [token for text in texts for token in (*made.encode(text, add_special_tokens=False).ids, special.sep)]
        tokens, characters = cache.encode(texts)
        assert tokens.tolist() == whole
        encodings = made.encode_batch(texts, add_special_tokens=False)
        assert characters == count_characters(texts, encodings, special.unk)


def test_a_cache_that_is_full_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "MOST_WORDS", 2)
    made = tokenizer()
    cache = WordCache(made, SpecialTokens.of(made))
    for text in ("ab cd", "ab abcd cd", "a b c d e", "ab a"):
        tokens, _ = cache.encode([text])
        assert tokens.tolist() == [*made.encode(text, add_special_tokens=False).ids, 3]


def test_only_tokenisers_that_part_texts_at_spaces_qualify() -> None:
    assert encodes_words_alone(tokenizer())
    spaced = tokenizer()
    spaced.add_tokens([AddedToken("a b", normalized=False)])
    assert not encodes_words_alone(spaced)
    looking = tokenizer()
    looking.encode_special_tokens = False
    assert not encodes_words_alone(looking)
