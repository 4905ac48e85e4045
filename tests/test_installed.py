"""The wheel is whole in an empty folder, and what reads and counts works where nothing is installed that trains."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from study.base.shipped import shipped
from study.laws.catalogue import LAWS
from study.tasks.task_spec import known_tasks
from tests.browsing import served
from tests.points import TRUTHS, columns_of

ROOT = Path(__file__).resolve().parents[1]

pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed: make test")


def built(source: Path, target: str, into: Path) -> Path:
    """The wheel or sdist of a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = into.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel alone is installed in."""
    return installed(wheel, tmp_path_factory.mktemp("site"))


def installed(archive: Path, into: Path) -> Path:
    """The folder, in which pip has installed a wheel or sdist alone, by the hatchling of this environment."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(into), str(archive)], check=True, capture_output=True)
    return into


def run(site: Path, *arguments: object, cwd: Path, packages: Path | None = None) -> tuple[int, str, str]:
    """The status, output and errors of an installed command; with `packages`, those of that folder alone are there."""
    code = f"import study, sys; assert study.__file__.startswith({str(site)!r}); from study.cli import main; main()"
    python = [sys.executable, *(["-S"] if packages else []), "-c", code]
    path = os.pathsep.join(map(str, filter(None, (site, packages))))
    environment = os.environ | {"PYTHONPATH": path, "WANDB_MODE": "offline"}
    done = subprocess.run([*python, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_wheel_holds_what_a_user_needs_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names} == {"study", "scaling_study-0.1.0.dist-info"}
    assert {"study/py.typed", "study/commands/new_sweep.yaml", "scaling_study-0.1.0.dist-info/licenses/LICENSE"} <= names
    for folder, suffix in (("sweeps", ".yaml"), ("tasks/specs", ".yaml")):
        assert {f"study/{folder}/{name}{suffix}" for name in shipped(folder)} <= names
    assert {f"study/analysis/{name}.py" for name in ("depth_or_width", "scaling_laws", "loss_and_scores")} <= names
    assert not [name for name in names if {"tests", "results"} & {*name.split("/")} or name.endswith((".pyc", ".ipynb"))]


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = built(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    source = tmp_path / "scaling_study-0.1.0"
    names = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "requirements/torch.txt", "tests/conftest.py", "docs/index.md"} <= names
    assert not [name for name in names if name.startswith("results/")]
    again = built(source, "wheel", tmp_path / "again")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()
    installed(archive, tmp_path / "site")
    assert run(tmp_path / "site", "laws", cwd=tmp_path)[0] == 0


def test_what_the_container_copies_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    copies = re.findall(r"^COPY (.+) (\./\S*)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    for names, into in copies:
        for name in names.split():
            to = tmp_path / "source" / into / (name if into == "./" else "")
            shutil.copytree(ROOT / name, to) if (ROOT / name).is_dir() else shutil.copy(ROOT / name, to)
    again = built(tmp_path / "source", "wheel", tmp_path / "again")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_shipped_sweeps_notebooks_and_tasks_are_found_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    rows = json.loads(run(site, "sweeps", "--json", cwd=tmp_path)[1])
    assert [row["name"] for row in rows] == [*shipped("sweeps")]
    assert all(Path(row["file"]).is_relative_to(site) for row in rows)
    assert [task["task"] for task in json.loads(run(site, "tasks", "--json", cwd=tmp_path)[1])] == known_tasks()
    assert "\n    How the loss of a sweep falls" in run(site, "notebook", cwd=tmp_path)[1]
    assert run(site, "new", "mine", "--like", "demo", cwd=tmp_path)[0] == 0
    assert (tmp_path / "mine.yaml").read_bytes() == shipped("sweeps")["demo"].read_bytes()


@pytest.mark.slow
def test_the_name_of_a_shipped_sweep_stands_for_its_file(site: Path, tmp_path: Path) -> None:
    status, out, errors = run(site, "plan", "demo", "--json", cwd=tmp_path)
    assert (status, errors) == (0, "")
    assert json.loads(out)["runs"] == 11


@pytest.mark.slow
def test_the_demonstration_answers_its_question(site: Path, tmp_path: Path) -> None:
    status, out, errors = run(site, "demo", cwd=tmp_path)
    assert status == 0, errors
    assert "The answer: results/demo/answer.md" in out
    assert (tmp_path / "results" / "demo" / "figures" / "loss_by_shape.svg").is_file()


def short_list(first: str) -> list[str]:
    """The packages that docs/quickstart.md names for reading and counting alone, in the line that begins with `first`."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    (line,) = re.findall(rf"^pip install ({first} .*)$", page, re.MULTILINE)
    return shlex.split(line, comments=True)


def needed(names: list[str]) -> Iterator[str]:
    """The names with all that their distributions require here."""
    queue, seen = [*map(canonicalize_name, names)], set[str]()
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            yield name
            required = map(Requirement, distribution(name).requires or ())
            queue += [
                canonicalize_name(one.name) for one in required if one.marker is None or one.marker.evaluate({"extra": ""})
            ]


def linked(folder: Path, names: list[str]) -> Path:
    """A folder of packages with these alone, and what they require."""
    folder.mkdir(exist_ok=True)
    for name in needed(names):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(package.locate_file(top))).resolve())
    assert not {"torch", "pytorch_lightning", "optuna", "wandb", "datasets", "tokenizers", "sklearn"} & {*os.listdir(folder)}
    return folder


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the short list alone."""
    return linked(tmp_path_factory.mktemp("packages"), short_list("click"))


READS = [
    pytest.param(["fit", "table.csv", "--law", "chinchilla", "--bootstrap", "40"], "chinchilla", marks=pytest.mark.slow),
    pytest.param(["laws"], "chinchilla", marks=pytest.mark.slow),
    (["params", "bert-base", "--explain"], "109,"),
    pytest.param(["compare", "bert-base", "roberta-base"], "roberta-base", marks=pytest.mark.slow),
    pytest.param(["shapes", "--parameters", "10M"], "within 2% of 10M", marks=pytest.mark.slow),
    pytest.param(["report", "norm"], "The answer: norm/answer.md", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("arguments", "expected"), READS, ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else ""
)
def test_the_short_list_is_enough_to_read_and_count(
    site: Path, reading: Path, arguments: list[str], expected: str, tmp_path: Path
) -> None:
    columns = columns_of(LAWS["chinchilla"], 30)
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], columns)
    pd.DataFrame({**columns, "loss": loss}).to_csv(tmp_path / "table.csv", index=False)
    if "norm" in arguments:
        (tmp_path / "norm").mkdir()
        for path in (ROOT / "results" / "reference" / "norm").iterdir():
            if path.name not in ("figures", "answer.md", "fits"):
                (tmp_path / "norm" / path.name).symlink_to(path)
    status, out, errors = run(site, *arguments, cwd=tmp_path, packages=reading)
    assert (status, errors) == (0, "")
    assert expected in out


@pytest.mark.slow
def test_the_dashboard_and_a_page_to_send_take_three_packages_more(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = linked(tmp_path / "packages", [*short_list("click"), *short_list("markdown-it-py")])
    shutil.copytree(ROOT / "results" / "reference" / "norm", tmp_path / "norm")
    status, _, errors = run(site, "report", "norm", "--html", cwd=tmp_path, packages=packages)
    assert (status, errors) == (0, "")
    assert (tmp_path / "norm" / "report.html").is_file()
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{packages}")
    command = ("-S", "-m", "study", "dashboard", tmp_path / "norm", "--no-open")
    with served(tmp_path, tmp_path / "log", *command) as url:
        opener = build_opener(HTTPCookieProcessor())
        assert b"<main" in opener.open(url).read()
        page = url.partition("?")[0]
        assert json.load(opener.open(f"{page}api/overview"))["sweeps"][0]["sweep"] == "norm"
        missing = json.load(opener.open(f"{page}api/importances?sweep=norm&target=loss_nats"))["why_not"]
        assert missing == "Importances need optuna and sklearn: pip install optuna scikit-learn"


@pytest.mark.slow
def test_a_command_that_needs_more_says_what_to_install(site: Path, reading: Path, tmp_path: Path) -> None:
    status, _, errors = run(site, "launch", "demo", cwd=tmp_path, packages=reading)
    assert status == 2
    assert re.fullmatch(r"error: study launch needs \w+, which is not installed: pip install scaling-study\n", errors)
    err = run(site, "notebook", "scaling_laws", cwd=tmp_path, packages=reading)[2]
    assert err == "error: study notebook: needs marimo: pip install 'scaling-study[notebooks]'\n"
