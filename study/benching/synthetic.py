"""Token files and a tokeniser that need no text: their numbers are drawn, their form is that of real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from study.data.prepared import Facts, PreparedData
from study.data.token_files import token_dtype, token_file
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens, bert_tokenizer

SEQUENCES = {"train": 4096, "validation": 64}
"""Sequences of each split."""


def drawn_data(folder: Path, vocabulary: int, sequence_length: int, validation_sequences: int = 64) -> PreparedData:
    """Token files of a vocabulary in an existing folder: ids as common as words are (Zipf's law), the same ones every time."""
    random = np.random.default_rng(0)
    first, tokens = len(SPECIAL_PIECES), {}
    for split, sequences in (SEQUENCES | {"validation": validation_sequences}).items():
        count = sequences * sequence_length
        ids = first + np.exp(random.uniform(0, np.log(vocabulary - first), count)).astype(np.int64) - 1
        ids.astype(token_dtype(vocabulary)).tofile(token_file(folder, "train" if split == "train" else "validation"))
        tokens[split] = count
    facts = Facts.parse(
        {
            "vocabulary": vocabulary,
            "dtype": token_dtype(vocabulary).name,
            "tokens": tokens | {"test": 0},
            "documents": sum(SEQUENCES.values()),
            "text_bytes": 0,
            "empty_documents": 0,
            "duplicate_documents": 0,
            "unigram_entropy_nats": float(np.log(vocabulary)),
            "tokenizer_sha256": "",
        }
    )
    return PreparedData("drawn", folder, sequence_length, validation_sequences, SpecialTokens(*range(first)), facts)


def drawn_tokenizer(vocabulary: int) -> Tokenizer:
    """BERT's tokeniser with so many pieces, the special ones first."""
    words = (f"w{number}" for number in range(vocabulary - len(SPECIAL_PIECES)))
    return bert_tokenizer({piece: number for number, piece in enumerate([*SPECIAL_PIECES, *words])})
