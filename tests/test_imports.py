"""Imports point one way: a shared trunk, then a half that trains and a half that analyses; they meet only in files."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pandas as pd
import pytest

from study.laws.catalogue import LAWS
from tests.points import TRUTHS, columns_of

ROOT = Path(__file__).resolve().parents[1]

TRUNK = ("base", "counting", "config", "store", "laws", "designing")
TRAINING = (
    *TRUNK,
    "data",
    "tasks",
    "model",
    "training",
    "executing",
    "tracking",
    "planning",
    "scoring",
    "running",
    "benching",
    "api",
    "commands",
    "cli",
    "__main__",
)
ANALYSIS = (
    *TRUNK,
    "evidence",
    "shapes",
    "replicating",
    "plotting",
    "report",
    "dashboard",
    "api",
    "commands",
    "cli",
    "__main__",
)
"""The rooms of `study`, each with only earlier ones of its line to import from."""

HEAVY = {"torch", "lightning", "lightning_fabric", "pytorch_lightning", "optuna", "wandb", "submitit", "ray"}
ALLOWED = {
    "data": {"torch", "pytorch_lightning"},
    "model": {"torch", "pytorch_lightning"},
    "training": {"torch", "pytorch_lightning", "lightning_fabric"},
    "executing": {"torch"},
    "planning": {"torch", "optuna"},
    "running": {"torch", "optuna"},
    "benching": {"torch", "pytorch_lightning"},
    "scoring": {"torch", "pytorch_lightning", "lightning_fabric"},
    "api": {"torch"},
}
"""The heavy packages that a part may import, even inside a function."""

ALONE = {
    "study.tracking.mirror_wandb": {"wandb"},
    "study.tracking.workspaces": {"wandb"},
    "study.tracking.wandb_import": {"wandb"},
    "study.executing.slurm": {"submitit"},
    "study.executing.ray": {"ray"},
    "study.dashboard.run_charts": {"optuna"},
}
"""The modules that may import a package which not everyone has or trusts."""

INTERFACE = "study.api"
"""The one package that re-exports: names for people's own scripts, which nothing in `study` imports from."""

MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted((ROOT / "study").rglob("*.py"))
}


@cache
def imported(file: Path) -> frozenset[str]:
    """The full names of what a file imports, anywhere in it, as modules where they are modules."""
    actual: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            actual |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write `from study.x import y`"
            assert node.module is not None
            below = (f"{node.module}.{alias.name}" for alias in node.names)
            actual |= {name if name in MODULES else node.module for name in below}
    return frozenset(actual)


def part_of(module: str) -> str:
    """The file or folder of `study` that a module belongs to."""
    return module.split(".")[1]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "study"])
def test_a_module_imports_only_what_stands_before_it(module: str) -> None:
    part = part_of(module)
    lines = [line for line in (TRAINING, ANALYSIS) if part in line]
    assert lines, f"{module} has no place in the order: add {part!r} to TRUNK, TRAINING or ANALYSIS"
    is_folder = (ROOT / "study" / part).is_dir()
    allowed = {name for line in lines for name in line[: line.index(part) + is_folder]}
    for name in imported(MODULES[module]):
        if name.startswith("study."):
            assert part_of(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_stay_in_the_half_that_trains(module: str) -> None:
    part = part_of(module) if "." in module else ""
    allowed = ALONE.get(module, ALLOWED.get(part, set()))
    heavy = {name.split(".")[0] for name in imported(MODULES[module])} & HEAVY
    assert heavy <= allowed, f"{module} imports {heavy - allowed}"


def test_the_interface_is_for_others_alone() -> None:
    for module, file in MODULES.items():
        if not module.startswith(INTERFACE):
            assert not [name for name in imported(file) if name.startswith(INTERFACE)], module


def test_no_two_modules_import_each_other() -> None:
    graph = {name: [other for other in imported(file) if other in MODULES] for name, file in MODULES.items()}
    TopologicalSorter(graph).prepare()


def test_no_public_class_or_module_name_stands_twice() -> None:
    homes: dict[str, list[str]] = {}
    for module, file in MODULES.items():
        classes = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
        for name in (*classes, *([] if file.name.startswith("__") else [file.stem])):
            homes.setdefault(name, []).append(module)
    assert {name: those for name, those in homes.items() if len(those) > 1 and not name.startswith("_")} == {}


def test_packages_hold_nothing_but_a_docstring() -> None:
    for module, file in MODULES.items():
        if file.name == "__init__.py" and module != INTERFACE:
            body = ast.parse(file.read_text()).body
            assert all(isinstance(node, ast.Expr) for node in body), f"{module} re-exports or runs something"


def test_analysis_and_counting_start_without_heavy_packages() -> None:
    """All in one process, which names the first that loads one."""
    commands = (
        "import sys; from study.cli import main",
        "sys.argv[1:] = ['params', 'bert-base']; main()",
        "import study.running.score_launch",
        "import study.report.answer",
        "import study.dashboard.serving, study.dashboard.run_charts, study.dashboard.pages, study.dashboard.what_if",
    )
    check = f"heavy = {HEAVY!r} & set(sys.modules); assert not heavy, "
    code = "\n".join(f"{command}\n{check}({command!r}, heavy)" for command in commands)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "slow", "expected"),
    [
        pytest.param(
            ["plan", "demo"],
            {"pytorch_lightning", "transformers", "matplotlib", "pandas", "scipy"},
            "FLOPs",
            marks=pytest.mark.slow,
        ),
        (["shapes", "--parameters", "10M"], {"matplotlib", "pandas", "scipy"}, "within 2% of 10M"),
    ],
)
def test_a_command_waits_for_no_package_that_others_need(arguments: list[str], slow: set[str], expected: str) -> None:
    run = f"import sys; from study.cli import main; sys.argv[1:] = {arguments!r}; main()"
    code = f"{run}\nslow = {slow!r} & set(sys.modules); assert not slow, slow"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


MOST_MODULES_OF_A_FIT = 24
"""So many modules of `study` are loaded to fit a law to a stranger's table."""


@pytest.mark.slow
def test_a_fit_to_a_strangers_table_is_a_call_of_a_library_that_knows_no_sweep(tmp_path: Path) -> None:
    columns = columns_of(LAWS["chinchilla"], 20)
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], columns)
    pd.DataFrame({**columns, "loss": loss}).to_csv(tmp_path / "their.csv", index=False)
    arguments = ["fit", str(tmp_path / "their.csv"), "--law", "chinchilla", "--bootstrap", "0"]
    code = f"import sys; from study.cli import main; sys.argv[1:] = {arguments!r}; main(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    ours = [name for name in loaded if name in MODULES and MODULES[name].name != "__init__.py"]
    assert {part_of(name) for name in ours} == {"base", "cli", "commands", "laws"}
    assert not {"matplotlib", "torch", "pydantic"} & set(loaded)
    assert len(ours) <= MOST_MODULES_OF_A_FIT, ours
