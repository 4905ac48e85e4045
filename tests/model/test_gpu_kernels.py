"""Kernels for a GPU: their numbers are torch's, interpreted on a CPU or run on a GPU, and they build and fit on a Hopper."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from study.benching.results import as_line, as_text, failure
from study.counting.architecture import Architecture
from study.data.masking import IGNORED
from study.model.encoder import Block, has_fused_kernels, rotary_table
from study.model.lightning import MaskedLanguageModelling
from tests.needs import needs_compiler, needs_gpu
from tests.processes import apart
from tests.small import config, losses, trained, write_corpus

HOPPERS_SHARED_BYTES = 232_448
"""What a program may share of a Hopper's memory (CUDA C++ Programming Guide, table of compute capabilities, 227 KB)."""

SHAPE: dict[str, Any] = {"depth": 2, "width": 48, "heads": 3, "ffn": 112, "vocabulary": 50, "positions": 512}


@pytest.fixture(scope="module", autouse=True)
def _triton() -> None:
    pytest.importorskip("triton", reason="Triton is not installed here")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A process in which Triton interprets kernels on a CPU; its environment says so before it imports Triton."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        with patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
            process.submit(os.getpid).result()  # the process starts with this environment, and no other does
        yield process


def kernels() -> Any:
    """The module of the kernels."""
    return importlib.import_module("study.model.gpu_kernels")


def worst(differences: Callable[..., list[float]], sizes: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], float]:
    """The largest difference at each of some sizes."""
    return {each: max(differences(*each)) for each in sizes}


def far(actual: Tensor, expected: Tensor) -> float:
    """How far numbers are from those that were expected, as a share of the largest."""
    return float((actual - expected).abs().max() / expected.abs().max())


def differences_of_kernels() -> dict[str, float]:
    """How far each kernel's results are from torch's own in fp32, at sizes that no block divides."""
    torch.manual_seed(0)
    x, dy = (3 * torch.randn(3, 100, 300)).requires_grad_(), torch.randn(3, 100, 300)
    y = F.gelu(x)
    (expected,) = torch.autograd.grad(y, x, dy)
    dx, sums = kernels().gelu_gradient(dy, x.detach())
    actual = {
        "GELU": far(kernels().gelu(x.detach()), y),
        "GELU's gradient": far(dx, expected),
        "GELU's sums": far(sums, expected.sum((0, 1))),
    }
    parts = torch.randn(3, 2, 150, 48)
    joint, sums = kernels().joined(*parts)
    actual |= {"joined": far(joint, torch.cat([*parts], -1)), "joined sums": far(sums, parts.sum((1, 2)).flatten())}
    logits, labels = torch.randn(40, 64, requires_grad=True), torch.randint(0, 50, (40,))
    labels[::7] = IGNORED
    losses = F.cross_entropy(logits[:, :50], labels, ignore_index=IGNORED, reduction="none")
    (expected,) = torch.autograd.grad(3 * losses.sum(), logits)
    written = logits.detach().clone()
    kernel_losses, normalisers = kernels().cross_entropy(written, labels, 50, IGNORED)
    sums = kernels().write_cross_entropy_gradient(written, labels, normalisers, torch.tensor(3.0), 50, IGNORED)
    actual |= {
        "losses": far(kernel_losses, losses),
        "gradient of the losses": far(written, expected),
        "sums of that gradient": far(sums, expected.sum(0)),
    }
    return actual


def differences_of_norms(width: int) -> list[float]:
    """How far the norm of a sum and its gradients are from torch's, of one gradient and of two that are added."""
    torch.manual_seed(0)
    rows = max(5, 3700 // width)
    sizes = ((2, rows, width), (2, rows, width), width, width, width)
    x, added, added_bias, weight, bias = drawn = [torch.randn(size, requires_grad=True) for size in sizes]
    y, dy = F.layer_norm(x + added + added_bias, (width,), weight, bias, 1e-12), torch.randn(2, rows, width)
    expected = torch.autograd.grad(y, (x, weight, bias, added_bias), dy)
    *inputs, bias = [each.detach() for each in drawn]
    normed = kernels().add_norm(*inputs, bias, 1e-12)
    both = [
        kernels().add_norm_gradient(first, second, *inputs, normed.mean, normed.scale)
        for first, second in ((dy, None), (0.7 * dy, 0.3 * dy))
    ]
    return [far(normed.y, y), *(far(*pair) for actual in both for pair in zip(actual, expected, strict=True))]


def differences_of_attention(sequences: int, length: int, heads: int, width: int) -> list[float]:
    """How far the gradient of attention and its sums are from torch's."""
    torch.manual_seed(0)
    joint, dy = (
        torch.randn(sequences, length, 3 * heads * width, requires_grad=True),
        torch.randn(sequences, length, heads * width),
    )
    query, key, value = joint.view(sequences, length, 3, heads, width).transpose(1, 3).unbind(2)
    (expected,) = torch.autograd.grad(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2), joint, dy)
    assert kernels().holds_attention(dy, heads)
    djoint, sums = kernels().attention_gradient(joint.detach(), dy, heads)
    return [far(djoint, expected), far(sums, expected.sum((0, 1)))]


def differences_of_timed_kernels() -> dict[str, float]:
    """How far what the benchmark times is from plain torch's, by kernel and division of its work."""
    bench = importlib.import_module("study.benching.kernels")
    assert len(list(bench.kernels(sizes()))) == len(bench.KERNELS), "all are taken at these sizes"
    actual = {}
    for make in bench.KERNELS:
        for number, division in enumerate(({}, *make(sizes()).divisions)):
            torch.manual_seed(0)
            kernel = make(sizes())
            plain = [each.clone() for each in kernel.plain()]  # ours may write over what it reads
            run = kernel.run(**division)
            actual[f"{kernel.name}, {number}"] = max(far(*pair) for pair in zip(run, plain, strict=True))
    return actual


def sizes() -> Any:
    """Sizes of the benchmark that Triton interprets in a moment."""
    model = Architecture.parse(SHAPE)
    return importlib.import_module("study.benching.kernels").Sizes(model, 3, 40, torch.float32, "cpu")


def results(blocks: list[Block], run: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> list[Tensor]:
    """What some blocks give, and their gradients by their input and their parameters."""
    x = x.clone().requires_grad_()
    y = run(x)
    parameters = [parameter for block in blocks for parameter in block.parameters()]
    return [y.detach(), *torch.autograd.grad(y, (x, *parameters), dy.to(y.dtype))]


def drawn_blocks(count: int, device: str = "cpu", **changes: Any) -> list[Block]:
    """Blocks of drawn weights, none of them as BERT begins with, under which norms and biases hardly matter."""
    torch.manual_seed(0)
    blocks = [Block(Architecture.parse(SHAPE | changes), dropout=0.0).to(device) for _ in range(count)]
    for block in blocks:
        for name, parameter in block.named_parameters():
            torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=0.05 if device == "cuda" else 0.3)
    return blocks


def one_by_one(blocks: list[Block], x: Tensor, rotary: Tensor | None, positions: Tensor | None) -> Tensor:
    """What blocks give as they are, the last one at some positions where they are given."""
    *earlier, last = blocks
    for block in earlier:
        x = block(x, None, rotary)
    y: Tensor = last(x, None, rotary, positions)
    return y


def drawn_positions(sequences: int, length: int) -> Tensor:
    """A sixth of the positions of each sequence, one of them twice."""
    drawn = torch.stack([torch.randperm(length)[: length // 6] for _ in range(sequences)])
    drawn[:, -1] = drawn[:, 0]
    return drawn


def differences_of_blocks(count: int, length: int, turns: int, at_some: bool, rotates: bool, bias: str) -> list[float]:
    """How far blocks that are written out are from others, in fp32: their result and all gradients; all take several turns."""
    fused_blocks = importlib.import_module("study.model.fused").fused_blocks
    blocks, x = drawn_blocks(count, distance_bias=bias), torch.randn(3, length, 48)
    rotary = rotary_table(512, 16)[:, :length] if rotates else None
    positions = drawn_positions(3, length) if at_some else None
    dy = torch.randn(3, length if positions is None else positions.shape[1], 48)
    plain = results(blocks, lambda x: one_by_one(turns * blocks, x, rotary, positions), x, dy)
    fused = results(blocks, lambda x: fused_blocks(turns * blocks, x, rotary, positions), x, dy)
    assert len(plain) == 2 + (13 if bias == "learned" else 12) * count
    return [far(*pair) for pair in zip(fused, plain, strict=True)]


def differences_of_loss(vocabulary: int) -> list[float]:
    """How far the loss that is written out, and its gradients, are from torch's in fp32; some labels are ignored."""
    fused_cross_entropy = importlib.import_module("study.model.fused").fused_cross_entropy
    torch.manual_seed(0)
    drawn, labels = (
        (torch.randn(40, 24), torch.randn(vocabulary, 24), torch.randn(vocabulary)),
        torch.randint(0, vocabulary, (40,)),
    )
    labels[::7] = IGNORED

    def of(run: Callable[..., Tensor]) -> list[Tensor]:
        inputs = [each.clone().requires_grad_() for each in drawn]
        loss = run(*inputs)
        return [loss.detach(), *torch.autograd.grad(3 * loss, inputs)]

    plain = of(lambda hidden, weight, bias: F.cross_entropy(F.linear(hidden, weight, bias), labels, ignore_index=IGNORED))
    fused = of(lambda hidden, weight, bias: fused_cross_entropy(hidden, weight, bias, labels))
    return [far(*pair) for pair in zip(fused, plain, strict=True)]


def losses_written_out(root: Path, corpus: Path) -> tuple[list[float], list[float], int]:
    """The losses of a short run by torch's own kernels and by those that are written out, and how often blocks were."""
    torch.compiler.set_stance("force_eager")
    blocks = importlib.import_module("study.model.fused")
    short = config(corpus, architecture={"depth": 3}, recipe={"budget": {"steps": 6}})
    eager = trained(root / "eager", short, kernels="eager")
    with (
        patch.object(blocks, "fused_blocks", wraps=blocks.fused_blocks) as counted,
        patch.object(MaskedLanguageModelling, "uses_fused_kernels", True),
    ):
        fused = trained(root / "fused", short, kernels="compiled")
    return losses(eager), losses(fused), counted.call_count


def built(kinds: dict[str, tuple[list[str], dict[str, Any], int]]) -> dict[str, tuple[int, str]]:
    """The bytes that a program of each kernel shares on a Hopper, and what the assembler says of its registers and stack."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import compiler as nvidia
    from triton.compiler import ASTSource
    from triton.compiler import compile as build

    tool, binary = Path(nvidia.__file__).parent / "bin" / "cuobjdump", Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.cubin"
    actual = {}
    for name, (types, constants, warps) in kinds.items():
        kernel = getattr(kernels(), name.split()[0])
        given = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
        signature = dict(zip(given, types, strict=True)) | dict.fromkeys(constants, "constexpr")
        aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(types) if kind != "fp32"}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
        made = build(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        binary.write_bytes(made.asm["cubin"])
        usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
        actual[name] = (made.metadata.shared, usage)
    return actual


def all_differences() -> dict[str, Any]:
    """What all the comparisons with torch find, by what they compare."""
    plain = [(*size, at_some, False, "none") for size in ((1, 20, 1), (1, 130, 1), (1, 20, 2)) for at_some in (False, True)]
    modern = [(1, 20, 1, False, True, "learned"), (1, 20, 1, True, True, "learned"), (1, 20, 1, True, False, "alibi")]
    return {
        "norms": worst(differences_of_norms, [(96,), (128,), (2500,)]),
        "attention": worst(differences_of_attention, [(3, 128, 2, 64), (5, 96, 3, 32), (2, 20, 1, 16), (9, 7, 2, 16)]),
        "blocks": worst(differences_of_blocks, plain + modern),
        "losses": worst(differences_of_loss, [(50,), (2100,)]),
    }


@pytest.fixture(scope="module")
def differences(interpreter: ProcessPoolExecutor) -> dict[str, Any]:
    """The differences, found once."""
    return interpreter.submit(all_differences).result()


def test_every_kernel_gives_what_torch_does(interpreter: ProcessPoolExecutor) -> None:
    actual = interpreter.submit(differences_of_kernels).result()
    assert len(actual) == 8
    assert {name: error for name, error in actual.items() if error > 2e-6} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "most"), [("norms", 2e-6), ("attention", 5e-6), ("blocks", 2e-5), ("losses", 2e-6)])
def test_what_is_written_out_gives_torchs_numbers_and_gradients(what: str, most: float, differences: dict[str, Any]) -> None:
    assert max(differences[what].values()) < most, differences[what]


@pytest.mark.slow
@needs_compiler
def test_a_run_by_kernels_that_are_written_out_learns_what_another_does(
    interpreter: ProcessPoolExecutor, tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt")
    eager, fused, calls = interpreter.submit(losses_written_out, tmp_path, corpus).result()
    assert calls == 6, "once a step"
    assert fused == pytest.approx(eager, rel=1e-6)


@pytest.mark.slow
def test_the_benchmark_times_kernels_beside_torchs_that_make_the_same(interpreter: ProcessPoolExecutor) -> None:
    actual = interpreter.submit(differences_of_timed_kernels).result()
    assert len(actual) == 38, "all kernels, each at its own division and at those that are tried"
    assert max(actual.values()) < 5e-6, actual


def test_a_kernels_row_shows_its_part_of_the_memorys_rate_and_faster_divisions(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    bench = importlib.import_module("study.benching.kernels")

    def run(warps: int = 4) -> float:
        if warps > 8:
            raise OutOfResources(300_000, HOPPERS_SHARED_BYTES, "shared memory")
        return 2e-5 / warps

    monkeypatch.setattr(bench, "_seconds", lambda call: call())
    divisions = ({"warps": 8}, {"warps": 16})
    kernel = bench.Kernel("GELU", run, lambda: 2e-5, (torch.zeros(1000), torch.zeros(1000)), divisions, compiled=False)
    row = bench.measured(kernel, bytes_per_second=3.2e9)
    assert row["share_of_bandwidth"] == pytest.approx(0.5)
    assert row["versus"] == pytest.approx(4.0)
    assert row["divisions"] == {"warps 8": pytest.approx(2.5e-6), "warps 16": None}
    expected = "GELU, time 5 µs, of bandwidth 50%, x torch 4.00, faster 2.5 µs with warps 8"
    assert as_line("kernels", row) == f"kernels: {expected}"
    assert as_text("kernels", [failure("kernels", "no Triton")]).splitlines()[-1].split(maxsplit=1) == ["kernels", "no Triton"]


@pytest.mark.parametrize(
    ("changes", "dropout"),
    [
        ({"norm": "pre"}, 0.0),
        ({"norm_kind": "rms"}, 0.0),
        ({"norm_bias": False}, 0.0),
        ({"activation": "geglu"}, 0.0),
        ({"activation": "relu"}, 0.0),
        ({"biases": "none"}, 0.0),
        ({"query_key_norm": True}, 0.0),
        ({}, 0.1),
    ],
)
def test_only_blocks_of_berts_without_dropout_are_written_out(changes: dict[str, Any], dropout: float) -> None:
    assert has_fused_kernels(Architecture.parse(SHAPE), 0.0)
    assert has_fused_kernels(Architecture.parse(SHAPE | {"layer_groups": 1}), 0.0)
    assert has_fused_kernels(Architecture.parse(SHAPE | {"position_encoding": "rotary", "distance_bias": "learned"}), 0.0)
    assert not has_fused_kernels(Architecture.parse(SHAPE | changes), dropout)


HALF, FLOAT, LONG, INT = "*bf16", "*fp32", "*i64", "i32"
BLOCKS = {"WIDTH": 3072, "ROWS": 32, "COLUMNS": 128, "STEPS": 8}
BUILT: dict[str, tuple[list[str], dict[str, Any], int]] = {
    "_column_sums_kernel": ([FLOAT, FLOAT, INT], {"WIDTH": 3072, "ROWS": 128, "COLUMNS": 32}, 4),
    "_gelu_kernel": ([HALF, HALF, INT], {"COLUMNS": 1024}, 4),
    "_gelu_gradient_kernel": ([HALF, HALF, HALF, FLOAT, INT], BLOCKS | {"STAGES": 3}, 4),
    "_add_norm_kernel": (
        [HALF, HALF, FLOAT, FLOAT, FLOAT, HALF, FLOAT, FLOAT, INT, "fp32"],
        {"WIDTH": 768, "ROWS": 1, "COLUMNS": 1024},
        1,
    ),
    "_add_norm_gradient_kernel": (
        [HALF, HALF, HALF, HALF, FLOAT, FLOAT, FLOAT, FLOAT, HALF, FLOAT, INT],
        {"TWO": True, "WIDTH": 768, "ROWS": 2, "COLUMNS": 1024, "STAGES": 3},
        4,
    ),
    "_attention_gradient_kernel": (
        [HALF, HALF, HALF, FLOAT, INT, INT, "fp32"],
        {"HEADS": 12, "TOKENS": 128, "WIDTH": 64, "FULL": True, "PARTS": 4, "STAGES": 3},
        8,
    ),
    "_attention_gradient_kernel of shorter sequences": (
        [HALF, HALF, HALF, FLOAT, INT, INT, "fp32"],
        {"HEADS": 12, "TOKENS": 128, "WIDTH": 64, "FULL": False, "PARTS": 4, "STAGES": 2},
        8,
    ),
    "_join_kernel": ([HALF, HALF, HALF, HALF, FLOAT, INT], BLOCKS | {"PARTS": 3, "WIDTH": 768}, 4),
    "_rotate_kernel": ([HALF, FLOAT, INT, INT, INT], {"PAIRS": 32, "SIGN": -1, "ROWS": 32, "COLUMNS": 32}, 4),
    "_cross_entropy_kernel": ([HALF, LONG, FLOAT, FLOAT, INT], {"CLASSES": 30522, "STRIDE": 30528, "COLUMNS": 2048}, 4),
    "_cross_entropy_gradient_kernel": (
        [HALF, LONG, FLOAT, FLOAT, FLOAT, INT, INT],
        {"CLASSES": 30522, "STRIDE": 30528, "ROWS": 4, "COLUMNS": 512, "STEPS": 16},
        4,
    ),
}
"""Arguments of the kernels at the sizes of BERT-Base."""


@pytest.mark.slow
def test_kernels_build_for_a_hopper_and_fit_its_registers_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    actual = apart(built, BUILT)
    assert len(actual) == 11
    assert {name: shared for name, (shared, _) in actual.items() if shared > HOPPERS_SHARED_BYTES} == {}
    assert {name: usage for name, (_, usage) in actual.items() if re.findall(r"STACK:(\d+)", usage) != ["0"]} == {}


@needs_gpu
@pytest.mark.parametrize("at_some", [False, True])
@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(("width", "heads", "length"), [(768, 12, 128), (192, 3, 100), (128, 2, 300), (120, 3, 64)])
def test_on_a_gpu_blocks_that_are_written_out_are_as_exact_as_others_in_bf16(
    width: int, heads: int, length: int, modern: bool, at_some: bool
) -> None:
    """`modern`: with rotary positions and a learned distance bias."""
    from study.model.fused import fused_blocks

    blocks = drawn_blocks(2, "cuda", width=width, heads=heads, ffn=4 * width, distance_bias="learned" if modern else "none")
    rotary = rotary_table(512, width // heads)[:, :length].cuda() if modern else None
    x, positions = torch.randn(16, length, width, device="cuda").bfloat16(), None
    if at_some:
        positions = drawn_positions(16, length).cuda()
    dy = torch.randn(16, length if positions is None else positions.shape[1], width, device="cuda").bfloat16()
    exact = results(blocks, lambda x: one_by_one(blocks, x, rotary, positions), x.float(), dy.float())
    with torch.autocast("cuda", torch.bfloat16):
        plain = results(blocks, lambda x: one_by_one(blocks, x, rotary, positions), x, dy)
        fused = results(blocks, lambda x: fused_blocks(blocks, x, rotary, positions), x, dy)
    for ours, theirs, true in zip(fused, plain, exact, strict=True):
        ours_off, theirs_off = (float((each.float() - true).norm() / true.norm()) for each in (ours, theirs))
        assert ours_off < 1.5 * theirs_off + 1e-3
