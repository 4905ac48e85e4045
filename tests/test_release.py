"""What a release states in several places is the same everywhere."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    actual: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return actual


def test_version_changelog_and_citation_agree(project: dict[str, Any]) -> None:
    latest = re.search(r"^## \[(?P<version>[\d.]+)\] – (?P<day>[\d-]+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest is not None, "the newest section names its version and date"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert latest["version"] == str(citation["version"]) == project["version"]
    assert date.fromisoformat(latest["day"]) == citation["date-released"]
    assert citation["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= {*citation}


def test_the_workflow_runs_what_ci_runs_on_the_oldest_and_the_newest_python(project: dict[str, Any]) -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
    job = yaml.safe_load(text)["jobs"]["ci"]
    versions = job["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == project["requires-python"]
    assert f"The tests pass on Python {versions[0]} and {versions[1]}" in (ROOT / "CONTRIBUTING.md").read_text()
    assert [step["run"] for step in job["steps"] if "run" in step][-3:] == [".ci/run", "make reference-check", "make slow"]


def test_the_pins_are_audited_at_every_change_and_every_week_and_a_skipped_audit_says_so() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
    assert [line.split(":")[0] for line in re.findall(r"^  (\w+:)", text.partition("permissions")[0], re.MULTILINE)] == [
        "push",
        "pull_request",
        "schedule",
    ]
    run = (ROOT / ".ci" / "run").read_text()
    audit = run[run.index("if curl") :]
    assert audit.index("make audit") < audit.index("else") < audit.index("make audit is skipped: ")


def test_the_container_takes_what_is_there() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert {"study", "sweeps", "analysis", "requirements"} <= {*copied}
    assert [name for name in copied if not (ROOT / name).exists()] == []
