"""One pinned version of every tool: what pyproject.toml allows, constraints.txt pins, and hooks run from the environment."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_requirement_is_pinned_to_a_version_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    for requirement in map(Requirement, texts):
        if requirement.name != project["name"]:
            version = pins().get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement.name} is not in constraints.txt"
            assert version in requirement.specifier, f"{requirement} does not allow {version}"


def test_pins_are_public_versions_in_order() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines, key=str.upper)
    assert not [line for line in lines if "+" in line or " " in line]


def test_hooks_run_the_pinned_tools() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    tools = [Path(hook["entry"].split()[0]) for hook in hooks]
    assert {tool.name for tool in tools} == {"ruff", "mypy"}
    assert all(str(tool.parent) == ".venv/bin" and tool.name in pins() for tool in tools)
    assert all(hook["language"] == "system" for hook in hooks)


@pytest.mark.parametrize(
    ("name", "harmful"),
    [("pytorch-lightning", ("2.6.2", "2.6.3")), ("ray", ("2.50.0", "2.51.1"))],
    ids=["stealer", "CVE-2025-62593"],
)
def test_no_range_allows_a_release_that_is_known_to_be_harmful(name: str, harmful: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    (requirement,) = [one for one in map(Requirement, texts) if one.name == name]
    assert not [version for version in harmful if version in requirement.specifier]
