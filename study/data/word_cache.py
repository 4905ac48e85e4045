"""Encoding text word by word, each distinct word once: the tokens of BERT's tokenisers, sooner."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

MOST_WORDS = 2**18
"""Distinct words that are remembered, about 50 MB; when there are more, remembering begins anew."""


def encodes_words_alone(tokenizer: Tokenizer) -> bool:
    """Whether a tokeniser gives a text the tokens of its words, one after the other, wherever spaces or lines part them.

    BERT's do: normalising looks at no neighbour across a space, and words are parted there. A piece that was added to the
    vocabulary could hold a space, so only special ones, which are not looked for in texts, are allowed.
    """
    kinds = ((tokenizer.model, WordPiece), (tokenizer.normalizer, BertNormalizer), (tokenizer.pre_tokenizer, BertPreTokenizer))
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        all(isinstance(part, kind) for part, kind in kinds)
        and tokenizer.encode_special_tokens
        and all(token.special for token in added)
    )


class WordCache:
    """The tokens of texts, a separator behind each, by the tokens of their words; see `encodes_words_alone`.

    Word w has the tokens pieces[starts[w] : starts[w] + lengths[w]]; word 0 is the separator.
    """

    def __init__(self, tokenizer: Tokenizer, separator: int) -> None:
        self._tokenizer, self._separator = tokenizer, separator
        self._forget()

    def encode(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """The tokens of all texts in one row."""
        words: list[str] = []
        for text in texts:
            words += text.replace("\n", " ").split(" ")
            words.append("\n")
        if len(self._numbers) > MOST_WORDS:
            self._forget()
        self._learn(sorted(set(words).difference(self._numbers)))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        offsets = np.repeat(self._starts[numbers] - (ends - lengths), lengths)
        tokens: NDArray[np.int64] = self._pieces[offsets + np.arange(len(offsets))]
        return tokens

    def _forget(self) -> None:
        """Know the separator alone, which no word can be: words hold no line ends."""
        self._numbers = {"\n": 0}
        self._pieces = np.array([self._separator], np.int64)
        self._starts, self._lengths = np.zeros(1, np.int64), np.ones(1, np.int64)

    def _learn(self, new: list[str]) -> None:
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(new, add_special_tokens=False)]
        lengths = np.fromiter(map(len, encoded), np.int64, len(new))
        self._starts = np.concatenate([self._starts, len(self._pieces) + np.cumsum(lengths) - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        pieces = [piece for ids in encoded for piece in ids]
        self._pieces = np.concatenate([self._pieces, np.array(pieces, np.int64)])
        self._numbers |= zip(new, range(len(self._numbers), len(self._numbers) + len(new)), strict=True)
