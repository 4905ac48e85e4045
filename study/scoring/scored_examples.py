"""The examples of a task that scores use, all or as many as the knobs allow, and how much of their text a tokeniser loses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from study.base.errors import InputError, shown
from study.base.randomness import fixed_permutation
from study.config.run_config import MOST_UNKNOWN
from study.config.score_config import Knobs
from study.data.token_files import count_characters
from study.data.tokenizing import SpecialTokens
from study.tasks.examples import Example, TaskData, TokensExample, texts_among, texts_of
from study.tasks.loading import UNLABELLED, load_task
from study.tasks.task_spec import Kind


@lru_cache(maxsize=16)
def loaded_task(name: str, data: Path | None) -> TaskData:
    """Return a task with its examples, cached."""
    return load_task(name, data)


@dataclass(frozen=True)
class PlannedTask:
    """A task as planned: requested by a name or a file, read from `data`, with examples of a fingerprint."""

    requested: str
    data: Path | None
    knobs: Knobs
    kind: Kind
    name: str
    fingerprint: str

    def read(self) -> TaskData:
        """Return the task; raises InputError where its examples have changed."""
        task = subset(loaded_task(self.requested, self.data), self.knobs)
        if task.fingerprint != self.fingerprint:
            remedy = "restore them, or score the new ones"
            raise InputError.at(self.requested, f"has changed since it was planned; {remedy}")
        return task


def subset(task: TaskData, knobs: Knobs) -> TaskData:
    """Return the task with at most as many examples as the knobs allow, the first of a fixed permutation of each split.

    Raises InputError where only one label is left to learn.
    """
    limits = {name: knobs.max_evaluation_examples for name in task.splits if name != UNLABELLED}
    limits |= {"train": knobs.max_train_examples} if "train" in task.splits else {}
    splits = dict(task.splits)
    for name, limit in limits.items():
        if limit is not None and limit < len(splits[name]):
            order = fixed_permutation(len(splits[name]))[:limit]
            splits[name] = [splits[name][place] for place in sorted(order)]
    if len(labels := _labels_of(splits.get("train", ()))) == 1:
        label = _label_text(task, labels.pop())
        if len(_labels_of(task.train)) == 1:
            raise InputError.at(task.spec.name, f"all training examples have the label {label}; add examples of other labels")
        message = f"leaves {task.spec.name} only examples of the label {label} to learn from; raise it"
        raise InputError.at("downstream.knobs.max_train_examples", message)
    return replace(task, splits=splits)


def _label_text(task: TaskData, label: int | float | tuple[int, ...]) -> str:
    if isinstance(label, tuple):
        return shown([name for name, marked in zip(task.labels, label, strict=True) if marked])
    return shown(task.labels[int(label)] if task.labels else label)


def _labels_of(examples: Sequence[Example]) -> set[int | float | tuple[int, ...]]:
    of_texts = {example.label for example in texts_among(examples)}
    return of_texts.union(*(example.labels for example in examples if isinstance(example, TokensExample)))


LOOKED_AT_CHARACTERS = 200_000
"""About so many characters of a split are looked at, which takes a tenth of a second, in examples spread over all of it."""


class LostText(NamedTuple):
    """The split of a task that loses the largest share of its non-space characters, and that share."""

    split: str
    share: float


def lost_share(tokenizer: Tokenizer, examples: Sequence[Example]) -> float:
    """Return the share of examples' non-space characters that a tokeniser loses, estimated from some of many."""
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
    """Yield a warning for each task of which a tokeniser loses more than MOST_UNKNOWN."""
    for task in tasks:
        for name, tokenizer in tokenizers.items():
            lost = lost_text(tokenizer, task)
            if lost.share > MOST_UNKNOWN:
                what = f"of the characters of {lost.split} are [UNK] or dropped"
                which = f"the tokeniser{f' ({name})' if len(tokenizers) > 1 else ''}"
                remedy = "pre-train with one of its language, or kind: byte_bpe, which knows every character"
                yield f"{task.spec.name}: {lost.share:.0%} {what} by {which}, and no score reads them; {remedy}"
