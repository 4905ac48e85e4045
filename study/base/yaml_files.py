"""Read YAML files strictly as mappings; values that YAML 1.1 misreads, such as 010, are refused."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from study.base.durable_files import check_finite
from study.base.errors import InputError, shown

MOST_BYTES = 2**20
"""The size of the largest YAML file that is read."""

MOST_VALUES = 100_000
"""The most values and keys of a YAML text, with aliases expanded."""

MOST_NESTED = 64
"""The most levels of nested lists and mappings."""

MOST_DIGITS = 40
"""The most characters of a whole number."""

_UNHELD = re.compile(r"[\x00\x85\ud800-\udfff]")
"""Zero bytes, next lines (NEL, a line end in YAML) and lone surrogates, which escapes can write but no file can hold."""


def read_yaml(path: Path, piped: bool = False) -> dict[str, Any]:
    """Read a YAML file as a mapping; raises InputError with line and column.

    Pipes are refused unless `piped`.
    """
    try:
        if not piped:
            check_finite(path)
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError.at(str(path), f"is larger than {MOST_BYTES:,} bytes, the limit for a YAML file")
        values = load_yaml(content.decode())
    except FileNotFoundError:
        raise InputError.at(str(path), "does not exist") from None
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InputError.at(position, f"is not valid YAML: {problem_in_words(error)}{_remedy(error)}") from None
    if not isinstance(values, dict):
        raise InputError.at(str(path), "is empty" if values is None else "does not hold keys and values")
    return values


def load_yaml(text: str) -> Any:
    """Parse a YAML text, None if empty.

    Raises yaml.MarkedYAMLError: ConstructorError for valid YAML that is refused.
    """
    try:
        return yaml.load(text, Loader=KeyLoader)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n"), error.position - before.rfind("\n") - 1
        mark = yaml.Mark("", error.position, line, column, None, 0)
        raise yaml.MarkedYAMLError(
            problem=f"the character {chr(error.character)!r} is not allowed here", problem_mark=mark
        ) from None
    except (ValueError, OverflowError) as error:  # from an escape such as "\\U00110000"
        raise yaml.MarkedYAMLError(problem=str(error)) from None


def problem_in_words(error: yaml.MarkedYAMLError, limit: int = 200) -> str:
    """Return the problem of a YAML text, on one line."""
    text = " ".join((error.problem or error.context or "cannot be parsed").split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


_REMEDIES = {
    "mapping values are not allowed": "a colon and a space begin a value: put text that holds them in quotes, "
    "and a space after the colon of each key",
    "found character '\\t'": "indent by spaces, not by tabs",
    "found character": "put text that begins with it in quotes",
    "expected <block end>": "give all keys of a mapping the same indent, and quote the whole text if it begins with a quote",
}
"""Remedies by the start of the YAML parser's messages, which have none."""


def _remedy(error: yaml.MarkedYAMLError) -> str:
    """Which bracket or quote to close, or how to write the value."""
    problem, opening = error.problem or "", error.context_mark
    if opening and problem.startswith(("expected ',' or", "found unexpected end of stream")):
        return f"; close what opens at {opening.line + 1}:{opening.column + 1}, or put text that holds such a sign in quotes"
    return next((f"; {remedy}" for words, remedy in _REMEDIES.items() if problem.startswith(words)), "")


class KeyLoader(yaml.SafeLoader):
    """SafeLoader in which every key is text and every value means what it looks like.

    It refuses repeated keys, tags, text that no file can hold, numbers that YAML 1.1 misreads, such as 010 (8) or 1:30 (90),
    and values that contain themselves, nest too deeply, or expand to too many.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._counts: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, checked before it is constructed."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            anchored = self.anchors.get(event.anchor)
            if anchored is not None and anchored.end_mark is None:
                raise _refused("the value contains itself", event.start_mark)
            return super().compose_node(parent, index)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise _refused(f"the tag {shown(tag)} is not supported; remove it, and put text in quotes", event.start_mark)
        if self._depth == MOST_NESTED:
            raise _refused(f"the value is nested more than {MOST_NESTED} levels deep", event.start_mark)
        if len(self._counts) == MOST_VALUES:
            raise _refused(f"the text holds more than {MOST_VALUES:,} values", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._check(node)
        return node

    def _check(self, node: yaml.Node | None) -> None:
        """Raise ConstructorError if a node, not those below, is refused."""
        below: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            node.value = _with_plain_keys(node.value)
            below = [*chain.from_iterable(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        elif isinstance(node, yaml.ScalarNode) and (unheld := _UNHELD.search(node.value)):
            raise _refused(f"the text holds {unheld[0]!r}, which no file can hold; remove it", node.start_mark)
        if node is not None:
            self._counts[node] = 1 + sum(self._counts.get(one, 1) for one in below)
            if self._counts[node] > MOST_VALUES:
                raise _refused(f"the value holds more than {MOST_VALUES:,} others, with aliases expanded", node.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; an impossible one, such as 2026-02-30, is refused."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise _refused(f"{shown(node.value)} cannot be read: {error}; put text in quotes", node.start_mark) from None

    def construct_plain_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number."""
        _check_plain(node)
        if len(node.value) > MOST_DIGITS:
            raise _refused(f"{shown(node.value)} is too long for a number", node.start_mark)
        return int(self.construct_yaml_int(node))

    def construct_plain_float(self, node: yaml.ScalarNode) -> float:
        """Return a number."""
        _check_plain(node)
        return float(self.construct_yaml_float(node))

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Return the text of a << or =."""
        return str(node.value)


def _refused(problem: str, mark: Any) -> ConstructorError:
    return ConstructorError(None, None, problem, mark)


def _with_plain_keys(pairs: list[tuple[yaml.Node, yaml.Node]]) -> list[tuple[yaml.Node, yaml.Node]]:
    """Return the pairs of a mapping with keys as text, except the merge key; repeated keys are refused."""
    plain: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in pairs:
        if not isinstance(key, yaml.ScalarNode):
            raise _refused("a key must be a plain word", key.start_mark)
        if key.value in plain:
            raise _refused(f"the key {shown(key.value)} appears twice", key.start_mark)
        merges = key.tag == "tag:yaml.org,2002:merge"
        named = key if merges else yaml.ScalarNode("tag:yaml.org,2002:str", key.value, key.start_mark, key.end_mark)
        plain[key.value] = named, value
    return [*plain.values()]


def _check_plain(node: yaml.ScalarNode) -> None:
    if re.fullmatch(r"[-+]?0[0-7_]+|.*:.*", node.value):
        number = node.value[:MOST_DIGITS]
        message = f"{number} is octal or a time in YAML, not a plain number; write it without a leading zero, or in quotes"
        raise _refused(message, node.start_mark)


KeyLoader.add_constructor("tag:yaml.org,2002:int", KeyLoader.construct_plain_int)
KeyLoader.add_constructor("tag:yaml.org,2002:float", KeyLoader.construct_plain_float)
KeyLoader.add_constructor("tag:yaml.org,2002:merge", KeyLoader.construct_text)
KeyLoader.add_constructor("tag:yaml.org,2002:value", KeyLoader.construct_text)
