"""Entities that tags spell: which scheme a set of tags follows, and the entities of one sentence.

The schemes read are IO, IOB1, IOB2, IOE, BIOES and BILOU, with the letter before or behind the type, parted by `-` or `_`
(`B-PER`, `PER_B`), or without types (`B`, `I`, `O`). A tag without a letter is a type of its own (IO): adjacent words of one
type are one entity. `O` is outside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

OUTSIDE = "O"

_LETTERS = ("BI", "BIES", "BILU", "IE")
"""The letters of each scheme beside O; L and U of BILOU are the E and S of BIOES."""

_AS_BIOES = {"L": "E", "U": "S"}

_SCHEMES = "entity_f1 reads IO, IOB1, IOB2, IOE, BIOES and BILOU"

Entity = tuple[str, int, int]
"""Type, first word and last word."""


@dataclass(frozen=True)
class TagScheme:
    """How tags spell entities: the position (B, I, E, S or O) and the type of each tag."""

    parts: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, tags: Collection[str]) -> TagScheme:
        """The scheme of a task's tags. Raises ValueError naming the tag that fits no scheme."""
        inside = sorted(set(tags) - {OUTSIDE})
        splits = [{tag: part for tag in inside if (part := split(tag)) is not None} for split in (_before, _behind)]
        parts = {tag: (tag, "") for tag in inside} if _untyped(inside) else max(splits, key=len)
        letters = {letter for letter, _ in parts.values()}
        if parts and any(letters <= set(scheme) for scheme in _LETTERS):
            if odd := [tag for tag in inside if tag not in parts]:
                raise ValueError(
                    f"tag {odd[0]!r} has no letter where {next(iter(parts))!r} has one; write all tags in one scheme"
                )
            return cls({OUTSIDE: (OUTSIDE, "")} | {tag: (_AS_BIOES.get(at, at), kind) for tag, (at, kind) in parts.items()})
        if parts and len(parts) == len(inside):
            raise ValueError(f"letters {', '.join(sorted(letters))} of tags belong to no one scheme; {_SCHEMES}")
        if OUTSIDE not in tags:
            raise ValueError(
                f"tags {', '.join(inside[:3])} spell no entities: none is {OUTSIDE!r}, and they have no letters as in "
                f"B-PER, I-PER; {_SCHEMES}"
            )
        return cls({OUTSIDE: (OUTSIDE, "")} | {tag: ("I", tag) for tag in inside})

    def entities(self, tags: Sequence[str]) -> set[Entity]:
        """The entities of one sentence.

        A word ends an entity where the next begins one or lies outside; B and S begin one, E and S end one, and so does
        another type, so that sequences which no scheme allows are read as well. Source: conlleval (Tjong Kim Sang and
        Buchholz 2000, CoNLL-2000), endOfChunk and startOfChunk, with S beside B and E.
        """
        entities: set[Entity] = set()
        begin: int | None = None
        before, kind_before = OUTSIDE, ""
        for place, tag in enumerate([*tags, OUTSIDE]):
            at, kind = self.parts[tag]
            if begin is not None and (at in "BSO" or before in "ES" or kind != kind_before):
                entities.add((kind_before, begin, place - 1))
                begin = None
            if begin is None and at != OUTSIDE:
                begin = place
            before, kind_before = at, kind
        return entities


def _untyped(tags: Collection[str]) -> bool:
    return set(tags) <= set("BIESLU") and not {"B", "I"}.isdisjoint(tags)


def _before(tag: str) -> tuple[str, str] | None:
    return (tag[0], tag[2:]) if len(tag) > 2 and tag[0] in "BIESLU" and tag[1] in "-_" else None


def _behind(tag: str) -> tuple[str, str] | None:
    return (tag[-1], tag[:-2]) if len(tag) > 2 and tag[-1] in "BIESLU" and tag[-2] in "-_" else None
