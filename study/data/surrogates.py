"""Lone surrogates: halves of a character, as JSON that was cut in an emoji holds them, which no tokeniser takes."""

from __future__ import annotations


def without_lone_surrogates(text: str) -> str:
    """The text with a question mark in place of each, so that every other character stays where it stands."""
    return text.encode("utf-8", "replace").decode()
