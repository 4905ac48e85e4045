"""Things in groups of those that are alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT", bound=Hashable)


def grouped(items: Iterable[ItemT], alike: Callable[[ItemT], KeyT]) -> dict[KeyT, list[ItemT]]:
    """The items in groups of those that are alike, groups and items in the order in which they come."""
    groups: dict[KeyT, list[ItemT]] = {}
    for item in items:
        groups.setdefault(alike(item), []).append(item)
    return groups
