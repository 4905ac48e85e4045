"""One pinned version of every tool, with hashes: what pyproject.toml allows, requirements/ pins, and make, CI and hooks run."""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
import tomllib
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("torch", "core", "cuda", "extras", "dev", "tools")


def project() -> dict[str, Any]:
    actual: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return actual


def locked(group: str) -> dict[str, list[Requirement]]:
    """The requirements of a file by name, without their hashes."""
    lines = (ROOT / "requirements" / f"{group}.txt").read_text().splitlines()
    actual: dict[str, list[Requirement]] = {}
    for line in lines:
        if not line.startswith(("#", " ")):
            requirement = Requirement(line.removesuffix(" \\"))
            actual.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return actual


def extras_in(*names: str) -> list[Requirement]:
    texts = [text for name in names for text in project()["optional-dependencies"][name]]
    return [one for one in map(Requirement, texts) if one.name != project()["name"]]


def test_every_requirement_is_pinned_to_a_version_it_allows_in_the_file_of_its_group() -> None:
    running, of_users = {**locked("torch"), **locked("cuda")}, set(project()["optional-dependencies"]) - {"dev", "docs"}
    needs = {
        "core": [Requirement(text) for text in [*project()["dependencies"], "hatchling"]],
        "extras": extras_in(*of_users),
        "dev": extras_in("dev", "docs"),
    }
    known = dict(running)
    for group, requirements in needs.items():
        known |= locked(group)
        for requirement in requirements:
            pins = known.get(canonicalize_name(requirement.name), [])
            assert pins, f"{requirement.name} is in none of requirements/ up to {group}.txt"
            for pin in pins:
                (version,) = (one.version for one in pin.specifier)
                assert version in requirement.specifier, f"{requirement} does not allow {version}"


def test_pins_are_public_versions_with_hashes_and_in_one_file_each() -> None:
    for group in GROUPS:
        text = (ROOT / "requirements" / f"{group}.txt").read_text()
        for block in re.findall(r"^[^#\s].*(?:\n +.*)*", text, re.MULTILINE):
            pin, *hashes = block.split(" \\\n    ")
            assert re.fullmatch(r"[a-z0-9-]+==[\w.!]+( ; .+)?", pin), pin
            assert hashes, f"{pin} has no hash"
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), pin
    for one, other in combinations(GROUPS[:-1], 2):
        assert not set(locked(one)) & set(locked(other)) - {"triton"}
    assert locked("cuda")["triton"] == locked("dev")["triton"]


def test_lightning_is_pinned_to_the_version_of_pytorch_lightning_and_never_to_a_compromised_one() -> None:
    (of_tests,), (of_users,) = locked("dev")["lightning"], locked("core")["pytorch-lightning"]
    assert of_tests.specifier == of_users.specifier
    for requirement in [*map(Requirement, project()["dependencies"]), *extras_in("dev")]:
        if requirement.name in ("lightning", "pytorch-lightning"):
            assert not [*requirement.specifier.filter(["2.6.2", "2.6.3"])]


def test_cuda_libraries_are_apart_so_that_a_build_of_torch_for_a_cpu_brings_none() -> None:
    assert not [name for group in ("core", "extras", "dev") for name in locked(group) if name.startswith(("nvidia-", "cuda-"))]
    assert {"triton"} < set(locked("cuda"))
    assert all("linux" in str(pin.marker) for pins in locked("cuda").values() for pin in pins)


def test_torch_may_be_the_build_of_any_index_that_the_documents_name() -> None:
    """PyPI's, whose names have no suffix, and those for a CPU, of each Python that tests pass on and both processors."""
    assert [*locked("torch")] == ["torch"]
    pythons = Version("3.14").minor - Version(project()["requires-python"].removeprefix(">=")).minor + 1
    files = pythons * len(("linux x86_64", "linux aarch64", "macos arm64", "linux x86_64+cpu", "linux aarch64+cpu"))
    assert (ROOT / "requirements" / "torch.txt").read_text().count("--hash=") >= files


def test_all_that_make_installs_is_checked_against_its_hash() -> None:
    dry = ["make", "--dry-run", "--always-make", "--no-print-directory", ".venv/.installed-dev", ".venv/tools/.installed"]
    out = subprocess.run(dry, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    installs = re.findall(r"pip install\s+([^;|\n]*)", out)
    checked = [words for words in installs if "--require-hashes --only-binary :all:" in words]
    assert {name for words in checked for name in re.findall(r"-r requirements/(\w+)\.txt", words)} == {*GROUPS}
    assert [words for words in installs if words not in checked] == ["--no-deps --no-build-isolation -e ."]
    container = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"^RUN pip install (.*)$", container, re.MULTILINE)
    assert ["--require-hashes" in words for words in installs] == [True, False]
    assert "--no-deps --no-build-isolation ." in installs[1]


@pytest.mark.slow  # make runs the same after it installs
def test_what_is_installed_has_all_that_it_requires() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def pin() -> ModuleType:
    """The script that writes requirements/."""
    spec = importlib.util.spec_from_file_location("pin", ROOT / ".ci" / "pin.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
PAGE = f"""
<a href="https://x.org/whl/cpu/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl#sha256={TWO}">torch-2.13.0+cpu</a><br/>
<a href="https://x.org/whl/cpu/torch-2.13.0%2Bcpu-cp311-cp311-win_amd64.whl#sha256={"4" * 64}">torch-2.13.0+cpu</a><br/>
<a href="https://x.org/whl/cpu/torch-2.12.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl#sha256={"5" * 64}">torch-2.12.0+cpu</a>
"""


def torch(version: str, *hashes: str) -> str:
    return " \\\n".join([f"torch=={version}", *(f"    --hash=sha256:{one}" for one in hashes)]) + "\n"


def test_torch_is_pinned_with_the_builds_for_a_cpu_beside_those_of_pypi(
    pin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pin, "urlopen", lambda *_, **__: io.BytesIO(PAGE.encode()))
    assert pin.with_cpu_builds(torch("2.13.0", ONE), torch("2.12.0", THREE)) == torch("2.13.0", ONE, TWO)
    with pytest.raises(SystemExit, match=r"torch 2\.14\.0: https://\S+ lists no build of it; name another one"):
        pin.with_cpu_builds(torch("2.14.0", ONE), torch("2.13.0", THREE))


def test_without_the_index_of_builds_for_a_cpu_torch_keeps_its_hashes_and_cannot_move(
    pin: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(url: str, timeout: float) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(pin, "urlopen", unreachable)
    assert pin.with_cpu_builds(torch("2.13.0", ONE), torch("2.13.0", THREE)) == torch("2.13.0", ONE, THREE)
    assert "no route to host): torch keeps the hashes it had" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"torch 2\.14\.0: https://\S+ cannot be read \(no route to host\)"):
        pin.with_cpu_builds(torch("2.14.0", ONE), torch("2.13.0", THREE))


def test_hooks_run_the_pinned_tools() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    tools = [Path(hook["entry"].split()[0]) for hook in hooks]
    assert {tool.name for tool in tools} == {"ruff", "mypy"}
    assert all(str(tool.parent) == ".venv/bin" and tool.name in locked("dev") for tool in tools)
    assert all(hook["language"] == "system" for hook in hooks)


@pytest.mark.parametrize(
    ("name", "harmful"),
    [
        ("pytorch-lightning", ("2.6.2", "2.6.3")),
        ("ray", ("2.50.0", "2.51.1", "2.53.0", "2.54.1")),
        ("starlette", ("0.40.0", "0.49.0", "1.0.0", "1.3.0")),
    ],
    ids=["stealer", "CVE-2026-32981", "CVE-2026-54282"],
)
def test_no_range_allows_a_release_that_is_known_to_be_harmful(name: str, harmful: tuple[str, ...]) -> None:
    texts = [*project()["dependencies"], *(text for extra in project()["optional-dependencies"].values() for text in extra)]
    (requirement,) = [one for one in map(Requirement, texts) if one.name == name]
    assert not [version for version in harmful if version in requirement.specifier]
