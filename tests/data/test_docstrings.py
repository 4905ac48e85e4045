"""The corpus of docstrings is the same on every reading, whatever development tools are installed."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from study.base.errors import InputError
from study.data.docstrings import PACKAGES, docstrings_identity, docstrings_of, read_docstrings, source_files

SMALL = ("seaborn",)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path))


def test_docstrings_come_in_order_without_indentation_and_rulers() -> None:
    source = b'''
"""Module."""
class A:
    """Class.

        Indented
        --------
    """
    if True:
        def f(self): "Method."
    def g(self): return """Not one."""
async def h():
    """Function."""
'''
    assert list(docstrings_of(source)) == ["Module.", "Class.\nIndented", "Method.", "Function."]


@pytest.mark.parametrize("source", [b"def f(:", b"\0", b"\xff\xfe", b"(" * 10_000, b"x = " + b"-" * 100_000 + b"1"])
def test_a_file_that_does_not_parse_has_no_docstrings(source: bytes) -> None:
    assert list(docstrings_of(source)) == []


def test_a_package_is_read_the_same_way_twice_and_never_imported() -> None:
    imported = "seaborn" in sys.modules
    first = list(read_docstrings(SMALL))
    assert list(read_docstrings(SMALL)) == first
    assert ("seaborn" in sys.modules) == imported
    assert len(first) > 50
    assert {package for package, _ in first} == {"seaborn"}
    assert len({text for _, text in first}) == len(first)


def test_files_are_sorted_and_test_folders_left_out() -> None:
    names = [name for name, _ in source_files(("networkx", "python"))]
    assert all(before < after for before, after in pairwise(names))
    assert "networkx/algorithms/dag.py" in names
    assert "python/ast.py" in names
    assert not [name for name in names if "/tests/" in name or "/site-packages/" in name]


def test_the_identity_is_of_the_packages_and_development_tools_are_no_part() -> None:
    assert docstrings_identity(SMALL) == docstrings_identity(SMALL) != docstrings_identity(("networkx",))
    assert not {"transformers", "pytest", "mypy", "marimo"} & set(PACKAGES)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(InputError, match="needs the package no_such_package"):
        source_files(("no_such_package",))
