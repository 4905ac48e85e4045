"""The share of validation tokens in windows of the training text equals that of a search through all windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.data import deduplication
from study.data.deduplication import WindowSet, items_in, mixed, overlap_share, window_hashes

SEP, VOCABULARY = 3, 40


def stream(*documents: list[int]) -> np.ndarray:
    return np.array([token for document in documents for token in (*document, SEP)], np.uint16)


def searched(validation: np.ndarray, train: np.ndarray) -> float:
    """The same by comparing tuples of tokens."""
    there = {tuple(train[at : at + 13]) for at in range(len(train) - 12)}
    windows = (range(at, at + 13) for at in range(len(validation) - 12))
    covered = {
        place for window in windows if tuple(validation[window]) in there and SEP not in validation[window] for place in window
    }
    return len(covered) / max(1, int((validation != SEP).sum()))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 3))
def test_the_share_is_that_of_a_search_through_all_windows(seed: int, block: int, chunk: int) -> None:
    """Of texts that quote each other at random, whatever is looked at in one go."""
    random = np.random.default_rng(seed)
    passages = [random.integers(4, VOCABULARY, random.integers(1, 40)).tolist() for _ in range(6)]

    def text(count: int) -> np.ndarray:
        return stream(*([*passages[first], *passages[second]] for first, second in random.integers(0, 6, (count, 2))))

    validation, train = text(4), text(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplication, "BLOCK", block)
        patch.setattr(deduplication, "CHUNK", chunk * 20)
        assert overlap_share(validation, train, VOCABULARY, SEP) == pytest.approx(searched(validation, train))


def test_a_window_begins_at_thirteen_tokens_and_ends_with_its_document() -> None:
    words = list(range(4, 40))
    train = stream(words)
    for count, share in ((12, 0.0), (13, 13 / 23), (20, 20 / 30)):
        validation = stream([*words[:count], *[7] * 10])
        assert overlap_share(validation, train, VOCABULARY, SEP) == pytest.approx(share)
    apart = stream(words[:8], words[8:16])
    assert overlap_share(apart, apart, VOCABULARY, SEP) == 0, "no window lies in one document"
    assert overlap_share(stream([]), train, VOCABULARY, SEP) == overlap_share(train, stream(), VOCABULARY, SEP) == 0


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 9))
def test_items_of_windows_are_those_that_any_chosen_window_holds(chosen: list[bool], length: int) -> None:
    count = len(chosen) + length - 1
    held = {at + offset for at, one in enumerate(chosen) if one for offset in range(length)}
    assert np.flatnonzero(items_in(np.array(chosen, np.bool_), length, count)).tolist() == sorted(held)


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), max_size=40), st.integers(1, 4))
def test_windows_are_met_where_they_are_equal(ours: list[int], theirs: list[int], length: int) -> None:
    def windows(items: list[int]) -> list[tuple[int, ...]]:
        return [tuple(items[at : at + length]) for at in range(len(items) - length + 1)]

    table = mixed(np.arange(10, dtype=np.uint64))
    known = WindowSet(window_hashes(table[np.array(ours, int)], length))
    known.meet(window_hashes(table[np.array(theirs, int)], length))
    assert known.met.tolist() == [window in windows(theirs) for window in windows(ours)]
    known.forget()
    assert not known.met.any()
