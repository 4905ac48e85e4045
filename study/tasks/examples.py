"""Examples of downstream tasks, one frozen class per kind, the entities of tagged words, and a task with its splits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property

from study.base.errors import cut, shown
from study.tasks.task_spec import TaskSpec


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text, or two for pair tasks, with its class index, its score, or a 0 or 1 for each class."""

    row: int
    text: str
    text_b: str | None
    label: int | float | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokensExample:
    """The words of a text and their label indices."""

    row: int
    tokens: tuple[str, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question, its context, and the answers with their character offsets, if any."""

    row: int
    context: str
    question: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """An acceptable and an unacceptable sentence, and their paradigm."""

    row: int
    good: str
    bad: str
    paradigm: str


Example = TextExample | TokensExample | SpanExample | MinimalPair


def texts_among(examples: Sequence[Example]) -> list[TextExample]:
    """Return the examples that are texts."""
    return [example for example in examples if isinstance(example, TextExample)]


def texts_of(example: Example) -> tuple[str, ...]:
    """Return the texts of an example that an encoder reads; words as running text."""
    match example:
        case TextExample():
            return (example.text,) if example.text_b is None else (example.text, example.text_b)
        case TokensExample():
            return (" ".join(example.tokens),)
        case SpanExample():
            return example.question, example.context
        case MinimalPair():
            return example.good, example.bad


def split_key(example: Example) -> str:
    """Return what must not be in two splits: the text, or a question's context."""
    match example:
        case TextExample():
            return f"{example.text}\n{example.text_b}"
        case TokensExample():
            return " ".join(example.tokens)
        case SpanExample():
            return example.context
        case MinimalPair():
            return example.good


@dataclass(frozen=True)
class TaskData:
    """A task with its examples: `train`, `dev` for choices, and `test` for reports; minimal pairs have only `test`.

    An example's `row` counts from 0 in its file or table. `dropped` counts dropped rows by location and reason; `passed_over`
    has a sentence for each file that seems to be of the task and is not read.
    """

    spec: TaskSpec
    labels: tuple[str, ...]
    splits: Mapping[str, Sequence[Example]]
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    @property
    def train(self) -> Sequence[Example]:
        """The training examples."""
        return self.splits["train"]

    @property
    def dev(self) -> Sequence[Example]:
        """The examples that choices are made on."""
        return self.splits["dev"]

    @property
    def test(self) -> Sequence[Example]:
        """The examples for reported scores."""
        return self.splits["test"]

    @cached_property
    def notes(self) -> list[str]:
        """A sentence per file that is not read or has dropped rows, and on examples of test that say little or nothing."""
        dropped = [
            f"{place}: {' and '.join(f'{count:,} {reason}' for reason, count in counts.items())} rows are skipped"
            for place, counts in self.dropped.items()
        ]
        return [*self.passed_over, *dropped, *self._repeated(), *self._undecidable()]

    def _repeated(self) -> Iterator[str]:
        """Yield how many examples of test have a text that train or dev also have, if any."""
        known = {split_key(example) for split in {"train", "dev"} & self.splits.keys() for example in self.splits[split]}
        if count := sum(split_key(example) in known for example in self.test):
            what = "contexts" if isinstance(self.test[0], SpanExample) else "texts"
            yield f"{self.spec.name}: {self._of_test(count)} have {what} that train or dev also have"

    def _undecidable(self) -> Iterator[str]:
        """Yield how many minimal pairs are of two equal sentences, if any."""
        if count := sum(isinstance(pair, MinimalPair) and pair.good == pair.bad for pair in self.test):
            yield f"{self.spec.name}: {self._of_test(count)} are pairs of equal sentences, which score half with any encoder"

    def _of_test(self, count: int) -> str:
        return f"{count:,} of the {len(self.test):,} examples of test ({count / len(self.test):.1%})"

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over kind, labels, the examples of every split, and whether a question may have no answer."""
        kind = [self.spec.kind, self.spec.regression, self.labels, *(["unanswerable"] if self.spec.unanswerable else [])]
        digest = hashlib.sha256(json.dumps(kind).encode())
        for name in sorted(self.splits):
            digest.update(f"\n{name}\n".encode())
            for example in self.splits[name]:
                digest.update(json.dumps(astuple(example)).encode())
        return digest.hexdigest()[:16]


OUTSIDE = "O"

_LETTERS = ("BI", "BIES", "BILU", "IE")
"""The letters of each scheme except O; BILOU's L and U are BIOES's E and S."""

_AS_BIOES = {"L": "E", "U": "S"}

_SCHEMES = "entity_f1 reads IO, IOB1, IOB2, IOE, BIOES and BILOU, as in B-PER, PER_B or B"

_LETTER_AND_SIGN = re.compile(r"^[A-Za-z][\W_]|[\W_][A-Za-z]$")
"""What types do not all look like: b-per, B:PER, B- and M-PER are tags of schemes that are written otherwise."""

_BRACKETED = re.compile(r"^\(|\*|\)$")
"""The brackets of CoNLL-2005 and CoNLL-2012: (PER* begins an entity, *) ends it."""

_LIKE_OUTSIDE = ("o", "0", "\N{CYRILLIC CAPITAL LETTER O}", "\N{GREEK CAPITAL LETTER OMICRON}", "_", "-")
"""What is no entity type but a way to write outside, by a typing error or in other formats."""

Entity = tuple[str, int, int]
"""Type, first word and last word."""


@dataclass(frozen=True)
class TagScheme:
    """The position (B, I, E, S or O) and type of each tag.

    The schemes are IO, IOB1, IOB2, IOE, BIOES and BILOU, with the letter before or after the type, separated by `-` or `_`
    (`B-PER`, `PER_B`), or without types (`B`, `I`, `O`). Tags without a letter are types (IO): adjacent words of one type form
    one entity. `O` is outside.
    """

    parts: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, tags: Collection[str]) -> TagScheme:
        """Infer the scheme of a task's tags; raises ValueError with the tags that fit no scheme."""
        inside = sorted(set(tags) - {OUTSIDE})
        if alike := next((tag for tag in inside if tag.strip() in (*_LIKE_OUTSIDE, OUTSIDE)), None):
            raise ValueError(f"tag {alike!r} is no type of entities; for outside, write {OUTSIDE!r}")
        splits = [{tag: part for tag in inside if (part := split(tag)) is not None} for split in (_before, _behind)]
        parts = {tag: (tag, "") for tag in inside} if _untyped(inside) else max(splits, key=_likeness)
        letters = {letter for letter, _ in parts.values()}
        if parts and any(letters <= set(scheme) for scheme in _LETTERS):
            if odd := [tag for tag in inside if tag not in parts]:
                raise ValueError(
                    f"tag {cut(odd[0])!r} has no letter, but {cut(next(iter(parts)))!r} has one; write all tags in one scheme"
                )
            return cls({OUTSIDE: (OUTSIDE, "")} | {tag: (_AS_BIOES.get(at, at), kind) for tag, (at, kind) in parts.items()})
        if parts and len(parts) == len(inside):
            raise ValueError(f"tag letters {', '.join(sorted(letters))} fit no single scheme; {_SCHEMES}")
        if inside and (all(map(_LETTER_AND_SIGN.search, inside)) or any(map(_BRACKETED.search, inside))):
            raise ValueError(f"tags {', '.join(map(cut, inside[:3]))} are written as in no scheme that is read; {_SCHEMES}")
        if glued := next((tag for tag in inside if len(tag) > 1 and tag[0] == "B" and f"I{tag[1:]}" in tags), None):
            raise ValueError(f"tags {cut(glued)} and I{cut(glued[1:])} have no sign after their letter; {_SCHEMES}")
        if "B" in inside and (others := [tag for tag in inside if tag in [*"IESLMW"]]):
            third = next((tag for tag in inside if tag not in [*"BIESLU"]), others[0])
            raise ValueError(f"tag {shown(third)} stands beside B and {others[0]}, which have no types; {_SCHEMES}")
        if OUTSIDE not in tags:
            raise ValueError(
                f"tags {', '.join(map(cut, inside[:3]))} spell no entities: none is {OUTSIDE!r}, and they have no letters "
                f"as in B-PER, I-PER; {_SCHEMES}"
            )
        return cls({OUTSIDE: (OUTSIDE, "")} | {tag: ("I", tag) for tag in inside})

    def entities(self, tags: Sequence[str]) -> set[Entity]:
        """Return the entities of one sentence; also reads sequences that no scheme allows.

        B and S begin an entity; E, S, a new type or a following B, S or O end it. Source: conlleval (Tjong Kim Sang and
        Buchholz 2000, CoNLL-2000), endOfChunk and startOfChunk, with S added.
        """
        entities: set[Entity] = set()
        begin: int | None = None
        before, kind_before = OUTSIDE, ""
        for index, tag in enumerate([*tags, OUTSIDE]):
            at, kind = self.parts[tag]
            if begin is not None and (at in "BSO" or before in "ES" or kind != kind_before):
                entities.add((kind_before, begin, index - 1))
                begin = None
            if begin is None and at != OUTSIDE:
                begin = index
            before, kind_before = at, kind
        return entities


def _untyped(tags: Collection[str]) -> bool:
    return set(tags) <= set("BIESLU") and not {"B", "I"}.isdisjoint(tags)


def _likeness(split: Mapping[str, tuple[str, str]]) -> tuple[int, bool]:
    """How well a split of tags fits: the number of tags, then whether any begins an entity or is inside one."""
    return len(split), any(letter in "BI" for letter, _ in split.values())


def _before(tag: str) -> tuple[str, str] | None:
    return (tag[0], tag[2:]) if len(tag) > 2 and tag[0] in "BIESLU" and tag[1] in "-_" else None


def _behind(tag: str) -> tuple[str, str] | None:
    return (tag[-1], tag[:-2]) if len(tag) > 2 and tag[-1] in "BIESLU" and tag[-2] in "-_" else None
