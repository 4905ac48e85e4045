"""The tasks made of docstrings have labels that occur in them, and nothing that gives those away."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from study.base.errors import InputError
from study.data.corpora import split_of
from study.data.docstrings import read_docstrings
from study.tasks import embedded
from study.tasks.embedded import (
    MAKERS,
    ROLE_OF_SPLIT,
    Passages,
    Rows,
    documents,
    embedded_tables,
    following,
    line_key,
    order,
    paragraphs,
    tagged,
)
from study.tasks.task_spec import ROLES, read_spec

PACKAGES = ("networkx", "optuna")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDY_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(embedded, "FEWEST_DOCUMENTS", 40)
        yield


@pytest.fixture(scope="module")
def passages(cache: object) -> list[Passages]:
    return documents(PACKAGES)


@pytest.fixture(scope="module")
def rows(passages: list[Passages]) -> dict[str, Rows]:
    return {name: make(passages) for name, (_, make) in MAKERS.items()}


@pytest.mark.slow
def test_documents_keep_the_split_that_pre_training_gave_them(passages: list[Passages]) -> None:
    texts = {
        role: "\n".join(text for _, text in read_docstrings(PACKAGES) if role_of(text) == role) for role in ("dev", "test")
    }
    assert Counter(document.role for document in passages)["train"] > 0.85 * len(passages)
    for document in passages:
        if document.role != "train":
            assert all(line in texts[document.role] for run in document.runs for line in run)


def role_of(text: str) -> str:
    return ROLE_OF_SPLIT[split_of(text.strip())]


def test_no_line_stands_in_two_documents_or_names_a_package(passages: list[Passages]) -> None:
    holders = Counter(key for document in passages for key in {line_key(line) for run in document.runs for line in run})
    assert set(holders.values()) == {1}
    text = "\n".join(line for document in passages for run in document.runs for line in run).lower()
    assert not [name for name in ("networkx", "optuna", "numpy", ">>>") if name in text]


@pytest.mark.slow
def test_the_same_packages_give_the_same_rows(passages: list[Passages], rows: dict[str, Rows]) -> None:
    again = documents(PACKAGES)
    assert again == passages
    for name, (_, make) in MAKERS.items():
        assert make(again) == rows[name], name


@pytest.mark.parametrize("name", ["docstring-package", "docstring-pairs", "docstring-code"])
def test_splits_share_no_example(rows: dict[str, Rows], name: str) -> None:
    actual = {role: {str(row[:-1]) for row in rows[name][role]} for role in ("train", "dev", "test")}
    assert all(actual.values())
    assert not actual["train"] & actual["dev"]
    assert not actual["train"] & actual["test"]
    assert not actual["dev"] & actual["test"]


def test_packages_are_those_that_the_texts_come_from(rows: dict[str, Rows]) -> None:
    of_text = {" ".join(document.words[:30]): document.package for document in documents(PACKAGES)}
    for text, package in rows["docstring-package"]["test"]:
        assert of_text[str(text)] == package
    assert {package for _, package in rows["docstring-package"]["train"]} == set(PACKAGES)


def test_half_of_the_pairs_follow_and_paragraphs_tell_nothing_alone(passages: list[Passages], rows: dict[str, Rows]) -> None:
    following = set()
    for document in passages:
        for run in document.runs:
            following |= set(pairwise(paragraphs(run, 60)))
    for role in ("train", "dev", "test"):
        pairs = rows["docstring-pairs"][role]
        assert [label for *_, label in pairs].count("follows") * 2 == len(pairs)
        assert all(((first, second) in following) == (label == "follows") for first, second, label in pairs)
        paragraph_counts = Counter(text for first, second, _ in pairs for text in (first, second))
        assert paragraph_counts.most_common(1)[0][1] <= 2


def test_paragraphs_that_do_not_follow_are_of_two_documents_where_there_are_few() -> None:
    def document(name: str) -> Passages:
        lines = tuple(f"Say {name} {number} and then some more words of this one." for number in range(6))
        return Passages("dev", "package", (lines,))

    actual = following([document("one"), document("two"), document("three")])["dev"]
    assert len(actual) == 6
    assert [label for *_, label in actual].count("follows") * 2 == len(actual)
    for first, second, label in actual:
        assert (str(first).split()[1] == str(second).split()[1]) == (label == "follows")


@pytest.mark.parametrize(
    ("text", "tokens", "tags"),
    [
        ("Set ``axis=0``, or `x`.", "Set axis = 0 , or x .", "O B-CODE I-CODE I-CODE O O B-CODE O"),
        ("See :class:`~a.B` now", "See a.B now", "O B-CODE O"),
        ("A stray ` tick.", "A stray tick .", "O O O O"),
    ],
)
def test_code_is_what_stood_in_markup(text: str, tokens: str, tags: str) -> None:
    assert tagged(text) == (tokens.split(), tags.split())


def test_words_are_code_or_not_and_the_markup_is_gone(rows: dict[str, Rows]) -> None:
    for tokens, tags in rows["docstring-code"]["test"]:
        assert isinstance(tokens, list)
        assert isinstance(tags, list)
        assert len(tokens) == len(tags)
        assert not [token for token in tokens if "`" in token]
        assert {"O", "B-CODE"} <= set(tags) <= {"O", "B-CODE", "I-CODE"}


def test_minimal_pairs_have_the_same_words_in_another_order(passages: list[Passages], rows: dict[str, Rows]) -> None:
    learned = "\n".join(line for document in passages if document.role == "train" for run in document.runs for line in run)
    actual = rows["docstring-order"]["test"]
    assert len({good for good, _, _ in actual}) == len(actual) > 20
    for good, bad, paradigm in actual:
        assert good != bad
        assert sorted(str(good)[:-1].split()) == sorted(str(bad)[:-1].split())
        assert str(good) not in learned
        assert paradigm in ("article_moved", "auxiliary_moved", "preposition_moved")


def test_a_paragraph_that_begins_inside_a_sentence_is_passed_over() -> None:
    assert list(paragraphs(["rest of a sentence.", "A whole", "one.", "Cut of"], 60)) == ["A whole one."]


def test_tables_are_made_once_and_have_the_columns_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = embedded_tables("docstring-pairs", PACKAGES)
    monkeypatch.setattr(embedded, "documents", lambda _: pytest.fail("made again"))
    assert embedded_tables("docstring-pairs", PACKAGES) == tables
    for name, (columns, _) in MAKERS.items():
        spec, _ = read_spec(name)
        assert tuple(ROLES[spec.kind].values()) == columns


def test_an_unknown_maker_brings_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'docstring-pairs'"):
        embedded_tables("docstring-pair")


def test_the_order_of_examples_depends_on_nothing_but_their_text() -> None:
    assert order("a") == order("a") != order("b")
