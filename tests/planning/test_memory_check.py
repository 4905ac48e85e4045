"""A run that cannot fit its device is refused before anything is spent, saying by how much."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from study.base.errors import InputError
from study.base.quantities import bytes_text
from study.config.resources import Kernels
from study.config.run_config import RunConfig
from study.config.sweep import CellSweep
from study.counting.memory import Device
from study.executing.slots import Slot
from study.planning import memory_check
from study.planning.memory_check import (
    PROCESS_BYTES,
    MemoryShare,
    available_memory_bytes,
    free_gpu_bytes,
    memory_for,
    needed_bytes,
    require_memory,
    run_memory,
)
from study.planning.plan import Plan
from study.training import execution
from study.training.execution import Execution
from tests.small import config


def test_a_run_that_does_not_fit_is_named_with_need_room_difference_and_remedy() -> None:
    small, large = config(Path("x")), config(Path("x"), architecture={"width": 64, "depth": 4})
    needed = needed_bytes(large, Execution())
    room = MemoryShare(2 * (needed - 1_000_000), "of RAM available", slots=2)
    with pytest.raises(InputError) as refused:
        require_memory([small, large, large], room, Execution())
    (problem,) = refused.value.problems
    assert problem.place == f"shape {large.architecture.shape_name}"
    for part in (bytes_text(needed), bytes_text(room.bytes), "1 MB too much", room.share, "--slots-per-device", "batch_tokens"):
        assert part in problem.message


def test_a_slot_that_shares_with_none_is_not_told_to_be_fewer() -> None:
    run = config(Path("x"))
    with pytest.raises(InputError, match=r"too much; use a smaller recipe\.batch_tokens") as refused:
        require_memory([run], MemoryShare(1_000_000, "of RAM available"), Execution())
    assert "shared by" not in str(refused.value)


def test_a_run_that_fits_exactly_is_let_through() -> None:
    run = config(Path("x"))
    require_memory([run], MemoryShare(needed_bytes(run, Execution()), ""), Execution())


def test_cpu_ranks_share_the_ram_and_gpu_ranks_do_not() -> None:
    run = config(Path("x"))
    needs: dict[tuple[Device, int], int] = {
        (device, ranks): needed_bytes(run, Execution(device=device, devices=ranks, kernels="eager"))
        for device in ("cpu", "cuda")
        for ranks in (1, 2)
    }
    tensors = {at: run_memory(run, "fp32", *at).total for at in needs}
    assert needs["cpu", 2] == 2 * (tensors["cpu", 2] + PROCESS_BYTES["cpu"])
    for at in (("cpu", 1), ("cuda", 1), ("cuda", 2)):
        assert needs[at] == tensors[at] + PROCESS_BYTES[at[0]]


def test_ranks_share_a_batch_and_the_recipe_says_the_precision() -> None:
    run = config(Path("x"))
    one, two = (run_memory(run, "fp32", "cpu", ranks).activations for ranks in (1, 2))
    assert one == 2 * two
    rounded = config(Path("x"), recipe={"precision": "bf16"})
    assert needed_bytes(rounded, Execution()) == run_memory(rounded, "bf16", "cpu").total + PROCESS_BYTES["cpu"]


KERNELS: tuple[Kernels | Literal["auto"], ...] = ("auto", "graphed", "compiled", "eager")


@pytest.mark.parametrize("compiler", [True, False])
def test_only_kernels_that_will_be_a_graph_need_its_memory(compiler: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler `auto` is eager."""
    monkeypatch.setattr(execution, "can_compile", lambda _: compiler)
    run = config(Path("x"))
    needs = {kernels: needed_bytes(run, Execution(device="cuda", kernels=kernels)) for kernels in KERNELS}
    assert needs["eager"] == needs["compiled"] < needs["graphed"]
    assert needs["auto"] == needs["graphed" if compiler else "eager"]
    assert needed_bytes(run, Execution(device="cuda", devices=2)) == needed_bytes(
        run, Execution(device="cuda", devices=2, kernels="compiled")
    )


def test_the_ram_is_shared_among_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 8_000_000_000)
    room = memory_for([Slot("cpu", (0,), 1)] * 4)
    assert (room.bytes, room.share) == (2_000_000_000, "8 GB of RAM available, shared by 4 slots")


def test_a_gpu_is_shared_among_its_own_slots_and_the_fullest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "free_gpu_bytes", lambda devices: [80_000_000_000, 30_000_000_000] * (len(devices) // 2))
    room = memory_for([Slot("cuda", (0,), 1), Slot("cuda", (1,), 1)] * 2)
    assert (room.bytes, room.share) == (15_000_000_000, "30 GB free on GPU 1, shared by 2 slots")


def test_gpus_are_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher with a CUDA context of its own would hold memory on every GPU, and a place at MPS, for the whole sweep."""
    monkeypatch.setattr(memory_check, "_free_gpu_bytes", asking)
    pid, groups = free_gpu_bytes([(0,), (1, 2)])
    assert pid != os.getpid()
    assert groups == 2


def asking(devices: list[tuple[int, ...]]) -> list[int]:
    return [os.getpid(), len(devices)]


def test_available_memory_is_some_of_this_machine() -> None:
    assert 10_000_000 < available_memory_bytes() < 10**14


@pytest.mark.parametrize(
    ("group", "limit", "use"),
    [(".", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes")],
)
def test_a_container_has_what_its_limit_leaves_and_the_file_cache_that_can_be_dropped(
    group: str, limit: str, use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_check, "CONTROL_GROUP", tmp_path)
    (tmp_path / group).mkdir(exist_ok=True)
    for name, content in ((limit, "1000000000"), (use, "600000000"), ("memory.stat", "anon 7\ninactive_file 100000000")):
        (tmp_path / group / name).write_text(f"{content}\n")
    assert available_memory_bytes() == 500_000_000


def test_a_sweep_is_checked_run_by_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = CellSweep.parse(
        {
            "name": "large",
            "question": "Does it fit?",
            "data": {"corpus": "x", "tokenizer": {"vocabulary": 200}, "sequence_length": 16},
            "base": {"recipe": {"batch_tokens": 128}},
            "shapes": {"list": [{"depth": 1, "width": 16}, {"depth": 24, "width": 4096}, {"depth": 12, "width": 4096}]},
            "budgets": {"steps": [10]},
        }
    )
    monkeypatch.setattr(memory_check, "available_memory_bytes", lambda: 10_000_000_000)
    with pytest.raises(InputError) as refused:
        require_memory(Plan(spec).first_runs, memory_for([Slot("cpu", (0,), 1)]), Execution())
    places = [problem.place for problem in refused.value.problems]
    assert places == ["shape L24-H4096-A64-F16384", "shape L12-H4096-A64-F16384"]


def test_the_largest_batch_of_a_shape_decides() -> None:
    runs: list[RunConfig] = [config(Path("x"), recipe={"batch_tokens": tokens}) for tokens in (128, 1280)]
    most = needed_bytes(runs[1], Execution())
    with pytest.raises(InputError, match=r"0 B too much|1 B too much"):
        require_memory(runs, MemoryShare(most - 1, ""), Execution())
