"""YAML files as mappings, read strictly: what YAML 1.1 takes for something else than it looks like is refused."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from study.base.errors import InputError


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds; raises InputError with line and column where it cannot be read."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=KeyLoader)
    except FileNotFoundError:
        raise InputError.at(str(path), "does not exist") from None
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError.at(str(path), "is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InputError.at(where, f"is not valid YAML: {getattr(error, 'problem', None) or error}{_remedy(error)}") from None
    except ValueError as error:  # of a date such as 2026-02-30
        raise InputError.at(str(path), f"holds a value that cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise InputError.at(str(path), "is empty" if values is None else "does not hold keys and values")
    return values


_REMEDIES = {
    "mapping values are not allowed": "a colon and a space begin a value: put text that holds them in quotes, "
    "and a space after the colon of each key",
    "found character '\\t'": "indent by spaces, not by tabs",
    "found character": "put text that begins with it in quotes",
    "expected <block end>": "indent keys of one mapping alike, and put text that begins with a quote in quotes as a whole",
}
"""What to do about the slips that the words of YAML's own parser do not name, by how these begin."""


def _remedy(error: yaml.YAMLError) -> str:
    """What to do about YAML that cannot be parsed: where that opens which is not closed, or how to write what was meant."""
    problem, begun = getattr(error, "problem", None) or "", getattr(error, "context_mark", None)
    if begun and problem.startswith(("expected ',' or", "found unexpected end of stream")):
        return f"; close what opens at {begun.line + 1}:{begun.column + 1}, or put text that holds such a sign in quotes"
    return next((f"; {remedy}" for words, remedy in _REMEDIES.items() if problem.startswith(words)), "")


class KeyLoader(yaml.SafeLoader):
    """SafeLoader for which the key `on` is a word and not true, and that refuses what YAML 1.1 takes for something else.

    That is a key which stands twice in one mapping, a value that holds itself, and a number such as 010, which is 8, or 1:30,
    which is 90.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node; PyYAML reads a plain `on` as true, and takes the last of two values silently."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:bool":
                key_node.tag = "tag:yaml.org,2002:str"
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node; an alias inside of what it names would be a value without end."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            above = self.anchors.get(event.anchor)
            if above is not None and above.end_mark is None:
                raise yaml.constructor.ConstructorError(None, None, "the value holds itself", event.start_mark)
        return super().compose_node(parent, index)

    def construct_plain_int(self, node: yaml.ScalarNode) -> int:
        """The whole number of a node."""
        _check_plain(node)
        return int(self.construct_yaml_int(node))

    def construct_plain_float(self, node: yaml.ScalarNode) -> float:
        """The number of a node."""
        _check_plain(node)
        return float(self.construct_yaml_float(node))


def _check_plain(node: yaml.ScalarNode) -> None:
    if re.fullmatch(r"[-+]?0[0-7_]+|.*:.*", node.value):
        told = f"{node.value} is octal or a time in YAML, no plain number; write it without a leading zero, or in quotes"
        raise yaml.constructor.ConstructorError(None, None, told, node.start_mark)


KeyLoader.add_constructor("tag:yaml.org,2002:int", KeyLoader.construct_plain_int)
KeyLoader.add_constructor("tag:yaml.org,2002:float", KeyLoader.construct_plain_float)
