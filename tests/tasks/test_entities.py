"""Entities of every tagging scheme are read as CoNLL's own script reads them, and tags of no scheme are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from study.tasks.examples import Entity, TagScheme

TYPES = ("ORG", "PER", "OTHER", "IDEA")
SPAN_SENTENCES = 300


def conlleval(tags: Sequence[str]) -> set[Entity]:
    """The chunks of conlleval.pl (Tjong Kim Sang, version 2004-01-26): startOfChunk and endOfChunk, word by word."""

    def starts(before: str, kind_before: str, at: str, kind: str) -> bool:
        pairs = {"BB", "IB", "OB", "OI", "EE", "EI", "OE"}
        return before + at in pairs or (at != "O" and kind_before != kind)

    def ends(before: str, kind_before: str, at: str, kind: str) -> bool:
        pairs = {"BB", "BO", "IB", "IO", "EE", "EI", "EO"}
        return before + at in pairs or (before != "O" and kind_before != kind)

    chunks: set[Entity] = set()
    before, kind_before, begin = "O", "", 0
    for place, tag in enumerate([*tags, "O"]):
        at, _, kind = tag.partition("-")
        if before != "O" and ends(before, kind_before, at, kind):
            chunks.add((kind_before, begin, place - 1))
        if starts(before, kind_before, at, kind):
            begin = place
        before, kind_before = at, kind
    return chunks


@pytest.mark.parametrize("letters", ["BI", "I", "IE"])
def test_any_sequence_of_tags_is_read_as_conlleval_reads_it(letters: str) -> None:
    tags = ["O", *(f"{letter}-{kind}" for letter in letters for kind in TYPES)]
    scheme, generator = TagScheme.of(tags), np.random.default_rng(3)
    for _ in range(SPAN_SENTENCES):
        sentence = generator.choice(tags, size=generator.integers(1, 12)).tolist()
        assert scheme.entities(sentence) == conlleval(sentence), sentence


def spelled(entities: set[Entity], length: int, scheme: str) -> list[str]:
    """The tags of a sentence in a scheme."""
    tags = ["O"] * length
    ends = {(kind, last) for kind, _, last in entities}
    for kind, first, last in sorted(entities, key=lambda entity: entity[1]):
        for place in range(first, last + 1):
            after_same = place == first and (kind, first - 1) in ends
            at = "B" if place == first else "I"
            match scheme:
                case "IOB1":
                    at = "B" if after_same else "I"
                case "BIOES" | "BILOU":
                    single, end = ("S", "E") if scheme == "BIOES" else ("U", "L")
                    at = single if first == last else end if place == last else at
                case "IOE2":
                    at = "E" if place == last else "I"
            tags[place] = f"{at}-{kind}"
    return tags


def drawn(generator: np.random.Generator) -> tuple[set[Entity], int]:
    """Entities that often touch each other, in a sentence of so many words."""
    entities, place = set(), 0
    while place < 20:
        length, gap = int(generator.integers(1, 4)), int(generator.integers(0, 2))
        entities.add((str(generator.choice(TYPES)), place, place + length - 1))
        place += length + gap
    return entities, place


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOE2", "BIOES", "BILOU"])
@pytest.mark.parametrize("written", ["{at}-{kind}", "{at}_{kind}", "{kind}-{at}", "{kind}_{at}"])
def test_entities_survive_every_way_of_writing_them(scheme: str, written: str) -> None:
    generator = np.random.default_rng(7)
    sentences = [drawn(generator) for _ in range(50)]
    tagged = [spelled(entities, length, scheme) for entities, length in sentences]
    rewritten = [[tag if tag == "O" else written.format(at=tag[0], kind=tag[2:]) for tag in tags] for tags in tagged]
    read = TagScheme.of({tag for tags in rewritten for tag in tags} | {"O"})
    assert [read.entities(tags) for tags in rewritten] == [entities for entities, _ in sentences]


def test_tags_without_letters_are_types_and_adjacent_words_of_one_are_one_entity() -> None:
    read = TagScheme.of(["O", "ORG", "PER", "OTHER", "E", "MISC-EVENT"])
    assert read.entities(["ORG", "ORG", "O", "PER", "OTHER"]) == {("ORG", 0, 1), ("PER", 3, 3), ("OTHER", 4, 4)}
    assert read.entities(["MISC-EVENT", "E", "O"]) == {("MISC-EVENT", 0, 0), ("E", 1, 1)}
    assert read.entities(["O", "O"]) == set()


def test_types_that_are_letters_are_distinguished_from_the_letters_of_the_scheme() -> None:
    assert TagScheme.of(["O", "E-B", "E-I"]).entities(["E-B", "E-I"]) == {("E", 0, 1)}
    assert TagScheme.of(["O", "B-E", "I-E"]).entities(["B-E", "I-E"]) == {("E", 0, 1)}


def test_tags_of_no_type_are_entities_all_the_same() -> None:
    assert TagScheme.of(["B", "I", "O"]).entities(["B", "I", "B", "O", "I"]) == {("", 0, 1), ("", 2, 2), ("", 4, 4)}


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["NOUN", "VERB", "ADJ"], "spell no entities: none is 'O'"),
        (["O", "b-PER", "i-PER"], "tags b-PER, i-PER are written as in no scheme that is read"),
        (["O", "B:PER", "I:PER"], "tags B:PER, I:PER are written as in no scheme"),
        (["O", "B-", "I-"], "tags B-, I- are written as in no scheme"),
        (["O", "PER/b", "PER/i"], "tags PER/b, PER/i are written as in no scheme"),
        (["O", "B-PER", "M-PER", "E-PER", "S-PER"], "'M-PER' has no letter"),
        (["O", "B-PER", "I-PER", "ORG"], "tag 'ORG' has no letter, but 'B-PER' has one"),
        (["O", "B-PER", "L-PER", "S-PER"], "tag letters B, L, S fit no single scheme"),
        (["b-per", "i-per"], "are written as in no scheme"),
        (["o", "b-per", "i-per"], "tag 'o' is no type of entities; for outside, write 'O'"),
        (["O", "o", "PER", "ORG"], "tag 'o' is no type of entities"),
        (["O", "o", "B-PER", "I-PER"], "tag 'o' is no type of entities"),
        (["0", "PER"], "tag '0' is no type of entities"),
        (["O", " O", "PER"], "tag ' O' is no type of entities"),
        (["_", "B-PER", "I-PER"], "tag '_' is no type of entities"),
        (["\N{CYRILLIC CAPITAL LETTER O}", "PER"], "is no type of entities"),
        (["O", "B", "I", "X"], "tag 'X' stands beside B and I, which have no types"),
        (["O", "B", "M", "E", "S"], "tag 'M' stands beside B and E, which have no types"),
        (["O", "BPER", "IPER"], "tags BPER and IPER have no sign after their letter"),
        (["O", "(PER*", "*", "*)"], r"tags \(PER\*, \*, \*\) are written as in no scheme"),
    ],
)
def test_tags_of_no_scheme_are_refused(tags: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TagScheme.of(tags)
