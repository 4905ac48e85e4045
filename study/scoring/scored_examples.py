"""The examples of a task that scores use, as tokens of a run's tokeniser, and how much of their text it loses.

Letters: N pieces, W words, B rows, S places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from study.base.errors import InputError, shown
from study.base.randomness import fixed_permutation
from study.config.run_config import MOST_UNKNOWN
from study.config.score_config import Knobs
from study.data.token_files import count_characters
from study.data.tokenizing import SpecialTokens
from study.tasks.examples import Example, SpanExample, TaskData, TextExample, TokensExample, texts_among, texts_of
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


@dataclass(frozen=True)
class Ragged:
    """Rows of integers, end to end: row i is `values[starts[i]:starts[i + 1]]`."""

    values: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | NDArray[np.int64]]) -> Ragged:
        """Rows as one array."""
        arrays = [np.asarray(row, dtype=np.int64) for row in rows]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in arrays], dtype=np.int64)])
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.values[self.starts[row] : self.starts[row + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The length of every row."""
        return np.diff(self.starts)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """Return some rows, in their order."""
        return Ragged.of([self[row] for row in rows])

    def padded(self, rows: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Return some rows as a rectangle (B, `width`), `fill` behind their ends."""
        places = np.arange(width)
        inside = places < self.lengths[rows][:, None]
        rectangle = np.full(inside.shape, fill, dtype=np.int64)
        rectangle[inside] = self.values[(self.starts[rows][:, None] + places)[inside]]
        return rectangle


Ints = NDArray[np.int64]


def running_text(words: Sequence[str]) -> tuple[str, Ints]:
    """Words joined by spaces, as pre-training reads text, and the character where each begins: (W,)."""
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    begins: Ints = np.cumsum(lengths + 1) - lengths - 1
    return " ".join(words), begins


def word_of_pieces(offsets: Sequence[tuple[int, int]], text: str, begins: Ints) -> Ints:
    """Return the word of each piece, (N,): that of its first visible character.

    White space belongs to the next word, a piece across several words to the first.
    """
    visible = np.append(np.flatnonzero([not character.isspace() for character in text]), len(text) - 1)
    first = np.array([begin for begin, _ in offsets], dtype=np.int64)
    characters = visible[np.minimum(np.searchsorted(visible, first), len(visible) - 1)]
    words: Ints = np.searchsorted(begins, characters, side="right") - 1
    return words


def spaced_words(offsets: Sequence[tuple[int, int]], text: str) -> Ints:
    """Return the word of each piece where white space separates words, (N,)."""
    return word_of_pieces(offsets, text, np.array([match.start() for match in re.finditer(r"\S+", text)], dtype=np.int64))


MOST_QUESTION = 64
"""A question has at most so many tokens, and at most half of an input (Devlin et al. 2019 use 64)."""


@dataclass(frozen=True)
class Inputs:
    """One split as inputs of the encoder; several inputs can be windows of one example.

    `truncated` counts the examples that lose pieces; those in several windows lose none.
    `second` is where the second text of an input begins (its length without one). `labels` has a class, a number, or a 0 or 1
    for each of several classes, for each input; for tagged words, `word_places` are the positions of their first pieces and
    `word_labels` their classes; for spans, `labels` are (first, last) positions of the answer, 0 where the window lacks it, and
    `characters` the begin and end in the context of each position, -1 outside it.
    """

    tokens: Ragged
    second: NDArray[np.int64]
    example: NDArray[np.int64]
    labels: NDArray[np.float64] | NDArray[np.int64]
    truncated: int = 0
    word_places: Ragged | None = None
    word_labels: Ragged | None = None
    characters: Sequence[NDArray[np.int64]] = field(default=())

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: NDArray[np.int64]) -> Inputs:
        """Return some inputs, in their order."""
        return replace(
            self,
            tokens=self.tokens.take(rows),
            second=self.second[rows],
            example=self.example[rows],
            labels=self.labels[rows],
            word_places=None if self.word_places is None else self.word_places.take(rows),
            word_labels=None if self.word_labels is None else self.word_labels.take(rows),
            characters=[self.characters[row] for row in rows] if self.characters else (),
        )


class TaskEncoder:
    """Turns examples into inputs of at most `max_length` tokens, [CLS] and [SEP] included."""

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens, max_length: int) -> None:
        self.tokenizer, self.special, self.max_length = tokenizer, special, max_length

    def encode(self, examples: Sequence[Example]) -> Inputs:
        """Return the inputs of a split; all examples are of one kind."""
        tagged = [example for example in examples if isinstance(example, TokensExample)]
        requested = [example for example in examples if isinstance(example, SpanExample)]
        if tagged:
            return self._tagged(tagged)
        return self._spans(requested) if requested else self._texts(texts_among(examples))

    def _pieces(self, texts: Sequence[str]) -> list[Encoding]:
        encoded: list[Encoding] = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return encoded

    def _texts(self, examples: Sequence[TextExample]) -> Inputs:
        """Single texts and pairs; the longer text of a long pair loses its end."""
        first = [encoding.ids for encoding in self._pieces([example.text for example in examples])]
        if not examples or examples[0].text_b is None:
            room = self.max_length - 2
            rows = [self._input(ids[:room]) for ids in first]
            second = [len(row) for row in rows]
            cut = sum(len(ids) > room for ids in first)
        else:
            other = [encoding.ids for encoding in self._pieces([example.text_b or "" for example in examples])]
            kept = [shorten(len(a), len(b), self.max_length - 3) for a, b in zip(first, other, strict=True)]
            rows = [self._input(a[:m], b[:n]) for a, b, (m, n) in zip(first, other, kept, strict=True)]
            second = [m + 2 for m, _ in kept]
            cut = sum(len(a) + len(b) > self.max_length - 3 for a, b in zip(first, other, strict=True))
        labels = np.array([example.label for example in examples])
        return Inputs(Ragged.of(rows), np.array(second), np.arange(len(rows)), labels, cut)

    def _tagged(self, examples: Sequence[TokensExample]) -> Inputs:
        """Tagged words; a long text is cut between words, so that every word keeps its label.

        Words are encoded as running text, as in pre-training.
        """
        texts = [running_text(example.tokens) for example in examples]
        encoded = self._pieces([text for text, _ in texts])
        room = self.max_length - 2
        rows, owners, places, labels, cut = [], [], [], [], 0
        for number, (example, encoding) in enumerate(zip(examples, encoded, strict=True)):
            whole = self._words(encoding, *texts[number])
            words = [word[:room] for word in whole]
            cut += words != whole
            for begin, end in windows_of_words([len(word) for word in words], room):
                lengths = np.array([len(word) for word in words[begin:end]])
                rows.append(self._input([piece for word in words[begin:end] for piece in word]))
                owners.append(number)
                places.append(1 + np.cumsum(lengths) - np.maximum(lengths, 1))
                labels.append(np.array(example.labels[begin:end]))
        tokens = Ragged.of(rows)
        none = np.zeros(len(rows), dtype=np.int64)
        return Inputs(tokens, tokens.lengths, np.array(owners), none, cut, Ragged.of(places), Ragged.of(labels))

    def _words(self, encoding: Encoding, text: str, begins: Ints) -> list[list[int]]:
        """Return the pieces of each word.

        A word without any piece is [UNK]; one inside the piece of the word before is labelled there.
        """
        words: list[list[int]] = [[] for _ in begins]
        reached = np.zeros(len(begins), dtype=np.int64)  # the character up to which pieces go that begin at a word or before
        of_pieces = word_of_pieces(encoding.offsets, text, begins)
        for piece, word, (_, end) in zip(encoding.ids, of_pieces, encoding.offsets, strict=True):
            words[word].append(piece)
            reached[word] = max(reached[word], end)
        reached = np.maximum.accumulate(reached)
        return [word or ([] if reached[n] > begins[n] else [self.special.unk]) for n, word in enumerate(words)]

    def _spans(self, examples: Sequence[SpanExample]) -> Inputs:
        """Questions with their contexts, long ones in half-overlapping windows; an answer counts where it is whole."""
        questions = self._pieces([example.question for example in examples])
        contexts = self._pieces([example.context for example in examples])
        rows, second, owners, labels, characters, cut = [], [], [], [], [], 0
        for number, (example, requested, context) in enumerate(zip(examples, questions, contexts, strict=True)):
            question = requested.ids[: min(MOST_QUESTION, (self.max_length - 3) // 2)]
            cut += len(question) < len(requested.ids)
            room = self.max_length - 3 - len(question)
            offsets = np.array(context.offsets, dtype=np.int64).reshape(-1, 2)
            answer = None
            if example.answers:
                answer = answer_pieces(offsets, example.starts[0], example.starts[0] + len(example.answers[0]))
            for begin, end in overlapping_windows(len(context.ids), room):
                rows.append(self._input(question, context.ids[begin:end]))
                before = len(question) + 2
                second.append(before)
                owners.append(number)
                inside = answer is not None and begin <= answer[0] and answer[1] < end
                labels.append([place - begin + before for place in answer] if inside and answer else [0, 0])
                outside = np.full((before, 2), -1)
                characters.append(np.concatenate([outside, offsets[begin:end], outside[:1]]))
        return Inputs(Ragged.of(rows), np.array(second), np.array(owners), np.array(labels), cut, characters=characters)

    def _input(self, first: Sequence[int], second: Sequence[int] | None = None) -> list[int]:
        special = self.special
        row = [special.cls, *first, special.sep]
        return row if second is None else [*row, *second, special.sep]


def shorten(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two texts after the longer has lost its end, piece by piece, until both fit."""
    excess = max(0, first + second - room)
    from_longer = min(excess, abs(first - second))
    rest = excess - from_longer
    if first > second:
        return first - from_longer - (rest + 1) // 2, second - rest // 2
    return first - rest // 2, second - from_longer - (rest + 1) // 2


def windows_of_words(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Cuts between words so that each part fits: (first word, word after the last)."""
    windows, begin, size = [], 0, 0
    for number, length in enumerate(lengths):
        if size + length > room:
            windows.append((begin, number))
            begin, size = number, 0
        size += length
    return [*windows, (begin, len(lengths))]


def overlapping_windows(length: int, room: int) -> list[tuple[int, int]]:
    """Return windows of `room` that overlap by half and cover `length`."""
    step = max(1, room // 2)
    last = max(0, length - room)
    begins = [*range(0, last, step), last]
    return [(begin, min(length, begin + room)) for begin in begins]


def answer_pieces(offsets: NDArray[np.int64], begin: int, end: int) -> tuple[int, int] | None:
    """Return the first and last piece that an answer's characters touch, if any."""
    touched = np.flatnonzero((offsets[:, 1] > begin) & (offsets[:, 0] < end))
    return (int(touched[0]), int(touched[-1])) if len(touched) else None
