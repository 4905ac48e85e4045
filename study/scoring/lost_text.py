"""How much of a task's text a tokeniser loses: its characters that become [UNK], or no piece at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from study.config.run_config import MOST_UNKNOWN
from study.data.token_files import count_characters
from study.data.tokenizing import SpecialTokens
from study.tasks.examples import Example, TaskData, texts_of

LOOKED_AT_CHARACTERS = 200_000
"""About so many characters of a split are looked at, which takes a tenth of a second, in examples spread over all of it."""


class LostText(NamedTuple):
    """The split of a task that loses the largest share of its non-space characters, and that share."""

    split: str
    share: float


def lost_share(tokenizer: Tokenizer, examples: Sequence[Example]) -> float:
    """Return the share of the non-space characters of examples that a tokeniser loses; of many examples, by some of them."""
    of_each = [texts_of(example) for example in examples]
    characters = sum(len(text) for texts in of_each for text in texts)
    every = max(1, -(-characters // LOOKED_AT_CHARACTERS))
    looked_at = [text for texts in of_each[::every] for text in texts]
    encodings = tokenizer.encode_batch(looked_at, add_special_tokens=False)
    return count_characters(looked_at, encodings, SpecialTokens.of(tokenizer).unk).lost_share


def lost_text(tokenizer: Tokenizer, task: TaskData) -> LostText:
    """Return what a tokeniser loses of a task's worst split."""
    shares = {split: lost_share(tokenizer, examples) for split, examples in task.splits.items()}
    return LostText(*max(shares.items(), key=lambda one: one[1]))


def lost_notes(tokenizers: Mapping[str, Tokenizer], tasks: Iterable[TaskData]) -> Iterator[str]:
    """Yield a warning for each task of which a tokeniser loses more than MOST_UNKNOWN.

    Of several, with the tokeniser's name.
    """
    for task in tasks:
        for name, tokenizer in tokenizers.items():
            lost = lost_text(tokenizer, task)
            if lost.share > MOST_UNKNOWN:
                what = f"of the characters of {lost.split} are [UNK] or dropped"
                which = f"the tokeniser{f' ({name})' if len(tokenizers) > 1 else ''}"
                remedy = "pre-train with one of its language, or kind: byte_bpe, which knows every character"
                yield f"{task.spec.name}: {lost.share:.0%} {what} by {which}, and no score reads them; {remedy}"
