"""YAML as plain data: read as it looks, and what does not end, explodes or is something else is refused on one line."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from study.base.errors import InputError
from study.base.yaml_files import MOST_BYTES, MOST_NESTED, MOST_VALUES, load_yaml, problem_in_words, read_yaml

BOMB = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x]"]
    + [f"{later}: &{later} [{', '.join([f'*{earlier}'] * 9)}]" for earlier, later in pairwise("abcdefghijklmnopq")]
)
MERGES = "\n".join(
    ["a: &a {x: 1}"]
    + [f"{later}: &{later} {{<<: [*{earlier}, *{earlier}]}}" for earlier, later in pairwise("abcdefghijklmnopqrstu")]
)


def refusal(text: str) -> str:
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        load_yaml(text)
    message = problem_in_words(caught.value)
    assert message.isprintable()
    assert len(message) <= 200
    return message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!int [x]", "the tag '!!int' is not supported; remove it, and put text in quotes"),
        ("question: !!bool x", "the tag '!!bool' is not supported"),
        ("a: !!timestamp x", "the tag '!!timestamp' is not supported"),
        ("a: !!binary aGk=", "the tag '!!binary' is not supported"),
        ("a: !!float {}", "the tag '!!float' is not supported"),
        ("!!set {a, b}", "the tag '!!set' is not supported"),
        ("a: ! 5", "the tag '!' is not supported"),
        ("a: !mine x", "the tag '!mine' is not supported"),
        ("!!str a: 1", "the tag '!!str' is not supported"),
        ("a: 0x" + "f" * 6000, "is too long for a number"),
        ("a: -0b" + "1" * 6000, "is too long for a number"),
        ("a: " + "9" * 6000, "is too long for a number"),
        ("a: 0x_", "'0x_' cannot be read: invalid literal for int()"),
        ("a: 010", "010 is octal or a time in YAML, not a plain number"),
        ("a: 190:20:30", "190:20:30 is octal or a time in YAML, not a plain number"),
        ("a: 1:30.5", "1:30.5 is octal or a time in YAML, not a plain number"),
        ("a: 2026-02-30", "'2026-02-30' cannot be read: day"),
        ("a: 2001-12-14t21:59:43.10-99:99", "cannot be read: offset must be a timedelta"),
        ("[" * 3000, f"the value is nested more than {MOST_NESTED} levels deep"),
        ("{a: " * 3000, f"the value is nested more than {MOST_NESTED} levels deep"),
        ("- " * 3000, f"the value is nested more than {MOST_NESTED} levels deep"),
        ("? " * 3000, f"the value is nested more than {MOST_NESTED} levels deep"),
        (BOMB, f"the value holds more than {MOST_VALUES:,} others, with aliases expanded"),
        (MERGES, f"the value holds more than {MOST_VALUES:,} others, with aliases expanded"),
        ("a: &a [*a]", "the value contains itself"),
        ("a: &a {<<: *a}", "the value contains itself"),
        ("? &a [*a]\n: 1", "the value contains itself"),
        ("a: *b", "found undefined alias 'b'"),
        ("a: {<<: 1}", "expected a mapping or list of mappings for merging, but found scalar"),
        ("a: 1\na: 2", "the key 'a' appears twice"),
        ("1: 1\n'1': 2", "the key '1' appears twice"),
        ("on: 1\n'on': 2", "the key 'on' appears twice"),
        ("<<: {a: 1}\n<<: {b: 1}", "the key '<<' appears twice"),
        ("? [a]\n: 1", "a key must be a plain word"),
        ("a: \x00", "the character '\\x00' is not allowed here"),
        ("a: \x1b[2J", "the character '\\x1b' is not allowed here"),
        ("a: \ud800", "the character '\\ud800' is not allowed here"),
        (r'a: "\x00"', "the text holds '\\x00', which no file can hold; remove it"),
        (r'a: "one\x85line"', "the text holds '\\x85', which no file can hold; remove it"),
        (r'"\ud800": 1', "the text holds '\\ud800', which no file can hold; remove it"),
        (r'a: "\U00110000"', "chr() arg not in range(0x110000)"),
        ("%YAML 9.9\n--- a", "found incompatible YAML document"),
        ("a: 1\n--- \nb: 1", "but found another document"),
        ("\ta: 1", "found character '\\t' that cannot start any token"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_is_no_plain_data_is_refused(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("\ufeffa: 1\r\nb: [yes, 'yes']\r\n", {"a": 1, "b": [True, "yes"]}),
        ("on: 1\nno: 2\n7: 3\n~: 4\n2026-01-30: 5\n.nan: 6", {"on": 1, "no": 2, "7": 3, "~": 4, "2026-01-30": 5, ".nan": 6}),
        ("a: 1_000\nb: 0x10\nc: .5\nd: 1.5e+3\ne: 1e3", {"a": 1000, "b": 16, "c": 0.5, "d": 1500.0, "e": "1e3"}),
        ("a: =\nb: <<\n=: c", {"a": "=", "b": "<<", "=": "c"}),
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
        ("a: {b: &b {<<: &c {k: 1, x: 1}, k: 2}}\nd: {<<: *b}", {"a": {"b": {"k": 2, "x": 1}}, "d": {"k": 2, "x": 1}}),
        ("&a x: &b [1]\ny: [*a, *b]", {"x": [1], "y": ["x", [1]]}),
        ("x: &a 3\n*a : 1", {"x": 3, "3": 1}),
        (r'"a\tb\n": "\e[31m"', {"a\tb\n": "\x1b[31m"}),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_plain_data_is_read_as_it_looks(text: str, value: Any) -> None:
    assert load_yaml(text) == value


def test_limits_are_far_beyond_what_a_sweep_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of two thousand shapes, and a nest as deep as may be."""
    shapes = [{"depth": depth, "width": 64, "heads": 1, "ffn": 256} for depth in range(1, 2001)]
    assert load_yaml(json.dumps({"shapes": {"list": shapes}})) == {"shapes": {"list": shapes}}
    deep = MOST_NESTED - 1
    assert load_yaml("[" * deep + "x" + "]" * deep)
    assert "nested" in refusal("[" * (deep + 1) + "x" + "]" * (deep + 1))
    monkeypatch.setattr("study.base.yaml_files.MOST_VALUES", 1000)
    assert "the text holds more than 1,000 values" in refusal("[" + "1," * 1001 + "]")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: \x00", "x.yaml:2:4: is not valid YAML: the character '\\x00' is not allowed here"),
        ("a: 1".encode("utf-16"), "x.yaml: is not UTF-8 text (byte 0)"),
        (b"a: caf\xe9", "x.yaml: is not UTF-8 text (byte 6)"),
        (b"a: " + b"x" * MOST_BYTES, f"x.yaml: is larger than {MOST_BYTES:,} bytes"),
        (b"a: 1\nb: !!int x", "x.yaml:2:4: is not valid YAML: the tag '!!int' is not supported"),
        (b"a: 1\n  b: 2", "x.yaml:2:4: is not valid YAML: mapping values are not allowed here"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_file_that_cannot_be_read_is_reported_with_its_place(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_yaml(tmp_path / "x.yaml")
    (problem,) = caught.value.problems
    assert message in str(problem)
    assert str(problem).isprintable()


def test_a_file_without_an_end_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.yaml")
    for path in (tmp_path / "sweep.yaml", Path("/dev/zero")):
        with pytest.raises(InputError, match="is a pipe or a device"):
            read_yaml(path)
