"""Training on a GPU: every way of running the kernels learns the same, from the same masks, and resumes where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from study.base.errors import InputError
from study.benching.cases import Case
from study.benching.training_comparison import PROFILED, TrainingComparison
from study.config.presets import PRESETS
from study.config.resources import Kernels
from study.config.run_config import RunConfig
from study.counting.named_models import named
from study.data.masking import Masker
from study.model import layers
from study.model.encoder import Block
from study.model.lightning import MaskedLanguageModelling
from study.store.run_folder import RunFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution, resolve_kernels
from study.training.trainer import compile_on
from tests.needs import needs_compiler, needs_gpu
from tests.processes import apart
from tests.small import ORDERED, SHARED, config, losses, run_folder, trained, write_corpus
from tests.training.test_branching import trunk_and_branch, with_budget

FUSED: tuple[Kernels, ...] = ("compiled", "graphed")
PLAIN: dict[str, Any] = {"norm_kind": "rms", "biases": "none"}
MODERN, MODERN2 = (dict(PRESETS[name]["architecture"]) for name in ("modern", "modern2"))
KINDS = pytest.mark.parametrize(
    "kind",
    [{}, {"position_encoding": "rotary"}, SHARED | PLAIN, ORDERED | {"norm": "pre"}, MODERN, MODERN2],
    ids=["BERT", "rotary", "shared and plain", "bias and normed queries", "modern", "modern2"],
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt")


class StopAt(StopSignal):
    """Asks to stop once, after some looks."""

    looks = 0

    @property
    def received(self) -> bool:
        self.looks += 1
        return self.looks == 17

    @received.setter
    def received(self, value: bool) -> None:
        del value


def trained_apart(root: Path, config: RunConfig, stop: StopSignal | None = None, **execution: Any) -> RunFolder:
    """Train in a process of its own, where types are not checked at run time, which torch.compile cannot look through."""
    return apart(trained, root, config, stop, **execution)


def cuda_config(corpus: Path, kind: dict[str, Any] | None = None, **recipe: Any) -> RunConfig:
    changed = {"budget": {"steps": 40}, "dropout": 0.1, **recipe}
    return config(corpus, architecture=kind or {}, recipe=changed)


def taught(corpus: Path, teacher: RunFolder) -> RunConfig:
    named = f"{teacher.path}:weight=0.7:temperature=2"
    return config(corpus, architecture={"depth": 1, "width": 8}, recipe={"teacher": named})


def kept_in_fp32(corpus: Path, positions: torch.Tensor | None) -> tuple[int, int]:
    """How many tensors of the stream's size a fused block keeps for its backward pass in fp32, where norms are rounded, and in
    all; it works at some positions, or at every token.
    """
    kept: list[torch.dtype] = []
    plain = config(corpus, architecture={"width": 768, "heads": 12, "ffn": 3072})
    module = MaskedLanguageModelling(plain, Masker(plain.masking, 3, 4, (0, 1, 2, 3, 4), 200), kernels="compiled")
    module.setup("fit")
    layers.rounds = lambda x: torch.is_autocast_enabled(x.device.type)
    block = Block(plain.architecture, dropout=0.0)
    block.compile(backend="aot_eager_decomp_partition", dynamic=False)
    stream = torch.randn(2, 16, 768).bfloat16().requires_grad_()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.extend([tensor.dtype] * (tensor.shape in (stream.shape, (2, 3, 768))))
        return tensor

    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(stream, None, None, positions)
    return kept.count(torch.float32), len(kept)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [None, torch.tensor([[0, 3, 7], [1, 8, 15]])])
def test_fused_blocks_keep_no_number_of_the_stream_in_fp32(corpus: Path, positions: torch.Tensor | None) -> None:
    in_fp32, kept = apart(kept_in_fp32, corpus, positions)
    assert in_fp32 == 0
    assert kept > 0


def test_kernels_are_eager_on_cpu_and_refused_where_they_cannot_run(corpus: Path) -> None:
    assert resolve_kernels(Execution(device="cpu"), "bf16") == "eager"
    with pytest.raises(InputError, match="graphed runs on a single CUDA device; use compiled or eager"):
        Execution(device="cpu", kernels="graphed").check(config(corpus))


def test_compiling_needs_a_compiler_and_says_so(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(InputError, match="compiled needs a C compiler"):
        Execution(device="cpu", kernels="compiled").check(config(corpus))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_kernels(Execution(device="cuda"), "bf16") == "eager"


def test_torch_compile_builds_on_the_threads_of_a_run_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor, "compile_threads", 16)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "16")
    compile_on(3)
    assert inductor.compile_threads == 16
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
    compile_on(3)
    assert inductor.compile_threads == 3


@pytest.mark.slow
@needs_compiler
@KINDS
def test_a_compiled_run_on_cpu_learns_what_an_eager_one_does(corpus: Path, tmp_path: Path, kind: dict[str, Any]) -> None:
    plain = config(corpus, architecture=kind)
    eager = trained_apart(tmp_path / "eager", plain, kernels="eager")
    compiled = trained_apart(tmp_path / "compiled", plain, kernels="compiled")
    record = compiled.record()
    assert record is not None
    assert record.environment is not None
    assert record.environment.kernels == "compiled"
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-4)


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kernels", FUSED)
@KINDS
def test_fused_kernels_learn_what_eager_ones_do(
    corpus: Path, tmp_path: Path, kernels: Kernels, precision: str, kind: dict[str, Any]
) -> None:
    plain = cuda_config(corpus, kind, precision=precision, dropout=0.0)
    eager = trained_apart(tmp_path / "eager", plain, device="cuda", kernels="eager")
    fused = trained_apart(tmp_path / "fused", plain, device="cuda", kernels=kernels)
    record = fused.record()
    assert record is not None, fused.log_file
    assert record.state == "COMPLETED", record.reason
    assert record.environment is not None
    assert record.environment.kernels == kernels
    assert losses(fused) == pytest.approx(losses(eager), rel=1e-3 if precision == "fp32" else 1e-2)


@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_of_muons_step_learns_what_its_kernels_do_one_by_one(corpus: Path, tmp_path: Path, precision: str) -> None:
    """Rates that a schedule moves between replays, and matrices that are orthogonalised in bf16, reach the graph."""
    plain = cuda_config(corpus, SHARED, precision=precision, dropout=0.0, optimizer="muon", weight_decay=0.1)
    eager = trained_apart(tmp_path / "eager", plain, device="cuda", kernels="eager")
    graphed = trained_apart(tmp_path / "graphed", plain, device="cuda", kernels="graphed")
    record = graphed.record()
    assert record is not None, graphed.log_file
    assert record.state == "COMPLETED", record.reason
    assert losses(graphed) == pytest.approx(losses(eager), rel=2e-2)


@pytest.mark.slow
@needs_compiler
def test_a_compiled_run_on_cpu_learns_from_its_teacher_what_an_eager_one_does(corpus: Path, tmp_path: Path) -> None:
    wanted = taught(corpus, trained(tmp_path, config(corpus)))
    eager = trained_apart(tmp_path / "eager", wanted, kernels="eager")
    compiled = trained_apart(tmp_path / "compiled", wanted, kernels="compiled")
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-4)


@needs_gpu
@pytest.mark.parametrize("kernels", FUSED)
def test_fused_kernels_learn_from_a_teacher_what_eager_ones_do(corpus: Path, tmp_path: Path, kernels: Kernels) -> None:
    wanted = taught(corpus, trained(tmp_path, config(corpus)))
    eager = trained_apart(tmp_path / "eager", wanted, device="cuda", kernels="eager")
    fused = trained_apart(tmp_path / "fused", wanted, device="cuda", kernels=kernels)
    assert losses(fused) == pytest.approx(losses(eager), rel=1e-3)


@needs_gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("kernels", ["eager", *FUSED])
def test_a_run_on_a_gpu_resumes_where_it_stopped(corpus: Path, tmp_path: Path, kernels: Kernels, optimizer: str) -> None:
    stopped = cuda_config(corpus, optimizer=optimizer)
    whole = trained_apart(tmp_path / "whole", stopped, device="cuda", kernels=kernels)

    folder = run_folder(tmp_path / "stopped", stopped)
    trained_apart(tmp_path / "stopped", stopped, stop=StopAt(), device="cuda", kernels=kernels)
    assert folder.record() is None
    trained_apart(tmp_path / "stopped", stopped, device="cuda", kernels=kernels)
    record, undisturbed = folder.record(), whole.record()
    assert record is not None
    assert undisturbed is not None
    assert record.loss_nats == pytest.approx(undisturbed.loss_nats, rel=1e-3)
    assert losses(folder) == pytest.approx(losses(whole), rel=1e-3)


@needs_gpu
@pytest.mark.parametrize("kernels", ["eager", *FUSED])
def test_validation_between_steps_on_a_gpu_leaves_training_as_it_is(corpus: Path, tmp_path: Path, kernels: Kernels) -> None:
    plain = cuda_config(corpus)
    once = trained_apart(tmp_path / "once", plain, device="cuda", kernels=kernels, validations=1)
    often = trained_apart(tmp_path / "often", plain, device="cuda", kernels=kernels, validations=4)
    assert sum("val/loss" in row for row in often.metrics()) == 4
    assert losses(often) == pytest.approx(losses(once), rel=1e-3)


@needs_gpu
@pytest.mark.parametrize("kernels", ["eager", *FUSED])
def test_a_branch_on_a_gpu_learns_what_a_run_alone_does(corpus: Path, tmp_path: Path, kernels: Kernels) -> None:
    short, long = with_budget(corpus, 35, dropout=0.1), with_budget(corpus, 70, dropout=0.1)
    _, branch = apart(trunk_and_branch, tmp_path, long, short, device="cuda", kernels=kernels)
    alone = trained_apart(tmp_path / "alone", short, device="cuda", kernels=kernels)
    record, lone = branch.record(), alone.record()
    assert record is not None
    assert lone is not None
    assert record.trunk_step == 28
    assert losses(branch) == pytest.approx(losses(alone), rel=1e-3)
    assert record.loss_nats == pytest.approx(lone.loss_nats, rel=1e-3)


@needs_gpu
def test_a_replayed_graph_draws_the_masks_of_its_seed() -> None:
    from study.config.run_config import Masking

    masker = Masker(Masking(), 3, 4, (0, 1, 2, 3, 4), 100)
    tokens = torch.randint(5, 100, (8, 16), device="cuda")
    generator = torch.Generator("cuda")
    masker(tokens, generator.manual_seed(0))
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        recorded = masker(tokens, generator)
    for seed in (1, 2):
        generator.manual_seed(seed)
        graph.replay()
        expected = masker(tokens, torch.Generator("cuda").manual_seed(seed))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(recorded, expected, strict=True))


@needs_gpu
def test_a_profiled_step_on_a_gpu_names_its_products_and_its_attention(tmp_path: Path) -> None:
    case = Case(named("bert-tiny"), "bf16", batch=32, sequence_length=128, device="cuda")
    with TrainingComparison(case, tmp_path / "comparison") as comparison:
        for name in ("ours", PROFILED):
            comparison.start(name)
            comparison.warm_up(name)
        comparison.measure(1)
        comparison.profile()
    assert not comparison.rounds.errors
    seconds = comparison.rounds.profile
    assert seconds is not None
    assert {"products", "attention", "the optimiser", "the loss over the logits"} <= set(seconds)
    assert sum(seconds.values()) < 1.5 * comparison.rounds.times["ours"][0].step_seconds
