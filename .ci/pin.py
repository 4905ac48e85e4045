"""Pin the versions that `make` and CI install: `make pins` writes the files of requirements/ from pyproject.toml.

Each file lists what it adds to those above it, every version with the SHA-256 of its files for every platform:

torch.txt   torch, as PyPI has it and as built for a CPU
core.txt    what else running needs, and hatchling, which installs the project itself
cuda.txt    what PyPI's torch needs on Linux; builds for a CPU need nothing of it
extras.txt  what the extras for users add
dev.txt     what tests and checks add; triton, too, whose kernels are tested on a CPU
tools.txt   what this script and `make audit` run, in an environment of their own

All versions but torch's become the newest that pyproject.toml allows. torch stays where it is, since not every machine can take
every build, unless TORCH names another version. UV_CONSTRAINT=FILE holds others back.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
UV = ROOT / ".venv" / "tools" / "bin" / "uv"
OLDEST_PYTHON = "3.11"

CPU_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
"""Where `make install PIP_ARGS=…` finds builds of torch for a CPU, which PyPI has for macOS alone."""

CUDA = re.compile(r"(?:nvidia|cuda)-.*|triton")
"""The names of what PyPI's torch alone requires."""

FOR_DEVELOPERS = ("dev", "docs")
TOOLS = "pip-audit\nuv\n"

BLOCK = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)[^\n]*(?:\n[ \t]+[^\n]*)*", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def blocks_of(text: str) -> dict[str, str]:
    """Return a file's requirements by name, with their hashes; a name whose version differs between platforms has them all."""
    blocks: dict[str, str] = {}
    for match in BLOCK.finditer(text):
        blocks[match["name"]] = blocks.get(match["name"], "") + match[0] + "\n"
    return blocks


def compiled(sources: list[str], given: str) -> dict[str, str]:
    """Return the newest versions that satisfy `sources` and the requirements `given`, for all platforms, as wheels alone."""
    command = [UV, "pip", "compile", *sources, "-", "--universal", "--python-version", OLDEST_PYTHON, "--no-build"]
    form = ["--generate-hashes", "--no-header", "--no-annotate", "--fork-strategy", "fewest", "--quiet"]
    done = subprocess.run([*command, *form], input=given, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return blocks_of(done.stdout)


def with_cpu_builds(torch: str, before: str) -> str:
    """Return the requirement of torch with the hashes of its builds for a CPU; without the index they stay as in `before`."""
    version = BLOCK.fullmatch(torch.strip())["version"]  # type: ignore[index]
    try:
        page = urlopen(CPU_INDEX, timeout=30).read().decode()
        hashes = re.findall(rf"/torch-{re.escape(version)}%2Bcpu-[^#\"]*-manylinux[^#\"]*#sha256=([0-9a-f]{{64}})", page)
    except OSError as error:
        if not before.startswith(f"torch=={version} "):
            sys.exit(f"error: torch {version}: {CPU_INDEX} cannot be read ({error}), so its builds have no hashes")
        sys.stderr.write(f"note: {CPU_INDEX} cannot be read ({error}): torch keeps the hashes it had\n")
        hashes = HASH.findall(before)
    if not hashes:
        sys.exit(f"error: torch {version}: {CPU_INDEX} lists no build of it; name another one, as in: make pins TORCH=2.13.0")
    lines = [f"    --hash=sha256:{one}" for one in sorted({*hashes, *HASH.findall(torch)})]
    return " \\\n".join([torch.split(" \\\n")[0], *lines]) + "\n"


def main() -> None:
    """Write the files anew."""
    before = blocks_of((FOLDER / "torch.txt").read_text())["torch"]
    torch = os.environ.get("TORCH") or BLOCK.match(before)["version"]  # type: ignore[index]
    everything = compiled(["pyproject.toml", "--all-extras"], f"torch=={torch}\n")
    everything["torch"] = with_cpu_builds(everything["torch"], before)
    pinned = ROOT / ".venv" / "tools" / "pinned.txt"
    lines = [line.removesuffix(" \\") for block in everything.values() for line in block.splitlines()]
    pinned.write_text("\n".join(line for line in lines if not line.startswith(" ")))
    project = ["pyproject.toml", "--constraint", str(pinned)]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_users = [word for name in extras if name not in FOR_DEVELOPERS for word in ("--extra", name)]
    running = compiled(project, "hatchling\n").keys()
    using = compiled([*project, *of_users], "hatchling\n").keys()
    groups = {
        "torch": ["torch"],
        "core": [name for name in running if name != "torch" and not CUDA.fullmatch(name)],
        "cuda": [name for name in running if CUDA.fullmatch(name)],
        "extras": [name for name in using if name not in running],
        "dev": [name for name in everything if name not in using or name == "triton"],
    }
    for group, names in groups.items():
        write(group, [everything[name] for name in names])
    write("tools", compiled([], TOOLS).values())


def write(group: str, blocks: Iterable[str]) -> None:
    """Replace a file."""
    (FOLDER / f"{group}.txt").write_text("# Written by make pins; see .ci/pin.py\n" + "".join(blocks))


if __name__ == "__main__":
    main()
