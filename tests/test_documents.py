"""The documents point at files that are there, their commands parse, and the documentation builds."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from itertools import chain, pairwise
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from study import api
from study.cli import commands

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").glob("*.md"))
MOST_WORDS_OF_README = 1000
COUNTING = ("params", "compare", "shapes")
"""The commands that need no files, so that the documented ones are run for what they are."""


def shell_lines() -> Iterator[tuple[str, str]]:
    """Every command of the documents' shell blocks, continued lines joined, with the document's name."""
    for document in DOCUMENTS:
        for block in re.findall(r"```sh\n(.*?)```", document.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").replace(" && ", "\n").splitlines():
                if words := shlex.split(line.replace("<run id>", "3f2a"), comments=True):
                    yield document.name, shlex.join(words)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_links_to_is_there(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("reference/")]
    assert [link for link in local if not (document.parent / link).exists()] == []


CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w./-]+\.(?:py|yaml|md|txt|toml|csv)")
NO_FILES = {"utils.py", "answer.md", "sweeps/x.yaml"}
"""Names that are given as examples, or for what there may not be."""


def file_named(path: str) -> Path:
    """The file that CONTRIBUTING.md names: below study/ unless it begins with another folder of the repository."""
    return next((file for file in (ROOT / "study" / path, ROOT / path) if file.exists()), ROOT / path)


def test_every_path_that_contributing_names_is_there() -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    named = {word for code in CODE.findall(text) for word in code.split() if PATH.fullmatch(word)}
    assert len(named) > 40
    assert sorted(path for path in named - NO_FILES if not file_named(path).is_file()) == []


def where_do_i() -> list[tuple[str, list[str], list[str]]]:
    """The rows of the page: the question, the paths, and the names that are to be found there."""
    page = (ROOT / "CONTRIBUTING.md").read_text().split("## Where do I …")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), CODE.findall(row[1]), CODE.findall(row[2])) for row in rows[2:]]


@pytest.mark.parametrize(
    ("question", "paths", "names"), where_do_i(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_where_do_i_says_where_it_is(question: str, paths: list[str], names: list[str]) -> None:
    """Each path exists, and each name is defined in one of them, as `Class.method` where it is one of a class."""
    assert paths, question
    text = "\n".join(file_named(path).read_text() for path in paths)
    for part in (part for name in names for part in name.split(".")):
        assert re.search(rf"^\s*(?:class|def)\s+{part}\b|^\s*{part}\b\s*[:=]", text, re.MULTILINE), f"{question}: {part}"


def test_the_worked_example_of_statistics_is_that_of_the_committed_answer() -> None:
    page = (ROOT / "docs" / "statistics.md").read_text()
    named = re.findall(r"^(L\S+) − (L\S+): (\S+) nats \(95% interval (\S+) to (\S+)\), Holm's p (\S+)$", page, re.MULTILINE)
    pairs = json.loads((ROOT / "results/reference/depth_or_width/fits/paired_differences.json").read_text())["pairs"]
    assert len(pairs) == 12
    assert len(named) == 2
    for first, second, *numbers in named:
        (pair,) = (one for one in pairs if (one["first"], one["second"], one["budget"]) == (first, second, "800k tokens"))
        actual = pair["difference"]
        said = [f"{actual[key]:+.4f}" for key in ("estimate_nats", "low_nats", "high_nats")]
        assert numbers == [*said, f"{pair['p_value_holm']:.2g}"]


def test_the_readme_is_for_a_first_visit() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS_OF_README


NUMBER = r"[+-]?\d+(?:\.\d+)?"


def rounds_to(shown: tuple[str, str], actual: tuple[str, str]) -> bool:
    """Whether an interval, of either sign, is another one rounded."""
    places = [len(end.partition(".")[2]) for end in shown]
    ends = [
        [f"{abs(float(end)):.{digits}f}" for end, digits in zip(order, places, strict=True)] for order in (actual, actual[::-1])
    ]
    return [end.lstrip("+-") for end in shown] in ends


def test_the_findings_of_the_readme_are_those_of_their_answers() -> None:
    """Each interval stands among the findings, too, and there in the answer that its row links to."""
    findings = (ROOT / "docs" / "findings.md").read_text()
    rows = re.findall(r"^\| \[[^]]*\]\(\.\./results/reference/(\w+)/answer\.md\) \| (.*) \|$", findings, re.MULTILINE)
    answers = {name: (ROOT / "results/reference" / name / "answer.md").read_text() for name, _ in rows}
    named = re.findall(rf"\(({NUMBER}) to\s+({NUMBER})\)", (ROOT / "README.md").read_text())
    assert len(named) > 4
    for interval in named:
        names = [name for name, row in rows if "({} to {}".format(*interval) in row]
        actual = [pair for name in names for pair in re.findall(rf"({NUMBER}) to ({NUMBER})", answers[name])]
        assert any(rounds_to(interval, pair) for pair in actual), interval


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = {canonicalize_name(Requirement(line).name) for line in chain(PROJECT["dependencies"], *EXTRAS.values())}
TARGETS = {*" ".join(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)).split()}
PINNED = (ROOT / "requirements" / "torch.txt").read_text()


def problems_of_pip(arguments: list[str]) -> list[str]:
    """What `pip install` names that pyproject.toml does not: a package, an extra, or a version that is not the pinned one."""
    command, *rest = arguments
    named = [
        Requirement(word) for before, word in pairwise(["", *rest]) if not word.startswith("-") and before != "--index-url"
    ]
    strange = [each.name for each in named if canonicalize_name(each.name) not in PACKAGES | {PROJECT["name"]}]
    extras = [extra for each in named for extra in each.extras if extra not in EXTRAS]
    pins = [str(each) for each in named if each.specifier and f"{each} " not in PINNED]
    return [*([] if command == "install" else [command]), *strange, *extras, *pins]


def problems_of_pytest(arguments: list[str]) -> list[str]:
    """The test files that do not exist."""
    return [word for word in arguments if word.startswith("tests/") and not (ROOT / word).exists()]


def problems_of_script(name: str) -> Callable[[list[str]], list[str]]:
    """A check that a package of pyproject.toml installs this program."""
    return lambda _: (
        [] if PACKAGES & {canonicalize_name(each.dist.name) for each in entry_points(name=name) if each.dist} else [name]
    )


def problems_of_completion(arguments: list[str]) -> list[str]:
    """What a shell says that completes the words of `study` after this line."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    line = f'eval "{arguments[0]}" && complete -p study'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ | {"PATH": path})
    return [] if done.returncode == 0 and done.stdout.endswith(" study\n") else [done.stderr]


OTHER_PROGRAMS: dict[str, Callable[[list[str]], list[str]]] = {
    "pip": problems_of_pip,
    "pytest": problems_of_pytest,
    "eval": problems_of_completion,
    "make": lambda targets: sorted({word for word in targets if "=" not in word} - TARGETS),
    "python3": lambda arguments: [] if arguments == ["-m", "venv", ".venv"] else arguments,
    "source": lambda arguments: [] if arguments == [".venv/bin/activate"] else arguments,
    **{name: problems_of_script(name) for name in ("marimo", "optuna-dashboard", "pre-commit")},
}
"""What is wrong with the arguments of a documented command of another program."""


@pytest.mark.parametrize(("document", "line"), sorted(set(shell_lines())))
def test_a_documented_command_is_one(document: str, line: str) -> None:
    """Its name and options are known, and it has as many arguments as the command takes."""
    words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if Path(words[0]).name != "study":
        problem_of = OTHER_PROGRAMS[Path(words[0]).name]
        assert problem_of(words[1:]) == [], line
        return
    name, *arguments = words[1:]
    command = commands.get_command(group := click.Context(commands, **commands.context_settings), name)
    assert command is not None
    context = click.Context(command, parent=group, info_name=name)
    arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
    assert command.make_parser(context).parse_args(arguments)[1] == []


@pytest.mark.parametrize(
    "line", sorted({line for _, line in shell_lines() if line.split()[1:2] and line.split()[1] in COUNTING})
)
def test_a_documented_command_that_only_counts_runs(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Callable[..., tuple[int, str, str]]
) -> None:
    if "--latency" in line or "--law" in line:
        pytest.skip("needs a table of this machine's latencies, or a law's file")
    monkeypatch.chdir(tmp_path)
    status, out, err = study(*shlex.split(line)[1:])
    assert status == 0, err
    assert out


@pytest.mark.slow
def test_the_documentation_builds_with_every_link_resolved(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT, env=quiet)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "reference" / "commands" / "index.html").read_text()
    assert all(f"study {name}" in reference for name in commands.list_commands(click.Context(commands)))
    assert "architecture.position_encoding" in (tmp_path / "reference" / "sweep-file" / "index.html").read_text()
    assert (tmp_path / "answers" / "depth_or_width" / "index.html").is_file()


def python_blocks() -> list[str]:
    """The blocks of docs/python.md."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)


TRAINS = ("train(", "trainer.", "launch(")


@pytest.mark.slow
def test_the_python_of_the_documentation_that_trains_nothing_runs(tmp_path: Path) -> None:
    """Block by block, since none needs another; of the blocks that train, the imports."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "reference").symlink_to(ROOT / "results" / "reference")
    trains, others = (
        [block for block in python_blocks() if any(word in block for word in TRAINS) is which] for which in (True, False)
    )
    assert (len(trains), len(others)) == (3, 3)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(others)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "loss_nats" in done.stdout
    for name in re.findall(r"^from study\.api import (.+)$", "\n".join(trains), re.MULTILINE):
        assert {*name.split(", ")} <= {*api.__all__}


@pytest.mark.slow
def test_the_python_of_the_documentation_runs(tmp_path: Path) -> None:
    """All blocks of the page as a script, beside the committed results and a text of the reader's.

    The processes of runs do not run the script again, though nothing in it guards against that.
    """
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "reference").symlink_to(ROOT / "results" / "reference")
    words, draw = " ".join(document.read_text() for document in DOCUMENTS).split(), random.Random(0)
    (tmp_path / "my_text.txt").write_text("\n\n".join(" ".join(draw.choices(words, k=60)) for _ in range(800)))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    environment.pop("WANDB_SERVICE", None)  # that of earlier tests writes where they began
    (tmp_path / "script.py").write_text("\n".join(python_blocks()))
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("COMPLETED") == 1
    assert "loss_nats" in done.stdout
    assert (tmp_path / "results" / "seeds" / "answer.md").is_file()


def test_the_tables_of_designs_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "results" / "bench" / "design.json").read_text())
    page = (ROOT / "docs" / "design.md").read_text().split("## How well it does")[1]
    by_task = {(row["task"], row["method"]): row["r2"] for row in measured["designs"]}
    plain = ("random", "cheapest", "d-optimal", "v-optimal")
    for task in dict.fromkeys(task for task, _ in by_task):
        best = [max(at_share) for at_share in zip(*(by_task[task, method] for method in plain), strict=True)]
        shown = [" / ".join(f"{r2:.2f}" for r2 in each) for each in (by_task[task, "error"], best, by_task[task, "all"][-1:])]
        assert f"| {task} | {' | '.join(shown)} |" in page
    names = {"error": "this design", "d-optimal": "D-optimal", "v-optimal": "V-optimal", "all": "all runs"}
    for row in measured["replay"]:
        shown = [" / ".join(f"{error:.2%}".rstrip("%") for error in row[which]) + "%" for which in ("error", "in_turn")]
        assert f"| {names.get(row['method'], row['method'])} | {' | '.join(shown)} |" in page
